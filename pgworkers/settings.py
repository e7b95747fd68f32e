"""All settings. Each is declared once, with its kind, its default and its documentation.

A declaration is all that a new setting needs. Its environment variable is `PGWORKERS_` and its name in capitals. The
reference page (docs/reference/settings.md) and `pgworkers config show` are made from the declarations.

A value comes from the first of these that has it: the command line, the environment, the app
(`App(drain_timeout="1m")`), the default. DATABASE_URL is part of the environment, so it takes precedence over the app's
dsn.
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


# Each kind of setting has a function that declares it. `parse_setting` and `format_setting` read the kind.


def _duration(default: float, doc: str) -> Any:
    """Declare a setting in seconds. People write "5s", "10m", "1h" or "14d"."""
    return field(default=default, metadata={"kind": "duration", "doc": doc})


def _size(default: int, doc: str) -> Any:
    """Declare a setting in bytes. People write "16KB" or "1GB"."""
    return field(default=default, metadata={"kind": "size", "doc": doc})


def _count(default: int, doc: str) -> Any:
    return field(default=default, metadata={"kind": "count", "doc": doc})


def _flag(default: bool, doc: str) -> Any:
    return field(default=default, metadata={"kind": "flag", "doc": doc})


def _text(default: str, doc: str, *, secret: bool = False) -> Any:
    """Declare a text. A secret one is left out of the repr, so that printed settings show no password."""
    return field(default=default, repr=not secret, metadata={"kind": "text", "doc": doc, "secret": secret})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one process. Durations are seconds, sizes are bytes."""

    # The database.

    dsn: str = _text(
        "",
        "Address of the Postgres to use. DATABASE_URL works too. Both take precedence over the app's dsn. "
        "Without any of them: the PG* variables, then the embedded server.",
        secret=True,
    )
    dsn_file: str = _text(
        "",
        "File whose only line is the dsn. Use it instead of dsn to keep the password out of process lists.",
    )
    direct_dsn: str = _text(
        "",
        "Direct address of the same database, for the master, when dsn goes through a pooler.",
        secret=True,
    )
    inherited_variables: str = _text(
        "",
        "Comma-separated variables that handlers inherit although they may hold the database password "
        "(PGWORKERS_DSN, PGWORKERS_DIRECT_DSN, DATABASE_URL, PGPASSWORD). Read from the environment "
        "only.",
    )
    import_variables: str = _text(
        "",
        "Comma-separated variables of the same kind that the app may read while it is imported, and that are removed "
        "before workers start. `manage.py pgworkers` sets it. Read from the environment only.",
    )
    schema: str = _text("pgworkers", "Schema that holds the tables.")
    embedded_directory: str = _text(
        "", "Data directory of the embedded server. Default: .pgworkers in the directory of the app."
    )

    # Leases, the duties of the leader, and connections.

    renew_interval: float = _duration(
        5.0, "How often a host renews its row, and with it the lease of all its jobs."
    )
    lease_duration: float = _duration(
        30.0, "A host that has not renewed for this long loses its jobs to other hosts."
    )
    rescue_interval: float = _duration(
        5.0, "How often the leader looks for jobs of lost hosts, expired jobs and complete batches."
    )
    leadership_interval: float = _duration(
        2.0, "How often a host tries to become leader, or renews its term while it leads."
    )
    prune_interval: float = _duration(
        60.0, "How often the leader deletes finished jobs that are past their queue's retention."
    )
    result_prune_interval: float = _duration(
        3600.0, "How often the leader removes values from result_store whose job is gone."
    )
    promote_interval: float = _duration(
        2.0,
        "How often the leader looks for due jobs and schedules when no notification arrives; half as "
        "often when nothing is scheduled.",
    )
    queue_depth_interval: float = _duration(
        5.0,
        "How often the leader counts waiting jobs for the metrics. After a slow count it pauses 50 "
        "times as long as the count took.",
    )
    poll_interval: float = _duration(
        2.0,
        "How often a host looks for jobs, and a waiting client for results, when no notification arrives.",
    )
    partition_interval: float = _duration(
        3600.0, "How often the leader creates partitions ahead of time and drops old ones."
    )
    statement_timeout: float = _duration(
        5.0, "Timeout of each SQL statement that pgworkers itself sends, migrations excepted."
    )
    connect_timeout: float = _duration(5.0, "Timeout of one attempt to connect.")
    startup_connect_timeout: float = _duration(
        30.0,
        "How long `run` keeps trying at startup while the database refuses connections or a table is locked.",
    )
    tcp_timeout: float = _duration(
        10.0, "A connection is considered broken when sent data is not acknowledged for this long."
    )
    reconnect_max_delay: float = _duration(2.0, "Maximum pause between two attempts to reconnect.")

    # Processes: stopping, watching and restarting them.

    drain_timeout: float = _duration(25.0, "How long running jobs may continue after SIGTERM.")
    ask_grace: float = _duration(5.0, "Stop ladder: time from asking (ctx.cancelled) to raising JobStopped.")
    raise_grace: float = _duration(
        5.0, "Stop ladder: time from raising JobStopped to the stack dump and SIGKILL."
    )
    service_stop_timeout: float = _duration(
        0.0,
        "Time that the service manager allows from SIGTERM to SIGKILL (terminationGracePeriodSeconds, "
        "stop_grace_period). 0: unknown. `doctor` compares it with what a stop may take.",
    )
    heartbeat_interval: float = _duration(
        1.0,
        "How often a busy worker shows that it is alive and sends progress and checkpoint. Idle workers: less often.",
    )
    supervisor_timeout: float = _duration(
        10.0, "A supervisor that has sent nothing for this long is killed and replaced."
    )
    import_timeout: float = _duration(60.0, "Timeout of the import of the app.")
    report_timeout: float = _duration(
        30.0, "Timeout of the on_job_end hooks for one attempt. Then the reporter is killed and replaced."
    )
    restart_limit: int = _count(
        5, "Failed starts of a worker or supervisor within restart_period before restarts are delayed."
    )
    restart_period: float = _duration(30.0, "Period in which failed starts are counted (restart_limit).")
    restart_max_delay: float = _duration(30.0, "Maximum delay before a failing process is started again.")

    # Limits.

    max_workers: int = _count(64, "Maximum number of workers of one queue on one host.")
    claim_batch_size: int = _count(500, "Maximum number of jobs claimed by one statement.")
    finish_batch_size: int = _count(500, "Maximum number of jobs finished by one statement.")
    ageing_delay: float = _duration(
        60.0,
        "One claim in ten takes jobs that have been ready for this long before jobs of higher "
        "priority. 0: off.",
    )
    throttle_duration: float = _duration(60.0, "How long a queue pauses after a handler raised Throttled.")
    throttle_factor: int = _count(
        2, "Each throttle in a row lasts this many times as long as the one before. 1: all last equally long."
    )
    throttle_max_duration: float = _duration(1800.0, "Maximum pause of a throttled queue.")
    throttle_quiet_period: float = _duration(
        120.0, "Quiet period after which one throttle level is dropped; a success after it resets all levels."
    )
    payload_limit: int = _size(1 << 20, "Maximum size of a job's arguments as JSON.")
    result_limit: int = _size(16 << 10, "Maximum size of a result as JSON. Larger ones need result_store.")
    result_store: str = _text(
        "",
        "Where results above the limit are kept: an absolute directory that all hosts and readers share, or an fsspec URL.",
    )
    result_store_limit: int = _size(256 << 20, "Maximum size of a result in result_store as JSON.")
    error_limit: int = _size(16 << 10, "Maximum size of the error text that is kept.")
    output_limit: int = _size(
        16 << 10, "Maximum size of the kept output of a handler. The end of the output is kept."
    )
    retention: float = _duration(
        14 * 86400.0, "How long finished jobs are kept, unless their queue has its own retention."
    )
    dead_retention: float = _duration(
        90 * 86400.0,
        "Minimum time for which dead jobs and their attempts are kept, also if the retention is shorter.",
    )
    core_dump_limit: int = _size(
        0,
        "Maximum size of a core dump of any process of this host. 0: no dumps. A dump contains arguments, "
        "results and the database password.",
    )

    # Metrics and log lines.

    metrics_address: str = _text(
        "127.0.0.1:9911",
        "Address of /metrics, /livez and /readyz, or off. If the default port is taken, the next free "
        "port is used.",
    )
    metrics_allowed_hosts: str = _text(
        "",
        "Comma-separated host names that the metrics port answers for, besides IP addresses, "
        "localhost and this machine's name. *: any.",
    )
    log_format: str = _text("text", "Format of log lines: text or json.")
    log_args: bool = _flag(True, "Whether log lines of a host show the arguments of jobs.")
    log_rate_limit: int = _count(
        200,
        "Log lines per second for successful jobs. Further lines of the second are replaced by a sum. "
        "Failures may have five times as many. 0: no limit.",
    )
    log_buffer_size: int = _size(
        8 << 20,
        "Buffer for log lines while stdout is blocked. Lines that do not fit are dropped and counted.",
    )
    log_level: str = _text(
        "info",
        "Lowest level of log records of handlers that is shown, if the app does not configure logging.",
    )
    host_label: str = _text(
        "", "Label shown in the master's title, `hosts`, `workers`, `top` and the metrics."
    )

    def validate(self) -> None:
        """Raise UsageError for values that cannot work, alone or together."""
        needed = 1.5 * (3 * self.renew_interval + self.statement_timeout)
        if needed > self.lease_duration:
            raise UsageError(
                f"lease_duration={format_duration(self.lease_duration)} is too short: "
                f"three renewals ({format_duration(self.renew_interval)} each) and "
                f"one statement timeout ({format_duration(self.statement_timeout)}) must fit into two thirds of it, "
                "where exclusive jobs are stopped; "
                f"raise lease_duration to {format_duration(needed)} or lower renew_interval"
            )
        check_schema_name(self.schema)
        if self.result_store and "://" not in self.result_store and not os.path.isabs(self.result_store):
            raise UsageError(
                f"result_store={self.result_store!r}: use an absolute path, or a URL such as s3://bucket/results"
            )
        if self.log_format not in ("text", "json"):
            raise UsageError(f"log_format={self.log_format!r}: use text or json")
        if self.log_level not in ("debug", "info", "warning", "error", "critical"):
            raise UsageError(f"log_level={self.log_level!r}: use debug, info, warning, error or critical")
        if self.log_rate_limit < 0:
            raise UsageError(
                f"log_rate_limit={self.log_rate_limit}: use 0 for every line, or a number of lines per second"
            )
        for name, max_bytes in (("payload_limit", MAX_ARGS_BYTES), ("result_limit", MAX_RESULT_BYTES)):
            if getattr(self, name) > max_bytes:
                raise UsageError(
                    f"{name}={format_size(getattr(self, name))}: use at most {format_size(max_bytes)}"
                )
        if not 1 <= self.max_workers <= 1024:
            raise UsageError(f"max_workers={self.max_workers}: use a number from 1 to 1024")
        for name in (
            "renew_interval",
            "poll_interval",
            "promote_interval",
            "result_prune_interval",
            "rescue_interval",
            "statement_timeout",
            "connect_timeout",
            "heartbeat_interval",
            "report_timeout",
        ):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be longer than 0")
        for name in ("claim_batch_size", "finish_batch_size", "restart_limit", "throttle_factor"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1")


@cache
def _defaults() -> dict[str, Any]:
    return {f.name: f.default for f in fields(Settings)}


def check_schema_name(name: str) -> None:
    """Raise UsageError for a schema that other programs use, or a name that some statement cannot use."""
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
    files: dict[str, str] = {}  # source of a dsn_file -> its path
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
    """Load one setting as `load_settings` would without a command line. Reads and validates only this setting."""
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
