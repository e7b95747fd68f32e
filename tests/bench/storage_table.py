"""The cells of `scripts/bench store` and their table: every kind of job against free jobs, in equal tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from bench.measurement import Measure, Result, ResultFile
from bench.report import number, spread, table
from bench.targets import Bar

PHASE = "store"
#: Jobs without limits first: the others are compared with them. store_pgworkers.py says what each load is.
LOADS = ("free", "keys", "tenants", "limit", "unknown", "full")
SMALL, LARGE = 10_000, 1_000_000
QUICK_LARGE = 200_000
HEADS = ["load", "waiting jobs and tables", "jobs/s", "x free", "server us/job", "WAL B/job"]
HEADS += ["first job s", "other queue, worst ms", "note"]
FEW_PARTITIONS, MANY_PARTITIONS = 20, 95


class State(NamedTuple):
    """The tables around the jobs: how many wait, how many partitions history has, whether an old snapshot is held."""

    backlog: int
    partitions: int = FEW_PARTITIONS
    pinned: bool = False

    @property
    def name(self) -> str:
        return f"{self.backlog:,}, {self.partitions} partitions" + (", pinned" if self.pinned else "")


def cell_name(load: str, state: State) -> str:
    return f"{load} {state.name}"


def measures(*, is_quick: bool, loads: Sequence[str] = ()) -> list[Measure]:
    """The cells of these loads, by default of all. Quick: one change at a time, a smaller backlog, fewer seconds."""
    wanted = {"free", *(loads or LOADS)}
    return [measure for load, measure in (_quick() if is_quick else _full()) if load in wanted]


def _quick() -> list[tuple[str, Measure]]:
    loads = [load for load in LOADS if load != "tenants"]
    cells = [(load, State(backlog)) for backlog in (SMALL, QUICK_LARGE) for load in loads]
    cells += [(load, State(SMALL, MANY_PARTITIONS)) for load in ("free", "keys")]
    cells += [(load, State(SMALL, pinned=True)) for load in ("free", "keys", "limit")]
    return [(load, _measure(load, state, secs=4, churn=50_000, about=12)) for load, state in cells]


def _full() -> list[tuple[str, Measure]]:
    states = [
        State(backlog, partitions, pinned)
        for backlog in (SMALL, LARGE)
        for pinned in (False, True)
        for partitions in (FEW_PARTITIONS, MANY_PARTITIONS)
    ]
    cells = [(load, state) for state in states for load in LOADS]
    return [(load, _measure(load, state, secs=8, churn=400_000, about=30)) for load, state in cells]


def _measure(load: str, state: State, *, secs: int, churn: int, about: float) -> Measure:
    args = [load, "--backlog", str(state.backlog), "--partitions", str(state.partitions)]
    args += ["--pinned", "--churn", str(churn)] if state.pinned else []
    args += ["--secs", str(secs), "--bound", "10"]
    return Measure(PHASE, cell_name(load, state), "store_pgworkers.py", tuple(args), seconds=about)


def bars(large: int) -> tuple[Bar, ...]:
    """What a store must reach where jobs are not free. `large` is the larger backlog of the run."""

    def rate(load: str, state: State) -> str:
        return f"{PHASE}|{cell_name(load, state)}|steady_per_s"

    small, big = State(SMALL), State(large)
    many, pinned = State(SMALL, MANY_PARTITIONS), State(SMALL, pinned=True)
    against_free = [(load, big) for load in ("keys", "limit", "unknown", "full")]
    against_free += [(load, pinned) for load in ("keys", "limit")]
    flat_keys = f"keys, {large:,} waiting against {SMALL:,}"
    flat_partitions = f"free, {MANY_PARTITIONS} partitions against {FEW_PARTITIONS}"
    return (
        Bar(flat_keys, ">= 0.9", ">= 1.0", rate("keys", big), rate("keys", small)),
        Bar(flat_partitions, ">= 0.9", "", rate("free", many), rate("free", small)),
        *(
            Bar(
                f"{cell_name(load, state)}: x free",
                ">= 0.5",
                ">= 0.9",
                rate(load, state),
                rate("free", state),
            )
            for load, state in against_free
        ),
        *(
            Bar(
                f"{cell_name(load, big)}: longest wait in another queue",
                "<= 2000",
                "",
                f"{PHASE}|{cell_name(load, big)}|mail_worst_ms",
                unit="ms",
                worst=True,
            )
            for load in ("unknown", "full")
        ),
    )


def largest_backlog(kept: ResultFile) -> int:
    return max((int(line["backlog"]) for line in kept.lines if "backlog" in line), default=LARGE)


def cells_table(kept: ResultFile) -> str:
    """One row for each cell: the rate, and its ratio to free jobs in the same state and round."""
    rows = []
    for name in dict.fromkeys(line["name"] for line in kept.lines if line["phase"] == PHASE):
        lines = kept.of(f"{PHASE}|{name}")
        good = [line for line in lines if "error" not in line]
        notes = [str(text) for line in lines if (text := line.get("error") or line.get("note"))]
        load, _, state = name.partition(" ")
        rows.append(
            [
                load,
                state,
                spread(good, "steady_per_s"),
                _ratio(good, kept.of(f"{PHASE}|free {state}")),
                spread(good, "store_us"),
                spread(good, "wal_bytes_per_job"),
                spread(good, "first_s"),
                spread(good, "mail_worst_ms"),
                "; ".join(dict.fromkeys(notes)),
            ]
        )
    return table(HEADS, rows)


def _ratio(lines: list[Result], free: list[Result]) -> str:
    base = {line["round"]: line["steady_per_s"] for line in free if line.get("steady_per_s")}
    ratios = [line["steady_per_s"] / base[line["round"]] for line in lines if line["round"] in base]
    return number(statistics.median(ratios)) if ratios else "-"
