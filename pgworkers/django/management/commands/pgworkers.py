"""`manage.py pgworkers ...`: the command line of pgworkers, with the app and the database of the project.

It becomes the `pgworkers` program: the master of a host must not have imported Django. Settings often read DATABASE_URL.
pgworkers keeps such variables from handlers, so they are let through for the import of the app only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from django.conf import ENVIRONMENT_VARIABLE
from django.core.management.base import BaseCommand, CommandError

from pgworkers.client.database import FRAMEWORK_DSN_SOURCES
from pgworkers.django.project_app import find_app
from pgworkers.linux.environment import IMPORT_VARIABLE, SECRET_VARIABLES
from pgworkers.settings import load_settings

WORKER_APP = "pgworkers.django.worker:app"


class Command(BaseCommand):
    help = "Runs pgworkers with the app and the database of this project: manage.py pgworkers run"
    requires_system_checks: list[str] = []

    def run_from_argv(self, argv: Sequence[str]) -> None:
        """Become the `pgworkers` program. All words after `pgworkers` are its own."""
        command = _command(argv[2:])
        os.execve(command[0], command, _environment(os.environ))

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("words", nargs="*")

    def handle(self, *args: Any, words: Sequence[str] = (), **options: Any) -> None:
        """For `call_command("pgworkers", "jobs", "list")`: run it as a child and wait."""
        done = subprocess.run(_command([*args, *words]), env=_environment(os.environ), check=False)
        if done.returncode:
            raise CommandError(
                f"pgworkers ended with exit code {done.returncode}", returncode=done.returncode
            )


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "pgworkers", *words]  # -P: no module of this directory


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the program needs to find the project and its database."""
    paths = [os.path.abspath(path or os.getcwd()) for path in sys.path[:1]]
    paths += [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in paths]
    found = {
        "PGWORKERS_CONFIG": WORKER_APP,
        **environ,
        "PYTHONPATH": os.pathsep.join(paths),
    }
    if ENVIRONMENT_VARIABLE not in found:
        raise CommandError(
            f"{ENVIRONMENT_VARIABLE} is not set, so workers could not find the settings; nothing was done"
        )
    app = find_app()
    secret = [name for name in SECRET_VARIABLES if environ.get(name)]
    if app.django is not None and load_settings(app=app.settings).sources["dsn"] in FRAMEWORK_DSN_SOURCES:
        found["PGWORKERS_DSN"] = app.client.database.dsn()
    found[IMPORT_VARIABLE] = ",".join(
        name for name in secret if name not in ("PGWORKERS_DSN", "PGWORKERS_DIRECT_DSN")
    )
    return found
