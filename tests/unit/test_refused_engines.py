"""Engines that speak Postgres's protocol and lack what pgworkers needs are refused, with one sentence."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from pgworkers.errors import UsageError
from pgworkers.postgres import connect
from pgworkers.settings import Settings


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


#: The answer to `SHOW transaction_read_only`, which libpq asks of servers before Postgres 14.
WRITABLE = (
    message(b"T", struct.pack("!h", 1) + b"t\0" + struct.pack("!ihihih", 0, 0, 25, -1, -1, 0))
    + message(b"D", struct.pack("!hi", 1, 3) + b"off")
    + message(b"C", b"SHOW\0")
    + message(b"Z", b"I")
)


class Engine:
    """Accept each client as a server does, and close the connection at its first query."""

    def __init__(self, said: dict[str, str]) -> None:
        self._greeting = message(b"R", struct.pack("!i", 0))
        for name, value in said.items():
            self._greeting += message(b"S", f"{name}\0{value}\0".encode())
        self._greeting += message(b"K", struct.pack("!ii", 4711, 0)) + message(b"Z", b"I")
        self._socket = socket.create_server(("127.0.0.1", 0))
        port = self._socket.getsockname()[1]
        self.dsn = f"host=127.0.0.1 port={port} user=u dbname=d sslmode=disable gssencmode=disable"
        self.heard: list[bytes] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with client:
                client.recv(65536)
                client.sendall(self._greeting)
                if b"SHOW transaction_read_only" in (heard := client.recv(65536)):
                    client.sendall(WRITABLE)
                    heard = client.recv(65536)
                self.heard.append(heard)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


ENGINES = {
    "cockroach": ({"server_version": "18.0.0", "crdb_version": "CockroachDB CCL v26.1.0"}, "CockroachDB"),
    "yugabyte": ({"server_version": "15.2-YB-2025.1.0.0-b168"}, "YugabyteDB"),
    "yugabyte-on-11": ({"server_version": "11.2-YB-2.20.1.0-b97"}, "YugabyteDB"),
    "old": ({"server_version": "12.22"}, "this Postgres is version 12; nothing was done; use Postgres 13"),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, str]]:
    said, refusal = ENGINES[request.param]
    made = Engine({"in_hot_standby": "off", "default_transaction_read_only": "off"} | said)
    yield made, refusal
    made.close()


@pytest.mark.parametrize("pooled", [False, True])
def test_an_engine_that_cannot_work_is_refused_before_anything_is_asked(
    engine: tuple[Engine, str], pooled: bool
) -> None:
    made, refusal = engine
    with pytest.raises(UsageError, match=refusal) as caught:
        connect.connect(Settings(), made.dsn, "client", is_pooled=pooled)
    assert "nothing was done" in str(caught.value)
    with pytest.raises(UsageError, match=refusal):
        asyncio.run(connect.aconnect(Settings(), made.dsn, "client", is_pooled=pooled))
    assert set(made.heard) <= {b"", message(b"X", b"")}, "nothing, or that the session ends"
