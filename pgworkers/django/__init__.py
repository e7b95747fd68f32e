"""pgworkers in a Django project: put `"pgworkers.django"` into INSTALLED_APPS.

- `from pgworkers.django import app` is the App of the project (`project_app`), for `@app.task` and `@app.schedule`.
- `backend` runs `django.tasks`: `TASKS = {"default": {"BACKEND": "pgworkers.django.backend.PgworkersBackend"}}`.
- `apps` brings the schema up to date with `manage.py migrate`.
- `manage.py pgworkers run` and every other command of pgworkers find app and database in the settings.
- `models` and `admin` show jobs, queues, schedules and failures.

A host imports `worker`. Importing this package imports nothing of Django.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgworkers.app import App

    app: App

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    if name == "app":
        from pgworkers.django.project_app import find_app

        return find_app()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
