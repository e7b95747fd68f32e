"""A real Jupyter kernel, driven by a process of its own: its client library leaves sockets and event loops open.

Run as a program it starts a kernel, and prints its pid. Then it reads cells from its standard input, one JSON text per line,
and answers each with its output as one JSON text.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


class Kernel:
    """A kernel that runs cells one after the other."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._kernel_pid = int(self._answer())

    def run(self, code: str) -> str:
        """Run a cell. Returns its text and HTML output, or `ErrorName: text`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        return str(self._answer())

    def interrupt(self) -> None:
        os.kill(self._kernel_pid, signal.SIGINT)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def main(directory: str) -> None:
    from jupyter_client.manager import KernelManager

    manager = KernelManager(transport="ipc", ip=f"{directory}/k")
    manager.start_kernel(env={**os.environ, "IPYTHONDIR": directory})
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=120)
    print(json.dumps(manager.provisioner.pid), flush=True)
    try:
        for line in sys.stdin:
            print(json.dumps(run_cell(client, json.loads(line))), flush=True)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run_cell(client: Any, code: str) -> str:
    out: list[str] = []

    def collect(message: Any) -> None:
        content = message["content"]
        data = content.get("data", {})
        out.append(content.get("text") or data.get("text/html") or data.get("text/plain") or "")

    reply = client.execute_interactive(code, timeout=120, output_hook=collect)["content"]
    if reply["status"] == "error":
        return f"{reply['ename']}: {reply['evalue']}"
    return "".join(out).strip()


if __name__ == "__main__":
    main(sys.argv[1])
