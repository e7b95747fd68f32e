"""Before the loop: learn the app, choose and reach the database, bring the schema up, announce it all."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version as package_version
from typing import Any, TypeVar

import msgspec
import psycopg

from pgworkers import settings as settings_module
from pgworkers.clock import monotonic, show_seconds
from pgworkers.errors import AppNotLoaded, DatabaseUnreachable, NotFound, UsageError
from pgworkers.job import queue as queues
from pgworkers.job.enqueue import enqueue
from pgworkers.job.new import NewJob
from pgworkers.master import http
from pgworkers.master.options import RunOptions
from pgworkers.postgres import migrate
from pgworkers.postgres.connect import (
    Chosen,
    beside,
    choose,
    connect,
    is_pooled,
    owner_of,
    refuse_foreign_home,
)
from pgworkers.postgres.dsn import shown
from pgworkers.postgres.embedded import EmbeddedServer
from pgworkers.postgres.statements import run as ask
from pgworkers.schedule import sync as schedules
from pgworkers.settings import Loaded, Settings
from pgworkers.specs import AppSpec, QueueSpec
from pgworkers.supervisor.ask import describe, starts_threads

VERSION = package_version("pgworkers")
T = TypeVar("T")


@dataclass(slots=True)
class Plan:
    """All that is known before the first process is started."""

    app: AppSpec
    loaded: Loaded
    dsn: str
    queues: dict[str, QueueSpec]
    database: str  # for the second line of the start
    schema: str  # for the third
    server: EmbeddedServer | None
    direct: str = ""  # for the master's own connections, when dsn goes through a pooler

    @property
    def settings(self) -> Settings:
        return self.loaded.settings


def prepare(options: RunOptions, say: Callable[[str], None]) -> Plan:
    app = describe(options.config, options.loaded.settings.boot, say=say)
    if app.threads:
        raise AppNotLoaded(f"{starts_threads(options.config, app.threads)}; nothing was started")
    loaded = settings_module.load(options.flags, app.settings)
    if loaded.settings.metrics != "off":
        http.parse(loaded.settings.metrics)  # before anything is done
    served = choose_queues(app, options.queues, options.workers, loaded.settings.max_workers)
    if options.check:
        check_imports(options.config, served, loaded.settings.boot, say)
    chosen = choose(loaded.settings, loaded.sources, beside(options.config))
    server = None
    dsn = chosen.dsn
    if chosen.embedded:
        refuse_foreign_home(chosen, owner_of(options.config))
        server = EmbeddedServer(chosen.home, say=say)
        if options.check and not server.status().exists:
            database = f"embedded, would be made in {chosen.home}"
            return Plan(app, loaded, "", served, database, f"{loaded.settings.schema}, would be made", None)
        dsn = server.acquire()
    direct = loaded.settings.direct_dsn or dsn

    def announce(conn: psycopg.Connection[Any]) -> tuple[str, str]:
        """The database and the schema, for the start's lines. Nothing of it does harm when it is done twice."""
        refuse_pooler(conn, direct)
        database, schema = _database(conn, chosen, server, direct), loaded.settings.schema
        if options.check:
            return database, _pending(conn, loaded)
        applied = migrate.up(conn, schema, say=say)
        ask(conn, schema, queues.declare(list(served), totals(served), retentions(served)))
        ask(conn, schema, queues.declare_tasks(list(app.tasks)))
        if app.schedules:
            ask(conn, schema, schedules.sync(app.schedules))
        state = f"migrated ({', '.join(applied)})" if applied else migrate.describe(conn, schema)
        return database, f"{schema}, {state}"

    try:
        database, schema = patiently(loaded.settings, direct, say, announce)
        if options.enqueue and not options.check:
            with reach(loaded.settings, direct, say) as conn:
                for task in options.enqueue:
                    _enqueue(conn, loaded.settings.schema, app, task)
    except BaseException:
        if server is not None:
            server.release()
        raise
    return Plan(app, loaded, dsn, served, database, schema, server, direct)


def check_imports(
    config: str, served: dict[str, QueueSpec], patience: float, say: Callable[[str], None]
) -> None:
    """Import the app as the supervisor of each queue would: with its threads and its preload modules."""
    ways = {(spec.threads, tuple(spec.preload)): name for name, spec in served.items()}
    for (threads, preload), queue in ways.items():
        if (threads, preload) == (1, ()):
            continue  # it was described so
        seen = describe(config, patience, say=say, threads=threads, preload=preload)
        if seen.threads:
            raise AppNotLoaded(
                f"queue {queue}: {starts_threads(config, seen.threads)}; no worker of it would start"
            )


def refuse_pooler(conn: psycopg.Connection[Any], dsn: str) -> None:
    """Leadership is a lock of a session, and notifications go to one: neither lives behind a pooler."""
    if is_pooled(conn):
        raise UsageError(
            f"{shown(dsn)} is a pooler (PgBouncer or the like): a session's lock and its notifications get lost there; "
            "nothing was started. Set PGWORKERS_DIRECT_DSN to the direct address of the same database; enqueuers may keep "
            "the pooler"
        )


