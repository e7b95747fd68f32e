"""Waiting in a Jupyter kernel and at the asyncio prompt, where an event loop runs; progress bars; HTML."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.cluster import wait_for
from support.database_host import DatabaseHost
from support.notebook_kernel import Kernel

from pgworkers import App, NotFound, ResultTimeout, UsageError
from pgworkers.client import html, progress_bars
from pgworkers.job import finish
from pgworkers.job.model import ClaimedJob, JobState
from pgworkers.postgres import connect
from pgworkers.settings import Settings

Db = psycopg.Connection[Any]


@pytest.fixture
def worker(dsn: str) -> Iterator[DatabaseHost]:
    conn = connect.connect(Settings(statement_timeout=60.0), dsn, "test")
    made = DatabaseHost(conn, "pgworkers")
    made.register()
    yield made
    conn.close()


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    made = App(dsn=dsn, poll_interval="0.05s")
    made.queue("a")

    @made.task(name="t")
    def t() -> int:
        raise NotImplementedError

    yield made
    made.close()


@pytest.fixture
def kernel(dsn: str, tmp_path: Path) -> Iterator[Kernel]:
    made = Kernel(tmp_path)
    started = made.run(
        f"import asyncio; from pgworkers import App; app = App(dsn={dsn!r}, poll_interval='0.05s')"
    )
    assert started == ""
    yield made
    made.close()


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def waiting(db: Db) -> bool:
    row = db.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgworkers wait'"
    ).fetchone()
    return row is not None and row[0] > 0


def finish_when_waited_for(worker: DatabaseHost, db: Db, result: str) -> threading.Thread:
    def work() -> None:
        wait_for(lambda: waiting(db))
        worker.finish_job(worker.claim()[0], result=result)

    return in_thread(work)


def report(worker: DatabaseHost, claimed: ClaimedJob, progress: str) -> None:
    update = finish.ProgressUpdate(**claimed.fence._asdict(), progress=progress, checkpoint=None)
    worker.execute(finish.save_progress(worker.id, [update]))


def test_a_cell_can_wait_and_a_coroutine_cannot(
    kernel: Kernel, app: App, worker: DatabaseHost, db: Db
) -> None:
    assert kernel.run("asyncio.get_running_loop().is_running()") == "True"
    job = worker.enqueue()
    kernel.run(f"job = app.job({job})")
    assert kernel.run("job.state") == "'ready'"
    ending = finish_when_waited_for(worker, db, "[5]")
    assert kernel.run("job.result(timeout=60)") == "[5]"
    ending.join()
    assert kernel.run("def helper():\n    return job.result()\nhelper()") == "[5]"
    assert kernel.run("await asyncio.sleep(0)\njob.result()") == "[5]", "a cell with await is a cell"
    assert kernel.run("[event.kind for event in job.watch()]") == "['end']"
    assert kernel.run("job.wait()") == "'succeeded'"
    assert "<th>state</th><td>succeeded</td>" in kernel.run("job")
    kernel.run("async def main():\n    return job.result()")
    assert kernel.run("await main()").startswith("UsageError: job.result() would block the event loop")
    assert kernel.run("await asyncio.create_task(main())").startswith("UsageError: ")
    callback = (
        "done = asyncio.get_running_loop().create_future()\n"
        "def later():\n"
        "    try: done.set_result(job.result())\n"
        "    except Exception as error: done.set_result(type(error).__name__)\n"
        "asyncio.get_running_loop().call_soon(later); await done"
    )
    assert kernel.run(callback) == "'UsageError'"
    assert kernel.run("await job.aresult()") == "[5]"
    batch = app.batch(app.tasks["t"].prepare() for _ in range(3))
    for claimed in worker.claim(3):
        worker.finish_job(claimed)
    assert "<th>succeeded</th><td>3</td>" in kernel.run(f"app.get_batch({batch.id})")
    shown = kernel.run(f"app.get_batch({batch.id}).wait(progress=True)")
    assert "FloatProgress" in shown, "ipywidgets"
    assert "total=3, live=0" in shown


def test_interrupting_a_cell_ends_its_wait(kernel: Kernel, worker: DatabaseHost, db: Db) -> None:
    job = worker.enqueue()
    for call in (f"app.job({job}).result()", f"list(app.job({job}).watch())"):

        def interrupt() -> None:
            wait_for(lambda: waiting(db))
            kernel.interrupt()

        interrupting = in_thread(interrupt)
        assert kernel.run(call).startswith("KeyboardInterrupt")
        interrupting.join()
        wait_for(lambda: not waiting(db))
    assert worker.job_view(job).state == "ready"


def test_the_asyncio_prompt_can_wait(dsn: str, worker: DatabaseHost) -> None:
    job = worker.enqueue()
    worker.finish_job(worker.claim()[0], result="5")
    lines = [
        "import sys; from pgworkers import App",
        f"app = App(dsn={dsn!r}); job = app.job({job})",
        "print('state', job.state, 'result', job.result())",
        "async def main(): return job.result()",
        "",
        "await main()",
        "print('async', await job.aresult())",
        "",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "asyncio"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "state succeeded result 5" in done.stdout
    assert "async 5" in done.stdout
    assert "UsageError: job.result() would block the event loop" in done.stderr


def test_a_script_is_not_taken_for_a_prompt(dsn: str, worker: DatabaseHost) -> None:
    """A cell is recognised by the shell that runs it, not by the name of its module."""
    code = (
        "import asyncio, sys\n"
        "from pgworkers import App\n"
        "app = App(dsn=sys.argv[1])\n"
        "async def main():\n"
        "    exec(compile('app.job(1).result()', '<cell>', 'exec'), globals())\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, dsn], capture_output=True, text=True, timeout=120, check=False
    )
    assert "UsageError: job.result() would block the event loop" in done.stderr


def test_waiting_returns_how_the_job_ended(app: App, worker: DatabaseHost) -> None:
    job = app.job(worker.enqueue())
    with pytest.raises(ResultTimeout):
        job.wait(timeout=0.1)
    worker.finish_job(worker.claim()[0], JobState.DEAD, error="ValueError: no")
    assert job.wait() == "dead"
    assert asyncio.run(job.await_end()) == "dead"
    with pytest.raises(NotFound):
        app.job(999_999).wait()


@pytest.mark.filterwarnings("ignore")  # of tqdm
@pytest.mark.parametrize("kind", ["rich", "tqdm"])
def test_a_bar_follows_a_job(
    app: App, worker: DatabaseHost, capfd: pytest.CaptureFixture[str], kind: Any
) -> None:
    job = worker.enqueue()
    (claimed,) = worker.claim()
    report(worker, claimed, '{"done": 3, "total": 4, "note": "[bold]page[/bold]"}')
    states: list[str] = []
    thread = in_thread(lambda: states.append(app.job(job).wait(progress=kind)))
    wait_for(lambda: app.client.background_loop().is_usable)
    wait_for(lambda: "3/4" in capfd.readouterr().err if kind == "tqdm" else True)
    worker.finish_job(claimed)
    thread.join(60)
    assert states == ["succeeded"]
    if kind == "rich":
        out = capfd.readouterr().out
        assert f"job #{job}" in out
        assert "100%" in out


@pytest.mark.parametrize("kind", [True, "rich"])
def test_a_bar_follows_a_batch(
    app: App, worker: DatabaseHost, db: Db, capfd: pytest.CaptureFixture[str], kind: Any
) -> None:
    batch = app.batch(app.tasks["t"].prepare() for _ in range(3))
    with pytest.raises(ResultTimeout, match=f"batch #{batch.id} is not finished"):
        batch.wait(timeout=0.1, progress=kind)
    found: list[Any] = []
    thread = in_thread(lambda: found.append(batch.wait(progress=kind)))
    for claimed in worker.claim(3):
        worker.finish_job(claimed)
    thread.join(60)
    assert (found[0].total, found[0].succeeded) == (3, 3)
    shown = capfd.readouterr()
    assert f"batch #{batch.id}" in shown.out + shown.err  # True: tqdm, if another test has imported it


def test_a_bar_that_does_not_exist_is_refused(app: App) -> None:
    with pytest.raises(UsageError, match="use True, 'ipywidgets', 'tqdm', 'rich'"):
        app.job(1).wait(progress="bar")  # type: ignore[arg-type]


def test_a_bar_of_a_library_that_is_not_installed_says_so(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(UsageError, match="install ipywidgets, or use progress=True"):
        app.job(1).wait(progress="ipywidgets")
    assert not progress_bars.is_in_kernel()


def test_html_escapes_what_comes_from_the_database(app: App, worker: DatabaseHost) -> None:
    job = worker.enqueue()
    (claimed,) = worker.claim()
    report(worker, claimed, '{"done": 1, "total": 2, "note": "<script>alert(1)</script>"}')
    shown = app.job(job)._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert 'value="0.5000"' in shown
    worker.finish_job(claimed, JobState.DEAD, error="<b>" + "x" * 10_000)
    shown = app.job(job)._repr_html_()
    assert "&lt;b&gt;" in shown
    assert len(shown) < 3000
    assert "there is no job #999999" in app.job(999_999)._repr_html_()
    assert "there is no batch #999999" in app.get_batch(999_999)._repr_html_()
    assert html.job_html(1, None) == "<table><caption>Job #1</caption></table>"


def test_html_does_not_block_an_event_loop(app: App, worker: DatabaseHost) -> None:
    async def main() -> None:
        job = app.job(worker.enqueue())
        assert "await job.arefresh()" in job._repr_html_()
        await job.arefresh()
        assert "<td>ready</td>" in job._repr_html_()
        batch = app.get_batch(1)
        assert "await batch.acounts()" in batch._repr_html_()
        with pytest.raises(UsageError, match=r"await batch.await_end\(\)"):
            batch.wait()
        with pytest.raises(UsageError, match=r"await job.await_end\(\)"):
            job.wait()
        await app.aclose()

    asyncio.run(main())
