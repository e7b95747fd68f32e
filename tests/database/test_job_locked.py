"""Locked: asked without waiting."""

from __future__ import annotations

from support.desk import Desk

from pgworkers.job.locked import locked


def test_only_what_somebody_else_holds_is_locked_and_what_is_gone_is_not(desk: Desk, other: Desk) -> None:
    held, free, ended = desk.run_one(), desk.run_one(), desk.run_one()
    desk.end(ended)
    with other.conn.transaction():
        other.conn.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [held.id])
        assert desk.ask(locked([held.id, free.id, ended.id, 999])) == {held.id}
    assert desk.ask(locked([held.id])) == set()
