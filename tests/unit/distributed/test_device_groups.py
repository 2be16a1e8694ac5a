"""Ranks that use NCCL, the errors of those that cannot, and that eager tensors on GPUs then stay
there. With a stand-in for CuPy and NCCL.
"""

from __future__ import annotations

import logging
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from oneflow.boxing.collectives.device import StagedCollectives
from oneflow.boxing.collectives.in_process import InProcessGroup
from oneflow.boxing.collectives.nccl import NcclCollectives
from oneflow.boxing.link import ONE_HOST
from oneflow.core.config import Config
from oneflow.core.dtype import float32
from oneflow.core.errors import HangError
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, Split
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.device_groups import (
    Ability,
    hindrance,
    open_device_collectives,
    own_ability,
)
from oneflow.tensor import eager_global
from tests.unit.boxing import stand_in_cupy
from tests.unit.boxing.boxing_ranks import LocalStore, in_threads

A, B = Ability(23005, "", "a", False), Ability(23005, "", "b", False)


def test_ranks_with_gpus_of_their_own_use_nccl() -> None:
    assert hindrance((0, 1), (A, B)) == ""


def test_one_rank_that_cannot_is_named() -> None:
    without = Ability(0, "CuPy finds no NCCL", "b", False)
    assert hindrance((2, 5), (A, without)) == "rank 5: CuPy finds no NCCL"


def test_versions_must_be_equal() -> None:
    older = B._replace(version=22804)
    assert hindrance((0, 1), (A, older)) == "rank 1 has NCCL 2.28.4, rank 0 2.30.5"


def test_a_gpu_is_shared_only_if_nccl_can_and_may() -> None:
    said = hindrance((0, 1), (A, A))
    assert "ranks 0 and 1 share a GPU" in said and "NCCL_MULTI_RANK_GPU_ENABLE=1" in said
    told = A._replace(shares=True)
    assert hindrance((0, 1), (told, told)) == ""
    old = told._replace(version=22804)
    assert "NCCL is 2.28.4, the variable is 1" in hindrance((0, 1), (old, old))


# ---- opening -------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with stand_in_cupy.installed() as module:
        module.cuda.runtime = types.SimpleNamespace(
            getDevice=lambda: 0,
            runtimeGetVersion=lambda: 13000,
            getDeviceProperties=lambda n: {"uuid": b"0123456789abcdef"},
            deviceGetPCIBusId=lambda n: "0000:1b:00.0",
        )
        yield module


class Here:
    """A world as far as it is asked for."""

    def __init__(self, rank: int, size: int, store: LocalStore, groups: Any, shares: bool) -> None:
        self.rank, self.world_size, self.timeout_s = rank, size, 20.0
        self.network = ONE_HOST
        self.config = Config(nccl_shares_gpu=shares)
        self.client = types.SimpleNamespace(put=store.put, get=store.get, check=lambda peers: None)
        self._groups, self.opened = groups, {}
        self.may_use_the_host = True

    def collectives(self, ranks: tuple[int, ...]) -> Any:
        assert self.may_use_the_host
        group = self._groups.setdefault(ranks, InProcessGroup(ranks))
        return group.collectives(self.rank)

    def collectives_on(self, kind: str, ranks: tuple[int, ...]) -> Any:
        return self.collectives(ranks) if kind == "cpu" else self.device_collectives(ranks)

    def device_collectives(self, ranks: tuple[int, ...]) -> Any:
        if ranks not in self.opened:
            self.opened[ranks] = open_device_collectives(self, ranks)  # type: ignore[arg-type]
        return self.opened[ranks]

    def close(self) -> None:
        for c in self.opened.values():
            c.close()


def worlds(size: int, work: Any, shares: bool = True) -> list[Any]:
    store: LocalStore = LocalStore()
    groups: dict[tuple[int, ...], InProcessGroup] = {}

    def rank(i: int) -> Any:
        here = Here(i, size, store, groups, shares)
        try:
            return work(here)
        finally:
            here.close()

    return in_threads(size, rank)


def test_all_open_the_same(caplog: pytest.LogCaptureFixture) -> None:
    for shares, kind in ((True, NcclCollectives), (False, StagedCollectives)):
        with caplog.at_level(logging.WARNING, "oneflow.distributed.device_groups"):
            found = worlds(2, lambda here: type(here.device_collectives((0, 1))), shares)
        assert found == [kind, kind]
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1  # of the first rank, and of those that cannot only
    assert "GPU tensors of ranks [0, 1] move through host memory: ranks 0 and 1" in warnings[0]


