"""`pgworkers migrate up | status | sql | roles`."""

from __future__ import annotations

import click

from pgworkers.cli import database, output
from pgworkers.cli.formatting import local_time, relative_time, utcnow
from pgworkers.cli.invocation import CliGroup, OutputFormat, invocation_of
from pgworkers.cli.output import Column


@click.group(cls=CliGroup)
def migrate() -> None:
    """Create the schema or bring it up to date."""


@migrate.command("up")
@click.pass_context
def up(ctx: click.Context) -> None:
    """Create the schema, or apply what is missing; does nothing twice.

    `pgworkers run` does the same when it starts; any number of hosts may do it at once. A migration waits for a lock only a
    second at a time, so that the hosts go on, and says which session holds it. It gives up after 15 minutes.

    \b
    Examples:
      pgworkers migrate up
      pgworkers migrate up --dsn postgresql://owner@db/app --schema jobs
    """
    from pgworkers.postgres import migrate as migrations

    invocation = invocation_of(ctx)
    with database.open_database(invocation, should_create_embedded=True, should_check_schema=False) as db:
        applied = migrations.up(
            db.conn, db.schema, on_message=lambda text: output.print_warning(invocation, text)
        )
        state = migrations.describe_schema(db.conn, db.schema)
    if invocation.output != OutputFormat.TABLE:
        output.print_rows(
            invocation, [{"name": name, "schema": db.schema} for name in applied], [], if_empty=""
        )
        return
    for name in applied:
        output.print_text(f"applied {name}")
    output.print_note(invocation, f"schema {db.schema} is {state}")


@migrate.command("status")
@click.pass_context
def status(ctx: click.Context) -> int:
    """What is applied and what is missing. Exit code 5 unless this version works with the schema.

    The state `newer`: a later version applied it, and it still serves this one. `serves` is the newest migration of the
    oldest version that works on the schema after this migration.

    \b
    Examples:
      pgworkers migrate status
      pgworkers migrate status -o json
    """
    from pgworkers.errors import SchemaOutOfDate
    from pgworkers.postgres import migrate as migrations

    invocation = invocation_of(ctx)
    with database.open_database(invocation, should_check_schema=False) as db:
        found = migrations.status(db.conn, db.schema)
    now = utcnow()
    columns: list[Column] = [
        ("migration", lambda row: row["name"]),
        ("state", lambda row: row["state"]),
        ("serves", lambda row: f"{row['serves']:04d}"),
        (
            "applied",
            lambda row: (
                f"{local_time(row['applied_at'])} ({relative_time(row['applied_at'], now)})"
                if row["applied_at"]
                else ""
            ),
        ),
    ]
    rows = [
        {
            "version": row.version,
            "name": row.name,
            "state": row.state,
            "serves": row.oldest_supported,
            "applied_at": row.applied_at,
        }
        for row in found
    ]
    output.print_rows(invocation, rows, columns, if_empty="", quiet_column="name")
    return 0 if all(row.is_usable for row in found) else SchemaOutOfDate.exit_code


@migrate.command("sql")
@click.option("--pending", is_flag=True, help="What `up` would run on this database now.")
@click.pass_context
def sql(ctx: click.Context, pending: bool) -> None:
    """Print what `up` does to an empty database, as a script for psql. Needs no database.

    It is one transaction: all of it, or nothing. With `--pending` it asks the database what is missing, and prints a
    transaction for each missing migration. It changes nothing if the schema has changed since.

    \b
    Examples:
      pgworkers migrate sql --schema jobs | psql -v ON_ERROR_STOP=1 app
      pgworkers migrate sql --pending | psql -v ON_ERROR_STOP=1 app
    """
    from pgworkers.postgres import migrate as migrations

    invocation = invocation_of(ctx)
    if not pending:
        output.print_script(migrations.render_sql(database.load_command_settings(invocation).settings.schema))
        return
    with database.open_database(invocation, should_check_schema=False) as db:
        output.print_script(migrations.render_pending(db.conn, db.schema))


@migrate.command("roles")
@click.pass_context
def roles(ctx: click.Context) -> None:
    """Print the SQL that makes six roles. Owner, worker, operator, payload, viewer, enqueue; needs no database.

    Run it after `up`, and again after each later one; docs/reference/roles.md has the table of what each role may do.

    \b
    Examples:
      pgworkers migrate roles | psql -v ON_ERROR_STOP=1 app
      psql app -c 'GRANT pgworkers_enqueue TO web'
    """
    from pgworkers.postgres import migrate as migrations

    invocation = invocation_of(ctx)
    schema = database.load_command_settings(invocation).settings.schema
    output.print_script(migrations.render_roles(schema))
    output.print_note(
        invocation,
        f"after this script only superusers and members of these roles may use the schema: GRANT {schema}_worker to the "
        f"login of your hosts first, and {schema}_owner to the one that migrates",
    )
