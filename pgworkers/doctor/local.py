"""Judgements of this machine. Pure."""

from __future__ import annotations

from pgworkers.clock import show_seconds, show_size
from pgworkers.doctor.finding import Finding, fail, ok, skip, warn
from pgworkers.doctor.machine import Machine

#: What a master needs besides its workers: connections, HTTP clients, pipes.
FILES_BESIDES = 200
FILES_OF_A_WORKER = 4


def limits(machine: Machine, workers: int) -> list[Finding]:
    """Open files and processes against what so many workers need."""
    check, found = "limits", []
    whose = f"the master (pid {machine.pid})" if machine.master else "this shell"
    files, tasks = FILES_BESIDES + FILES_OF_A_WORKER * workers, 2 * workers + 8
    raised = 1 << max(10, (2 * files).bit_length())
    if machine.files is not None and machine.files < files:
        what = f"{whose} may open {machine.files} files; with {workers} workers it wants {files}"
        why = "without a free descriptor a worker cannot be forked, a client not be answered, a log not be opened"
        found.append(
            warn(check, what, why, f"ulimit -n {raised}", f"LimitNOFILE={raised} in the systemd unit")
        )
    if machine.processes is not None and machine.processes < tasks:
        what = f"{whose} may have {machine.processes} processes; {workers} workers and their threads want {tasks}"
        why = "a fork that is refused looks like a crash loop of its queue"
        found.append(
            warn(check, what, why, f"ulimit -u {max(4096, 4 * tasks)}", "LimitNPROC=infinity in the unit")
        )
    if machine.pids_left is not None and machine.pids_left < tasks:
        what = f"the cgroup of {whose} has room for {machine.pids_left} more processes; {tasks} may be wanted"
        why = "a fork that is refused looks like a crash loop of its queue"
        found.append(warn(check, what, why, "TasksMax=infinity in the systemd unit, or a higher pids limit"))
    said = "unlimited" if machine.files is None else str(machine.files)
    return found or [ok(check, f"{whose}: {said} open files, enough for {workers} workers")]


def oom_group(machine: Machine) -> list[Finding]:
    check = "oom group"
    if machine.oom_group:
        return [
            fail(
                check,
                f"{machine.oom_group} is 1",
                "one job that is out of memory takes the whole tree with it: every job of this host is lost at once, "
                "instead of one attempt of one job",
                "OOMPolicy=continue in the systemd unit (pgworkers export systemd)",
                "singleProcessOOMKill: true in the kubelet's configuration (Kubernetes 1.32 or newer)",
                f"echo 0 > {machine.oom_group}",
            )
        ]
    if machine.oom_policy in ("stop", "kill"):
        return [
            warn(
                check,
                f"{machine.unit} has OOMPolicy={machine.oom_policy}",
                "when the kernel takes one worker, systemd ends the whole host",
                "OOMPolicy=continue in the unit (pgworkers export systemd)",
            )
        ]
    if not machine.oom_known:
        return [skip(check, "no memory.oom.group to be read here (cgroup v1, or not in a cgroup)")]
    return [ok(check, "memory.oom.group is 0: the kernel takes one worker, not the host")]


def account(machine: Machine) -> list[Finding]:
    """Do jobs run as root?"""
    check = "account"
    if not machine.master:
        return [skip(check, "no host of this cluster runs here: whether jobs run as root was not looked at")]
    if not machine.root:
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


def core_dumps(machine: Machine) -> list[Finding]:
    """Does a crash write arguments and passwords to a disk?"""
    check = "core dumps"
    if not machine.master:
        return [skip(check, "no host of this cluster runs here: its core limit was not looked at")]
    if machine.cores in (0, 1):  # a host sets 1 byte for "none": see process/limits.py
        return [ok(check, f"off for the master (pid {machine.pid})")]
    limit = "of any size" if machine.cores is None else f"of up to {show_size(machine.cores)}"
    where = f" ({machine.core_pattern})" if machine.core_pattern else ""
    return [
        warn(
            check,
            f"the master (pid {machine.pid}) may write core dumps {limit}{where}",
            "a dump holds the memory of the process: arguments of jobs, and the password of the database",
            "LimitCORE=0 in the systemd unit (pgworkers export systemd)",
            "docker run --ulimit core=0, or ulimit -c 0 before pgworkers run",
            "remove core_limit (PGWORKERS_CORE_LIMIT): without it a host allows none",
        )
    ]


def stopping(machine: Machine, told: float, needed: float) -> list[Finding]:
    """The time a service manager gives against what a stop may take. `told`: by the setting stop_timeout, 0: nothing."""
    check = "drain"
    mode = machine.kill_mode
    found: list[Finding] = []
    if mode and mode not in ("mixed", "process"):
        why = "systemd sends SIGTERM to every worker, not only to the master: running jobs are cut instead of drained"
        found = [
            warn(
                check,
                f"{machine.unit} has KillMode={mode}",
                why,
                "KillMode=mixed in the unit (pgworkers export systemd)",
            )
        ]
    given = told or machine.stop
    who = "stop_timeout says" if told else f"{machine.unit} has TimeoutStopSec"
    wish = show_seconds(needed)
    if given is None:
        if machine.kubernetes:
            why = "Kubernetes does not tell a container its terminationGracePeriodSeconds"
            return [
                *found,
                skip(
                    check, why, f"set PGWORKERS_STOP_TIMEOUT to it; {wish} are needed (pgworkers export k8s)"
                ),
            ]
        return [*found, skip(check, f"no service manager is known; a stop may take {wish}")]
    if given < needed:
        return [
            *found,
            warn(
                check,
                f"{who} {show_seconds(given)}; a stop may take {wish} (drain, stop graces, writing what is left)",
                "jobs that are still running are killed with the host: they come back only after the lease, as host_lost, "
                "and cost an attempt",
                f"TimeoutStopSec={needed:.0f} (systemd), terminationGracePeriodSeconds: {needed:.0f} (Kubernetes)",
                f"or shorten the drain by {show_seconds(needed - given)}: PGWORKERS_DRAIN",
            ),
        ]
    return found or [ok(check, f"{who} {_shown(given)}; a stop takes {wish} at most")]


def _shown(seconds: float) -> str:
    return "no limit" if seconds == float("inf") else show_seconds(seconds)
