"""Jobs, failures, queues and schedules in Django's admin: to read, with the actions of an operator.

A user needs the permission `view` to look and `change` for the actions. Each action is recorded with the user's name, as
`pgworkers jobs show` prints it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.utils.functional import cached_property

from pgworkers.django.models import Failure, JobRecord, Queue, Schedule
from pgworkers.django.project_app import database_alias, find_app
from pgworkers.job import cancel, queries, queues
from pgworkers.job.operations import OperationNote, make_note
from pgworkers.job.requeue import requeue_until_settled
from pgworkers.schedule import definitions

#: A page of jobs is found without counting all history.
MAX_COUNTED_ROWS = 10_000


class BoundedPaginator(Paginator):
    """Counts at most MAX_COUNTED_ROWS rows."""

    @cached_property
    def count(self) -> int:
        return len(self.object_list.order_by().values_list("pk")[:MAX_COUNTED_ROWS])


class ReadOnlyAdmin(admin.ModelAdmin):
    """Shows rows and changes none, except by actions."""

    show_full_result_count = False
    actions_on_bottom = True

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).using(database_alias())

    def get_readonly_fields(self, request: Any, obj: Any = None) -> list[str]:
        return [field.name for field in self.model._meta.fields]

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_operate_permission(self, request: Any) -> bool:
        """True if this user may run the actions."""
        meta = self.model._meta
        return bool(request.user.has_perm(f"{meta.app_label}.change_{meta.model_name}"))


def _note(request: Any) -> OperationNote:
    return make_note(f"in Django's admin, by {request.user.get_username()}")


def _report(
    modeladmin: Any, request: Any, verb: str, outcomes: dict[int, str | None], good: tuple[str, ...]
) -> None:
    """Show how many jobs an action changed, and what kept the others from it."""
    counts = Counter(outcome or "gone" for outcome in outcomes.values())
    done = sum(count for outcome, count in counts.items() if outcome in good)
    others = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if outcome not in good)
    text = f"{verb} {done} jobs" + (f"; not {verb}: {others}" if others else "")
    modeladmin.message_user(request, text, messages.WARNING if others else messages.SUCCESS)


class JobAdmin(ReadOnlyAdmin):
    """Jobs, live and finished."""

    paginator = BoundedPaginator
    list_display = ("id", "task", "queue", "state", "attempt", "created_at", "finished_at", "error")
    list_filter: tuple[str, ...] = ("state",)
    search_fields = ("=id", "=task", "=queue")
    actions: tuple[str, ...] = ("retry_jobs", "cancel_jobs", "discard_jobs")

    @admin.action(description="Retry now", permissions=["operate"])
    def retry_jobs(self, request: Any, queryset: Any) -> None:
        found = requeue_until_settled(find_app().client.run, _ids(queryset), _note(request))
        _report(self, request, "retried", {**found}, ("requeued",))

    @admin.action(description="Cancel", permissions=["operate"])
    def cancel_jobs(self, request: Any, queryset: Any) -> None:
        found = find_app().client.run(cancel.cancel_many(_ids(queryset), _note(request)))
        _report(self, request, "cancelled", found, ("cancelled", "cancelling"))

    @admin.action(description="Discard", permissions=["operate"])
    def discard_jobs(self, request: Any, queryset: Any) -> None:
        found = find_app().client.run(cancel.discard_many(_ids(queryset), _note(request)))
        _report(self, request, "discarded", found, ("dead",))


def _ids(queryset: Any) -> list[int]:
    return list(queryset.order_by().values_list("pk", flat=True)[:MAX_COUNTED_ROWS])


class FailureAdmin(JobAdmin):
    """Jobs that failed for good, with the end of each attempt."""

    list_filter = ()
    actions = ("retry_jobs",)

    def get_readonly_fields(self, request: Any, obj: Any = None) -> list[str]:
        return [*super().get_readonly_fields(request, obj), "attempts"]

    def get_fields(self, request: Any, obj: Any = None) -> list[str]:
        return self.get_readonly_fields(request, obj)

    @admin.display(description="Attempts")
    def attempts(self, job: Any) -> str:
        """Verdict, error and traceback of each attempt."""
        found = find_app().client.run(queries.job_attempts(job.pk))
        return "\n\n".join(
            f"{one.attempt}. {one.verdict}: {one.error or ''}\n{one.traceback or one.stack or ''}"
            for one in found
        )


class QueueAdmin(ReadOnlyAdmin):
    """Queues."""

    list_display = ("name", "paused", "workers", "cluster_workers", "throttled_until")
    actions = ("pause_queues", "resume_queues")

    @admin.action(description="Pause", permissions=["operate"])
    def pause_queues(self, request: Any, queryset: Any) -> None:
        _run_each(self, request, queryset, queues.pause_queue, "paused")

    @admin.action(description="Resume", permissions=["operate"])
    def resume_queues(self, request: Any, queryset: Any) -> None:
        _run_each(self, request, queryset, queues.resume_queue, "resumed")


class ScheduleAdmin(ReadOnlyAdmin):
    """Schedules."""

    list_display = ("name", "task", "cron", "every", "tz", "paused", "next_at", "last_at", "error")
    actions = ("pause_schedules", "resume_schedules")

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).filter(scope="")

    @admin.action(description="Pause", permissions=["operate"])
    def pause_schedules(self, request: Any, queryset: Any) -> None:
        _run_each(self, request, queryset, definitions.pause_schedule, "paused")

    @admin.action(description="Resume", permissions=["operate"])
    def resume_schedules(self, request: Any, queryset: Any) -> None:
        _run_each(self, request, queryset, definitions.resume_schedule, "resumed")


def _run_each(
    modeladmin: Any, request: Any, queryset: Any, change: Callable[[str], Any], past_tense: str
) -> None:
    names = list(queryset.values_list("pk", flat=True))
    for name in names:
        find_app().client.run(change(name))
    modeladmin.message_user(request, f"{past_tense} {', '.join(names)}", messages.SUCCESS)


admin.site.register(JobRecord, JobAdmin)
admin.site.register(Failure, FailureAdmin)
admin.site.register(Queue, QueueAdmin)
admin.site.register(Schedule, ScheduleAdmin)
