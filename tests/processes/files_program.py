"""Runs on the ranks of test_sharded_files.py: `files_program.py SCENE FOLDER`; exits 0 if all is
right. One process can also import it to load the files of ranks."""

from __future__ import annotations

import itertools
import math
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import oneflow as flow
from oneflow import nn
from oneflow.boxing.boxes import shard_box
from oneflow.core.errors import CheckpointError, DesyncError
from oneflow.core.metrics import METRICS
from tests.support.refusing import refuses

RANK, SIZE = flow.env.get_rank(), flow.env.get_world_size()
EVERYONE = flow.placement("cpu", list(range(SIZE)))
S0, S1, B, P = flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast, flow.sbp.partial_sum
DTYPES = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "int64": np.int64,
    "int8": np.int8,
    "bool": np.bool_,
    "complex64": np.complex64,
}
SHAPES = {
    "matrix": (6, 8),
    "few": (2, 3),
    "cube": (5, 4, 7),
    "empty": (0, 3),
    "point": (),
    "one": (1,),
}


def values(shape: tuple[int, ...], dtype: str) -> Any:
    numbers = np.random.default_rng(len(shape)).integers(-9, 9, shape)
    factor = 1 + 2j if dtype == "complex64" else 1
    return np.asarray(numbers * factor).astype(DTYPES[dtype])


