"""One scheduler and many daemons: joining, idling, a job of all of them, and a reconnect storm.

    python benchmarks/scheduler_scale.py [--daemons 1250] [--devices 1] [--processes 2] [--limit 90]
                                         [--rounds 100] [--only join,idle,...] [--json FILE]

The scheduler is the real one, with TLS, on one core of its own. The daemons are the lines and the
minds of real ones (`Attachment`, `Daemon`) without their processes, files and ranks: many in each
of a few processes, which share the other cores. `--devices`: daemons of each node, which share its
line (`SharedLine`). `join`, which always comes first: seconds until all are welcome. `idle`: the
share of a core that the scheduler takes. `job`: one rank on every device, from `submit` until all
are told to start. `calls`: status of a job and submit, in milliseconds, while all beat; the jobs
are too large for the cluster. `storm`: all connections are cut at once; seconds until all are
welcome again and stay so. A part that takes longer than `--limit` gives infinity and how far it
came. `load`: the machine's load average at its end; `cpu_s`, processor time of the scheduler, says
more than seconds on a machine that others use.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import ceil, inf
from pathlib import Path
from typing import Any

from measure import arguments, machine

from oneflow.cluster.client import connect
from oneflow.cluster.settings import load_settings
from oneflow.core.control_channel import PROTOCOL
from oneflow.core.errors import StillActiveError
from oneflow.launcher.daemon import attach
from oneflow.launcher.daemon.attach import Attachment
from oneflow.launcher.daemon.daemon import Daemon
from oneflow.launcher.daemon.events import (
    Disconnected,
    EndTree,
    Gather,
    Gathered,
    Launch,
    Launched,
    ProcessExited,
    Rejoin,
    TreeEnded,
)
from oneflow.launcher.daemon.node_use import NodeMeter
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.launcher.daemon.shared_line import Guest, SharedLine
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.certificates import init_tls
from oneflow.scheduler.cluster.tls import channel_credentials
from oneflow.scheduler.jobs.tokens import read_token_file

PARTS = ("join", "idle", "job", "calls", "storm")
CANCEL_S = 30.0
REST_S = 2.0  # after a part
JOIN_S = 60.0  # for one proof: hundreds of daemons share a processor here
STEADY_S = 10.0  # a storm is over when nobody has been away for so long
TICKS = os.sysconf("SC_CLK_TCK")

Row = dict[str, Any]


# ---- the daemons' side ---------------------------------------------------------------------------


class Told(asyncio.Queue[Any]):
    """The mail of a daemon but for answers to its beats, which wake other processes than the line's
    on a real node.
    """

    def put_nowait(self, item: Any) -> None:
        if item is None or item.WhichOneof("kind") not in ("ack", "pace"):
            super().put_nowait(item)


class PretendedDaemon:
    """The mind of a daemon, whose ranks start at once and end when told to, and its line, which it
    shares with those of its node if there is a `node`.
    """

    def __init__(self, settings: DaemonSettings, pid: int, node: SharedLine | None) -> None:
        self._settings, self._pid, self._node = settings, pid, node
        self._incarnation = random.getrandbits(63) + 1
        self.mind = Daemon()
        self.attachment = Attachment(settings, self._hello, self._step, self._lost)
        self.guest: Guest | None = None
        self.num_lost = 0

    async def run(self) -> None:
        while self._node is not None:
            await self._share(self._node)
        await self.attachment.run()

    async def _share(self, node: SharedLine) -> None:
        """As a guest of the node's line, until that is lost."""
        self.guest = guest = node.add(self._hello())
        guest.mail = Told()
        while (message := await guest.mail.get()) is not None:
            self._step(message)
        self._lost()

    def beat(self, number: int) -> None:
        if self._node is not None and self.guest is not None and self.is_welcome:
            self._say(pb.DaemonMessage(beat=pb.DaemonBeat(number=number)))

    def _say(self, message: pb.DaemonMessage) -> None:
        if self._node is None:
            self.attachment.send(message)
        elif self.guest is not None:
            message.epoch = self.mind.epoch
            self._node.take(self.guest, message)

    @property
    def is_welcome(self) -> bool:
        return self.mind.is_connected

    def _hello(self) -> pb.Hello:
        settings = self._settings
        return pb.Hello(
            daemon=settings.id,
            node=settings.node_name,
            device_type=settings.device_type,
            device_index=settings.device_index,
            address="127.0.0.1",
            incarnation=self._incarnation,
            running=self.mind.running(),
            version="benchmark",
            protocol=PROTOCOL,
            epoch=self.mind.epoch,
            folder="/jobs",
            data_roots=pb.DataRoots(),
        )

    def _lost(self) -> None:
        self.num_lost += self.mind.is_connected
        self._step(Disconnected())

    def _step(self, event: Any) -> None:
        for action in self.mind.step(event, time.monotonic()):
            match action:
                case pb.DaemonMessage():
                    self._say(action)
                case Gather(key=key):
                    self._step(Gathered(key, 0 if key.rank else 4711))
                case Launch(key=key):
                    self._step(Launched(key, self._pid))
                case EndTree(key=key):
                    self._step(ProcessExited(key, 143, "PREEMPTED", "", self._pid))
                    self._step(TreeEnded(key))
                case Rejoin(pause_s=pause_s):
                    if self.guest is None:
                        self.attachment.rejoin(pause_s)


