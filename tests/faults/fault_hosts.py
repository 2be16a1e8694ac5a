"""Hosts that are network namespaces: a cluster whose parts are on cables that can be cut, with TLS
and tokens, for their addresses are not loopback. Needs root.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.cluster import DEVICES, Rig, table
from tests.support.waiting import SceneError

CABLE = "cable"
PORT = 9400


def missing_right() -> str:
    """The reason that no namespaces can be made here, or ""."""
    if shutil.which("ip") is None or shutil.which("nsenter") is None:
        return "the programs ip and nsenter are not installed"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"of{uuid.uuid4().hex[:6]}p"
    try:
        ip("netns", "add", name)
        ip("-n", name, "link", "add", "probe", "type", "bridge")
    except SceneError as error:
        return f"network namespaces are not permitted: {error}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return ""


def ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SceneError(f"{' '.join(words)}: {done.stderr.strip()}")


class Hosts:
    """count hosts on one switch, and this process's own namespace on it too."""

    def __init__(self, count: int) -> None:
        mark = uuid.uuid4().hex[:6]
        rng = random.Random(mark)
        self._net = f"10.{rng.randrange(64, 250)}.{rng.randrange(1, 250)}"
        self._switch, self._ours = f"of{mark}s", f"of{mark}"
        self.names = [f"of{mark}{i}" for i in range(count)]
        self._made: list[str] = []

    def address(self, number: int) -> str:
        return f"{self._net}.{number + 1}"

    def make(self) -> None:
        self._add(self._switch)
        ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        ip("-n", self._switch, "link", "set", "switch", "up")
        for number, name in enumerate(self.names):
            self._add(name)
            self._plug(f"port{number}", CABLE, name)
            ip("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", CABLE)
            ip("-n", name, "link", "set", CABLE, "up")
            ip("-n", name, "link", "set", "lo", "up")
        self._plug("ours", self._ours, str(os.getpid()))
        ip("addr", "add", f"{self._net}.254/24", "dev", self._ours)
        ip("link", "set", self._ours, "up")

    def _add(self, name: str) -> None:
        ip("netns", "add", name)
        self._made.append(name)

    def _plug(self, port: str, end: str, where: str) -> None:
        peer = ("peer", "name", end, "netns", where)
        ip("-n", self._switch, "link", "add", port, "type", "veth", *peer)
        ip("-n", self._switch, "link", "set", port, "master", "switch", "up")

    def remove(self) -> None:
        """Ours goes with the switch, to which its other end belongs."""
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def inside(self, number: int) -> list[str]:
        """Words that run a program there; nothing but the network differs."""
        return ["nsenter", f"--net=/var/run/netns/{self.names[number]}", "--"]

    # -- cutting -----------------------------------------------------------------------------------

    @contextmanager
    def unplugged(self, number: int) -> Iterator[None]:
        name = self.names[number]
        ip("-n", name, "link", "set", CABLE, "down")
        try:
            yield
        finally:
            ip("-n", name, "link", "set", CABLE, "up")

    @contextmanager
    def no_way(self, *ways: tuple[int, int]) -> Iterator[None]:
        """Packets of the first of each pair to the second are lost."""
        for source, target in ways:
            there = f"{self.address(target)}/32"
            ip("-n", self.names[source], "route", "add", "blackhole", there)
        try:
            yield
        finally:
            for source, target in ways:
                there = f"{self.address(target)}/32"
                ip("-n", self.names[source], "route", "del", "blackhole", there)

    @contextmanager
    def slow(self, number: int, rate: str) -> Iterator[None]:
        """Both ways: what the host sends, and what the switch sends to it."""
        shape = ("root", "tbf", "rate", rate, "burst", "16kb", "latency", "400ms")
        there = [(self.names[number], CABLE), (self._switch, f"port{number}")]
        for name, device in there:
            _run("tc", "-n", name, "qdisc", "add", "dev", device, *shape)
        try:
            yield
        finally:
            for name, device in there:
                _run("tc", "-n", name, "qdisc", "del", "dev", device, "root")


class HostsRig(Rig):
    """The scheduler on host 0, a daemon on each of hosts 1 and 2, each with a disk of its own."""

    def __init__(self, folder: Path, hosts: Hosts, times: dict[str, float]) -> None:
        super().__init__(folder)
        from oneflow.scheduler.cluster.tls import init_tls

        self.hosts = hosts
        self.address = f"{hosts.address(0)}:{PORT}"
        self.tls = folder / "tls"
        init_tls(self.tls, [hosts.address(0)])
        beats = table(times["suspect_s"], times["act_s"])
        self.given["scheduler"] = {"heartbeat_s": times["heartbeat_s"], "table": beats}
        self.prefix["scheduler"] = hosts.inside(0)
        for number, device in enumerate(DEVICES, 1):
            self.prefix[device] = hosts.inside(number)
            node = f"n{number}"
            self.given[device] = {
                **times,
                "node": node,
                "state_dir": str(folder / node),
                "metrics_addr": "127.0.0.1:0",
            }
        for name, value in (("HEARTBEAT", "heartbeat_s"), ("SUSPECT", "suspect_s")):
            self.env[f"ONEFLOW_{name}_SECONDS"] = str(times[value])
        self.env["ONEFLOW_PEER_TIMEOUT_SECONDS"] = str(times["act_s"])
        self.env["ONEFLOW_DATA_ROOTS"] = str(folder)  # where checkpoints are shared

    def _page(self, name: str, url: str) -> str:
        """Asks from within: it is on loopback there."""
        program = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"
        words = [*self.prefix[name], "python3", "-c", program, url]
        return subprocess.run(words, capture_output=True, text=True, timeout=20).stdout


@contextmanager
def hosts_rig(folder: Path, times: dict[str, float]) -> Iterator[HostsRig]:
    """Namespaces and processes go, whatever happens."""
    hosts = Hosts(3)
    rig: HostsRig | None = None
    try:
        hosts.make()
        folder.mkdir(parents=True, exist_ok=True)
        rig = HostsRig(folder, hosts, times)
        rig.start()
        yield rig
    finally:
        if rig is not None:
            rig.release()
            rig.stop()
        hosts.remove()
