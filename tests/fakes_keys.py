"""Keys and remembered requests of the platform in memory."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime

from pipeline.errors import BadRequest, Conflict, Unauthorised
from workers.views import KeyView, Principal


def now() -> datetime:
    return datetime.now(UTC)


class FakeKeys:
    """What the façade does for whoever calls it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._keys: dict[str, tuple[KeyView, str, str]] = {}
        self._remembered: dict[tuple[str, str, str], tuple[str, tuple[int, bytes] | None]] = {}

    def create_key(
        self, name: str, *, collections: tuple[str, ...] = (), permissions: tuple[str, ...] = ("read", "write"), tenant: str = "default"
    ) -> KeyView:
        key_id = f"key-{len(self._keys) + 1}"
        view = KeyView(key_id, name, tuple(collections), tuple(permissions), now(), None, None)
        secret = f"dj_{key_id}_secret"
        self._keys[key_id] = (view, secret, tenant)
        return replace(view, key=secret)

    def keys(self, *, tenant: str = "default") -> list[KeyView]:
        return [view for view, _, owner in self._keys.values() if owner == tenant]

    def revoke_key(self, key_id: str, *, tenant: str = "default") -> None:
        view, secret, tenant = self._keys[key_id]
        self._keys[key_id] = (replace(view, revoked_at=now()), secret, tenant)

    def has_keys(self) -> bool:
        return any(view.revoked_at is None for view, _, _ in self._keys.values())

    def authenticate(self, secret: str) -> Principal:
        for view, known, tenant in self._keys.values():
            if known == secret and view.revoked_at is None:
                return Principal(tenant, view.key_id, view.collections, view.permissions)
        raise Unauthorised("the API key is unknown or revoked")

    def remember(self, principal_key: str, route: str, idempotency_key: str, payload_hash: str) -> tuple[int, bytes] | None:
        with self._lock:
            known = self._remembered.get((principal_key, route, idempotency_key))
            if known is None:
                self._remembered[principal_key, route, idempotency_key] = (payload_hash, None)
                return None
            if known[0] != payload_hash:
                raise BadRequest("this Idempotency-Key was used for another payload", code="idempotency_mismatch")
            if known[1] is None:
                raise Conflict("a request with this Idempotency-Key is in flight", code="in_flight")
            return known[1]

    def recall(self, principal_key: str, route: str, idempotency_key: str, status: int, body: bytes) -> None:
        with self._lock:
            payload, _ = self._remembered[principal_key, route, idempotency_key]
            self._remembered[principal_key, route, idempotency_key] = (payload, (status, body))

    def forget(self, principal_key: str, route: str, idempotency_key: str) -> None:
        with self._lock:
            self._remembered.pop((principal_key, route, idempotency_key), None)
