"""Facts and checks of this machine: limits of a process, its cgroup and its service manager.

`read_machine` reads and changes nothing. The checks are pure. Two facts are read from files because psutil does not have
them: it does not read cgroups, and its limits come from prlimit(2), which refuses a process of another user.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from pgworkers.doctor.findings import Finding, fail, ok, skip, warn
from pgworkers.units import format_duration, format_size

CGROUP_ROOT = Path("/sys/fs/cgroup")
PROC_ROOT = Path("/proc")
#: How long systemctl may take.
SYSTEMCTL_TIMEOUT_SECONDS = 2.0
_SYSTEMD_PROPERTIES = ("TimeoutStopUSec", "KillMode", "OOMPolicy", "TasksMax", "TasksCurrent")
_SYSTEMD_TIME_UNITS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
}


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Facts about a master of this machine, or about this process if there is none."""

    pid: int
    is_master: bool
    max_open_files: int | None = None  # soft limits; None: unlimited or not readable
    max_processes: int | None = None
    max_core_bytes: int | None = 0  # bytes of a core dump; None: unlimited
    core_pattern: str = ""  # where the kernel writes one
    is_root: bool = False  # runs as root
    pids_left: int | None = None  # in its cgroup
    oom_group_file: str = ""  # the file that says 1
    is_oom_group_readable: bool = False  # such a file could be read
    is_kubernetes: bool = False
    systemd_unit: str = ""  # of systemd
    stop_timeout_seconds: float | None = (
        None  # seconds from SIGTERM to SIGKILL, as systemd says; inf: it waits for ever
    )
    kill_mode: str = ""
    oom_policy: str = ""


def read_machine(
    pid: int | None,
    environ: Mapping[str, str] | None = None,
    *,
    proc: Path = PROC_ROOT,
    cgroups: Path = CGROUP_ROOT,
    systemctl: str | None = None,
) -> MachineFacts:
    """Read the facts of the master with this pid, or of this process."""
    environ = os.environ if environ is None else environ
    of = os.getpid() if pid is None else pid
    places = _cgroup_directories(_read_file(proc / str(of) / "cgroup"), cgroups)
    flags = [(place / "memory.oom.group", _read_file(place / "memory.oom.group").strip()) for place in places]
    said_limits = _read_file(proc / str(of) / "limits")
    limits = _soft_limits(said_limits)
    unit = systemd_unit_of(_read_file(proc / str(of) / "cgroup"))
    properties = _systemd_properties(unit, systemctl or shutil.which("systemctl")) if unit else {}
    return MachineFacts(
        pid=of,
        is_master=pid is not None,
        max_open_files=limits.get("Max open files"),
        max_processes=limits.get("Max processes"),
        max_core_bytes=limits.get("Max core file size", None if "Max core file size" in said_limits else 0),
        core_pattern=_read_file(proc / "sys/kernel/core_pattern").strip(),
        is_root=_is_root(of),
        pids_left=_pids_left(places),
        oom_group_file=next((str(path) for path, value in flags if value == "1"), ""),
        is_oom_group_readable=any(value for _, value in flags),
        is_kubernetes="KUBERNETES_SERVICE_HOST" in environ,
        systemd_unit=unit,
        stop_timeout_seconds=parse_systemd_time(properties.get("TimeoutStopUSec", "")),
        kill_mode=properties.get("KillMode", ""),
        oom_policy=properties.get("OOMPolicy", ""),
    )


def is_master(pid: int) -> bool:
    """True if this process of this machine is a master, by its title."""
    try:
        return " ".join(psutil.Process(pid).cmdline()).startswith("pgworkers: master")
    except psutil.Error:
        return False


def systemd_unit_of(cgroup: str) -> str:
    """The systemd service that a /proc/PID/cgroup names, or ''. A user's session is none."""
    for line in cgroup.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers in ("", "name=systemd"):
            for part in reversed(path.split("/")):
                if part.endswith(".service") and not part.startswith("user@"):
                    return part
    return ""


def parse_systemd_time(text: str) -> float | None:
    """Seconds of `1min 30s`, as systemctl writes it; None if it is empty or unknown."""
    if not text:
        return None
    if text == "infinity":
        return float("inf")
    total = 0.0
    for part in text.split():
        number = part.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = part[len(number) :]
        try:
            total += float(number) * _SYSTEMD_TIME_UNITS[unit or "us"]
        except (ValueError, KeyError):
            return None
    return total


