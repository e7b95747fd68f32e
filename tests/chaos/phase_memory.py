"""What one quiet phase remembers for the next ones: ends that must stay as they are, and how much a master had open."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from chaos.environment import World

#: Descriptors that a master may have more of than when it was looked at first: a worker that is just being replaced has
#: two sets of them, and so has a session.
SPARE = 12


@dataclass
class Memory:
    """`look` in each quiet phase, `ends` once more when all is over."""

    ended: dict[int, str] = field(default_factory=dict)  # job -> its state and lease
    opened: dict[int, int] = field(default_factory=dict)  # pid of a master -> its descriptors
    compared: int = 0  # how often a master was looked at again
    most: int = 0  # descriptors that one had more of than at first

    def look(self, world: World) -> list[str]:
        return [*self.ends(world), *self.descriptors(world)]

    def ends(self, world: World) -> list[str]:
        """I4: what was ended is there, in the same state and under the same lease, unless an operator requeued it."""
        now = {
            job: f"{state} under lease {lease}"
            for job, state, lease in world.rows("SELECT id, state::text, lease FROM pgworkers.history")
        }
        before, self.ended = self.ended, now
        return [
            f"I4 job {job} was {was} and is {now.get(job, 'gone')}"
            for job, was in before.items()
            if job not in world.requeued and now.get(job) != was
        ]

    def descriptors(self, world: World) -> list[str]:
        """I14: a master that outlived a storm has no more open than it had before."""
        wrong = []
        for host in world.hosts:
            pid = host.master.pid
            try:
                now = len(os.listdir(f"/proc/{pid}/fd"))
            except OSError:
                continue
            self.compared += pid in self.opened
            first = self.opened.setdefault(pid, now)
            self.most = max(self.most, now - first)
            if now > first + SPARE:
                wrong.append(f"I14 the master of {host.name} had {first} descriptors and has {now}")
        return wrong
