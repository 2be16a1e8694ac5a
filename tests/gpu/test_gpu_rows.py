"""Tables in the memory of cuda:0 beside the same tables in memory of the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.errors import PositionError, RowStoreError
from oneflow.one_embedding.store.initial import Column, InitialRows
from oneflow.one_embedding.store.row_store import open_store
from tests.unit.one_embedding.making import embedding, one

from .gpu_needed import need_gpu

pytestmark = pytest.mark.gpu
cupy = need_gpu()
WIDTH, TABLES, STEPS = 5, 3, 6
LAYOUTS = [
    Column(3, "uniform", -1.0, 1.5),
    Column(2, "normal", 0.5, 2.0),
    Column(2, "trunc_normal", 0.0, 1.0, -0.5, 1.0),
    Column(1, "constant", 0.3),
]


def batches(count: int, rows: int = 40, most: int = 300) -> list[np.ndarray]:
    rng = np.random.default_rng(count)
    return [rng.zipf(1.2, (rows, TABLES)) % most for _ in range(count)]


def stored(tier: str, folder: Path) -> Any:
    """Options of a store; of a cache of 32 lines, less than a batch has distinct ids."""
    if tier == "device":
        return one.make_device_mem_store_options(str(folder), 2000, size_factor=4)
    if tier == "host":
        made = one.make_cached_host_mem_store_options(1, str(folder), 2000, size_factor=4)
    else:
        made = one.make_cached_ssd_store_options(1, str(folder), 2000, size_factor=4)
    made["kv_store"]["caches"][0]["cache_memory_budget_mb"] = 1e-3
    return made


def train(
    device: str,
    kind: Any,
    folder: Path,
    *,
    passes: int = 1,
    tier: str = "device",
    **options: Any,
) -> Any:
    """An embedding that was looked up and updated, its results, and its snapshots."""
    store = stored(tier, folder / device)
    rows = embedding(WIDTH, TABLES, padding_idx=0, store_options=store).to(device)
    optimizer = kind(rows.parameters(), **options)
    rng, found = np.random.default_rng(3), []
    for step, ids in enumerate(batches(STEPS * passes)):
        out = rows(flow.tensor(ids, device=device))
        found.append(out.detach().cpu().numpy())
        scale = flow.tensor(rng.normal(size=out.shape).astype(np.float32), device=device)
        (out * scale).sum().backward()
        if (step + 1) % passes:
            continue
        optimizer.step()
        optimizer.zero_grad()
        if step % 2:
            rows.save_snapshot(f"at {step}")
    return rows, found


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (flow.optim.SGD, {"lr": 0.1}),
        (flow.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
        (flow.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.2, "lr_decay": 0.1}),
        (flow.optim.Adam, {"lr": 0.1}),
        (flow.optim.AdamW, {"lr": 0.1, "weight_decay": 0.2}),
        (flow.optim.RMSprop, {"lr": 0.1}),
        (one.Ftrl, {"lr": 0.1, "lambda1": 0.01}),
        (one.SmartDecayAdam, {"lr": 0.1}),
    ],
)
def test_rows_are_those_of_the_host(kind: Any, options: Any, tmp_path: Path) -> None:
    (here, wanted), (there, found) = (
        train(device, kind, tmp_path, **options) for device in ("cpu", "cuda")
    )
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(found[0], wanted[0])
    counts, others = here.statistics(), there.statistics()
    for name in ("ids", "distinct", "updated", "rows", "lookups", "created"):
        assert others[name] == counts[name], name
    assert others["device_hits"] == counts["memory_hits"]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.*s")}


def test_snapshots_have_the_bytes_of_the_host(tmp_path: Path) -> None:
    for device in ("cpu", "cuda"):
        train(device, flow.optim.SGD, tmp_path, lr=0.0)
    wanted, found = (files_of(tmp_path / device / "0-1") for device in ("cpu", "cuda"))
    assert wanted and found == wanted


def test_gradients_of_several_passes_are_added_up(tmp_path: Path) -> None:
    (_, wanted), (_, found) = (
        train(device, flow.optim.Adagrad, tmp_path, passes=3, lr=0.1) for device in ("cpu", "cuda")
    )
    np.testing.assert_allclose(found[-1], wanted[-1], rtol=1e-5)


def test_first_values_are_those_of_the_host_to_the_bit(tmp_path: Path) -> None:
    initial = InitialRows(11, [LAYOUTS, LAYOUTS[::-1]], (0.25, 0.5))
    options = one.make_device_mem_store_options(str(tmp_path), 5000)
    rng = np.random.default_rng(0)
    keys = np.unique(rng.integers(0, 2**64, 4000, np.uint64))
    tables = rng.integers(0, 2, keys.size).astype(np.int32)
    with open_store(
        options, key_type="uint64", line_size=initial.line_size, initial=initial
    ) as store:
        tier = store.on_device(cupy)
        assert tier is not None
        found = np.empty((keys.size, initial.line_size), np.float32)
        store.get(keys, tables, found)
    wanted = np.empty_like(found)
    initial.fill(keys, tables, wanted)
    np.testing.assert_array_equal(found, wanted)


def test_rows_move_to_the_device_and_to_a_snapshot(tmp_path: Path) -> None:
    store = one.make_device_mem_store_options(str(tmp_path), 2000)
    rows = embedding(WIDTH, TABLES, store_options=store, size_factor=1)
    first, second = batches(2)
    wanted = rows(flow.tensor(first)).detach().numpy()
    rows.save_snapshot("before")
    rows = rows.to("cuda")
    x = flow.tensor(first, device="cuda")
    np.testing.assert_array_equal(rows(x).detach().cpu().numpy(), wanted)
    optimizer = flow.optim.SGD(rows.parameters(), lr=0.5)
    rows(x).sum().backward()
    optimizer.step()
    rows(flow.tensor(second, device="cuda"))
    trained, count = rows(x).detach().cpu().numpy(), rows.statistics()["rows"]
    assert (trained < wanted).all()
    rows.save_snapshot("after")
    rows.load_snapshot("before")
    np.testing.assert_array_equal(rows(x).detach().cpu().numpy(), wanted)
    rows.load_snapshot("after")
    np.testing.assert_array_equal(rows(x).detach().cpu().numpy(), trained)
    assert rows.statistics()["rows"] == count
    np.testing.assert_array_equal(rows.to("cpu")(flow.tensor(first)).detach().numpy(), trained)


def test_more_ids_than_the_capacity_are_refused_as_on_the_host() -> None:
    said = []
    for device in ("cpu", "cuda"):
        rows = embedding(4, 1, capacity=10).to(device)
        for low in (0, 3, 6):
            rows(flow.tensor(np.arange(low, low + 4), device=device))
        with pytest.raises(RowStoreError, match="10 rows are there and 2 new ids") as caught:
            rows(flow.tensor(np.arange(8, 12), device=device))
        said.append(str(caught.value).split(": ", 1)[-1])
        rows(flow.tensor(np.arange(10), device=device))
        fresh = embedding(4, 1)(flow.tensor(np.arange(12))).detach().numpy()
        rows.eval()
        found = rows(flow.tensor(np.arange(12), device=device)).detach().cpu().numpy()
        np.testing.assert_array_equal(found, fresh)
        assert rows.statistics()["rows"] == 10
    assert said[0] == said[1]


def test_ids_that_no_table_takes_are_told_of_by_the_next_call() -> None:
    rows = embedding(4, 2).to("cuda")
    found = rows(flow.tensor(np.array([[1, -3]]), device="cuda"))
    assert not found.detach().cpu().numpy()[0, 1].any()
    ids = flow.tensor(np.array([1, 2]), device="cuda")
    with pytest.raises(PositionError, match="the id -3 is negative"):
        rows.statistics()
    rows(ids, flow.tensor(np.array([0, -1]), device="cuda"))
    with pytest.raises(PositionError, match="a table id is -1, but there are 2 tables"):
        rows.statistics()
    assert rows.statistics()["rows"] == 1


def test_a_table_that_is_larger_than_the_memory_says_so() -> None:
    rows = embedding(64, 1, capacity=10**12).to("cuda")
    with pytest.raises(RowStoreError, match=r"GiB of the memory of the GPU.*lower `capacity`"):
        rows(flow.tensor(np.arange(3), device="cuda"))


def test_a_cache_that_is_larger_than_the_memory_says_so(tmp_path: Path) -> None:
    store = one.make_cached_host_mem_store_options(10**9, str(tmp_path), 10)
    rows = embedding(4, 1, store_options=store).to("cuda")
    with pytest.raises(RowStoreError, match=r"GiB of the memory of the GPU.*`cache_budget_mb`"):
        rows(flow.tensor(np.arange(3), device="cuda"))


def test_gradients_that_overflow_change_nothing() -> None:
    rows = embedding(4, 1, size_factor=1).to("cuda")
    ids = flow.tensor(np.arange(6), device="cuda")
    optimizer = flow.optim.SGD(rows.parameters(), lr=1.0)
    scaler = flow.amp.GradScaler(init_scale=2.0, growth_interval=1000)
    before = rows(ids).detach().cpu().numpy()
    for factor in (float("inf"), 1.0):
        scaler.scale((rows(ids) * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    np.testing.assert_allclose(rows(ids).detach().cpu().numpy(), before - 1, rtol=1e-6)


@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize("kind", [flow.optim.Adagrad, one.SmartDecayAdam])
def test_rows_behind_a_cache_are_those_of_the_host(kind: Any, tier: str, tmp_path: Path) -> None:
    (here, wanted), (there, found) = (
        train(device, kind, tmp_path, tier=tier, lr=0.1) for device in ("cpu", "cuda")
    )
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=1e-6)
    counts, others = here.statistics(), there.statistics()
    for name in ("ids", "distinct", "updated", "rows", "lookups", "created"):
        assert others[name] == counts[name], name
    assert others["device_hits"] and others["evicted"]
    x = flow.tensor(batches(1)[0])
    last = here(x).detach().numpy()
    near = {"rtol": 2e-5, "atol": 5e-6}
    np.testing.assert_allclose(there(x.to("cuda")).detach().cpu().numpy(), last, **near)
    there.save_snapshot("last")
    for device in ("cuda", "cpu"):
        rows = there.to(device)
        rows.load_snapshot("last")
        np.testing.assert_allclose(rows(x.to(device)).detach().cpu().numpy(), last, **near)


def test_a_cache_holds_what_it_has_room_for(tmp_path: Path) -> None:
    store = one.make_cached_host_mem_store_options(1, str(tmp_path), 2000, size_factor=1)
    rows = embedding(4, 1, store_options=store).to("cuda")
    optimizer = flow.optim.SGD(rows.parameters(), lr=1.0)
    ids = flow.tensor(np.arange(100), device="cuda")
    first = rows(ids)
    first.sum().backward()
    optimizer.step()
    before = first.detach().cpu().numpy()
    np.testing.assert_array_equal(rows(ids).detach().cpu().numpy(), before - 1)
    counted = rows.statistics()
    assert counted["device_hits"] == 200 and counted["created"] == 100
    assert not counted["memory_hits"] and not counted["evicted"]
    rows.eval()
    rows(flow.tensor(np.arange(50, 150), device="cuda"))
    assert rows.statistics()["rows"] == 100
    np.testing.assert_array_equal(rows.to("cpu")(ids.cpu()).detach().numpy(), before - 1)


def test_ids_for_which_a_cached_store_has_no_room_are_refused(tmp_path: Path) -> None:
    store = one.make_cached_host_mem_store_options(1, str(tmp_path), 10, size_factor=1)
    rows = embedding(4, 1, store_options=store).to("cuda")
    known = flow.tensor(np.arange(8), device="cuda")
    wanted = rows(known).detach().cpu().numpy()
    for _ in range(2):
        with pytest.raises(RowStoreError, match="8 rows are there and 3 new ids"):
            rows(flow.tensor(np.arange(5, 11), device="cuda"))
    np.testing.assert_array_equal(rows(known).detach().cpu().numpy(), wanted)
    assert rows.statistics()["rows"] == 8


def test_rows_that_cannot_be_written_back_stay_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = embedding(4, 1, store_options=stored("host", tmp_path), size_factor=1).to("cuda")
    optimizer = flow.optim.SGD(rows.parameters(), lr=1.0)
    ids = flow.tensor(np.arange(20), device="cuda")
    first = rows(ids)
    first.sum().backward()
    optimizer.step()
    wanted, store = first.detach().cpu().numpy() - 1, rows.one_embedding.rows.store
    with monkeypatch.context() as patch:
        patch.setattr(store._cache, "_write", refuse)
        with pytest.raises(RowStoreError, match="the disk is full"):
            rows(flow.tensor(np.arange(100, 130), device="cuda"))
    np.testing.assert_array_equal(rows(ids).detach().cpu().numpy(), wanted)
    rows(flow.tensor(np.arange(100, 130), device="cuda"))
    np.testing.assert_array_equal(rows(ids).detach().cpu().numpy(), wanted)


def refuse(*_: object) -> None:
    raise RowStoreError("the disk is full")
