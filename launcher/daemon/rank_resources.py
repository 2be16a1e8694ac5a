"""The belongings of a rank on this machine: its folders, the files of its job, the port that it is
promised, its environment.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from oneflow.core.errors import ConfigError
from oneflow.core.exits import note_exited
from oneflow.core.log import get_logger
from oneflow.core.processes import own_mark
from oneflow.core.processors import share_of_processors
from oneflow.launcher.daemon.archive import unpack
from oneflow.launcher.daemon.blobs import BlobCache, Fetch
from oneflow.launcher.daemon.marks import keep_mark
from oneflow.launcher.daemon.orphans import MARK, make_temp_dir
from oneflow.launcher.daemon.outputs import FOLDER
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.launcher.rank_env import RankPlace, rank_env
from oneflow.launcher.report import ErrorRecord, read_error
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.messages import AttemptKey
from oneflow.scheduler.ports import ReservedPort

VISIBLE = "CUDA_VISIBLE_DEVICES"

log = get_logger(__name__)


class RankResources:
    """The belongings of one rank of one attempt. folder: of its logs."""

    def __init__(self, key: AttemptKey, prepare: pb.Prepare, settings: DaemonSettings) -> None:
        self._key, self._prepare, self._settings = key, prepare, settings
        self.job_dir = settings.jobs_dir / key.folder
        self.work_dir = self.job_dir / "work"
        self.folder = self.job_dir / str(key.attempt) / f"rank{key.rank}"
        self.outputs_dir = self.job_dir / FOLDER
        self.counts_file = self.folder / "counts.json"
        self._exited_dir = self.folder.parent / "exited"
        self._error_file = self.folder.parent / "errors" / f"rank{key.rank}.json"
        self._files: dict[str, Path] = {}
        self._port: ReservedPort | None = None
        self._temp_dir: Path | None = None

    # -- gathering ---------------------------------------------------------------------------------

    async def gather(self, cache: BlobCache, fetch: Fetch, address: str) -> None:
        """Make the folders, and fetch files that are not here yet; rank 0 gets a port of this
        address.

        Raises OneFlowError or OSError.
        """
        await asyncio.to_thread(keep_mark, self._settings.state_dir, self._prepare.mark)
        folders = (self.folder, self._exited_dir, self._error_file.parent, self.outputs_dir)
        for folder in folders:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._error_file.unlink(missing_ok=True)
        spec = self._prepare.spec
        wanted = {"archive": spec.archive, "job": spec.graph, "plan": self._prepare.plan}
        wanted["requirements"] = spec.requirements
        for name, digest in wanted.items():
            if digest:
                self._files[name] = await self._get(digest, cache, fetch)
        await asyncio.to_thread(self._make_work_dir)
        if self._key.rank == 0:
            self._port = ReservedPort(address)

    async def _get(self, digest: str, cache: BlobCache, fetch: Fetch) -> Path:
        """Get a file of the job, kept as long as the job even if the cache drops it."""
        kept = self.job_dir / "files" / digest
        if not kept.exists():
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = await cache.get(digest, fetch)
            with suppress(FileExistsError):  # another rank of this node was quicker
                os.link(found, kept)
        return kept

    def _make_work_dir(self) -> None:
        """Make it once a job and node: the next attempt of a rank finds its files there."""
        with open(self.job_dir / ".work.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.work_dir.exists():
                return
            if "archive" in self._files:
                unpack(self._files["archive"], self.work_dir)
            else:
                self.work_dir.mkdir(mode=0o700)

    @property
    def port(self) -> int:
        """Return the port that is kept for rank 0; 0 for others."""
        return self._port.port if self._port else 0

    def release_port(self) -> None:
        """Give it back, or to the rank, which takes it itself."""
        if self._port is not None:
            self._port.release()
            self._port = None

    # -- what its process gets ---------------------------------------------------------------------

    def file(self, name: str) -> str:
        """The path of "archive", "job", "plan" or "requirements"; "": it has none."""
        return str(self._files.get(name, ""))

    def make_temp_dir(self) -> None:
        self._temp_dir = make_temp_dir()

    def env(self, addr: str, port: int, base: Mapping[str, str]) -> dict[str, str]:
        """The user's variables over `base`, then those of the device and the rank, which win."""
        prepare, settings = self._prepare, self._settings
        device = device_env(
            settings.device_type, settings.device_index, prepare.local_rank, settings.env
        )
        env = dict(base) | dict(prepare.spec.env) | device
        if self._temp_dir is not None:
            env["TMPDIR"] = str(self._temp_dir)
        env[MARK] = own_mark()
        # An older scheduler does not say how many ranks are on this host: all of them at most.
        neighbours = prepare.local_world_size or prepare.world_size
        place = RankPlace(
            master_addr=addr,
            master_port=port,
            world_size=prepare.world_size,
            rank=self._key.rank,
            local_rank=prepare.local_rank,
            attempt=self._key.attempt,
            log_dir=self.folder,
            error_file=self._error_file,
            exited_dir=self._exited_dir,
            token=prepare.job_key or None,
            threads=_num_threads(prepare.spec.cpus, neighbours),
            job_id=self._key.job_id,
        )
        return rank_env(env, place)

    # -- what its process leaves -------------------------------------------------------------------

    def error(self) -> ErrorRecord | None:
        """Return its program's record of its end."""
        return read_error(self._error_file)

    def lost(self) -> str:
        """Say that its folder is gone, with the results that its program may have left there; ""
        if it is there."""
        return "" if self.work_dir.is_dir() else f"{self.work_dir} was deleted while the job ran"

    def tell_that_it_exited(self) -> None:
        """That this rank exited 0: one that waits for it to join would not hear of it."""
        try:
            note_exited(self._exited_dir, self._key.rank)
        except OSError as error:
            log.warning("cannot tell that %s exited 0: %s", self._key, error)

    async def remove_temp_dir(self) -> None:
        if self._temp_dir is not None:
            await asyncio.to_thread(shutil.rmtree, self._temp_dir, True)


def _num_threads(cpus: float, neighbours: int) -> int | None:
    """Threads of a rank: as many as the processors that it asked for, or its share of them."""
    share = share_of_processors(neighbours) if neighbours > 1 else None
    if not cpus:
        return share
    return min(max(int(cpus), 1), share_of_processors(1))


def device_env(
    device_type: str, device_index: int, local_rank: int, env: Mapping[str, str]
) -> dict[str, str]:
    """Makes the daemon's GPU the one that its rank finds under the number LOCAL_RANK.

    The others before it are there only to take their numbers; on a cpu no GPU is shown.
    """
    if device_type != "cuda":
        return {VISIBLE: ""}
    given = [word for word in env.get(VISIBLE, "").split(",") if word]
    if given and device_index >= len(given):
        raise ConfigError(f"cuda:{device_index} is not among {VISIBLE}={env[VISIBLE]}")
    names = given or [str(number) for number in range(max(local_rank, device_index) + 1)]
    own = names[device_index]
    others = [name for name in names if name != own]
    return {VISIBLE: ",".join([*others[:local_rank], own])}
