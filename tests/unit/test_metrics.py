"""Facts become numbers, numbers become text that Prometheus reads; what is too much is `other`."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from pgworkers import events
from pgworkers.job.model import Verdict
from pgworkers.observe import metrics_catalog
from pgworkers.observe.metrics import Metrics
from pgworkers.observe.metrics_exposition import is_openmetrics_preferred
from pgworkers.observe.metrics_series import show_number

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


def fresh(**options: int) -> Metrics:
    metrics = Metrics(**options)
    metrics.declare([("default", "work"), ("mail", "send")], ["default", "mail"], ["nightly"])
    return metrics


def started(
    job: int = 1, task: str = "work", queue: str = "default", waited: float = 0.0
) -> events.AttemptStarted:
    return events.AttemptStarted(job, 1, queue, task, 1, waited)


def ended(
    job: int = 1,
    task: str = "work",
    verdict: Verdict = Verdict.SUCCEEDED,
    queue: str = "default",
    duration: float = 0.25,
) -> events.AttemptEnded:
    return events.AttemptEnded(
        job, 1, queue, task, "{}", 1, 3, verdict, "succeeded", duration, 0.5, 1000, None, None
    )


def read(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body, _ = metrics.scrape("")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return read(metrics).get((f"pgworkers_{name}", tuple(sorted(labels.items()))))


def record(metrics: Metrics, facts: Iterable[events.Event]) -> None:
    for fact in facts:
        metrics(fact)


def test_what_the_app_declares_is_there_at_zero_with_every_verdict_and_reason() -> None:
    metrics = fresh()
    for verdict in Verdict:
        assert value(metrics, "jobs_finished_total", queue="mail", task="send", verdict=verdict.value) == 0
    for reason in metrics_catalog.WORKER_EXIT_REASONS:
        assert value(metrics, "worker_exits_total", queue="default", reason=reason) == 0
    for result in metrics_catalog.TICK_RESULTS:
        assert value(metrics, "schedule_ticks_total", schedule="nightly", result=result) == 0
    for reason in metrics_catalog.STOP_REASONS:
        assert value(metrics, "job_stop_seconds_count", reason=reason) == 0
    assert value(metrics, "job_wait_seconds_bucket", queue="mail", le="+Inf") == 0
    assert value(metrics, "db_errors_total", op="claim", **{"class": "OperationalError"}) == 0


def test_a_job_is_counted_by_verdict_and_its_times_fall_into_buckets() -> None:
    metrics = fresh()
    record(
        metrics,
        [started(waited=0.3), ended(duration=0.25), started(2), ended(2, verdict=Verdict.OOM, duration=7)],
    )
    assert value(metrics, "jobs_started_total", queue="default", task="work") == 2
    assert value(metrics, "jobs_finished_total", queue="default", task="work", verdict="succeeded") == 1
    assert value(metrics, "jobs_finished_total", queue="default", task="work", verdict="oom") == 1
    assert value(metrics, "job_cpu_seconds_total", queue="default", task="work") == 1.0
    buckets = {le: value(metrics, "job_duration_seconds_bucket", queue="default", task="work", le=le) for le in
               ("0.1", "0.5", "5.0", "10.0", "+Inf")}  # fmt: skip
    assert buckets == {"0.1": 0, "0.5": 1, "5.0": 1, "10.0": 2, "+Inf": 2}
    assert value(metrics, "job_duration_seconds_sum", queue="default", task="work") == 7.25
    assert value(metrics, "job_wait_seconds_count", queue="default") == 2


def test_a_bound_belongs_to_its_bucket_and_nonsense_to_the_first() -> None:
    metrics = fresh()
    record(metrics, [ended(duration=0.001), ended(duration=-5), ended(duration=math.nan)])
    assert value(metrics, "job_duration_seconds_bucket", queue="default", task="work", le="0.001") == 3
    assert value(metrics, "job_duration_seconds_sum", queue="default", task="work") == 0.001


def test_the_peak_is_that_of_recent_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("pgworkers.observe.metrics.monotonic", lambda: now[0])
    metrics = fresh()
    metrics(ended())
    seen = []
    for now[0] in (10.0, 310.0, 320.0, 620.0, 630.0):
        seen.append(value(metrics, "job_peak_memory_bytes", queue="default", task="work"))
    assert seen == [1000, 1000, 1000, 1000, 0]


def test_openmetrics_names_a_job_for_each_bucket_and_each_failure() -> None:
    metrics = fresh()
    record(metrics, [ended(41), ended(42, verdict=Verdict.TIMEOUT, duration=70.0)])
    body, kind = metrics.scrape(OPENMETRICS)
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    jobs = {
        (sample.name, sample.labels.get("verdict"), sample.exemplar.labels["job"])
        for family in openmetrics.text_string_to_metric_families(body.decode())
        for sample in family.samples
        if sample.exemplar
    }
    assert jobs == {
        ("pgworkers_job_duration_seconds_bucket", None, "41"),
        ("pgworkers_job_duration_seconds_bucket", None, "42"),
        ("pgworkers_jobs_finished_total", "timeout", "42"),
    }
    assert b" # {" not in metrics.scrape("text/plain")[0]


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text; version=1.0.0", True),
        (OPENMETRICS, True),
        ("application/openmetrics-text;q=0.1,text/plain;q=0.5", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=nonsense", False),
    ],
)
def test_the_format_is_the_one_the_client_likes_best(accept: str, wanted: bool) -> None:
    assert is_openmetrics_preferred(accept) is wanted


def test_queues_and_tasks_beyond_the_cap_are_other_and_counted() -> None:
    metrics = Metrics(max_series=3)
    record(metrics, (fact for i in range(5) for fact in (started(i, f"task{i}"), ended(i, f"task{i}"))))
    record(metrics, [started(9, "task4"), ended(9, "task4", Verdict.ERROR)])
    assert value(metrics, "jobs_started_total", queue="default", task="task2") == 1
    assert value(metrics, "jobs_started_total", queue="default", task="task4") is None
    assert value(metrics, "jobs_started_total", queue="other", task="other") == 3
    assert value(metrics, "jobs_finished_total", queue="other", task="other", verdict="error") == 1
    assert (value(metrics, "series_capped_total", what="job") or 0) > 0
    size = len(metrics.scrape("")[0])
    record(metrics, (ended(i, f"more{i}") for i in range(1000)))
    assert len(metrics.scrape("")[0]) < size + 200, "what is beyond the cap costs no series"


def test_the_clusters_gauges_go_when_this_host_no_longer_leads() -> None:
    metrics = fresh()
    depth = events.QueueDepth("default", 5, 2, 1, 3.5, True, 8, False)
    tables = [events.TableSize("job", 7, 8192)]
    metrics(events.LeadershipChanged(True, ""))
    metrics(events.QueuesMeasured([depth]))
    metrics(events.SchedulesMeasured([events.ScheduleTimes("nightly", None, 99.0)]))
    metrics(events.StorageMeasured(tables, 12.0, "pid 7"))
    assert value(metrics, "queue_jobs", queue="default", state="ready") == 5
    assert value(metrics, "queue_limit", queue="default") == 8
    assert value(metrics, "queue_paused", queue="default") == 1
    assert value(metrics, "table_dead_tuples", table="job") == 7
    assert value(metrics, "oldest_transaction_seconds") == 12
    assert value(metrics, "schedule_next_tick_timestamp_seconds", schedule="nightly") == 99
    metrics(events.QueuesMeasured([events.QueueDepth("mail", 0, 0, 0, 0.0, False, None, False)]))
    assert value(metrics, "queue_jobs", queue="default", state="ready") is None, "a queue that is gone"
    metrics(events.LeadershipChanged(False, ""))
    cluster = {metric.full_name for metric in metrics_catalog.METRICS.values() if metric.is_cluster_wide}
    assert not {name for name, _ in read(metrics)} & cluster


def test_errors_are_counted_by_their_db_api_class() -> None:
    metrics = fresh()
    for error in ("QueryCanceled", "AdminShutdown", "UniqueViolation", "TimeoutError", "DatabaseUnreachable"):
        metrics(events.StatementExecuted("finish", 0.1, error))
    assert value(metrics, "db_errors_total", op="finish", **{"class": "OperationalError"}) == 4
    assert value(metrics, "db_errors_total", op="finish", **{"class": "IntegrityError"}) == 1
    assert value(metrics, "db_operation_seconds_count", op="finish") == 5


def test_hostile_names_stay_inside_their_quotes() -> None:
    metrics = Metrics()
    name = 'a"} 1\n# HELP x\\ ü\ud800'
    metrics.declare([("default", name)], [])
    for accept in ("", OPENMETRICS):
        metrics.scrape(accept)[0].decode()
    labels = {dict(labels).get("task") for _, labels in read(metrics)}
    assert 'a"} 1\n# HELP x\\ ü?' in labels


def test_everything_declared_is_exported_and_nothing_else() -> None:
    metrics = fresh()
    text = metrics.scrape("")[0].decode()
    exported = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert exported == {metric.full_name for metric in metrics_catalog.METRICS.values()}


@pytest.mark.parametrize(
    ("number", "text"), [(1.0, "1.0"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN")]
)
def test_numbers_are_written_as_prometheus_reads_them(number: float, text: str) -> None:
    assert show_number(number) == text
