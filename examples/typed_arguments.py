"""Typed arguments and results: pydantic models, a type of our own, a secret, and a result that is too large for the table.

pgworkers -c examples/typed_arguments.py run

python examples/typed_arguments.py
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from pgworkers import App, Secret
from pgworkers.crypto import FernetCipher

keys = os.environ.get("SHOP_KEYS")  # Fernet keys, the newest first
app = App(secret_cipher=FernetCipher(keys.split(",")) if keys else None)
app.queue("default", workers=2)


class Money:
    """A type that no library knows. `app.codec` says how it becomes text and back."""

    def __init__(self, amount: Decimal, currency: str) -> None:
        self.amount, self.currency = amount, currency

    def __str__(self) -> str:
        return f"{self.amount} {self.currency}"

    @classmethod
    def parse(cls, text: str) -> Money:
        amount, _, currency = text.partition(" ")
        return cls(Decimal(amount), currency)


app.codec(Money, encode=str, decode=Money.parse)


class Card(BaseModel):
    kind: Literal["card"] = "card"
    last_digits: str


class Transfer(BaseModel):
    kind: Literal["transfer"] = "transfer"
    iban: str


@dataclass
class Line:
    article: str
    count: int = 1


@dataclass
class Receipt:
    text: str
    total: Money


@app.task(retries=2, backoff="0.2s")
def charge(
    lines: list[Line],
    price: Money,
    payment: Annotated[Card | Transfer, Field(discriminator="kind")],
    api_token: Annotated[str, Secret()],
) -> Receipt:
    if api_token == "expired-token-0815":
        raise PermissionError(f"401 for https://bank.example/?token={api_token}")
    count = sum(line.count for line in lines)
    return Receipt(f"{count} articles by {payment.kind}", Money(price.amount * count, price.currency))


if __name__ == "__main__":
    job = charge.enqueue(
        [Line("pen", 3)], Money(Decimal("1.50"), "EUR"), Card(last_digits="0042"), "tok-4711"
    )
    print(job.result(timeout=60).total)
