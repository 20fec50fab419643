"""Events that the simulated Feishu sends: encrypted, signed, and wrong in the ways that a receiver must notice."""

from __future__ import annotations

import base64
import hashlib
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tests.simulators.feishu_gate import APP_ID
from tests.simulators.feishu_model import Thing
from tests.simulators.served import Clock

ENCRYPT_KEY, VERIFICATION_TOKEN = "waterworks-encrypt-key", "waterworks-verification"


@dataclass(frozen=True, slots=True)
class Sent:
    """One event as it goes over the wire."""

    headers: Mapping[str, str]
    body: bytes
    id: str


class Events:
    """Words events and pushes them. With `encrypt_key` "" they go in the clear, unsigned, proved by the verification token alone."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.encrypt_key, self.verification_token = ENCRYPT_KEY, VERIFICATION_TOKEN
        self._count = 0

    def about(self, thing: Thing, kind: str = "drive.file.edit_v1", *, id: str = "", age_s: float = 0.0, key: str = "", **more: Any) -> Sent:
        """An event about an object: `kind` such as drive.file.title_updated_v1, trashed_v1, deleted_v1, created_in_folder_v1.

        `id` repeats an earlier event; `age_s` signs it that long ago; `key` signs with another key; `more` goes into the event's own part.
        """
        event = {"file_token": thing.token, "file_type": thing.type, "operator_id_list": [{"open_id": thing.owner}], "subscriber_id_list": [], **more}
        self._count += 1
        own = id or f"evt{self._count:029d}"
        header = {
            "event_id": own,
            "event_type": kind,
            "create_time": str(int((self.clock.now() - age_s) * 1000)),
            "token": self.verification_token,
            "app_id": APP_ID,
            "tenant_key": "waterworks",
        }
        return self._signed({"schema": "2.0", "header": header, "event": event}, own, age_s, key)

    def challenge(self, word: str = "ajls384kdjx98XX", *, token: str = "") -> Sent:
        """What the console sends when somebody enters an address for events."""
        return self._signed({"challenge": word, "token": token or self.verification_token, "type": "url_verification"}, "", 0.0, "")

    def push(self, url: str, sent: Sent) -> tuple[int, bytes]:
        """Send one to a receiver: its status and answer."""
        request = urllib.request.Request(url, sent.body, dict(sent.headers), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read()

    def _signed(self, content: dict[str, Any], own: str, age_s: float, key: str) -> Sent:
        headers = {"Content-Type": "application/json; charset=utf-8"}
        if not self.encrypt_key:
            return Sent(headers, orjson.dumps(content), own)
        # an IV that follows the content keeps a test's bytes the same from run to run
        plain = orjson.dumps(content)
        body = orjson.dumps({"encrypt": encrypted(plain, self.encrypt_key, hashlib.sha256(plain).digest()[:16])})
        stamp, nonce = str(int(self.clock.now() - age_s)), hashlib.sha256(body).hexdigest()[:16]
        signature = hashlib.sha256(f"{stamp}{nonce}{key or self.encrypt_key}".encode() + body).hexdigest()
        headers |= {"X-Lark-Request-Timestamp": stamp, "X-Lark-Request-Nonce": nonce, "X-Lark-Signature": signature}
        return Sent(headers, body, own)


def encrypted(plain: bytes, key: str, iv: bytes) -> str:
    """AES-256-CBC under SHA-256 of the key, the initial vector first, padded by PKCS7, in base64."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    padding = 16 - len(plain) % 16
    worker = Cipher(algorithms.AES256(hashlib.sha256(key.encode()).digest()), modes.CBC(iv)).encryptor()
    return base64.b64encode(iv + worker.update(plain + bytes([padding]) * padding) + worker.finalize()).decode()
