"""The settings of a small Django project. Its tests use SQLite; a real one has Postgres here."""

from __future__ import annotations

SECRET_KEY = "only for the example"
INSTALLED_APPS = ["orders"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

PGWORKERS_APP = "orders.jobs:app"
TEST_RUNNER = "pgworkers.testing.django.CapturingRunner"
