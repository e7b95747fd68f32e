"""Array parameters, also where they are written into the statement, as a client-side cursor does behind a pooler."""

from __future__ import annotations

import pytest
from psycopg import sql

from pgworkers.postgres.arrays import Bigints, Doubles, Integers, Texts, Timestamps


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        (Bigints([1, -(1 << 40)]), "'{1,-1099511627776}'::int8[]"),
        (Integers([1]), "'{1}'::int2[]"),
        (Doubles([0.5]), "'{0.5}'::float8[]"),
        (Texts(["a", None]), "'{a,NULL}'"),
        (Timestamps([946_684_800_000_001]), "'{\"2000-01-01T00:00:00.000001+00:00\"}'::timestamptz[]"),
    ],
)
def test_a_literal_has_a_type_that_can_be_cast_to_the_array_of_the_statement(
    value: list[object], literal: str
) -> None:
    assert sql.Literal(value).as_string(None) == literal
