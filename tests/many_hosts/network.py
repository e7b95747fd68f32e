"""A host behind a router that can drop packets: the network is cut without an error at either end.

    this namespace (Postgres) --veth-- router --veth-- far (the host)

Forwarding is switched off inside the router: both ends go on sending and get no answer, as behind a dead switch. Needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess


class NoNetwork(Exception):
    """It cannot be built here; the text says why."""


class Network:
    def __init__(self) -> None:
        number = os.getpid()
        self._router, self._far = f"pgw-r{number}", f"pgw-f{number}"
        self._near_link = f"pgwn{number}"
        part = 10 + number % 200
        self.address = f"10.{part}.1.1"  # of Postgres
        self.network = f"10.{part}.2.0/24"  # of the far host
        self.enter = ("ip", "netns", "exec", self._far)
        if os.geteuid() != 0:
            raise NoNetwork("needs root")
        if shutil.which("ip") is None:
            raise NoNetwork("needs iproute2 (apt-get install iproute2)")
        try:
            self._build(f"10.{part}")
        except subprocess.CalledProcessError as error:
            self.close()
            raise NoNetwork(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from None

    def _build(self, prefix: str) -> None:
        router, far, link = self._router, self._far, self._near_link
        for name in (router, far):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("link", "add", link, "type", "veth", "peer", "name", "near", "netns", router)
        _ip("-n", router, "link", "add", "away", "type", "veth", "peer", "name", "uplink", "netns", far)
        _ip("addr", "add", f"{prefix}.1.1/24", "dev", link)
        _ip("link", "set", link, "up")
        _ip("-n", router, "addr", "add", f"{prefix}.1.2/24", "dev", "near")
        _ip("-n", router, "addr", "add", f"{prefix}.2.1/24", "dev", "away")
        _ip("-n", far, "addr", "add", f"{prefix}.2.2/24", "dev", "uplink")
        _ip("-n", router, "link", "set", "near", "up")
        _ip("-n", router, "link", "set", "away", "up")
        _ip("-n", far, "link", "set", "uplink", "up")
        _ip("-n", far, "route", "add", "default", "via", f"{prefix}.2.1")
        _ip("route", "add", self.network, "via", f"{prefix}.1.2")
        self.heal()

    def cut(self) -> None:
        self._forward(0)

    def heal(self) -> None:
        self._forward(1)

    def _forward(self, on: int) -> None:
        _run("ip", "netns", "exec", self._router, "sh", "-c", f"echo {on} > /proc/sys/net/ipv4/ip_forward")

    def close(self) -> None:
        for words in (
            ("link", "del", self._near_link),
            ("netns", "del", self._far),
            ("netns", "del", self._router),
        ):
            subprocess.run(["ip", *words], capture_output=True, check=False)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
