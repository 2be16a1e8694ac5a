"""The table of contents of a folder of shards: read, checked, written.

The folder holds this file and one safetensors file per rank that wrote. A part of a tensor is a
box: [start, stop) along every dim. Everything in the file is judged before anything is allocated or
any other file is opened, since a checkpoint may come from a stranger or from a broken disk.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from oneflow.boxing.boxes import check_layout
from oneflow.core.dtype import dtype_of
from oneflow.core.errors import CheckpointError, OneFlowError
from oneflow.core.json_values import Json
from oneflow.core.op import Box
from oneflow.core.placement import Placement, parse_placement
from oneflow.core.sbp import NdSbp, parse_sbp
from oneflow.core.tensor_type import TensorType
from oneflow.io.container import dtype_named, is_possible
from oneflow.io.files import OpenFile, read_bytes

T = TypeVar("T")

MANIFEST_FILE = "checkpoint.manifest.json"
SAVE_ID_KEY = "oneflow_shard"
"""The key in each shard's metadata that says of which save it is."""
FORMAT = "oneflow sharded checkpoint"
VERSION = 1
MAX_MANIFEST_NBYTES = 256 << 20
_SHARD_NAME = re.compile(r"shard-([0-9a-f]{16})-(\d{5,9})\.safetensors")
_LEFT_OVER = re.compile(r"\.?shard-([0-9a-f]{16})-\d{5,9}\.safetensors(\.\w+)?")
_HEAD = '{{"format":"{}","version":{},"digest":"{}",\n"content":'
_CONTENT = b'"content":'


@dataclass(frozen=True)
class Part:
    """A box of a tensor in a file. offset: of its first byte in the file; digest: its checksum."""

    file: int
    box: Box
    offset: int
    digest: int


@dataclass(frozen=True)
class Stored:
    """A tensor or an array. layout: where it was when it was saved; None if it was not global."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    layout: tuple[Placement, NdSbp] | None
    parts: tuple[Part, ...]

    @property
    def type(self) -> TensorType:
        """Raises DTypeError for an array of elements that tensors do not have."""
        return TensorType(self.shape, dtype_of(self.dtype))


@dataclass(frozen=True)
class Manifest:
    """The manifest of a checkpoint.

    save_id: a number of the save. form: the tree (see io/tree.py). files: name and size.
    """

    save_id: str
    form: Json
    files: tuple[tuple[str, int], ...]
    tensors: dict[str, Stored]

    def to_bytes(self) -> bytes:
        """The file's content. Raises CheckpointError if it would be too long to be read."""
        content = {
            "save": self.save_id,
            "tree": self.form,
            "files": [{"name": name, "nbytes": nbytes} for name, nbytes in self.files],
            "tensors": {name: _tensor_form(stored) for name, stored in self.tensors.items()},
        }
        data = sealed(json.dumps(content, separators=(",", ":")).encode())
        if len(data) > MAX_MANIFEST_NBYTES:
            raise CheckpointError(
                f"save: the manifest needs {len(data)} bytes, more than the {MAX_MANIFEST_NBYTES} "
                "that are read; save in several checkpoints"
            )
        return data


def sealed(content: bytes) -> bytes:
    """The whole file around its content, with the content's digest."""
    head = _HEAD.format(FORMAT, VERSION, hashlib.sha256(content).hexdigest())
    return head.encode() + content + b"}\n"


def shard_name(save_id: str, rank: int) -> str:
    """The name of the file that `rank` writes."""
    return f"shard-{save_id}-{rank:05d}.safetensors"


def left_over(names: Iterable[str], save_id: str) -> list[str]:
    """Choose, from the names in a folder, those of shards, whole or begun, of other saves than
    `save_id`.
    """
    found = ((name, _LEFT_OVER.fullmatch(name)) for name in names)
    return [name for name, match in found if match and match.group(1) != save_id]


def _tensor_form(stored: Stored) -> dict[str, Any]:
    form: dict[str, Any] = {"shape": stored.shape, "dtype": stored.dtype.name}
    if stored.layout is not None:
        placement, nd_sbp = stored.layout
        form |= {"placement": placement.notation, "sbp": [str(s) for s in nd_sbp]}
    form["parts"] = [
        [p.file, p.box.starts, p.box.stops, p.offset, f"{p.digest:016x}"] for p in stored.parts
    ]
    return form


