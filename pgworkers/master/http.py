"""/metrics, /livez and /readyz: a server small enough that no client can delay supervision.

One request a connection, two seconds for all of it, a few kilobytes of head, and a cap on connections.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from pgworkers.errors import UsageError

PATIENCE = 2.0
MAX_CLIENTS = 64
MAX_HEAD = 8192
#: So many are let in between two turns of the loop.
AT_ONCE = 16

#: path, Accept -> status, content type, body
Answer = tuple[int, str, bytes]
Handler = Callable[[str, str], Answer]
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class CannotListen(UsageError):
    """The address cannot be had. `brief`: for who goes on without it; `taken`: another process listens there just now."""

    def __init__(self, text: str, brief: str, *, taken: bool) -> None:
        super().__init__(text)
        self.brief = brief
        self.taken = taken


def parse(address: str) -> tuple[str, int]:
    """HOST:PORT, or a UsageError that names the flag."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"metrics={address!r} is not HOST:PORT; write 127.0.0.1:9911, or off")
    return host, int(port)


def bind(address: str) -> socket.socket:
    """A listening socket on HOST:PORT, or a UsageError that names the flag."""
    host, port = parse(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host.strip("[]"), port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        taken = error.errno == errno.EADDRINUSE
        raise CannotListen(
            f"metrics: cannot listen on {address} ({'it is taken' if taken else error.strerror}); "
            "choose another address with --metrics HOST:PORT, or --metrics off",
            f"{address} is taken" if taken else f"{address}: {error.strerror}",
            taken=taken,
        ) from error
    return sock


class Http:
    """Without asyncio's streams: their accept, their task and their reader take five turns of the loop for one request, and
    turns of a busy loop are what a client waits for."""

    def __init__(self, sock: socket.socket, handler: Handler) -> None:
        self.address = "{}:{}".format(*sock.getsockname()[:2])
        self.clients = 0
        self._sock = sock
        self._handler = handler
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._sock.setblocking(False)
        self._listen()

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except (
                OSError
            ):  # no descriptors, no memory: whoever knocks waits, and the loop is not kept busy by it
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._sock)
                self._pause = loop.call_later(1.0, self._listen)
                return
            if self.clients >= MAX_CLIENTS:
                sock.close()
            else:
                Client(sock, self)

    def answer(self, head: list[str]) -> Answer:
        parts = head[0].split(" ")
        if len(parts) != 3:
            return 400, "text/plain", b"not a request\n"
        if parts[0] not in ("GET", "HEAD"):
            return 405, "text/plain", b"only GET\n"
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:])
        }
        try:
            target = urlsplit(parts[1])
        except ValueError:
            return 400, "text/plain", b"not a path\n"
        return self._handler(
            target.path + ("?" + target.query if target.query else ""), headers.get("accept", "")
        )


class Client:
    """One connection, one request. Most have sent it before they are accepted, and are answered in the same turn."""

    def __init__(self, sock: socket.socket, server: Http) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._head = b""
        self._rest = memoryview(b"")  # of the answer
        server.clients += 1
        self._patience = self._loop.call_later(PATIENCE, self._leave)
        self._loop.add_reader(sock, self._read)
        self._read()

    def _read(self) -> None:
        try:
            data = self._sock.recv(MAX_HEAD)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self._head += data
        head, end, _ = self._head.partition(b"\r\n\r\n")
        if end and len(head) < MAX_HEAD:
            self._loop.remove_reader(self._sock)
            self._say(head.decode("latin-1").split("\r\n"))
        elif not data or len(self._head) > MAX_HEAD:
            self._leave()

    def _say(self, head: list[str]) -> None:
        try:
            status, kind, body = self._server.answer(head)
        except BaseException:
            self._leave()
            raise
        said = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        ).encode()
        self._rest = memoryview(said if head[0].startswith("HEAD ") else said + body)
        self._write()

    def _write(self) -> None:
        """What a client does not read in time is not kept for it."""
        try:
            self._rest = self._rest[self._sock.send(self._rest) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._rest = self._rest[:0]
        if self._rest:
            self._loop.add_writer(self._sock, self._write)
        else:
            self._leave()

    def _leave(self) -> None:
        self._patience.cancel()
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._server.clients -= 1
