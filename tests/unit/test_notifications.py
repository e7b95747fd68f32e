"""Payloads of notifications: whatever text a login sends, parsing returns a typed hint or None."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgworkers.client.waiting import hinted_jobs
from pgworkers.job.notification_payloads import (
    BatchChanged,
    BatchEnded,
    DueSoon,
    JobChanged,
    JobsEnded,
    JobsReady,
    QueueChanged,
    RequestAnswered,
    RequestCreated,
    ViewWatched,
    parse_done_hint,
    parse_host_hint,
)

HOST = "0f9d6c1e-7a3b-4c7e-9a55-2b1f6f0c4d12"
KINDS = ["ready", "one", "cancel", "deadline", "batch", "queue", "request", "due", "watch", "reconnected", ""]
#: Digits of every script: str.isdigit() is true of them, and int() refuses some and accepts others.
DIGITS = st.text(st.characters(categories=["Nd", "No", "Nl"]), max_size=25)
PAYLOADS = st.one_of(
    st.text(max_size=300),
    st.binary(max_size=300),
    st.builds("{}:{}".format, st.sampled_from(KINDS), st.one_of(st.text(max_size=300), DIGITS)),
    st.builds("{}:{}:{}".format, st.sampled_from(KINDS), st.text(max_size=10), st.uuids()),
    st.lists(DIGITS, max_size=20).map(" ".join),
)


@given(PAYLOADS)
@example("cancel:²1")
@example("batch:²")
@example("cancel:" + "9" * 5000)
@example("cancel:9223372036854775808")
@example("cancel:٣")
@example("cancel:-1")
@example("cancel: 1")
@example("²")
@example("\ud800")
def test_any_payload_becomes_a_bounded_hint_or_none(payload: str | bytes) -> None:
    for hint in (parse_host_hint(payload), parse_done_hint(payload)):
        match hint:
            case JobsReady(queue, "", False) | QueueChanged(queue):
                assert len(queue) <= 200
            case JobsReady(queue, host, _):
                assert 0 < len(queue) <= 200
                assert ":" not in queue
                assert str(uuid.UUID(host)) == host
            case JobChanged(number) | BatchChanged(number) | BatchEnded(number) | RequestAnswered(number):
                assert 0 < number < 2**63
            case JobsEnded(frozenset() as jobs):
                assert all(0 < job < 2**63 for job in jobs)
            case None | JobsEnded(None) | RequestCreated() | ViewWatched() | DueSoon():
                pass
            case _:
                pytest.fail(f"{hint} is only made by the host itself")
    if isinstance(payload, str):
        assert hinted_jobs(payload, {1, 2, 3}) <= {1, 2, 3}


@pytest.mark.parametrize(
    ("payload", "hint"),
    [
        ("ready:", JobsReady("")),
        ("ready:mail", JobsReady("mail")),
        (f"ready:mail:{HOST}", JobsReady("mail", HOST)),
        (f"one:mail:{HOST}", JobsReady("mail", HOST, is_one_job=True)),
        ("queue:mail", QueueChanged("mail")),
        ("cancel:17", JobChanged(17)),
        ("deadline:17", JobChanged(17)),
        ("batch:9223372036854775807", BatchChanged(2**63 - 1)),
        ("request:", RequestCreated()),
        ("watch:", ViewWatched()),
        ("due:", DueSoon()),
    ],
)
def test_what_our_own_statements_send_to_hosts_is_understood(payload: str, hint: object) -> None:
    assert parse_host_hint(payload) == parse_host_hint(payload.encode()) == hint


@pytest.mark.parametrize(
    "payload",
    [
        "ready:a:b",
        "one:",
        "one:mail",
        "one:mail:",
        f"one::{HOST}",
        f"ready::{HOST}",
        f"one:a:b:{HOST}",
        f"one:mail:{HOST} ",
        f"one:mail:{HOST}\n",
        f"one:mail:{HOST}:{HOST}",
        f"one:mail:{HOST.upper()}",
        f"one:mail:{{{HOST}}}",
        f"one:mail:{HOST.replace('-', '')}",
        f"one:mail:{HOST.replace('0', chr(0x660))}",
        f"one:{'x' * 201}:{HOST}",
    ],
)
def test_a_host_is_named_by_its_id_as_postgres_prints_it_or_not_at_all(payload: str) -> None:
    assert parse_host_hint(payload) is None


@pytest.mark.parametrize(
    ("payload", "hint"),
    [
        ("17", JobsEnded(frozenset({17}))),
        ("17 18", JobsEnded(frozenset({17, 18}))),
        ("*", JobsEnded(None)),
        ("batch:3", BatchEnded(3)),
        ("request:3", RequestAnswered(3)),
        ("17 x", None),
        ("", None),
    ],
)
def test_what_our_own_statements_send_to_waiting_clients_is_understood(payload: str, hint: object) -> None:
    assert parse_done_hint(payload) == hint
