from __future__ import annotations

import pytest

import pgworkers
from pgworkers.supervisor import stack_dump
from pgworkers.supervisor.app_loader import hide_passwords

PACKAGE = pgworkers.__path__[0]


@pytest.mark.parametrize(
    "text",
    [
        "cannot reach postgresql://me:hunter2@db.example:5432/x?sslmode=require",
        "postgres://:hunter2@host/",
        "redis://user:hunter2@h",
        "host=db user=me password=hunter2 port=5432",
        "PGPASSWORD=hunter2",
        "connect(password='hunter2')",
        'settings: password: "hunter2"',
    ],
)
def test_passwords_are_taken_out(text: str) -> None:
    told = hide_passwords(f"before {text} after")
    assert "hunter2" not in told
    assert told.startswith("before ")
    assert told.endswith(" after")


def test_other_texts_stay() -> None:
    for text in ("postgresql://me@host:5432/db", "see https://example.org/a:b", "a password is missing", ""):
        assert hide_passwords(text) == text


DUMP = f"""Fatal Python error: Segmentation fault

Thread 0x00007f6c4c59d6c0 (most recent call first):
  File "{PACKAGE}/worker/heartbeat.py", line 55 in run
  File "/usr/lib/python3.11/threading.py", line 1045 in _bootstrap_inner

Current thread 0x00007f6c4e253b80 (most recent call first):
  File "/home/me/app.py", line 13 in guilty
  File "/home/me/app.py", line 20 in render
  File "{PACKAGE}/task.py", line 101 in call
  File "{PACKAGE}/worker/attempt.py", line 97 in _call
  File "<frozen runpy>", line 198 in _run_module_as_main

Extension modules: numpy.core (total: 1)"""


def test_only_the_users_frames_are_shown() -> None:
    assert stack_dump.clean_dump(DUMP) == (
        "Fatal Python error: Segmentation fault\n\n"
        "Current thread 0x00007f6c4e253b80 (most recent call first):\n"
        '  File "/home/me/app.py", line 13 in guilty\n'
        '  File "/home/me/app.py", line 20 in render'
    )


def test_an_idle_worker_keeps_its_stack() -> None:
    idle = (
        f'Current thread 0x1 (most recent call first):\n  File "{PACKAGE}/worker/main.py", line 77 in serve\n'
    )
    assert stack_dump.clean_dump(idle) == idle.strip()
    assert stack_dump.clean_dump("") == ""
