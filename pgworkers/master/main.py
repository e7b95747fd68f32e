"""`pgworkers run`: boot, serve, leave."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from functools import partial

from pgworkers.events import EventBus, LogLinesDropped
from pgworkers.linux import environment, process_limits, sd_notify
from pgworkers.linux.sd_notify import ServiceNotifier
from pgworkers.master import boot, orphan_processes, signals
from pgworkers.master.boot import RunOptions, new_host_id
from pgworkers.master.host import Host
from pgworkers.master.http import (
    AllowedHosts,
    HttpServer,
    ListenFailed,
    listen,
    listen_on_next_free,
    parse_address,
)
from pgworkers.master.status import HttpPages
from pgworkers.observe.log import Log
from pgworkers.observe.log_writer import LineWriter
from pgworkers.observe.metrics import Metrics
from pgworkers.observe.python_logging import MasterLogHandler


def run(options: RunOptions) -> int:
    """Run a host until it is asked to stop. Returns the exit code."""
    signals.ignore_until_loop_runs()
    host_id = new_host_id()
    os.environ[environment.ORIGIN_VARIABLE] = orphan_processes.origin_value(host_id)
    systemd_socket = sd_notify.from_environment()
    plan = boot.prepare(options, lambda text: print(f"pgworkers: {text}", file=sys.stderr, flush=True))
    try:
        process_limits.set_core_dump_limit(plan.settings.core_dump_limit)
        if options.is_check:
            for line in boot.summary_lines(plan, _metrics_address_text(plan)):
                print(line)
            print("check     ok")
            return 0
        return _serve(plan, options, host_id, systemd_socket)
    finally:
        if plan.embedded_server is not None:
            plan.embedded_server.release()


def _metrics_address_text(plan: boot.BootPlan) -> str:
    """Where the metrics would be, for `--check`; refused as by `run`, but for a port that may be free by then."""
    address = plan.settings.metrics_address
    try:
        if address != "off":
            sock = _listen_for_metrics(plan)
            address = "{}:{}".format(*sock.getsockname()[:2]) if parse_address(address)[1] else address
            sock.close()
    except ListenFailed as error:
        if error.is_taken and plan.loaded_settings.sources["metrics_address"] != "default":
            return f"{address}, but not now: {error}"
        if plan.loaded_settings.sources["metrics_address"] != "default":
            raise
        return f"off: {error.brief}"
    return address


def _listen_for_metrics(plan: boot.BootPlan) -> socket.socket:
    """The socket of the metrics: the address that was chosen, or from the default one on the first that is free."""
    address = plan.settings.metrics_address
    return (
        listen_on_next_free(address)
        if plan.loaded_settings.sources["metrics_address"] == "default"
        else listen(address)
    )


def _serve(plan: boot.BootPlan, options: RunOptions, host_id: str, systemd_socket: ServiceNotifier) -> int:
    sock, address, listens = None, "off", ""
    if plan.settings.metrics_address != "off":
        try:
            sock = _listen_for_metrics(plan)
            address = listens = "http://{}:{}/metrics".format(*sock.getsockname()[:2])
        except ListenFailed as error:
            if plan.loaded_settings.sources["metrics_address"] != "default":
                raise
            address = f"off: {error.brief} (--metrics HOST:PORT chooses another)"
    writer = LineWriter(sys.stdout.fileno(), plan.settings.log_buffer_size)
    log = Log(
        writer.put,
        format=plan.settings.log_format,
        is_quiet=options.is_quiet,
        rate=plan.settings.log_rate_limit,
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    writer.format_dropped = log.dropped_lines_message
    logging.getLogger().addHandler(MasterLogHandler(log))
    for line in boot.start_lines(plan, address):
        log.write_message(line)
    events = EventBus()
    events.subscribe(log)
    metrics = Metrics()
    events.subscribe(metrics)

    async def life() -> int:
        host = Host(
            host_id=host_id,
            plan=plan,
            options=options,
            events=events,
            metrics_address=listens,
            systemd_socket=systemd_socket,
            count_capped_metrics=lambda count: metrics.count("series_capped_total", "user", n=count),
        )
        http = None
        if sock is not None:
            hosts = AllowedHosts(plan.settings.metrics_address, plan.settings.metrics_allowed_hosts)
            http = HttpServer(sock, HttpPages(host.status, metrics, host.handler_metrics).respond, hosts)
            http.start()
        host.housekeeping.add(partial(_flush_log_summaries, log, writer, events))
        await host.serve()
        if http is not None:
            http.close()
        return 1 if host.has_failed else 0

    # What the start made stays. Cycles are rare afterwards, so the collector runs seldom.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)
    try:
        return asyncio.run(life())
    finally:
        log.flush_summaries()
        writer.close()


def _flush_log_summaries(log: Log, writer: LineWriter, events: EventBus) -> None:
    """Log summaries that are due, and the number of lines that could not be written."""
    log.write_summaries()
    lost = writer.take_dropped_count()
    if lost:
        events.emit(LogLinesDropped(lost, writer.drop_reason))
