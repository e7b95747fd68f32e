"""Judgements of the doctor from facts written down, and the reading of this machine from files made for it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import click
import psutil
import pytest

import pgworkers.doctor
from pgworkers.cli.root import root
from pgworkers.doctor import machine, server
from pgworkers.doctor.findings import (
    Level,
    Thresholds,
    jobs_wait_sentence,
    ok,
    warn,
    worst_level,
)
from pgworkers.doctor.machine import MachineFacts
from pgworkers.doctor.storage import mask_literals, shipped_indexes
from pgworkers.job.queries import MAX_COUNTED_JOBS
from pgworkers.master.drain import max_stop_seconds
from pgworkers.settings import Settings


def levels(findings: list[object]) -> list[str]:
    return [str(finding.level) for finding in findings]  # type: ignore[attr-defined]


class MasterProcess:
    """In place of psutil.Process: process 70 is a master, and there is no other."""

    effective_uid = 1000

    def __init__(self, pid: int) -> None:
        if pid != 70:
            raise psutil.NoSuchProcess(pid)

    def cmdline(self) -> list[str]:
        return ["pgworkers:", "master", "app.py", "[leader]", "0/2", "busy"]

    def uids(self) -> SimpleNamespace:
        return SimpleNamespace(real=1000 - self.effective_uid, effective=self.effective_uid)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc and a /sys/fs/cgroup of our own: a master in a systemd service, cgroup v2."""
    monkeypatch.setattr(machine.psutil, "Process", MasterProcess)
    proc, group = tmp_path / "proc" / "70", tmp_path / "cg" / "system.slice" / "pgworkers.service"
    proc.mkdir(parents=True)
    group.mkdir(parents=True)
    (proc / "cgroup").write_text("0::/system.slice/pgworkers.service\n")
    (proc / "limits").write_text(
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max processes             1000                 1000                 processes \n"
        "Max open files            1024                 4096                 files     \n"
        "Max cpu time              unlimited            unlimited            seconds   \n"
    )
    (group / "memory.oom.group").write_text("0\n")
    (group / "pids.max").write_text("512\n")
    (group / "pids.current").write_text("500\n")
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(
        "#!/bin/sh\necho TimeoutStopUSec=1min 30s\necho KillMode=control-group\necho OOMPolicy=stop\n"
    )
    systemctl.chmod(0o755)
    return tmp_path


def look(tree: Path, **environ: str) -> MachineFacts:
    return machine.read_machine(
        70, environ, proc=tree / "proc", cgroups=tree / "cg", systemctl=str(tree / "systemctl")
    )


def test_a_count_that_ended_early_says_so() -> None:
    assert [jobs_wait_sentence(1), jobs_wait_sentence(9_999), jobs_wait_sentence(MAX_COUNTED_JOBS)] == [
        "1 job waits",
        "9,999 jobs wait",
        "at least 10,000 jobs wait",
    ]


def test_a_machine_is_read(tree: Path) -> None:
    assert look(tree) == MachineFacts(
        pid=70, is_master=True, max_open_files=1024, max_processes=1000, pids_left=12, is_oom_group_readable=True,
        systemd_unit="pgworkers.service", stop_timeout_seconds=90.0, kill_mode="control-group", oom_policy="stop",
    )  # fmt: skip
    assert machine.is_master(70)
    assert not machine.is_master(71)
    (tree / "systemctl").write_text("#!/bin/sh\nexit 1\n")
    assert look(tree, KUBERNETES_SERVICE_HOST="10.0.0.1").is_kubernetes
    assert look(tree).stop_timeout_seconds is None


def test_memory_oom_group_is_found_in_a_parent_cgroup(tree: Path) -> None:
    group = tree / "cg" / "system.slice" / "memory.oom.group"
    group.write_text("1\n")
    (finding,) = machine.check_oom_group(look(tree))
    assert (finding.level, finding.what) == (Level.FAIL, f"{group} is 1")
    assert any("OOMPolicy=continue" in fix for fix in finding.fix)
    group.write_text("0\n")
    assert "OOMPolicy=stop" in machine.check_oom_group(look(tree))[0].what
    assert levels(machine.check_oom_group(MachineFacts(1, False, is_oom_group_readable=True))) == ["ok"]
    assert levels(machine.check_oom_group(MachineFacts(1, False))) == ["skip"]


def test_in_a_container_the_path_is_hidden(tree: Path) -> None:
    (tree / "proc" / "70" / "cgroup").write_text("0::/../../kubepods/pod1\n")
    (tree / "cg" / "memory.oom.group").write_text("1\n")
    assert look(tree).oom_group_file == str(tree / "cg" / "memory.oom.group")


def test_our_own_machine_can_be_read() -> None:
    seen = machine.read_machine(None)
    assert seen.max_open_files is None or seen.max_open_files > 0
    assert levels(machine.check_limits(seen, 1)) <= ["ok", "warn"]


