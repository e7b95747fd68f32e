"""The scratch directory of a run: servers of our own on loopback, environments of the peers."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from pgworkers.embedded import account as accounts
from pgworkers.embedded import binaries
from pgworkers.embedded.binaries import Binaries

PROJECT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "peers"
#: Durable commits; the rest as a small dedicated server would have it.
POSTGRES = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "autovacuum": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "4GB",
    "max_connections": "300",
    "listen_addresses": "127.0.0.1",
}
#: Environment -> what pip installs into it.
PYTHON_PEERS = {
    "procrastinate": ["procrastinate", "psycopg[binary,pool]"],
    "pgqueuer": ["pgqueuer", "asyncpg", "uvloop", "psycopg[binary,pool]"],
    "chancy": ["chancy", "psycopg[binary,pool]"],
    "awa": ["awa-pg", "psycopg[binary,pool]", "asyncpg"],
    "celery": ["celery", "redis", "packaging"],
    "rq": ["rq", "redis"],
    "dramatiq": ["dramatiq", "redis"],
}
NEEDS_REDIS = ("celery", "rq", "dramatiq")
NODE_PEERS = ["graphile-worker", "pg"]


class BenchDirectory:
    """One scratch directory."""

    def __init__(self, root: Path, bindir: Path | None, environments: Path | None = None) -> None:
        self.root = root.absolute()
        #: Where the peers live; a directory made by the harness's own setup.sh has the same shape.
        self.environments = (environments or self.root).absolute()
        self._bindir = bindir
        self.pg_port = free_port()
        self.redis_port = free_port()
        self.programs: Binaries | None = None
        self.missing: dict[str, str] = {}  # peer -> why it cannot be measured here
        for name in ("run", "logs", "results", "node", "venvs"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)
        (self.root / "run").chmod(0o777)

    # -- servers -----------------------------------------------------------------------------------------------------

    @contextmanager
    def postgres(self) -> Iterator[str]:
        """A server with durable commits; its version. The data directory is created from scratch."""
        data, log = self.root / "pg" / "data", self.root / "pg" / "server.log"
        shutil.rmtree(self.root / "pg", ignore_errors=True)
        account = accounts.choose_account(self.root, None)
        programs = binaries.find_binaries(account, self._bindir, (self.root / "store",), None)
        self.programs = programs
        (self.root / "pg").mkdir()
        if account.is_other_user:
            os.chown(self.root / "pg", account.uid, account.gid)
        argv = [
            programs.program("initdb"),
            "-D",
            data,
            "-A",
            "trust",
            "-U",
            "postgres",
            "--locale=C",
            "-E",
            "UTF8",
        ]
        if accounts.run_as(account, argv, timeout=300) is None:
            raise SystemExit(f"bench: initdb of {programs.bindir} failed; nothing was measured")
        options = [part for name, value in POSTGRES.items() for part in ("-c", f"{name}={value}")]
        with log.open("wb") as out:
            server = subprocess.Popen(
                [programs.program("postgres"), "-D", data, "-p", str(self.pg_port), "-k", "", *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # Ctrl-C is for us: the server is stopped when the clients are gone
                user=account.uid if account.is_other_user else None,
                group=account.gid if account.is_other_user else None,
                extra_groups=[] if account.is_other_user else None,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
                cwd="/",
            )
        try:
            _await_port(self.pg_port, server, log)
            _await_answer(self.pg_port)
            yield programs.version
        finally:
            server.send_signal(2)  # fast shutdown
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
            shutil.rmtree(self.root / "pg", ignore_errors=True)

    @contextmanager
    def redis(self) -> Iterator[str]:
        """A Redis with its usual snapshots, or nothing and a reason."""
        program = shutil.which("redis-server")
        if program is None:
            for peer in NEEDS_REDIS:
                self.missing.setdefault(peer, "no redis-server on PATH")
            yield ""
            return
        home = self.root / "redis"
        home.mkdir(exist_ok=True)
        log = self.root / "logs" / "redis.log"
        with log.open("wb") as out:
            server = subprocess.Popen(
                [
                    *(program, "--port", str(self.redis_port), "--bind", "127.0.0.1", "--dir", str(home)),
                    *("--save", "3600 1 300 100 60 10000", "--appendonly", "no"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            _await_port(self.redis_port, server, log)
            found = re.search(r"v=([\d.]+)", _command_output([program, "--version"]))
            yield found[1] if found else "?"
        finally:
            server.terminate()
            server.wait(30)

    # -- environments ------------------------------------------------------------------------------------------------

    def prepare(self, peers: list[str], say: object = print) -> None:
        """Install what is missing; what cannot be installed is in `missing`, with the reason."""
        for name in peers:
            if name in PYTHON_PEERS:
                self._python(name, PYTHON_PEERS[name])
            elif name == "graphile":
                self._node()
        if (
            {"celery", "rq", "dramatiq"} & set(peers)
            and shutil.which("redis-server") is None
            and os.geteuid() == 0
        ):
            print_progress("installing redis-server by apt-get")
            _run(["apt-get", "install", "-y", "-qq", "redis-server"], 300)

    def numpy(self) -> Path | None:
        """A directory with numpy for PYTHONPATH: the project's own environment does not need it."""
        for place in (self.environments / "numpy", self.root / "numpy"):
            if (place / "numpy").is_dir():
                return place
        print_progress("installing numpy")
        done = _run([sys.executable, "-m", "pip", "install", "-q", "--target", str(place), "numpy"], 300)
        return place if done == "" else None

    def _python(self, name: str, packages: list[str]) -> None:
        venv = self.environments / "venvs" / name
        if (venv / "bin" / "python").exists():
            return
        print_progress(f"making the environment of {name}: {' '.join(packages)}")
        why = _run([sys.executable, "-m", "venv", str(venv)], 120)
        why = why or _run([str(venv / "bin" / "pip"), "install", "-q", *packages], 600)
        if why:
            shutil.rmtree(venv, ignore_errors=True)
            self.missing[name] = f"pip could not install it: {why}"

    def _node(self) -> None:
        node, npm = shutil.which("node"), shutil.which("npm")
        if node is None or npm is None:
            self.missing["graphile"] = "no node or npm on PATH"
            return
        home = self.environments / "node"
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "node_modules" / "graphile-worker").is_dir():
            print_progress(f"installing {' '.join(NODE_PEERS)} by npm")
            why = _run([npm, "install", "--silent", "--prefix", str(home), *NODE_PEERS], 600)
            if why:
                self.missing["graphile"] = f"npm could not install it: {why}"

    def python(self, peer: str) -> str:
        venv = self.environments / "venvs" / peer / "bin" / "python"
        return str(venv) if peer in PYTHON_PEERS else sys.executable

    def environ(self, **more: str) -> dict[str, str]:
        """What a measurement sees: nothing of the caller's Postgres or pgworkers settings."""
        assert self.programs is not None
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PG", "PGWORKERS", "BENCH", "PYTHON")) and name != "DATABASE_URL"
        }
        return kept | {
            "BENCH_ROOT": str(self.root),
            "BENCH_PG_PORT": str(self.pg_port),
            "BENCH_REDIS_PORT": str(self.redis_port),
            "PATH": f"{self.programs.bindir}:{os.environ['PATH']}",
            **more,
        }

    def link_scripts(self) -> None:
        """The harness as the peers see it: workers start in this directory."""
        target = self.root / "scripts"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(SCRIPTS, target, ignore=shutil.ignore_patterns("__pycache__", "ruff.toml"))
        shutil.copy(SCRIPTS.parents[1] / "support" / "history_partitions.py", target)
        (target / "node_modules").symlink_to(self.environments / "node" / "node_modules")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def print_progress(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def machine(postgres: str, redis: str) -> dict[str, object]:
    """What a reader must know to compare."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    total = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(total[1]) / 2**20, 1) if total else None,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "node": _command_output(["node", "--version"]).strip() or None,
        "postgres": postgres,
        "redis": redis or None,
        "postgres_settings": POSTGRES,
        "revision": _command_output(["git", "-C", str(PROJECT), "describe", "--always", "--dirty"]).strip()
        or None,
        "load_before": round(os.getloadavg()[0], 2),
    }


def _await_port(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        if server.poll() is not None:
            break
        time.sleep(0.05)
    raise SystemExit(f"bench: {server.args!r} did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _await_answer(port: int) -> None:
    """A server that accepts may still say that it is starting up."""
    for _ in range(200):
        try:
            psycopg.connect(host="127.0.0.1", port=port, user="postgres", dbname="postgres").close()
            return
        except psycopg.OperationalError:
            time.sleep(0.05)


def _run(argv: list[str], timeout: float) -> str:
    """Return "" if it worked, else the last line of its output."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)[:200]
    return "" if done.returncode == 0 else (done.stderr or done.stdout).strip()[-200:] or "it failed"


def _command_output(argv: list[str]) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
