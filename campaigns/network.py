"""Jobs on a bad network: every kind of fault on the lines of daemons, clients and ranks, cut-offs
in one direction and both, short and long.

    python -m campaigns.network [--only TEXT] [--seed S] [--json FILE]

After each: the job's losses and variables are those of an undisturbed run, bit by bit, or it has
ended with a declared reason; the checks A1 to A7 hold; services are the processes they were.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oneflow.cluster.client import Cluster
from oneflow.cluster.connection import Connection, Patience
from oneflow.core.errors import OneFlowError
from oneflow.scheduler.jobs.records import JobRecord
from oneflow.scheduler.jobs.tokens import read_token_file
from tests.support.cluster import DEVICES, Rig, Watcher, conclude, end_in_order, export_jobs
from tests.support.waiting import SceneError, wait_until

from .always import a5_next_job, always, rig_shm
from .proxy import DOWN, UP, Faults, Proxy
from .resume import Bits, bits_of

END_S = 90.0
SLACK_NBYTES = 8 << 20
"""Buffers of connections that were slow or broke stay with malloc; 80 of them in a row cost a
service less than 1 MiB.
"""
WARM_CUTS = 10  # a service that makes its connection anew needs a little more memory, once
SHORT_S, LONG_S = 1.2, 6.0  # of a daemon that counts as lost after 2.5 s
INJECTED = Path(__file__).parent / "injected"

CALM = Faults()
KINDS = {
    "delay": Faults(delay_s=0.05, jitter_s=0.1),
    "stall": Faults(stall=0.03, stall_s=0.7),
    "loss": Faults(loss=0.1),
    "slow": Faults(nbytes_per_s=40_000),
    "corrupt": Faults(corrupt=0.05, first=4, limit=4),
    "truncate": Faults(truncate=0.03, first=4, limit=4),
    "cut": Faults(cut=0.03, first=4, limit=4),
}
CLIENT_KINDS = KINDS | {  # a client says less
    "stall": Faults(stall=0.2, stall_s=0.7),
    "corrupt": Faults(corrupt=0.2, first=4, limit=2),
    "truncate": Faults(truncate=0.2, first=4, limit=2),
    "cut": Faults(cut=0.2, first=4, limit=2),
}
RANK_KINDS = {
    "delay": Faults(delay_s=0.002, jitter_s=0.004),
    "stall": Faults(stall=0.01, stall_s=0.5),
    "loss": Faults(loss=0.02),
    "slow": Faults(nbytes_per_s=200_000),
    "corrupt": Faults(corrupt=0.05, first=60, limit=1),
    "truncate": Faults(truncate=0.05, first=60, limit=1),
    "cut": Faults(cut=0.05, first=60, limit=1),
}


@dataclass
class Outcome:
    """bits: identical, or the end of the job.  counted: faults done, messages refused."""

    name: str
    error: str = ""
    bits: str = ""
    state: str = ""
    reason: str = ""
    attempts: int = 0
    counted: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


class Network:
    """A rig whose lines go through proxies: of each daemon, of one client, between the ranks."""

    def __init__(self, folder: Path, seed: int, tls: bool = False, far: bool = False) -> None:
        self.rig = Rig(folder)
        self.lines = {d: Proxy(self.rig.address, seed + i) for i, d in enumerate(DEVICES)}
        self.ours = Proxy(self.rig.address, seed + 2)
        self.data = Proxy(seed=seed + 3)
        for number, device in enumerate(DEVICES):
            self.rig.given[device] = {
                "scheduler": self.lines[device].address,
                "metrics_addr": "127.0.0.1:0",
            }
            if far:
                self.rig.more_env[device] = self._far_env(number)
        if tls:
            from oneflow.scheduler.cluster.certificates import init_tls

            self.rig.tls = folder / "tls"
            init_tls(self.rig.tls, ["127.0.0.1"])

    def _far_env(self, number: int) -> dict[str, str]:
        """Makes it look as if each daemon were on a host of its own."""
        paths = [str(INJECTED), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            "ONEFLOW_HOST_IDENTITY": f"host{number}",
            "RIG_DATA_PROXY": self.data.address,
            "PYTHONPATH": os.pathsep.join(paths),
        }

    def client(self) -> Cluster:
        """Through its proxy."""
        secret = read_token_file(self.rig.folder / "scheduler" / "token")
        patience = Patience(30.0, 60.0)
        return Cluster(Connection(self.ours.address, lambda: secret, self.rig.tls, patience))

    def proxies(self, place: str) -> list[Proxy]:
        match place:
            case "client":
                return [self.ours]
            case "ranks":
                return [self.data]
        return list(self.lines.values())

    def refused(self) -> dict[str, int]:
        """Messages that services have refused so far, by service and reason."""
        found: dict[str, int] = {}
        for name in ("scheduler", *DEVICES):
            for key, value in self.rig.metrics(name).items():
                if "messages_rejected_total{" in key and value:
                    reason = key.partition('reason="')[2].partition('"')[0]
                    found[f"{name} {reason}"] = int(value)
        return found

    def counted(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for proxy in (*self.lines.values(), self.ours, self.data):
            for what, count in proxy.counts.items():
                total[what] = total.get(what, 0) + count
        return total | self.refused()


@contextmanager
def network(folder: Path, seed: int, tls: bool = False, far: bool = False) -> Iterator[Network]:
    folder.mkdir(parents=True, exist_ok=True)
    found = Network(folder, seed, tls, far)
    try:
        found.rig.start()
        yield found
    finally:
        for proxy in (*found.lines.values(), found.ours, found.data):
            proxy.close()
        found.rig.stop()


# ---- scenarios -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """One thing that is done while a job runs. rig: plain, tls, far or tls far.  once: the job must
    not be restarted.
    """

    name: str
    rig: str
    program: str
    act: Callable[[Network, Any], None]
    place: str = ""
    faults: Faults = CALM
    once: bool = True


def _nothing(net: Network, job: Any) -> None:
    return


def _cut_off(device: str, seconds: float, *directions: str) -> Callable[[Network, Any], None]:
    def act(net: Network, job: Any) -> None:
        wait_until(lambda: job.status().last_step >= 10, "it runs")
        with net.lines[device].silent(*directions):
            time.sleep(seconds)

    return act


def _cut_all(net: Network, job: Any) -> None:
    wait_until(lambda: job.status().last_step >= 10, "it runs")
    for _ in range(4):
        for proxy in net.lines.values():
            proxy.cut()
        time.sleep(0.3)


def _data_silent(seconds: float) -> Callable[[Network, Any], None]:
    def act(net: Network, job: Any) -> None:
        wait_until(lambda: job.status().last_step >= 10, "it runs")
        with net.data.silent():
            time.sleep(seconds)

    return act


def scenes() -> list[Scene]:
    return [*_of_lines(), *_of_ranks(), *_cut_offs()]


def _of_lines() -> Iterator[Scene]:
    """Wrong bits with TLS only: without it nothing but TCP's own sum guards them, on one host."""
    for rig, prefix in (("plain", ""), ("tls", "tls ")):
        for kind, faults in KINDS.items():
            if kind == "corrupt" and rig == "plain":
                continue
            once = kind in ("delay", "loss", "slow")
            yield Scene(f"{prefix}daemons/{kind}", rig, "stages", _nothing, "daemons", faults, once)
            faults = CLIENT_KINDS[kind]
            yield Scene(f"{prefix}client/{kind}", rig, "dense", _nothing, "client", faults)


