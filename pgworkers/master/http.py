"""/metrics, /livez and /readyz: a server small enough that no client can delay supervision.

One request a connection, two seconds for all of it, a few kilobytes of head, and a cap on connections. At the cap a
new client takes the place of an old one: the oldest of the address that has the most. So slow clients displace each
other, and a probe, which sends its request at once, is answered. `/livez` and `/readyz` are answered in the turn of the
loop that reads them, everything else in the next.

The name in `Host` is checked. A page in an operator's browser may point its own name at 127.0.0.1 (DNS rebinding) and then
read what is answered there; its requests still carry its name. IP addresses, localhost, this machine's name and the names
in the setting `metrics_allowed_hosts` are answered; others get 421.

Whether the host is live and ready is decided in status.py.
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

REQUEST_TIMEOUT_SECONDS = 2.0
MAX_CONNECTIONS = 64
MAX_REQUEST_HEAD_BYTES = 8192
#: Connections accepted in one turn of the event loop.
MAX_ACCEPTS_PER_TURN = 16
#: Connections that the kernel keeps until they are let in.
LISTEN_BACKLOG = 512
#: Ports that are tried, from the default one on.
MAX_PORTS_TRIED = 100
PROBE_PATHS = ("/livez", "/readyz")

#: path, Accept -> status, content type, body
HttpResponse = tuple[int, str, bytes]
HttpHandler = Callable[[str, str], "HttpResponse | asyncio.Future[HttpResponse]"]
_STATUS_TEXTS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    503: "Service Unavailable",
}


_MISDIRECTED_TEXT = (
    "this is not the server of {}; ask for an IP address or localhost, or set PGWORKERS_METRICS_ALLOWED_HOSTS to the names "
    "that this port answers for\n"
)


class ListenFailed(UsageError):
    """The address is not available.

    `brief`: a short text for a host that runs without it; `taken`: a process listens there.
    """

    def __init__(self, text: str, brief: str, *, taken: bool) -> None:
        super().__init__(text)
        self.brief = brief
        self.is_taken = taken


def parse_address(address: str) -> tuple[str, int]:
    """HOST:PORT, or a UsageError that names the flag."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"metrics={address!r} is not HOST:PORT; write 127.0.0.1:9911, or off")
    return host, int(port)


def listen(address: str) -> socket.socket:
    """A listening socket on HOST:PORT, or a UsageError that names the flag."""
    host, port = parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host.strip("[]"), port))
        sock.listen(LISTEN_BACKLOG)
    except OSError as error:
        sock.close()
        taken = error.errno == errno.EADDRINUSE
        raise ListenFailed(
            f"metrics: cannot listen on {address} ({'it is taken' if taken else error.strerror}); "
            "choose another address with --metrics HOST:PORT, or --metrics off",
            f"{address} is taken" if taken else f"{address}: {error.strerror}",
            taken=taken,
        ) from error
    return sock


def listen_on_next_free(address: str) -> socket.socket:
    """A listening socket on HOST:PORT or, where other hosts of this machine have it, on one of the next ports."""
    host, port = parse_address(address)
    for step in range(MAX_PORTS_TRIED):
        try:
            return listen(f"{host}:{port + step}")
        except ListenFailed as error:
            if not error.is_taken or port == 0 or port + step == 65535:
                raise
    raise ListenFailed(
        f"metrics: {address} and the {MAX_PORTS_TRIED - 1} ports after it are taken; choose another address with "
        "--metrics HOST:PORT, or --metrics off",
        f"{address} and the {MAX_PORTS_TRIED - 1} ports after it are taken",
        taken=True,
    )


class AllowedHosts:
    """The names that a request may ask for in its Host header."""

    def __init__(self, address: str, extra: str) -> None:
        """`address` is the setting `metrics_address`, `extra` the setting `metrics_allowed_hosts` (`*`: any)."""
        bound = address.rpartition(":")[0].strip("[]")
        names = ["localhost", socket.gethostname(), bound, *extra.split(",")]
        self._names = {name.strip().lower().rstrip(".") for name in names} - {""}

    def __contains__(self, host: str) -> bool:
        """True for `name`, `name:port`, `1.2.3.4:port` and `[::1]:port` if the name is one of ours."""
        if "*" in self._names:
            return True
        found = _HOST_HEADER_PATTERN.fullmatch(host)
        if found is None:
            return False
        if found["v6"] is not None:
            return _is_address(found["v6"])
        name = found["name"].lower().rstrip(".")
        return name in self._names or _is_address(name)


