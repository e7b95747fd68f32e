"""The app of `scripts/bench store`: one task for each kind of job that the table compares. All handlers do nothing."""

from harness import handle

from pgworkers import App

#: More than a host holds at once: with fewer, the number of slots is measured, not the store.
SLOTS = 1000

app = App(version="bench")
app.queue("bench", workers=2)
app.queue("mail", workers=1)
app.queue("other", workers=1)


@app.task(queue="bench", retries=0)
def free(i: int) -> None:
    handle("noop", i)


@app.task(queue="bench", retries=0, concurrency_per_key=SLOTS)
def keyed(i: int) -> None:
    handle("noop", i)


@app.task(queue="bench", retries=0)
def tenant(i: int) -> None:
    handle("noop", i)


@app.task(queue="bench", retries=0, concurrency=SLOTS)
def limited(i: int) -> None:
    handle("noop", i)


@app.task(queue="bench", retries=0)
def full(i: int) -> None:
    handle("noop", i)  # never runs: an operator's limit of 0 slots holds it back


@app.task(queue="mail", retries=0)
def mail(i: int) -> None:
    handle("noop", i)
