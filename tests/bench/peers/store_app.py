"""The app of `scripts/bench store`: one task for each kind of job that the table compares. All handlers do nothing."""

from harness import handle
from pgworkers import App

app = App(version="bench")
app.queue("bench", workers=2)
app.queue("mail", workers=1)
app.queue("other", workers=1)


@app.task(queue="bench", retries=0)
def free(i: int) -> None:
    handle("noop", i)


@app.task(queue="bench", retries=0, concurrency_per_key=100)
def keyed(i: int) -> None:
    handle("noop", i)


@app.task(queue="bench", retries=0)
def tenant(i: int) -> None:
    handle("noop", i)


@app.task(queue="bench", retries=0, concurrency=100)
def limited(i: int) -> None:
    handle("noop", i)


@app.task(queue="bench", retries=0)
def full(i: int) -> None:
    handle("noop", i)  # never runs: an operator's limit of 0 slots holds it back


@app.task(queue="mail", retries=0)
def mail(i: int) -> None:
    handle("noop", i)
