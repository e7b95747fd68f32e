"""The Django app `pgworkers`. `manage.py migrate` also brings the schema of the queue up to date."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate


class PgworkersConfig(AppConfig):
    """The tables belong to the migrations of pgworkers, which every release brings along. Django has none for them."""

    name = "pgworkers.django"
    label = "pgworkers"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Migrate after Django has migrated."""
        post_migrate.connect(migrate_schema, sender=self)


def migrate_schema(*, using: str, verbosity: int = 1, plan: Any = None, **_: Any) -> None:
    """Bring the schema up to date in the database that has the queue. Other databases are left alone."""
    from pgworkers.django.project_app import database_alias, find_app, schema_name
    from pgworkers.postgres import connect, migrate

    if using != database_alias() or connections[using].vendor != "postgresql":
        return
    app = find_app()
    django = app.django
    dsn = app.client.database.dsn() if django is None else django.dsn()
    with connect.connect(app.client.settings, dsn, "migrate") as conn:
        applied = migrate.up(conn, schema_name() if django else app.client.settings.schema)
    if verbosity >= 1:
        for name in applied:
            print(f"  Applied pgworkers {name}")
