"""The HTTP port of a master: many, slow, half-open and rude clients, and an address that is taken."""

from __future__ import annotations

import resource
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

import pytest
from support.cluster import Cluster, Master, wait_for
from support.ledger import read

CLIENTS = 1000


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def address(master: Master) -> tuple[str, int]:
    lines = wait_for(lambda: [line for line in master.log().splitlines() if line.startswith("metrics ")])
    host, _, port = lines[0].split()[1].removeprefix("http://").removesuffix("/metrics").rpartition(":")
    return host, int(port)


def descriptors_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_a_thousand_clients_delay_neither_a_deadline_nor_a_cancel(cluster: Cluster) -> None:
    master = cluster.start(queues="default:2", PGWORKERS_METRICS_ADDRESS="127.0.0.1:0")
    place = address(master)
    before = descriptors_of(master.pid)
    [late] = cluster.enqueue("hang", timeout="0.3s", max_attempts=1)
    [unwanted] = cluster.enqueue("hang")
    wait_for(lambda: {entry.job for entry in read(cluster.ledger)} >= {late, unwanted})
    requests = [
        b"",  # half-open
        b"GET /metr",  # slow
        b"GET /metrics HTTP/1.1\r\nAccept: text/plain\r\n\r\n",  # reads nothing of the answer
        b"GET /" + b"x" * 100_000,  # a line without end
    ]
    with ExitStack() as clients:
        for number in range(CLIENTS):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(place)
            try:
                client.send(requests[number % len(requests)])
            except OSError:
                pass  # still in the queue of the kernel, or already closed
        cluster.db.execute("SELECT pgworkers.cancel(%s)", (unwanted,))
        assert cluster.until(late, "dead")["verdict"] == "timeout"
        cluster.until(unwanted, "cancelled")
        assert descriptors_of(master.pid) < before + 200, "connections are bounded"
    wait_for(lambda: descriptors_of(master.pid) <= before + 2, what="every client is let go")
    wait_for(lambda: urllib.request.urlopen(f"http://{place[0]}:{place[1]}/livez", timeout=60).status == 200)


def test_rude_requests_get_short_answers(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1", PGWORKERS_METRICS_ADDRESS="127.0.0.1:0")
    place = address(master)

    def ask(method: str, path: str) -> tuple[int, bytes]:
        connection = HTTPConnection(*place, timeout=60)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    assert ask("POST", "/metrics") == (405, b"only GET\n")
    assert ask("GET", "/nothing")[0] == 404
    assert ask("HEAD", "/livez") == (200, b"")
    assert ask("GET", "/livez?verbose") == (200, b"ok\n")
    status, said = ask("GET", "/readyz?verbose")
    assert (status, said.splitlines()[0]) == (200, b"ok")
    assert [line.split(b":")[0] for line in said.splitlines()[1:4]] == [b"database", b"schema", b"workers"]
    for request in (b"nonsense\r\n\r\n", b"GET /\xff\x00 x HTTP/1.1\r\n\r\n", b"\r\n\r\n"):
        with socket.create_connection(place, timeout=60) as client:
            client.sendall(request)
            assert client.recv(100).startswith(b"HTTP/1.1 400 ")


def test_an_address_that_is_taken_is_an_error_that_names_the_flag(cluster: Cluster) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        master = cluster.start("--metrics", f"127.0.0.1:{port}", wait=False)
        assert master.wait() == 2
    assert f"cannot listen on 127.0.0.1:{port}" in master.log()
    assert "--metrics HOST:PORT" in master.log()
