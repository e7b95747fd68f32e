"""examples/typed_arguments.py with a real host: types, codecs, and secrets that are shown nowhere."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import pytest
from cryptography.fernet import Fernet
from support.cluster import Cluster, wait_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "typed_arguments.py"
TOKEN = "expired-token-0815"


@pytest.fixture
def load_shop(cluster: Cluster) -> Iterator[Callable[[str], ModuleType]]:
    loaded: list[ModuleType] = []

    def load(keys: str) -> ModuleType:
        loaded.append(load_example(cluster, keys))
        return loaded[-1]

    yield load
    for module in loaded:
        module.app.close()


def load_example(cluster: Cluster, keys: str) -> ModuleType:
    """The example as the app of the test's hosts, and imported here as the web process would."""
    # As HTTP clients do, which log the URLs that they call.
    logs = 'import logging; logging.getLogger("bank").warning("GET /?token=%s", api_token)'
    text = EXAMPLE.read_text().replace("    if api_token ==", f"    {logs}\n    if api_token ==")
    cluster.app.write_text(text)
    os.environ["SHOP_KEYS"] = keys
    try:
        spec = importlib.util.spec_from_file_location("shop_example", cluster.app)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["shop_example"] = module
        spec.loader.exec_module(module)
    finally:
        del os.environ["SHOP_KEYS"]
    module.app.use_database(cluster.dsn)
    return module


def shown(cluster: Cluster, *command: str) -> str:
    words = [sys.executable, "-m", "pgworkers", "--dsn", cluster.dsn, *command]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=60, check=True, cwd="/", env=os.environ
    ).stdout


def test_types_arrive_and_secrets_are_shown_nowhere(
    cluster: Cluster, load_shop: Callable[[str], ModuleType]
) -> None:
    keys = Fernet.generate_key().decode()
    shop = load_shop(keys)
    cluster.start(SHOP_KEYS=keys)
    goods = ([shop.Line("pen", 3)], shop.Money(Decimal("1.50"), "EUR"), shop.Card(last_digits="0042"))
    paid = shop.charge.enqueue(*goods, "valid-token-4711")
    receipt = paid.result(timeout=60)
    assert (receipt.text, receipt.total.amount, receipt.total.currency) == (
        "3 articles by card",
        Decimal("4.50"),
        "EUR",
    )
    refused = shop.charge.enqueue(*goods, TOKEN)
    [by_sql] = cluster.enqueue(  # by a program that knows neither the mark nor the key
        "charge",
        args={
            "lines": [],
            "price": "1 EUR",
            "payment": {"kind": "transfer", "iban": "DE1"},
            "api_token": TOKEN,
        },
    )
    dead = [cluster.until(job, "dead") for job in (refused.id, by_sql)]
    assert dead[0]["error"] == "PermissionError: 401 for https://bank.example/?token=[secret]"
    master = cluster.masters[0]
    wait_for(lambda: f"#{by_sql} charge" in master.log(), what="the log lines of both jobs")
    assert cluster.row(by_sql)["args"]["api_token"] == {"$secret": TOKEN}
    texts = [master.log(), *(str(cluster.attempts(job)) for job in (paid.id, refused.id, by_sql))]
    texts += [
        shown(cluster, "jobs", "show", str(job), *more)
        for job in (paid.id, refused.id, by_sql)
        for more in ((), ("-o", "json"))
    ]
    texts += [shown(cluster, "jobs", "list", "-o", "json", "--limit", "9"), str(master.titles())]
    stored = cluster.db.execute("SELECT args::text FROM pgworkers.jobs WHERE id <> %s", [by_sql]).fetchall()
    texts += [str(stored)]
    assert "bank: GET /?token=[secret]" in master.log()
    for text in texts:
        assert "valid-token-4711" not in text
        assert TOKEN not in text, text
    assert 'payment={"kind": "card' in master.log(), "the other arguments are shown"
    assert 'api_token="[secret]"' in texts[1 + 3]
    attempts = cluster.attempts(refused.id)
    assert [attempt["verdict"] for attempt in attempts] == ["error"] * 3
    assert "token=[secret]" in attempts[0]["traceback"]


def test_a_job_whose_key_is_gone_says_so_and_runs_when_it_is_back(
    cluster: Cluster, load_shop: Callable[[str], ModuleType]
) -> None:
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    shop = load_shop(old)
    job = shop.charge.enqueue([], shop.Money(Decimal(1), "EUR"), shop.Card(last_digits="1"), "valid-token")
    first = cluster.start(SHOP_KEYS=new)
    row = cluster.until(job.id, "dead")
    assert "argument api_token: it cannot be decrypted" in row["error"]
    assert "The handler was not run" in row["error"]
    first.terminate()
    cluster.start(SHOP_KEYS=f"{new},{old}")
    shown(cluster, "jobs", "retry", str(job.id))
    assert job.result(timeout=60).text == "0 articles by card"


def test_log_args_false_shows_no_arguments(cluster: Cluster) -> None:
    cluster.app.write_text(
        cluster.app.read_text().replace('App(name="misbehaving")', 'App(name="misbehaving", log_args=False)')
    )
    master = cluster.start()
    [job] = cluster.enqueue("work", args={"value": "something private"})
    cluster.until(job, "succeeded")
    wait_for(lambda: f"#{job} work(…)" in master.log(), what="its line")
    assert "something private" not in master.log()


def test_the_schema_of_every_task_is_printed(cluster: Cluster) -> None:
    cluster.app.write_text(EXAMPLE.read_text())
    words = [sys.executable, "-m", "pgworkers", "-c", str(cluster.app)]
    printed = subprocess.run(
        [*words, "tasks", "schema"], capture_output=True, text=True, timeout=60, check=True, cwd="/"
    ).stdout
    found = json.loads(printed)["charge"]
    assert found["arguments"]["required"] == ["lines", "price", "payment", "api_token"]
    assert found["arguments"]["properties"]["api_token"]["writeOnly"] is True
    listed = subprocess.run(
        [*words, "tasks", "list"], capture_output=True, text=True, timeout=60, check=True, cwd="/"
    ).stdout
    assert "charge" in listed
