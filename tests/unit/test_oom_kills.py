from __future__ import annotations

from pathlib import Path

from pgworkers.linux.oom import OomKillCounter, counters_of


def test_the_closest_counter_comes_first() -> None:
    assert counters_of(["4:memory:/a/b", "3:cpu,cpuacct:/", "0::/"]) == [
        "/sys/fs/cgroup/memory/a/b/memory.oom_control",
        "/sys/fs/cgroup/memory/memory.oom_control",
        "/sys/fs/cgroup/memory.events",
        "/sys/fs/cgroup/unified/memory.events",
        "/proc/vmstat",
    ]
    assert counters_of(["0::/user.slice/me"])[0] == "/sys/fs/cgroup/user.slice/me/memory.events"
    assert counters_of([]) == ["/proc/vmstat"]


def test_a_kill_is_seen_once_it_is_counted(tmp_path: Path) -> None:
    missing, events = tmp_path / "missing", tmp_path / "memory.events"
    events.write_text("low 0\noom 3\noom_kill 2\noom_group_kill 9\n")
    witness = OomKillCounter([str(missing), str(events)])
    assert not witness.has_grown()
    events.write_text("low 0\noom 4\noom_kill 3\noom_group_kill 9\n")
    assert witness.has_grown()


def test_a_reading_between_the_kill_and_its_discovery_does_not_hide_it(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("oom_kill 0\n")
    witness = OomKillCounter([str(events)])
    events.write_text("oom_kill 1\n")
    witness.refresh()
    assert witness.has_grown()
    witness.refresh()
    assert not witness.has_grown(), "but it is not blamed for later deaths"


def test_without_evidence_nothing_is_claimed(tmp_path: Path) -> None:
    garbled = tmp_path / "garbled"
    garbled.write_text("oom_kill many\n")
    witness = OomKillCounter([str(garbled), str(tmp_path / "missing")])
    witness.refresh()
    assert not witness.has_grown()