def _database(conn: psycopg.Connection[Any], chosen: Chosen, server: EmbeddedServer | None, dsn: str) -> str:
    """Which Postgres and why, for the second line of the start."""
    where = shown(dsn)
    if server is not None:
        programs = server.foreign_programs()
        where = f"in {server.status().data}" + (f", programs of {programs}" if programs is not None else "")
    return f"Postgres {conn.info.server_version // 10000}, {chosen.source} {where}"


def _pending(conn: psycopg.Connection[Any], loaded: Loaded) -> str:
    """What `run` would do to the schema. A newer one than this code is refused, as `run` would."""
    schema = loaded.settings.schema
    pending = [migration.name for migration in migrate.pending(conn, schema)]
    state = f"run would migrate it ({', '.join(pending)})" if pending else migrate.describe(conn, schema)
    return f"{schema}, {state}"


def choose_queues(
    app: AppSpec, wanted: dict[str, int | None] | None, workers: int | None, most: int
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
        if not 1 <= count <= most:
            raise UsageError(f"queue {name}: {count} workers; use 1 to {most} (setting max_workers)")
        served[name] = msgspec.structs.replace(spec, workers=count)
    return served


def totals(served: dict[str, QueueSpec]) -> dict[str, int | None]:
    """The workers over all hosts that the app wants of its queues."""
    return {name: spec.cluster_workers for name, spec in served.items()}


def retentions(served: dict[str, QueueSpec]) -> dict[str, float | None]:
    """How many seconds the app keeps finished jobs of its queues."""
    return {name: spec.retention for name, spec in served.items()}


def reach(settings: Settings, dsn: str, say: Callable[[str], None]) -> psycopg.Connection[Any]:
    """A first connection. A server that refuses or is still starting is waited for; a wrong address is not."""
    give_up = monotonic() + settings.connect_wait
    pause = 0.2
    told = False
    while True:
        try:
            return connect(settings, dsn, "boot")
        except DatabaseUnreachable as error:
            left = give_up - monotonic()
            if left <= 0 or not error.transient:
                raise
            if not told:
                say(f"{error.brief}; trying for {show_seconds(left)}")
                told = True
        time.sleep(min(pause, left) * random.uniform(0.5, 1.0))
        pause = min(pause * 2, settings.reconnect)


def patiently(
    settings: Settings, dsn: str, say: Callable[[str], None], work: Callable[[psycopg.Connection[Any]], T]
) -> T:
    """Do this on a first connection, again if need be: a table may be locked, the server restarted in between."""
    give_up = monotonic() + settings.connect_wait
    told = False
    while True:
        with reach(settings, dsn, say) as conn:
            try:
                return work(conn)
            except psycopg.OperationalError as error:
                left = give_up - monotonic()
                if left <= 0:
                    raise
                if not told:
                    first = str(error).partition("\n")[0]
                    say(
                        f"the database did not take what this host announces ({first}); trying for {show_seconds(left)}"
                    )
                    told = True
        time.sleep(min(settings.reconnect, left) * random.uniform(0.5, 1.0))


def _enqueue(conn: psycopg.Connection[Any], schema: str, app: AppSpec, task: str) -> None:
    spec = next((spec for spec in app.tasks if spec.name == task), None)
    if spec is None:
        raise NotFound(
            f"--enqueue {task}: the app has no such task; it has {', '.join(s.name for s in app.tasks)}"
        )
    job = NewJob(
        task=task, args_json="{}", queue=spec.queue, priority=spec.priority, max_attempts=spec.max_attempts
    )
    ask(conn, schema, enqueue(job))


def banner(plan: Plan, metrics: str) -> list[str]:
    """The six lines of the start."""
    return [
        *summary(plan, metrics),
        f"stop      Ctrl-C or kill -TERM {os.getpid()}: running jobs get {show_seconds(plan.settings.drain)}; "
        "a second Ctrl-C or SIGQUIT: now",
    ]


def summary(plan: Plan, metrics: str) -> list[str]:
    """What a host serves, and from where; `run --check` prints no more."""
    served = " · ".join(_crew(queue) for queue in plan.queues.values())
    return [
        f"pgworkers {VERSION} · {plan.app.name} (version {plan.app.version})",
        f"database  {plan.database}",
        f"schema    {plan.schema}",
        f"queues    {served}",
        f"metrics   {metrics}",
    ]


def _crew(queue: QueueSpec) -> str:
    if queue.cluster_workers is not None:
        return (
            f"{queue.name} {queue.cluster_workers} worker{'s' * (queue.cluster_workers != 1)} over all hosts"
        )
    return f"{queue.name} {queue.workers} worker{'s' * (queue.workers != 1)}"
