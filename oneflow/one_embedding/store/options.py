"""Options of a store: `make_*_store_options`, and their checked form.

The options are the dictionaries that upstream's functions make, so scripts may change and print
them. On a machine without a GPU its memory is the host's: rows that fit in there are kept once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from oneflow.core.errors import ArgumentError

Paths: TypeAlias = "str | Sequence[str]"
"""A folder for all ranks, or one for each."""
Options: TypeAlias = dict[str, Any]

BLOCK_SIZES = (512, 4096)


def make_device_mem_store_options(
    persistent_path: Paths,
    capacity: int,
    size_factor: int = 1,
    storage_dim: int = -1,
    physical_block_size: int = 4096,
) -> Options:
    """Options of a store whose rows all lie in the memory of the device; snapshots go to the
    persistent path.

    persistent_path: a folder, in which each rank has one of its own, or a list with one for each
    rank; "": a temporary one, which goes with the store.  capacity: most rows of all ranks
    together.  size_factor: numbers of a row with its optimizer states over those of its embedding.
    storage_dim: numbers of a row instead, if it is more than 0.  physical_block_size: of the disk,
    bytes.
    """
    full = {"policy": "full", "capacity": _capacity(capacity), "value_memory_kind": "device"}
    sizes = size_factor, storage_dim
    return _options([full], persistent_path, capacity, sizes, physical_block_size)


def make_cached_ssd_store_options(
    cache_budget_mb: int,
    persistent_path: Paths,
    capacity: int | None = None,
    size_factor: int = 1,
    storage_dim: int = -1,
    physical_block_size: int = 4096,
    host_cache_budget_mb: int = 0,
) -> Options:
    """Options of a store whose rows lie on a disk, with caches in the memory of device and host.

    cache_budget_mb, host_cache_budget_mb: MiB of each rank's caches; one of them must be more than
    0.  capacity: most rows of all ranks; None: as many as the disk holds.  The rest:
    `make_device_mem_store_options`.
    """
    _check_budget("make_cached_ssd_store_options", "cache_budget_mb", cache_budget_mb)
    _check_budget("make_cached_ssd_store_options", "host_cache_budget_mb", host_cache_budget_mb)
    if min(cache_budget_mb, host_cache_budget_mb) < 0 or not cache_budget_mb + host_cache_budget_mb:
        raise ArgumentError(
            f"make_cached_ssd_store_options: cache_budget_mb is {cache_budget_mb} and "
            f"host_cache_budget_mb {host_cache_budget_mb}; one must be more than 0, none less"
        )
    caches = [
        {"policy": "lru", "cache_memory_budget_mb": budget_mb, "value_memory_kind": kind}
        for kind, budget_mb in (("device", cache_budget_mb), ("host", host_cache_budget_mb))
        if budget_mb
    ]
    sizes = size_factor, storage_dim
    most = 0 if capacity is None else _capacity(capacity)
    return _options(caches, persistent_path, most, sizes, physical_block_size)


def make_cached_host_mem_store_options(
    cache_budget_mb: int,
    persistent_path: Paths,
    capacity: int,
    size_factor: int = 1,
    storage_dim: int = -1,
    physical_block_size: int = 4096,
) -> Options:
    """Options of a store whose rows all lie in the memory of the host, with a cache in that of the
    device.

    cache_budget_mb: MiB of each rank's cache.  The rest: `make_device_mem_store_options`.
    """
    _check_budget("make_cached_host_mem_store_options", "cache_budget_mb", cache_budget_mb)
    if cache_budget_mb <= 0:
        raise ArgumentError(
            f"make_cached_host_mem_store_options: cache_budget_mb is {cache_budget_mb}, must be "
            "more than 0"
        )
    cache = {
        "policy": "lru", "cache_memory_budget_mb": cache_budget_mb, "value_memory_kind": "device",
    }  # fmt: skip
    full = {"policy": "full", "capacity": _capacity(capacity), "value_memory_kind": "host"}
    sizes = size_factor, storage_dim
    return _options([cache, full], persistent_path, capacity, sizes, physical_block_size)


def is_whole(value: object) -> bool:
    """Tell whether a value is a number that counts: 3 and 1e6 are, 1.5 and True are not."""
    if isinstance(value, (float, np.floating)):
        return float(value).is_integer()
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _capacity(capacity: int) -> int:
    if not is_whole(capacity) or not capacity > 0:
        raise ArgumentError(
            f"a store's capacity must be a whole number of rows, more than 0 rows, not {capacity!r}"
        )
    return int(capacity)


def _check_budget(function: str, name: str, budget_mb: float) -> None:
    is_number = isinstance(budget_mb, (int, float)) and not isinstance(budget_mb, bool)
    if not is_number or not math.isfinite(budget_mb):
        raise ArgumentError(f"{function}: {name} is {budget_mb!r}, must be a number of MiB")


def _options(
    caches: list[dict[str, object]],
    persistent_path: Paths,
    capacity: int,
    sizes: tuple[int, int],
    physical_block_size: int,
) -> Options:
    made: Options = {
        "kv_store": {
            "caches": caches,
            "persistent_table": {
                "path": persistent_path,
                "physical_block_size": physical_block_size,
                "capacity_hint": int(capacity),
            },
        },
        "size_factor": sizes[0],
        "storage_dim": sizes[1],
    }
    StoreOptions.of(made, 0, 1 if isinstance(persistent_path, str) else len(persistent_path))
    # Kernels read the options as JSON, which knows no numbers of NumPy.
    return made | {"size_factor": int(sizes[0]), "storage_dim": int(sizes[1])}


@dataclass(frozen=True)
class StoreOptions:
    """Checked options, as one rank reads them.

    folders: of all ranks that share them, in order of their ranks; this rank's is number `rank`.
    capacity: most rows of this rank, 0 for no limit.  cache_nbytes: 0 where all rows are in memory.
    is_read_only: snapshots are read, beside a run that may go on writing others.  is_on_device: all
    rows are in the memory of a GPU, where one looks them up.  device_nbytes: of a cache there.
    """

    folders: tuple[Path, ...]
    rank: int
    capacity: int
    cache_nbytes: int
    size_factor: int
    block_nbytes: int
    is_read_only: bool = False
    is_on_device: bool = False
    device_nbytes: int = 0

    @property
    def folder(self) -> Path:
        """The folder of this rank."""
        return self.folders[self.rank]

    @property
    def has_path(self) -> bool:
        """Whether the rows are to outlive the store."""
        return bool(self.folder.parts[:-1])

    def within(self, folder: Path) -> StoreOptions:
        """The same options with all folders in another one."""
        return replace(self, folders=tuple(folder / own.name for own in self.folders))

    @classmethod
    def of(cls, options: Mapping[str, Any], rank: int, num_ranks: int) -> StoreOptions:
        """Read the options of a script. Raises ArgumentError for values that no option takes."""
        try:
            kept = options["kv_store"]["persistent_table"]
            caches = options["kv_store"]["caches"]
            path, size_factor = kept["path"], options["size_factor"]
            caches = [caches] if isinstance(caches, Mapping) else list(caches)
            full = [cache for cache in caches if cache["policy"] == "full"]
            budgets = [
                (cache.get("value_memory_kind"), cache.get("cache_memory_budget_mb", 0))
                for cache in caches
            ]
            budget_mb = sum(budget for _, budget in budgets)
            device_mb = sum(budget for kind, budget in budgets if kind == "device")
        except (KeyError, TypeError) as error:
            raise ArgumentError(
                f"store options without {error}; make them by make_device_mem_store_options, "
                "make_cached_host_mem_store_options or make_cached_ssd_store_options"
            ) from error
        block_nbytes = kept.get("physical_block_size", BLOCK_SIZES[-1])
        if block_nbytes not in BLOCK_SIZES:
            raise ArgumentError(f"physical_block_size is {block_nbytes}, must be 512 or 4096")
        if not is_whole(size_factor) or size_factor < 1:
            raise ArgumentError(
                f"size_factor is {size_factor!r}, must be a whole number, at least 1: 1 and the "
                "number of the optimizer's states"
            )
        if not is_whole(options.get("storage_dim", -1)):
            raise ArgumentError(
                f"storage_dim is {options['storage_dim']!r}, must be a whole number, or -1 for "
                "size_factor times the width of a row"
            )
        return cls(
            folders=_folders(path, num_ranks),
            rank=rank,
            capacity=_share(int(kept.get("capacity_hint", 0)), num_ranks),
            cache_nbytes=0 if full else int(budget_mb * 2**20),
            size_factor=int(size_factor),
            block_nbytes=block_nbytes,
            is_read_only=bool(kept.get("read_only", False)),
            is_on_device=any(cache.get("value_memory_kind") == "device" for cache in full),
            device_nbytes=int(device_mb * 2**20),
        )


def _folders(path: Paths, num_ranks: int) -> tuple[Path, ...]:
    if isinstance(path, str):
        return tuple(Path(path) / f"{rank}-{num_ranks}" for rank in range(num_ranks))
    if len(path) != num_ranks:
        raise ArgumentError(
            f"persistent_path lists {len(path)} folders, but there are {num_ranks} ranks"
        )
    return tuple(Path(p) / f"{rank}-{num_ranks}" for rank, p in enumerate(path))


def _share(capacity: int, num_ranks: int) -> int:
    """Most rows of one rank, whose share of hashed ids is even only on average: six standard
    deviations more, so that any `capacity` ids fit."""
    if num_ranks == 1 or not capacity:
        return capacity
    mean = capacity / num_ranks
    return min(capacity, int(mean + 6 * mean**0.5) + 1)
