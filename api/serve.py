"""`dujiang serve`: the HTTP server as a process of its own. ``python -m api.serve`` does the same."""

from __future__ import annotations

import logging
import socket
import sys

from pipeline.errors import Conflict, PipelineError
from pipeline.settings import Settings, load

log = logging.getLogger("dujiang.api")

GRACE_S = 5
"""Seconds that open streams get when the server is told to stop."""


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM. Raises Conflict when the address is taken."""
    import uvicorn

    from api.app import create_app
    from api.auth import loopback
    from api.local import open_platform
    from workers.logs import configure

    configure(settings)
    listener = bind(settings.host, settings.port)
    with listener, open_platform(settings) as opened:
        config = uvicorn.Config(
            create_app(opened, settings),
            log_config=None,
            access_log=settings.log_level.lower() == "debug",
            # the caller's real address decides whether a key is needed, so no proxy header may stand in for it
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
            lifespan="off",
        )
        if not loopback(settings.host) and not opened.has_keys():
            log.warning("no API key exists yet, so requests from elsewhere are refused: create one with `dujiang keys create NAME`")
        log.info("serving on http://%s:%s", settings.host, listener.getsockname()[1])
        uvicorn.Server(config).run(sockets=[listener])


def bind(host: str, port: int) -> socket.socket:
    """A listening address. Raises Conflict naming it when it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # the protocol is named, or asyncio does not switch Nagle's algorithm off: every answer on a kept connection would wait 40 ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise Conflict(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="Stop what uses it, or choose another with --port.",
            code="address_in_use",
        ) from error
    listener.set_inheritable(True)
    return listener


def main() -> None:
    """The supervisor's child: what stops it is one line of its log."""
    try:
        serve(load().settings)
    except PipelineError as error:
        print(f"{error.code}: {error.detail}\n{error.hint}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
