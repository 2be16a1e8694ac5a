"""The manifest of a folder of shards: every damage is an error before anything else is done."""

from __future__ import annotations

import copy
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.errors import CheckpointError
from oneflow.core.metrics import METRICS
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, Split
from oneflow.io import manifest as module
from oneflow.io.load_shards import default_layout, sbp_on
from oneflow.io.manifest import Stored, left_over, parse_manifest, sealed

FIRST, SECOND = (f"shard-{'0' * 16}-0000{i}.safetensors" for i in range(2))
GOOD: dict[str, Any] = {
    "save": "0" * 16,
    "tree": {"list": [{"tensor": "t0", "requires_grad": False}, {"ndarray": "local0"}]},
    "files": [{"name": FIRST, "nbytes": 200}, {"name": SECOND, "nbytes": 150}],
    "tensors": {
        "t0": {
            "shape": [4, 4],
            "dtype": "float32",
            "placement": "cpu[0, 1]",
            "sbp": ["S(0)"],
            "parts": [
                [0, [0, 0], [2, 4], 100, "0" * 16],
                [1, [2, 0], [4, 4], 100, "f" * 16],
            ],
        },
        "local0": {"shape": [3], "dtype": "uint32", "parts": [[0, [0], [3], 132, "0" * 16]]},
    },
}


def changed(change: Callable[[Any], None]) -> bytes:
    content = copy.deepcopy(GOOD)
    change(content)
    return sealed(json.dumps(content).encode())


def at(*keys: Any, value: Any) -> Callable[[Any], None]:
    """Puts a value somewhere into the manifest; value None: takes it away."""

    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        if value is None:
            del content[keys[-1]]
        else:
            content[keys[-1]] = value

    return change


T0 = ("tensors", "t0")
DAMAGES: dict[str, tuple[Callable[[Any], None], str]] = {
    "path out": (at("files", 0, "name", value="../" + FIRST), "no name of a shard"),
    "absolute path": (at("files", 0, "name", value="/etc/passwd"), "no name of a shard"),
    "other file": (at("files", 0, "name", value="checkpoint.manifest.json"), "no name of a shard"),
    "null byte": (at("files", 0, "name", value=FIRST + "\0"), "no name of a shard"),
    "file twice": (at("files", 1, "name", value=FIRST), "named twice"),
    "no files": (at("files", value=None), "no files"),
    "file is text": (at("files", 0, value="x"), "no name"),
    "negative size": (at("files", 0, "nbytes", value=-1), "not a size"),
    "true size": (at("files", 0, "nbytes", value=True), "no nbytes"),
    "file too small": (at("files", 0, "nbytes", value=120), "which has 120"),
    "huge shape": (at(*T0, "shape", value=[1 << 40, 1 << 18]), "gaps in dim 0"),
    "huge size": (at(*T0, "shape", value=[1 << 70, 4]), "not a size"),
    "huge part": (at(*T0, "parts", 0, 2, value=[1 << 61, 4]), "a part"),
    "negative shape": (at(*T0, "shape", value=[-4, 4]), "not a size"),
    "real shape": (at(*T0, "shape", value=[4.0, 4]), "not a size"),
    "many dims": (at(*T0, "shape", value=[1] * 40), "40 dims"),
    "empty but wide": (at(*T0, "shape", value=[0, 1 << 61]), "no array can"),
    "more dims": (at(*T0, "shape", value=[4, 4, 1]), "not a corner"),
    "no shape": (at(*T0, "shape", value=None), "no shape"),
    "dtype": (at(*T0, "dtype", value="float128"), "no dtype"),
    "object dtype": (at(*T0, "dtype", value="object"), "no dtype"),
    "placement": (at(*T0, "placement", value="tpu[0]"), "device type"),
    "placement text": (at(*T0, "placement", value="cpu[0"), "not a placement"),
    "ragged": (at(*T0, "placement", value="cpu[[0, 1], [2]]"), "t0"),
    "no placement": (at(*T0, "placement", value=None), "no placement"),
    "sbp": (at(*T0, "sbp", value=["X"]), "not an SBP"),
    "sbp number": (at(*T0, "sbp", value=[0]), "not an sbp"),
    "sbp axes": (at(*T0, "sbp", value=["B", "B"]), "one per axis"),
    "sbp dim": (at(*T0, "sbp", value=["S(5)"]), "at least 6 dims"),
    "gap": (at(*T0, "parts", 1, value=None), "overlap or leave gaps in dim 0"),
    "no parts": (at(*T0, "parts", value=[]), "gaps"),
    "overlap": (at(*T0, "parts", 1, 1, value=[1, 0]), "overlap or leave gaps in dim 0"),
    "outside": (at(*T0, "parts", 1, 2, value=[5, 4]), "a part"),
    "backwards": (at(*T0, "parts", 1, 1, value=[4, 0]), "a part"),
    "half": (at(*T0, "parts", 1, 2, value=[4, 3]), "in dim 1|not all"),
    "twice": (at(*T0, "parts", 1, 1, value=[0, 0]), "."),
    "file number": (at(*T0, "parts", 1, 0, value=2), "in file 2 of 2"),
    "negative file": (at(*T0, "parts", 1, 0, value=-1), "in file -1"),
    "no part": (at(*T0, "parts", 1, value={"file": 1}), "not a part"),
    "short part": (at(*T0, "parts", 1, value=[1]), "not a part"),
    "offset": (at(*T0, "parts", 1, 3, value=140), "bytes 140 to 172"),
    "in the header": (at(*T0, "parts", 1, 3, value=4), "begins with a header"),
    "negative offset": (at(*T0, "parts", 1, 3, value=-8), "not a size"),
    "shared bytes": (at("tensors", "local0", "parts", 0, 3, value=128), "overlap at byte"),
    "digest": (at(*T0, "parts", 1, 4, value="x" * 16), "not a digest"),
    "digest number": (at(*T0, "parts", 1, 4, value=7), "not a digest"),
    "tensor is text": (at("tensors", "t0", value="x"), "no shape"),
    "no tensors": (at("tensors", value=[]), "no tensors"),
    "no tree": (at("tree", value=None), "no tree"),
    "no save": (at("save", value=None), "no save"),
}


