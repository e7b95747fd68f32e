"""Run with `pgworkers run`; in a second terminal: `pgworkers enqueue count_primes below=200000`."""

from pgworkers import App, Ctx

app = App()  # DATABASE_URL, else PG* variables, else an embedded Postgres in .pgworkers/
app.queue("default", workers=2)


@app.task(timeout="5m", retries=3)
def count_primes(ctx: Ctx, below: int = 100_000) -> dict[str, int]:
    """Counts primes the slow way, to have something for a core to do."""
    found = 0
    for n in ctx.track(range(2, below)):  # shows progress, and ends here when the job is cancelled
        if all(n % d for d in range(2, int(n**0.5) + 1)):
            found += 1
    return {"primes": found}
