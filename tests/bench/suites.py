"""Which measurements belong together. Every peer runs its fastest documented variant, with two workers by default."""

from __future__ import annotations

from bench.measurement import Measure

#: Phases of `peers` that belong in one evening, and those that take long.
CORE = ("drain", "latency", "enqueue", "cpu", "mem", "fork", "idle", "fairness", "crowd", "storage")
LONG = ("backlog", "horizon")
PHASES = CORE + LONG

_VARIANTS = {  # name -> script, environment, variant
    "pgworkers": ("peer_pgworkers.py", "pgworkers", "default"),
    "bare pipe": ("peer_bare.py", "pgworkers", "pipe"),
    "bare claim50": ("peer_bare.py", "pgworkers", "claim50"),
    "graphile batched": ("peer_graphile.py", "graphile", "batched"),
    "graphile": ("peer_graphile.py", "graphile", "default"),
    "graphile c1": ("peer_graphile.py", "graphile", "c1"),
    "pgqueuer inline50": ("peer_pgqueuer.py", "pgqueuer", "inline50"),
    "pgqueuer": ("peer_pgqueuer.py", "pgqueuer", "default"),
    "celery": ("peer_celery.py", "celery", "default"),
    "rq": ("peer_rq.py", "rq", "default"),
    "dramatiq": ("peer_dramatiq.py", "dramatiq", "default"),
    "procrastinate": ("peer_procrastinate.py", "procrastinate", "default"),
    "awa w100": ("peer_awa.py", "awa", "w100"),
    "awa": ("peer_awa.py", "awa", "default"),
    "chancy": ("peer_chancy.py", "chancy", "default"),
    "pgworkers max_jobs=1": ("peer_pgworkers.py", "pgworkers", "maxjobs1"),
    "bare forkjob": ("peer_bare.py", "pgworkers", "forkjob"),
    "pgworkers numpy": ("peer_pgworkers.py", "pgworkers", "numpy"),
}


def _peer(phase: str, name: str, command: str, *args: str, **how: object) -> Measure:
    script, environment, variant = _VARIANTS[name]
    label = str(how.pop("label", name))
    return Measure(phase, label, script, (command, "--variant", variant, *args), environment, **how)  # type: ignore[arg-type]


def _limit(phase: str, command: str, *args: str, seconds: float = 10, label: str = "") -> Measure:
    return Measure(
        phase, label or f"pgbench {command}", "limit.py", (command, *args), "pgworkers", seconds=seconds
    )


def _own(phase: str, name: str, command: str, *args: str, seconds: float = 20, rounds: int = 0) -> Measure:
    return Measure(phase, name, "own_pgworkers.py", (command, *args), "pgworkers", rounds, seconds)


def quick() -> list[Measure]:
    """About two minutes for three rounds: us, the machine's limit, and a prototype that does nothing but the work."""
    return [
        _limit("drain", "claim50", "--secs", "2", "--n", "150000", seconds=4),
        _peer("drain", "pgworkers", "drain", "--n", "20000", seconds=6),
        _peer("drain", "bare pipe", "drain", "--n", "20000", seconds=5),
        _peer("latency", "pgworkers", "latency", "--n", "60", seconds=8),
        _peer("latency", "bare pipe", "latency", "--n", "60", seconds=7),
        _limit("enqueue", "insert1", "--secs", "2", seconds=3),
        _peer(
            "enqueue",
            "pgworkers",
            "enqueue",
            "--mode",
            "single",
            "--n",
            "2000",
            seconds=4,
            label="pgworkers single",
        ),
        _limit("enqueue", "copy", seconds=2, label="COPY"),
        _peer(
            "enqueue",
            "pgworkers",
            "enqueue",
            "--mode",
            "bulk",
            "--n",
            "50000",
            seconds=4,
            label="pgworkers bulk",
        ),
    ]


def peers(phase: str) -> list[Measure]:
    return {
        "drain": _drain,
        "latency": _latency,
        "enqueue": _enqueue,
        "cpu": _cpu,
        "mem": _mem,
        "fork": _fork,
        "idle": lambda: [
            _own("idle", "pgworkers 8 workers", "idle", "--procs", "8", "--secs", "20", seconds=32)
        ],
        "fairness": lambda: [_own("fairness", "pgworkers", "fairness", seconds=18)],
        "crowd": lambda: [
            _own(
                "crowd",
                "pgworkers 64 workers",
                "crowd",
                "--procs",
                "64",
                "--n",
                "60000",
                "--kind",
                "sleep1",
                seconds=20,
            )
        ],
        "storage": lambda: [_own("storage", "pgworkers", "storage", "--n", "20000", seconds=14)],
        "backlog": _backlog,
        "horizon": _horizon,
    }[phase]()


