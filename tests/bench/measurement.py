"""One measurement: a command that prints one JSON line, run in a fresh process, kept in a file of such lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.environment import BenchDirectory, print_progress

Result = dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """What is run. `phase` and `name` are its key; the same key is run once per round."""

    phase: str
    name: str  # who: pgworkers, graphile batched, pgbench claim50
    script: str  # in peers/
    args: tuple[str, ...]
    peer: str = "pgworkers"  # whose environment; "" is the project's own
    rounds: int = 0  # at most; 0: as many as asked for
    seconds: float = 20  # about; what it may take is five times that
    environ: tuple[tuple[str, str], ...] = field(default=())

    @property
    def key(self) -> str:
        return f"{self.phase}|{self.name}"


class ResultFile:
    """The results of one run, a line each; what is there is not measured again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Result] = []
        if path.exists():
            self.lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]

    def has(self, key: str, turn: int) -> bool:
        return any(
            line["key"] == key and line["round"] == turn and "error" not in line for line in self.lines
        )

    def add(self, line: Result) -> None:
        self.lines = [old for old in self.lines if (old["key"], old["round"]) != (line["key"], line["round"])]
        self.lines.append(line)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def of(self, key: str) -> list[Result]:
        return [line for line in self.lines if line["key"] == key]


def run(place: BenchDirectory, measures: list[Measure], rounds: int, kept: ResultFile) -> None:
    """Measure in rounds, so that a slow minute of the machine affects every measurement."""
    todo = [
        (turn, measure)
        for turn in range(1, rounds + 1)
        for measure in measures
        if turn <= (measure.rounds or rounds) and not kept.has(measure.key, turn)
    ]
    skipped = sum(min(measure.rounds or rounds, rounds) for measure in measures) - len(todo)
    if skipped:
        print_progress(f"{skipped} results are already in {kept.path}; --again forgets them")
    left = sum(measure.seconds for _, measure in todo)
    for number, (turn, measure) in enumerate(todo, 1):
        place_in_line = f"[{number}/{len(todo)}, about {left / 60:.0f} min left]"
        why = place.missing.get(measure.peer)
        if why is None:
            found = once(place, measure)
        else:
            found = {"error": f"not measured: {why}"}
        kept.add(
            {
                "key": measure.key,
                "phase": measure.phase,
                "name": measure.name,
                "round": turn,
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "load": round(os.getloadavg()[0], 2),
                **found,
            }
        )
        left -= measure.seconds
        print_progress(f"{place_in_line} round {turn} {measure.phase}: {measure.name}: {brief(found)}")


def once(place: BenchDirectory, measure: Measure) -> Result:
    """Run it; an error is a result, too."""
    argv = [place.python(measure.peer), str(place.root / "scripts" / measure.script), *measure.args]
    began = time.monotonic()
    process = subprocess.Popen(
        argv,
        env=place.environ(**dict(measure.environ)),
        cwd=place.root / "scripts",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=60 + 5 * measure.seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        return {"error": f"not done after {time.monotonic() - began:.0f} s"}
    except BaseException:
        _end(process)
        raise
    took = round(time.monotonic() - began, 1)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        said = (err.strip() or out.strip()).splitlines()
        return {"error": f"exit {process.returncode}: {said[-1] if said else 'said nothing'}"[:300]}
    return {**json.loads(lines[-1]), "took": took}


def _end(process: subprocess.Popen[str]) -> None:
    """It stops what it started when it is asked to; then its group, which is ours, goes."""
    process.terminate()
    try:
        process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def brief(found: Result) -> str:
    if "error" in found:
        return f"ERROR {found['error']}"
    shown = (
        "handlers_per_s",
        "total_per_s",
        "per_s",
        "steady_per_s",
        "p50",
        "p99",
        "eff",
        "w2_pss",
        "per_extra_pss",
    )
    shown += ("ratio", "cpu_percent", "statements_per_s", "worst_ms", "lag_ms", "wal_bytes_per_job")
    return ", ".join(f"{name} {found[name]:,}" for name in shown if isinstance(found.get(name), int | float))
