"""Progress and checkpoint are kept for as long as the lease holds, and not a moment longer."""

from __future__ import annotations

from support.database_host import Desk

from pgworkers.job.finish import ProgressUpdate, save_progress


def test_what_changed_is_stored_and_the_rest_stays(desk: Desk) -> None:
    job = desk.run_one()
    assert (
        desk.execute(save_progress(desk.host, [ProgressUpdate(*job.fence, '{"done": 1}', '{"page": 1}')]))
        == 1
    )
    assert desk.execute(save_progress(desk.host, [ProgressUpdate(*job.fence, '{"done": 2}', None)])) == 1
    seen = desk.see(job.id)
    assert (seen.progress, seen.checkpoint) == ({"done": 2}, {"page": 1})


def test_a_checkpoint_survives_the_attempt(desk: Desk) -> None:
    job = desk.run_one()
    desk.execute(save_progress(desk.host, [ProgressUpdate(*job.fence, None, '{"page": 9}')]))
    desk.again(job, delay_seconds=0.0)
    (again,) = desk.take()
    assert again.checkpoint == '{"page": 9}'


def test_a_stale_lease_cannot_overwrite_its_successor(desk: Desk) -> None:
    stale = desk.run_one()
    desk.again(stale, delay_seconds=0.0)
    (fresh,) = desk.take()
    assert (
        desk.execute(
            save_progress(
                desk.host, [ProgressUpdate(*stale.fence, "1", "1"), ProgressUpdate(*fresh.fence, "2", "2")]
            )
        )
        == 1
    )
    assert desk.see(fresh.id).progress == 2


def test_a_text_that_is_no_json_changes_nothing_and_spoils_no_other(desk: Desk) -> None:
    desk.put()
    desk.put()
    one, two = desk.take(2)
    assert (
        desk.execute(
            save_progress(
                desk.host,
                [ProgressUpdate(*one.fence, "{", None), ProgressUpdate(*two.fence, '"\\u0000"', None)],
            )
        )
        == 2
    )
    assert desk.see(one.id).progress is None
    assert desk.see(two.id).progress == "\ufffd"


def test_nothing_to_save_is_no_error(desk: Desk) -> None:
    assert desk.execute(save_progress(desk.host, [])) == 0
