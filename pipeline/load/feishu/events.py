"""Events that Feishu pushes: opened, proved genuine, told apart from repetitions, and reduced to the keys that they concern."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import cast

import orjson

from pipeline.errors import Forbidden, Malformed
from pipeline.load.feishu.answers import Json, table
from pipeline.protocols import Surroundings

STALE_S = 300.0
"""An event that says it was sent longer ago, or later than now, is not taken."""
REMEMBERED_S = 2 * 3600.0
"""Longer than an event is taken at all."""
KINDS = frozenset({"doc", "docx", "sheet", "bitable", "file", "mindnote", "slides"})
TOUCHING = (
    "drive.file.edit",
    "drive.file.title_updated",
    "drive.file.created_in_folder",
    "drive.file.trashed",
    "drive.file.deleted",
    "drive.file.permission_member_added",
    "drive.file.permission_member_removed",
    "drive.file.permission_member_applied",
    "drive.file.bitable_record_changed",
    "drive.file.bitable_field_changed",
)
_HINT = "Give the source the app's encrypt key and verification token: `--encrypt-key`, `--verification-token`."


class Ear:
    """Takes the events of one app.

    Args:
        encrypt_key: of the app; with it every event is encrypted and signed.
        verification_token: of the app; stands in every event.
    """

    def __init__(self, around: Surroundings, app_id: str, encrypt_key: str, verification_token: str) -> None:
        self._around, self._app_id = around, app_id
        self._key, self._token = encrypt_key, verification_token

    def keys(self, headers: Mapping[str, str], body: bytes) -> list[str]:
        """What an event is about; nothing for one that was heard before or concerns no object. Raises Forbidden, Malformed."""
        event = self._opened(body)
        if event.get("type") == "url_verification":
            self._same_token(event.get("token"))
            return []
        head = table(event.get("header"))
        self._signed({name.lower(): value for name, value in headers.items()}, body)
        self._same_token(head.get("token"))
        if head.get("app_id") not in (None, "", self._app_id):
            raise Forbidden("an event is for another app")
        kind = str(head.get("event_type") or "")
        if not kind.startswith(TOUCHING) or self._heard(str(head.get("event_id") or "")):
            return []
        told = table(event.get("event"))
        of, token = str(told.get("file_type") or ""), str(told.get("file_token") or "")
        return [f"{of}:{token}"] if token and of in KINDS else []

    def answer(self, body: bytes) -> bytes:
        """The challenge of a verification, for which `keys` was asked before; else nothing."""
        event = self._opened(body)
        return orjson.dumps({"challenge": event.get("challenge")}) if event.get("type") == "url_verification" else b""

    def _opened(self, body: bytes) -> Json:
        if not self._key and not self._token:
            raise Forbidden("this source takes no events, since nothing could tell genuine ones", hint=_HINT)
        content = _parsed(body)
        sealed = content.get("encrypt")
        if isinstance(sealed, str):
            return _parsed(_decrypted(sealed, self._key))
        if self._key:
            raise Forbidden("an event is not encrypted although the app has a key", hint=_HINT)
        return content

    def _same_token(self, given: object) -> None:
        if self._token and not hmac.compare_digest(str(given or "").encode(), self._token.encode()):
            raise Forbidden("an event has another verification token", hint=_HINT)

    def _signed(self, headers: Mapping[str, str], body: bytes) -> None:
        """The signature covers the bytes as they came."""
        stamp, nonce = headers.get("x-lark-request-timestamp", ""), headers.get("x-lark-request-nonce", "")
        if self._key:
            wanted = hashlib.sha256(f"{stamp}{nonce}{self._key}".encode() + body).hexdigest()
            if not hmac.compare_digest(wanted, headers.get("x-lark-signature", "")):
                raise Forbidden("an event has a wrong signature", hint=_HINT)
        if self._key or stamp:
            sent = float(stamp) if stamp.isdigit() else 0.0
            if abs(self._around.now() - sent) > STALE_S:
                raise Forbidden("an event is too old, or the clocks differ by more than five minutes")

    def _heard(self, event_id: str) -> bool:
        """Whether some worker took this event before."""
        if not event_id:
            return False
        mine = secrets.token_hex(8)
        name = hashlib.blake2b(event_id.encode(), digest_size=8).hexdigest()
        return self._around.shared(f"event.{name}", lambda: (mine, REMEMBERED_S)) != mine


def _decrypted(sealed: str, key: str) -> bytes:
    """AES-256-CBC under the hash of the app's key; the first 16 bytes are the start."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    if not key:
        raise Forbidden("an event is encrypted, and the source has no key", hint=_HINT)
    try:
        data = base64.b64decode(sealed, validate=True)
        opening = Cipher(algorithms.AES256(hashlib.sha256(key.encode()).digest()), modes.CBC(data[:16])).decryptor()
        padded = opening.update(data[16:]) + opening.finalize()
        unpadding = PKCS7(128).unpadder()
        return unpadding.update(padded) + unpadding.finalize()
    except (ValueError, binascii.Error):
        raise Forbidden("an event cannot be decrypted with the source's key", hint=_HINT) from None


def _parsed(body: bytes) -> Json:
    try:
        found: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Malformed("an event is not JSON", hint="Send it as the vendor does.") from None
    if not isinstance(found, dict):
        raise Malformed("an event is no JSON object", hint="Send it as the vendor does.")
    return cast("Json", found)
