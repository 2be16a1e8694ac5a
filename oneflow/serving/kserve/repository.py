"""A folder of job files, NAME/VERSION/*.job, as inference jobs of a cluster.

Each version that is loaded is as many jobs as it has replicas, each on a device of its own; a
request goes to the replica with the least under way. The jobs batch the requests that they get.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from oneflow.cluster.client import Cluster
from oneflow.cluster.job import MAX_REQUEST_NBYTES, Job
from oneflow.core.errors import ClusterRequestError, ClusterUnreachableError, OneFlowError
from oneflow.core.log import get_logger
from oneflow.jobs.description import Description
from oneflow.jobs.jobfile import load as load_job_file
from oneflow.jobs.requests import Interface
from oneflow.kernels.array import Array
from oneflow.scheduler.jobs.records import JobState
from oneflow.serving.kserve.failures import Refusal
from oneflow.serving.kserve.values import checked, type_name
from oneflow.serving.limits import Limits

log = get_logger(__name__)

_LOOK_S = 0.1
_ROOM_NBYTES = 64 << 10
"""Room for names and shapes in a request."""


@dataclass
class Version:
    """A version of a model. state: UNAVAILABLE, LOADING, READY, UNLOADING. reason: of the first."""

    name: str
    number: str
    path: Path
    state: str = "UNAVAILABLE"
    reason: str = ""
    description: Description | None = None
    interface: Interface | None = None
    jobs: list[Job] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)
    """Requests under way, by replica."""

    @property
    def under_way(self) -> int:
        return sum(self.busy)

    def read(self) -> None:
        """Read the job file. Raises OneFlowError for one that is no graph for inference."""
        with load_job_file(self.path) as file:
            self.description, self.interface = file.description, Interface.of(file)
        if self.description.kind != "inference":
            raise Refusal(400, f"{self.path} is a job that trains; export the graph without data")
        for port in (*self.description.inputs, *self.description.outputs):
            type_name(port.dtype)


class Repository:
    """The models of a folder. replicas: of each version that is loaded."""

    def __init__(self, root: Path, cluster: Cluster, replicas: int, limits: Limits) -> None:
        self.root, self.limits = root, limits
        self._cluster, self._replicas = cluster, replicas
        self._versions: dict[tuple[str, str], Version] = {}
        self._pool = ThreadPoolExecutor(2 * limits.requests, "serving")
        self._locks: dict[str, asyncio.Lock] = {}
        self.is_draining = False
        self.scan()

    # ---- what there is ---------------------------------------------------------------------------

    def scan(self) -> None:
        """Look for versions that came or went in the folder."""
        found = files_of(self.root)
        for key, path in found.items():
            if key not in self._versions:
                self._versions[key] = Version(*key, path)
        for key, version in list(self._versions.items()):
            if key not in found and version.state == "UNAVAILABLE":
                del self._versions[key]

    def versions(self, name: str = "") -> list[Version]:
        """List all versions, or those of a model, the oldest first."""
        found = [v for v in self._versions.values() if name in ("", v.name)]
        return sorted(found, key=lambda v: (v.name, int(v.number)))

    def find(self, name: str, number: str = "") -> Version:
        """Return a version that is ready, the newest one if none is named. Raises Refusal."""
        known = self.versions(name)
        if not known:
            raise Refusal(404, f"there is no model {name[:80]!r}")
        if number and number not in [v.number for v in known]:
            raise Refusal(404, f"model {name!r} has no version {number[:20]!r}")
        ready = [v for v in known if v.state == "READY" and number in ("", v.number)]
        if not ready:
            last = known[-1]
            raise Refusal(503, f"model {name!r} is {last.state.lower()} {last.reason}".strip())
        return ready[-1]

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken, and no version is still being loaded."""
        states = {v.state for v in self._versions.values()}
        return not self.is_draining and "LOADING" not in states

    # ---- loading ---------------------------------------------------------------------------------

    async def load_all(self) -> None:
        """Load the newest version of each model; those that cannot be loaded say why."""
        names = {v.name for v in self.versions()}
        await asyncio.gather(*(self.load(name) for name in names), return_exceptions=True)

    async def load(self, name: str, number: str = "") -> None:
        """Load all versions of a model that are not loaded, or one. Raises Refusal."""
        self.scan()
        wanted = [v for v in self.versions(name) if number in ("", v.number)]
        if not wanted:
            raise Refusal(404, f"there is no model {name[:80]!r} in {self.root}")
        async with self._locks.setdefault(name, asyncio.Lock()):
            await asyncio.gather(*(self._load(v) for v in wanted if v.state == "UNAVAILABLE"))

    async def _load(self, version: Version) -> None:
        version.state, version.reason = "LOADING", ""
        try:
            await asyncio.to_thread(version.read)
            for _ in range(self._replicas):
                submit = partial(self._cluster.submit, version.path, name=version.name[:60])
                version.jobs.append(await asyncio.to_thread(submit))
            await self._wait(version)
        except OneFlowError as error:
            await self._end(version)
            version.reason = str(error)
            log.warning("model %s version %s: %s", version.name, version.number, error)
            status = error.status if isinstance(error, Refusal) else 400
            raise Refusal(status, f"model {version.name!r}: {error}") from error
        version.busy = [0] * len(version.jobs)
        version.state = "READY"

    async def _wait(self, version: Version) -> None:
        """Wait until all replicas run. Raises Refusal."""
        until = time.monotonic() + self.limits.start_s
        for job in version.jobs:
            while (record := await asyncio.to_thread(job.status)).state is not JobState.RUNNING:
                if record.state.is_final:
                    raise Refusal(500, f"job {job.id} is {record.state}: {record.reason}")
                if time.monotonic() > until:
                    raise Refusal(
                        503,
                        f"job {job.id} does not run after {self.limits.start_s:g} s "
                        f"({record.pending or record.state}); has the cluster enough devices?",
                    )
                await asyncio.sleep(_LOOK_S)

    async def unload(self, name: str) -> None:
        """End the jobs of a model, when the requests under way are answered. Raises Refusal."""
        known = self.versions(name)
        if not known:
            raise Refusal(404, f"there is no model {name[:80]!r}")
        async with self._locks.setdefault(name, asyncio.Lock()):
            for version in known:
                if version.state == "READY":
                    version.state = "UNLOADING"
                    await self._drain([version])
                    await self._end(version)
                    version.reason = "unloaded"

    async def _end(self, version: Version) -> None:
        for job in version.jobs:
            try:
                await asyncio.to_thread(job.cancel)
            except (ClusterRequestError, ClusterUnreachableError) as error:
                log.warning("job %s of model %s: %s", job.id, version.name, error)
        version.jobs, version.busy, version.state = [], [], "UNAVAILABLE"

    async def _drain(self, versions: list[Version]) -> None:
        until = time.monotonic() + self.limits.drain_s
        while any(v.under_way for v in versions) and time.monotonic() < until:
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Refuse new requests, let those under way end, and end the jobs."""
        self.is_draining = True
        await self._drain(self.versions())
        for version in self.versions():
            await self._end(version)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ---- requests --------------------------------------------------------------------------------

    async def infer(
        self, version: Version, inputs: Mapping[str, Array], timeout_s: float = 0.0
    ) -> dict[str, Array]:
        """Return the outputs for the inputs of one request. timeout_s: 0: the server's. Raises
        Refusal.
        """
        if self.is_draining:
            raise Refusal(503, "the server is shutting down")
        interface = version.interface
        assert interface is not None  # it is ready
        rows = checked(inputs, interface)
        if version.under_way >= self.limits.requests:
            raise Refusal(
                429, f"model {version.name!r} has {version.under_way} requests under way, the most"
            )
        limit = min(timeout_s or self.limits.timeout_s, self.limits.timeout_s)
        replica = int(np.argmin(version.busy))
        version.busy[replica] += 1
        job, busy = version.jobs[replica], version.busy
        try:
            call = partial(_ask, job, inputs, rows, limit)
            work = asyncio.get_running_loop().run_in_executor(self._pool, call)
            return await asyncio.wait_for(asyncio.shield(work), limit + 1)
        except asyncio.TimeoutError:
            raise Refusal(504, f"no answer within {limit:g} s") from None
        finally:
            busy[replica] -= 1


def _ask(job: Job, inputs: Mapping[str, Array], rows: int, timeout_s: float) -> dict[str, Array]:
    """Ask a job, in several parts if the rows are more than one message holds."""
    nbytes = sum(array.nbytes for array in inputs.values())
    most = MAX_REQUEST_NBYTES - _ROOM_NBYTES
    if nbytes > most and (rows < 2 or nbytes // rows > most):
        raise Refusal(413, f"the inputs have {nbytes} bytes; {most} fit in a request")
    step = rows if nbytes <= most else max(1, most * rows // nbytes)
    until = time.monotonic() + timeout_s
    parts = []
    for start in range(0, max(rows, 1), max(step, 1)):
        part = {n: a[start : start + step] if rows else a for n, a in inputs.items()}
        parts.append(_ask_once(job, part, until - time.monotonic()))
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _ask_once(job: Job, inputs: Mapping[str, Array], timeout_s: float) -> dict[str, Array]:
    if timeout_s <= 0:
        raise Refusal(504, "the time of the request is over")
    try:
        return job.run(inputs, timeout=timeout_s)
    except ClusterRequestError as error:
        text = str(error)
        if "no answer within" in text:
            raise Refusal(504, text) from error
        raise Refusal(429 if "requests to answer" in text else 500, text) from error
    except ClusterUnreachableError as error:
        raise Refusal(503, str(error)) from error


def files_of(root: Path) -> dict[tuple[str, str], Path]:
    """Map name and version to the job file of each folder NAME/VERSION. Folders without exactly one
    are left out with a warning.
    """
    found = {}
    for folder in sorted(root.glob("*/*")):
        if not folder.is_dir() or not folder.name.isdecimal():
            continue
        files = sorted(folder.glob("*.job"))
        if len(files) == 1:
            found[folder.parent.name, folder.name] = files[0]
        else:
            log.warning("%s has %d job files; a version has one", folder, len(files))
    return found
