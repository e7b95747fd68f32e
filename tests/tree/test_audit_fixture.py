"""The audit that follows every test with a cluster can fail, and accepts no excuse without a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cluster_fixtures import audited_cluster


def test_the_audit_fails_a_test_that_does_not_ask_for_it(
    request: pytest.FixtureRequest, dsn: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(AssertionError, match="I1 job 4711 is lost"),
        audited_cluster(request, dsn, tmp_path) as cluster,
    ):
        cluster.enqueued.add(4711)


@pytest.mark.excused("I1", "the job never was there")
def test_one_invariant_is_excused_and_no_other(
    request: pytest.FixtureRequest, dsn: str, tmp_path: Path
) -> None:
    (tmp_path / "ledger").write_text("START 1 1 1 1 1\n")
    with (
        pytest.raises(AssertionError, match="I2 job 1 ran") as told,
        audited_cluster(request, dsn, tmp_path) as cluster,
    ):
        cluster.enqueued.add(4711)
    assert "I1" not in str(told.value)


@pytest.mark.excused("I1", "")
def test_an_excuse_says_why(request: pytest.FixtureRequest, dsn: str, tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="I1 is excused without a reason"),
        audited_cluster(request, dsn, tmp_path),
    ):
        pass


def test_jobs_of_a_rolled_back_transaction_are_not_required(
    request: pytest.FixtureRequest, dsn: str, tmp_path: Path
) -> None:
    with audited_cluster(request, dsn, tmp_path) as cluster:
        with cluster.db.transaction(force_rollback=True):
            cluster.enqueue("work")
        assert cluster.enqueued == set()
        [kept] = cluster.enqueue("work")
        assert cluster.enqueued == {kept}
