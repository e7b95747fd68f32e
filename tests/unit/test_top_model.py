"""What `top` shows and what its keys mean, without a terminal."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from typing import Any

import pytest
from rich.cells import cell_len

from pgworkers.cli.top.cells import short_duration, wrap_text
from pgworkers.cli.top.keys import Action, ViewState, decode_keys, handle_key, keep_selection_visible
from pgworkers.cli.top.model import (
    SORT_COLUMNS,
    Snapshot,
    ViewOptions,
    as_document,
    progress_fraction,
    tree_rows,
    worker_state,
)
from pgworkers.cli.top.rows import row_details
from pgworkers.cli.top.screen import (
    KEY_LINE,
    MIN_TERMINAL_SIZE,
    ScreenContent,
    body_height,
    render_frame,
    render_text,
)
from pgworkers.events import QueueDepth
from pgworkers.job.queries import HostOverview, WorkerOverview
from pgworkers.master.lease_keeper import WATCHED_HOST_SECONDS, YOUNG_HOST_SECONDS, renewal_pause_seconds


def host(name: str = "web-1", **other: Any) -> HostOverview:
    told = {
        "id": f"id-{name}",
        "name": name,
        "pid": 4711,
        "label": "",
        "app": "app.py",
        "version": "v2",
        "state": "running",
        "is_leader": False,
        "queues": ["default", "reports"],
        "load": 1.5,
        "cores": 8,
        "age": 0.4,
        "is_lost": False,
    }
    return HostOverview(**{**told, **other})


def worker(slot: int = 0, job: int | None = None, host: str = "web-1", **other: Any) -> WorkerOverview:
    told = {
        "host": f"id-{host}",
        "queue": "default",
        "slot": slot,
        "pid": 5000 + slot,
        "state": "busy" if job is not None else "idle",
        "job": job,
        "task": "render" if job is not None else None,
        "since": 1.0,
        "jobs": 3,
        "attempt": 1 if job is not None else None,
        "max_attempts": 6 if job is not None else None,
        "running": 192.0 if job is not None else None,
        "left": 408.0 if job is not None else None,
        "cpu": 97.0 if job is not None else 0.0,
        "rss": 312 << 20,
        "is_stalled": False if job is not None else None,
        "stop_reason": None,
        "version": "v2",
        "progress": {"done": 41, "total": 100, "note": "page 7"} if job is not None else None,
    }
    return WorkerOverview(**{**told, **other})


def depth(queue: str = "default", **other: Any) -> QueueDepth:
    told = {"ready": 120, "scheduled": 2, "running": 1, "oldest": 180.0, "is_paused": False, "limit": None}
    return QueueDepth(**{"queue": queue, **told, "is_throttled": False, **other})


PICTURE = Snapshot(
    [host(is_leader=True), host("web-2", queues=["default"])],
    [
        worker(0, 1042),
        worker(1),
        worker(0, 1043, host="web-2", task="thumbnail", cpu=3.0, running=1.0, left=None, progress=None),
    ],
    [depth(), depth("reports", ready=0, is_paused=True)],
)


def screen(
    picture: Snapshot = PICTURE, view: ViewState | None = None, size: tuple[int, int] = (80, 24)
) -> list[str]:
    """The lines of a frame as plain text, after checking that each fills its line exactly."""
    view = view or ViewState()
    shown = tree_rows(picture, view.options)
    view = keep_selection_visible(view, shown, body_height(size[1]))
    scene = ScreenContent(
        view.options, view.selected, view.offset, "", view.message, view.prompt, view.pane, view.pane_offset
    )
    lines = render_frame(picture, shown, scene, *size)
    assert len(lines) == size[1]
    told = ["".join(piece for piece, _ in line) for line in lines]
    assert [cell_len(line) for line in told] == [size[0]] * size[1]
    return told


class TestFrame:
    def test_the_tree_fits_a_terminal_of_80_by_24(self) -> None:
        shown = "\n".join(line.rstrip() for line in screen())
        for part in (
            "2 hosts, 2/3 busy, 120 ready",
            "web-1 pid 4711 leader 1/2 busy load 1.5/8 code v2 app.py",
            "└ default 1/2 busy, 120 ready, the oldest for 3m, 2 scheduled",
            "  default/0      5000    #1042 render     97  312MB  41%  3m12s  6m48s busy",
            "  default/1      5001                      0  312MB                    idle",
            "└ reports 0/0 busy, 2 scheduled paused",
            "#1043 thumbn…     3  312MB        1.0s        busy",
        ):
            assert part in shown, shown
        assert len(KEY_LINE) <= 80

    def test_the_selected_row_is_shown_in_full(self) -> None:
        told = row_details(tree_rows(PICTURE, ViewOptions())[2])
        assert told == "default/0, #1042 render, attempt 1 of 6, 41% (41 of 100), page 7, code v2, web-1"

    @pytest.mark.parametrize("size", [(1, 1), MIN_TERMINAL_SIZE, (80, 24), (81, 9), (200, 60)])
    def test_any_size_is_filled_exactly(self, size: tuple[int, int]) -> None:
        screen(size=size)

    def test_a_wide_terminal_shows_attempt_and_code(self) -> None:
        assert any("1/6     v2" in line for line in screen(size=(140, 24)))

    @pytest.mark.parametrize("wide", [80, 140])
    def test_no_text_of_a_job_leaves_its_cell(self, wide: int) -> None:
        nasty = [
            "\x1b[2J\x1b]0;x\x07",
            "a\nb\tc\r",
            "\u202eevil\u200f",
            "z\u0335\u0336\u0489" * 50,
            "日本語" * 30,
            "👩‍👩‍👧" * 9,
            "\ud800",
        ]
        workers = [
            worker(
                slot,
                slot,
                task=name,
                progress={"done": 1, "total": 2, "note": name},
                stop_reason=name,
                version=name,
            )
            for slot, name in enumerate(nasty)
        ]
        named = [host(name=name, app=name, label=name, version=name, state=name) for name in nasty]
        picture = Snapshot([host(queues=nasty), *named], workers, [depth(name) for name in nasty])
        for at in range(len(tree_rows(picture, ViewOptions()))):
            view = replace(ViewState(pane=None), selected=tree_rows(picture, ViewOptions())[at].key)
            lines = screen(picture, view, (wide, 40))
            assert all(line.isprintable() for line in lines)
        lines = screen(picture, ViewState(pane=("stack of \x1b", "\n".join(nasty))), (wide, 40))
        assert all(line.isprintable() for line in lines)
        assert all(
            line.isprintable()
            for line in render_text(picture, tree_rows(picture, ViewOptions()), ScreenContent(), 160)
        )
        json.dumps(as_document(picture, ViewOptions()))

    def test_progress_of_any_shape_is_shown(self) -> None:
        for said, wanted in [
            (None, None),
            ({"done": 1, "total": 4}, 0.25),
            ({"done": 9, "total": 4}, 1.0),
            ({"done": 1}, None),
            ({"done": 1, "total": 0}, None),
            ({"done": "x", "total": 2}, None),
            ({"done": 10**400, "total": 1}, None),
            ([1, 2], None),
            ("text", None),
        ]:
            assert progress_fraction(said) == wanted
            screen(replace(PICTURE, workers=[worker(0, 1, progress=said)]))

    def test_nothing_there_says_what_to_do(self) -> None:
        assert any("no hosts: start one with pgworkers run" in line for line in screen(Snapshot()))
        assert any("nothing matches" in line for line in screen(view=ViewState(ViewOptions(filter="xyz"))))


def test_the_most_remarkable_thing_is_the_state() -> None:
    assert worker_state(worker(0, 1, stop_reason="cancel", is_stalled=True), host()) == "stopping"
    assert worker_state(worker(0, 1, state="suspended"), host()) == "suspended"
    assert worker_state(worker(0, 1, is_stalled=True), host()) == "stalled"
    assert worker_state(worker(0, 1, version="v1"), host()) == "old code"
    assert worker_state(worker(), host()) == "idle"


class TestRows:
    def crowd(self) -> Snapshot:
        workers = [
            worker(slot, slot if slot % 3 else None, cpu=float(slot * 7 % 100), rss=(slot * 13 % 50) << 20)
            for slot in range(500)
        ]
        random.Random(1).shuffle(workers)
        return Snapshot([host()], workers, [depth()])

    @pytest.mark.parametrize("sort", SORT_COLUMNS)
    @pytest.mark.parametrize("turned", [False, True])
    def test_every_order_keeps_every_worker(self, sort: str, turned: bool) -> None:
        shown = [
            row.worker
            for row in tree_rows(self.crowd(), ViewOptions(sort, turned, is_tree=False))
            if row.worker
        ]
        assert len(shown) == 500
        if sort == "cpu":
            figures = [one.cpu or 0.0 for one in shown]
            assert figures == sorted(figures, reverse=not turned)
        if sort == "job":
            jobs = [one.job for one in shown if one.job is not None]
            assert jobs == sorted(jobs, reverse=turned)
            assert [one.job for one in shown[len(jobs) :]] == [None] * (500 - len(jobs)), (
                "idle ones come last"
            )

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("thumb", [1043]),
            ("#1042", [1042]),
            ("web-2", [1043]),
            ("BUSY", [1042, 1043]),
            ("5001", []),
            ("", [1042, 1043]),
        ],
    )
    def test_a_filter_finds_by_any_word(self, text: str, found: list[int]) -> None:
        shown = tree_rows(PICTURE, ViewOptions(filter=text, should_show_idle=False))
        assert [row.worker.job for row in shown if row.worker is not None] == found

    def test_one_queue_alone(self) -> None:
        shown = tree_rows(PICTURE, ViewOptions(queue="reports"))
        assert {row.queue for row in shown if row.queue is not None} == {"reports"}

    def test_the_same_tree_for_scripts(self) -> None:
        told = as_document(PICTURE, ViewOptions(queue="default"))
        assert [one["name"] for one in told["hosts"]] == ["web-1", "web-2"]
        first = told["hosts"][0]["queues"][0]["workers"][0]
        assert first == {**asdict(PICTURE.workers[0]), "shown": "busy"}
        assert told["totals"]["busy"] == 2


class TestKeys:
    def walk(
        self, keys: list[str], view: ViewState | None = None, picture: Snapshot = PICTURE
    ) -> tuple[ViewState, list[Action]]:
        view, acts = view or ViewState(), []
        for key in keys:
            shown = tree_rows(picture, view.options)
            view = keep_selection_visible(view, shown, 19)
            view, act = handle_key(view, key, shown, 19)
            acts += [act] if act is not None else []
        return view, acts

    def test_what_is_typed_becomes_keys(self) -> None:
        assert decode_keys(b"\x1b[A\x1bOBq\x03\x1b/\xc3\xa4\x7f\r") == [
            "up", "down", "q", "quit", "escape", "/", "ä", "backspace", "enter",
        ]  # fmt: skip
        assert decode_keys(b"\x1b[1;5Cx\x1b[<0;1;1M\x00\x01") == ["x"], "unknown ones are no keys"
        assert decode_keys(b"\xff") == ["\ufffd"]

    @pytest.mark.parametrize(
        ("key", "act"),
        [("s", Action("stack", 1042)), ("z", Action("suspend", 1042)), ("r", Action("resume", 1042))],
    )
    def test_a_harmless_key_acts_at_once(self, key: str, act: Action) -> None:
        assert self.walk(["down", "down", key])[1] == [act]

    @pytest.mark.parametrize(
        ("key", "act"),
        [("c", Action("cancel", 1042)), ("k", Action("kill", 1042)), ("p", Action("pause", queue="default"))],
    )
    def test_a_destructive_key_asks_first(self, key: str, act: Action) -> None:
        view, acts = self.walk(["down", "down", key])
        assert acts == []
        assert f"{act.target}? (y/n)" in view.prompt
        assert self.walk(["down", "down", key, "y"])[1] == [act]
        for other in ("n", "escape", "enter", " ", "c"):
            view, acts = self.walk(["down", "down", key, other])
            assert (acts, view.unconfirmed_action, view.message) == ([], None, "not done")
        assert self.walk(["down", "down", key], ViewState(is_confirmed=True))[1] == [act]

    def test_the_job_is_the_one_that_was_asked_about(self) -> None:
        """The worker has another job by the time of the answer."""
        view, _ = self.walk(["down", "down", "k"])
        later = replace(PICTURE, workers=[worker(0, 7777), *PICTURE.workers[1:]])
        assert self.walk(["y"], view, later)[1] == [Action("kill", 1042)]

    def test_a_paused_queue_is_resumed(self) -> None:
        view, _ = self.walk(["down"] * 4 + ["p"])
        assert view.prompt == "resume queue reports? (y/n)"
        assert self.walk(["y"], view)[1] == [Action("unpause", queue="reports")]

    def test_a_row_without_a_job_is_left_alone(self) -> None:
        for key in "cszrk":
            view, acts = self.walk([key])
            assert acts == []
            assert "select a worker that has a job" in view.message
        assert "select a queue" in self.walk(["p"])[0].message
        assert self.walk(["c", "p", "down", "end"], picture=Snapshot())[1] == []

    def test_the_filter_is_typed_and_cleared(self) -> None:
        view, _ = self.walk(["/", "t", "h", "x", "backspace", "enter"])
        assert (view.options.filter, view.typed_filter) == ("th", None)
        assert self.walk(["escape"], view)[0].options.filter == ""
        assert self.walk(["/", "q", "k", "y"])[0].options.filter == "qky", "letters, not commands"
        assert len(self.walk(["/"] + ["x"] * 1000)[0].options.filter) < 100

    def test_sorting_turning_listing(self) -> None:
        view, _ = self.walk([">", ">", "R", "t", "i"])
        assert view.options == ViewOptions("rss", True, is_tree=False, should_show_idle=False)
        assert self.walk(["<"])[0].options.sort == SORT_COLUMNS[-1]

    def test_the_selection_stays_with_its_row_and_on_the_screen(self) -> None:
        many = Snapshot([host(queues=[])], [worker(slot, slot) for slot in range(500)], [])
        view, _ = self.walk(["end"], picture=many)
        assert (view.selected, view.offset) == (("id-web-1", "default", "499"), 502 - 19)
        view = keep_selection_visible(view, tree_rows(many, view.options), 10)
        assert view.offset == 502 - 10
        fewer = replace(many, workers=many.workers[:5])
        view = keep_selection_visible(view, tree_rows(fewer, view.options), 10)
        assert view.offset == 0
        assert view.selected is not None
        assert self.walk(["home", "page down", "up"], picture=many)[0].selected == (
            "id-web-1",
            "default",
            "16",
        )

    def test_a_pane_scrolls_and_closes(self) -> None:
        pane = ("stack", "\n".join(map(str, range(100))))
        view, _ = self.walk(["page down", "down"], ViewState(pane=pane))
        assert view.pane_offset == 20
        assert self.walk(["end"], ViewState(pane=pane))[0].pane_offset == 82
        assert self.walk(["escape"], view)[0].pane is None
        assert self.walk(["k"], view)[1] == [], "a pane hides the tree: no key reaches a job behind it"
        assert self.walk(["?"])[0].pane is not None

    def test_quitting(self) -> None:
        assert self.walk(["q"])[0].is_quitting
        assert self.walk(["quit"], ViewState(unconfirmed_action=Action("kill", 1)))[0].is_quitting


def test_a_long_line_of_a_stack_goes_on_in_the_next() -> None:
    long = f'  File "/{"d" * 90}/app.py", line 85 in render'
    lines = wrap_text(f"first\n{long}\n{'日本' * 60}\x1b\n", 80).splitlines()
    assert all(cell_len(line) <= 80 and line.isprintable() for line in lines)
    assert lines[1] + lines[2].removeprefix(" " * 6) == long
    assert wrap_text("", 80) == ""


@pytest.mark.parametrize("blanks", [1, 74, 79, 80, 300])
@pytest.mark.parametrize("before", ["", "a", "a" * 79, "a" * 80])
def test_blanks_as_wide_as_the_pane_do_not_hold_it_up(before: str, blanks: int) -> None:
    lines = wrap_text(f"{before}{' ' * blanks}b", 80).splitlines()
    assert all(cell_len(line) <= 80 for line in lines)
    assert "".join("".join(lines).split()) == before + "b"


def test_times_are_short() -> None:
    told = [short_duration(value) for value in (None, -1, 0.41, 9.96, 42.4, 192, 7500, 90061, 86400 * 400)]
    assert told == ["", "0s", "0.4s", "10.0s", "42s", "3m12s", "2h05m", "1d1h", "400d"]


def test_a_watched_host_writes_its_view_every_second_for_a_while() -> None:
    born, renew = 0.0, 5.0
    assert renewal_pause_seconds(YOUNG_HOST_SECONDS - 0.1, born, 0.0, renew) == 1.0
    assert renewal_pause_seconds(YOUNG_HOST_SECONDS - 0.1, born, 0.0, renew, are_workers_up=True) == renew, (
        "all of its workers were seen"
    )
    assert renewal_pause_seconds(100.0, born, 0.0, renew) == renew
    assert renewal_pause_seconds(100.0, born, 100.0 + WATCHED_HOST_SECONDS, renew, are_workers_up=True) == 1.0
    assert (
        renewal_pause_seconds(100.0 + WATCHED_HOST_SECONDS, born, 100.0 + WATCHED_HOST_SECONDS, renew)
        == renew
    )
    assert renewal_pause_seconds(100.0, born, 101.0, 0.5) == 0.5


def test_figures_that_are_only_counted_up_to_somewhere_say_so() -> None:
    deep = QueueDepth("default", 10_000, 10_000, 0, 5.0, False, None, False)
    lines = render_text(
        Snapshot([host()], [worker()], [deep]),
        tree_rows(Snapshot([host()], [worker()], [deep]), ViewOptions()),
        ScreenContent(),
        200,
    )
    assert "10,000+ ready" in lines[0]
    assert any("10,000+ ready" in line and "10,000+ scheduled" in line for line in lines[1:])


def test_a_lost_host_is_not_called_running() -> None:
    picture = Snapshot([host(is_lost=True, age=179.0)], [worker()], [])
    assert row_details(tree_rows(picture, ViewOptions())[0]).startswith("web-1: lost, view written 2m59s ago")


def test_a_lost_host_is_one_line_below_the_living_and_its_workers_count_nowhere() -> None:
    gone, here = host(is_lost=True, age=179.0), host("web-2", queues=["default"])
    workers = [
        *(worker(slot, slot + 1) for slot in range(8)),
        worker(0, 99, host="web-2"),
        worker(1, host="web-2"),
    ]
    picture = Snapshot([gone, here], workers, [])
    found = tree_rows(picture, ViewOptions())
    assert [row.kind for row in found] == ["host", "queue", "worker", "worker", "host"]
    assert [row.host.name for row in found] == ["web-2"] * 4 + ["web-1"]
    assert [row.host.name for row in tree_rows(picture, ViewOptions(is_tree=False))] == ["web-2"] * 2
    assert [row.host.name for row in tree_rows(picture, ViewOptions(filter="lost"))] == ["web-1"]
    first, *_, last, _ = render_text(picture, found, ScreenContent(), 80)
    assert "1 host, 1/2 busy" in first
    assert "1 lost" in first
    assert last.startswith("web-1 pid ")
    assert "lost: silent for 2m59s" in last
    assert "busy" not in last
    told = as_document(picture, ViewOptions())
    assert (told["totals"]["hosts"], told["totals"]["lost"], told["totals"]["workers"]) == (1, 1, 2)