def _systemd_properties(unit: str, systemctl: str | None) -> dict[str, str]:
    if systemctl is None:
        return {}
    argv = [systemctl, "show", "--no-pager", f"--property={','.join(_SYSTEMD_PROPERTIES)}", "--", unit]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=SYSTEMCTL_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    pairs = (line.partition("=") for line in done.stdout.splitlines())
    return {name: value for name, _, value in pairs if value} if done.returncode == 0 else {}


def _cgroup_directories(cgroup: str, root: Path) -> list[Path]:
    """The directories of a process in the unified hierarchy, the closest first; in a container its path is hidden."""
    for line in cgroup.splitlines():
        number, _, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            here = root / path.strip("/")
            ours = [place for place in (here, *here.parents) if place == root or root in place.parents]
            return ours if here.is_dir() else [root]
    return []


def _pids_left(places: list[Path]) -> int | None:
    left = []
    for place in places:
        most, now = _read_file(place / "pids.max").strip(), _read_file(place / "pids.current").strip()
        if most.isdecimal() and now.isdecimal():
            left.append(int(most) - int(now))
    return min(left, default=None)


def _soft_limits(text: str) -> dict[str, int]:
    """Soft limits by name. Without /proc, only our own limit of open files."""
    found = {}
    for line in text.splitlines():
        name, values = line[:26].strip(), line[26:].split()
        if values and values[0].isdecimal():
            found[name] = int(values[0])
    if not text:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if soft != resource.RLIM_INFINITY:
            found["Max open files"] = soft
    return found


def _is_root(pid: int) -> bool:
    """True if the effective user id of the process is 0."""
    try:
        return bool(psutil.Process(pid).uids().effective == 0)
    except psutil.Error:
        return False


