"""/metrics, /livez and /readyz: a server small enough that no client can delay supervision.

One request a connection, two seconds for all of it, a few kilobytes of head, and a cap on connections. At the cap a
new client takes the place of an old one: the oldest of the address that has the most. So slow clients displace each
other, and a probe, which sends its request at once, is answered. `/livez` and `/readyz` are answered in the turn of the
loop that reads them, everything else in the next.

The name in `Host` is checked. A page in an operator's browser may point its own name at 127.0.0.1 (DNS rebinding) and then
read what is answered there; its requests still carry its name. IP addresses, localhost, this machine's name and the names
in the setting `metrics_hosts` are answered; others get 421.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import re
import socket
from collections import Counter
from collections.abc import Callable
from urllib.parse import urlsplit

from pgworkers.errors import UsageError

PATIENCE = 2.0
MAX_CLIENTS = 64
MAX_HEAD = 8192
#: So many are let in between two turns of the loop.
AT_ONCE = 16
#: Connections that the kernel keeps until they are let in.
BACKLOG = 512
#: Ports that are tried, from the default one on.
NEXT_PORTS = 100
PROBES = ("/livez", "/readyz")

#: path, Accept -> status, content type, body
Answer = tuple[int, str, bytes]
Handler = Callable[[str, str], Answer]
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    503: "Service Unavailable",
}


_MISDIRECTED = (
    "this is not the server of {}; ask for an IP address or localhost, or set PGWORKERS_METRICS_HOSTS to the names that "
    "this port answers for\n"
)


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
        sock.listen(BACKLOG)
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


def bind_free(address: str) -> socket.socket:
    """A listening socket on HOST:PORT or, where other hosts of this machine have it, on one of the next ports."""
    host, port = parse(address)
    for step in range(NEXT_PORTS):
        try:
            return bind(f"{host}:{port + step}")
        except CannotListen as error:
            if not error.taken or port == 0 or port + step == 65535:
                raise
    raise CannotListen(
        f"metrics: {address} and the {NEXT_PORTS - 1} ports after it are taken; choose another address with "
        "--metrics HOST:PORT, or --metrics off",
        f"{address} and the {NEXT_PORTS - 1} ports after it are taken",
        taken=True,
    )


class AllowedHosts:
    """The names that a request may ask for in its Host header."""

    def __init__(self, address: str, extra: str) -> None:
        """`address`: the setting `metrics`; `extra`: the setting `metrics_hosts`, names with commas, `*` for any."""
        bound = address.rpartition(":")[0].strip("[]")
        names = ["localhost", socket.gethostname(), bound, *extra.split(",")]
        self._names = {name.strip().lower().rstrip(".") for name in names} - {""}

    def __contains__(self, host: str) -> bool:
        """True for `name`, `name:port`, `1.2.3.4:port` and `[::1]:port` if the name is one of ours."""
        if "*" in self._names:
            return True
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        if found["v6"] is not None:
            return _is_address(found["v6"])
        name = found["name"].lower().rstrip(".")
        return name in self._names or _is_address(name)


_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{1,5})?")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class Http:
    """Without asyncio's streams: their accept, their task and their reader take five turns of the loop for one request, and
    turns of a busy loop are what a client waits for."""

    def __init__(self, sock: socket.socket, handler: Handler, hosts: AllowedHosts) -> None:
        self.address = "{}:{}".format(*sock.getsockname()[:2])
        self.clients: dict[Client, None] = {}  # the oldest first
        self._sock = sock
        self._handler = handler
        self._hosts = hosts
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
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except (
                OSError
            ):  # no descriptors, no memory: whoever knocks waits, and the loop is not kept busy by it
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._sock)
                self._pause = loop.call_later(1.0, self._listen)
                return
            Client(sock, str(peer[0]), self).begin()
            if len(self.clients) > MAX_CLIENTS:
                self._evict()

    def _evict(self) -> None:
        """Close the oldest connection of the address that has the most, so that no address can take all places."""
        most, _ = Counter(client.peer for client in self.clients).most_common(1)[0]
        next(client for client in self.clients if client.peer == most).close()

    def answer(self, head: list[str]) -> Answer:
        parts = head[0].split(" ")
        if len(parts) != 3:
            return 400, "text/plain", b"not a request\n"
        if parts[0] not in ("GET", "HEAD"):
            return 405, "text/plain", b"only GET\n"
        headers: dict[str, str] = {}
        for line in head[1:]:
            name, _, value = line.partition(":")
            if name != name.strip() or (name.lower() == "host" and "host" in headers):
                return 400, "text/plain", b"not a header, or two of Host\n"
            headers[name.lower()] = value.strip()
        try:
            # "//name/path" is a path here, too, and no name.
            target = urlsplit(f"http:///{parts[1].lstrip('/')}" if parts[1].startswith("/") else parts[1])
        except ValueError:
            return 400, "text/plain", b"not a path\n"
        for host in (target.netloc, headers.get("host")):
            if host and host not in self._hosts:
                return 421, "text/plain", _MISDIRECTED.format(ascii(host[:100])).encode()
        return self._handler(
            target.path + ("?" + target.query if target.query else ""), headers.get("accept", "")
        )


class Client:
    """One connection, one request. Most have sent it before they are accepted, and are answered in the same turn."""

    def __init__(self, sock: socket.socket, peer: str, server: Http) -> None:
        sock.setblocking(False)
        self.peer = peer
        self._sock = sock
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._head = b""
        self._rest = memoryview(b"")  # of the answer
        self._timeout = self._loop.call_later(PATIENCE, self.close)

    def begin(self) -> None:
        self._server.clients[self] = None
        self._loop.add_reader(self._sock, self._read)
        self._read()

    def close(self) -> None:
        self._timeout.cancel()
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._server.clients.pop(self, None)

    def _read(self) -> None:
        try:
            data = self._sock.recv(MAX_HEAD)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self._head += data
        text, end, _ = self._head.partition(b"\r\n\r\n")
        if end and len(text) < MAX_HEAD:
            self._loop.remove_reader(self._sock)
            head = text.decode("latin-1").split("\r\n")
            if any(f" {probe}" in head[0] for probe in PROBES):
                self._answer(head)
            else:  # a text that takes longer to make: probes that were accepted in this turn go first
                self._loop.call_soon(self._answer, head)
        elif not data or len(self._head) > MAX_HEAD:
            self.close()

    def _answer(self, head: list[str]) -> None:
        if self not in self._server.clients:
            return  # evicted meanwhile
        try:
            status, kind, body = self._server.answer(head)
        except BaseException:
            self.close()
            raise
        said = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
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
            self.close()