def test_limits_are_judged_by_the_workers() -> None:
    assert levels(
        machine.check_limits(MachineFacts(1, True, max_open_files=1024, max_processes=1000), 8)
    ) == ["ok"]
    tight = machine.check_limits(MachineFacts(1, True, max_open_files=256, max_processes=30, pids_left=5), 40)
    assert levels(tight) == ["warn", "warn", "warn"]
    assert tight[0].fix[0] == "ulimit -n 1024"


def test_the_drain_must_fit_into_what_the_service_manager_waits() -> None:
    needed = max_stop_seconds(Settings())
    assert needed == 25 + 5 + 5 + 4 + 12 + 11 + 3 + 5 + 2 + 5
    of_systemd = MachineFacts(1, True, systemd_unit="w.service", stop_timeout_seconds=30.0, kill_mode="mixed")
    (short,) = machine.check_stop_timeout(of_systemd, 0, needed)
    assert (short.level, short.fix[0][:18]) == (Level.WARN, "TimeoutStopSec=77 ")
    assert levels(machine.check_stop_timeout(of_systemd, 80.0, needed)) == ["ok"]  # the configured value wins
    assert levels(
        machine.check_stop_timeout(MachineFacts(1, True, stop_timeout_seconds=float("inf")), 0, needed)
    ) == ["ok"]
    assert levels(machine.check_stop_timeout(MachineFacts(1, True, is_kubernetes=True), 0, needed)) == [
        "skip"
    ]
    assert levels(machine.check_stop_timeout(MachineFacts(1, True), 0, needed)) == ["skip"]
    wild = machine.check_stop_timeout(
        MachineFacts(1, True, stop_timeout_seconds=90.0, kill_mode="control-group"), 0, needed
    )
    assert levels(wild) == ["warn"]
    assert "SIGTERM to every worker" in wild[0].why


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1min 30s", 90.0),
        ("500ms", 0.5),
        ("infinity", float("inf")),
        ("1h", 3600.0),
        ("", None),
        ("soon", None),
    ],
)
def test_spans_of_systemd(text: str, seconds: float | None) -> None:
    assert machine.parse_systemd_time(text) == seconds


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/w.service", "w.service"),
        ("1:name=systemd:/system.slice/w.service\n0::/", "w.service"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/w.service", "w.service"),
        ("0::/user.slice/user-1000.slice/user@1000.service/session", ""),
        ("0::/user.slice/session-2.scope", ""),
        ("", ""),
        ("nonsense", ""),
    ],
)
def test_units(cgroup: str, unit: str) -> None:
    assert machine.systemd_unit_of(cgroup) == unit


def test_the_database_far_away_and_a_clock_that_is_off() -> None:
    tolerance = Thresholds()
    assert levels(server.check_version(170002, server.ClockOffset(0.2, 0.0, 0.1), tolerance)) == ["warn"]
    assert (
        server.check_version(170002, server.ClockOffset(0.001, 0.0, 0.0), tolerance)[0].what
        == "Postgres 17.2, round trip 1.0ms"
    )
    assert "30s behind" in server.check_clock(server.ClockOffset(0.001, 30.0, 0.001), tolerance)[0].what
    assert "30s ahead of" in server.check_clock(server.ClockOffset(0.001, -30.0, 0.001), tolerance)[0].what
    assert levels(server.check_clock(server.ClockOffset(8.0, 3.0, 4.0), tolerance)) == [
        "ok"
    ]  # a slow answer proves nothing


def test_poolers() -> None:
    assert levels(server.check_pooler(False, False, False)) == ["ok"]
    assert levels(server.check_pooler(True, False, False)) == ["fail"]
    assert levels(server.check_pooler(True, True, False)) == ["ok"]
    assert levels(server.check_pooler(True, True, True)) == ["fail"]


def test_transaction_ids() -> None:
    assert levels(server.check_transaction_ids(("shop", 200_000_000))) == ["ok"]
    assert levels(server.check_transaction_ids(("shop", 1_100_000_000))) == ["warn"]
    assert levels(server.check_transaction_ids(("shop", server.MAX_TRANSACTION_IDS - 1))) == ["fail"]


def test_notifications() -> None:
    assert levels(server.judge_notification(None, 0.0, 5.0)) == ["fail"]
    assert levels(server.judge_notification(0.001, 0.5, 5.0)) == ["warn"]
    assert "full" in server.judge_notification(None, 1.0, 5.0)[0].what
    assert levels(server.judge_notification(0.001, 0.0, 5.0)) == ["ok"]


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("SELECT 1", "SELECT 1"),
        ("ALTER ROLE a\n  PASSWORD 'it''s s3cret'; SELECT 2", "ALTER ROLE a PASSWORD '…'; SELECT 2"),
        ("SELECT 'cut off in the midd", "SELECT '…'"),
        ("DO $x$ s3cret $x$", "DO '…'"),
        ("SELECT " + "a, " * 100, "SELECT " + "a, " * 24 + "…"),
    ],
)
def test_queries_are_shown_without_their_texts(query: str, shown: str) -> None:
    assert mask_literals(query) == shown


