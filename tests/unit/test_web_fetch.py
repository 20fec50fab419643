"""One request: what a server may do to it, and what is made of its answer."""

from __future__ import annotations

import gzip
import ipaddress
import socket
import threading
import zlib
from collections.abc import Callable, Iterator

import pytest

from pipeline.errors import Malformed, TooLarge, Unavailable
from pipeline.load.web.addresses import canonical
from pipeline.load.web.fetch import Fetcher, Reply
from pipeline.load.web.guard import Guard, is_public

Talk = Callable[[socket.socket], None]


@pytest.fixture
def server() -> Iterator[Callable[[Talk], str]]:
    """Answers one connection in a thread of its own, byte by byte as it is told."""
    opened: list[socket.socket] = []

    def serve(talk: Talk) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        opened.append(listening)

        def run() -> None:
            try:
                connection, _ = listening.accept()
                opened.append(connection)
                connection.recv(65536)
                talk(connection)
                connection.close()
            except OSError:
                return

        threading.Thread(target=run, daemon=True).start()
        return f"http://127.0.0.1:{listening.getsockname()[1]}/"

    yield serve
    for each in opened:
        each.close()


def ask(url: str, *, most: int = 1000, deadline_s: float = 20.0) -> Reply:
    return Fetcher(Guard(["127.0.0.1"])).ask(url, bound=lambda _status, _headers: most, deadline_s=deadline_s)


def said(body: bytes, *headers: bytes) -> Talk:
    head = b"\r\n".join([b"HTTP/1.1 200 OK", *headers, b"content-length: %d" % len(body)])
    return lambda connection: connection.sendall(head + b"\r\n\r\n" + body)


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n"])
def test_a_server_that_drips_its_headers_or_its_body_is_left_at_the_deadline(server: Callable[[Talk], str], begin: bytes) -> None:
    stop = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(begin or b"HTTP/1.1 200 OK\r\n")
        while not stop.wait(0.05):
            connection.sendall(b"x" if begin else b"x-more: yes\r\n")

    with pytest.raises(Unavailable) as raised:
        ask(server(drip), most=1_000_000, deadline_s=0.6)
    stop.set()
    assert raised.value.code == "timeout"


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
def test_a_body_that_swells_is_refused_at_the_bound(server: Callable[[Talk], str], encoding: bytes) -> None:
    body = (gzip.compress if encoding == b"gzip" else zlib.compress)(b"\0" * 5_000_000)
    with pytest.raises(TooLarge):
        ask(server(said(body, b"content-encoding: " + encoding)), most=100_000)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (b"gzip", gzip.compress(b"rain", mtime=0)),
        (b"deflate", zlib.compress(b"rain")),
        (b"deflate", zlib.compress(b"rain", wbits=-15)),
        (b"identity", b"rain"),
    ],
)
def test_bodies_in_every_compression_that_is_asked_for_are_read(server: Callable[[Talk], str], encoding: bytes, body: bytes) -> None:
    assert ask(server(said(body, b"content-encoding: " + encoding))).body == b"rain"


def test_a_compression_that_nobody_asked_for_and_one_that_is_broken_are_told(server: Callable[[Talk], str]) -> None:
    for encoding, body in ((b"br", b"rain"), (b"gzip", b"no gzip at all")):
        with pytest.raises(Malformed) as raised:
            ask(server(said(body, b"content-encoding: " + encoding)))
        assert raised.value.code == "bad_compression"


def test_an_answer_that_breaks_off_is_no_answer(server: Callable[[Talk], str]) -> None:
    whole = gzip.compress(b"rain on the river " * 50)
    cut = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf"
    torn = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 20\r\n\r\n" + whole[:20]
    for answer in (cut, torn, b"SSH-2.0-OpenSSH_9.2\r\n"):
        with pytest.raises(Unavailable):
            ask(server(lambda connection, answer=answer: connection.sendall(answer)))


@pytest.mark.parametrize(
    "text",
    "127.0.0.1 10.0.0.1 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 192.88.99.1 ::1 :: fe80::1 fc00::1 fec0::1 ff02::1 "
    "::ffff:127.0.0.1 ::127.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: 2001:db8::1".split(),
)
def test_addresses_that_are_not_of_the_open_internet_are_told_apart(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34", "64:ff9b::5db8:d822"])
def test_public_addresses_are_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("HTTP://Wiki.Example:80/a/../b/./c?b=2&a=1#top", "http://wiki.example/b/c?a=1&b=2"),
        ("https://例子.测试/石桥", "https://xn--fsqu00a.xn--0zwm56d/%E7%9F%B3%E6%A1%A5"),
        ("https://wiki.example/%7euser/%e4%bd", "https://wiki.example/~user/%E4%BD"),
        ("https://wiki.example/a;jsessionid=77?utm_source=mail&PHPSESSID=1", "https://wiki.example/a"),
        ("//wiki.example/a/", "http://wiki.example/a/"),
        ("?page=2", "http://here.example/docs/?page=2"),
        ("http://user:secret@wiki.example/", ""),
        ("javascript:alert(1)", ""),
        ("http://wiki.example:99999/", ""),
        (f"http://wiki.example/{'a' * 2000}", ""),
        ("http://[::ffff:127.0.0.1]:8080/a", "http://[::ffff:127.0.0.1]:8080/a"),
    ],
)
def test_an_address_has_one_spelling(given: str, made: str) -> None:
    assert canonical(given, "http://here.example/docs/") == made