def test_the_good_one_is_read() -> None:
    found = parse_manifest(changed(lambda _: None))
    assert found.files == ((FIRST, 200), (SECOND, 150))
    assert found.tensors["t0"].parts[1].digest == (1 << 64) - 1
    assert parse_manifest(found.to_bytes()) == found


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(name: str) -> None:
    change, text = DAMAGES[name]
    with pytest.raises(CheckpointError, match=text):
        parse_manifest(changed(change))


def test_parts_must_be_a_whole_grid() -> None:
    """Each dim is covered, but a corner is there twice and another not at all."""
    parts = [
        [0, [0, 0], [2, 2], 100, "0" * 16],
        [0, [2, 2], [4, 4], 116, "0" * 16],
        [1, [0, 0], [2, 2], 100, "0" * 16],
        [1, [2, 2], [4, 4], 116, "0" * 16],
    ]
    with pytest.raises(CheckpointError, match="not all different"):
        parse_manifest(changed(at(*T0, "parts", value=parts)))
    with pytest.raises(CheckpointError, match="2 parts are not all"):
        parse_manifest(changed(at(*T0, "parts", value=parts[:2])))


def test_no_byte_may_change() -> None:
    good = changed(lambda _: None)
    for index in range(len(good) - 1):  # the last is a line end
        bad = bytearray(good)
        bad[index] ^= 1
        try:
            found = parse_manifest(bytes(bad))
        except CheckpointError:
            continue
        assert found == parse_manifest(good), index
    for length in range(len(good) - 2):
        with pytest.raises(CheckpointError):
            parse_manifest(good[:length])


def test_other_files_are_no_manifests() -> None:
    for data in (b"", b"[]", b"{}", b'{"format": 1}', b"[" * 100_000, b"\xff\xfe", b"9" * 10_000):
        with pytest.raises(CheckpointError):
            parse_manifest(data)
    with pytest.raises(CheckpointError, match="version 2"):
        parse_manifest(changed(lambda _: None).replace(b'"version":1', b'"version":2'))


# ---- folders -------------------------------------------------------------------------------------


