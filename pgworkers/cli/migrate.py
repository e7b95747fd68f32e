"""`pgworkers migrate up | status | sql | roles`."""

from __future__ import annotations

import click

from pgworkers.cli import output, place
from pgworkers.cli.invocation import Group, said
from pgworkers.cli.output import Column
from pgworkers.cli.wording import ago, moment, utcnow


@click.group(cls=Group)
def migrate() -> None:
    """Create the schema or bring it up to date."""


@migrate.command("up")
@click.pass_context
def up(ctx: click.Context) -> None:
    """Create the schema, or apply what is missing; does nothing twice.

    `pgworkers run` does the same when it starts; any number of hosts may do it at once.

    \b
    Examples:
      pgworkers migrate up
      pgworkers migrate up --dsn postgresql://owner@db/app --schema jobs
    """
    from pgworkers.postgres import migrate as migrations

    invocation = said(ctx)
    with place.database(invocation, create=True, check=False) as db:
        applied = migrations.up(db.conn, db.schema)
    if invocation.output != "table":
        output.rows(invocation, [{"name": name, "schema": db.schema} for name in applied], [], empty="")
        return
    for name in applied:
        output.say(f"applied {name}")
    output.note(invocation, f"schema {db.schema} is up to date")


@migrate.command("status")
@click.pass_context
def status(ctx: click.Context) -> int:
    """What is applied and what is missing. Exit code 5 unless the schema is up to date.

    \b
    Examples:
      pgworkers migrate status
      pgworkers migrate status -o json
    """
    from pgworkers.errors import SchemaOutOfDate
    from pgworkers.postgres import migrate as migrations

    invocation = said(ctx)
    with place.database(invocation, check=False) as db:
        found = migrations.status(db.conn, db.schema)
    now = utcnow()
    columns: list[Column] = [
        ("migration", lambda row: row.name),
        ("state", lambda row: row.state),
        (
            "applied",
            lambda row: f"{moment(row.applied_at)} ({ago(row.applied_at, now)})" if row.applied_at else "",
        ),
    ]
    output.rows(invocation, found, columns, empty="", key="name")
    return 0 if all(row.state == "applied" for row in found) else SchemaOutOfDate.exit_code


@migrate.command("sql")
@click.pass_context
def sql(ctx: click.Context) -> None:
    """Print what `up` does to an empty database. For somebody else to run; needs no database.

    It is one transaction: all of it, or nothing.

    \b
    Examples:
      pgworkers migrate sql --schema jobs | psql -v ON_ERROR_STOP=1 app
    """
    from pgworkers.postgres import migrate as migrations

    output.script(migrations.render_sql(place.load(said(ctx)).settings.schema))


@migrate.command("roles")
@click.pass_context
def roles(ctx: click.Context) -> None:
    """Print the SQL that makes six roles. Owner, worker, operator, payload, viewer, enqueue; needs no database.

    Run it after `up`, and again after each later one; docs/security.md has the table of what each role may do.

    \b
    Examples:
      pgworkers migrate roles | psql -v ON_ERROR_STOP=1 app
      psql app -c 'GRANT pgworkers_enqueue TO web'
    """
    from pgworkers.postgres import migrate as migrations

    invocation = said(ctx)
    schema = place.load(invocation).settings.schema
    output.script(migrations.render_roles(schema))
    output.note(
        invocation,
        f"after this script only superusers and members of these roles may use the schema: GRANT {schema}_worker to the "
        f"login of your hosts first, and {schema}_owner to the one that migrates",
    )