_HOST_HEADER_PATTERN = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{1,5})?")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class HttpServer:
    """Without asyncio's streams: their accept, their task and their reader take five turns of the loop for one request, and
    turns of a busy loop are what a client waits for."""

    def __init__(self, sock: socket.socket, handler: HttpHandler, hosts: AllowedHosts) -> None:
        self.address = "{}:{}".format(*sock.getsockname()[:2])
        self.connections: dict[HttpConnection, None] = {}  # the oldest first
        self._sock = sock
        self._handler = handler
        self._hosts = hosts
        self._accept_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._sock.setblocking(False)
        self._listen()

    def close(self) -> None:
        if self._accept_timer is not None:
            self._accept_timer.cancel()
        asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._sock, self._on_connection)

    def _on_connection(self) -> None:
        for _ in range(MAX_ACCEPTS_PER_TURN):
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptors or no memory: clients wait, and the loop is not kept busy
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._sock)
                self._accept_timer = loop.call_later(1.0, self._listen)
                return
            HttpConnection(sock, str(peer[0]), self).start()
            if len(self.connections) > MAX_CONNECTIONS:
                self._evict()

    def _evict(self) -> None:
        """Close the oldest connection of the address that has the most, so that no address can take all places."""
        busiest_peer, _ = Counter(client.peer for client in self.connections).most_common(1)[0]
        next(client for client in self.connections if client.peer == busiest_peer).close()

    def answer(self, head: list[str]) -> HttpResponse | asyncio.Future[HttpResponse]:
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
                return 421, "text/plain", _MISDIRECTED_TEXT.format(ascii(host[:100])).encode()
        return self._handler(
            target.path + ("?" + target.query if target.query else ""), headers.get("accept", "")
        )


class HttpConnection:
    """One connection, one request.

    Probes are answered in the turn that reads them, other requests in the next.
    """

    def __init__(self, sock: socket.socket, peer: str, server: HttpServer) -> None:
        sock.setblocking(False)
        self.peer = peer
        self._sock = sock
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._request_head = b""
        self._unsent = memoryview(b"")  # of the answer
        self._timeout = self._loop.call_later(REQUEST_TIMEOUT_SECONDS, self.close)

    def start(self) -> None:
        self._server.connections[self] = None
        self._loop.add_reader(self._sock, self._read)
        self._read()

    def close(self) -> None:
        self._timeout.cancel()
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._server.connections.pop(self, None)

    def _read(self) -> None:
        try:
            data = self._sock.recv(MAX_REQUEST_HEAD_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self._request_head += data
        text, end, _ = self._request_head.partition(b"\r\n\r\n")
        if end and len(text) < MAX_REQUEST_HEAD_BYTES:
            self._loop.remove_reader(self._sock)
            head = text.decode("latin-1").split("\r\n")
            if any(f" {probe}" in head[0] for probe in PROBE_PATHS):
                self._answer(head)
            else:  # a text that takes longer to make: probes that were accepted in this turn go first
                self._loop.call_soon(self._answer, head)
        elif not data or len(self._request_head) > MAX_REQUEST_HEAD_BYTES:
            self.close()

    def _answer(self, head: list[str]) -> None:
        if self not in self._server.connections:
            return  # evicted meanwhile
        try:
            response = self._server.answer(head)
        except BaseException:
            self.close()
            raise
        if isinstance(response, asyncio.Future):
            response.add_done_callback(lambda done: self._send_when_ready(head, done))
        else:
            self._send(head, response)

    def _send_when_ready(self, head: list[str], response: asyncio.Future[HttpResponse]) -> None:
        if self not in self._server.connections:
            return  # evicted meanwhile, or too late
        if response.cancelled() or response.exception() is not None:
            self.close()
        else:
            self._send(head, response.result())

    def _send(self, head: list[str], response: HttpResponse) -> None:
        status, kind, body = response
        response_head = (
            f"HTTP/1.1 {status} {_STATUS_TEXTS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        ).encode()
        self._unsent = memoryview(response_head if head[0].startswith("HEAD ") else response_head + body)
        self._write()

    def _write(self) -> None:
        """What a client does not read in time is not kept for it."""
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._unsent = self._unsent[:0]
        if self._unsent:
            self._loop.add_writer(self._sock, self._write)
        else:
            self.close()
