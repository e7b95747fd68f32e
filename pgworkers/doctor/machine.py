"""The facts of this machine: limits of a process, its cgroup, its service manager. Reads only."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
#: How long systemctl may take.
PATIENCE = 2.0
_WANTED = ("TimeoutStopUSec", "KillMode", "OOMPolicy", "TasksMax", "TasksCurrent")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known of the process that was looked at: a master of this machine, else ourselves."""

    pid: int
    master: bool
    files: int | None = None  # soft limits; None: unlimited or not readable
    processes: int | None = None
    cores: int | None = 0  # bytes of a core dump; None: unlimited
    core_pattern: str = ""  # where the kernel writes one
    root: bool = False  # runs as root
    pids_left: int | None = None  # in its cgroup
    oom_group: str = ""  # the file that says 1
    oom_known: bool = False  # such a file could be read
    kubernetes: bool = False
    unit: str = ""  # of systemd
    stop: float | None = None  # seconds from SIGTERM to SIGKILL, as systemd says; inf: it waits for ever
    kill_mode: str = ""
    oom_policy: str = ""


def look(
    pid: int | None,
    environ: Mapping[str, str] | None = None,
    *,
    proc: Path = PROC,
    cgroups: Path = CGROUPS,
    systemctl: str | None = None,
) -> Machine:
    """Look at the master with this pid, or at ourselves."""
    environ = os.environ if environ is None else environ
    of = os.getpid() if pid is None else pid
    places = _cgroup_places(_read(proc / str(of) / "cgroup"), cgroups)
    flags = [(place / "memory.oom.group", _read(place / "memory.oom.group").strip()) for place in places]
    said_limits = _read(proc / str(of) / "limits")
    limits = _limits(said_limits)
    unit = unit_of(_read(proc / str(of) / "cgroup"))
    said = _ask_systemd(unit, systemctl or shutil.which("systemctl")) if unit else {}
    return Machine(
        pid=of,
        master=pid is not None,
        files=limits.get("Max open files"),
        processes=limits.get("Max processes"),
        cores=limits.get("Max core file size", None if "Max core file size" in said_limits else 0),
        core_pattern=_read(proc / "sys/kernel/core_pattern").strip(),
        root=_is_root(_read(proc / str(of) / "status")),
        pids_left=_pids_left(places),
        oom_group=next((str(path) for path, value in flags if value == "1"), ""),
        oom_known=any(value for _, value in flags),
        kubernetes="KUBERNETES_SERVICE_HOST" in environ,
        unit=unit,
        stop=span(said.get("TimeoutStopUSec", "")),
        kill_mode=said.get("KillMode", ""),
        oom_policy=said.get("OOMPolicy", ""),
    )


def is_master(pid: int, *, proc: Path = PROC) -> bool:
    """Is this process of this machine a master?"""
    return _read(proc / str(pid) / "cmdline").startswith("pgworkers: master")


def unit_of(cgroup: str) -> str:
    """The systemd service that a /proc/PID/cgroup names, or ''. A user's session is none."""
    for line in cgroup.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers in ("", "name=systemd"):
            for part in reversed(path.split("/")):
                if part.endswith(".service") and not part.startswith("user@"):
                    return part
    return ""


def span(text: str) -> float | None:
    """`1min 30s`, as systemctl writes it, in seconds; None: it says nothing."""
    if not text:
        return None
    if text == "infinity":
        return float("inf")
    total = 0.0
    for part in text.split():
        number = part.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = part[len(number) :]
        try:
            total += float(number) * _UNITS[unit or "us"]
        except (ValueError, KeyError):
            return None
    return total


def _ask_systemd(unit: str, systemctl: str | None) -> dict[str, str]:
    if systemctl is None:
        return {}
    argv = [systemctl, "show", "--no-pager", f"--property={','.join(_WANTED)}", "--", unit]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    pairs = (line.partition("=") for line in done.stdout.splitlines())
    return {name: value for name, _, value in pairs if value} if done.returncode == 0 else {}


def _cgroup_places(cgroup: str, root: Path) -> list[Path]:
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
        most, now = _read(place / "pids.max").strip(), _read(place / "pids.current").strip()
        if most.isdecimal() and now.isdecimal():
            left.append(int(most) - int(now))
    return min(left, default=None)


def _limits(text: str) -> dict[str, int]:
    """Soft limits by name. Without /proc, our own."""
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


def _is_root(status: str) -> bool:
    """Has a process the effective user id 0, by its /proc/PID/status?"""
    for line in status.splitlines():
        name, *ids = line.split()
        if name == "Uid:" and len(ids) > 1:
            return ids[1] == "0"
    return False


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
