"""`dujiang serve`: the HTTP server as a process of its own. ``python -m api.serve`` does the same."""

from __future__ import annotations

import logging
import socket

from pipeline.errors import Conflict
from pipeline.settings import Settings, load

log = logging.getLogger("dujiang.api")

GRACE_S = 5
"""Seconds that open streams get when the server is told to stop."""


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM. Raises Conflict when the address is taken."""
    import uvicorn

    from api.app import create_app
    from workers.runtime import platform

    listener = bind(settings.host, settings.port)
    with listener, platform(settings) as opened:
        config = uvicorn.Config(
            create_app(opened, settings),
            log_level=settings.log_level.lower(),
            # the caller's real address decides whether a key is needed, so no proxy header may stand in for it
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
            lifespan="off",
        )
        log.info("serving on http://%s:%s", settings.host, listener.getsockname()[1])
        uvicorn.Server(config).run(sockets=[listener])


def bind(host: str, port: int) -> socket.socket:
    """A listening address. Raises Conflict naming it when it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise Conflict(
            f"cannot listen on {host}:{port}: {error.strerror or error}", hint="Stop what uses it, or choose another with --port.", code="address_in_use"
        ) from error
    listener.set_inheritable(True)
    return listener


if __name__ == "__main__":
    serve(load().settings)
