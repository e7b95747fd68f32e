"""scripts/bench: how fast pgworkers is.

    scripts/bench quick                          2 minutes: against pgbench and a bare prototype
    scripts/bench peers                          20 minutes: against its peers; installs them under --root
    scripts/bench peers backlog horizon          the long phases, 20 minutes more
    scripts/bench peers drain latency --rounds 1 --only graphile,celery
    scripts/bench curve                          20 minutes: over workers, job lengths, backlog, pinned xmin, queues
    scripts/bench store --quick                  4 minutes: keys, limits, unknown tasks, partitions, pinned xmin, backlog
    scripts/bench store                          25 minutes: the same as a full table with 10,000 and 1,000,000 waiting jobs
    scripts/bench report NAME --docs             the tables of an earlier run, again; --docs writes docs/performance

A run is kept under a name (--name, by default the command and today's date) and resumed: what was measured is not
measured again, unless --again. Servers are our own, on loopback, and stopped at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path[0:1] = [str(PROJECT), str(PROJECT / "tests")]

from bench import report, storage_table, suites, targets  # noqa: E402
from bench.environment import NEEDS_REDIS, BenchDirectory, machine, print_progress  # noqa: E402
from bench.measurement import Measure, ResultFile, run  # noqa: E402

DOCS = PROJECT / "docs" / "performance"


def main() -> int:
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped
    is_quick_store = given.command == "store" and given.quick
    name = given.name or f"{given.command}-{time.strftime('%Y-%m-%d')}" + ("-quick" if is_quick_store else "")
    root = given.root or Path(os.environ.get("BENCH_ROOT", "/var/tmp/pgworkers-bench"))
    place = BenchDirectory(root, given.postgres, given.environments)
    path = place.root / "results" / f"{name}.jsonl"
    if given.command == "report":
        return _report(given, name, ResultFile(path), path)
    if given.again or ((given.command == "quick" or is_quick_store) and not given.name):
        path.unlink(missing_ok=True)
    kept = ResultFile(path)
    measures = _measures(given, place)
    with place.postgres() as version, place.redis() as redis:
        place.link_scripts()
        about = machine(version, redis)
        about["at"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        path.with_suffix(".machine").write_text(json.dumps(about))
        measures = [_with(measure, _calibrated(place)) for measure in measures]
        for peer, why in place.missing.items():
            print_progress(f"CANNOT measure {peer}: {why}")
        total = sum(m.seconds * min(m.rounds or given.rounds, given.rounds) for m in measures)
        print_progress(
            f"{len(measures)} measurements, {given.rounds} rounds, about {total / 60:.0f} minutes; results in {path}"
        )
        try:
            run(place, measures, given.rounds, kept)
        except KeyboardInterrupt:
            print_progress("interrupted; the same command goes on where it stopped")
            return 130
    return _report(given, name, kept, path)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("quick", "against pgbench and a bare prototype, 2 minutes"),
        ("peers", "against the peers"),
        ("curve", "over workers, lengths, backlog, time, queues"),
        ("store", "jobs with keys and limits, many partitions, a pinned xmin, large backlogs"),
        ("report", "the tables of an earlier run"),
    ):
        sub = commands.add_parser(name, help=text)
        if name == "peers":
            sub.add_argument(
                "phases",
                nargs="*",
                metavar="PHASE",
                help=f"any of {' '.join(suites.PHASES)}; all but the last two by default",
            )
            sub.add_argument(
                "--only",
                default="",
                help="only these peers (graphile,celery…), and always pgworkers and pgbench",
            )
        if name == "curve":
            sub.add_argument("phases", nargs="*", metavar="PHASE", help="e.g. queues backlog; all by default")
        if name == "store":
            sub.add_argument(
                "loads",
                nargs="*",
                metavar="LOAD",
                help=f"any of {' '.join(storage_table.LOADS)}, and always free; all by default",
            )
            sub.add_argument("--quick", action="store_true", help="fewer cells, smaller backlogs, 4 minutes")
        if name == "report":
            sub.add_argument("name", help="of the run, e.g. peers-2026-01-31")
        else:
            sub.add_argument("--name", default="", help="of the run; the same name goes on with it")
            sub.add_argument("--again", action="store_true", help="forget what was measured under this name")
        sub.add_argument("--rounds", type=int, default=1 if name in ("curve", "store") else 3)
        sub.add_argument("--root", type=Path, help="scratch directory [BENCH_ROOT, /var/tmp/pgworkers-bench]")
        sub.add_argument("--environments", type=Path, help="where the peers are installed, if not there")
        sub.add_argument(
            "--postgres", type=Path, metavar="BINDIR", help="Postgres programs; the embedded ones by default"
        )
        sub.add_argument(
            "--docs",
            action="store_true",
            help="also write docs/performance/results-NAME.md, and delete the one before it",
        )
    return parser.parse_args()


def _measures(given: argparse.Namespace, place: BenchDirectory) -> list[Measure]:
    if given.command == "quick":
        return suites.quick()
    if given.command == "store":
        wrong = set(given.loads) - set(storage_table.LOADS)
        if wrong:
            sys.exit(f"bench: no load {', '.join(sorted(wrong))}; there are {', '.join(storage_table.LOADS)}")
        return storage_table.measures(is_quick=given.quick, loads=given.loads)
    if given.command == "curve":
        found = suites.curve()
        wrong = set(given.phases) - {measure.phase for measure in found}
        if wrong:
            sys.exit(
                f"bench: no phase {', '.join(sorted(wrong))}; there are {', '.join(dict.fromkeys(m.phase for m in found))}"
            )
        return [measure for measure in found if not given.phases or measure.phase in given.phases]
    wrong = set(given.phases) - set(suites.PHASES)
    if wrong:
        sys.exit(f"bench: no phase {', '.join(sorted(wrong))}; there are {', '.join(suites.PHASES)}")
    measures = [measure for phase in given.phases or suites.CORE for measure in suites.peers(phase)]
    only = set(filter(None, given.only.split(","))) | {"pgworkers"}
    if given.only:
        measures = [measure for measure in measures if measure.peer in only]
    place.prepare(sorted({measure.peer for measure in measures} | ({"rq"} & set(NEEDS_REDIS))))
    wanted = any("numpy" in measure.name for measure in measures)
    numpy = place.numpy() if wanted else None
    if wanted and numpy is None:
        place.missing["numpy"] = "pip could not install numpy"
    return [
        _with(measure, {"PYTHONPATH": str(numpy)}) if numpy and "numpy" in measure.name else measure
        for measure in measures
    ]


def _with(measure: Measure, environ: dict[str, str]) -> Measure:
    return Measure(**{**vars(measure), "environ": (*measure.environ, *environ.items())})


def _calibrated(place: BenchDirectory) -> dict[str, str]:
    """How many turns of the loop take 50 ms on this machine, alone on a core."""
    code = (
        "import time, harness as h\n"
        "def once(n=200000):\n    t = time.perf_counter(); h.spin(n); return (time.perf_counter() - t) / n\n"
        "print(int(0.05 / sorted(once() for _ in range(15))[7]))"
    )
    global _iterations
    if not _iterations:
        _iterations = subprocess.run(
            [sys.executable, "-c", code],
            env=place.environ(),
            cwd=place.root / "scripts",
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    return {"BENCH_CPU_ITERS": _iterations}


_iterations = ""


def _report(given: argparse.Namespace, name: str, kept: ResultFile, path: Path) -> int:
    if not kept.lines:
        sys.exit(f"bench: nothing was measured under the name {name} ({path})")
    phases = {line["phase"] for line in kept.lines}
    kind = name.partition("-")[0]
    wanted = {
        "quick": targets.QUICK,
        "curve": (),
        "store": storage_table.bars(storage_table.largest_backlog(kept)),
    }.get(kind, targets.BARS)
    judged = targets.judge(wanted, kept, phases)
    about = json.loads(path.with_suffix(".machine").read_text())
    for phase in dict.fromkeys(line["phase"] for line in kept.lines):
        print(f"\n{phase}\n{_figures(kept, phase)}")
    if judged:
        print(f"\n{report.bars(judged)}")
    title = {"quick": "Quick look", "curve": "Curves", "store": "The store"}.get(kind, "Against its peers")
    page = report.document(
        f"{title}: {about['at']}", about, judged, kept, f"scripts/bench {given.command}", _figures
    )
    written = report.write(path.parent, name, page, about, judged, kept)
    print(f"\n{written}\n{written.with_suffix('.json')}")
    if given.docs:
        print(report.publish(DOCS, name, page))
    return 0


def _figures(kept: ResultFile, phase: str) -> str:
    return storage_table.cells_table(kept) if phase == storage_table.PHASE else report.figures(kept, phase)


if __name__ == "__main__":
    sys.exit(main())
