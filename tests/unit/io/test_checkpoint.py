"""save and load: round trips, damaged files, and files that would run code."""

from __future__ import annotations

import collections
import functools
import io
import json
import math
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.errors import CheckpointError


def test_round_trip(tmp_path: Path) -> None:
    shared = flow.randn(3, 4)
    obj = {
        "a": shared,
        "again": [shared, (1, 2.5, None, True, "x")],
        3: flow.Size([1, 2]),
        "nan": math.nan,
        "dtype": flow.float16,
        "bytes": b"\x00\xff",
        "bf16": flow.ones(3, dtype=flow.bfloat16),
        "empty": flow.ones(0, 3),
        "scalar": flow.tensor(3),
        "parameter": flow.ones(2, requires_grad=True),
        "ordered": collections.OrderedDict(z=1, a=2),
        "array": np.arange(3),
        "place": flow.placement("cpu", [0]),
        "sbp": flow.sbp.split(1),
    }
    flow.save(obj, tmp_path / "x")
    back = flow.load(tmp_path / "x")
    assert list(back) == list(obj) and flow.equal(back["a"], shared)
    assert back["a"] is back["again"][0] and back["again"][1] == (1, 2.5, None, True, "x")
    assert back["parameter"].requires_grad and math.isnan(back["nan"])
    for key in (3, "dtype", "bytes", "ordered", "place", "sbp"):
        assert back[key] == obj[key] and type(back[key]) is type(obj[key])
    assert back["bf16"].dtype is flow.bfloat16 and back["empty"].shape == (0, 3)


def test_folder_buffer_and_safetensors(tmp_path: Path) -> None:
    flow.save({"w": flow.ones(2)}, tmp_path / "folder", save_as_external_data=True)
    assert flow.load(tmp_path / "folder")["w"].tolist() == [1, 1]
    buffer = io.BytesIO()
    flow.save(flow.ones(2), buffer)
    buffer.seek(0)
    assert flow.load(buffer).tolist() == [1, 1]
    import safetensors.numpy as library

    flow.save({"w": flow.ones(2)}, tmp_path / "x")
    (array,) = library.load_file(tmp_path / "x").values()
    assert array.tolist() == [1, 1]


def test_what_has_no_form_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"\['model'\]"):
        flow.save({"model": iter(())}, io.BytesIO())
    nested: list[Any] = []
    for _ in range(300):
        nested = [nested]
    with pytest.raises(CheckpointError, match="nested"):
        flow.save(nested, io.BytesIO())


def test_damaged_files_are_refused() -> None:
    buffer = io.BytesIO()
    flow.save({"w": flow.ones(4)}, buffer)
    good = buffer.getvalue()
    for bad in (
        b"",
        good[:5],
        good[:40],
        good[:-1],
        good + b"x",
        struct.pack("<Q", 1 << 60) + good[8:],
    ):
        with pytest.raises(CheckpointError):
            flow.load(io.BytesIO(bad))
    (size,) = struct.unpack("<Q", good[:8])
    header = json.loads(good[8 : 8 + size])
    for change in (
        {"shape": [1 << 40]},
        {"data_offsets": [0, 1 << 50]},
        {"dtype": "X"},
        {"shape": [-4]},
    ):
        text = json.dumps({**header, "t0": {**header["t0"], **change}}).encode()
        with pytest.raises(CheckpointError):
            flow.load(io.BytesIO(struct.pack("<Q", len(text)) + text + good[8 + size :]))


class Evil:
    def __reduce__(self) -> Any:
        return eval, ("pytest.fail('code of a checkpoint was run')",)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_cannot_run_code(protocol: int) -> None:
    for obj in (Evil(), {"protocol_version": 1, "oneflow": None, "data": [Evil()]}):
        with pytest.raises(CheckpointError, match="eval"):
            flow.load(io.BytesIO(pickle.dumps(obj, protocol)))


def test_upstream_pickles_are_read() -> None:
    content = {
        "w": np.ones((2, 3), np.float32),
        "n": [1, (2.5, "x")],
        "s": {1, 2},
        "f": np.float32(2),
    }
    for protocol in (2, 3, 4, 5):
        data = pickle.dumps({"protocol_version": 1, "oneflow": None, "data": content}, protocol)
        if protocol == 5:
            with pytest.raises(CheckpointError) if b"_frombuffer" in data else _nothing():
                flow.load(io.BytesIO(data))
            continue
        back = flow.load(io.BytesIO(data))
        assert back["w"].shape == (2, 3) and back["n"] == [1, (2.5, "x")] and back["f"] == 2


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


