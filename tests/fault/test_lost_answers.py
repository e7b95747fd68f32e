"""Rows 33 to 36: a statement committed, and its sender never receives the answer."""

from __future__ import annotations

from itertools import pairwise

import psycopg
import pytest
from support.cluster import UNHURRIED, Cluster, wait_for
from support.ledger import audit, read
from support.proxy import Proxy, mark
from support.time_bounds import BACKOFF, BUSY, PROMOTE, T_DB, C, D, E, K, L, P, S

from pgworkers.units import parse_duration

CLAIMS = tuple(mark(f"job/{name}") for name in ("claim", "claim_ranges", "claim_oldest"))


def test_row_33_an_enqueue_without_an_answer_is_repeated_and_makes_one_job(
    proxy: Proxy, cluster: Cluster
) -> None:
    lost = proxy.lose_reply("pgworkers.enqueue")
    enqueue = "SELECT (pgworkers.enqueue('work', queue => 'default', unique_key => %s)).*"
    with pytest.raises(psycopg.OperationalError), psycopg.connect(proxy.dsn, autocommit=True) as conn:
        conn.execute(enqueue, ["invoice 7"])
    assert lost.hits == 1
    with psycopg.connect(proxy.dsn, autocommit=True) as conn:
        [(job, created)] = conn.execute(enqueue, ["invoice 7"]).fetchall()
    assert not created, "the first one had been committed"
    cluster.start(queues="default:1", dsn=proxy.dsn)
    cluster.until(job, "succeeded", timeout=P + S + BUSY)
    assert cluster.counts() == {"succeeded": 1}
    assert audit(cluster.db, cluster.ledger, [job]) == []


def test_row_33_a_transaction_without_an_answer_to_its_commit(proxy: Proxy, cluster: Cluster) -> None:
    lost = proxy.lose_reply("COMMIT")
    with psycopg.connect(proxy.dsn) as conn:
        conn.execute("SELECT pgworkers.enqueue('work', queue => 'default', unique_key => 'k')")
        with pytest.raises(psycopg.OperationalError):
            conn.commit()
    assert lost.hits == 1
    [job] = cluster.enqueue("work", unique_key="k")
    assert cluster.counts() == {"ready": 1}
    cluster.start(queues="default:1")
    cluster.until(job, "succeeded", timeout=P + S + BUSY)
    assert audit(cluster.db, cluster.ledger, [job]) == []


def test_row_33_a_repeat_with_an_idempotency_key_is_the_same_job_also_after_its_end(
    proxy: Proxy, cluster: Cluster
) -> None:
    """The client gets no answer to its commit, the job runs and ends, and only then does the client try again."""
    enqueue = "SELECT (pgworkers.enqueue('work', queue => 'default', idempotency_key => 'invoice 7')).*"
    lost = proxy.lose_reply("COMMIT")
    with psycopg.connect(proxy.dsn) as conn:
        conn.execute(enqueue)
        with pytest.raises(psycopg.OperationalError):
            conn.commit()
    assert lost.hits == 1
    cluster.start(queues="default:1")
    cluster.until_all_ended(timeout=P + S + BUSY)
    [(job, created)] = cluster.db.execute(enqueue).fetchall()
    assert not created, "the first one had been committed"
    assert cluster.counts() == {"succeeded": 1}
    assert audit(cluster.db, cluster.ledger, [job]) == []


def test_row_34_a_host_releases_jobs_whose_claim_response_was_lost(proxy: Proxy, cluster: Cluster) -> None:
    """No other host may claim it, because its host renews. So that host must find jobs that it holds without knowing."""
    cluster.start(queues="default:2", dsn=proxy.dsn)
    [first] = cluster.enqueue("work")
    cluster.until(first, "succeeded")
    lost = proxy.lose_reply(*CLAIMS, who="claim")
    wait_for(lambda: lost.hits, what="an empty claim is lost too")
    lost = proxy.lose_reply(*CLAIMS, who="claim")
    jobs = cluster.enqueue("work", 2)
    wait_for(lost.done.is_set, what="the claim was committed")
    wait_for(lambda: lost.hits)
    cluster.until_all_ended(timeout=2 * L + S + T_DB + BUSY)  # given back, then claimed by a new session
    assert cluster.counts() == {"succeeded": 3}
    assert {row["attempt"] for row in map(cluster.row, jobs)} == {1}, (
        "it was never started: it cost no attempt"
    )
    assert audit(cluster.db, cluster.ledger, [first, *jobs]) == []