def test_a_set_of_one_rank_needs_no_nccl() -> None:
    assert worlds(1, lambda here: type(here.device_collectives((0,)))) == [StagedCollectives]


def test_a_cupy_without_nccl_says_so(cupy: Any) -> None:
    assert own_ability(cupy, Config()).version == 23005
    found = cupy.cuda.runtime
    alike = own_ability(cupy, Config()).gpu
    found.deviceGetPCIBusId = lambda n: "0000:43:00.0"
    assert own_ability(cupy, Config()).gpu != alike  # though what CuPy gives of the uuid is equal
    cupy.cuda.nccl.available = False
    hindrance = own_ability(cupy, Config()).hindrance
    assert "finds no NCCL" in hindrance and "nvidia-nccl-cu13" in hindrance

    def broken() -> int:
        raise RuntimeError("libnccl.so.2: wrong version")

    cupy.cuda.nccl.available, cupy.cuda.nccl.get_version = True, broken
    assert "cannot use NCCL: libnccl.so.2" in own_ability(cupy, Config()).hindrance


def test_an_nccl_that_fails_on_one_rank_is_used_by_none(
    cupy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    make = cupy.cuda.nccl.NcclCommunicator

    def join(size: int, unique: bytes, index: int) -> Any:
        if index == 1:
            raise cupy.cuda.nccl.NcclError("NCCL_ERROR_SYSTEM_ERROR: too little /dev/shm")
        return make(size, unique, index)  # waits for the other one

    cupy.cuda.nccl.NcclCommunicator = join

    def work(here: Any) -> Any:
        ends = here.device_collectives((0, 1))
        return type(ends), ends.all_reduce(cupy.asarray(np.full(3, here.rank + 1.0)))

    with caplog.at_level(logging.WARNING, "oneflow.distributed.device_groups"):
        found = worlds(2, work)
    for kind, total in found:
        assert kind is StagedCollectives
        np.testing.assert_array_equal(total, np.full(3, 3.0))
    (said,) = [r.getMessage() for r in caplog.records if "host memory" in r.getMessage()]
    assert "NCCL fails on rank 1: NCCL_ERROR_SYSTEM_ERROR: too little /dev/shm" in said


def test_the_setting_of_the_stream_is_followed() -> None:
    from oneflow.boxing import settings

    settings.change(use_compute_stream=True)
    try:
        (one, _) = worlds(2, lambda here: here.device_collectives((0, 1))._stream)
    finally:
        settings.reset()
    assert one is None


# ---- eager tensors -------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [True, False], ids=["nccl", "staged"])
def test_shards_go_from_gpu_to_gpu(monkeypatch: pytest.MonkeyPatch, shares: bool) -> None:
    import cupy

    local = threading.local()
    monkeypatch.setattr(eager_global, "world", lambda: local.here)
    type_ = TensorType((4, 6), float32)
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    both, second = Placement("cuda", [0, 1]), Placement("cuda", [1])
    split, everywhere, partial = (Split(0),), (BROADCAST,), (PARTIAL,)

    def work(here: Any) -> Any:
        local.here = here
        here.device_collectives((0, 1))
        here.may_use_the_host = not shares
        mine = cupy.asarray(whole[2 * here.rank : 2 * here.rank + 2])
        copies = eager_global.relayout(mine, type_, split, both, everywhere, both)
        halves = eager_global.relayout(copies / 2, type_, partial, both, split, both)
        moved = eager_global.relayout(mine, type_, split, both, everywhere, second)
        return copies, halves, moved

    for rank, (copies, halves, moved) in enumerate(worlds(2, work, shares)):
        np.testing.assert_array_equal(copies, whole)
        np.testing.assert_array_equal(halves, whole[2 * rank : 2 * rank + 2])
        assert isinstance(copies, cupy.ndarray)
        if rank == 1:
            np.testing.assert_array_equal(moved, whole)
        else:
            assert moved.shape == (0, 0)


def test_values_of_given_up_collectives_do_not_reach_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from oneflow.boxing.collectives import device_watch

    array = types.SimpleNamespace(
        __cuda_array_interface__={}, __array__=lambda *_, **__: np.ones(3)
    )
    np.testing.assert_array_equal(eager_global.to_host(array), np.ones(3))
    looker = types.SimpleNamespace(first_error=lambda: HangError("rank 1 never came"))
    monkeypatch.setattr(device_watch, "_looker", looker)
    with pytest.raises(HangError, match="rank 1 never came"):
        eager_global.to_host(array)
