"""Log lines: what they say, that nothing can forge one, how many there are, and that they never wait."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pgworkers import Ctx, events
from pgworkers.observe import python_logging
from pgworkers.observe.escape import encode_json_line, escape_line, printable
from pgworkers.observe.log import FAILURE_RATE_FACTOR, JSON_KEYS, Log
from pgworkers.observe.log_messages import show_call
from pgworkers.observe.log_writer import LineWriter

HOSTILE = [
    "a\nb",
    "a\r\nb\x0b\x0c",
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31m\x85",
    "\u202eevil\u2066\u2069\u200f\u061c",
    "\u2028\u2029\ufeff",
    "nul\0",
    "half \ud800 a character",
    '"}\n{"event": "forged"',
]


def ended(job: int = 1042, state: str = "succeeded", **other: Any) -> events.AttemptEnded:
    told = {
        "job": job,
        "lease": 1,
        "queue": "reports",
        "task": "render",
        "args": '{"report_id": 7}',
        "attempt": 1,
        "max_attempts": 10,
        "verdict": "succeeded" if state == "succeeded" else "error",
        "state": state,
        "duration": 4.2,
        "cpu": 4.1,
        "peak_rss": 312 << 20,
        "error": None,
        "retry_in": None,
    }
    return events.AttemptEnded(**{**told, **other})


def of_a_job(text: str) -> list[events.Event]:
    """Every fact that is about one job, with a hostile text wherever there is room for one."""
    said: tuple[int, int, str, str, int] = (1042, 3, "reports", text, 2)
    return [
        ended(task=text, args=json.dumps({"x": text}), attempt=2),
        ended(task=text, state="dead", error=text, attempt=2),
        ended(task=text, state="scheduled", error=text, retry_in=3.0, attempt=2),
        events.JobRescued(*said, "scheduled"),
        events.LeaseLost(*said, True),
        events.LeaseLost(*said, True, is_rescued=True),
        events.FinishRejected(*said),
        events.FinishFailed(*said, "RaiseException: not on a Sunday", 1.0),
        events.StopRequested(*said, "cancel"),
        events.JobStallChanged(*said, True),
        events.JobStallChanged(*said, False),
        events.DeadlineMoved(*said, 600.0),
        events.DeadlineMoved(*said, 0.0),
        events.WorkerDied("reports", 0, 77, 1042, "SIGSEGV", "crash", 0, text, 2),
    ]


def of_no_job(text: str) -> list[events.Event]:
    return [
        events.SupervisorBootFailed("reports", text, text),
        events.DatabaseConnectionLost("claim", text),
        events.DutyFailed("rescue", text),
        events.ScheduleFailed(text, text, text),
        events.ReloadRefused(text),
        events.ClaimTooSlow((text,), 5.0),
        events.JobsParked("reports", text, 1, is_done=False),
        events.UnknownTaskFound("reports", text, 1),
        events.HostStateChanged("running", text),
        events.LeadershipChanged(False, text),
        events.LeaderLockTaken(7, text, text),
        events.QueueThrottled(text, 60.0, 2),
        events.RowsPurged(text, 3),
        events.TicksMissed(text, text, 3),
        events.JobsReleased(2, text),
        events.OutputDropped(text, 7),
        events.OrphansKilled(1),
        events.ReporterDied(7, text, text, 1.0),
        events.ReportsDropped(3),
        events.FormerHostProcessesKilled(2, 1),
        events.SupervisorDied(text, 7, text, 1.0),
    ]


class TestText:
    def test_a_finished_job_is_one_line_that_says_where(self) -> None:
        lines: list[str] = []
        Log(lines.append, host="web-1")(ended())
        (line,) = lines
        clock, _, rest = line.partition(" ")
        assert time.strptime(clock, "%H:%M:%S")
        assert rest == (
            "#1042 render(report_id=7) done in 4.2s cpu 4.1s peak 312MB [reports, attempt 1 of 10, web-1]"
        )

    @pytest.mark.parametrize("text", HOSTILE)
    def test_no_text_of_a_job_can_forge_a_line_or_steer_a_terminal(self, text: str) -> None:
        lines: list[str] = []
        log = Log(lines.append, host="web-1")
        facts = of_a_job(text) + of_no_job(text)
        for fact in facts:
            log(fact)
        log.write("error", "log", text, {})
        log.write_message(text)
        assert len(lines) == len(facts) + 2
        assert [line for line in lines if not line.isprintable()] == []

    def test_every_line_of_a_job_names_job_task_queue_attempt_and_host(self) -> None:
        for fact in of_a_job("render"):
            lines: list[str] = []
            Log(lines.append, host="web-1")(fact)
            (line,) = lines
            missing = [
                word for word in ("#1042", "render", "[reports", "attempt 2", "web-1") if word not in line
            ]
            assert missing == [], line

    @pytest.mark.parametrize(
        ("fact", "told"),
        [
            (
                {"state": "dead", "error": "ValueError: no"},
                "dead after 4.2s cpu 4.1s peak 312MB: error: ValueError: no",
            ),
            (
                {"state": "dead", "verdict": "discarded", "error": "discarded: useless"},
                "dead after 4.2s cpu 4.1s peak 312MB: discarded: useless",
            ),
            (
                {"state": "cancelled", "verdict": "cancelled", "error": "cancelled"},
                "cancelled after 4.2s cpu 4.1s peak 312MB",
            ),
            (
                {
                    "state": "cancelled",
                    "verdict": "cancelled",
                    "error": "cancelled; it ended with OSError: x",
                },
                "cancelled after 4.2s cpu 4.1s peak 312MB; it ended with OSError: x",
            ),
            ({"error": "ValueError: no", "retry_in": 3.0}, "error: ValueError: no (again in 3s)"),
            ({"error": "asked to be retried", "retry_in": 1.0}, "asked to be retried in 1s"),
            (
                {"verdict": "throttled", "error": "slow down", "retry_in": 0.0},
                "throttled: slow down (again when its queue has cooled down)",
            ),
            ({"error": "asked to be retried: busy", "retry_in": 0.0}, "asked to be retried at once: busy"),
            ({"verdict": "snoozed", "error": "snoozed", "retry_in": 1.0}, "snoozed for 1s"),
            ({"verdict": "snoozed", "error": "snoozed: night", "retry_in": 1.0}, "snoozed for 1s: night"),
            ({"verdict": "throttled", "error": "throttled", "retry_in": 60.0}, "throttled (again in 1m)"),
            (
                {
                    "verdict": "interrupted",
                    "error": "interrupted: the host was asked to stop",
                    "retry_in": 0.0,
                },
                "interrupted: the host was asked to stop (again at once)",
            ),
        ],
    )
    def test_no_word_is_repeated_and_the_reason_is_separate_from_the_cost(
        self, fact: dict[str, Any], told: str
    ) -> None:
        lines: list[str] = []
        Log(lines.append, host="web-1")(ended(**{"state": "scheduled", **fact}))
        assert lines[0].partition("render(report_id=7) ")[2].partition(" [")[0] == told

    def test_arguments_are_cut(self) -> None:
        assert show_call("work", json.dumps({"x": "a" * 1000})) == "work(…)"
        assert len(show_call("work", json.dumps({"x": "a" * 300}))) < 100
        assert show_call("work", "[" * 300) == "work()"


class TestJson:
    @pytest.mark.parametrize("text", [*HOSTILE, "grün 日本 😀", "\U000e0041 tag"])
    def test_every_line_is_json_with_the_fixed_keys(self, text: str) -> None:
        lines: list[str] = []
        log = Log(lines.append, format="json", host="web-1", pid=7)
        for fact in of_a_job(text) + of_no_job(text):
            log(fact)
        log.write_message("the start")
        log.write("error", "log", text, {"traceback": text})
        assert [line for line in lines if not line.isprintable()] == []
        for line in lines:
            told = json.loads(line)
            assert tuple(told) == JSON_KEYS
            assert (told["host"], told["pid"]) == ("web-1", 7)

    def test_a_text_comes_back_as_it_was(self) -> None:
        for text in [one for one in HOSTILE if "\ud800" not in one] + ["\U000e0041 tag"]:
            assert json.loads(encode_json_line({"x": text})) == {"x": text}
        assert json.loads(encode_json_line({"x": float("nan"), "y": {1, 2}, "z": object})) is not None

    def test_the_keys_of_a_job(self) -> None:
        for fact in of_a_job("render"):
            lines: list[str] = []
            Log(lines.append, format="json", host="web-1")(fact)
            told = json.loads(lines[0])
            assert (told["job"], told["task"], told["queue"], told["attempt"]) == (
                1042,
                "render",
                "reports",
                2,
            )
            assert "args" not in told["data"]


class TestRate:
    def make(self, rate: int = 10, **options: Any) -> tuple[Log, list[str], list[float]]:
        lines: list[str] = []
        clock = [0.0]
        return Log(lines.append, rate=rate, now=lambda: clock[0], **options), lines, clock

    def test_more_successes_than_a_person_reads_are_summed_up(self) -> None:
        log, lines, clock = self.make()
        for number in range(4322):
            log(ended(task="noop" if number % 2 else "other"))
        assert len(lines) == 10
        log.write_summaries()
        assert len(lines) == 10, "the second is not over"
        clock[0] = 1.0
        log.write_summaries()
        text = "… and 4,312 more jobs done (other 2,156, noop 2,156) in the last second"
        assert lines[10:] == [lines[10]]
        assert text in lines[10]
        log(ended())
        assert "done in" in lines[-1], "a new second"

    def test_failures_have_a_larger_share_and_their_own_sum(self) -> None:
        log, lines, _ = self.make()
        for _ in range(10 * FAILURE_RATE_FACTOR + 3):
            log(ended())
            log(ended(state="dead"))
        assert sum("dead after" in line for line in lines) == 10 * FAILURE_RATE_FACTOR
        log.flush_summaries()
        assert "… and 3 more jobs not done (render error 3) in the last second" in lines[-1]

    def test_a_mass_of_any_fact_is_bounded(self) -> None:
        log, lines, _ = self.make()
        for job in range(10_000):
            log(events.JobRescued(job, 1, "q", "t", 1, "scheduled"))
        log.flush_summaries()
        assert len(lines) == 10 * FAILURE_RATE_FACTOR + 1
        assert f"{10_000 - 10 * FAILURE_RATE_FACTOR:,} more JobRescued" in lines[-1]

    def test_a_sum_names_few_tasks(self) -> None:
        log, lines, _ = self.make(rate=1)
        for number in range(1000):
            log(ended(task=f"task{number}\n\x1b"))
        log.flush_summaries()
        assert len(lines[-1]) < 400
        assert "994 others 994" in lines[-1]
        assert lines[-1].isprintable()

    def test_no_rate_is_every_line_and_quiet_is_none(self) -> None:
        log, lines, _ = self.make(rate=0)
        for _ in range(1000):
            log(ended())
        assert len(lines) == 1000
        log, lines, _ = self.make(is_quiet=True)
        for _ in range(1000):
            log(ended())
        log(ended(state="dead"))
        assert len(lines) == 1

    def test_a_json_sum_has_the_fixed_keys(self) -> None:
        log, lines, _ = self.make(rate=1, format="json")
        for _ in range(5):
            log(ended())
        log.flush_summaries()
        told = json.loads(lines[-1])
        assert tuple(told) == JSON_KEYS
        assert (told["event"], told["data"]) == ("summary", {"kind": "done", "count": 4, "of": {"render": 4}})


def read_all(fd: int) -> bytes:
    os.set_blocking(fd, False)
    data = b""
    try:
        while more := os.read(fd, 1 << 20):
            data += more
    except BlockingIOError:
        pass
    return data


def until(fact: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not fact():
        assert time.monotonic() < give_up
        time.sleep(0.005)


class TestWriter:
    def test_an_unread_pipe_drops_lines_never_blocks_and_says_so_when_it_flows(self) -> None:
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        lines = LineWriter(writer, max_characters=100_000)
        for number in range(5000):
            lines.put(f"{number} " + "x" * 1000)
        assert lines.dropped >= 4300
        dropped, seen = lines.dropped, b""

        def dropped_counts() -> list[int]:
            said = [line for line in seen.decode().splitlines() if line.endswith("the output was not read")]
            return [int(line.split()[0].replace(",", "")) for line in said]

        def flows() -> bool:
            """All is there: a pipe may also be empty for a moment at the end of any line."""
            nonlocal seen
            seen += read_all(reader)
            return seen.endswith(b"\n") and len(seen.splitlines()) - len(dropped_counts()) + dropped >= 5000

        until(flows)  # without another line
        lines.close(60)
        seen += read_all(reader)
        assert lines.dropped == dropped == sum(dropped_counts())
        assert len(seen.splitlines()) - len(dropped_counts()) + dropped == 5000, (
            "what was not dropped is there"
        )
        os.close(reader)
        os.close(writer)

    def test_its_buffer_is_bounded_in_size_too(self) -> None:
        reader, writer = os.pipe()
        lines = LineWriter(writer, max_characters=1 << 20)
        for _ in range(100):
            lines.put("x" * (1 << 17))
        assert 80 < lines.dropped < 100
        os.close(reader)
        lines.close()
        os.close(writer)

    def test_a_closed_reader_is_counted_and_gone_on(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        lines = LineWriter(writer)
        lines.put("nobody hears this")
        until(lambda: lines.drop_reason == "Broken pipe")
        assert lines.dropped == 1
        lines.close()
        os.close(writer)

    def test_a_full_disk_is_counted_and_gone_on(self) -> None:
        full = os.open("/dev/full", os.O_WRONLY)
        lines = LineWriter(full)
        lines.put("no room for this")
        until(lambda: lines.drop_reason == "No space left on device")
        assert lines.dropped == 1
        lines.close()
        os.close(full)

    def test_after_a_torn_line_the_next_one_begins_a_new_one(self, tmp_path: Any) -> None:
        """The disk was full in the middle of a line."""
        path = tmp_path / "log"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        lines = LineWriter(fd)
        room = lines._free_characters
        lines.put("first")
        until(lambda: lines._free_characters == room)  # its thread has written it, and noted how it ended
        assert path.read_text() == "first\n"
        assert lines._write(b"half a li") is None
        lines.put("second")
        lines.close(60)
        assert path.read_text() == "first\nhalf a li\nsecond\n"
        os.close(fd)


@pytest.fixture
def bare() -> Iterator[Callable[[], None]]:
    """Call it: the records of a worker, and a root logger as bare as an app may leave it (pytest adds handlers)."""
    root = logging.getLogger()
    level, factory, find = root.level, logging.getLogRecordFactory(), python_logging._find_current_job

    def undress() -> None:
        root.handlers[:] = []
        root.setLevel(logging.WARNING)
        python_logging.install_record_factory()

    yield undress
    root.handlers[:] = [
        one for one in root.handlers if type(one) not in (python_logging.StderrHandler, logging.StreamHandler)
    ]
    python_logging._find_current_job = find
    root.setLevel(level)
    logging.setLogRecordFactory(factory)


JOB = (1042, "render", "reports", 2)


class TestRecords:
    def test_a_record_names_its_job(
        self, bare: Callable[[], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        bare()
        python_logging.set_current_job_source(lambda: JOB)
        python_logging.configure_root_logger("text", "info")
        logging.getLogger("shop.pdf").info("page %d\nforged", 7)
        Ctx(job=1042, task="render", queue="reports", attempt=2).log.info("drawn")
        first, second = capsys.readouterr().err.splitlines()
        assert first.endswith(
            r"#1042 render INFO shop.pdf: page 7\nforged "
            f"[reports, attempt 2, {os.uname().nodename}]"
        )
        assert "#1042 render INFO drawn [" in second

    def test_json_lines_include_extra(
        self, bare: Callable[[], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        bare()
        python_logging.set_current_job_source(lambda: JOB)
        python_logging.configure_root_logger("json", "info")
        ctx = Ctx(job=1042, task="render", queue="reports", attempt=2)
        ctx.log.info("drawn", extra={"page": 7, "host": "mine", "bad": object(), "nan": float("nan")})
        told = json.loads(capsys.readouterr().err)
        assert tuple(told) == JSON_KEYS
        assert (told["job"], told["task"], told["queue"], told["attempt"]) == JOB
        assert (told["host"], told["event"], told["level"]) == (os.uname().nodename, "log", "info")
        assert told["data"]["page"] == 7

    @pytest.mark.parametrize("style", ["text", "json"])
    @pytest.mark.parametrize("text", HOSTILE)
    def test_no_message_can_forge_a_line(
        self, bare: Callable[[], None], capsys: pytest.CaptureFixture[str], text: str, style: str
    ) -> None:
        bare()
        python_logging.set_current_job_source(lambda: JOB)
        python_logging.configure_root_logger(style, "info")
        logging.warning(text)
        try:
            raise ValueError(f"{text}\n12:00:00 #1 forged")
        except ValueError:
            logging.exception(text)
        logging.getLogger(text).warning(*("%s %s", text))  # arguments that do not fit
        lines = capsys.readouterr().err.splitlines()
        own = [line for line in lines if not line.startswith("  | ")]
        assert len(own) == 3
        assert [line for line in lines if not line.isprintable()] == []
        if style == "json":
            assert all(tuple(json.loads(line)) == JSON_KEYS for line in lines)

    def test_a_format_of_the_apps_may_ask_for_the_job_and_stays(
        self, bare: Callable[[], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        bare()
        logging.basicConfig(format="%(levelname)s %(job)s %(task)s %(queue)s %(attempt)s %(message)s")
        logging.warning("at import")
        python_logging.set_current_job_source(lambda: JOB)
        python_logging.configure_root_logger("text", "info")
        logging.warning("in a job", extra={"host": "mine"})
        lines = capsys.readouterr().err.splitlines()
        assert lines == ["WARNING None None None None at import", "WARNING 1042 render reports 2 in a job"]

    def test_the_standard_format_is_replaced_by_our_own(
        self, bare: Callable[[], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        bare()
        logging.basicConfig(level=logging.DEBUG)
        python_logging.set_current_job_source(lambda: JOB)
        python_logging.configure_root_logger("text", "info")
        logging.debug("deep")
        assert "#1042 render DEBUG root: deep [reports, attempt 2," in capsys.readouterr().err

    def test_outside_a_job_there_is_only_the_host(
        self, bare: Callable[[], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        bare()
        python_logging.set_current_job_source(lambda: None)
        python_logging.configure_root_logger("text", "info")
        logging.warning("a hook")
        assert capsys.readouterr().err.rstrip().endswith(f"WARNING root: a hook [{os.uname().nodename}]")


def test_what_the_masters_libraries_log_is_one_line() -> None:
    lines: list[str] = []
    handler = python_logging.MasterLogHandler(Log(lines.append))
    logger = logging.getLogger("some.library")
    logger.addHandler(handler)
    try:
        raise ValueError("bad\nthing")
    except ValueError:
        logger.exception("failed")
    finally:
        logger.removeHandler(handler)
    assert [line.partition(" ")[2] for line in lines] == ["some.library: failed: thing"]


def test_printable_text_is_left_alone() -> None:
    assert escape_line("grün 日本 😀") == "grün 日本 😀"
    assert printable("a\tb\nc\x1b", "\n\t") == "a\tb\nc\\x1b"


def test_a_stack_follows_its_line_behind_bars_and_can_forge_none() -> None:
    stack = 'Current thread:\n  File "a.py", line 3 in wait\n12:00:00 #1 forged() done\x1b[31m'
    fact = events.WorkerStackDumped("reports", 0, 77, 1042, "render", 2, stack)
    said: list[str] = []
    Log(said.append, host="web-1")(fact)
    first, *rest = said[0].splitlines()
    assert first.endswith(" #1042 render worker reports/0 (pid 77) is here: [reports, attempt 2, web-1]")
    assert rest[-1] == r"  | 12:00:00 #1 forged() done\x1b[31m"
    assert all(line.startswith("  | ") for line in rest)
    Log(said.append, format="json")(fact)
    assert json.loads(said[1])["data"] == {"slot": 0, "pid": 77, "stack": stack}


def test_what_became_of_a_lost_lease_and_of_missed_ticks_and_purges() -> None:
    said = (7, 2, "reports", "render", 1)
    sentences = {
        events.LeaseLost(*said, True): "lease lost: another host owns it",
        events.LeaseLost(
            *said, True, is_rescued=True
        ): "lease lost: the job was rescued, as this host had not renewed in time",
        events.TicksMissed("tidy", "", 1): "schedule tidy: skipped 1 missed tick",
        events.TicksMissed("tidy", "acme", 3): "schedule tidy (acme): skipped 3 missed ticks",
        events.RowsPurged("finished jobs", 1): "purged 1 row (finished jobs): past the retention",
        events.RowsPurged("finished jobs", 1200): "purged 1,200 finished jobs: past the retention",
        events.RowsPurged(
            "partition history_20200101", 1
        ): "purged partition history_20200101: past the retention",
        events.QueueThrottled("mail", 60.0, 1): "queue mail is throttled: no job of it starts for 1m",
        events.QueueThrottled("mail", 60.0, 3): "for 1m (throttle 3 in a row)",
        ended(
            state="scheduled", verdict="throttled", error="slow down", retry_in=0.0
        ): "(again when its queue has cooled down)",
    }
    lines: list[str] = []
    log = Log(lines.append)
    for fact, sentence in sentences.items():
        lines.clear()
        log(fact)
        assert [sentence in line for line in lines] == [True], (fact, lines)
