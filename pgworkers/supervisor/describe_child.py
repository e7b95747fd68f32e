"""The short-lived child that imports the app and describes it, so that the master never imports it.

`python -m pgworkers.supervisor.describe_child --fd N --config CONFIG [--threads N] [--preload MODULE]` writes one line
of JSON to descriptor N: an AppSpec, or `{"error": ..., "traceback": ...}`. Whatever the app prints goes to stderr.
Exit status 0, or 6 for an error.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence

import msgspec

from pgworkers.app_import import display_name, import_app
from pgworkers.errors import PgworkersError
from pgworkers.linux import environment, process_limits
from pgworkers.linux.environment import missing_variable_hint
from pgworkers.supervisor.app_loader import hide_passwords, user_traceback
from pgworkers.supervisor.fork_safety import threads_blocking_fork


def describe_app(config: str, preload: Sequence[str] = ()) -> tuple[int, bytes]:
    """The exit status and the answer as JSON."""
    try:
        app = import_app(config)
        for name in preload:
            importlib.import_module(name)
        found = app.describe()
        known = msgspec.structs.replace(
            found,
            name=display_name(app, config),
            threads=tuple(threads_blocking_fork()),
            uses_prometheus="prometheus_client" in sys.modules,
        )
        return 0, msgspec.json.encode(known)
    except PgworkersError as error:
        return 6, _encode_error(f"{error}{missing_variable_hint(str(error))}", user_traceback(error))
    except BaseException as error:  # also SystemExit: an app that leaves while it is imported
        text = "".join(traceback.format_exception_only(error)).strip()
        return 6, _encode_error(
            f"{config} could not be described: {text}{missing_variable_hint(text)}", user_traceback(error)
        )


def _encode_error(error: str, trace: str) -> bytes:
    # lone surrogates in a file name or a message have no JSON form
    texts = [hide_passwords(text).encode("utf-8", "replace").decode() for text in (error, trace)]
    return msgspec.json.encode({"error": texts[0], "traceback": texts[1]})


def main() -> None:
    parser = argparse.ArgumentParser(prog="pgworkers.supervisor.describe_child")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--config", required=True)
    parser.add_argument("--threads", type=int, default=1, help="as a queue says; 0: as the environment does")
    parser.add_argument("--preload", action="append", default=[])
    given = parser.parse_args()
    os.set_inheritable(given.fd, False)
    environment.open_missing_streams()
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process_limits.set_thread_variables(given.threads or None)  # numeric libraries are only looked at here
    status, data = describe_app(given.config, given.preload)
    with open(given.fd, "wb") as pipe:
        pipe.write(data + b"\n")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the app closed or replaced it
            stream.flush()
    os._exit(status)  # whatever the app started (threads, exit handlers) ends here


if __name__ == "__main__":
    main()
