"""The loop of `top`: keys, signals and news in, frames out."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from dataclasses import replace

from pgworkers.cli.place import Database
from pgworkers.cli.top_cells import wrapped
from pgworkers.cli.top_database import Actor, News, Reader
from pgworkers.cli.top_keys import Act, View, decode, press, settle
from pgworkers.cli.top_model import Picture, Row, Wish, rows
from pgworkers.cli.top_screen import Scene, body_height, frame
from pgworkers.cli.top_terminal import Terminal
from pgworkers.process.signals import Notes

ASKING = "asking …"


class Top:
    def __init__(self, db: Database, interval: float, queue: str | None, *, yes: bool) -> None:
        self._news = News()
        self._reader = Reader(db, self._news.put, interval)
        self._actor = Actor(db, self._news.put)
        self._terminal = Terminal(sys.stdin.fileno(), sys.stdout.fileno())
        self._picture: Picture = Picture()
        self._view: View = View(Wish(queue=queue), message=ASKING, yes=yes)
        self._seen = time.monotonic()
        self._lost = ""
        self._code = 0
        noted = (
            signal.SIGINT,
            signal.SIGTERM,
            signal.SIGHUP,
            signal.SIGWINCH,
            signal.SIGTSTP,
            signal.SIGCONT,
        )
        self._notes = Notes(noted, ())

    def run(self) -> int:
        self._reader.start()
        self._actor.start()
        with self._terminal.taken():
            while not self._view.leaving:
                self._draw()
                self._wait()
        return self._code

    def _wait(self) -> None:
        """Until a key, a signal or news; the clock of an outage goes on."""
        waiting = [self._terminal.keys, self._news.reader, self._notes.reader.fileno()]
        ready, _, _ = select.select(waiting, [], [], 1.0)
        for signum in self._notes.take():
            self._signalled(signum)
        for kind, what in self._news.take():
            self._learn(kind, what)
        if self._terminal.keys in ready and not self._view.leaving:
            self._typed()

    def _signalled(self, signum: int) -> None:
        if signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._code = 128 + signum
            self._view = replace(self._view, leaving=True)
        elif signum == signal.SIGTSTP:
            self._terminal.give_back()
            os.kill(os.getpid(), signal.SIGSTOP)
            self._terminal.take()
        else:
            self._terminal.forget()

    def _learn(self, kind: str, what: object) -> None:
        if isinstance(what, Picture):
            if not self._picture.hosts and self._view.message == ASKING:
                self._view = replace(self._view, message="")
            self._picture, self._seen, self._lost = what, time.monotonic(), ""
        elif kind == "lost":
            self._lost = str(what)
        elif isinstance(what, tuple) and isinstance(what[0], Act):
            act, text = what
            if act.kind == "stack":
                text = wrapped(text, self._terminal.size()[0])
                pane = f"stack of {act.named}", text
                self._view = replace(self._view, pane=pane, pane_offset=0, message="")
            else:
                self._view = replace(self._view, message=text)
                self._reader.poke()

    def _typed(self) -> None:
        data = self._terminal.read()
        if data is None:
            self._view = replace(self._view, leaving=True)
            return
        for key in decode(data):
            self._view, act = press(self._view, key, self._rows(), self._room())
            if act is not None:
                self._actor.ask(act)
            if self._view.refresh:
                self._reader.poke()
            if self._view.redraw:
                self._terminal.forget()
            if self._view.leaving:
                return

    def _rows(self) -> list[Row]:
        return rows(self._picture, self._view.wish)

    def _room(self) -> int:
        return max(1, body_height(self._terminal.size()[1]))

    def _draw(self) -> None:
        shown = self._rows()
        self._view = view = settle(self._view, shown, self._room())
        status = ""
        if self._lost:
            status = f"no database for {time.monotonic() - self._seen:.0f}s: {self._lost}"
        scene = Scene(
            view.wish, view.selected, view.offset, status, view.message, view.prompt, view.pane, view.pane_offset,
            time.strftime("%H:%M:%S"),
        )  # fmt: skip
        try:
            self._terminal.draw(frame(self._picture, shown, scene, *self._terminal.size()))
        except BlockingIOError:
            self._terminal.forget()  # half of it is missing
        except OSError:
            self._view = replace(view, leaving=True)  # the terminal is gone
