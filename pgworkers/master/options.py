"""What the command line asks of a master."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pgworkers.settings import Loaded


@dataclass(frozen=True, slots=True)
class RunOptions:
    config: str
    loaded: Loaded
    flags: dict[str, Any] = field(default_factory=dict)  # to load the settings again with the app's own
    workers: int | None = None  # for every queue
    queues: dict[str, int | None] | None = None  # serve only these; None: as declared
    burst: bool = False
    check: bool = False
    enqueue: tuple[str, ...] = ()
    quiet: bool = False
    reload: bool = False  # when the app's files change
