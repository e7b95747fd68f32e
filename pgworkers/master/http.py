"""/metrics, /livez and /readyz: a server small enough that no client can delay supervision.

One request a connection, two seconds for all of it, a few kilobytes of head, and a cap on connections.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from pgworkers.errors import UsageError

PATIENCE = 2.0
MAX_CLIENTS = 64
MAX_HEAD = 8192

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


def bind(address: str) -> socket.socket:
    """A listening socket on HOST:PORT, or a UsageError that names the flag."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"metrics={address!r} is not HOST:PORT; write 127.0.0.1:9911, or off")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host.strip("[]"), int(port)))
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise UsageError(
            f"metrics: cannot listen on {address} ({error.strerror}); "
            "choose another address with --metrics HOST:PORT, or --metrics off"
        ) from error
    return sock


class Http:
    def __init__(self, sock: socket.socket, handler: Handler) -> None:
        self.address = "{}:{}".format(*sock.getsockname()[:2])
        self._sock = sock
        self._handler = handler
        self._clients = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._client, sock=self._sock, limit=MAX_HEAD)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._clients >= MAX_CLIENTS:
            writer.transport.abort()
            return
        self._clients += 1
        # `drain` then means that the kernel has it all: what a client does not read in time is not kept for it.
        writer.transport.set_write_buffer_limits(0)
        try:
            async with asyncio.timeout(PATIENCE):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                status, kind, body = self._answer(head)
                writer.write(
                    f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n".encode()
                )
                if not head[0].startswith("HEAD "):
                    writer.write(body)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            self._clients -= 1
            writer.close()

    def _answer(self, head: list[str]) -> Answer:
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
