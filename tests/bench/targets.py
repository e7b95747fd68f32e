"""The bars that pgworkers must reach, and the verdict of a run on each of them.

A bar is required and an aim is desired. Every figure is a number of one run, or a ratio of two numbers of the same run.
Three bars of the project have no measurement here and are therefore not listed: real workloads against
ProcessPoolExecutor, 50 hosts against 2, and the p99 of pickup next to a million waiting jobs (`scripts/bench curve`
prints that one).
"""

from __future__ import annotations

import operator
import statistics
from dataclasses import dataclass

from bench.measurement import ResultFile

_COMPARE = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


@dataclass(frozen=True)
class Bar:
    """One required figure. `ours` and `theirs` are `phase|name|field` of a measurement; with `theirs` it is a ratio."""

    measure: str
    bar: str  #: ">= 1.0"; empty if there is only an aim
    aim: str
    ours: str
    theirs: str = ""
    unit: str = "x"
    worst: bool = False  #: judge the worst round instead of the median

    @property
    def phase(self) -> str:
        return self.ours.partition("|")[0]


@dataclass(frozen=True)
class JudgedTarget:
    """A bar, the value that a run reached, and the verdict."""

    phase: str
    measure: str
    bar: str
    aim: str
    value: float | None
    unit: str
    verdict: str  #: met, MISSED, NOT MEASURED


_DRAIN = "drain|pgworkers|total_per_s"
_P50 = "latency|pgworkers|e2e_p50"  # from the call of enqueue() to the start of the handler
_IDLE = "idle|pgworkers 8 workers"
_CROWD = "crowd|pgworkers 64 workers"
_LIMITS = (
    Bar("drain no-op, x pgbench claim 50 + delete 50", "", ">= 0.8", _DRAIN, "drain|pgbench claim50|per_s"),
    Bar("call to start p99, idle", "<= 6", "", "latency|pgworkers|e2e_p99", unit="ms"),
    Bar(
        "enqueue one per commit, x pgbench insert",
        ">= 0.5",
        ">= 0.7",
        "enqueue|pgworkers single|per_s",
        "enqueue|pgbench insert1|per_s",
    ),
    Bar("enqueue in bulk, x COPY", ">= 0.5", ">= 0.7", "enqueue|pgworkers bulk|per_s", "enqueue|COPY|per_s"),
)
BARS = (
    Bar(
        "drain no-op, x graphile-worker batched",
        ">= 0.9",
        ">= 1.2",
        _DRAIN,
        "drain|graphile batched|total_per_s",
    ),
    Bar("drain no-op, x celery", ">= 20", "", _DRAIN, "drain|celery|total_per_s"),
    Bar("call to start p50, idle, x graphile-worker", "<= 1.0", "<= 0.75", _P50, "latency|graphile|e2e_p50"),
    *_LIMITS,
    Bar(
        "pickup p50 while 7 other queues are busy",
        "<= 5",
        "<= 2",
        "latency|pgworkers, 7 queues busy|p50",
        unit="ms",
    ),
    Bar(
        "8 enqueuers, notifications on / off",
        ">= 0.9",
        ">= 1.0",
        "enqueue|8 enqueuers, notifications on|per_s",
        "enqueue|8 enqueuers, notifications off|per_s",
    ),
    Bar(
        "8 enqueuers, the host runs the jobs / sleeps",
        "",
        "",
        "enqueue|8 enqueuers, notifications on|per_s",
        "enqueue|8 enqueuers, notifications off, the host asleep|per_s",
    ),
    Bar("CPU: 200 jobs of 50 ms, of bare forks", ">= 97", ">= 99", "cpu|pgworkers|eff", unit="%"),
    Bar(
        "PSS per extra idle worker, app imports numpy",
        "<= 6",
        "<= 3",
        "mem|pgworkers numpy|per_extra_pss",
        unit="MiB",
    ),
    Bar("PSS of the idle tree, 2 workers", "<= 70", "<= 50", "mem|pgworkers|w2_pss", unit="MiB"),
    Bar(
        "a process per job (max_jobs=1), x rq",
        ">= 2.5",
        ">= 4",
        "fork|pgworkers max_jobs=1|total_per_s",
        "fork|rq|total_per_s",
    ),
    Bar(
        "backlog 1,000,000 against 10,000",
        ">= 0.95",
        ">= 1.0",
        "backlog|pgworkers 1,000,000 standing|steady_per_s",
        "backlog|pgworkers 10,000 standing|steady_per_s",
    ),
    Bar(
        "the same, drained instead of kept at its size",
        "",
        "",
        "backlog|pgworkers 1,000,000 drained|steady_per_s",
        "backlog|pgworkers 10,000 drained|steady_per_s",
    ),
    Bar(
        "pinned xmin, last 20 s / first 20 s of 2 min",
        ">= 0.9",
        ">= 1.0",
        "horizon|pgworkers|ratio",
    ),
    Bar(
        "longest wait while a worker of the queue is idle",
        "<= 50",
        "",
        "fairness|pgworkers|worst_ms",
        unit="ms",
        worst=True,
    ),
    Bar("CPU of a host with 8 idle workers", "< 0.5", "", f"{_IDLE}|cpu_percent", unit="% of a core"),
    Bar("statements of an idle host", "< 2", "", f"{_IDLE}|statements_per_s", unit="1/s"),
    Bar("64 workers, 1 ms jobs: CPU of the master", "< 100", "", f"{_CROWD}|cpu_percent", unit="% of a core"),
    Bar("64 workers, 1 ms jobs: loop lag p99", "< 50", "", f"{_CROWD}|lag_ms", unit="ms"),
)
#: The bars of `quick`: against pgbench, and against a prototype that only claims, dispatches and deletes.
QUICK = (
    *_LIMITS,
    Bar("drain no-op, x bare prototype", "", "", _DRAIN, "drain|bare pipe|total_per_s"),
    Bar("call to start p50, idle, x bare prototype", "", "", _P50, "latency|bare pipe|e2e_p50"),
)


