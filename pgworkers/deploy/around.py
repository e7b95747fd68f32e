"""What every export needs to know of the app and of how long a stop takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pgworkers.master.drain import longest
from pgworkers.settings import Loaded
from pgworkers.settings import show as show_setting
from pgworkers.specs import AppSpec

#: What a service manager should allow beyond the longest stop.
MARGIN = 5
#: Settings that the time of a stop is made of: an export says them, so that it stays true.
_STOPPING = ("drain", "ask_grace", "raise_grace", "statement_timeout")


@dataclass(frozen=True, slots=True)
class Around:
    """An app as its surroundings see it."""

    name: str  # "reports": of the service, the deployment, the image
    config: str  # what --config gets
    workers: dict[str, int]  # on one host at most, by queue
    memory: int  # bytes that its workers may use together; 0: no queue says
    start: int  # seconds a start may take
    stop: int  # seconds from SIGTERM to SIGKILL
    schema: str
    said: dict[str, str]  # variables that were set where the export was made and that it depends on


def around(name: str, config: str, loaded: Loaded, app: AppSpec | None) -> Around:
    settings = loaded.settings
    queues = app.queues if app is not None else ()
    said = {
        f"PGWORKERS_{setting.upper()}": show_setting(setting, getattr(settings, setting))
        for setting in _STOPPING
        if loaded.sources[setting] not in ("default", "app")
    }
    return Around(
        name=name,
        config=config,
        workers={queue.name: queue.here for queue in queues} or {"default": 1},
        memory=sum((queue.memory or 0) * queue.here for queue in queues),
        start=math.ceil(settings.connect_wait + 2 * settings.boot) + 30,
        stop=math.ceil(longest(settings)) + MARGIN,
        schema=settings.schema,
        said=said,
    )
