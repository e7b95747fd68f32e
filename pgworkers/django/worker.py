"""What a host imports: Django is set up, the modules `tasks` of all installed apps are imported, and `app` is complete."""

from __future__ import annotations

import django
from django.db import connections
from django.utils.module_loading import autodiscover_modules

django.setup()

from pgworkers.django.project_app import find_app  # noqa: E402

autodiscover_modules("tasks")
app = find_app()
try:
    from pgworkers.django.django_task import declare_django_task
except ImportError:  # neither Django 6 nor the backport is installed, so there are no tasks of that kind
    pass
else:
    declare_django_task(app)
connections.close_all()  # workers are forked after this import