class SameUse(NodeMeter):
    """The use of this machine, looked at once: nodes have a processor each to look with."""

    def __init__(self) -> None:
        super().__init__(Path("/"))
        self._use = super().look()

    def look(self) -> pb.NodeUse | None:
        return self._use


async def serve_daemons(given: dict[str, Any]) -> None:
    """Run daemons until stdin ends. A line "cut" there cuts all their connections; every 0.2 s a
    line of stdout tells how many are welcome, run a rank, and have ever lost their connection.
    """
    credentials = channel_credentials(Path(given["tls"]), "daemon")
    daemons: list[PretendedDaemon] = []
    lines: list[Attachment] = []
    meter = SameUse()
    for node in range(given["first"], given["last"]):
        own = DaemonSettings(
            device="cpu:0",
            scheduler=given["scheduler"],
            state_dir=Path("/nowhere"),
            node=f"n{node:05}",
            token=given["token"],
            credentials=credentials,
            act_s=JOIN_S,
            env={},
        )
        shared = SharedLine(own) if given["devices"] > 1 else None
        for device in range(given["devices"]):
            settings = replace(own, device=f"cpu:{device}")
            daemons.append(PretendedDaemon(settings, 1, shared))
        lines.append(shared or daemons[-1].attachment)
    # Channels with the same options to one address share a connection.
    for line in lines:
        line._open = partial(open_channel, line)  # type: ignore[method-assign]
        line._meter = meter
    tasks = [asyncio.ensure_future(line.run()) for line in lines if isinstance(line, SharedLine)]
    tasks += [asyncio.ensure_future(daemon.run()) for daemon in daemons]
    count = given["devices"]
    for first, line in enumerate(lines):
        if isinstance(line, SharedLine):
            guests = daemons[first * count : (first + 1) * count]
            tasks.append(asyncio.ensure_future(beat_for(line, guests)))
    reader = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
    while True:
        await asyncio.sleep(0.2)
        welcome = sum(d.is_welcome for d in daemons)
        running = sum(d.mind.phase.value == "running" for d in daemons)
        print(json.dumps([welcome, running, sum(d.num_lost for d in daemons)]), flush=True)
        if reader.done():
            if reader.result() != "cut\n":
                os._exit(0)
            for line in lines:
                line._cut.set()
            reader = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))


async def beat_for(line: SharedLine, guests: list[PretendedDaemon]) -> None:
    """Beat for all of a node in turn: with a timer each, they would take the processor that the
    lines need.
    """
    for number in itertools.count(1):
        for guest in guests:
            guest.beat(number)
        await asyncio.sleep(line._heartbeat_s)


async def open_channel(line: Attachment) -> None:
    """A channel whose connection only this line has: gRPC shares those of channels that have the
    same options.
    """
    from grpc import aio

    settings = line._settings
    options: list[tuple[str, Any]] = list(attach.patient_options(attach.CONNECT_S))
    own = ("oneflow.node", settings.node_name)
    name = ("grpc.ssl_target_name_override", attach.SERVER_NAME)
    line._channel = aio.secure_channel(
        settings.scheduler, settings.credentials, [*options, name, own]
    )
    line._has_connected, line._opened_at = False, time.monotonic()