def _drain() -> list[Measure]:
    return [
        _limit("drain", "claim50", "--secs", "4"),
        _limit("drain", "claim1", "--secs", "4", seconds=7),
        _peer("drain", "pgworkers", "drain", "--n", "20000", seconds=8),
        _peer("drain", "bare pipe", "drain", "--n", "20000", seconds=6),
        _peer("drain", "graphile batched", "drain", "--n", "20000", seconds=9),
        _peer("drain", "pgqueuer inline50", "drain", "--n", "20000", seconds=9),
        _peer("drain", "celery", "drain", "--n", "5000", seconds=18),
        _peer("drain", "graphile", "drain", "--n", "10000", seconds=12, rounds=1),
        _peer("drain", "pgqueuer", "drain", "--n", "10000", seconds=10, rounds=1),
        _peer("drain", "dramatiq", "drain", "--n", "10000", seconds=10, rounds=1),
        _peer("drain", "awa w100", "drain", "--n", "10000", seconds=12, rounds=1),
        _peer("drain", "procrastinate", "drain", "--n", "3000", seconds=14, rounds=1),
        _peer("drain", "chancy", "drain", "--n", "800", seconds=14, rounds=1),
    ]


def _latency() -> list[Measure]:
    return [
        _peer("latency", "pgworkers", "latency", "--n", "150", seconds=14),
        _peer("latency", "graphile", "latency", "--n", "150", seconds=13),
        _own("latency", "pgworkers, 7 queues busy", "busy", "--n", "150", "--kind", "sleep10", seconds=20),
        _own(
            "latency",
            "pgworkers, 7 queues use the CPU",
            "busy",
            "--n",
            "100",
            "--kind",
            "cpu",
            seconds=20,
            rounds=1,
        ),
        _peer("latency", "bare pipe", "latency", "--n", "150", seconds=12, rounds=1),
        *(
            _peer("latency", name, "latency", "--n", "150", seconds=14, rounds=1)
            for name in ("pgqueuer", "celery", "rq", "procrastinate", "awa", "chancy", "dramatiq")
        ),
    ]


def _enqueue() -> list[Measure]:
    def both(name: str, single: int, bulk: int, **how: int) -> list[Measure]:
        return [
            _peer(
                "enqueue",
                name,
                "enqueue",
                "--mode",
                "single",
                "--n",
                str(single),
                label=f"{name} single",
                seconds=5,
                **how,
            ),
            _peer(
                "enqueue",
                name,
                "enqueue",
                "--mode",
                "bulk",
                "--n",
                str(bulk),
                label=f"{name} bulk",
                seconds=5,
                **how,
            ),
        ]

    return [
        _limit("enqueue", "insert1", "--secs", "3", seconds=5),
        _limit("enqueue", "copy", seconds=3, label="COPY"),
        *both("pgworkers", 4000, 100_000),
        *both("graphile", 3000, 30_000),
        *both("pgqueuer", 3000, 30_000, rounds=1),
        *both("procrastinate", 2000, 10_000, rounds=1),
        *both("awa", 1500, 20_000, rounds=1),
        *both("celery", 2000, 5000, rounds=1),
        *both("rq", 2000, 10_000, rounds=1),
        *(
            _own("enqueue", f"8 enqueuers, {what}", "enqueuers", "--n", "1200", "--mode", mode, seconds=9)
            for mode, what in (
                ("on", "notifications on"),
                ("off", "notifications off"),
                ("asleep", "notifications off, the host asleep"),
            )
        ),
    ]


def _cpu() -> list[Measure]:
    return [
        _peer("cpu", "pgworkers", "cpu", seconds=18),
        _peer("cpu", "graphile c1", "cpu", seconds=18, rounds=1, label="graphile"),
        *(
            _peer("cpu", name, "cpu", seconds=20, rounds=1)
            for name in ("celery", "rq", "dramatiq", "pgqueuer", "procrastinate", "awa", "chancy")
        ),
    ]


