"""A fresh process for each job: what it brings along from its supervisor, and what is its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervisor_harness import Died, Forked, HarnessWorker, SupervisorHarness, until

ONE = {"max_jobs": 1}

TASKS = """
told = []
os.register_at_fork(before=lambda: told.append("first before"), after_in_child=lambda: told.append("first in child"))
os.register_at_fork(
    before=lambda: told.append("second before"),
    after_in_parent=lambda: told.append("in parent"),
    after_in_child=lambda: told.append("second in child"),
)
os.register_at_fork(after_in_child=lambda: 1 / 0)

@app.task
def hear():
    return told

@app.task
def draw():
    return [random.random(), os.getpid()]

random.gauss(0, 1)  # which draws two, and keeps the second for the next call

@app.task
def draw_again():
    return random.gauss(0, 1)

@app.task
def belongings():
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}").partition(":")[0])
        except FileNotFoundError:
            pass
    return sorted(links)

@app.task
def fork_with_a_thread():
    rest = threading.Event()
    threading.Thread(target=rest.wait, daemon=True).start()
    told.clear()
    reads, writes = os.pipe()
    if os.fork() == 0:
        os.write(writes, repr((threading.active_count(), told)).encode())
        os._exit(0)
    os.wait()
    rest.set()
    return os.read(reads, 1000).decode()

@app.task
def count():
    return len(os.listdir("/proc/self/task"))

@app.task
def nap():
    time.sleep(600)

@app.task
def nothing():
    pass
"""


def test_what_a_module_wants_done_around_a_fork_is_done(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, TASKS, queue=ONE) as harness:
        first = harness.worker()
        heard = first.run(1, "hear")
        assert bytes(heard.result) == b'["second before","first before","first in child","second in child"]'
        harness.fact(Died, lambda died: died.pid == first.pid)
        second = harness.worker(other_than=first.pid)
        # the supervisor's own lasts from one fork to the next; the child's does not
        assert bytes(second.run(2, "hear").result) == (
            b'["second before","first before","in parent",'
            b'"second before","first before","first in child","second in child"]'
        )
        assert "ZeroDivisionError" in until("what the third hook said", harness.log.read_text)


def test_no_two_workers_draw_the_same_numbers(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, TASKS, queue=ONE) as harness:
        drawn = []
        before = 0
        for job in (1, 2, 3):
            worker = harness.worker(other_than=before)
            before = worker.pid
            number, pid = eval(bytes(worker.run(job, "draw").result))
            assert pid == worker.pid
            drawn.append(number)
        assert len(set(drawn)) == 3


def test_no_two_workers_have_the_number_that_the_import_of_the_app_left(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, TASKS, queue=ONE) as harness:
        first = harness.worker()
        drawn = bytes(first.run(1, "draw_again").result)
        assert bytes(harness.worker(other_than=first.pid).run(2, "draw_again").result) != drawn


def test_each_worker_of_a_slot_begins_as_the_one_before_it_began(tmp_path: Path) -> None:
    """They are copies of one object: what a worker changes in it ends with that worker."""
    with SupervisorHarness(tmp_path, TASKS, queue=ONE) as harness:
        seen = []
        before = 0
        for job in (1, 2, 3):
            worker = harness.worker(other_than=before)
            before = worker.pid
            seen.append(bytes(worker.run(job, "belongings").result))
            assert harness.fact(Died).status == "exit 0"
        assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("jobs", [1, None])
def test_a_fork_of_the_handler_does_all_that_is_wanted(tmp_path: Path, jobs: int | None) -> None:
    """It may have threads."""
    with SupervisorHarness(tmp_path, TASKS, queue={"max_jobs": jobs}) as harness:
        report = harness.worker().run(1, "fork_with_a_thread")
        said = "(1, ['second before', 'first before', 'first in child', 'second in child'])"
        assert bytes(report.result) == f'"{said}"'.encode(), report.error


def test_a_job_that_takes_its_time_has_a_heartbeat(tmp_path: Path) -> None:
    """The first beat of a process that has one job only comes a moment late; then it is as any other."""
    with SupervisorHarness(tmp_path, TASKS, queue=ONE) as harness:
        worker = harness.worker()
        worker.order(7, "nap")
        title = Path(f"/proc/{worker.pid}/cmdline")
        until("a title that names the job", lambda: b"#7 nap" in title.read_bytes())


def worker_of_short_jobs(harness: SupervisorHarness) -> HarnessWorker:
    """Run short jobs until workers are forked without a heartbeat thread. Returns such a worker."""
    before = 0
    for job in range(1, 12):
        worker = harness.worker(other_than=before)
        before = worker.pid
        assert worker.run(job, "nothing").outcome == "done"
        if any(fact.is_ready for fact in harness.facts if isinstance(fact, Forked)):
            break
    return harness.worker(other_than=before)


def test_with_one_process_per_job_a_long_job_has_a_heartbeat(tmp_path: Path) -> None:
    """Its supervisor asks for it."""
    with SupervisorHarness(tmp_path, TASKS, queue=ONE) as harness:
        worker = worker_of_short_jobs(harness)
        worker.order(70, "nap")
        title = Path(f"/proc/{worker.pid}/cmdline")
        until("a title that names the job", lambda: b"#70 nap" in title.read_bytes())


def test_with_one_process_per_job_a_long_wait_has_a_heartbeat(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, TASKS, queue=ONE) as harness:
        worker = worker_of_short_jobs(harness)
        title = Path(f"/proc/{worker.pid}/cmdline")
        until("a title", lambda: title.read_bytes().startswith(b"pgworkers: worker "))


def test_with_one_process_per_job_a_short_job_has_no_second_thread(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, TASKS, queue=ONE) as harness:
        worker = worker_of_short_jobs(harness)
        assert eval(bytes(worker.run(70, "count").result)) == 1


def test_a_job_with_a_stall_timeout_has_a_heartbeat_from_its_start(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, TASKS, queue=ONE) as harness:
        worker = worker_of_short_jobs(harness)
        assert eval(bytes(worker.run(70, "count", stall_timeout=60.0).result)) == 2
