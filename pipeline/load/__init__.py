"""Connectors: they authenticate, list and download, and never parse. `connectors` names the kinds there are."""
