"""Feishu's open API: requests within its limits, one access token for all workers, pages that end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import cast

from pipeline.errors import BadRequest, Garbled, PipelineError, RateLimited, Unauthorised, Unavailable
from pipeline.load.exchange import Exchange, Reply
from pipeline.load.feishu.answers import SERVICE, Json, download, expired, limited, opened, tables
from pipeline.protocols import Surroundings

RATES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "token": (5.0, 5.0),
        "files": (20.0, 5.0),
        "wiki": (1.5, 10.0),
        "metas": (16.0, 10.0),
        "docx": (4.5, 1.0),
        "blocks": (4.5, 1.0),
        "media": (4.5, 1.0),
        "download": (4.5, 1.0),
        "export": (1.5, 10.0),
        "sheets": (10.0, 5.0),
        "bitable": (10.0, 5.0),
        "contact": (20.0, 5.0),
    }
)
"""Route → (requests a second, at once): what the vendor allows an app in one tenant, a little less.

Its windows are of a second, and requests do not arrive as evenly as they are sent: of five a second at 4.9 every sixth was refused, and each refusal
stops the route for a second."""
LONG_LIFE_S = 1800.0
"""The vendor hands out the same token as long as it has more than this left; then a new one, and both are good."""
EARLY_S = 1500.0
REFUSED = "!"
"""Stands in a token's place: the credentials were refused, and nobody need ask again for a moment."""
REFUSED_S = 10.0
SHORT_S = 10.0
"""Waits up to this long are sat out inside a scan; longer ones end it until then."""
TRIES = 4
MOST_PAGES = 5000