# ---- reading -------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """The checked manifest of a folder, and the digest of the file, to compare between ranks.

    Raises CheckpointError for every defect.
    """
    path = folder / MANIFEST_FILE
    try:
        file = OpenFile(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        if file.nbytes > MAX_MANIFEST_NBYTES:
            raise CheckpointError(
                f"{path} has {file.nbytes} bytes, more than the {MAX_MANIFEST_NBYTES} of a manifest"
            )
        data = read_bytes(file, 0, file.nbytes)
    try:
        return parse_manifest(data), hashlib.sha256(data).hexdigest()
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def parse_manifest(data: bytes) -> Manifest:
    """The inverse of `Manifest.to_bytes`. Raises CheckpointError for anything that does not fit."""
    content = _unsealed(data)
    files = _files(_of(content, "files", list, "the manifest"))
    tensors = {
        name: _stored(name, entry, files)
        for name, entry in _of(content, "tensors", dict, "the manifest").items()
    }
    _check_bytes(files, tensors)
    save_id = _of(content, "save", str, "the manifest")
    if "tree" not in content:
        raise CheckpointError("the manifest has no tree")
    return Manifest(save_id, content["tree"], tuple(files), tensors)


def _unsealed(data: bytes) -> dict[str, Any]:
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError("it is not JSON, or only a part of it is there") from error
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise CheckpointError("it is not the manifest of a checkpoint")
    if whole.get("version") != VERSION:
        raise CheckpointError(
            f"it is of version {str(whole.get('version'))[:40]}, this program reads {VERSION}"
        )
    inner = data.rstrip()[data.find(_CONTENT) + len(_CONTENT) : -1]
    if whole.get("digest") != hashlib.sha256(inner).hexdigest():
        raise CheckpointError("its digest is wrong: it was changed or damaged")
    content: dict[str, Any] = _of(whole, "content", dict, "the manifest")
    return content


def _files(entries: list[Any]) -> list[tuple[str, int]]:
    files = []
    for entry in entries:
        name = _of(entry, "name", str, "a file")
        nbytes = _size(_of(entry, "nbytes", int, f"file {name[:80]!r}"), f"file {name[:80]!r}")
        if not _SHARD_NAME.fullmatch(name):
            raise CheckpointError(
                f"{name[:80]!r} is no name of a shard: it must be shard-<16 hexadecimal digits>-"
                "<rank>.safetensors, in the folder itself"
            )
        files.append((name, nbytes))
    if len({name for name, _ in files}) != len(files):
        raise CheckpointError("a file is named twice")
    return files


def _stored(name: str, entry: Json, files: Sequence[tuple[str, int]]) -> Stored:
    who = f"tensor {name[:80]!r}"
    shape = tuple(_size(n, who) for n in _of(entry, "shape", list, who))
    code = _of(entry, "dtype", str, who)
    dtype = dtype_named(code)
    if dtype is None:
        raise CheckpointError(f"{who} has elements of {code[:40]!r}, which is no dtype")
    if not is_possible(shape, dtype):
        raise CheckpointError(f"{who} has {len(shape)} dims, or dims that no array can have")
    layout = _layout(entry, shape, who)
    parts = tuple(_part(p, shape, dtype, files, who) for p in _of(entry, "parts", list, who))
    _check_grid(shape, parts, who)
    return Stored(shape, dtype, layout, parts)


def _layout(entry: Json, shape: tuple[int, ...], who: str) -> tuple[Placement, NdSbp] | None:
    if isinstance(entry, dict) and "placement" not in entry and "sbp" not in entry:
        return None
    place, cut = _of(entry, "placement", str, who), _of(entry, "sbp", list, who)
    try:
        placement = parse_placement(place)
        nd_sbp = tuple(parse_sbp(_text(s, who)) for s in cut)
        check_layout(shape, nd_sbp, placement)
    except (OneFlowError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{who}: {error}") from error
    return placement, nd_sbp


def _part(
    entry: Json,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    files: Sequence[tuple[str, int]],
    who: str,
) -> Part:
    if not isinstance(entry, list) or len(entry) != 5:
        raise CheckpointError(f"{who}: not a part: {str(entry)[:80]}")
    file, starts, stops, offset, digest = entry
    if type(file) is not int or not 0 <= file < len(files):
        raise CheckpointError(f"{who}: a part in file {str(file)[:40]} of {len(files)}")
    box = _box(starts, stops, shape, who)
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{16}", digest):
        raise CheckpointError(f"{who}: not a digest: {str(digest)[:80]}")
    begin = _size(offset, who)
    end = begin + math.prod(box.shape) * dtype.itemsize
    if begin < 8 or end > files[file][1]:
        raise CheckpointError(
            f"{who}: bytes {begin} to {end} of {files[file][0]}, which has {files[file][1]} and "
            "begins with a header"
        )
    return Part(file, box, begin, int(digest, 16))


def _box(starts: Json, stops: Json, shape: tuple[int, ...], who: str) -> Box:
    first, last = _corner(starts, shape, who), _corner(stops, shape, who)
    if not all(a < b <= n for a, b, n in zip(first, last, shape, strict=True)):
        raise CheckpointError(f"{who}: a part {starts} to {stops} of {list(shape)}")
    return Box(first, last)


def _corner(bounds: Json, shape: tuple[int, ...], who: str) -> tuple[int, ...]:
    if not isinstance(bounds, list) or len(bounds) != len(shape):
        raise CheckpointError(f"{who}: not a corner of {list(shape)}: {str(bounds)[:80]}")
    return tuple(_size(n, who) for n in bounds)


def _check_grid(shape: tuple[int, ...], parts: Sequence[Part], who: str) -> None:
    """The parts must be all cells of a grid: then they cover the tensor once, and the check takes
    no longer than reading them."""
    if 0 in shape:
        if parts:
            raise CheckpointError(f"{who} has no elements, but parts")
        return
    num_cells = 1
    for dim, size in enumerate(shape):
        cuts = sorted({(p.box.starts[dim], p.box.stops[dim]) for p in parts})
        ends = [0, *(stop for _, stop in cuts)]
        if [start for start, _ in cuts] != ends[:-1] or ends[-1] != size:
            raise CheckpointError(
                f"{who}: its parts overlap or leave gaps in dim {dim} of {list(shape)}"
            )
        num_cells *= len(cuts)
    if len({(p.box.starts, p.box.stops) for p in parts}) != len(parts) or len(parts) != num_cells:
        raise CheckpointError(
            f"{who}: {len(parts)} parts are not all of {list(shape)}, or not all different"
        )


def _check_bytes(files: Sequence[tuple[str, int]], tensors: dict[str, Stored]) -> None:
    """No byte of a file may belong to two parts: so nothing larger than the files is claimed."""
    taken: list[list[tuple[int, int, str]]] = [[] for _ in files]
    for name, stored in tensors.items():
        for part in stored.parts:
            nbytes = math.prod(part.box.shape) * stored.dtype.itemsize
            taken[part.file].append((part.offset, part.offset + nbytes, name))
    for (file, _), ranges in zip(files, taken, strict=True):
        ranges.sort()
        for (_, end, first), (start, _, second) in pairwise(ranges):
            if start < end:
                raise CheckpointError(
                    f"{file}: tensors {first[:80]!r} and {second[:80]!r} overlap at byte {start}"
                )


# ---- small checks --------------------------------------------------------------------------------


def _of(entry: Json, key: str, kind: type[T], who: str) -> T:
    found = entry.get(key) if isinstance(entry, dict) else None
    if type(found) is not kind:
        raise CheckpointError(f"{who} has no {key} that is a {kind.__name__}")
    return found


def _size(value: Json, who: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise CheckpointError(f"{who}: not a size or an offset: {str(value)[:40]}")
    return value


def _text(value: Json, who: str) -> str:
    if type(value) is not str:
        raise CheckpointError(f"{who}: not an sbp: {str(value)[:40]}")
    return value