def judge(bars: tuple[Bar, ...], kept: ResultFile, phases: set[str]) -> list[JudgedTarget]:
    """Judge the bars of these phases. A bar without a figure gets the verdict NOT MEASURED; it is not left out."""
    found = []
    for bar in bars:
        if bar.phase not in phases:
            continue
        value = reached(bar, kept)
        if value is None:
            verdict = "NOT MEASURED"
        elif bar.bar:
            verdict = "met" if _holds(bar.bar, value) else "MISSED"
            verdict += ", and the aim" if bar.aim and _holds(bar.aim, value) else ""
        else:
            verdict = ("aim met" if _holds(bar.aim, value) else "aim missed") if bar.aim else ""
        found.append(JudgedTarget(bar.phase, bar.measure, bar.bar, bar.aim, value, bar.unit, verdict))
    return found


def reached(bar: Bar, kept: ResultFile) -> float | None:
    """Return the median of the rounds, or None without a figure.

    A ratio is the median of the ratios of each round, because a slow minute slows down both sides of one round.
    """
    ours, theirs = _rounds(kept, bar.ours), _rounds(kept, bar.theirs)
    if not ours or (bar.theirs and not theirs):
        return None
    if not bar.theirs:
        return max(ours.values()) if bar.worst else statistics.median(ours.values())
    ratios = [ours[turn] / theirs[turn] for turn in ours if theirs.get(turn)]
    return statistics.median(ratios) if ratios else None


def _rounds(kept: ResultFile, what: str) -> dict[int, float]:
    key, _, field = what.rpartition("|")
    return {
        line["round"]: float(line[field])
        for line in kept.of(key)
        if isinstance(line.get(field), int | float) and "error" not in line
    }


def _holds(bar: str, value: float) -> bool:
    sign, number = bar.split()
    return bool(_COMPARE[sign](value, float(number)))
