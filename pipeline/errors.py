"""What can go wrong, sorted by what the caller should do next.

* PipelineError
  + Retryable            wait, then run the same stage again
    - RateLimited         the service named a delay or a reset: use it; costs no attempt
    - QuotaExhausted      nothing to be had until a known time; costs no attempt
    - Unavailable         connection refused, timeout, 5xx
    - Garbled             an answer, but one that makes no sense: it may pass
  + Rejected             never retry; a person must change the document, the source or a setting
    - Malformed           the bytes are not what they claim to be
    - Unsupported         no parser, store or model for this input
    - TooLarge            over a limit that protects the machine
    - Unauthorised        credentials refused
    - Forbidden           credentials accepted, this item refused
    - NotFound            the thing that was named does not exist
    - Conflict            it exists already, is in use, or has changed meanwhile
    - BrokenContract      a stage or service returned something its contract forbids
  + Skipped              nothing to do
    - Unchanged, Gone, Superseded, Cancelled

A stage raises these and nothing else on purpose. Anything else is a bug: `run_stage` sends that one
document to the dead letters with its traceback, and its neighbours go on.
"""

from __future__ import annotations

from datetime import datetime


class PipelineError(Exception):
    """Base of every deliberate failure.

    Args:
        detail: one sentence, safe to show to a user and to log: no document content, no secrets.
        hint: what to do about it, one sentence; the class's own when empty.
        code: stable snake_case name that programs branch on; the class's own when empty.
        document: key or name of the document concerned, where the raiser knows it.
    """

    code = "error"
    hint = "Look at the log of this run, then report it."

    def __init__(self, detail: str, *, hint: str = "", code: str = "", document: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.document = document
        if hint:
            self.hint = hint
        if code:
            self.code = code


class Retryable(PipelineError):
    """The same call may work later. `after` is the delay in seconds, or None for our own backoff.

    `costs_attempt` is False where the failure says nothing about the document.
    """

    code = "retryable"
    hint = "Nothing to do: it is tried again by itself."
    costs_attempt = True

    def __init__(self, detail: str, *, after: float | None = None, hint: str = "", code: str = "", document: str = "") -> None:
        super().__init__(detail, hint=hint, code=code, document=document)
        self.after = after


class RateLimited(Retryable):
    """Too many requests. `scope` names what is throttled (provider, route), for the shared bucket."""

    code = "rate_limited"
    costs_attempt = False

    def __init__(self, detail: str, *, after: float | None = None, scope: str = "", hint: str = "", code: str = "") -> None:
        super().__init__(detail, after=after, hint=hint, code=code)
        self.scope = scope


class QuotaExhausted(Retryable):
    """No more calls before `until` (aware), or before a person buys some when it is None."""

    code = "quota_exhausted"
    hint = "Wait for the quota to renew, or raise it with the provider."
    costs_attempt = False

    def __init__(self, detail: str, *, until: datetime | None = None, hint: str = "", code: str = "") -> None:
        super().__init__(detail, after=None, hint=hint, code=code)
        self.until = until


class Unavailable(Retryable):
    """A service did not answer. `dependency` marks one that all documents share: it costs no attempt."""

    code = "unavailable"

    def __init__(
        self, detail: str, *, after: float | None = None, dependency: bool = False, hint: str = "", code: str = "", document: str = ""
    ) -> None:
        super().__init__(detail, after=after, hint=hint, code=code, document=document)
        self.costs_attempt = not dependency


class Garbled(Retryable):
    """A service said that all is well and sent something else: half an answer, a page of HTML, too few rows.

    Proxies and overloaded servers do that for a moment; one document may also bring it about each time. So it costs an attempt.
    """

    code = "garbled"
    hint = "The service named in the message misbehaves: check its version and configuration."


class Rejected(PipelineError):
    """Trying again cannot help."""

    code = "rejected"


class Malformed(Rejected):
    """The bytes are not what they claim to be."""

    code = "malformed"
    hint = "Open the file, save it again in its format, and ingest it anew."


class Unsupported(Rejected):
    """No part of this installation can handle the input."""

    code = "unsupported"
    hint = "Convert it to a supported format, or install the extra that handles it."


class TooLarge(Rejected):
    """Over a limit that protects the machine."""

    code = "too_large"
    hint = "Split the document, or raise the limit that the message names."


class Unauthorised(Rejected):
    """Credentials missing or refused."""

    code = "unauthorised"
    hint = "Check the API key."


class Forbidden(Rejected):
    """Credentials are good, but not for this."""

    code = "forbidden"
    hint = "Ask for access, or use a key whose scope covers it."


class NotFound(Rejected):
    """The thing that was named does not exist."""

    code = "not_found"
    hint = "Check the name."


class Conflict(Rejected):
    """It exists already, is in use by another process, or has changed meanwhile."""

    code = "conflict"
    hint = "Look at the present state, then decide."


class BadRequest(Rejected):
    """The request itself is wrong. `pointer` is the JSON pointer of the field, where there is one."""

    code = "bad_request"
    hint = "Correct the request."

    def __init__(self, detail: str, *, pointer: str = "", hint: str = "", code: str = "") -> None:
        super().__init__(detail, hint=hint, code=code)
        self.pointer = pointer


class BrokenContract(Rejected):
    """A stage or a service returned something that its contract forbids."""

    code = "broken_contract"
    hint = "The service or component named in the message misbehaves: check its version and configuration."


class Skipped(PipelineError):
    """Nothing to do for this document."""

    code = "skipped"
    hint = "Nothing to do."


class Unchanged(Skipped):
    """Same bytes and same options as the version that is live."""

    code = "unchanged"


class Gone(Skipped):
    """It was listed, but no longer exists at the source."""

    code = "gone"
    hint = "Nothing to do if it was deleted; otherwise ingest it again."


class Superseded(Skipped):
    """A newer version of the same document is already there or under way."""

    code = "superseded"


class Cancelled(Skipped):
    """The run was cancelled."""

    code = "cancelled"
    hint = "Start a new run when you want it done."