def test_row_34_a_drained_host_releases_jobs_whose_claim_response_was_lost(
    proxy: Proxy, cluster: Cluster
) -> None:
    master = cluster.start(queues="default:1", dsn=proxy.dsn, **UNHURRIED)
    [job] = cluster.enqueue("work", run_at="2099-01-01")
    lost = proxy.lose_reply(*CLAIMS, who="claim", times=1000)
    cluster.db.execute("UPDATE pgworkers.job SET run_at = now(), state = 'ready'")
    cluster.until(job, "running")
    wait_for(
        lambda: lost.hits, what="the answer is lost"
    )  # it may be on its way for longer than the row is locked
    patient = parse_duration(UNHURRIED["PGWORKERS_STATEMENT_TIMEOUT"], what="statement_timeout")
    assert master.terminate(timeout=D + K + patient + BUSY) == 0, master.log()
    row = cluster.row(job)
    assert (row["state"], row["attempt"], row["host"]) == ("ready", 0, None)
    assert audit(cluster.db, cluster.ledger, [job]) == []


def test_row_35_an_end_without_an_answer_is_sent_again_and_nothing_runs_twice(
    proxy: Proxy, cluster: Cluster
) -> None:
    master = cluster.start(queues="default:2", dsn=proxy.dsn)
    finish, retry = mark("job/finish"), mark("job/retry")
    ends = proxy.lose_reply(finish, times=3)
    good = cluster.enqueue("work", 20, args={"seconds": 0.05})
    wait_for(lambda: ends.hits == 3)
    cluster.until_all_ended(timeout=S + C + BUSY)
    agains = proxy.lose_reply(retry)
    bad = cluster.enqueue("fail", 4, args={"times": 1})
    wait_for(lambda: agains.hits == 1)
    cluster.until_all_ended(timeout=S + C + BACKOFF + BUSY)
    assert cluster.counts() == {"succeeded": 24}
    starts = [entry for entry in read(cluster.ledger) if entry.kind == "START"]
    assert len(starts) == 20 + 2 * 4, "each once, and each failed one once more"
    assert {cluster.row(job)["attempt"] for job in good} == {1}
    assert "lease" not in master.log().replace("release", ""), "no lease was lost"
    assert audit(cluster.db, cluster.ledger, good + bad) == []


def test_row_36_a_tick_without_an_answer_is_one_job(proxy: Proxy, cluster: Cluster) -> None:
    cluster.app.write_text(
        cluster.app.read_text() + '\n\napp.schedule("* * * * * *", name="beat", missed="all")(work)\n'
    )
    fired = proxy.lose_reply(mark("schedule/fire"), times=3)
    cluster.start(queues="default:2", dsn=proxy.dsn)
    wait_for(lambda: fired.hits == 3, what="three ticks were lost on the way back")
    before = len(_ticks(cluster))
    wait_for(
        lambda: len(_ticks(cluster)) >= before + 2, timeout=2 + PROMOTE + E + BUSY, what="and it went on"
    )
    cluster.db.execute("UPDATE pgworkers.schedule SET paused = true, revision = revision + 1")
    cluster.until_all_ended(timeout=P + S + BUSY)
    ticks = _ticks(cluster)
    gaps = {(later - earlier).total_seconds() for earlier, later in pairwise(ticks)}
    assert gaps == {1.0}, "every second, once"
    jobs = cluster.db.execute(
        "SELECT meta ->> 'tick', count(*), min(id) FROM pgworkers.jobs GROUP BY 1"
    ).fetchall()
    assert len(jobs) == len(ticks)
    assert {count for _, count, _ in jobs} == {1}
    assert audit(cluster.db, cluster.ledger, [job for *_, job in jobs]) == []


def _ticks(cluster: Cluster) -> list:
    return [row[0] for row in cluster.db.execute("SELECT at FROM pgworkers.tick ORDER BY at").fetchall()]
