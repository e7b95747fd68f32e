"""What hosts and jobs answer to `jobs stack|suspend`, `workers stack|stop`: shown, whatever it says and they are called."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.argv_texts import fair
from support.command import CommandResult, ForkedCommand
from support.database_host import DatabaseHost

from pgworkers.job import hosts, requests

EVIL = "\x1b[2J\u202e\u2028\x85"
STACK = f'File "{EVIL}.py", line 7, in {EVIL}\n  wait()'


@pytest.fixture
def cli(emptied: str, tmp_path: Path) -> ForkedCommand:
    return ForkedCommand(tmp_path, DATABASE_URL=emptied, PGWORKERS_SCHEMA="pgworkers")


@pytest.fixture
def job(session: Callable[[], psycopg.Connection[Any]], schema: str) -> Iterator[int]:
    """Of a host with a name like no other, which answers everything in two lines."""
    host = DatabaseHost(session(), schema)
    host.execute(hosts.register_host(host.id, f"box\n{EVIL}", 1, EVIL, EVIL, EVIL, ["a"], ["t"], 60.0))
    running = host.enqueue_and_claim().id
    told = {"queue": "a", "slot": 0, "pid": 1, "state": "busy", "job": running, "task": "t"}
    host.execute(hosts.renew_lease(host.id, [], "running", json.dumps([told])))
    with _answering(host):
        yield running


@contextmanager
def _answering(host: DatabaseHost) -> Iterator[None]:
    enough = threading.Event()

    def answer() -> None:
        while not enough.wait(0.02):
            for one in host.execute(requests.take_requests(host.id)):
                host.execute(requests.answer_request(one.id, True, STACK))

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def shown(said: CommandResult) -> str:
    fair(said, repr(said))
    assert said.code == 0, said.err
    assert "\\x1b[2J\\u202e\\u2028\\x85" in said.out
    return said.out


def test_a_stack_has_its_lines_and_paints_nothing(cli: ForkedCommand, job: int) -> None:
    assert len(shown(cli("jobs", "stack", str(job))).splitlines()) == 2
    assert cli("jobs", "stack", str(job), "-o", "json").json() == {"id": job, "stack": STACK}
    told = shown(cli("workers", "stack")).splitlines()
    assert told[0].startswith("a/0 on ")
    assert told[2].endswith("wait()")


def test_what_became_of_a_request_is_one_line(cli: ForkedCommand, job: int) -> None:
    assert len(shown(cli("jobs", "suspend", str(job))).splitlines()) == 1
    assert len(shown(cli("workers", "stop", "a")).splitlines()) == 1