def test_the_indexes_we_ship_are_known() -> None:
    assert {
        "job_ready",
        "job_running",
        "job_unique",
        "schedule_due",
        "job_ready_limited",
    } <= shipped_indexes()


def test_the_worst_finding_decides() -> None:
    assert worst_level([]) == Level.OK
    assert worst_level([ok("a", "b"), warn("a", "b", "c")]) == Level.WARN


def test_every_command_that_a_fix_names_exists() -> None:
    """A fix that cannot be typed is worse than none."""
    named = set()
    for module in Path(pgworkers.doctor.__file__).parent.glob("*.py"):
        text = module.read_text()
        named |= set(
            re.findall(r"pgworkers ([a-z]+)(?: ([a-z0-9]+))?", "".join(re.findall(r'"[^"\n]*"', text)))
        )
        named |= set(re.findall(r"""command\(['"]([a-z]+)(?: ([a-z0-9]+))?""", text))
    assert len(named) > 15
    ctx = click.Context(root)
    for command, below in named:
        found = root.get_command(ctx, command)
        if found is None:
            assert command in _PROSE, f"pgworkers {command}"
        elif below and isinstance(found, click.Group):
            assert below in found.commands, f"pgworkers {command} {below}"


#: Words that follow our name in sentences.
_PROSE = {"and", "has", "job", "refuses", "that"}


def test_jobs_that_run_as_root_are_a_warning() -> None:
    assert levels(machine.check_account(MachineFacts(pid=7, is_master=True, is_root=True))) == ["warn"]
    assert levels(machine.check_account(MachineFacts(pid=7, is_master=True))) == ["ok"]
    assert levels(machine.check_account(MachineFacts(pid=7, is_master=False, is_root=True))) == ["skip"]
    (finding,) = machine.check_account(MachineFacts(pid=7, is_master=True, is_root=True))
    assert "User=" in finding.fix[0]


def test_core_dumps_are_a_warning() -> None:
    for none in (0, 1):  # a host sets a limit of one byte
        assert levels(machine.check_core_dumps(MachineFacts(pid=7, is_master=True, max_core_bytes=none))) == [
            "ok"
        ]
    assert levels(machine.check_core_dumps(MachineFacts(pid=7, is_master=False, max_core_bytes=None))) == [
        "skip"
    ]
    for cores, size in ((None, "of any size"), (1 << 20, "of up to 1MB")):
        (finding,) = machine.check_core_dumps(
            MachineFacts(pid=7, is_master=True, max_core_bytes=cores, core_pattern="|/x %p")
        )
        assert finding.level == "warn"
        assert finding.fix[0].split()[0] == "LimitCORE=0"
        assert size in finding.what
        assert "|/x %p" in finding.what


@pytest.mark.parametrize(("soft", "cores"), [("0", 0), ("unlimited", None), ("1048576", 1 << 20)])
def test_root_and_core_limits_are_read(
    tree: Path, monkeypatch: pytest.MonkeyPatch, soft: str, cores: int | None
) -> None:
    proc = tree / "proc"
    with (proc / "70" / "limits").open("a") as limits:
        limits.write(f"Max core file size        {soft:<21}unlimited            bytes     \n")
    monkeypatch.setattr(MasterProcess, "effective_uid", 0)
    (proc / "sys" / "kernel").mkdir(parents=True)
    (proc / "sys" / "kernel" / "core_pattern").write_text("core\n")
    found = look(tree)
    assert (found.max_core_bytes, found.core_pattern, found.is_root) == (cores, "core", True)
    monkeypatch.setattr(MasterProcess, "effective_uid", 1000)
    assert not look(tree).is_root


@pytest.mark.parametrize(
    ("address", "encrypted", "sslmode", "level"),
    [
        ("", False, "prefer", "ok"),
        ("127.0.0.1", False, "disable", "ok"),
        ("127.9.9.9", False, "disable", "ok"),
        ("::1", False, "prefer", "ok"),
        ("10.0.0.5", False, "prefer", "warn"),
        ("fd00::5", False, "allow", "warn"),
        ("10.0.0.5", True, "require", "warn"),
        ("10.0.0.5", True, "verify-ca", "warn"),
        ("10.0.0.5", True, "verify-full", "ok"),
    ],
)
def test_the_way_to_another_machine_is_encrypted_and_verified(
    address: str, encrypted: bool, sslmode: str, level: str
) -> None:
    (finding,) = server.check_encryption([server.ConnectionSecurity(address, encrypted, sslmode)])
    assert finding.level == level
    if level == "warn":
        assert "verify-full" in finding.fix[0]


def test_each_way_to_the_database_is_judged() -> None:
    pooled, direct = (
        server.ConnectionSecurity("10.0.0.5", True, "verify-full"),
        server.ConnectionSecurity("10.0.0.6", False, "prefer"),
    )
    (finding,) = server.check_encryption([pooled, direct])
    assert "10.0.0.6 is not encrypted" in finding.what
