"""A proxy in front of Postgres that misbehaves on request, and counts how often it did.

It stands on a TCP port of loopback, on a Unix socket, or both, and speaks just enough of the protocol to know which
statement passes by: who asks (`application_name`), what (the text, also of a prepared statement), and where its answer ends.

    with Proxy(server_dsn) as proxy:
        cluster.start(dsn=proxy.dsn)
        lost = proxy.lose_reply(mark("job/finish"))   # committed; the client is cut off and the answer is gone
        ...
        assert lost.hits == 1

Unlike a cut network, both kernels go on acknowledging: no keepalive and no tcp_user_timeout will ever notice. That is what
PgBouncer and cloud balancers look like; only a deadline on the client's side helps.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

import pgworkers
from pgworkers.postgres.statements import Statement

PACKAGE = Path(pgworkers.__file__).parent
SSL, GSS, CANCEL = 80877103, 80877104, 80877102
STEP = 0.02
CHUNK = 1 << 16


def mark(statement: str) -> str:
    """What is unmistakable in a statement as it is sent, by its file: the longest piece between two parameters."""
    room, name = statement.split("/")
    rendered = Statement.from_file(str(PACKAGE / room / "__init__.py"), name).render("pgworkers").decode()
    return max(re.split(r"%\(\w+\)s", rendered), key=len)


@dataclass(eq=False)
class Rule:
    """What to do with the next `times` statements that contain one of `texts`, of sessions whose name contains `who`."""

    action: str  # lose_reply, lose_query, hold_reply; lose_notice, whose texts are those of notifications
    texts: tuple[str, ...]
    who: str = ""
    times: int = 1
    hits: int = 0
    filled: bool = False  # of lose_reply: only an answer with rows in it
    done: threading.Event = field(
        default_factory=threading.Event
    )  # the server has answered the first of them
    go: threading.Event = field(default_factory=threading.Event)  # of hold_reply: let the answer pass

    def matches(self, who: str, text: str) -> bool:
        return self.hits < self.times and self.who in who and any(mark in text for mark in self.texts)


class Proxy:
    """See above. `stop_up`, `stop_down` and `delay` may be changed at any time; bytes that were stopped are kept."""

    def __init__(self, dsn: str, directory: Path | None = None) -> None:
        parts = conninfo_to_dict(dsn)
        host, port = str(parts.get("host") or "/tmp"), str(parts.get("port") or 5432)
        self._target: str | tuple[str, int] = (
            f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, int(port))
        )
        self.counts: Counter[str] = Counter()
        self.stop_up = False  # towards the server
        self.stop_down = False  # towards the client
        self.delay = 0.0  # seconds, before each answer
        self.refuse = False  # new connections are reset at once
        self._cut_after: int | None = None
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._pipes: set[_Pipe] = set()
        self._closed = threading.Event()
        tcp = socket.create_server(("127.0.0.1", 0))
        self._listeners = [tcp]
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=tcp.getsockname()[1])
        if directory is not None:
            unix = socket.socket(socket.AF_UNIX)
            unix.bind(f"{directory}/.s.PGSQL.5432")
            unix.listen(64)
            self._listeners.append(unix)
            self.unix_dsn = make_conninfo(dsn, host=str(directory), port=5432)
        self._threads = [threading.Thread(target=self._accept, args=(one,)) for one in self._listeners]
        for thread in self._threads:
            thread.start()

    # -- faults ------------------------------------------------------------------------------------------------------

    def lose_reply(self, *texts: str, who: str = "", times: int = 1, filled: bool = False) -> Rule:
        """The statement runs and commits; before its answer can reach the client, the client is cut off.

        `filled`: an answer without rows passes, and the rule waits for the next one.
        """
        return self._add(Rule("lose_reply", texts, who, times, filled=filled))

    def lose_query(self, *texts: str, who: str = "", times: int = 1) -> Rule:
        """The client is cut off before the statement reaches the server."""
        return self._add(Rule("lose_query", texts, who, times))

    def hold_reply(self, *texts: str, who: str = "") -> Rule:
        """The statement runs and commits; its answer waits until `go` is set."""
        return self._add(Rule("hold_reply", texts, who))

    def lose_notice(self, *texts: str, times: int = 1_000_000) -> Rule:
        """The server sends a notification and everything goes on, but that one message never arrives."""
        return self._add(Rule("lose_notice", texts, times=times))

    def hole(self) -> None:
        """Let nothing pass any more, in either direction, without closing anything."""
        self.stop_up = self.stop_down = True
        self.counts["hole"] += 1

    def heal(self) -> None:
        """What was stopped goes on, late; what comes now passes."""
        self.stop_up = self.stop_down = self.refuse = False
        self.delay = 0.0

    def cut(self) -> int:
        """Reset every connection, on both sides. How many."""
        with self._lock:
            pipes = list(self._pipes)
        for pipe in pipes:
            pipe.cut()
        self.counts["cut"] += len(pipes)
        return len(pipes)

    def cut_after(self, count: int) -> None:
        """Each connection is reset when this many more bytes have come from the server, in the middle of a message."""
        self._cut_after = count

    def connections(self) -> int:
        with self._lock:
            return len(self._pipes)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _add(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    def rule_for(self, who: str, text: str, *, notice: bool = False) -> Rule | None:
        with self._lock:
            for rule in self._rules:
                if (rule.action == "lose_notice") == notice and rule.matches(who, text):
                    rule.hits += 1
                    self.counts[rule.action] += 1
                    return rule
        return None

    def spare(self, rule: Rule) -> None:
        """There was nothing to lose in that answer."""
        with self._lock:
            rule.hits -= 1
            self.counts[rule.action] -= 1

    def pass_bytes(self, count: int) -> int | None:
        """None: pass them all; else cut after this many."""
        with self._lock:
            if self._cut_after is None:
                return None
            if count < self._cut_after:
                self._cut_after -= count
                return None
            allowed, self._cut_after = self._cut_after, None
            self.counts["cut_after"] += 1
            return allowed

    def wait_while(self, direction: str) -> None:
        self.counts[direction] += getattr(self, direction)  # messages that were held up
        while getattr(self, direction) and not self._closed.is_set():
            time.sleep(STEP)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.counts["connections"] += 1
            if self.refuse or self._closed.is_set():
                self.counts["refused"] += 1
                _reset(client)
                continue
            pipe = _Pipe(self, client)
            with self._lock:
                self._pipes.add(pipe)
            pipe.start(self._target)

    def forget(self, pipe: _Pipe) -> None:
        with self._lock:
            self._pipes.discard(pipe)

    def close(self) -> None:
        self._closed.set()
        for rule in self._rules:
            rule.go.set()
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the accept
            listener.close()
        for thread in self._threads:
            thread.join(10)
        with self._lock:
            pipes = list(self._pipes)
        for pipe in pipes:
            pipe.cut()
        for pipe in pipes:
            pipe.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Pipe:
    """One connection: two threads, one for each direction."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server: socket.socket | None = None
        self._who = ""
        self._texts: dict[bytes, str] = {}  # prepared statements by name
        self._doomed: Rule | None = None  # its answer is to be swallowed or held
        self._threads: list[threading.Thread] = []

    def start(self, target: str | tuple[str, int]) -> None:
        self._threads = [threading.Thread(target=self._up, args=(target,))]
        self._threads[0].start()

    def join(self) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(10)

    def cut(self) -> None:
        for sock in (self._client, self._server):
            if sock is not None:
                _reset(sock)
        self._proxy.forget(self)

    def _up(self, target: str | tuple[str, int]) -> None:
        try:
            first = self._startup()
            server = socket.socket(socket.AF_UNIX if isinstance(target, str) else socket.AF_INET)
            self._server = server
            server.connect(target)
            self._proxy.wait_while("stop_up")
            server.sendall(first)
            down = threading.Thread(target=self._down, args=(server,))
            self._threads.append(down)
            down.start()
            while True:
                kind, body = _message(self._client)
                self._look(kind, body)
                self._proxy.wait_while("stop_up")
                server.sendall(kind + struct.pack("!I", len(body) + 4) + body)
        except (OSError, EOFError):
            self.cut()

    def _startup(self) -> bytes:
        """The first message; requests for encryption are declined here."""
        while True:
            length = _read(self._client, 4)
            body = _read(self._client, struct.unpack("!I", length)[0] - 4)
            (code,) = struct.unpack("!I", body[:4])
            if code in (SSL, GSS):
                self._proxy.wait_while("stop_up")
                self._client.sendall(b"N")
                continue
            if code != CANCEL:
                words = body[4:].split(b"\0")
                pairs = dict(zip(words[::2], words[1::2], strict=False))
                self._who = pairs.get(b"application_name", b"").decode()
            return length + body

    def _look(self, kind: bytes, body: bytes) -> None:
        """Which statement is about to run? Texts come with Parse or Query, prepared ones with the name in Bind."""
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self._texts[name] = text.decode(errors="replace")
            return
        if kind == b"B":
            found = self._texts.get(body.split(b"\0", 2)[1], "")
        elif kind == b"Q":
            found = body.rstrip(b"\0").decode(errors="replace")
        else:
            return
        rule = self._proxy.rule_for(self._who, found)
        if rule is None:
            return
        if rule.action == "lose_query":
            rule.done.set()
            raise EOFError
        self._doomed = rule

    def _down(self, server: socket.socket) -> None:
        """Answers, message by message, so that the end of an answer (ReadyForQuery) is known."""
        proxy = self._proxy
        held: list[bytes] = []
        try:
            while True:
                kind, body = _message(server)
                if kind == b"A" and proxy.rule_for(self._who, body[4:].decode(), notice=True):
                    continue
                doomed = self._doomed
                if doomed is not None:
                    held.append(kind + struct.pack("!I", len(body) + 4) + body)
                    if kind != b"Z":
                        continue
                    if doomed.filled and not any(message.startswith(b"D") for message in held):
                        proxy.spare(doomed)
                    else:
                        doomed.done.set()
                        if doomed.action == "lose_reply":
                            raise EOFError
                        doomed.go.wait()
                    self._doomed = None
                    self._client.sendall(b"".join(held))
                    held.clear()
                    continue
                if kind == b"E":
                    proxy.counts[_sqlstate(body)] += 1
                if proxy.delay and kind == b"Z":
                    proxy.counts["delay"] += 1
                    time.sleep(proxy.delay)
                proxy.wait_while("stop_down")
                data = kind + struct.pack("!I", len(body) + 4) + body
                allowed = proxy.pass_bytes(len(data))
                self._client.sendall(data[:allowed])
                if allowed is not None:
                    raise EOFError
        except (OSError, EOFError):
            self.cut()


def _sqlstate(body: bytes) -> str:
    """What an ErrorResponse says in its field C."""
    return next((part[1:].decode() for part in body.split(b"\0") if part.startswith(b"C")), "")


def _message(sock: socket.socket) -> tuple[bytes, bytes]:
    head = _read(sock, 5)
    return head[:1], _read(sock, struct.unpack("!I", head[1:])[0] - 4)


def _read(sock: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = sock.recv(min(count, CHUNK))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _reset(sock: socket.socket) -> None:
    """Close with a reset where the kernel can, so that the peer does not wait."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
    sock.close()
