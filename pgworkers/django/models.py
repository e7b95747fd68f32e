"""Tables and views of the queue as models, to read. Their rows change only by the actions of `admin`.

They are unmanaged: pgworkers migrates its own tables (`apps`).
"""

from __future__ import annotations

from typing import Any

from django.db import models

from pgworkers.django.project_app import schema_name


def _table(name: str) -> str:
    """The name with its schema. Django does not quote what is quoted already."""
    return f'"{schema_name()}"."{name}"'


class JobRecord(models.Model):
    """A job, live or finished."""

    id = models.BigIntegerField(primary_key=True)
    state = models.TextField()
    queue = models.TextField()
    task = models.TextField()
    args = models.JSONField(null=True)
    priority = models.IntegerField()
    attempt = models.IntegerField()
    max_attempts = models.IntegerField()
    created_at = models.DateTimeField()
    run_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    verdict = models.TextField(null=True)
    result = models.JSONField(null=True)
    error = models.TextField(null=True)
    progress = models.JSONField(null=True)
    meta = models.JSONField(null=True)
    unique_key = models.TextField(null=True)
    duration = models.FloatField(null=True)
    cpu_seconds = models.FloatField(null=True)
    peak_rss = models.BigIntegerField(null=True)
    worker = models.TextField(null=True)
    enqueued_by = models.TextField()

    class Meta:
        managed = False
        db_table = _table("jobs")
        ordering = ("-id",)
        verbose_name = "job"

    def __str__(self) -> str:
        return f"#{self.pk} {self.task} {self.state}"


class FailureManager(models.Manager):
    """Only jobs that failed for good."""

    def get_queryset(self) -> Any:
        return super().get_queryset().filter(state="dead")


class Failure(JobRecord):
    """A job that failed for good."""

    objects = FailureManager()

    class Meta:
        proxy = True
        ordering = ("-id",)


class Queue(models.Model):
    """A queue, with what operators set."""

    name = models.TextField(primary_key=True)
    paused = models.BooleanField()
    workers = models.IntegerField(null=True)
    cluster_workers = models.IntegerField(null=True)
    throttled_until = models.DateTimeField(null=True)
    updated_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = _table("queue")
        ordering = ("name",)

    def __str__(self) -> str:
        return str(self.name)


class Schedule(models.Model):
    """A schedule. The scopes of a scoped schedule are not shown one by one."""

    name = models.TextField(primary_key=True)
    scope = models.TextField()
    task = models.TextField()
    cron = models.TextField(null=True)
    every = models.FloatField(null=True)
    tz = models.TextField()
    paused = models.BooleanField()
    next_at = models.DateTimeField(null=True)
    last_at = models.DateTimeField(null=True)
    last_job = models.BigIntegerField(null=True)
    error = models.TextField(null=True)

    class Meta:
        managed = False
        db_table = _table("schedule")
        ordering = ("name",)

    def __str__(self) -> str:
        return str(self.name)
