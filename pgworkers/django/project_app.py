"""The App of a Django project: the one that `PGWORKERS["APP"]` names, else one that is made of the settings.

PGWORKERS = {
    "APP": "shop.jobs:app",         # an App of your own; made by default
    "DATABASE": "default",          # the alias of DATABASES that has the queue
    "WORKERS": {"default": 2},      # queues and their workers per host
    "SETTINGS": {"retention": "7d"},  # docs/reference/settings.md
}
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from pgworkers.app import App

BACKEND_PATH = "pgworkers.django.backend.PgworkersBackend"
_KNOWN_KEYS = frozenset({"APP", "DATABASE", "WORKERS", "SETTINGS"})


def read_options() -> dict[str, Any]:
    """The setting PGWORKERS."""
    found = getattr(settings, "PGWORKERS", {})
    if not isinstance(found, dict) or set(found) - _KNOWN_KEYS:
        raise ImproperlyConfigured(
            f"the setting PGWORKERS is a dict with some of the keys {', '.join(sorted(_KNOWN_KEYS))}; it is {found!r}"
        )
    return found


def database_alias() -> str:
    """The alias of DATABASES that has the queue."""
    app = find_app()
    return app.django.alias if app.django is not None else str(read_options().get("DATABASE", "default"))


def schema_name() -> str:
    """The schema of the queue. Does not load the app: models are declared while apps are loaded."""
    return str(read_options().get("SETTINGS", {}).get("schema", "pgworkers"))


@cache
def find_app() -> App:
    """The App of this project."""
    options = read_options()
    path = options.get("APP")
    if path is None:
        return _make_app(options)
    module, _, name = str(path).partition(":")
    app = getattr(importlib.import_module(module), name or "app", None)
    if not isinstance(app, App):
        raise ImproperlyConfigured(f'PGWORKERS["APP"]: {path!r} names no App; write "package.module:app"')
    return app


def _make_app(options: dict[str, Any]) -> App:
    app = App(django=options.get("DATABASE", "default"), name=_project_name(), **options.get("SETTINGS", {}))
    module = sys.modules.get(str(getattr(settings, "SETTINGS_MODULE", None)))
    if module is not None and module.__file__:
        app.source_file = Path(
            module.__file__
        ).resolve()  # the version of the release is that of its repository
    workers = dict(options.get("WORKERS", {}))
    for backend in getattr(settings, "TASKS", {}).values():
        if backend.get("BACKEND") == BACKEND_PATH:
            for queue in backend.get("QUEUES", ["default"]):
                workers.setdefault(queue, 1)
    for queue, count in (workers or {"default": 1}).items():
        app.queue(queue, workers=count)
    return app


def _project_name() -> str:
    """The package of the settings: "shop" for shop.settings.production."""
    return str(getattr(settings, "SETTINGS_MODULE", "") or "django").partition(".")[0]
