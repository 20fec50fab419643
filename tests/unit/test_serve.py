"""An answer leaves the server at once."""

from __future__ import annotations

import asyncio
import socket

from api.serve import bind


def test_no_answer_waits_for_the_acknowledgement_of_the_one_before() -> None:
    """Nagle's algorithm and the client's delayed acknowledgement together cost 40 ms an answer on a kept connection."""

    async def flags() -> list[int]:
        accepted: list[int] = []

        def made() -> asyncio.Protocol:
            class Asked(asyncio.Protocol):
                def connection_made(self, transport: asyncio.BaseTransport) -> None:
                    accepted.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                    transport.close()

            return Asked()

        with bind("127.0.0.1", 0) as listener:
            async with await asyncio.get_running_loop().create_server(made, sock=listener):
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                await asyncio.wait_for(reader.read(), 30)
                writer.close()
        return accepted

    assert asyncio.run(flags())[0]