class FeishuClient:
    """Typed by route only: answers stay as they came. Safe for one thread.

    Args:
        share: of the vendor's limits that may be used; 1.0 is all of them.
    """

    def __init__(self, base_url: str, app_id: str, app_secret: str, around: Surroundings, *, share: float = 1.0) -> None:
        self._exchange = Exchange(f"{base_url.rstrip('/')}/open-apis", service=SERVICE)
        self._app_id, self._app_secret = app_id, app_secret
        self.around = around
        self._share = share
        # With the secret in it, a refusal does not outlive the secret that was refused.
        self._name = "token." + hashlib.blake2b(f"{base_url.rstrip('/')}\n{app_id}\n{app_secret}".encode(), digest_size=8).hexdigest()

    # ------------------------------------------------------------ the token

    def token(self, stale: str = "") -> str:
        """The tenant's access token, shared by all workers. Raises Unauthorised, Retryable."""
        found = self.around.shared(self._name, self._fresh, stale=stale)
        if found.startswith(REFUSED):
            raise Unauthorised(found[1:], hint="Give valid ones: `dujiang sources update NAME --app-id … --app-secret …`.")
        return found

    def try_credentials(self) -> None:
        """Like `token`, but a refusal of a moment ago does not count."""
        try:
            self.token()
        except Unauthorised as error:
            self.token(stale=REFUSED + error.detail)

    def _fresh(self) -> tuple[str, float]:
        with self._permit("token"):
            reply = self._exchange.ask("POST", "/auth/v3/tenant_access_token/internal", body={"app_id": self._app_id, "app_secret": self._app_secret})
        if reply.status == 429:
            raise self._limited("token", limited(reply))
        try:
            answer = opened(reply)
        except RateLimited as error:
            raise self._limited("token", error) from None
        except Unavailable as error:
            if error.code == "unknown_code":
                return f"{REFUSED}{SERVICE} refuses the app's credentials", REFUSED_S
            raise
        except PipelineError:
            # Whatever else it says to these two values, it says it of them.
            return f"{REFUSED}{SERVICE} refuses the app's credentials", REFUSED_S
        value, left = answer.get("tenant_access_token"), answer.get("expire")
        if not isinstance(value, str) or not value:
            raise Unavailable(f"{SERVICE} gave no access token", code="malformed_answer")
        left_s = float(left) if isinstance(left, int | float) else 60.0
        return value, left_s - EARLY_S if left_s > LONG_LIFE_S else max(1.0, left_s)

    # ------------------------------------------------------------ requests

    def get(self, route: str, path: str, params: Mapping[str, str | int] | None = None) -> Json:
        """`data` of one answer. Never waits for the other side to recover. Raises by what it says."""
        return _data(opened(self._asked(route, "GET", path, params=params)))

    def post(self, route: str, path: str, body: Json, params: Mapping[str, str | int] | None = None) -> Json:
        """See `get`."""
        return _data(opened(self._asked(route, "POST", path, params=params, body=body)))

    def bytes(
        self, route: str, path: str, *, max_bytes: int, params: Mapping[str, str | int] | None = None, first_byte: bool = False
    ) -> tuple[bytes, str]:
        """(a download, its media type). With `first_byte` no more than that is asked for. Raises TooLarge."""
        headers = {"range": "bytes=0-0"} if first_byte else None
        reply = self._asked(route, "GET", path, params=params, headers=headers, max_bytes=max_bytes)
        return download(reply), reply.headers.get("content-type", "").partition(";")[0].strip()

    def patient(self, route: str, path: str, params: Mapping[str, str | int] | None = None, body: Json | None = None) -> Json:
        """Like `get` or `post`, for scans: short waits and passing failures are sat out. Raises what is left after a few tries."""
        failure: PipelineError | None = None
        for number in range(TRIES):
            try:
                return self.get(route, path, params) if body is None else self.post(route, path, body, params)
            except (RateLimited, Unavailable) as error:
                if getattr(error, "code", "") == "unreachable":
                    raise
                failure, wait = error, error.after if error.after is not None else 0.25 * 2.0**number
                if wait > SHORT_S:
                    raise
            if number + 1 < TRIES:
                self.around.sleep(wait)
        assert failure is not None
        raise failure

    def pages(
        self,
        route: str,
        path: str,
        params: Mapping[str, str | int],
        *,
        rows: str,
        patient: bool = False,
        body: Json | None = None,
    ) -> Iterator[list[Json]]:
        """Rows page by page. An empty page is no end: what the app may not see is left out of it.

        Raises Garbled for a listing that goes round in circles, BadRequest with the code ``bad_page`` when it must be begun again.
        """
        used = set[str]()
        token = ""
        while True:
            asked = {**params, **({"page_token": token} if token else {})}
            try:
                answer = self.patient(route, path, asked, body) if patient else self._page(route, path, asked, body)
            except BadRequest as error:
                # Each route has a code of its own for a token that went stale, or the one for any wrong parameter.
                error.code = "bad_page" if token else error.code
                raise
            yield tables(answer.get(rows))
            if not answer.get("has_more"):
                return
            token = str(answer.get("next_page_token") or answer.get("page_token") or "")
            if not token or token in used or len(used) >= MOST_PAGES:
                raise Garbled(f"{SERVICE} gave a page of a listing a second time", code="listing_loops")
            used.add(token)

    def _page(self, route: str, path: str, params: Mapping[str, str | int], body: Json | None) -> Json:
        return self.get(route, path, params) if body is None else self.post(route, path, body, params)

    def _asked(
        self,
        route: str,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: Json | None = None,
        headers: Mapping[str, str] | None = None,
        max_bytes: int = 64_000_000,
    ) -> Reply:
        """One request; once more with another token when this one is not taken."""
        token = self.token()
        for last in (False, True):
            self.around.check()
            with self._permit(route):
                sent = {"authorization": f"Bearer {token}", **(headers or {})}
                reply = self._exchange.ask(method, path, params=params, body=body, headers=sent, max_bytes=max_bytes)
            verdict = _verdict(reply)
            if isinstance(verdict, RateLimited):
                raise self._limited(route, verdict)
            if verdict is None or not expired(verdict):
                return reply
            if last:
                break
            token = self.token(stale=token)
        raise Unauthorised(f"{SERVICE} takes no access token of this app", hint="Check that the app is enabled, and its version published.")

    def _permit(self, route: str) -> AbstractContextManager[None]:
        rate, burst = RATES[route]
        return self.around.acquire(route, rate=rate * self._share, burst=max(1.0, burst * self._share))

    def _limited(self, route: str, error: RateLimited) -> RateLimited:
        """Everybody keeps away from the route until the time that was named."""
        error.scope = route
        self.around.blocked(route, error.after or 1.0)
        return error


def _verdict(reply: Reply) -> PipelineError | None:
    """What the answer refuses for; None for content, which files may be in any form."""
    if reply.status in (200, 206) and not reply.headers.get("content-type", "").startswith("application/json"):
        return None
    try:
        opened(reply)
    except PipelineError as error:
        return error
    return None


def _data(answer: Json) -> Json:
    found = answer.get("data")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadRequest(f"{SERVICE} sent something else than an object")
    return cast("Json", found)