class Daemons:
    """All daemons, in a few processes."""

    def __init__(self, count: int, devices: int, processes: int, given: dict[str, Any]) -> None:
        self._processes = []
        ends = [count * n // processes for n in range(processes + 1)]
        for first, last in itertools.pairwise(ends):
            share = given | {"first": first, "last": last, "devices": devices}
            argv = [sys.executable, __file__, "--serve", json.dumps(share)]
            pipe, errors = subprocess.PIPE, subprocess.DEVNULL
            process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=errors, text=True)
            self._processes.append(process)
        self._said = [[0, 0, 0] for _ in self._processes]
        for index in range(processes):
            threading.Thread(target=self._listen, args=(index,), daemon=True).start()

    def _listen(self, index: int) -> None:
        for line in self._processes[index].stdout or ():
            self._said[index] = json.loads(line)

    def counts(self) -> list[int]:
        """Return how many are welcome, run a rank, and have lost connections."""
        return [sum(column) for column in zip(*self._said, strict=True)]

    def cut(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("cut\n")
            process.stdin.flush()

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


# ---- the scheduler's side ------------------------------------------------------------------------


class SchedulerAlone:
    """The scheduler in a folder of its own, on the last core."""

    def __init__(self, folder: Path, profile: str) -> None:
        self.folder = folder
        self.tls, self.state = folder / "tls", folder / "state"
        init_tls(self.tls)
        words = ["scheduler", "run", "--state-dir", str(self.state), "--tls-dir", str(self.tls)]
        words += ["--listen", "127.0.0.1:0", "--allow-scripts", "--requests-per-s", "1000000"]
        words += ["--queued-per-token", "100000"]
        own = {k: v for k, v in os.environ.items() if not k.startswith("ONEFLOW_")}
        (folder / "run").mkdir(mode=0o700)
        self.env = own | {"XDG_RUNTIME_DIR": str(folder / "run"), "ONEFLOW_CONFIG_DIR": str(folder)}
        profiler = ["-m", "cProfile", "-o", profile] if profile else []
        argv = [sys.executable, *profiler, "-m", "oneflow", *words]
        self._log = open(folder / "log", "ab")  # noqa: SIM115
        self.process = subprocess.Popen(argv, env=self.env, stdout=self._log, stderr=self._log)
        os.sched_setaffinity(self.process.pid, {max(os.sched_getaffinity(0))})
        self.address = self._wait_for_address()

    def _wait_for_address(self) -> str:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            for found in (self.folder / "run").rglob("cluster.json"):
                return str(json.loads(found.read_text())["address"])
            time.sleep(0.05)
        raise SystemExit((self.folder / "log").read_text())

    def cpu_s(self) -> float:
        """Processor seconds so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rss_mb(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def token(self, name: str) -> str:
        return read_token_file(self.state / name)

    def client(self) -> Any:
        given = {"client.address": self.address, "client.tls_dir": str(self.tls)}
        return connect(token=self.token("token"), settings=load_settings(given))

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._log.close()


# ---- the parts -----------------------------------------------------------------------------------


class Bench:
    """One scheduler with its daemons."""

    def __init__(
        self, scheduler: SchedulerAlone, daemons: Daemons, count: int, limit_s: float
    ) -> None:
        self._scheduler, self._daemons, self._count = scheduler, daemons, count
        self._limit_s = limit_s

    def join(self, rounds: int) -> Row:
        took_s, cpu_s = self._until_welcome(0.0)
        return {"seconds": took_s, "welcome": self._daemons.counts()[0], "cpu_s": cpu_s}

    def storm(self, rounds: int) -> Row:
        lost_before = self._daemons.counts()[2]
        self._daemons.cut()
        time.sleep(1.0)
        took_s, cpu_s = self._until_welcome(STEADY_S)
        welcome, _, lost = self._daemons.counts()
        return {
            "seconds": took_s + 1.0,
            "welcome": welcome,
            "lost_again": lost - lost_before - self._count,
            "cpu_s": cpu_s,
        }

    def _until_welcome(self, steady_s: float) -> tuple[float, float]:
        begun, cpu_s = time.monotonic(), self._scheduler.cpu_s()
        since, spent_s = 0.0, 0.0
        while (now := time.monotonic()) - begun < self._limit_s:
            if self._daemons.counts()[0] < self._count:
                since = 0.0
            elif not since:
                since, spent_s = now, self._scheduler.cpu_s() - cpu_s
            if since and now - since >= steady_s:
                return since - begun, spent_s
            time.sleep(0.1)
        return inf, self._scheduler.cpu_s() - cpu_s

    def idle(self, rounds: int) -> Row:
        time.sleep(5.0)
        lost = self._daemons.counts()[2]
        begun, cpu_s = time.monotonic(), self._scheduler.cpu_s()
        time.sleep(20.0)
        share = (self._scheduler.cpu_s() - cpu_s) / (time.monotonic() - begun)
        return {
            "core_percent": 100 * share,
            "welcome": self._daemons.counts()[0],
            "lost": self._daemons.counts()[2] - lost,
            "rss_mb": self._scheduler.rss_mb(),
        }

    def job(self, rounds: int) -> Row:
        with self._scheduler.client() as cluster:
            begun, cpu_s = time.monotonic(), self._scheduler.cpu_s()
            job = cluster.submit_script(["true"], devices=self._count)
            submit_s = time.monotonic() - begun
            while (running := self._daemons.counts()[1]) < self._count:
                if time.monotonic() - begun > self._limit_s:
                    begun = -inf
                    break
                time.sleep(0.02)
            took_s = time.monotonic() - begun
            cpu_s = self._scheduler.cpu_s() - cpu_s
            state = job.status().state
            cancelled = time.monotonic()
            job.cancel()
            with contextlib.suppress(StillActiveError):
                job.wait(CANCEL_S)
            return {
                "seconds": took_s,
                "submit_s": submit_s,
                "running": running,
                "state": str(state),
                "cpu_s": cpu_s,
                "cancel_s": time.monotonic() - cancelled,
            }

    def calls(self, rounds: int) -> Row:
        submits: list[float] = []
        statuses: list[float] = []
        end = time.monotonic() + self._limit_s
        with self._scheduler.client() as cluster:
            while len(submits) < rounds and time.monotonic() < end:
                begun = time.monotonic()
                job = cluster.submit_script(["true"], devices=self._count + 1)
                submits.append(1e3 * (time.monotonic() - begun))
                begun = time.monotonic()
                job.status()
                statuses.append(1e3 * (time.monotonic() - begun))
                job.cancel()
                time.sleep(0.05)
            begun = time.monotonic()
            cluster.status()
            whole_ms = 1e3 * (time.monotonic() - begun)
        found = {"status": sorted(statuses), "submit": sorted(submits)}
        shown = {
            f"{name}_p{rank}_ms": times[ceil(rank / 100 * len(times)) - 1]  # by nearest rank
            for name, times in found.items()
            for rank in (50, 99)
        }
        return {"rounds": len(submits), **shown, "cluster_status_ms": whole_ms}

    def rows(self, options: Any) -> Iterator[Row]:
        for part in ["join", *(part for part in options.only.split(",") if part != "join")]:
            row = getattr(self, part)(options.rounds)
            time.sleep(REST_S)
            sizes = {"daemons": options.daemons, "devices": options.devices}
            yield {"part": part, **sizes, **row, "load": os.getloadavg()[0]}


@contextlib.contextmanager
def bench(options: Any) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="oneflow-bench-") as name:
        scheduler = SchedulerAlone(Path(name), options.profile)
        own = os.sched_getaffinity(0)
        if len(own) > 1:
            os.sched_setaffinity(0, own - {max(own)})
        try:
            given = {
                "scheduler": scheduler.address,
                "tls": str(scheduler.tls),
                "token": scheduler.token("daemon.token"),
            }
            daemons = Daemons(options.daemons, options.devices, options.processes, given)
            try:
                count = options.daemons * options.devices
                yield Bench(scheduler, daemons, count, options.limit)
            finally:
                daemons.end()
        finally:
            scheduler.end()
            if options.log:
                options.log.write_bytes((Path(name) / "log").read_bytes())


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--daemons", type=int, default=1250, help="nodes")
    parser.add_argument("--devices", type=int, default=1, help="of each node, a daemon each")
    parser.add_argument("--processes", type=int, default=2, help="that hold the daemons")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds of each part")
    parser.add_argument("--rounds", type=int, default=100, help="of `calls`")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--profile", default="", help="write a profile of the scheduler there")
    parser.add_argument("--log", type=Path, help="write the scheduler's log there")
    parser.add_argument("--serve", help="what a process of daemons is given")
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve_daemons(json.loads(options.serve)))
        return
    rows: list[Row] = []
    with bench(options) as found:
        for row in found.rows(options):
            rows.append(row)
            print(row, flush=True)
            if options.json:
                data = {"machine": machine(), "rows": rows}
                options.json.write_text(json.dumps(data, indent=1))


if __name__ == "__main__":
    main()
