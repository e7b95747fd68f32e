"""Read by mypy --strict and pyright, never run: each line marked `error` must be refused, and no other."""

from __future__ import annotations

from pgworkers import App, Ctx

app = App()


@app.task(queue="reports")
def render(ctx: Ctx, report_id: int, *, fmt: str = "pdf") -> dict[str, str]:
    return {"fmt": fmt}


@app.task
def plain(x: int) -> float:
    return x


@app.task
async def fetch(url: str) -> bytes:
    return url.encode()


render.enqueue("7")  # error: a string for an int
render.enqueue()  # error: the report is missing
render.enqueue(7, "png")  # error: fmt is keyword-only
render.enqueue(7, format="png")  # error: no such parameter
render.enqueue(None, 7)  # error: the context is not enqueued
render.using(delay="5m").enqueue("7")  # error: the view checks too
render.using(dealy="5m")  # error: no such option
render.using(on_conflict="ignore")  # error: not one of the three
render.prepare("7")  # error: prepare checks too
render(7)  # error: the plain call wants a context or None
plain.enqueue("x")  # error: a string for an int
plain("x")  # error: the plain call checks too
fetch.enqueue(b"x")  # error: bytes for a string
text: str = plain.enqueue(1).result()  # error: the result is a float
app.enqueue_many([plain.enqueue(1)])  # error: jobs are prepared for this, not enqueued
Ctx.for_test().enqueue(plain.enqueue(1))  # error: nor for this


@app.task(retires=3)  # error: no such option
def misspelt() -> None: ...