def bits(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def same(x: Any, expected: Any) -> None:
    """All ranks see the expected values, to the bit."""
    if x.is_global:
        x = x.to_global(placement=EVERYONE, sbp=B).to_local()
    got = x.data._array
    assert got.shape == expected.shape and got.dtype == expected.dtype, (got.dtype, expected.dtype)
    assert np.array_equal(bits(got), bits(expected)), (got, expected)


def layouts() -> list[tuple[Any, tuple[Any, ...]]]:
    places = [EVERYONE, flow.placement("cpu", [SIZE - 1])]
    if SIZE == 4:
        places.append(flow.placement("cpu", [[0, 1], [2, 3]]))
    return [
        (place, sbp)
        for place in places
        for sbp in itertools.product((S0, S1, B, P), repeat=place.ranks.ndim)
    ]


def everything() -> dict[str, Any]:
    """name -> (shape, dtype, placement, sbp) of tensors of all kinds."""
    kinds = {}
    for (name, shape), dtype, (i, (place, sbp)) in itertools.product(
        SHAPES.items(), DTYPES, enumerate(layouts())
    ):
        too_few_dims = any(s.is_split and s.dim >= len(shape) for s in sbp)
        odd_sum = dtype == "bool" and any(s.is_partial for s in sbp)
        is_sampled = dtype == "float32" or (i < 4 and (name == "matrix" or dtype == "bfloat16"))
        if not too_few_dims and not odd_sum and is_sampled:
            kinds[f"{name} {dtype} {i}"] = shape, dtype, place, sbp
    return kinds


def tree() -> dict[str, Any]:
    """Tensors of all kinds and layouts among plain values; one is tied; sums are real ones."""
    tensors = {
        name: flow.tensor(values(shape, dtype), placement=place, sbp=list(sbp))
        if dtype != "bfloat16"
        else flow.tensor(
            values(shape, dtype).astype(np.float32), placement=place, sbp=list(sbp)
        ).to(flow.bfloat16)
        for name, (shape, dtype, place, sbp) in everything().items()
    }
    tied = flow.ones(4, 4, placement=EVERYONE, sbp=S0)
    return {
        "tensors": tensors,
        "sum": flow.full((3, 4), float(RANK)).to_global(EVERYONE, P),
        "nested": [{"a": (1, 2.5, None, True, "x")}, math.inf, b"\x00\xff"],
        "tied": [tied, tied.detach(), {"again": tied}],
        "learned": flow.ones(3, placement=EVERYONE, sbp=B, requires_grad=True),
        "local": flow.arange(5) + RANK,
        "state": np.arange(4, dtype=np.uint32) + RANK,
        "rank": RANK,
        "layout": (EVERYONE, S1),
    }


def check_tree(found: Any, size: int) -> None:
    """size: of the world that saved. The kinds are those that this world would make."""
    for name, x in found["tensors"].items():
        shape, dtype = SHAPES[name.split()[0]], name.split()[1]
        same(x, values(shape, dtype))
    same(found["sum"], np.full((3, 4), sum(range(size)), np.float32))
    assert found["nested"] == [{"a": (1, 2.5, None, True, "x")}, math.inf, b"\x00\xff"]
    first, second, third = found["tied"][0], found["tied"][1], found["tied"][2]["again"]
    assert first is second is third
    assert found["learned"].requires_grad and not first.requires_grad
    same(found["local"], np.arange(5))
    assert found["state"].dtype == np.uint32 and found["state"].tolist() == [0, 1, 2, 3]
    assert found["rank"] == 0 and found["layout"][1] == S1


def round_trips(folder: Path) -> None:
    """Saved and loaded by the same ranks: same layouts, same bits; each rank reads its bytes."""
    saved = tree()
    before = METRICS.checkpoint_nbytes.get("write", 0)
    flow.save(saved, folder / "tree")
    written = METRICS.checkpoint_nbytes["write"] - before
    found = flow.load(folder / "tree")
    check_tree(found, SIZE)
    for name, x in found["tensors"].items():
        was = saved["tensors"][name]
        assert (x.placement, x.sbp) == (was.placement, was.sbp), (name, x.placement, x.sbp)
    all_of_it = sum(written for written in flow.comm.all_gather_object(written))
    wholes = [values(*kind[:2]).nbytes for kind in everything().values()]
    assert all_of_it == sum(wholes) + 48 + 64 + 12 + 40 + 16, (all_of_it, sum(wholes))
    for place in {place: None for place, _ in layouts()}:
        moved = flow.load(folder / "tree", map_location=place)
        check_tree(moved, SIZE)
        assert moved["tied"][0].placement == place
    check_tree(flow.load(folder / "tree", map_location=lambda x: to_everyone(x)), SIZE)
    check_tree(flow.load(folder / "tree", global_src_rank=SIZE - 1), SIZE)
    one_rank(folder, saved)
    only_its_bytes(folder)
    resumed(folder, f"model{SIZE}")


def to_everyone(x: Any) -> Any:
    return x.to_global(placement=EVERYONE, sbp=S0 if x.ndim else B) if x.is_global else x


def one_rank(folder: Path, saved: dict[str, Any]) -> None:
    """One rank writes or reads for all: a file, a folder, a file of PyTorch."""
    flow.save(saved, folder / f"file{RANK}", global_dst_rank=1)
    flow.save(saved, folder / "external", global_dst_rank=0, save_as_external_data=True)
    here = [p.name for p in sorted(folder.glob("file*"))]
    assert here == ["file1"], here
    for name, source in (("file1", 0), ("external", SIZE - 1)):
        path = folder / name if source == RANK else "no such file"
        before = METRICS.checkpoint_nbytes.get("read", 0)
        found = flow.load(path, global_src_rank=source)
        if source != RANK:
            assert METRICS.checkpoint_nbytes.get("read", 0) == before
        x = found["tensors"]["matrix float32 0"]
        assert x.placement == flow.placement("cpu", [source]) and x.sbp == (B,)
        same(x, values((6, 8), "float32"))
        assert found["state"].tolist() == [0 + (name == "file1") + i for i in range(4)]
        moved = flow.load(path, source, map_location=EVERYONE)
        same(moved["tensors"]["matrix float32 0"], values((6, 8), "float32"))
        assert moved["tied"][0] is moved["tied"][2]["again"]
    torch_file(folder)


def torch_file(folder: Path) -> None:
    """Load a file that the test has saved with PyTorch: its import would take each rank seconds."""
    found = flow.load(folder / "torch", global_src_rank=0, map_location=EVERYONE)
    same(found["w"], np.arange(6, dtype=np.float32).reshape(2, 3))
    assert found["n"] == 3


def only_its_bytes(folder: Path) -> None:
    """A rank reads the manifest and exactly the bytes of its own part, in any layout."""
    shape = (48, 40)
    x = flow.tensor(values(shape, "float32"), placement=EVERYONE, sbp=S0)
    flow.save([x], folder / "big")
    manifest = (folder / "big" / "checkpoint.manifest.json").stat().st_size
    for place, sbp in layouts():
        before = METRICS.checkpoint_nbytes["read"]
        (found,) = flow.load(folder / "big", map_location=(place, sbp))
        read = METRICS.checkpoint_nbytes["read"] - before
        assert (found.placement, found.sbp) == (place, sbp)
        mine = 0
        if RANK in place:
            box = shard_box(shape, sbp, place, RANK)
            mine = 4 * math.prod(box.shape) * box.is_first
        assert read == manifest + mine, (read, manifest, mine, place, sbp)
        same(found, values(shape, "float32"))


def make_model() -> tuple[Any, Any]:
    flow.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3)).to_global(EVERYONE, B)
    model[0].weight.data = model[0].weight.detach().to_global(sbp=S0 if SIZE > 2 else S1)
    return model, flow.optim.Adam(model.parameters(), lr=0.1)


