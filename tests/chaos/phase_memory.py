"""What a quiet phase remembers for the next ones: final states, which must not change, and open descriptors of masters."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from chaos.environment import SoakEnvironment

#: Descriptors that a master may have more of than when it was looked at first: a worker that is just being replaced has
#: two sets of them, and so has a session.
SPARE = 12


@dataclass
class Memory:
    """Call `look` in each quiet phase, and `ends` after the last one."""

    ended: dict[int, str] = field(default_factory=dict)  # job -> its state and lease
    opened: dict[int, int] = field(default_factory=dict)  # pid of a master -> its descriptors
    compared: int = 0  # how often a master was looked at again
    most: int = 0  # descriptors that one had more of than at first

    def look(self, soak: SoakEnvironment) -> list[str]:
        return [*self.ends(soak), *self.descriptors(soak)]

    def ends(self, soak: SoakEnvironment) -> list[str]:
        """I4: a job that had ended is still there in the same state and under the same lease, unless it was requeued."""
        now = {
            job: f"{state} under lease {lease}"
            for job, state, lease in soak.rows("SELECT id, state::text, lease FROM pgworkers.history")
        }
        before, self.ended = self.ended, now
        return [
            f"I4 job {job} was {was} and is {now.get(job, 'gone')}"
            for job, was in before.items()
            if job not in soak.requeued and now.get(job) != was
        ]

    def descriptors(self, soak: SoakEnvironment) -> list[str]:
        """I14: a master that survived a fault phase has no more descriptors open than before."""
        wrong = []
        for host in soak.hosts:
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
