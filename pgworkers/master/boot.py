"""Before the loop: learn the app, choose and reach the database, bring the schema up, announce it all.

`prepare` does it and returns a `BootPlan`. `RunOptions` are what the command line chose.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version as package_version
from typing import Any, TypeVar

import msgspec
import psycopg

from pgworkers import settings as settings_module
from pgworkers.clock import monotonic
from pgworkers.embedded.server import EmbeddedServer
from pgworkers.errors import AppNotLoaded, DatabaseUnreachable, NotFound, UsageError
from pgworkers.job import queues
from pgworkers.job.enqueue import enqueue
from pgworkers.job.model import NewJob
from pgworkers.master import http
from pgworkers.postgres import migrate
from pgworkers.postgres.connect import connect
from pgworkers.postgres.database_choice import (
    DatabaseChoice,
    app_directory,
    app_owner,
    choose_database,
    refuse_foreign_home,
)
from pgworkers.postgres.dsn import show_dsn
from pgworkers.postgres.pooler import is_pooled
from pgworkers.postgres.statements import run as ask
from pgworkers.schedule import definitions as schedules
from pgworkers.settings import LoadedSettings, Settings
from pgworkers.specs import AppSpec, QueueSpec
from pgworkers.supervisor.describe import describe, threads_error
from pgworkers.units import format_duration

PACKAGE_VERSION = package_version("pgworkers")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BootPlan:
    """What is known before the first process is started."""

    app: AppSpec
    loaded_settings: LoadedSettings
    dsn: str
    queues: dict[str, QueueSpec]
    database_text: str  # for the second line of the start
    schema_text: str  # for the third
    embedded_server: EmbeddedServer | None
    direct_dsn: str = ""  # for the master's own connections, when dsn goes through a pooler

    @property
    def settings(self) -> Settings:
        return self.loaded_settings.settings


@dataclass(slots=True)
class ServedApp:
    """The app that a host serves now. A reload replaces it."""

    app: AppSpec
    queues: dict[str, QueueSpec]


def prepare(options: RunOptions, report: Callable[[str], None]) -> BootPlan:
    app = describe(options.config, options.loaded_settings.settings.import_timeout, on_slow=report)
    if app.threads:
        raise AppNotLoaded(f"{threads_error(options.config, app.threads)}; nothing was started")
    loaded = settings_module.load_settings(options.flags, app.settings)
    if loaded.settings.metrics_address != "off":
        http.parse_address(loaded.settings.metrics_address)  # before anything is done
    served = choose_queues(app, options.queues, options.workers, loaded.settings.max_workers)
    if options.is_check:
        check_imports(options.config, served, loaded.settings.import_timeout, report)
    chosen = choose_database(loaded.settings, loaded.sources, app_directory(options.config))
    server = None
    dsn = chosen.dsn
    if chosen.is_embedded:
        refuse_foreign_home(chosen, app_owner(options.config))
        server = EmbeddedServer(chosen.home, on_message=report)
        if options.is_check and not server.status().has_data:
            database = f"embedded, would be made in {chosen.home}"
            return BootPlan(
                app=app,
                loaded_settings=loaded,
                dsn="",
                queues=served,
                database_text=database,
                schema_text=f"{loaded.settings.schema}, would be made",
                embedded_server=None,
            )
        dsn = server.acquire()
    direct = loaded.settings.direct_dsn or dsn

    def announce(conn: psycopg.Connection[Any]) -> tuple[str, str]:
        """The database and the schema, for the start's lines.

        Nothing of it does harm when it is done twice.
        """
        refuse_pooler(conn, direct)
        database, schema = _database_text(conn, chosen, server, direct), loaded.settings.schema
        if options.is_check:
            return database, _pending_migrations_text(conn, loaded)
        applied = migrate.up(conn, schema, on_message=report)
        ask(conn, schema, queues.declare_queues(list(served), cluster_totals(served), retentions(served)))
        ask(conn, schema, queues.declare_tasks(list(app.tasks)))
        if app.schedules:
            ask(conn, schema, schedules.sync_schedules(app.schedules))
        state = f"migrated ({', '.join(applied)})" if applied else migrate.describe_schema(conn, schema)
        return database, f"{schema}, {state}"

    try:
        database, schema = run_on_first_connection(loaded.settings, direct, report, announce)
        if options.enqueue and not options.is_check:
            with connect_patiently(loaded.settings, direct, report) as conn:
                for task in options.enqueue:
                    _enqueue_task(conn, loaded.settings.schema, app, task)
    except BaseException:
        if server is not None:
            server.release()
        raise
    return BootPlan(
        app=app,
        loaded_settings=loaded,
        dsn=dsn,
        queues=served,
        database_text=database,
        schema_text=schema,
        embedded_server=server,
        direct_dsn=direct,
    )


def check_imports(
    config: str, served: dict[str, QueueSpec], import_timeout: float, report: Callable[[str], None]
) -> None:
    """Import the app as the supervisor of each queue would: with its threads and its preload modules."""
    ways = {(spec.threads, tuple(spec.preload)): name for name, spec in served.items()}
    for (threads, preload), queue in ways.items():
        if (threads, preload) == (1, ()):
            continue  # it was described so
        seen = describe(config, import_timeout, on_slow=report, threads=threads, preload=preload)
        if seen.threads:
            raise AppNotLoaded(
                f"queue {queue}: {threads_error(config, seen.threads)}; no worker of it would start"
            )


def refuse_pooler(conn: psycopg.Connection[Any], dsn: str) -> None:
    """Leadership is a lock of a session, and notifications go to one: neither lives behind a pooler."""
    if is_pooled(conn):
        raise UsageError(
            f"{show_dsn(dsn)} is a pooler (PgBouncer or the like): a session's lock and its notifications get lost there; "
            "nothing was started. Set PGWORKERS_DIRECT_DSN to the direct address of the same database; enqueuers may keep "
            "the pooler"
        )


def _database_text(
    conn: psycopg.Connection[Any], chosen: DatabaseChoice, server: EmbeddedServer | None, dsn: str
) -> str:
    """Which Postgres and why, for the second line of the start."""
    where = show_dsn(dsn)
    if server is not None:
        programs = server.system_programs()
        where = f"in {server.status().data}" + (f", programs of {programs}" if programs is not None else "")
    return f"Postgres {conn.info.server_version // 10000}, {chosen.source} {where}"


def _pending_migrations_text(conn: psycopg.Connection[Any], loaded: LoadedSettings) -> str:
    """What `run` would do to the schema. A newer one than this code is refused, as `run` would."""
    schema = loaded.settings.schema
    pending = [migration.name for migration in migrate.pending_migrations(conn, schema)]
    state = (
        f"run would migrate it ({', '.join(pending)})" if pending else migrate.describe_schema(conn, schema)
    )
    return f"{schema}, {state}"


def choose_queues(
    app: AppSpec, wanted: dict[str, int | None] | None, workers: int | None, max_workers: int
) -> dict[str, QueueSpec]:
    """The queues this host serves, with their number of workers."""
    declared = {queue.name: queue for queue in app.queues}
    if not declared:
        raise UsageError(
            'the app declares no queue, so there is nothing to run; add app.queue("default", workers=2)'
        )
    for name in wanted or ():
        if name not in declared:
            raise NotFound(f"the app declares no queue {name!r}; it has {', '.join(declared)}")
    served = {}
    for name, spec in declared.items():
        if wanted is not None and name not in wanted:
            continue
        count = (wanted or {}).get(name) or workers or spec.workers
        if not 1 <= count <= max_workers:
            raise UsageError(f"queue {name}: {count} workers; use 1 to {max_workers} (setting max_workers)")
        served[name] = msgspec.structs.replace(spec, workers=count)
    return served


def cluster_totals(served: dict[str, QueueSpec]) -> dict[str, int | None]:
    """The workers over all hosts that the app wants of its queues."""
    return {name: spec.cluster_workers for name, spec in served.items()}


def retentions(served: dict[str, QueueSpec]) -> dict[str, float | None]:
    """How many seconds the app keeps finished jobs of its queues."""
    return {name: spec.retention for name, spec in served.items()}


def connect_patiently(settings: Settings, dsn: str, report: Callable[[str], None]) -> psycopg.Connection[Any]:
    """A first connection.

    A server that refuses or is still starting is waited for; a wrong address is not.
    """
    give_up = monotonic() + settings.startup_connect_timeout
    pause = 0.2
    was_reported = False
    while True:
        try:
            return connect(settings, dsn, "boot")
        except DatabaseUnreachable as error:
            left = give_up - monotonic()
            if left <= 0 or not error.is_transient:
                raise
            if not was_reported:
                report(f"{error.summary}; trying for {format_duration(left)}")
                was_reported = True
        time.sleep(min(pause, left) * random.uniform(0.5, 1.0))
        pause = min(pause * 2, settings.reconnect_max_delay)


def run_on_first_connection(
    settings: Settings, dsn: str, report: Callable[[str], None], work: Callable[[psycopg.Connection[Any]], T]
) -> T:
    """Do this on a first connection, again if need be: a table may be locked, the server restarted in between."""
    give_up = monotonic() + settings.startup_connect_timeout
    was_reported = False
    while True:
        with connect_patiently(settings, dsn, report) as conn:
            try:
                return work(conn)
            except psycopg.OperationalError as error:
                left = give_up - monotonic()
                if left <= 0:
                    raise
                if not was_reported:
                    first = str(error).partition("\n")[0]
                    report(
                        f"the database did not take what this host announces ({first}); trying for {format_duration(left)}"
                    )
                    was_reported = True
        time.sleep(min(settings.reconnect_max_delay, left) * random.uniform(0.5, 1.0))


def _enqueue_task(conn: psycopg.Connection[Any], schema: str, app: AppSpec, task: str) -> None:
    spec = next((spec for spec in app.tasks if spec.name == task), None)
    if spec is None:
        raise NotFound(
            f"--enqueue {task}: the app has no such task; it has {', '.join(s.name for s in app.tasks)}"
        )
    job = NewJob(
        task=task, args_json="{}", queue=spec.queue, priority=spec.priority, max_attempts=spec.max_attempts
    )
    ask(conn, schema, enqueue(job))


def start_lines(plan: BootPlan, metrics: str) -> list[str]:
    """The six lines of the start."""
    return [
        *summary_lines(plan, metrics),
        f"stop      Ctrl-C or kill -TERM {os.getpid()}: running jobs get {format_duration(plan.settings.drain_timeout)}; "
        "a second Ctrl-C or SIGQUIT: now",
    ]


def summary_lines(plan: BootPlan, metrics: str) -> list[str]:
    """What a host serves, and from where; `run --check` prints no more."""
    served = " · ".join(_workers_text(queue) for queue in plan.queues.values())
    return [
        f"pgworkers {PACKAGE_VERSION} · {plan.app.name} (version {plan.app.version})",
        f"database  {plan.database_text}",
        f"schema    {plan.schema_text}",
        f"queues    {served}",
        f"metrics   {metrics}",
    ]


def _workers_text(queue: QueueSpec) -> str:
    if queue.cluster_workers is not None:
        return (
            f"{queue.name} {queue.cluster_workers} worker{'s' * (queue.cluster_workers != 1)} over all hosts"
        )
    return f"{queue.name} {queue.workers} worker{'s' * (queue.workers != 1)}"


@dataclass(frozen=True, slots=True)
class RunOptions:
    config: str
    loaded_settings: LoadedSettings
    flags: dict[str, Any] = field(default_factory=dict)  # to load the settings again with the app's own
    workers: int | None = None  # for every queue
    queues: dict[str, int | None] | None = None  # serve only these; None: as declared
    is_burst: bool = False
    is_check: bool = False
    enqueue: tuple[str, ...] = ()
    is_quiet: bool = False
    should_watch_files: bool = False  # when the app's files change


def new_host_id() -> str:
    """A new id for each run of a master. Leases belong to it, so it is not a hostname or a pid."""
    return str(uuid.uuid4())
