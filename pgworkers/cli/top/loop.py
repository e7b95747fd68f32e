"""The loop of `top`: handles keys, signals and messages of the threads, and draws frames."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from dataclasses import replace

from pgworkers.cli.database import OpenDatabase
from pgworkers.cli.top.cells import wrap_text
from pgworkers.cli.top.database import (
    ActionDone,
    ActionThread,
    Message,
    MessageQueue,
    SnapshotFailed,
    SnapshotRead,
    SnapshotReader,
)
from pgworkers.cli.top.keys import (
    Action,
    ActionKind,
    ViewState,
    decode_keys,
    handle_key,
    keep_selection_visible,
)
from pgworkers.cli.top.model import Snapshot, TreeRow, ViewOptions, tree_rows
from pgworkers.cli.top.screen import ScreenContent, body_height, render_frame
from pgworkers.cli.top.terminal import Terminal
from pgworkers.linux.signals import SignalWakeup

LOADING_MESSAGE = "asking …"


class TopLoop:
    def __init__(self, db: OpenDatabase, interval: float, queue: str | None, *, yes: bool) -> None:
        self._inbox = MessageQueue()
        self._reader = SnapshotReader(db, self._inbox.put, interval)
        self._actor = ActionThread(db, self._inbox.put)
        self._terminal = Terminal(sys.stdin.fileno(), sys.stdout.fileno())
        self._snapshot: Snapshot = Snapshot()
        self._view: ViewState = ViewState(ViewOptions(queue=queue), message=LOADING_MESSAGE, is_confirmed=yes)
        self._last_snapshot_at = time.monotonic()
        self._database_error = ""
        self._exit_code = 0
        noted = (
            signal.SIGINT,
            signal.SIGTERM,
            signal.SIGHUP,
            signal.SIGWINCH,
            signal.SIGTSTP,
            signal.SIGCONT,
        )
        self._signals = SignalWakeup(noted, ())

    def run(self) -> int:
        self._reader.start()
        self._actor.start()
        with self._terminal.full_screen():
            while not self._view.is_quitting:
                self._draw()
                self._wait()
        return self._exit_code

    def _wait(self) -> None:
        """Wait for a key, a signal or a message, at most a second: the duration of an outage is shown."""
        waiting = [self._terminal.keys, self._inbox.reader, self._signals.reader.fileno()]
        ready, _, _ = select.select(waiting, [], [], 1.0)
        for signum in self._signals.drain():
            self._handle_signal(signum)
        for message in self._inbox.take():
            self._handle_message(message)
        if self._terminal.keys in ready and not self._view.is_quitting:
            self._handle_keys()

    def _handle_signal(self, signum: int) -> None:
        if signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._exit_code = 128 + signum
            self._view = replace(self._view, is_quitting=True)
        elif signum == signal.SIGTSTP:
            self._terminal.leave()
            os.kill(os.getpid(), signal.SIGSTOP)
            self._terminal.enter()
        else:
            self._terminal.invalidate()

    def _handle_message(self, message: Message) -> None:
        match message:
            case SnapshotRead(snapshot):
                if not self._snapshot.hosts and self._view.message == LOADING_MESSAGE:
                    self._view = replace(self._view, message="")
                self._snapshot, self._last_snapshot_at, self._database_error = snapshot, time.monotonic(), ""
            case SnapshotFailed(error):
                self._database_error = error
            case ActionDone(Action(kind=ActionKind.STACK) as action, text, is_failed=False):
                pane = f"stack of {action.target}", wrap_text(text, self._terminal.size()[0])
                self._view = replace(self._view, pane=pane, pane_offset=0, message="")
            case ActionDone(_, text):
                self._view = replace(self._view, message=text)
                self._reader.refresh_now()

    def _handle_keys(self) -> None:
        data = self._terminal.read()
        if data is None:
            self._view = replace(self._view, is_quitting=True)
            return
        for key in decode_keys(data):
            self._view, act = handle_key(self._view, key, self._rows(), self._body_rows())
            if act is not None:
                self._actor.submit(act)
            if self._view.should_refresh:
                self._reader.refresh_now()
            if self._view.should_redraw:
                self._terminal.invalidate()
            if self._view.is_quitting:
                return

    def _rows(self) -> list[TreeRow]:
        return tree_rows(self._snapshot, self._view.options)

    def _body_rows(self) -> int:
        return max(1, body_height(self._terminal.size()[1]))

    def _draw(self) -> None:
        shown = self._rows()
        self._view = view = keep_selection_visible(self._view, shown, self._body_rows())
        status = ""
        if self._database_error:
            status = (
                f"no database for {time.monotonic() - self._last_snapshot_at:.0f}s: {self._database_error}"
            )
        content = ScreenContent(
            options=view.options,
            selected=view.selected,
            offset=view.offset,
            status=status,
            message=view.message,
            prompt=view.prompt,
            pane=view.pane,
            pane_offset=view.pane_offset,
            clock=time.strftime("%H:%M:%S"),
        )
        try:
            self._terminal.draw(render_frame(self._snapshot, shown, content, *self._terminal.size()))
        except BlockingIOError:
            self._terminal.invalidate()  # the terminal did not accept the whole frame
        except OSError:
            self._view = replace(view, is_quitting=True)  # the terminal is gone
