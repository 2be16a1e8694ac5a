from __future__ import annotations

import numpy as np
import pytest

from oneflow.core.errors import ArgumentError
from oneflow.one_embedding.store.options import (
    StoreOptions,
    make_cached_host_mem_store_options,
    make_cached_ssd_store_options,
    make_device_mem_store_options,
)


def test_rows_in_memory_have_no_cache() -> None:
    made = make_device_mem_store_options("/data", 1000, size_factor=2)
    read = StoreOptions.of(made, 0, 1)
    assert (read.capacity, read.cache_nbytes, read.size_factor) == (1000, 0, 2)
    assert str(read.folder) == "/data/0-1"
    assert StoreOptions.of(make_cached_host_mem_store_options(8, "/d", 9), 0, 1).cache_nbytes == 0


def test_caches_of_device_and_host_add_up() -> None:
    made = make_cached_ssd_store_options(
        3, "/data", host_cache_budget_mb=5, physical_block_size=512
    )
    read = StoreOptions.of(made, 0, 1)
    assert (read.capacity, read.cache_nbytes, read.block_nbytes) == (0, 8 << 20, 512)


def test_each_rank_has_its_own_folder_and_share_of_the_capacity() -> None:
    made = make_device_mem_store_options(["/a", "/b"], 20_000)
    read = StoreOptions.of(made, 1, 2)
    assert [str(folder) for folder in read.folders] == ["/a/0-2", "/b/1-2"]
    assert 10_000 < read.capacity < 11_000


def test_whole_numbers_may_be_floats() -> None:
    made = make_device_mem_store_options("/data", 1e6, np.int64(2))  # type: ignore[arg-type]
    read = StoreOptions.of(made, 0, 1)
    assert (read.capacity, read.size_factor) == (1_000_000, 2)


def test_unusable_options_are_refused() -> None:
    with pytest.raises(ArgumentError, match="more than 0 rows, not 0"):
        make_device_mem_store_options("/data", 0)
    with pytest.raises(ArgumentError, match="must be 512 or 4096"):
        make_device_mem_store_options("/data", 1, physical_block_size=1000)
    with pytest.raises(ArgumentError, match="size_factor is 0"):
        make_device_mem_store_options("/data", 1, size_factor=0)
    with pytest.raises(ArgumentError, match="one must be more than 0"):
        make_cached_ssd_store_options(0, "/data")
    with pytest.raises(ArgumentError, match="cache_budget_mb is 0"):
        make_cached_host_mem_store_options(0, "/data", 5)
    with pytest.raises(ArgumentError, match="2 folders, but there are 3 ranks"):
        StoreOptions.of(make_device_mem_store_options(["/a", "/b"], 5), 0, 3)
    for capacity in (1.5, True, float("inf")):
        with pytest.raises(ArgumentError, match=f"whole number of rows.* not {capacity}"):
            make_device_mem_store_options("/data", capacity)  # type: ignore[arg-type]
    for size_factor in (1.5, True, "2"):
        with pytest.raises(ArgumentError, match=f"size_factor is {size_factor!r}, must be a whole"):
            make_device_mem_store_options("/data", 1, size_factor)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"storage_dim is 8\.5, must be a whole"):
        make_device_mem_store_options("/data", 1, storage_dim=8.5)  # type: ignore[arg-type]
    for budget_mb in ("a", None, float("nan"), True):
        text = f"cache_budget_mb is {budget_mb!r}, must be a number of MiB"
        with pytest.raises(ArgumentError, match=f"make_cached_ssd_store_options: {text}"):
            make_cached_ssd_store_options(budget_mb, "/data")  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match=f"host_{text}"):
            make_cached_ssd_store_options(1, "/data", host_cache_budget_mb=budget_mb)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match=f"make_cached_host_mem_store_options: {text}"):
            make_cached_host_mem_store_options(budget_mb, "/data", 5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="without 'kv_store'"):
        StoreOptions.of({}, 0, 1)