def train(model: Any, optimizer: Any, steps: int) -> None:
    data = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    for _ in range(steps):
        out = model(flow.tensor(data, placement=EVERYONE, sbp=B))
        optimizer.zero_grad()
        (out * out).mean().backward()
        optimizer.step()


def weights(model: Any, optimizer: Any) -> dict[str, Any]:
    """Every value of a model and its optimizer, by name."""
    found = {name: whole(x) for name, x in model.state_dict().items()}
    for number, states in optimizer.state_dict()["state"].items():
        if isinstance(states, dict):
            tensors = {k: v for k, v in states.items() if isinstance(v, flow.Tensor)}
            found |= {f"{number} {k}": whole(v) for k, v in tensors.items() if v.is_global}
    return found


def whole(x: Any) -> Any:
    return x.to_global(placement=EVERYONE, sbp=B).to_local().numpy().copy()


def resumed(folder: Path, name: str) -> None:
    """Model and optimizer as nested dicts; values come back to the bit."""
    model, optimizer = make_model()
    train(model, optimizer, 2)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 2}
    flow.save(state, folder / name)
    if RANK == 0:
        np.savez(folder / f"{name}.npz", **weights(model, optimizer))
    else:
        weights(model, optimizer)
    flow.comm.barrier()
    resume(folder, name)


def resume(folder: Path, name: str) -> None:
    model, optimizer = make_model()
    train(model, optimizer, 1)
    state = flow.load(folder / name)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    assert state["step"] == 2
    expected = np.load(folder / f"{name}.npz")
    found = weights(model, optimizer)
    assert sorted(found) == sorted(expected.files), (sorted(found), sorted(expected.files))
    for key in found:
        assert np.array_equal(bits(found[key]), bits(expected[key])), key
    train(model, optimizer, 1)


def elsewhere(folder: Path) -> None:
    """Loads the files of another number of ranks."""
    for other in (2, 4):
        if other != SIZE:
            found = flow.load(folder / str(other) / "tree")
            check_tree(found, other)
            resume(folder / str(other), f"model{other}")
            if other > SIZE:
                x = found["tensors"]["matrix float32 1"]
                assert (x.placement, x.sbp) == (EVERYONE, (S0,)), (x.placement, x.sbp)


# ---- failures ------------------------------------------------------------------------------------


def failures(folder: Path) -> None:
    """Fails on one rank: an error on all, the older checkpoint stays, nothing is left."""
    last = SIZE - 1
    x = flow.ones(64, 64, placement=EVERYONE, sbp=S0)
    flow.save({"x": x}, folder / "good")
    flow.comm.barrier()
    files = sorted(os.listdir(folder / "good"))

    def still_good() -> None:
        flow.comm.barrier()
        assert sorted(os.listdir(folder / "good")) == files, os.listdir(folder / "good")
        same(flow.load(folder / "good")["x"], np.ones((64, 64), np.float32))

    def with_full_disk(rank: int, work: Any) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        if rank == RANK:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            work()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    new = {"x": x + 1.0, "y": x.to_global(sbp=P), "z": x}
    for rank in (0, last):
        for sharded in (True, False):
            to = {} if sharded else {"global_dst_rank": rank, "save_as_external_data": True}
            who = f"rank {rank} failed"
            with_full_disk(
                rank,
                lambda to=to, who=who: refuses(
                    CheckpointError, who, lambda: flow.save(new, folder / "good", **to)
                ),
            )
            still_good()
    with_full_disk(
        last,
        lambda: refuses(
            CheckpointError, f"rank {last} failed", lambda: flow.save(new, folder / "fresh")
        ),
    )
    flow.comm.barrier()
    assert not (folder / "fresh").exists(), os.listdir(folder / "fresh")
    wrong(folder, new, last)
    damaged(folder, last)
    still_good()


