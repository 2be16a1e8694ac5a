"""Folders of shards are verified through a small buffer, before memory is taken for tensors."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.errors import CheckpointError
from oneflow.core.op import Box
from oneflow.io import verify
from oneflow.io.checksum import MODULUS, checksum
from oneflow.io.load_shards import verify_shards
from oneflow.io.manifest import read_manifest
from oneflow.io.shard_reader import ShardReader
from oneflow.io.verify import _pieces, _sums

HERE = flow.placement("cpu", [0])


def saved(folder: Path, **shapes: tuple[int, ...]) -> Path:
    rng = np.random.default_rng(0)
    arrays = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    tensors = {
        n: flow.tensor(a).to_global(placement=HERE, sbp=flow.sbp.broadcast)
        for n, a in arrays.items()
    }
    flow.save(tensors, folder / "saved")
    return folder / "saved"


def flip(folder: Path, at: int) -> None:
    (shard,) = folder.glob("shard-*")
    data = bytearray(shard.read_bytes())
    data[at] ^= 1
    shard.write_bytes(data)


@pytest.mark.parametrize("shape", [(1, 7, 5), (13,), (3, 1, 1, 11), (), (1, 1)])
@pytest.mark.parametrize("most", [1, 4, 100])
def test_pieces_are_runs_that_cover_a_box_in_order(shape: tuple[int, ...], most: int) -> None:
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    begin = np.arange(10, 10 + len(shape))
    found = []
    for box in _pieces(Box(tuple(begin.tolist()), tuple((begin + shape).tolist())), most):
        corners = zip((box.starts - begin).tolist(), (box.stops - begin).tolist(), strict=True)
        at = tuple(slice(start, stop) for start, stop in corners)
        assert numbers[at].size <= most
        found += numbers[at].reshape(-1).tolist()
    assert found == list(range(numbers.size))


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_the_shares_of_ranks_add_up(
    tmp_path: Path, num_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "PIECE_NBYTES", 64)
    folder = saved(tmp_path, a=(9, 7), b=(40,), c=(), d=(2, 3, 5), e=(0, 4))
    manifest, _ = read_manifest(folder)
    reader = ShardReader(folder, manifest)
    shares = [_sums(reader, manifest, rank, num_ranks) for rank in range(num_ranks)]
    reader.close()
    wanted = [p.digest for s in manifest.tensors.values() for p in s.parts]
    assert [sum(s) % MODULUS for s in zip(*shares, strict=True)] == wanted
    assert checksum(np.zeros((2, 2), np.float32), (0, 0)) == 0  # so damage cannot hide in zeros


def test_damage_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to verify nor to load: only the buffer and the arithmetic on it."""
    monkeypatch.setattr(verify, "PIECE_NBYTES", 64 << 10)
    folder = saved(tmp_path, large=(1024, 1024), small=(3,))
    verify_shards(folder)
    np.testing.assert_array_equal(flow.load(folder)["small"].shape, (3,))
    flip(folder, -9)
    for use in (verify_shards, flow.load, lambda path: flow.load(path, global_src_rank=0)):
        tracemalloc.start()
        with pytest.raises(CheckpointError, match=r"is damaged: .* of tensor 't\d'"):
            use(folder)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2 << 20  # of 4 MiB


def test_a_header_that_others_read_otherwise_is_damage(tmp_path: Path) -> None:
    """The manifest alone would do for us, but not for other readers of safetensors."""
    folder = saved(tmp_path, first=(3, 2), second=(4,), empty=(0, 5))
    (shard,) = folder.glob("shard-*")
    for at in range(8 + int.from_bytes(shard.read_bytes()[:8], "little")):
        flip(folder, at)
        for use in (verify_shards, flow.load):
            with pytest.raises(CheckpointError, match=r"is damaged|bytes of a header"):
                use(folder)
        flip(folder, at)
    assert flow.load(folder)["empty"].shape == (0, 5)


def test_a_folder_without_manifest_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        verify_shards(tmp_path)
