"""All settings. Each is declared once, with its kind, its default and one line of documentation.

Everything else is derived: the environment variable is `PGWORKERS_` and the name in capitals, and the reference page and
`pgworkers config show` read the declarations. A value comes from the first of these that has it: the command line, the
environment, the app (`App(drain="1m")`), the default. DATABASE_URL is part of the environment, so it takes precedence over
the app's dsn.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from pgworkers.bounds import MAX_ARGS_BYTES, MAX_RESULT_BYTES
from pgworkers.errors import UsageError
from pgworkers.units import format_duration, format_size, parse_duration, parse_size

ENVIRONMENT_PREFIX = "PGWORKERS_"
MAX_DSN_FILE_BYTES = 8192  #: the longest address that is read from a file
_BOOLEAN_WORDS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


def _duration(default: float, doc: str) -> Any:
    return field(default=default, metadata={"kind": "duration", "doc": doc})


def _size(default: int, doc: str) -> Any:
    return field(default=default, metadata={"kind": "size", "doc": doc})


def _count(default: int, doc: str) -> Any:
    return field(default=default, metadata={"kind": "count", "doc": doc})


def _flag(default: bool, doc: str) -> Any:
    return field(default=default, metadata={"kind": "flag", "doc": doc})


def _text(default: str, doc: str, *, secret: bool = False) -> Any:
    # A handler that prints its settings must not print the password.
    return field(default=default, repr=not secret, metadata={"kind": "text", "doc": doc, "secret": secret})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one process. Durations are seconds, sizes are bytes."""

    dsn: str = _text(
        "",
        "Postgres to use. DATABASE_URL counts too; both win over the app's dsn. Without them: PG* variables, then the "
        "embedded server.",
        secret=True,
    )
    dsn_file: str = _text(
        "", "A file whose only line is the dsn, instead of dsn: it shows in no list of processes."
    )
    direct_dsn: str = _text(
        "",
        "The direct address of the same database, for the master, when dsn goes through a pooler.",
        secret=True,
    )
    inherit: str = _text(
        "",
        "Variables that handlers get although they hold the database's password (PGWORKERS_DSN, PGWORKERS_DIRECT_DSN, "
        "DATABASE_URL, PGPASSWORD), by name, with commas; read from the environment only.",
    )
    schema: str = _text("pgworkers", "The schema that holds the tables.")
    home: str = _text(
        "", "Where the embedded server keeps its data; by default .pgworkers beside the config file."
    )

    renew: float = _duration(5.0, "How often a host renews its row, and with it the lease of all its jobs.")
    lease: float = _duration(30.0, "A host that has not renewed for this long has lost its jobs.")
    rescue: float = _duration(5.0, "How often jobs of lost hosts are looked for.")
    leader_retry: float = _duration(2.0, "How often a host tries to lead, or renews its term while it leads.")
    prune: float = _duration(60.0, "How often finished jobs past their queue's retention are deleted.")
    promote: float = _duration(2.0, "How often the leader looks for what is due when nobody told it.")
    depth: float = _duration(
        5.0,
        "How often the leader counts what waits in each queue, for the gauges; a slow count rests 50 times as long.",
    )
    poll: float = _duration(2.0, "How often a queue is looked at when no notification arrives.")
    upkeep: float = _duration(3600.0, "How often partitions are made ahead and old ones dropped.")
    statement_timeout: float = _duration(5.0, "The longest any control statement may take.")
    connect_timeout: float = _duration(5.0, "The longest an attempt to connect may take.")
    connect_wait: float = _duration(
        30.0, "How long `run` waits at its start for a database that refuses connections."
    )
    tcp_timeout: float = _duration(
        10.0, "After this long without an acknowledgement a connection counts as cut."
    )
    reconnect: float = _duration(2.0, "The longest pause between two attempts to reconnect.")

    drain: float = _duration(25.0, "How long running jobs may go on after SIGTERM.")
    ask_grace: float = _duration(5.0, "Stop ladder: from asking (ctx.cancelled) to raising JobStopped.")
    raise_grace: float = _duration(
        5.0, "Stop ladder: from raising JobStopped to dumping the stacks and SIGKILL."
    )
    stop_timeout: float = _duration(
        0.0,
        "How long the service manager waits from SIGTERM to SIGKILL (terminationGracePeriodSeconds, stop_grace_period); "
        "0: not told. `doctor` compares it with the drain.",
    )
    heartbeat: float = _duration(
        1.0, "How often a worker beats, and how often progress and checkpoint are flushed."
    )
    patience: float = _duration(
        10.0, "A supervisor that has said nothing for this long is killed and replaced."
    )
    boot: float = _duration(60.0, "How long importing the app may take.")
    restart_intensity: int = _count(
        5, "Starts that may fail within restart_period before the back-off grows."
    )
    restart_period: float = _duration(30.0, "The period of restart_intensity.")
    restart_cap: float = _duration(30.0, "The longest pause before a failing process is started again.")

    max_workers: int = _count(64, "The most workers one queue may have on one host.")
    claim_batch: int = _count(500, "The most jobs claimed in one statement.")
    finish_batch: int = _count(500, "The most jobs finished in one statement.")
    ageing: float = _duration(
        60.0,
        "A job that has been ready for this long is taken before higher priorities by one claim in ten; 0: off.",
    )
    throttle: float = _duration(60.0, "How long a queue cools down when a handler raises Throttled.")
    throttle_growth: int = _count(
        2, "How many times longer each cool-down is than the one before; 1: all alike."
    )
    throttle_max: float = _duration(1800.0, "The longest cool-down of a queue.")
    throttle_grace: float = _duration(
        120.0, "After this long without a throttle one is forgotten, or by a success all of them."
    )
    payload_limit: int = _size(1 << 20, "The largest JSON text of a job's arguments.")
    result_limit: int = _size(16 << 10, "The largest JSON text of a result.")
    error_limit: int = _size(16 << 10, "The longest error text that is kept.")
    output_limit: int = _size(16 << 10, "How much of the end of a handler's output is kept.")
    retention: float = _duration(
        14 * 86400.0, "How long finished jobs are kept, unless their queue says otherwise."
    )
    retention_dead: float = _duration(
        90 * 86400.0, "How long dead jobs and their attempts are kept at least."
    )
    core_limit: int = _size(
        0,
        "The largest core dump of any process here; 0: none. It holds arguments, results and the database's password.",
    )

    metrics: str = _text(
        "127.0.0.1:9911",
        "Address of /metrics, /livez and /readyz, or off. Where the default is taken, the next free port is.",
    )
    metrics_hosts: str = _text(
        "",
        "Names, with commas, that the metrics port answers for besides IP addresses, localhost and this machine's name; "
        "*: any.",
    )
    log: str = _text("text", "How log lines look: text or json.")
    log_args: bool = _flag(True, "Whether the log lines of a host show the arguments of jobs.")
    log_rate: int = _count(
        200,
        "Lines of successful jobs per second before they are summed up, failures five times as many; 0: all.",
    )
    log_buffer: int = _size(
        8 << 20,
        "Log lines that may wait for a reader who stands still; what does not fit is dropped and counted.",
    )
    log_level: str = _text(
        "info", "The least level of handlers' log records that is shown, where the app configures no logging."
    )
    label: str = _text(
        "", "A label for people: shown in the master's title, hosts, workers, top and metrics."
    )

    def validate(self) -> None:
        """Raise UsageError for values that cannot work, alone or together."""
        needed = 1.5 * (3 * self.renew + self.statement_timeout)
        if needed > self.lease:
            raise UsageError(
                f"lease={format_duration(self.lease)} is too short: three renewals ({format_duration(self.renew)} each) "
                f"and one statement timeout ({format_duration(self.statement_timeout)}) must fit into two thirds of it, "
                f"where exclusive jobs are stopped; raise lease to {format_duration(needed)} or lower renew"
            )
        check_schema_name(self.schema)
        if self.log not in ("text", "json"):
            raise UsageError(f"log={self.log!r}: use text or json")
        if self.log_level not in ("debug", "info", "warning", "error", "critical"):
            raise UsageError(f"log_level={self.log_level!r}: use debug, info, warning, error or critical")
        if self.log_rate < 0:
            raise UsageError(
                f"log_rate={self.log_rate}: use 0 for every line, or a number of lines per second"
            )
        for name, most in (("payload_limit", MAX_ARGS_BYTES), ("result_limit", MAX_RESULT_BYTES)):
            if getattr(self, name) > most:
                raise UsageError(
                    f"{name}={format_size(getattr(self, name))}: use at most {format_size(most)}"
                )
        if not 1 <= self.max_workers <= 1024:
            raise UsageError(f"max_workers={self.max_workers}: use a number from 1 to 1024")
        for name in (
            "renew",
            "poll",
            "promote",
            "rescue",
            "statement_timeout",
            "connect_timeout",
            "heartbeat",
        ):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be longer than 0")
        for name in ("claim_batch", "finish_batch", "restart_intensity", "throttle_growth"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1")


@cache
def _defaults() -> dict[str, Any]:
    return {f.name: f.default for f in fields(Settings)}


def check_schema_name(name: str) -> None:
    """Raise UsageError for a schema that others use too, or whose name does not work everywhere."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,39}", name):
        raise UsageError(f"schema={name!r}: use lower-case letters, digits and _, at most 40 characters")
    if name in ("public", "information_schema") or name.startswith("pg_"):
        raise UsageError(
            f"schema={name!r}: pgworkers needs a schema of its own, and this one belongs to others; use another name"
        )


def setting_names() -> list[str]:
    return [f.name for f in fields(Settings)]


def parse_setting(name: str, value: Any) -> Any:
    """Return a value as the kind of its setting, or raise a UsageError that names the setting."""
    declared = {f.name: f for f in fields(Settings)}.get(name)
    if declared is None:
        raise UsageError(f"there is no setting {name!r}; `pgworkers config show` lists them")
    match declared.metadata["kind"]:
        case "duration":
            return parse_duration(value, what=name)
        case "size":
            return parse_size(value, what=name)
        case "count":
            try:
                return int(value)
            except (TypeError, ValueError):
                raise UsageError(f"{name}: {value!r} is not a whole number") from None
        case "flag":
            found = _BOOLEAN_WORDS.get(str(value).lower())
            if found is None:
                raise UsageError(f"{name}: {value!r} is neither true nor false")
            return found
        case _:
            return str(value)


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings, and the source of each value."""

    settings: Settings
    sources: dict[str, str]


def load_settings(
    flags: Mapping[str, Any] | None = None,
    app: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedSettings:
    """Load the settings from the command line, the environment, the app and the defaults, in this order."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    files: dict[str, str] = {}  # the source of a dsn -> the file that it is read from
    for given in (
        {name: ("app", value) for name, value in (app or {}).items()},
        _from_environment(environ),
        {name: ("command line", value) for name, value in (flags or {}).items() if value is not None},
    ):
        for name, (source, value) in given.items():
            values[name], sources[name] = parse_setting(name, value), source
        if "dsn_file" in given and given["dsn_file"][1]:
            source, path = given["dsn_file"]
            if given.get("dsn", ("", ""))[0] not in ("", "DATABASE_URL"):
                raise UsageError("both dsn and dsn_file are given; keep one of them")
            values["dsn"], sources["dsn"], files[source] = "", source, str(path)
    if sources.get("dsn") in files and not values["dsn"]:
        values["dsn"] = read_dsn_file(files[sources["dsn"]])
    settings = Settings(**values)
    settings.validate()
    return LoadedSettings(settings, {name: sources.get(name, "default") for name in setting_names()})


def load_one_setting(name: str, app: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Any:
    """Load one setting as `load_settings` would without a command line. Cheap, and it validates nothing else."""
    text = (os.environ if environ is None else environ).get(ENVIRONMENT_PREFIX + name.upper())
    if text:
        return parse_setting(name, text)
    return parse_setting(name, app[name]) if name in app else _defaults()[name]


def read_dsn_file(path: str) -> str:
    """Return the address in a file with one line. Errors do not quote it, because it holds the password."""
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            text = file.read(MAX_DSN_FILE_BYTES + 1)
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else "it is not a text file"
        raise UsageError(f"dsn_file: {path!r} cannot be read: {why}; nothing was done") from None
    text = text.strip()
    if not text or "\n" in text or len(text) > MAX_DSN_FILE_BYTES:
        raise UsageError(f"dsn_file: {path!r} must have one line, the address; nothing was done")
    return text


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {}
    if environ.get("DATABASE_URL"):
        found["dsn"] = ("DATABASE_URL", environ["DATABASE_URL"])
    for name in setting_names():
        variable = ENVIRONMENT_PREFIX + name.upper()
        if environ.get(variable):
            found[name] = (variable, environ[variable])
    return found


def format_setting(name: str, value: Any) -> str:
    """Format a value as a person writes it. Secrets are hidden."""
    declared = {f.name: f for f in fields(Settings)}[name]
    if declared.metadata.get("secret") and value:
        return "(set)"
    match declared.metadata["kind"]:
        case "duration":
            return format_duration(value)
        case "size":
            return format_size(value)
        case "flag":
            return str(value).lower()
        case _:
            return str(value)
