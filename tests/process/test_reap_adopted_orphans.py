"""Reaping orphans that ended, and no child whose exit status the handler wants."""

from __future__ import annotations

import subprocess
import sys

from supervisor_harness import until

from pgworkers.linux import proc
from pgworkers.linux.sweep import AdoptedChildReaper

#: A chain of orphans in a session of their own, two own children (one in a session of its own), an orphan of our session.
PARENT = """
import os, subprocess, sys, time
from pgworkers.linux import prctl, proc
from pgworkers.linux.sweep import AdoptedChildReaper

prctl.become_subreaper()
adopted = AdoptedChildReaper()
assert not adopted.reap(1.0)
own = [subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=new) for new in (False, True)]
daemons = subprocess.Popen(
    ["sh", "-c", "for i in 1 2 3; do setsid sh -c '(exit 0) & (exit 0) &'; done; exit 7"], start_new_session=True
)
shell = subprocess.Popen(["sh", "-c", "sleep 0 & exit 7"])

def crowd(): return {pid: found.state for pid in proc.children(os.getpid()) if (found := proc.read_stat(pid))}
before = crowd()
while len(before) < 4 + 6 + 1 or set(before.values()) != {"Z"}: before = crowd()
assert not adopted.reap(1.0)
after = crowd()
mine = {child.pid for child in (*own, daemons, shell)}
print(len(before) - len(after), mine <= after.keys(), len(after.keys() - mine))
print([child.wait() for child in (*own, daemons, shell)])
"""


def test_orphans_are_reaped_and_own_children_keep_their_status() -> None:
    asked = subprocess.run(
        [sys.executable, "-c", PARENT], capture_output=True, text=True, check=True, timeout=60
    )
    assert asked.stdout.splitlines() == ["6 True 1", "[7, 7, 7, 7]"], asked


OWN_SESSION = """
import os, subprocess, time
from pgworkers.linux import prctl, proc
from pgworkers.linux.sweep import AdoptedChildReaper

prctl.become_subreaper()
adopted = AdoptedChildReaper()
os.setsid()
own = subprocess.Popen(["sh", "-c", "exit 7"])
while proc.read_stat(own.pid).state != "Z": time.sleep(0.001)
assert not adopted.reap(1.0)
print(own.wait())
"""


def test_own_children_keep_their_status_after_the_handler_made_a_session() -> None:
    asked = subprocess.run(
        [sys.executable, "-c", "import os, sys\nif os.fork():\n    sys.exit(os.wait()[1])\n" + OWN_SESSION],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert asked.stdout == "7\n", asked


def test_the_heartbeat_does_not_go_on_at_once_if_there_was_nothing_to_reap() -> None:
    with subprocess.Popen(["true"]) as own:
        until("it has ended", lambda: (one := proc.read_stat(own.pid)) is not None and one.state == "Z")
        assert not AdoptedChildReaper().reap(-1.0)


#: An orphan ends after the sweep has looked at it, and the heartbeat beats before the sweep signals it.
SWEEPER = """
import os, signal, time
from pgworkers.linux import prctl, proc, sweep
from pgworkers.linux.sweep import AdoptedChildReaper
from pgworkers.worker import cleanup

prctl.become_subreaper()
adopted = AdoptedChildReaper()
reader, writer = os.pipe()
parent = os.fork()
if parent == 0:
    os.setsid()
    orphan = os.fork()
    if orphan:
        os.write(writer, str(orphan).encode())
        os._exit(0)
    time.sleep(999)
orphan = int(os.read(reader, 20))
os.waitpid(parent, 0)
seen = []
send = sweep._send

def beat_first(child, number):
    os.kill(orphan, signal.SIGKILL)
    while proc.read_stat(orphan).state != "Z": time.sleep(0.001)
    adopted.reap(1.0)
    seen.append(orphan in proc.children(os.getpid()))
    return send(child, number)

sweep._send = beat_first
print(cleanup.sweep_children(set()), seen, proc.children(os.getpid()))
"""


def test_the_heartbeat_reaps_nothing_that_a_sweep_is_about_to_signal() -> None:
    asked = subprocess.run(
        [sys.executable, "-c", SWEEPER], capture_output=True, text=True, check=True, timeout=60
    )
    assert asked.stdout == "True [True] []\n", asked
