"""Exports: a ticket, some waiting, a file that is there for ten minutes. The ticket is shared, so that whoever takes over goes on with it."""

from __future__ import annotations

from pipeline.errors import BadRequest, Forbidden, Gone, NotFound, TooLarge, Unavailable
from pipeline.load.feishu.answers import table
from pipeline.load.feishu.client import FeishuClient

TICKET_S = 600.0
POLL_S = (0.2, 0.5, 1.0, 2.0, 3.0)
"""Pauses between looks; after the last the document goes back into its queue, and its ticket waits for it."""
AGAIN_S = 5.0
PENDING = frozenset({1, 2})
TOO_LARGE = frozenset({107, 6000})
FORBIDDEN = frozenset({109, 110})
GONE = frozenset({111, 123})


def export(client: FeishuClient, kind: str, token: str, extension: str, *, max_bytes: int) -> bytes:
    """The file. Raises TooLarge, Forbidden, Gone, and Unavailable while it is not ready."""
    name = f"ticket.{kind}.{token}.{extension}"

    def begin() -> tuple[str, float]:
        answer = client.post("export", "/drive/v1/export_tasks", {"token": token, "type": kind, "file_extension": extension})
        ticket = str(answer.get("ticket") or "")
        if not ticket:
            raise Unavailable("Feishu gave no ticket for an export", code="malformed_answer")
        return ticket, TICKET_S

    stale = ""
    for last in (False, True):
        ticket = client.around.shared(name, begin, stale=stale)
        try:
            file = _wait(client, ticket, token)
            return client.bytes("export", f"/drive/v1/export_tasks/file/{file}/download", max_bytes=max_bytes)[0]
        except (NotFound, BadRequest):
            # Its ten minutes are over, or its ticket is.
            if last:
                raise Unavailable("Feishu lost an export twice", after=AGAIN_S, code="export_lost") from None
        except Unavailable as error:
            if last or error.code != "export_failed":
                raise
        stale = ticket
    raise Unavailable("Feishu lost an export", after=AGAIN_S, code="export_lost")


def _wait(client: FeishuClient, ticket: str, token: str) -> str:
    """Token of the file, once it is there."""
    for pause in (*POLL_S, None):
        result = table(client.get("export", f"/drive/v1/export_tasks/{ticket}", {"token": token}).get("result"))
        status = result.get("job_status")
        number = status if isinstance(status, int) else 1
        # Status 0 without a file is not done yet.
        if number == 0 and result.get("file_token"):
            return str(result["file_token"])
        _judge(number)
        if pause is not None:
            client.around.sleep(pause)
    raise Unavailable("Feishu has not finished an export yet", after=AGAIN_S, dependency=True, code="export_pending")


def _judge(status: int) -> None:
    if status in TOO_LARGE:
        raise TooLarge(f"Feishu cannot export it, since it is too large ({status})", hint="Split it.", code="export_too_large")
    if status in FORBIDDEN:
        raise Forbidden(f"Feishu does not let the app export it ({status})", hint="Give the app the right to download it.")
    if status in GONE:
        raise Gone(f"Feishu has it no more ({status})")
    if status != 0 and status not in PENDING:
        raise Unavailable(f"an export failed at Feishu ({status})", after=AGAIN_S, code="export_failed")