def _of_ranks() -> Iterator[Scene]:
    for kind, faults in RANK_KINDS.items():
        for program in ("stages", "dense"):
            once = kind in ("delay", "stall", "loss", "slow")
            if kind != "corrupt":
                name = f"ranks {program}/{kind}"
                yield Scene(name, "far", program, _nothing, "ranks", faults, once)
            if kind in ("corrupt", "cut"):
                name = f"tls ranks {program}/{kind}"
                yield Scene(name, "tls far", program, _nothing, "ranks", faults, once=False)
    yield Scene("ranks silent/short", "far", "stages", _data_silent(SHORT_S))
    yield Scene("ranks silent/long", "far", "dense", _data_silent(5.0))


def _cut_offs() -> Iterator[Scene]:
    for seconds, name in ((SHORT_S, "short"), (LONG_S, "long")):
        for directions, way in (((UP,), "up"), ((DOWN,), "down"), ((UP, DOWN), "both")):
            act = _cut_off(DEVICES[1], seconds, *directions)
            is_short = seconds == SHORT_S
            yield Scene(f"cut-off {way}/{name}", "plain", "stages", act, once=is_short)
    yield Scene("cut all lines", "plain", "stages", _cut_all)


# ---- running -------------------------------------------------------------------------------------


def play(net: Network, scene: Scene, jobs: Path, wanted: Bits, number: int) -> Outcome:
    """One scene on a cluster that is whole."""
    rig, started = net.rig, time.monotonic()
    outcome = Outcome(scene.name)
    before, shm = rig.usage(), rig_shm(rig)
    pids = {name: rig.pid(name) for name in ("scheduler", *DEVICES)}
    base = net.counted()
    cluster = net.client() if scene.place == "client" else rig.client()
    try:
        with ExitStack() as stack:
            for proxy in net.proxies(scene.place) if scene.place else ():
                stack.enter_context(proxy.doing(_from_now(proxy, scene.faults)))
            job_file = str(jobs / f"{scene.program}.job")
            job = cluster.submit(job_file, job_id=f"n{number}", devices=2, max_restarts=5)
            watcher = Watcher(rig.client(), job.id)
            scene.act(net, rig.client().job(job.id))
            record = job.wait(END_S)
            bits = bits_of(job) if str(record.state) == "SUCCEEDED" else None
        outcome.state, outcome.reason = str(record.state), record.reason
        outcome.attempts = record.attempt
        outcome.bits = _judged(scene, record, bits, wanted, causes_of(watcher))
        now = {name: rig.pid(name) for name in pids if rig.is_alive(name)}
        if now != pids:
            raise SceneError(f"services died: {sorted(set(pids) - set(now))}")
        wait_until(lambda: watcher.last and watcher.last.state.is_final, "the watcher sees the end")
        rig.wait_attached()
        a5_next_job(rig, job_file, END_S)
        always(rig, watcher, job.id, before, shm, SLACK_NBYTES)
        outcome.counted = _since(base, net.counted())
    except (SceneError, OneFlowError, OSError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
        outcome.counted = outcome.counted or _since(base, net.counted())
    finally:
        if cluster is not rig.client():
            cluster.close()
    outcome.seconds = time.monotonic() - started
    return outcome


def _from_now(proxy: Proxy, faults: Faults) -> Faults:
    """The limit counts the bytes from here on."""
    done = sum(n for k, n in proxy.counts.items() if k not in ("frame", "late"))
    return Faults(**{**vars(faults), "limit": min(faults.limit + done, 1 << 30)})


def _since(base: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    return {k: v - base.get(k, 0) for k, v in now.items() if v > base.get(k, 0) and k != "frame"}


def _judged(
    scene: Scene, record: JobRecord, bits: Bits | None, wanted: Bits, causes: list[str]
) -> str:
    if bits is None:
        raise SceneError(f"it is {record.state} {record.reason}: {record.cause}")
    if difference := bits.difference(wanted):
        raise SceneError(difference)
    if scene.once and record.attempt != 1:
        raise SceneError(f"it took {record.attempt} attempts: {causes}")
    return "identical"


def causes_of(watcher: Watcher) -> list[str]:
    """Reasons of the attempts' ends, as far as they were seen."""
    said = [f"{r.attempt} {r.state} {r.reason}: {r.cause}" for _, r in watcher.seen if r.cause]
    return list(dict.fromkeys(said))


def run_scenes(folder: Path, chosen: Sequence[Scene], seed: int = 0) -> list[Outcome]:
    """Clusters by rig; one whose scene fails is replaced."""
    jobs = export_jobs(folder / "jobs")
    outcomes: list[Outcome] = []
    bits: dict[str, Bits] = {}
    for kind in ("plain", "tls", "far", "tls far"):
        left = [scene for scene in chosen if scene.rig == kind]
        while left:
            place = folder / f"{kind.replace(' ', '-')}{len(outcomes)}"
            with network(place, seed, tls="tls" in kind, far="far" in kind) as net:
                warm(net, jobs, bits, {scene.program for scene in left})
                while left:
                    scene = left.pop(0)
                    wanted = bits[scene.program]
                    outcome = play(net, scene, jobs, wanted, len(outcomes))
                    outcomes.append(outcome)
                    say(outcome)
                    if outcome.error:
                        break
    return outcomes


def warm(net: Network, jobs: Path, bits: dict[str, Bits], programs: set[str]) -> None:
    """Undisturbed runs, which also fill pools and caches before anything is counted."""
    for program in sorted(programs):
        for _ in range(2):
            job = net.rig.client().submit(str(jobs / f"{program}.job"), devices=2)
            record = job.wait(END_S)
            if str(record.state) != "SUCCEEDED":
                raise SceneError(f"undisturbed, and {record.state}: {record.cause}")
        found = bits_of(job)
        if bits.setdefault(program, found) != found:
            raise SceneError(f"{program}: two undisturbed runs differ")
    for _ in range(WARM_CUTS):
        for proxy in net.lines.values():
            proxy.cut()
        time.sleep(0.3)
        net.rig.wait_attached()


def say(outcome: Outcome) -> None:
    print(
        f"{outcome.name:26} {outcome.state:10} {outcome.attempts} attempts {outcome.seconds:5.1f} s"
        f"  {outcome.error or outcome.bits}  {_shown(outcome.counted)}",
        flush=True,
    )


def _shown(counted: dict[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counted.items()))


def table(outcomes: Sequence[Outcome]) -> str:
    lines = ["| scene | result | attempts | counted |", "|---|---|---|---|"]
    for o in outcomes:
        result = f"FAILED: {o.error}" if o.error else o.bits
        lines.append(f"| {o.name} | {result} | {o.attempts} | {_shown(o.counted)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="scenes whose name has this in it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    end_in_order()
    chosen = [scene for scene in scenes() if args.only in scene.name]
    with tempfile.TemporaryDirectory(prefix="oneflow-rig-") as folder:
        outcomes = run_scenes(Path(folder), chosen, args.seed)
    return conclude(
        outcomes, table(outcomes), lambda o: f"--only {o.name!r} --seed {args.seed}", args.json
    )


if __name__ == "__main__":
    sys.exit(main())
