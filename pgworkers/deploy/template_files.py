"""The Procfile of `pgworkers init` and `pgworkers export procfile`."""

from __future__ import annotations

from pgworkers.observe.escape import shell_command


def render_procfile(config: str) -> str:
    return f"worker: {shell_command('run', config=config)}\n"