def wrong(folder: Path, new: Any, last: int) -> None:
    """Mistakes of the script."""
    own = folder / ("good" if last != RANK else "other")
    refuses(DesyncError, f"rank {last} saves to", lambda: flow.save(new, own))
    odd = {**new, "more": new["x"]} if last == RANK else new
    refuses(DesyncError, "other global tensors", lambda: flow.save(odd, folder / "good"))
    odd = {**new, "odd": iter(())} if last == RANK else new
    refuses(CheckpointError, f"rank {last} failed", lambda: flow.save(odd, folder / "good"))
    refuses(CheckpointError, "['odd']", lambda: flow.save(odd, folder / "good", 0))
    (folder / "plain").write_text("x") if RANK == 0 else None
    refuses(CheckpointError, "rank 0 failed", lambda: flow.save(new, folder / "plain" / "x"))
    refuses(CheckpointError, "rank 1 failed", lambda: flow.save(new, folder / "no" / "x", 1))
    refuses(CheckpointError, "FileNotFound", lambda: flow.load(folder / "nothing", last))
    refuses(CheckpointError, "a path", lambda: flow.save(new, sys.stdout.buffer))
    refuses(RuntimeError, "less than world size", lambda: flow.save(new, folder / "x", SIZE))
    assert not (folder / "other").exists() and not (folder / "no").exists()


def damaged(folder: Path, last: int) -> None:
    """Damage that only one rank can see is an error on all."""
    x = flow.arange(64.0 * 64, placement=EVERYONE, sbp=S0).reshape(64, 64)

    def fresh() -> list[Path]:
        flow.save({"x": x}, folder / "bad")
        flow.comm.barrier()
        shards = sorted((folder / "bad").glob("shard*"))
        flow.comm.barrier()
        return shards

    def refused(text: str) -> None:
        flow.comm.barrier()
        refuses(CheckpointError, text, lambda: flow.load(folder / "bad"))
        refuses(CheckpointError, text, lambda: flow.load(folder / "bad", 1))
        refuses(CheckpointError, text, lambda: flow.load(folder / "bad", 1, map_location=EVERYONE))
        flow.comm.barrier()

    shard = fresh()[last]
    if RANK == 0:
        data = bytearray(shard.read_bytes())
        data[-5] ^= 4
        shard.write_bytes(data)
    refused("is damaged")
    first, *_, other = fresh()
    if RANK == 0:
        (folder / "kept").write_bytes(first.read_bytes())
        os.replace(other, first)
        os.replace(folder / "kept", other)
    refused("is damaged")
    shard = fresh()[last]
    os.truncate(shard, 200) if RANK == 0 else None
    refused("has 200 bytes")
    shard = fresh()[last]
    shard.unlink() if RANK == 0 else None
    refused(shard.name)
    fresh()
    assert len(list((folder / "bad").iterdir())) == SIZE + 1
    if RANK == 0:
        (folder / "bad" / "checkpoint.manifest.json").write_text("{")
    refused("checkpoint.manifest.json")


def killed(folder: Path) -> None:
    """One rank dies while it writes; the older checkpoint is still there."""
    x = flow.ones(64, 64, placement=EVERYONE, sbp=S0)
    flow.save({"x": x}, folder / "good")
    flow.comm.barrier()
    if RANK == 1:
        from oneflow.io import save_shards

        save_shards.ShardFile.add = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    flow.save({"x": x + 1.0}, folder / "good")


SCENES = {s.__name__: s for s in (round_trips, elsewhere, failures, killed)}

if __name__ == "__main__":
    SCENES[sys.argv[1]](Path(sys.argv[2]))
    print("done", flush=True)
