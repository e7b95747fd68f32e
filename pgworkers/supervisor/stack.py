"""A faulthandler dump as a person wants to read it: the handler's frames, without ours below them. Pure."""

from __future__ import annotations

import os
import re

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: Whoever is called by one of these is user code; from here down it is always the same.
_BELOW = tuple(f'  File "{_PACKAGE}/{name}' for name in ("worker/", "task.py", "supervisor/"))
#: One line. A dump that is cut at its end may have the beginning of it.
_EXTENSIONS = re.compile(r"^Extension modules: .*\n?", re.MULTILINE)
_HEARTBEAT = f'  File "{_PACKAGE}/worker/heartbeat.py"'


def tell(dump: str) -> str:
    """Drop the heartbeat thread, the frames under the handler and the list of extension modules, which is longer than all
    the rest where numeric libraries are loaded; keep everything if nothing would be left."""
    dump = _EXTENSIONS.sub("", dump)
    blocks = [_cut(block) for block in dump.split("\n\n") if _HEARTBEAT not in block]
    told = "\n\n".join(block for block in blocks if block.strip())
    return told.strip() or dump.strip()


def _cut(block: str) -> str:
    """An idle worker's stack is all ours: it is kept whole."""
    lines = block.split("\n")
    frames = [line for line in lines if line.startswith("  File ")]
    if not frames or frames[0].startswith(_BELOW):
        return block
    kept: list[str] = []
    cut = False
    for line in lines:
        cut = cut or line.startswith(_BELOW)
        if not (cut and line.startswith("  ")):
            kept.append(line)
    return "\n".join(kept)
