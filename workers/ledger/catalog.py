"""Collections, API keys and remembered requests."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import bindparam, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from pipeline.errors import BadRequest, Conflict, NotFound, Unauthorised
from workers.ledger.batches import collection_row
from workers.ledger.engine import Database
from workers.ledger.schema import api_keys, collections, deletions, idempotency
from workers.ledger.work import CollectionRow
from workers.views import KeyView, Principal

FIND = select(collections).where(collections.c.tenant == bindparam("tenant"), collections.c.name == bindparam("name"), collections.c.status == "live")
HAS_KEYS = select(func.count()).select_from(api_keys).where(api_keys.c.revoked_at.is_(None))
AUTHENTICATE = select(api_keys).where(api_keys.c.hash == bindparam("hash"), api_keys.c.revoked_at.is_(None))
"""Every request asks these: building a statement anew takes as long as running it."""

FLIGHT_S = 300.0
"""A request that is still marked in flight after this long died with its process."""


def moment(seconds: float) -> datetime:
    """Aware UTC time of seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC)


def find(db: Database, tenant: str, name: str) -> CollectionRow:
    """Raises NotFound."""
    with db.read() as connection:
        row = connection.execute(FIND, {"tenant": tenant, "name": name}).first()
    if row is None:
        raise NotFound(f"there is no collection {name!r}", hint="`dujiang collections list` shows those there are.", code="collection_not_found")
    return collection_row(row)


def every(db: Database, tenant: str | None = None) -> list[CollectionRow]:
    """Collections by name; of all tenants when None."""
    query = select(collections).where(collections.c.status == "live").order_by(collections.c.name)
    if tenant is not None:
        query = query.where(collections.c.tenant == tenant)
    with db.read() as connection:
        return [collection_row(row) for row in connection.execute(query)]


def create(db: Database, row: Mapping[str, object]) -> CollectionRow:
    """Insert a collection, or give the existing one back when its options are the same. Raises Conflict."""
    tenant, name = str(row["tenant"]), str(row["name"])
    try:
        with db.write() as connection:
            # Above the generations of an earlier collection of the name, so that nobody who comes late writes into this one.
            earlier = select(deletions.c.generation).where(deletions.c.kind == "collection", deletions.c.id == row["id"])
            generation = int(connection.scalar(earlier) or 0) + 1
            connection.execute(insert(collections).values(**row, generation=generation, created_at=db.now(connection)))
    except IntegrityError:
        pass
    found = _made(db, tenant, name)
    for option in ("chunker", "embedder", "tokenizer"):
        if getattr(found, option) != row[option]:
            raise Conflict(
                f"collection {name!r} exists with {option} {getattr(found, option)!r}, not {row[option]!r}",
                hint="Use another name, or delete the collection first.",
                code="collection_exists",
            )
    return found


def _made(db: Database, tenant: str, name: str) -> CollectionRow:
    try:
        return find(db, tenant, name)
    except NotFound:
        hint = "Ask again in a moment; `dujiang audit --repair` finishes it where nothing runs."
        raise Conflict(f"the collection {name!r} of that name is still being deleted", hint=hint, code="collection_deleting") from None


def bump(db: Database, collection_id: str) -> None:
    """A visible change: answers cached before it are void."""
    with db.write() as connection:
        connection.execute(update(collections).where(collections.c.id == collection_id).values(revision=collections.c.revision + 1))


def create_key(db: Database, name: str, collections_: Sequence[str], permissions: Sequence[str], tenant: str) -> KeyView:
    """A new key; only its SHA-256 is kept, the secret is shown this once. Raises BadRequest."""
    unknown = set(permissions) - {"read", "write", "admin"}
    if unknown:
        raise BadRequest(f"unknown permission {sorted(unknown)[0]!r}", hint="Use read, write or admin.", pointer="/permissions")
    secret = f"dj-{secrets.token_urlsafe(32)}"
    key_id = secrets.token_hex(8)
    with db.write() as connection:
        now = db.now(connection)
        connection.execute(
            insert(api_keys).values(
                id=key_id,
                tenant=tenant,
                name=name,
                hash=_hash(secret),
                collections=json.dumps(list(collections_)),
                permissions=json.dumps(list(permissions)),
                created_at=now,
            )
        )
    return KeyView(key_id, name, tuple(collections_), tuple(permissions), moment(now), None, None, key=secret)


