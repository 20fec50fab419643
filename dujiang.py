"""``from dujiang import Dujiang``: the Python door, on this machine or to a remote system."""

from api.client import Dujiang

__all__ = ["Dujiang"]
