"""How a host comes to be known: its row, under a fresh id, before its first process."""

from __future__ import annotations

import os
import socket
import uuid
from typing import TYPE_CHECKING, Any

from pgworkers.clock import boottime
from pgworkers.job import host as host_rows
from pgworkers.master.line import LineDown
from pgworkers.postgres.statements import Query

if TYPE_CHECKING:
    from pgworkers.master.host import Host


def new_boot_id() -> str:
    """Who owns leases: a fresh one for each life of a master, never a hostname or pid."""
    return str(uuid.uuid4())


def registration(host: Host) -> Query[Any]:
    return host_rows.register(
        host.id,
        socket.gethostname(),
        os.getpid(),
        host.settings.label,
        host.plan.app.name,
        host.plan.app.version,
        list(host.plan.queues),
        [task.name for task in host.plan.app.tasks],
        host.settings.lease,
        host.metrics_address,
    )


async def join(host: Host) -> bool:
    """However long it takes until the database answers. False: it was told to leave before that."""
    line = host.lines["listen"]
    while not host.leaving:
        sent = boottime()
        try:
            await line.ask(registration(host))
        except LineDown:
            await line.rest()
        else:
            host.renewed(sent)
            return True
    return False
