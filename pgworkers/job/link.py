"""Link: jobs enqueued with `after` begin to hear of the ends of their parents.

Enqueueing locks no other job, because its transaction may stay open for long. It leaves a row in `dependency`; the leader
marks the parent in a short transaction of its own, or settles the link if the parent has ended meanwhile.
"""

from __future__ import annotations

from pgworkers.postgres.statements import Query, Statement

_LINK = Statement.beside(__file__, "link")


def link(limit: int) -> Query[int]:
    """Settle at most `limit` new links. Answers how many; what others hold just now is left for the next time."""
    return Query(_LINK, {"limit": limit}, lambda rows: int(rows[0][0]))
