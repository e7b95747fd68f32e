"""A process that uses an embedded server until its stdin ends: `python embedded_user.py HOME STORE [BINDIR]`.

It prints the process id of the server when it has it, and `released` when it has let go.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pgworkers.embedded.server import EmbeddedServer


def main(home: str, store: str, bindir: str = "") -> None:
    server = EmbeddedServer(
        Path(home),
        options={"fsync": "off", "shared_buffers": "16MB", "dynamic_shared_memory_type": "mmap"},
        bindir=Path(bindir) if bindir else None,
        stores=(Path(store),),
    )
    server.acquire()
    print(server.status().pid, flush=True)
    sys.stdin.read()
    server.release()
    print("released", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