def saved(folder: Path) -> Path:
    """A checkpoint of one rank; returns its shard."""
    x = flow.arange(12.0, placement=Placement("cpu", [0]), sbp=Split(0))
    flow.save({"x": x.reshape(3, 4), "n": 1}, folder)
    (shard,) = folder.glob("shard*")
    return shard


def reseal(folder: Path, change: Callable[[Any], None]) -> None:
    path = folder / "checkpoint.manifest.json"
    content = json.loads(path.read_bytes())["content"]
    change(content)
    path.write_bytes(sealed(json.dumps(content).encode()))


def test_one_process_round_trip_and_replacement(tmp_path: Path) -> None:
    shard = saved(tmp_path / "x")
    found = flow.load(tmp_path / "x")
    assert found["x"].numpy().tolist() == np.arange(12.0).reshape(3, 4).tolist()
    (tmp_path / "x" / ".shard-00000000000000ab-00003.safetensors.abc").write_bytes(b"begun")
    (tmp_path / "x" / "notes.txt").write_bytes(b"the user's")
    again = saved(tmp_path / "x")
    assert shard != again
    assert sorted(os.listdir(tmp_path / "x")) == [
        "checkpoint.manifest.json",
        "notes.txt",
        again.name,
    ]
    flow.save({"x": 2}, tmp_path / "x", save_as_external_data=True)
    assert flow.load(tmp_path / "x") == {"x": 2} and not again.exists()
    saved(tmp_path / "x")
    assert flow.load(tmp_path / "x")["n"] == 1
    import safetensors.numpy as safetensors

    (file,) = (tmp_path / "x").glob("shard*")
    (array,) = safetensors.load_file(file).values()
    assert array.shape == (3, 4)


def refused(folder: Path, text: str) -> None:
    for source in (None, 0):
        with pytest.raises(CheckpointError, match=text) as caught:
            flow.load(folder, source)
        assert str(folder) in str(caught.value)


def test_damaged_shards_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    shard = saved(folder)
    good = shard.read_bytes()
    for index in range(len(good) - 48, len(good)):
        bad = bytearray(good)
        bad[index] ^= 1 << (index % 8)
        shard.write_bytes(bad)
        refused(folder, "another digest")
    for length in (0, 7, len(good) - 1, len(good) + 1):
        shard.write_bytes((good + b"x")[:length])
        refused(folder, f"has {length} bytes")
    shard.unlink()
    refused(folder, "cannot be read")
    outside = tmp_path / "outside"
    outside.write_bytes(good)
    shard.symlink_to(outside)
    refused(folder, "symbolic link")
    shard.unlink()
    shard.mkdir()
    refused(folder, "not a regular file")
    shard.rmdir()
    os.mkfifo(shard)
    refused(folder, "not a regular file")


def test_a_claim_beyond_the_files_is_refused_before_memory_is_asked_for(tmp_path: Path) -> None:
    saved(tmp_path / "x")

    def claim(content: Any) -> None:
        rows = 1 << 40
        content["files"][0]["nbytes"] = rows * 16 + 1000
        tensor = content["tensors"]["t0"]
        tensor["shape"][0] = tensor["parts"][0][2][0] = rows

    reseal(tmp_path / "x", claim)
    refused(tmp_path / "x", "not the 17592186045416 that were written")


def test_a_tree_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "x")
    for tree, text in (
        ({"tensor": "t9"}, "t9"),
        ({"eval": "x"}, "unknown kind"),
        ({"dict": [[1]]}, "not a key"),
        ({"int": "x"}, "not a int"),
        ([], "not a value"),
    ):
        reseal(tmp_path / "x", at("tree", value=tree))
        refused(tmp_path / "x", text)


def test_a_manifest_that_is_no_file_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    saved(tmp_path / "x")
    monkeypatch.setattr(module, "MAX_MANIFEST_NBYTES", 100)
    refused(tmp_path / "x", "more than the 100")
    (tmp_path / "x" / "checkpoint.manifest.json").unlink()
    os.mkfifo(tmp_path / "x" / "checkpoint.manifest.json")
    refused(tmp_path / "x", "not a regular file")


