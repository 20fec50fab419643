"""Yuque (语雀) by its API v2: books, documents, sheets and tables."""