def keys(db: Database, tenant: str) -> list[KeyView]:
    with db.read() as connection:
        rows = connection.execute(select(api_keys).where(api_keys.c.tenant == tenant).order_by(api_keys.c.created_at)).all()
    return [
        KeyView(
            row.id,
            row.name,
            tuple(json.loads(row.collections)),
            tuple(json.loads(row.permissions)),
            moment(row.created_at),
            moment(row.last_used_at) if row.last_used_at else None,
            moment(row.revoked_at) if row.revoked_at else None,
        )
        for row in rows
    ]


def revoke_key(db: Database, key_id: str, tenant: str) -> None:
    """Raises NotFound."""
    with db.write() as connection:
        done = connection.execute(
            update(api_keys)
            .where(api_keys.c.id == key_id, api_keys.c.tenant == tenant, api_keys.c.revoked_at.is_(None))
            .values(revoked_at=db.now(connection))
        )
    if done.rowcount != 1:
        raise NotFound(f"there is no valid key {key_id!r}", hint="`dujiang keys list` shows those there are.", code="key_not_found")


def has_keys(db: Database) -> bool:
    with db.read() as connection:
        return bool(connection.scalar(HAS_KEYS))


def authenticate(db: Database, secret: str) -> Principal:
    """Raises Unauthorised."""
    with db.read() as connection:
        row = connection.execute(AUTHENTICATE, {"hash": _hash(secret)}).first()
        now = db.now(connection)
    if row is None:
        raise Unauthorised("the API key is not valid", hint="Create one with `dujiang keys create`.", code="invalid_api_key")
    if row.last_used_at is None or now - row.last_used_at > 60.0:
        with db.write() as connection:
            connection.execute(update(api_keys).where(api_keys.c.id == row.id).values(last_used_at=now))
    return Principal(row.tenant, row.id, tuple(json.loads(row.collections)), tuple(json.loads(row.permissions)))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def remember(db: Database, principal: str, route: str, key: str, payload_hash: str) -> tuple[int, bytes] | None:
    """None: go on, the request is now marked in flight. A pair: the answer given before.

    Raises Conflict while the first one is in flight, BadRequest when the payload differs.
    """
    with db.write() as connection:
        now = db.now(connection)
        where = (idempotency.c.principal == principal, idempotency.c.route == route, idempotency.c.key == key)
        row = connection.execute(select(idempotency).where(*where)).first()
        if row is not None and row.status is None and now - row.at > FLIGHT_S:
            connection.execute(delete(idempotency).where(*where))
            row = None
        if row is None:
            connection.execute(insert(idempotency).values(principal=principal, route=route, key=key, payload_hash=payload_hash, at=now))
            return None
    if row.payload_hash != payload_hash:
        raise BadRequest("this Idempotency-Key was used with another request", hint="Use a new key for a new request.", code="idempotency_mismatch")
    if row.status is None:
        raise Conflict("the first request with this Idempotency-Key is still running", hint="Ask again in a moment.", code="in_flight")
    return int(row.status), str(row.body or "").encode()


def recall(db: Database, principal: str, route: str, key: str, status: int, body: bytes) -> None:
    """Keep the answer for whoever asks again within a day."""
    with db.write() as connection:
        connection.execute(
            update(idempotency)
            .where(idempotency.c.principal == principal, idempotency.c.route == route, idempotency.c.key == key)
            .values(status=status, body=body.decode("utf-8", "replace"))
        )


def forget(db: Database, principal: str, route: str, key: str) -> None:
    """The request failed: the same key may try again."""
    with db.write() as connection:
        connection.execute(delete(idempotency).where(idempotency.c.principal == principal, idempotency.c.route == route, idempotency.c.key == key))
