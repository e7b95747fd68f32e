"""A shop whose jobs are tested in test_shop.py: `pytest examples/testing`."""

from __future__ import annotations

from pgworkers import App, Ctx, Snooze

app = App(dsn="host=the.database.of.the.developer")
app.queue("default", workers=2)

sent: list[str] = []
is_open = True


def place_order(order: int, customer: str) -> None:
    """What a view does."""
    charge.using(unique=f"charge:{order}").enqueue(order, 100)
    send_mail.using(delay="5m").enqueue(customer, subject=f"Order {order}")


@app.task
def send_mail(to: str, *, subject: str) -> None:
    sent.append(to)


@app.task(retries=3)
def charge(ctx: Ctx, order: int, amount: int) -> int:
    if not is_open:
        raise Snooze("1h", "the bank is closed")
    if ctx.attempt == 1:
        raise ConnectionError("the bank did not answer")
    return amount


@app.schedule("0 3 * * *", tz="Europe/Berlin")
@app.task
def nightly_report() -> str:
    return "report"


@app.task
def add_to_ledger(ctx: Ctx, payment: int, amount: int) -> None:
    """Add an amount once, however often this job runs: the row of the payment is the proof."""
    with ctx.connect() as conn:
        added = conn.execute(
            "INSERT INTO payment (id, amount) VALUES (%s, %s) ON CONFLICT DO NOTHING", [payment, amount]
        )
        ctx.progress(1, 2)
        if added.rowcount:
            conn.execute("UPDATE ledger SET total = total + %s", [amount])
    ctx.progress(2, 2)
