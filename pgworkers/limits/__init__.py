"""What holds jobs back and what lets them go: rate buckets, dependencies, batches and cluster slots.

A `bucket` is one row of tokens that every host draws from, `limit` how fast; a dependency keeps a job waiting for others; a
`batch` is many jobs with one that runs after the last; `slots` are a host's share of a queue's workers over all hosts (how
many jobs of a task or key run at once is decided inside the claim, in `job/`). Like the verbs of `job/`, each module turns
a wish into a `Query` over the `.sql` file beside it; the database clock decides. What must happen when a job ends
(dependents are released, a batch is complete) lives in the SQL function `pgworkers.ended`, which every statement that
ends jobs calls, so that no path can forget it.

`rate` is the one module with a clock: it sleeps until a token that it holds is due. `stock` decides, purely, how many
tokens to take at once. May import: job, postgres, clock, errors. Called by: the API (`app.rate`, `ctx.rate`,
`app.batch`), the leader.
"""