def _mem() -> list[Measure]:
    return [
        _peer("mem", "pgworkers", "mem", seconds=16),
        _peer("mem", "pgworkers numpy", "mem", seconds=16),
        *(
            _peer("mem", name, "mem", seconds=18, rounds=1)
            for name in ("celery", "rq", "graphile", "dramatiq", "procrastinate", "awa")
        ),
    ]


def _fork() -> list[Measure]:
    return [
        _peer("fork", "pgworkers max_jobs=1", "drain", "--n", "1500", seconds=10),
        _peer("fork", "rq", "drain", "--n", "1000", seconds=15),
        _peer("fork", "bare forkjob", "drain", "--n", "1500", seconds=8),
    ]


def _backlog() -> list[Measure]:
    """Standing: the backlog keeps its size; the bar is on it. Drained: it is worked off, for 13 s at most."""

    def both(name: str, seconds: float, **how: int) -> list[Measure]:
        def one(what: str, jobs: int, about: float, *args: str) -> Measure:
            label = f"{name} {jobs:,} {what}"
            command = {"standing": "standing", "drained": "backlog"}[what]
            return _peer("backlog", name, command, "--n", str(jobs), *args, label=label, seconds=about, **how)

        return [
            one("standing", 10_000, 25),
            one("standing", 1_000_000, seconds),
            one("drained", 10_000, 25, "--repeat", "5"),
            one("drained", 1_000_000, seconds),
        ]

    return [
        *both("pgworkers", 60),
        *both("graphile batched", 90, rounds=1),
        *both("pgqueuer inline50", 90, rounds=1),
        _limit("backlog", "backlog", "--n", "10000", seconds=8, label="pgbench claim1 10,000"),
        _limit("backlog", "backlog", "--n", "1000000", seconds=20, label="pgbench claim1 1,000,000"),
    ]


def _horizon() -> list[Measure]:
    return [
        _peer("horizon", "pgworkers", "horizon", "--secs", "120", "--pin", "1", seconds=130),
        _peer(
            "horizon",
            "pgworkers",
            "horizon",
            "--secs",
            "60",
            "--pin",
            "0",
            seconds=70,
            rounds=1,
            label="pgworkers unpinned",
        ),
        _peer("horizon", "awa w100", "horizon", "--secs", "120", "--pin", "1", seconds=140, rounds=1),
        _peer("horizon", "graphile", "horizon", "--secs", "120", "--pin", "1", seconds=140, rounds=1),
        Measure(
            "horizon", "pgbench", "limit.py", ("horizon", "--secs", "120", "--pin", "1"), "pgworkers", 1, 130
        ),
    ]


def curve() -> list[Measure]:
    """Throughput and pickup over workers and job lengths, backlog, time under a pinned xmin, queues."""

    def point(phase: str, name: str, *args: str, seconds: float) -> Measure:
        return Measure(phase, name, "curve_pgworkers.py", ("point", *args), "pgworkers", 0, seconds)

    found: list[Measure] = []
    for length in (0, 1, 10, 100):
        what = f"{length} ms jobs" if length else "no-op jobs"
        for workers in (1, 2, 4, 8, 16, 64):
            jobs = max(100, min(20_000, 5000 * workers // length)) if length else 20_000
            busy = jobs * length / 1000 / workers
            found.append(
                point(
                    what,
                    f"{workers} workers",
                    *(
                        "--procs",
                        str(workers),
                        "--kind",
                        f"sleep{length}" if length else "noop",
                        "--n",
                        str(jobs),
                    ),
                    *("--tries", "100"),
                    seconds=20 + busy + (20 if length == 100 and workers < 4 else 0),
                )
            )
    for backlog, seconds in ((10_000, 22), (100_000, 25), (1_000_000, 60)):
        found.append(point("backlog", f"{backlog:,} ready", "--backlog", str(backlog), seconds=seconds))
        repeat = "5" if backlog < 1_000_000 else "1"
        drain = ("backlog", "--variant", "default", "--n", str(backlog), "--repeat", repeat)
        found.append(
            Measure("backlog", f"{backlog:,} drained", "peer_pgworkers.py", drain, "pgworkers", 0, seconds)
        )
    found.append(Measure("pinned xmin", "2 minutes", "curve_pgworkers.py", ("pinned",), "pgworkers", 0, 135))
    for count in (1, 10, 100):
        found.append(
            point("queues", f"{count} queues", "--queues", str(count), "--procs", "1", seconds=20 + count / 3)
        )
    return found
