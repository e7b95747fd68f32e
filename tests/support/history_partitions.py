"""The partitions of a system that has run for as long as history is kept: what a benchmark has to run with."""

from __future__ import annotations

from typing import Any

import psycopg

from pgworkers.settings import Settings

DAYS_KEPT = int(Settings().retention // 86400)


def keep_days(conn: psycopg.Connection[Any], days: int = DAYS_KEPT) -> None:
    """Make the partitions of the last `days` days; those of today and of the days to come are there already."""
    conn.execute(
        f"""DO $$
        DECLARE
            parent text;
            day date;
        BEGIN
            FOREACH parent IN ARRAY ARRAY['history', 'attempt'] LOOP
                FOR day IN SELECT (now() AT TIME ZONE 'UTC')::date - n FROM generate_series(1, {int(days)}) n LOOP
                    EXECUTE format('CREATE TABLE pgworkers.%I PARTITION OF pgworkers.%I'
                                   ' FOR VALUES FROM (false, %L) TO (false, %L)',
                                   parent || to_char(day, '_YYYYMMDD'), parent,
                                   day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC');
                END LOOP;
            END LOOP;
        END $$""".encode()
    )
