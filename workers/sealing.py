"""Secrets at rest: encrypted and authenticated, bound to the source that they belong to."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets as random
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pipeline.errors import BadRequest, Unauthorised
from pipeline.settings import Settings, variable

VERSION = "v1."
NONCE = 12
REFERENCE = "env:"
"""A secret of the form ``env:NAME`` is read from the environment of whoever uses it, and never kept."""


def key(settings: Settings) -> bytes:
    """The installation's key: DUJIANG_SEALING_KEY, or a file in the data folder that is made when it is missing.

    Raises BadRequest for a key that is too short to be one.
    """
    if settings.sealing_key:
        if len(settings.sealing_key) < 32:
            raise BadRequest("DUJIANG_SEALING_KEY has fewer than 32 characters", hint="Make one with `openssl rand -base64 32`.", code="bad_setting")
        return hashlib.sha256(settings.sealing_key.encode()).digest()
    path = Path(settings.home) / "sealing.key"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"sealing.{os.getpid()}-{random.token_hex(4)}.tmp")
    if not path.exists():
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "wb") as file:
            file.write(base64.b64encode(random.token_bytes(32)))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # never over a key that another process made meanwhile
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    return base64.b64decode(path.read_bytes())


def seal(settings: Settings, owner: str, values: Mapping[str, str]) -> str:
    """Text for the ledger; empty when there is nothing to seal. `owner` must be given again to open it."""
    if not values:
        return ""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = random.token_bytes(NONCE)
    sealed = AESGCM(key(settings)).encrypt(nonce, json.dumps(dict(values)).encode(), owner.encode())
    return VERSION + base64.b64encode(nonce + sealed).decode()


def unseal(settings: Settings, owner: str, text: str) -> dict[str, str]:
    """What was sealed, references to the environment still unread. Raises Unauthorised when the key is another one."""
    if not text:
        return {}
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    data = base64.b64decode(text.removeprefix(VERSION))
    try:
        opened = AESGCM(key(settings)).decrypt(data[:NONCE], data[NONCE:], owner.encode())
    except InvalidTag:
        raise Unauthorised(
            "the secrets of this source were sealed with another key",
            hint="Bring back HOME/sealing.key or DUJIANG_SEALING_KEY, or give the secrets again with `dujiang sources update`.",
            code="sealed_with_another_key",
        ) from None
    return cast("dict[str, str]", json.loads(opened))


def read(values: Mapping[str, str]) -> dict[str, str]:
    """The same with every ``env:NAME`` replaced by what the environment holds. Raises Unauthorised naming a variable that is not set."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if value.startswith(REFERENCE):
            held = variable(value.removeprefix(REFERENCE))
            if not held:
                raise Unauthorised(
                    f"{name} is to be read from the variable {value.removeprefix(REFERENCE)}, which is not set",
                    hint="Set it where the workers run, and start them again.",
                    code="secret_not_set",
                )
            value = held
        found[name] = value
    return found
