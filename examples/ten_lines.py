from pgworkers import App, Ctx

app = App()
app.queue("default", workers=2)


@app.task(timeout="1m", retries=3)
def count_primes(ctx: Ctx, below: int) -> int:
    """Count the prime numbers below a number."""
    return sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in ctx.track(range(2, below)))
