"""Killing what is left behind, generation by generation, and nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from play import until

from pgworkers.process import tree

SWEEPER = """
import os, subprocess, sys, time
from pgworkers.process import prctl, tree

prctl.inherit_orphans()
spared = subprocess.Popen(["sleep", "999"])
depth = int(sys.argv[1])
chain = subprocess.Popen([sys.executable, "-c", '''
import os, sys, time
for _ in range(int(sys.argv[1])):
    print(os.getpid(), flush=True)
    if os.fork(): time.sleep(999)
    os.setsid()
print(os.getpid(), flush=True)
print("end", flush=True)
time.sleep(999)
''', str(depth)], stdout=subprocess.PIPE, text=True)
members = []
for line in chain.stdout:
    if line == "end\\n": break
    members.append(int(line))
killed = 0
while True:
    now, found = tree.kill_strays({spared.pid})
    killed += now
    if not found: break
left = [pid for pid in members if os.path.exists(f"/proc/{pid}")]
print(len(members), killed, left, spared.poll())
spared.kill(); spared.wait()
"""


def test_a_chain_of_generations_is_killed_to_its_end_and_counted_once() -> None:
    for depth in (1, 5, 30):
        asked = subprocess.run(
            [sys.executable, "-c", SWEEPER, str(depth)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert asked.stdout.split() == [str(depth + 1), str(depth + 1), "[]", "None"], asked


def test_a_process_is_known_by_its_marker() -> None:
    environ = {**os.environ, "PGWORKERS_SWEEP_TEST": f"run-{os.getpid()}-a"}
    with (
        subprocess.Popen(["sleep", "999"], env=environ) as ours,
        subprocess.Popen(["sleep", "999"]) as stranger,  # not this one
    ):
        try:
            name, prefix = "PGWORKERS_SWEEP_TEST", f"run-{os.getpid()}-"
            until("the marker", lambda: tree.marked(name, prefix) == [ours.pid])
        finally:
            ours.kill()
            stranger.kill()


def test_names_with_spaces_and_parentheses_do_not_confuse_stat(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "999"]) as child:
        try:
            until("the name", lambda: Path(f"/proc/{child.pid}/comm").read_text() == "a) R 1 (b\n")
            found = tree.stat(child.pid)
            assert found is not None
            assert (found.ppid, found.group) == (os.getpid(), os.getpgrp())
            assert child.pid in tree.children(os.getpid())
            assert child.pid in tree.family(os.getpid())
        finally:
            child.kill()
    assert tree.stat(child.pid) is None
