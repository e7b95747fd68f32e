"""The backend of `django.tasks`: a task is a job of pgworkers.

    TASKS = {
        "default": {
            "BACKEND": "pgworkers.django.backend.PgworkersBackend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"retries": 3, "timeout": "5m"},   # of each job: retries, timeout, expires, deadline, memory
        }
    }

A task that raises has failed: there are no retries unless OPTIONS says so. Inside `atomic()` of the queue's database a task
is enqueued if and only if the transaction commits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from pgworkers.app import App
from pgworkers.client import callers_connection
from pgworkers.django.django_task import declare_django_task, is_django_task, make_result, read_result
from pgworkers.django.project_app import find_app
from pgworkers.django.tasks_api import (
    BaseTaskBackend,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from pgworkers.job import queries
from pgworkers.postgres.statements import Query
from pgworkers.postgres.steps import ask

T = TypeVar("T")
OPTION_NAMES = ("retries", "timeout", "expires", "deadline", "memory")
_MAX_JOB_ID = 2**63 - 1


class PgworkersBackend(BaseTaskBackend):
    """Runs the tasks of a Django project as jobs."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        unknown = set(self.options) - set(OPTION_NAMES)
        if unknown:
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]: unknown OPTIONS {', '.join(sorted(unknown))}; there are: {', '.join(OPTION_NAMES)}"
            )

    @property
    def app(self) -> App:
        """The App of the project."""
        return find_app()

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Insert a job. ValueError or TypeError, and no job, if the arguments are not JSON."""
        self.validate_task(task)
        result = make_result(task, "", status=TaskResultStatus.READY, args=args, kwargs=kwargs)
        options: dict[str, Any] = {"priority": task.priority, "queue": task.queue_name, **self.options}
        if task.run_after is not None:
            when = task.run_after
            options["at"] = when if timezone.is_aware(when) else timezone.make_aware(when)
        now = timezone.now()
        job = (
            declare_django_task(self.app)
            .using(**options)
            .enqueue(
                task=task.module_path,
                args=result.args,
                kwargs=result.kwargs,
                backend=self.alias,
                enqueued_at=now,
                run_after=task.run_after,
            )
        )
        object.__setattr__(result, "id", str(job.id))
        object.__setattr__(result, "enqueued_at", now)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """The result of a job. TaskResultDoesNotExist if there is none, or if its transaction is not committed yet."""
        number = int(result_id) if str(result_id).isascii() and str(result_id).isdigit() else 0
        view = self._read(queries.get_job(number)) if 0 < number <= _MAX_JOB_ID else None
        if view is None or not is_django_task(view):
            raise TaskResultDoesNotExist(result_id)
        return read_result(view, self._read(queries.job_attempts(number)))

    def _read(self, query: Query[T]) -> T:
        """Run a query, inside `atomic()` on its connection: a task that was enqueued there is not committed yet."""
        client = self.app.client
        conn = None if client.django is None else client.django.find_current_connection(client.database.dsn)
        if conn is None:
            return client.run(query)
        return callers_connection.run_steps(conn, client.settings.schema, ask(query))

    def check(self, **kwargs: Any) -> Iterable[Any]:
        """Report queues that the app does not have: tasks in them would wait for ever."""
        unknown = sorted(set(self.queues) - set(self.app.queues))
        if unknown:
            yield checks.Error(
                f"TASKS[{self.alias!r}]: the app of pgworkers has no queue {', '.join(unknown)}",
                hint="Declare it with app.queue(), or remove it from QUEUES.",
                id="pgworkers.E001",
            )
