"""The metrics of a host for programs that export metrics themselves, with prometheus_client.

A host serves all its metrics on its own port, and most users scrape that. This is for programs that have an exporter
already, or push: `push_to_gateway("gateway:9091", job="shop", registry=pgworkers.prometheus.registry())`.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from pgworkers.settings import Settings

DEFAULT_ADDRESS = Settings().metrics_address
FETCH_TIMEOUT_SECONDS = 5.0
MAX_PAGE_BYTES = 64 << 20


class HostCollector(Collector):
    """Collects the metrics of one host from its port, also those of its handlers.

    `pgworkers_host_up` is 1 if the host answered. If it did not, there is nothing else.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, *, timeout: float = FETCH_TIMEOUT_SECONDS) -> None:
        self._url = f"http://{address}/metrics"
        self._address = address
        self._timeout = timeout

    def describe(self) -> Iterable[Metric]:
        """Nothing: a registry asks when it is made, and the host need not run yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("pgworkers_host_up", "1 if the host answered.", labels=["address"])
        try:
            families = list(text_string_to_metric_families(self._fetch()))
        except (OSError, ValueError):  # it does not run, or something else answers there
            families = []
        up.add_metric([self._address], 1.0 if families else 0.0)
        yield up
        yield from (family for family in families if not family.name.startswith("process_"))

    def _fetch(self) -> str:
        with urllib.request.urlopen(self._url, timeout=self._timeout) as answer:
            return str(answer.read(MAX_PAGE_BYTES).decode())


def registry(address: str = DEFAULT_ADDRESS) -> CollectorRegistry:
    """Return a registry with the metrics of the host at this address, read at each collection.

    `process_*` of the host is left out: a program that exports metrics has its own.
    """
    found = CollectorRegistry()
    found.register(HostCollector(address))
    return found