def test_only_the_wanted_is_read(tmp_path: Path) -> None:
    saved(tmp_path / "x")
    before = METRICS.checkpoint_nbytes["read"]
    flow.load(tmp_path / "x")
    manifest = (tmp_path / "x" / "checkpoint.manifest.json").stat().st_size
    assert METRICS.checkpoint_nbytes["read"] - before == manifest + 48


# ---- layouts -------------------------------------------------------------------------------------


def test_layout_in_another_world() -> None:
    def stored(ranks: Any, *nd_sbp: Any, shape: tuple[int, ...] = (8, 8)) -> Stored:
        layout = Placement("cpu", ranks), nd_sbp
        return Stored(shape, np.dtype(np.float32), layout, ())

    four = [0, 1, 2, 3]
    assert default_layout(stored(four, Split(1)), 4) == (Placement("cpu", four), (Split(1),))
    two = Placement("cpu", [0, 1])
    assert default_layout(stored(four, Split(1)), 2) == (two, (Split(0),))
    assert default_layout(stored(four, BROADCAST), 2) == (two, (BROADCAST,))
    assert default_layout(stored(four, PARTIAL, shape=()), 2) == (two, (BROADCAST,))
    grid = stored([[0, 1], [2, 3]], BROADCAST, Split(1))
    assert default_layout(grid, 2) == (two, (Split(0),))
    cuda = Stored((8,), np.dtype(np.float32), (Placement("cuda", four), (Split(0),)), ())
    assert default_layout(cuda, 4, has_gpus=False)[0] == Placement("cpu", four)
    assert sbp_on(two, (Split(1),), (8, 8)) == (Split(1),)
    assert sbp_on(Placement("cpu", [[0, 1]]), (Split(1),), (8, 8)) == (Split(0), BROADCAST)


def test_what_an_older_save_left_is_recognised() -> None:
    own = f"shard-{'a' * 16}-00000.safetensors"
    old = [f"shard-{'b' * 16}-00001.safetensors", f".shard-{'b' * 16}-00001.safetensors.x_1"]
    others = [
        "checkpoint.manifest.json",
        "shard-x-00000.safetensors",
        f"my-{old[0]}",
        f"{old[0]}.bak.gz",
    ]
    assert left_over([own, *old, *others], "a" * 16) == old


# ---- interruptions -------------------------------------------------------------------------------

CALLS = ("fsync", "replace", "chmod", "unlink", "listdir", "stat")


class Stopped(BaseException):
    """Raises as an interrupt from the keyboard does."""


@pytest.mark.parametrize("kind", [OSError, Stopped])
@pytest.mark.parametrize("name", CALLS)
def test_stopped_at_any_call_the_old_or_the_new_one_is_there(
    tmp_path: Path, monkeypatch: Any, name: str, kind: type[BaseException]
) -> None:
    """The n-th call of the file system fails, for every n; never is half a checkpoint found."""
    place = Placement("cpu", [0])
    for number in range(40):
        folder = tmp_path / str(number)
        flow.save({"x": flow.zeros(4, placement=place, sbp=BROADCAST)}, folder)
        real, left = getattr(os, name), [number]

        def fails(*args: Any, real: Any = real, left: list[int] = left, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == -1:
                raise kind(28, "No space left on device")
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, fails)
        try:
            flow.save({"x": flow.ones(4, placement=place, sbp=BROADCAST)}, folder)
            is_done = True
        except (CheckpointError, Stopped):
            is_done = False
        monkeypatch.undo()
        value = flow.load(folder)["x"].tolist()
        assert value in ([0.0] * 4, [1.0] * 4) and (value[0] == 1 or not is_done)
        if not is_done and kind is OSError and name != "unlink":
            assert value[0] == 0 and len(os.listdir(folder)) == 2, os.listdir(folder)
        if left[0] >= 0:
            break
    assert left[0] >= 0, "some call was not tried"


@pytest.mark.parametrize("sharded", [False, True])
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, sharded: bool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    place = Placement("cpu", [0])
    x = flow.ones(64, 64, placement=place, sbp=BROADCAST) if sharded else flow.ones(64, 64)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises((CheckpointError, OSError), match="File too large"):
            flow.save(x, tmp_path / "x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []
