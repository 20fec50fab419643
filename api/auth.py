"""Who is asking, and what they may see."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pipeline.errors import Forbidden, NotFound, Unauthorised
from workers.views import Principal

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from workers.dispatch import Platform

FORWARDING = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
)
"""Any of these says that the caller's address is a proxy's, so that loopback proves nothing."""


def authenticate(connection: HTTPConnection, platform: Platform, *, public_url: str = "") -> Principal:
    """The caller. Blocking: it asks the ledger.

    Without a key only a direct caller on loopback is let in, and only until the first key exists.
    Raises Unauthorised.
    """
    header = connection.headers.get("authorization", "")
    if header:
        scheme, _, secret = header.partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise Unauthorised("the Authorization header holds no bearer key", hint="Send `Authorization: Bearer KEY`.")
        return platform.authenticate(secret.strip())
    if not is_local(connection, public_url):
        raise Unauthorised(
            "an API key is needed from anywhere but this machine",
            hint="Create one here with `dujiang keys create NAME`, and send it as `Authorization: Bearer KEY`.",
        )
    if platform.has_keys():
        raise Unauthorised("an API key is needed, because one exists", hint="Send `Authorization: Bearer KEY`.")
    return Principal()


def is_local(connection: HTTPConnection, public_url: str = "") -> bool:
    """True for a direct call from this machine that no web page of another site can have caused.

    The Host header must name this machine (a page whose name was re-bound to 127.0.0.1 sends its own),
    and an Origin, where a browser sends one, as well.
    """
    client = connection.client
    if client is None or not loopback(client.host) or any(name in connection.headers for name in FORWARDING):
        return False
    allowed = {urlsplit(public_url).hostname} if public_url else set[str | None]()
    names = [urlsplit(f"//{connection.headers.get('host', '')}").hostname]
    if "origin" in connection.headers:
        names.append(urlsplit(connection.headers["origin"]).hostname)
    return all(name is not None and (name in allowed or loopback(name)) for name in names)


def loopback(host: str) -> bool:
    """True for a name or address of this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def need(who: Principal, permission: str) -> None:
    """Raise Forbidden when the key lacks a permission."""
    if permission not in who.permissions:
        raise Forbidden(f"this key may not {permission}", hint=f"Use a key with the permission {permission!r}.")


def need_write(who: Principal, collection: str) -> None:
    """Raise Forbidden when the key may not change this collection."""
    need(who, "write")
    if not visible(who, collection):
        raise Forbidden(f"this key's scope does not cover the collection {collection!r}")


def need_read(who: Principal, collection: str) -> None:
    """Raise Forbidden for a key that may not read at all, NotFound for a collection outside its scope.

    A collection that a key may not see looks like one that does not exist.
    """
    need(who, "read")
    if not visible(who, collection):
        raise NotFound(f"there is no collection {collection!r}", hint="`GET /api/v1/collections` lists those there are.")


def visible(who: Principal, collection: str) -> bool:
    """True when the key's scope covers the collection."""
    return not who.collections or collection in who.collections


def narrower(who: Principal, collections: Sequence[str], permissions: Sequence[str]) -> bool:
    """True when a key of this reach would not reach further than `who` does."""
    inside = not who.collections or (bool(collections) and set(collections) <= set(who.collections))
    return inside and set(permissions) <= set(who.permissions)