def _read_file(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


#: What a master needs besides its workers: connections, HTTP clients, pipes.
MASTER_OPEN_FILES = 200
OPEN_FILES_PER_WORKER = 4


def check_limits(machine: MachineFacts, workers: int) -> list[Finding]:
    """Compare the limits of open files and processes with what this many workers need."""
    check, found = "limits", []
    whose = f"the master (pid {machine.pid})" if machine.is_master else "this shell"
    files, tasks = MASTER_OPEN_FILES + OPEN_FILES_PER_WORKER * workers, 2 * workers + 8
    raised = 1 << max(10, (2 * files).bit_length())
    if machine.max_open_files is not None and machine.max_open_files < files:
        what = f"{whose} can open {machine.max_open_files} files, but {workers} workers need {files}"
        why = "without a free descriptor a worker cannot be forked, a client not be answered, a log not be opened"
        found.append(
            warn(check, what, why, f"ulimit -n {raised}", f"LimitNOFILE={raised} in the systemd unit")
        )
    if machine.max_processes is not None and machine.max_processes < tasks:
        what = f"{whose} may have {machine.max_processes} processes; {workers} workers and their threads want {tasks}"
        why = "a fork that is refused looks like a crash loop of its queue"
        found.append(
            warn(check, what, why, f"ulimit -u {max(4096, 4 * tasks)}", "LimitNPROC=infinity in the unit")
        )
    if machine.pids_left is not None and machine.pids_left < tasks:
        what = f"the cgroup of {whose} has room for {machine.pids_left} more processes; {tasks} may be wanted"
        why = "a fork that is refused looks like a crash loop of its queue"
        found.append(warn(check, what, why, "TasksMax=infinity in the systemd unit, or a higher pids limit"))
    properties = "unlimited" if machine.max_open_files is None else str(machine.max_open_files)
    return found or [ok(check, f"{whose}: {properties} open files, enough for {workers} workers")]


def check_oom_group(machine: MachineFacts) -> list[Finding]:
    check = "oom group"
    if machine.oom_group_file:
        return [
            fail(
                check,
                f"{machine.oom_group_file} is 1",
                "one job that is out of memory takes the whole tree with it: every job of this host is lost at once, "
                "instead of one attempt of one job",
                "OOMPolicy=continue in the systemd unit (pgworkers export systemd)",
                "singleProcessOOMKill: true in the kubelet's configuration (Kubernetes 1.32 or newer)",
                f"echo 0 > {machine.oom_group_file}",
            )
        ]
    if machine.oom_policy in ("stop", "kill"):
        return [
            warn(
                check,
                f"{machine.systemd_unit} has OOMPolicy={machine.oom_policy}",
                "when the kernel takes one worker, systemd ends the whole host",
                "OOMPolicy=continue in the unit (pgworkers export systemd)",
            )
        ]
    if not machine.is_oom_group_readable:
        return [skip(check, "no memory.oom.group to be read here (cgroup v1, or not in a cgroup)")]
    return [ok(check, "memory.oom.group is 0: the kernel takes one worker, not the host")]


def check_account(machine: MachineFacts) -> list[Finding]:
    """Warn if jobs run as root."""
    check = "account"
    if not machine.is_master:
        return [skip(check, "no host of this cluster runs here: whether jobs run as root was not looked at")]
    if not machine.is_root:
        return [ok(check, f"the master (pid {machine.pid}) and its jobs do not run as root")]
    return [
        warn(
            check,
            f"the master (pid {machine.pid}) runs as root, and so does every job",
            "a task with a bug, or an argument that a handler trusts, can do anything to this machine",
            "User=NAME in the systemd unit (pgworkers export systemd --user NAME)",
            "USER 10001 in the Dockerfile (pgworkers export docker), runAsNonRoot: true in Kubernetes",
        )
    ]


def check_core_dumps(machine: MachineFacts) -> list[Finding]:
    """Warn if a crash can write arguments and passwords to a disk."""
    check = "core dumps"
    if not machine.is_master:
        return [skip(check, "no host of this cluster runs here: its core limit was not looked at")]
    if machine.max_core_bytes in (0, 1):  # a host sets 1 byte for "none": see linux/process_limits.py
        return [ok(check, f"off for the master (pid {machine.pid})")]
    limit = (
        "of any size" if machine.max_core_bytes is None else f"of up to {format_size(machine.max_core_bytes)}"
    )
    where = f" ({machine.core_pattern})" if machine.core_pattern else ""
    return [
        warn(
            check,
            f"the master (pid {machine.pid}) may write core dumps {limit}{where}",
            "a dump holds the memory of the process: arguments of jobs, and the password of the database",
            "LimitCORE=0 in the systemd unit (pgworkers export systemd)",
            "docker run --ulimit core=0, or ulimit -c 0 before pgworkers run",
            "remove core_dump_limit (PGWORKERS_CORE_DUMP_LIMIT): without it a host allows none",
        )
    ]


def check_stop_timeout(machine: MachineFacts, configured: float, needed: float) -> list[Finding]:
    """Compare the time that a service manager allows with what a stop may take.

    `configured` is the setting service_stop_timeout; 0: not set.
    """
    check = "drain"
    mode = machine.kill_mode
    found: list[Finding] = []
    if mode and mode not in ("mixed", "process"):
        why = "systemd sends SIGTERM to every worker, not only to the master: running jobs are cut instead of drained"
        found = [
            warn(
                check,
                f"{machine.systemd_unit} has KillMode={mode}",
                why,
                "KillMode=mixed in the unit (pgworkers export systemd)",
            )
        ]
    given = configured or machine.stop_timeout_seconds
    who = "service_stop_timeout says" if configured else f"{machine.systemd_unit} has TimeoutStopSec"
    duration = format_duration(needed)
    if given is None:
        if machine.is_kubernetes:
            why = "a container cannot see its terminationGracePeriodSeconds in Kubernetes"
            return [
                *found,
                skip(
                    check,
                    why,
                    f"set PGWORKERS_SERVICE_STOP_TIMEOUT to it; {duration} are needed (pgworkers export k8s)",
                ),
            ]
        return [*found, skip(check, f"no service manager is known; a stop may take {duration}")]
    if given < needed:
        return [
            *found,
            warn(
                check,
                f"{who} {format_duration(given)}; a stop may take {duration} (drain, stop graces, writing what is left)",
                "jobs that are still running are killed with the host: they come back only after the lease, as host_lost, "
                "and cost an attempt",
                f"TimeoutStopSec={needed:.0f} (systemd), terminationGracePeriodSeconds: {needed:.0f} (Kubernetes)",
                f"or shorten the drain by {format_duration(needed - given)}: PGWORKERS_DRAIN_TIMEOUT",
            ),
        ]
    return found or [ok(check, f"{who} {_show_stop_timeout(given)}; a stop takes {duration} at most")]


def _show_stop_timeout(seconds: float) -> str:
    return "no limit" if seconds == float("inf") else format_duration(seconds)
