"""The ranks of this job, joined at the first need. One process needs no socket; rank 0 of several
hosts the scheduler."""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from oneflow.core.config import Config, current_config
from oneflow.core.errors import InternalError, OneFlowError
from oneflow.core.location import user_location
from oneflow.core.log import get_logger
from oneflow.core.log import set_up as set_up_log
from oneflow.core.metrics import METRICS
from oneflow.distributed import ending
from oneflow.distributed.long_waits import LongWaits
from oneflow.distributed.worker import exit_status

if TYPE_CHECKING:
    from oneflow.actors.control import ControlClient
    from oneflow.boxing.collectives.base import Collectives
    from oneflow.boxing.link import Network
    from oneflow.scheduler.server import SchedulerServer

log = get_logger(__name__)


class _Own(threading.local):
    """The channel of the collectives that this thread calls without naming one."""

    channel = ""


_own = _Own()


def use_channel(channel: str) -> None:
    """Let the collectives of this thread go over a channel of their own: those of several threads
    come in another order on each rank."""
    _own.channel = channel


class World:
    """The knowledge of this process about the others. rank, world_size, local_rank: as launched."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.rank = config.rank
        self.world_size = config.world_size
        self.local_rank = config.local_rank
        self.timeout_s = config.timeout_s
        self._pid = os.getpid()
        self._client: ControlClient | None = None
        self._server: SchedulerServer | None = None
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._collectives: dict[tuple[tuple[int, ...], str], Collectives] = {}
        self._opening: dict[tuple[tuple[int, ...], str], threading.Lock] = {}
        self._device_collectives: dict[tuple[str, tuple[int, ...]], Collectives] = {}
        self.long_waits = LongWaits()
        self._network: Network | None = None
        ending.watch(self.fail, lambda: self._client is not None)
        atexit.register(self._leave)
        set_up_log(config, _last_step)
        if config.metrics_addr is not None:
            self._show_metrics()
        if config.counts_file is not None:
            from oneflow.services.metrics_file import CountsWriter

            CountsWriter(config.counts_file, METRICS).start()

    def _show_metrics(self) -> None:
        from oneflow.services.metrics_http import start_endpoint

        METRICS.is_ready = lambda: self.is_ready
        endpoint = start_endpoint(self.config)  # closes itself at exit
        assert endpoint is not None
        log.info("metrics at http://%s/metrics", endpoint.address)

    @property
    def is_ready(self) -> bool:
        """Whether this rank may take work: it has joined its peers, and the job goes on."""
        if self.world_size == 1:
            return True
        return self._client is not None and self._client.aborted is None

    @property
    def progress(self) -> int:
        """Grows while this rank moves; heartbeats carry it."""
        import oneflow.actors.running_jobs as running_jobs

        return running_jobs.progress()

    @property
    def client(self) -> ControlClient:
        """The connection to the scheduler; joins the job at the first call. Raises
        RendezvousError."""
        if self._client is None:
            with self._lock:
                if self._client is None:
                    self._join()
        assert self._client is not None
        return self._client

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host name of every rank."""
        return tuple(m.host for m in self.client.members)

    @property
    def places(self) -> tuple[str, ...]:
        """Return the place of every rank: equal for ranks that can share memory."""
        return tuple(m.place for m in self.client.members)

    @property
    def network(self) -> Network:
        """Return the links between the ranks, for choosing routes: the same answer on all
        of them.
        """
        if self._network is None:
            from oneflow.boxing.link import ONE_HOST, network_of

            self._network = ONE_HOST if self.world_size == 1 else network_of(self.places)
        return self._network

    def collectives(self, ranks: tuple[int, ...], channel: str | None = None) -> Collectives:
        """This rank's end of a set of ranks (ascending), opened at the first call, which all of
        them must make. channel: calls of one channel need no order among those of another; None:
        that of this thread.
        """
        if channel is None:
            channel = _own.channel
        key = ranks, channel
        found = self._collectives.get(key)
        if found is None:
            from oneflow.distributed.groups import open_collectives

            with self._opening.setdefault(key, threading.Lock()):  # once, also by two threads
                found = self._collectives.get(key)
                if found is None:
                    found = self._collectives[key] = open_collectives(self, ranks, channel)
        return found

    def device_collectives(self, ranks: tuple[int, ...], kind: str = "cuda") -> Collectives:
        """Return collectives, as `collectives` does, for arrays on this rank's device of a kind."""
        found = self._device_collectives.get((kind, ranks))
        if found is None:
            from oneflow.distributed.device_groups import open_device_collectives

            found = open_device_collectives(self, ranks, kind)
            self._device_collectives[kind, ranks] = found
        return found

    def collectives_on(self, kind: str, ranks: tuple[int, ...]) -> Collectives:
        """Return collectives of arrays on a kind of device, the host included."""
        return self.collectives(ranks) if kind == "cpu" else self.device_collectives(ranks, kind)

    @property
    def everyone(self) -> Collectives:
        """The collectives of all ranks."""
        return self.collectives(tuple(range(self.world_size)))

    def compile(
        self,
        job_name: str,
        digest: bytes,
        node_digests: Sequence[int],
        graph: bytes,
        config: bytes,
        describe: Callable[[int], str],
    ) -> bytes:
        """Compile as `ControlClient.compile` does; other ranks that wait in something else are
        found.
        """
        args = job_name, digest, node_digests, graph, config, describe
        what = f"compile of {job_name} at {user_location()}"
        return self.long_waits.compiled(self.client, lambda: self.client.ask_compile(*args), what)

    def next_job_number(self) -> int:
        """A number of its own for each job; ranks that make jobs in one order get the same."""
        return next(self._numbers)

    def _join(self) -> None:
        if self.world_size == 1:
            raise InternalError("a world of one rank has no scheduler to join")
        from oneflow.actors.control import ControlClient

        address = self.config.master_address
        if self.rank == 0:
            self._server = self._host_scheduler(address)
        client = ControlClient(
            address, self.rank, self.world_size, self.config, progress=lambda: self.progress
        )
        client.join()
        self._client = client

    def _host_scheduler(self, address: str) -> SchedulerServer:
        from oneflow.scheduler.server import SchedulerServer

        server = SchedulerServer(address, self.world_size, self._compile, self.config)
        server.start()
        return server

    def _compile(self, graph: bytes, config: bytes) -> bytes:
        from oneflow.scheduler.compiler.service import compile_job

        places = self.places if self._client is not None else ()
        return compile_job(graph, config, self.world_size, places)

    # ---- leaving ---------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> bool:
        """Tells the scheduler that `error` ends this rank. Returns whether another failed
        before.
        """
        if self._client is None or self._is_forked:
            return False
        reason = error.reason if isinstance(error, OneFlowError) else "USER_ERROR"
        code = ending.exit_code(error)
        return self._client.report_failure(ending.describe(error), code, reason) is not None

    @property
    def _is_forked(self) -> bool:
        """Whether this is a child of the rank, whose end is no news to the others."""
        return os.getpid() != self._pid

    def _leave(self) -> None:
        if self._is_forked:
            return
        for opened in (
            self._device_collectives,
            self._collectives,
        ):  # those of GPUs need the others
            while opened:
                opened.popitem()[1].close()
        client, self._client = self._client, None
        code = ending.noted_exit()
        status = exit_status(code)
        if client is not None:
            if status:
                client.report_failure(f"exited with {code}", status, "USER_ERROR")
            client.leave()
        server, self._server = self._server, None
        if server is not None:
            if not status:
                server.serve_until_left()
            server.stop()
        relays = sys.modules.get("oneflow.services.tls_relay")  # if any connection has needed one
        if relays is not None:
            relays.finish()


def _last_step() -> int | None:
    return max((c.last_step for c in list(METRICS.train.values())), default=None)


_world: World | None = None
_making = threading.RLock()  # making a world may ask for it


def world() -> World:
    """The world of this process, as its environment says."""
    global _world
    if _world is None:
        with _making:  # two threads may ask first: each would join the job, and rank 0 serve twice
            if _world is None:
                _world = World(current_config())
    return _world


def close_world() -> None:
    """Leaves the job and forgets it (tests, embedding programs)."""
    global _world
    if _world is not None:
        _world._leave()
        atexit.unregister(_world._leave)
    _world = None
