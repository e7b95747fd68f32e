"""Progress and checkpoint are kept for as long as the lease holds, and not a moment longer."""

from __future__ import annotations

from support.database_host import DatabaseHost

from pgworkers.job.finish import ProgressUpdate, release, save_progress


def save(host: DatabaseHost, *updates: ProgressUpdate) -> int:
    answer = host.execute(save_progress(host.id, updates))
    assert answer.locked_fences == []
    return answer.saved_count


def test_what_changed_is_stored_and_the_rest_stays(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    assert save(host, ProgressUpdate(*job.fence, '{"done": 1}', '{"page": 1}')) == 1
    assert save(host, ProgressUpdate(*job.fence, '{"done": 2}', None)) == 1
    seen = host.job_view(job.id)
    assert (seen.progress, seen.checkpoint) == ({"done": 2}, {"page": 1})


def test_a_checkpoint_survives_the_attempt(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    host.execute(save_progress(host.id, [ProgressUpdate(*job.fence, None, '{"page": 9}')]))
    host.retry_job(job, delay_seconds=0.0)
    (again,) = host.claim()
    assert again.checkpoint == '{"page": 9}'


def test_a_stale_lease_cannot_overwrite_its_successor(host: DatabaseHost) -> None:
    stale = host.enqueue_and_claim()
    host.retry_job(stale, delay_seconds=0.0)
    (fresh,) = host.claim()
    assert save(host, ProgressUpdate(*stale.fence, "1", "1"), ProgressUpdate(*fresh.fence, "2", "2")) == 1
    assert host.job_view(fresh.id).progress == 2


def test_invalid_json_changes_nothing_and_affects_no_other_job(host: DatabaseHost) -> None:
    host.enqueue()
    host.enqueue()
    one, two = host.claim(2)
    assert (
        save(host, ProgressUpdate(*one.fence, "{", None), ProgressUpdate(*two.fence, '"\\u0000"', None)) == 2
    )
    assert host.job_view(one.id).progress is None
    assert host.job_view(two.id).progress == "\ufffd"


def test_nothing_to_save_is_not_an_error(host: DatabaseHost) -> None:
    assert host.execute(save_progress(host.id, [])) == (0, [])


def test_what_another_session_has_locked_is_named(host: DatabaseHost, other: DatabaseHost) -> None:
    host.enqueue()
    host.enqueue()
    one, two = host.claim(2)
    updates = [ProgressUpdate(*job.fence, None, '{"page": 9}') for job in (one, two)]
    with other.conn.transaction():
        other.conn.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [one.id])
        assert host.execute(save_progress(host.id, updates)) == (1, [one.fence])
    assert [host.job_view(job.id).checkpoint for job in (one, two)] == [None, {"page": 9}]
    host.execute(release(host.id, [two.fence]))
    assert host.execute(save_progress(host.id, updates)) == (1, []), "a lost lease is not a locked row"