def test_pytorch_files_are_read() -> None:
    import torch

    model = torch.nn.Linear(2, 3)
    obj = {
        "sd": model.state_dict(),
        "t": torch.arange(6.0).reshape(2, 3).t(),
        "bf": torch.ones(2, dtype=torch.bfloat16),
        "p": torch.nn.Parameter(torch.ones(2)),
        "d": torch.float16,
        "size": torch.Size([1]),
        "opt": torch.optim.Adam(model.parameters()).state_dict(),
    }
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    buffer.seek(0)
    back = flow.load(buffer)
    np.testing.assert_array_equal(back["sd"]["weight"].numpy(), model.weight.detach().numpy())
    assert back["t"].tolist() == [[0, 3], [1, 4], [2, 5]] and back["d"] is flow.float16
    assert (
        back["p"].requires_grad
        and back["size"] == flow.Size([1])
        and back["opt"]["param_groups"][0]["lr"] == 1e-3
    )
    buffer = io.BytesIO()
    torch.save({"x": Evil()}, buffer)
    buffer.seek(0)
    with pytest.raises(CheckpointError, match="eval"):
        flow.load(buffer)


def test_map_location_says_where(tmp_path: Path) -> None:
    here, cut = flow.placement("cpu", [0]), flow.sbp.split(0)
    shared = flow.arange(6.0).reshape(2, 3)
    flow.save({"a": shared, "b": [shared]}, tmp_path / "file")
    whole = flow.arange(6.0, placement=here, sbp=flow.sbp.broadcast).reshape(2, 3)
    flow.save({"a": whole, "b": [whole]}, tmp_path / "folder")
    for name in ("file", "folder"):
        for where in (here, (here, cut), lambda x: (here, cut), lambda x: x + 0.0, "cpu"):
            found = flow.load(tmp_path / name, map_location=where)
            assert found["a"] is found["b"][0] and found["a"].tolist() == shared.tolist()
            if isinstance(where, tuple):
                assert found["a"].sbp == (cut,)
        with pytest.raises(TypeError, match="map_location"):
            flow.load(tmp_path / name, map_location=3)
    with pytest.raises(RuntimeError, match="less than world size"):
        flow.load(tmp_path / "folder", map_location=flow.placement("cpu", [0, 1]))


def test_what_shares_memory_does_so_again(tmp_path: Path) -> None:
    parameter = flow.ones(3, requires_grad=True)
    array = np.zeros(2, np.float32)
    flow.save([parameter, parameter.detach(), flow.from_numpy(array), array], tmp_path / "x")
    one, two, three, four = flow.load(tmp_path / "x")
    assert one.requires_grad and not two.requires_grad
    two.fill_(5)
    four[:] = 7
    assert one.tolist() == [5, 5, 5] and three.tolist() == [7, 7]


def test_no_file_stays_open(tmp_path: Path) -> None:
    place = flow.placement("cpu", [0])
    flow.save(flow.ones(2), tmp_path / "file")
    flow.save(flow.ones(2, placement=place, sbp=flow.sbp.broadcast), tmp_path / "folder")
    (tmp_path / "bad").write_bytes(b"no checkpoint")
    for source in (None, 0):
        for name in ("file", "folder"):
            flow.load(tmp_path / name, source)
        with pytest.raises(CheckpointError, match="bad"):
            flow.load(tmp_path / "bad", source)
    opened = [Path("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
    names = [os.readlink(fd) for fd in opened if fd.is_symlink()]
    assert not [name for name in names if name.startswith(str(tmp_path))]


def test_wide_trees_that_contain_themselves_end() -> None:
    nested: list[Any] = []
    nested += [nested, (nested, nested), nested]
    buffer = io.BytesIO()
    flow.save(nested, buffer)
    buffer.seek(0)
    back = flow.load(buffer)
    assert len(back) == 3 and back[0] is back and back[1][1] is back


def test_a_folder_that_exists_takes_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("stays")
    for value in (1.0, 2.0):
        flow.save({"a": flow.full((2,), value)}, tmp_path)
        assert flow.load(tmp_path)["a"].tolist() == [value, value]
    assert (tmp_path / "other").read_text() == "stays"


def _named(storage: Any, location: str) -> Any:
    assert location == "cpu"
    return storage


@pytest.mark.parametrize(
    "where",
    [
        lambda storage, location: storage,
        lambda storage, location: storage.cpu(),
        lambda storage, location: location,
        lambda storage, location: None,
        lambda x: x,
        lambda x: "cpu",
        _named,
        functools.partial(_named),
        {"cpu": "cpu", "cuda:0": "cpu"},
        {"cuda:1": "cpu"},
    ],
)
def test_map_location_as_pytorchs(where: Any) -> None:
    file = io.BytesIO()
    flow.save({"w": flow.ones(2), "p": flow.nn.Parameter(flow.zeros(1))}, file)
    for keyword in ({}, {"map_location": where}):
        file.seek(0)
        found = flow.load(file, *([] if keyword else [where]), **keyword)
        assert found["w"].tolist() == [1, 1] and found["p"].requires_grad


def test_map_location_moves_to_another_kind_of_device() -> None:
    file = io.BytesIO()
    flow.save(flow.ones(2), file)
    for where in ({"cpu": "meta"}, lambda storage, location: "meta"):
        file.seek(0)
        assert flow.load(file, map_location=where).device.type == "meta"
