"""`pgworkers run`: boot, serve, leave."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from functools import partial

from pgworkers.events import LinesDropped
from pgworkers.facts import Facts
from pgworkers.master import boot, signals, view
from pgworkers.master.host import Host
from pgworkers.master.http import AllowedHosts, CannotListen, Http, bind, bind_free, parse
from pgworkers.master.joining import new_boot_id
from pgworkers.master.options import RunOptions
from pgworkers.observe.log import Log
from pgworkers.observe.metrics import Metrics
from pgworkers.observe.records import MasterHandler
from pgworkers.observe.writer import LineWriter
from pgworkers.process import interpreter, limits, notify, origin
from pgworkers.process.notify import Speaker


def run(options: RunOptions) -> int:
    """Run a host until it is told to stop; the exit code."""
    signals.wait_for_the_loop()
    boot_id = new_boot_id()
    os.environ[origin.VARIABLE] = origin.mark(boot_id)
    speaker = notify.take()
    plan = boot.prepare(options, lambda text: print(f"pgworkers: {text}", file=sys.stderr, flush=True))
    try:
        limits.set_core(plan.settings.core_limit)
        if options.check:
            for line in boot.summary(plan, _would_listen(plan)):
                print(line)
            print("check     ok")
            return 0
        return _serve(plan, options, boot_id, speaker)
    finally:
        if plan.server is not None:
            plan.server.release()


def _would_listen(plan: boot.Plan) -> str:
    """Where the metrics would be, for `--check`; refused as by `run`, but for a port that may be free by then."""
    address = plan.settings.metrics
    try:
        if address != "off":
            sock = _bind(plan)
            address = "{}:{}".format(*sock.getsockname()[:2]) if parse(address)[1] else address
            sock.close()
    except CannotListen as error:
        if error.taken and plan.loaded.sources["metrics"] != "default":
            return f"{address}, but not now: {error}"
        if plan.loaded.sources["metrics"] != "default":
            raise
        return f"off: {error.brief}"
    return address


def _bind(plan: boot.Plan) -> socket.socket:
    """The socket of the metrics: the address that was chosen, or from the default one on the first that is free."""
    address = plan.settings.metrics
    return bind_free(address) if plan.loaded.sources["metrics"] == "default" else bind(address)


def _serve(plan: boot.Plan, options: RunOptions, boot_id: str, speaker: Speaker) -> int:
    sock, address, listens = None, "off", ""
    if plan.settings.metrics != "off":
        try:
            sock = _bind(plan)
            address = listens = "http://{}:{}/metrics".format(*sock.getsockname()[:2])
        except CannotListen as error:
            if plan.loaded.sources["metrics"] != "default":
                raise
            address = f"off: {error.brief} (--metrics HOST:PORT chooses another)"
    writer = LineWriter(sys.stdout.fileno(), plan.settings.log_buffer)
    log = Log(
        writer.put,
        style=plan.settings.log,
        quiet=options.quiet,
        rate=plan.settings.log_rate,
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    writer.tell_dropped = log.dropped
    logging.getLogger().addHandler(MasterHandler(log))
    for line in boot.banner(plan, address):
        log.say(line)
    facts = Facts()
    facts.listen(log)
    metrics = Metrics()
    facts.listen(metrics)

    async def life() -> int:
        host = Host(plan, options, facts, boot_id, speaker)
        host.metrics_address = listens
        http = None
        if sock is not None:
            hosts = AllowedHosts(plan.settings.metrics, plan.settings.metrics_hosts)
            http = Http(sock, partial(view.answer, host, view.Scrapes(metrics)), hosts)
            http.start()
        host.pulse.add(partial(_sum_up, log, writer, facts))
        await host.serve()
        if http is not None:
            http.close()
        return 1 if host.failed else 0

    # What boot left stays for good; what a job leaves goes by its counts. Cycles are rare here: look for them seldom.
    gc.collect()
    gc.freeze()
    interpreter.begin()
    try:
        return asyncio.run(life())
    finally:
        log.finish()
        writer.close()


def _sum_up(log: Log, writer: LineWriter, facts: Facts) -> None:
    """Sums are told in time, and so is how many lines could not be written."""
    log.tick()
    lost = writer.untold()
    if lost:
        facts.tell(LinesDropped(lost, writer.why))
