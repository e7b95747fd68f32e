"""The part of `App` that enqueues by the calendar: schedules, and the scopes of those that have some."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from pgworkers.bounds import SCOPE_BYTES
from pgworkers.client.session import Client
from pgworkers.declare.options import read_name, refuse_unknown
from pgworkers.errors import NotFound, UsageError
from pgworkers.specs import ScheduleSpec
from pgworkers.task import Task

if TYPE_CHECKING:
    from pgworkers.declare.schedule import ScheduleOptions

Scheduled = TypeVar("Scheduled", bound=Task[..., Any])


class Scheduling:
    """Mixed into `App`, which owns the client, the tasks and the schedules."""

    client: Client
    tasks: dict[str, Task[..., Any]]
    schedules: dict[str, Callable[[], ScheduleSpec]]

    def schedule(
        self, cron: str | None = None, /, **options: Unpack[ScheduleOptions]
    ) -> Callable[[Scheduled], Scheduled]:
        """Enqueue a task by the calendar: `@app.schedule("0 3 * * *", tz="Europe/Berlin")` above its `@app.task`."""
        from pgworkers.declare.schedule import ScheduleOptions, declared

        refuse_unknown(options, ScheduleOptions, what="schedule()")

        def declare(task: Scheduled, /) -> Scheduled:
            if not isinstance(task, Task) or self.tasks.get(task.name) is not task:
                raise UsageError(f"@app.schedule: {task!r} is not a task of this app; put it above @app.task")
            name, spec = declared(task, cron, options)
            if name in self.schedules:
                raise UsageError(f"schedule {name!r} is declared twice; give one of them another name=")
            self.schedules[name] = spec
            return task

        return declare

    def add_scope(self, schedule: str, scope: str, args: Mapping[str, Any] | None = None) -> bool:
        """One more scope (a tenant, say) of a scoped schedule, from now on. False: it was there, with these arguments.

        NotFound if the database has no such scoped schedule: no host with this app has started yet, or it was removed.
        """
        from psycopg.errors import NoDataFound

        from pgworkers.schedule import operate

        scope = read_name(scope, what=f"schedule {schedule}: scope", limit=SCOPE_BYTES)
        try:
            return self.client.run(operate.add_scope(schedule, scope, dict(args or {})))
        except (NoDataFound, NotFound):
            raise NotFound(f"there is no scoped schedule {schedule!r}; no scope was added") from None

    def remove_scope(self, schedule: str, scope: str) -> bool:
        """One scope less; its jobs go on. False: there was none."""
        from pgworkers.schedule import operate

        return self.client.run(operate.remove_scope(schedule, scope))
