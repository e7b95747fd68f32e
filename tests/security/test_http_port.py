"""S-15: clients of the HTTP port that are slow, silent or many, and requests with the Host header of another site."""

from __future__ import annotations

import socket
import threading
from http.client import HTTPConnection

import pytest
from support.cluster import Master, wait_for
from support.logins import NEWEST_ONLY

SLOW_CLIENTS = 80
PROBES = 40
#: What a slow client sends before it falls silent.
SLOW = {
    "silent": b"",
    "half a request": b"GET /livez HT",
    "reads nothing": b"GET /metrics HTTP/1.1\r\n\r\n",
}

pytestmark = NEWEST_ONLY
HOST_OPTIONS = {
    "queues": "default:1",
    "PGWORKERS_METRICS_ADDRESS": "127.0.0.1:0",
    "PGWORKERS_METRICS_ALLOWED_HOSTS": "workers.example, pods.example",
}


def port_of(master: Master) -> int:
    lines = wait_for(lambda: [line for line in master.log().splitlines() if line.startswith("metrics ")])
    return int(lines[0].split()[1].removesuffix("/metrics").rpartition(":")[2])


def ask(port: int, path: str, host: str | None = None, method: str = "GET") -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=host is not None)
        if host:
            connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


class SlowClients(threading.Thread):
    """Clients that send a little and wait; one whose connection is closed reconnects at once."""

    def __init__(self, port: int, words: bytes) -> None:
        super().__init__(daemon=True)
        self._port, self._words = port, words
        self._over = threading.Event()
        self.full, self.evicted = threading.Event(), 0

    def run(self) -> None:
        clients = [self._connect() for _ in range(SLOW_CLIENTS)]
        self.full.set()
        while not self._over.wait(0.001):
            for number, client in enumerate(clients):
                if self._is_closed(client):
                    client.close()
                    clients[number] = self._connect()
                    self.evicted += 1
        for client in clients:
            client.close()

    def stop(self) -> None:
        self._over.set()
        self.join(60)

    def _connect(self) -> socket.socket:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # an answer does not fit
        client.settimeout(60)
        client.connect(("127.0.0.1", self._port))
        client.send(self._words)
        client.setblocking(False)
        return client

    def _is_closed(self, client: socket.socket) -> bool:
        try:
            return client.recv(1, socket.MSG_PEEK) == b"" and not self._words.startswith(b"GET /metrics")
        except BlockingIOError:
            return False
        except OSError:
            return True


@pytest.mark.parametrize("kind", SLOW)
def test_s15_slow_clients_do_not_keep_a_probe_from_its_answer(
    running_host: Master, kind: str, age: str
) -> None:
    port = port_of(running_host)
    slow = SlowClients(port, SLOW[kind])
    slow.start()
    try:
        assert slow.full.wait(60)
        for _ in range(PROBES):
            assert ask(port, "/livez") == (200, "ok\n")
            assert ask(port, "/readyz")[0] == 200
        assert ask(port, "/metrics")[0] == 200
        if kind != "reads nothing":
            wait_for(lambda: slow.evicted, what="a slow client is shown the door")
    finally:
        slow.stop()
    assert ask(port, "/livez") == (200, "ok\n")


GOOD_NAMES = [
    "127.0.0.1:9911",
    "10.1.2.3:9911",
    "10.1.2.3",
    "[fd00::1]:9911",
    "[::1]",
    "localhost:9911",
    "LOCALHOST",
    socket.gethostname(),
    "workers.example",
    "Workers.Example.:80",
    "pods.example:9911",
]
BAD_NAMES = [
    "evil.example",
    "evil.example:9911",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "workers.example.evil.example",
    "a.pods.example",
    "xpods.example",
    "a@127.0.0.1",
    "127.0.0.1:9911:evil",
    "[::1].evil.example",
    "1.2.3",
    "0x7f000001.evil.example",
    "\u00b2.example".encode().decode("latin-1"),
    "x" * 3000,
]


def test_s15_the_host_header_of_another_site_is_refused_with_a_sentence(
    running_host: Master, age: str
) -> None:
    """DNS rebinding: the name is the page's, the address is ours."""
    port = port_of(running_host)
    assert [name for name in GOOD_NAMES if ask(port, "/metrics", name)[0] != 200] == []
    for name in BAD_NAMES:
        for path in ("/metrics", "/livez", "/readyz?verbose", "/"):
            status, said = ask(port, path, name)
            assert status == 421, (name, path)
            assert "PGWORKERS_METRICS_ALLOWED_HOSTS" in said
            assert said.isascii()
            assert len(said) < 500


def test_s15_two_names_and_a_name_in_the_target(running_host: Master, age: str) -> None:
    port = port_of(running_host)
    for request, status in (
        (b"GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 421),
        (b"GET http://localhost:1/livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (b"GET //evil.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost : evil.example\r\n\r\n", 400),
        (b"GET /livez HTTP/1.0\r\n\r\n", 200),  # no browser omits it
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(request)
            assert client.recv(12) == b"HTTP/1.1 %d" % status, request
