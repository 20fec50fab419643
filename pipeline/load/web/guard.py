"""Where connections may go: a name is resolved once, every address is judged, and the connection is made to an address that was judged."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TypeAlias

import httpcore

from pipeline.errors import Forbidden, Unavailable

Address: TypeAlias = IPv4Address | IPv6Address
Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
"""(host, port) → addresses as text. Raises OSError."""

_INNER = ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("::/96")
_NEVER = tuple(ipaddress.ip_network(text) for text in ("192.88.99.0/24", "fec0::/10", "64:ff9b:1::/48", "2001:db8::/32", "100::/64"))
_WELL_KNOWN = 1024
_WEB_PORTS = frozenset({80, 443})


def resolve(host: str, port: int) -> Sequence[str]:
    """What the system's resolver says, each address once. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(row[4][0]) for row in found))


def is_public(address: Address) -> bool:
    """True for an address of the open internet. IPv4 inside IPv6 (mapped, 6to4, Teredo, NAT64) is judged by what it carries."""
    if isinstance(address, IPv6Address):
        inside = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inside is None and any(address in network for network in _INNER):
            inside = IPv4Address(int(address) & 0xFFFFFFFF)
        if inside is not None:
            return is_public(inside)
    # is_global of some Pythons takes multicast, site-local and relay addresses for public.
    if address.is_multicast or any(address.version == network.version and address in network for network in _NEVER):
        return False
    return address.is_global


class Guard:
    """What may be connected to.

    Args:
        private: hosts (``wiki.example``, ``*.example``) and networks (``10.1.0.0/16``, ``127.0.0.1``) that may be asked although they are not public.
    """

    def __init__(self, private: Iterable[str] = (), *, resolve: Resolve = resolve) -> None:
        self._resolve = resolve
        self._hosts: set[str] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        for part in private:
            try:
                self._networks.append(ipaddress.ip_network(part, strict=False))
            except ValueError:
                self._hosts.add(part.lower().rstrip("."))

    def addresses(self, host: str, port: int) -> list[str]:
        """Addresses of a host, all of them allowed. Raises Forbidden (code ``private_address``) when one is not, Unavailable when it has none."""
        named = self._named(host)
        try:
            found = self._resolve(host, port)
        except (OSError, UnicodeError):
            raise Unavailable(f"the name {host} cannot be resolved", dependency=True, code="unknown_host", hint="Check the address.") from None
        if not found:
            raise Unavailable(f"the name {host} has no address", dependency=True, code="unknown_host", hint="Check the address.")
        inside = False
        for text in found:
            address = ipaddress.ip_address(text.partition("%")[0])
            listed = named or any(address.version == network.version and address in network for network in self._networks)
            if not listed and not is_public(address):
                raise self._private(host)
            inside = inside or listed
        if port < _WELL_KNOWN and port not in _WEB_PORTS and not inside:
            raise Forbidden(f"port {port} of {host} is not one of the web", code="bad_port", hint="Use a port that serves web pages.")
        return list(found)

    def _named(self, host: str) -> bool:
        host = host.lower().rstrip(".")
        parts = host.split(".")
        return host in self._hosts or any(f"*.{'.'.join(parts[start:])}" in self._hosts for start in range(1, len(parts)))

    def _private(self, host: str) -> Forbidden:
        return Forbidden(
            f"{host} is an address of the inside, and not asked",
            code="private_address",
            hint="Whoever runs this system can allow it by DUJIANG_PRIVATE_HOSTS.",
        )


class Backend(httpcore.NetworkBackend):
    """Connections under a guard, none of them longer than the moment `until` (monotonic seconds). Used by one thread."""

    def __init__(self, guard: Guard, *, connect_s: float = 10.0) -> None:
        self._guard, self._connect_s = guard, connect_s
        self._plain = httpcore.SyncBackend()
        self.until = float("inf")

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """To the first address that answers. Raises Forbidden, Unavailable, and what httpcore raises."""
        failure: Exception | None = None
        for address in self._guard.addresses(host, port):
            try:
                opened = self._plain.connect_tcp(address, port, self.left(self._connect_s), local_address, socket_options)
                return Stream(opened, self)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        assert failure is not None
        raise failure

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None
    ) -> httpcore.NetworkStream:
        raise Forbidden("sockets of this machine are not asked", code="private_address")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def left(self, timeout: float | None) -> float:
        """Seconds that one step may take. Raises ReadTimeout when the time of the whole exchange is over."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("over")
        return left if timeout is None else min(left, timeout)


class Stream(httpcore.NetworkStream):
    """A connection that keeps to its backend's deadline at every step: a server that drips bytes gains nothing by it."""

    def __init__(self, inner: httpcore.NetworkStream, backend: Backend) -> None:
        self._inner, self._backend = inner, backend

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, self._backend.left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, self._backend.left(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(self, ssl_context: object, server_hostname: str | None = None, timeout: float | None = None) -> httpcore.NetworkStream:
        return Stream(self._inner.start_tls(ssl_context, server_hostname, self._backend.left(timeout)), self._backend)  # pyright: ignore[reportArgumentType]

    def get_extra_info(self, info: str) -> object:
        return self._inner.get_extra_info(info)
