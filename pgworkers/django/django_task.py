"""The task `django_task`: its jobs are the tasks of `django.tasks`. One task runs all of them, by their import path."""

from __future__ import annotations

import os
import re
import socket
import traceback
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.utils import timezone
from django.utils.module_loading import import_string

from pgworkers.app import App
from pgworkers.context import Ctx
from pgworkers.django.tasks_api import (
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    task_finished,
    task_started,
)
from pgworkers.errors import Discard, Retry, Snooze, Throttled
from pgworkers.job.model import JobState

if TYPE_CHECKING:
    from pgworkers.job.queries import AttemptView, JobView

DJANGO_TASK = "django_task"
#: The class that stands for an end without an exception: a timeout, a kill, a crash, a cancel.
NO_EXCEPTION_CLASS = "pgworkers.errors.JobFailed"

_STATUS = {
    JobState.RUNNING: TaskResultStatus.RUNNING,
    JobState.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    JobState.DEAD: TaskResultStatus.FAILED,
    JobState.CANCELLED: TaskResultStatus.FAILED,
}


def declare_django_task(app: App) -> Any:
    """Declare the task in an app that does not have it yet, and return it."""
    if DJANGO_TASK not in app.tasks:
        app.task(name=DJANGO_TASK, retries=0)(run_django_task)
    return app.tasks[DJANGO_TASK]


def run_django_task(
    ctx: Ctx,
    task: str,
    args: list[Any],
    kwargs: dict[str, Any],
    backend: str,
    enqueued_at: datetime | None = None,
    run_after: datetime | None = None,
) -> Any:
    """Run one task of `django.tasks`, with its context and its signals."""
    found = find_task(task).using(backend=backend, queue_name=ctx.queue, run_after=run_after)
    now = timezone.now()
    result = make_result(
        found,
        str(ctx.job),
        status=TaskResultStatus.RUNNING,
        args=args,
        kwargs=kwargs,
        enqueued_at=enqueued_at,
        started_at=now,
        worker_ids=["unknown"] * (ctx.attempt - 1) + [f"{socket.gethostname()}:{os.getpid()}"],
    )
    sender = type(found.get_backend())
    task_started.send(sender=sender, task_result=result)
    try:
        first = (TaskContext(task_result=result),) if found.takes_context else ()
        value = found.call(*first, *args, **kwargs)
    except (Retry, Snooze, Throttled):
        raise  # it is not finished
    except BaseException as error:
        is_failure = not isinstance(error, Discard)
        _set(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        if is_failure:
            result.errors.append(
                TaskError(
                    exception_class_path=f"{type(error).__module__}.{type(error).__qualname__}",
                    traceback="".join(traceback.format_exception(error)),
                )
            )
        task_finished.send(sender=sender, task_result=result)
        raise
    _set(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
    task_finished.send(sender=sender, task_result=result)
    return value


def find_task(path: str) -> Any:
    """The task with this import path. TypeError if there is something else."""
    found = import_string(path)
    if not isinstance(found, Task):
        raise TypeError(f"{path} is a {type(found).__name__}, not a task; was its @task removed or renamed?")
    return found


def make_result(
    task: Any,
    result_id: str,
    *,
    status: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    enqueued_at: datetime | None = None,
    started_at: datetime | None = None,
    finished_at: datetime | None = None,
    errors: Sequence[Any] = (),
    worker_ids: Sequence[str] = (),
) -> Any:
    """A TaskResult. Its constructor refuses arguments that are not JSON."""
    return TaskResult(
        task=task,
        id=result_id,
        status=status,
        enqueued_at=enqueued_at,
        started_at=started_at,
        last_attempted_at=started_at,
        finished_at=finished_at,
        args=list(args),
        kwargs=dict(kwargs),
        backend=task.backend,
        errors=list(errors),
        worker_ids=list(worker_ids),
    )


def is_django_task(view: JobView) -> bool:
    """True if `enqueue` of the backend made this job. SQL can make others, with any arguments."""
    wanted = {"task": str, "args": list, "kwargs": dict, "backend": str}
    return (
        view.task == DJANGO_TASK
        and isinstance(view.args, dict)
        and all(isinstance(view.args.get(name), kind) for name, kind in wanted.items())
    )


def read_result(view: JobView, attempts: list[AttemptView]) -> Any:
    """The TaskResult of a stored job."""
    assert isinstance(view.args, dict)
    given = view.args
    task = find_task(given["task"]).using(
        backend=given["backend"],
        priority=view.priority,
        queue_name=view.queue,
        run_after=_read_time(given.get("run_after")),
    )
    status = _STATUS.get(view.state, TaskResultStatus.READY)
    worker_ids = [attempt.worker or "unknown" for attempt in attempts]
    worker_ids += [view.worker or str(view.host or "unknown")] * (view.attempt - len(worker_ids))
    errors = [_read_error(attempt) for attempt in attempts]
    if status == TaskResultStatus.FAILED and not errors:
        errors = [TaskError(exception_class_path=NO_EXCEPTION_CLASS, traceback=view.error or str(view.state))]
    result = make_result(
        task,
        str(view.id),
        status=status,
        args=given["args"],
        kwargs=given["kwargs"],
        enqueued_at=_read_time(given.get("enqueued_at")) or view.created_at,
        started_at=view.started_at,
        finished_at=view.finished_at,
        errors=errors,
        worker_ids=worker_ids[: view.attempt],
    )
    if status == TaskResultStatus.SUCCESSFUL:
        _set(result, _return_value=view.result)
    return result


def _read_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _read_error(attempt: AttemptView) -> Any:
    texts = [attempt.traceback, attempt.stack, attempt.error]
    return TaskError(
        exception_class_path=exception_class_path(attempt.error or "", attempt.traceback or ""),
        traceback="\n".join(text for text in texts if text) or attempt.verdict,
    )


def exception_class_path(error: str, trace: str) -> str:
    """The import path of an exception: its one line has the name, and the last lines of its traceback the module."""
    name = re.match(r"[A-Za-z_][\w.]*(?=:|$)", error)
    if name is None or not trace:
        return NO_EXCEPTION_CLASS
    lines = re.findall(rf"^((?:[\w]+\.)*{re.escape(name[0])})(?=:|$)", trace, re.MULTILINE)
    if not lines:
        return NO_EXCEPTION_CLASS
    path = str(lines[-1])
    return path if path != name[0] else f"builtins.{path}"


def _set(result: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)  # a frozen dataclass; the other backends do the same
