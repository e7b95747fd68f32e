"""The `cluster` fixtures, shared by the tests of tree and fault, and the audit that follows each of those tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from support.cluster import Cluster
from support.ledger import audit
from support.server import OwnServer


@pytest.fixture
def cluster(request: pytest.FixtureRequest, dsn: str, tmp_path: Path) -> Iterator[Cluster]:
    """Masters on a database of this test's own."""
    with audited_cluster(request, dsn, tmp_path) as cluster:
        yield cluster


@pytest.fixture
def own_cluster(request: pytest.FixtureRequest, own_server: OwnServer, tmp_path: Path) -> Iterator[Cluster]:
    """Masters on a server that the test may crash."""
    with audited_cluster(request, own_server.dsn, tmp_path) as cluster:
        yield cluster


@contextmanager
def audited_cluster(request: pytest.FixtureRequest, dsn: str, directory: Path) -> Iterator[Cluster]:
    """Masters; when they have left, the audit: a test need not ask for it, and cannot forget it.

    `@pytest.mark.excused("I6", "why")` lets one invariant be violated by a test whose subject that is, "audit" all of
    them; without a reason in words it is refused.
    """
    with cluster_with_excuses(excuses_of(request.node), dsn, directory) as cluster:
        yield cluster


def excuses_of(test: pytest.Item) -> dict[str, str]:
    """The invariants that a test may violate, with the reasons."""
    return dict(_excuse(mark) for mark in test.iter_markers("excused"))


@contextmanager
def cluster_with_excuses(excuses: dict[str, str], dsn: str, directory: Path) -> Iterator[Cluster]:
    """Masters, and the audit with these excuses, which may be added to until the masters have left."""
    cluster = Cluster(dsn, directory)
    try:
        yield cluster
    finally:
        cluster.close()
    if "audit" not in excuses:
        wrong = [text for text in _audited(cluster) if text.split()[0] not in excuses]
        assert not wrong, "the audit after the test:\n" + "\n".join(wrong)


def _excuse(mark: pytest.Mark) -> tuple[str, str]:
    invariant, why = mark.args
    assert len(why.split()) > 2, f"{invariant} is excused without a reason"
    return invariant, why


def _audited(cluster: Cluster) -> list[str]:
    """Jobs that schedules, handlers, batches or commands made are taken from the tables: only of those that the cluster
    enqueued is it known from outside that they must be there. Not at rest: masters that were still there were asked to
    quit, and on a busy machine they give up what they could not write; I11 is for tests that let them drain."""
    with psycopg.connect(cluster.dsn, autocommit=True) as db:
        there = {row[0] for row in db.execute("SELECT id FROM pgworkers.jobs")}
        ids = cluster.enqueued | there
        return audit(db, cluster.ledger, ids, at_rest=False, silent=_silent(cluster.app))


def _silent(app: Path) -> set[str]:
    """The tasks whose handlers write no line into the ledger: some of the app's, and those that every app has."""
    functions = [
        one
        for one in ast.parse(app.read_text()).body
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.decorator_list
    ]
    return {"echo", "exec", *(one.name for one in functions if "note(" not in ast.unparse(one))}
