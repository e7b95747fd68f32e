"""The messages between the master and the reporter, as JSON with a length in front of each (`ipc/messages.py`)."""

from __future__ import annotations

import msgspec

from pgworkers.hooks import JobEnd, TickReport


class ReporterBoot(msgspec.Struct, tag="boot", tag_field="type"):
    """The first message. The address of the database travels here, never in argv or environ."""

    config: str
    settings: dict[str, object]
    version: str = ""


class EndMessage(msgspec.Struct, tag="end", tag_field="type"):
    """An attempt has ended."""

    end: JobEnd


class TickMessage(msgspec.Struct, tag="tick", tag_field="type"):
    """A schedule has fired."""

    tick: TickReport


class ReporterReady(msgspec.Struct, tag="ready", tag_field="type"):
    """The app is imported and the start hooks have run."""


class ReporterBootFailed(msgspec.Struct, tag="boot_failed", tag_field="type"):
    error: str
    traceback: str


class Handled(msgspec.Struct, tag="handled", tag_field="type"):
    """All hooks have run for the oldest message that was not answered yet."""

    errors: list[str] = []  # one line for each hook that failed


ReporterOrder = ReporterBoot | EndMessage | TickMessage
ReporterAnswer = ReporterReady | ReporterBootFailed | Handled
