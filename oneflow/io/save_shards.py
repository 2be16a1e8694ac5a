"""Saves global tensors into a folder: every rank writes its own part, one rank the manifest.

The previous checkpoint in the folder stays readable until the very last step, which is one rename;
only then its files are taken away. All ranks of the world call it and fail together.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from oneflow.boxing.boxes import shard_box
from oneflow.boxing.transitions import dims_to_split
from oneflow.core.errors import CheckpointError, DesyncError
from oneflow.core.folders import sync_folder
from oneflow.core.json_values import Json
from oneflow.core.log import get_logger
from oneflow.core.op import Box
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp, Split
from oneflow.core.tensor_type import TensorType
from oneflow.core.whole_files import PendingFile, write_whole
from oneflow.io.agree import Named, agree
from oneflow.io.all_or_none import AllOrNone
from oneflow.io.checksum import checksum
from oneflow.io.container import Kind, Writer
from oneflow.io.files import Target, as_open, as_path
from oneflow.io.manifest import (
    MANIFEST_FILE,
    SAVE_ID_KEY,
    Manifest,
    Part,
    Stored,
    left_over,
    shard_name,
)
from oneflow.io.tree import Encoder, Found, global_tensor
from oneflow.kernels.array import Array
from oneflow.tensor.eager_global import relayout, to_host
from oneflow.tensor.tensor import Tensor

log = get_logger(__name__)


FOLDER_FILE = "checkpoint.safetensors"  # of a folder that one rank wrote
_LEADER = 0  # writes the manifest, and what is not global


Layout: TypeAlias = tuple[TensorType, Placement, NdSbp]
"""The type of a global tensor, and how it lies."""


@dataclass(frozen=True)
class Piece:
    """A box of a tensor and the rank that writes it."""

    name: str
    box: Box
    writer: int


def save_shards(tree: Encoder, target: Target) -> None:
    """Save a tree from all ranks.

    target: the folder, made if it is missing. Raises CheckpointError on all ranks.
    """
    pact = AllOrNone(f"save to {target}", "save")
    folder = pact.attempt(lambda: _folder_of(target))
    save_id = secrets.token_hex(8)
    named = agree(pact, tree, [str(folder), save_id])
    _check_same_path(pact, named.said)
    save = _Save(pact, folder or Path(), named.said[_LEADER][1], named)
    try:
        save.run(tree.form)
    except BaseException:
        save.clean_up()
        raise


def _folder_of(target: Target) -> Path:
    if as_open(target) is not None:
        raise CheckpointError(
            "save: global tensors are written by each rank into a folder, for which a path is "
            "needed and not an open file; or give global_dst_rank, the one rank that writes"
        )
    return Path(os.path.abspath(as_path(target)))


def _check_same_path(pact: AllOrNone, said: list[Any]) -> None:
    for rank, (path, _) in enumerate(said):
        if path != said[0][0]:
            raise DesyncError(
                f"{pact.what}: rank {rank} saves to {path}, rank 0 to {said[0][0]}; all ranks must "
                "give the same path"
            )


class _Save:
    """One save in progress on this rank."""

    def __init__(self, pact: AllOrNone, folder: Path, save_id: str, named: Named) -> None:
        self.pact, self.folder, self.save_id, self.named = pact, folder, save_id, named
        self.shard: ShardFile | None = None
        self.may_be_committed = False
        self.made_folder = False

    def run(self, form: Json) -> None:
        pact = self.pact
        if pact.rank == _LEADER:
            pact.attempt(self._make_folder)
        pact.meet()
        pieces = plan_pieces(self._types(), pact.world_size)
        offsets = self._write(pieces)
        written = pact.meet(offsets)
        self.may_be_committed = True  # from here on the leader alone knows
        if pact.rank == _LEADER:
            pact.attempt(lambda: self._commit(form, pieces, written))
            self.may_be_committed = pact.error is None
        try:
            pact.meet()
        except CheckpointError:
            self.may_be_committed = False
            raise
        if pact.rank == _LEADER:
            self._remove_older()

    def _make_folder(self) -> None:
        self.made_folder = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)

    def _types(self) -> dict[str, Layout]:
        """Return, for each global tensor, its type and how it lies when it is written."""
        result = {}
        for name, found in self.named.globals.items():
            x = global_tensor(found)
            result[name] = x.meta, x.placement, stored_sbp(x.meta, x.sbp, x.placement)
        return result

    def _write(self, pieces: list[Piece]) -> dict[str, Any] | None:
        """Writes this rank's file. Returns its size and where in it everything begins."""
        mine = {p.name: p for p in pieces if p.writer == self.pact.rank}
        shapes = {name: (_dtype(self.named.globals[name]), p.box.shape) for name, p in mine.items()}
        alone = self._local_values()
        shapes |= {name: (array.dtype, array.shape) for name, array in alone.items()}
        if shapes:
            path = self.folder / shard_name(self.save_id, self.pact.rank)
            self.shard = self.pact.attempt(lambda: ShardFile(path, self.save_id, shapes))
        for name, found in self.named.globals.items():
            part = _summed(global_tensor(found))
            if self.shard is not None and name in mine:
                self.pact.attempt(partial(self.shard.add, name, part, mine[name].box.starts))
        if self.shard is None:
            return None
        for name, array in alone.items():
            self.pact.attempt(partial(self.shard.add, name, array, (0,) * array.ndim))
        return self.pact.attempt(self.shard.commit)

    def _local_values(self) -> dict[str, Array]:
        """Return the values that are not global; one rank writes them, as they are there."""
        if self.pact.rank != _LEADER:
            return {}
        return {n: to_host(f.array) for n, f in self.named.everything.items() if not f.is_global}

    def _commit(self, form: Json, pieces: list[Piece], said: list[Any]) -> None:
        """Looks whether all shards are there, then makes the checkpoint the one of the folder."""
        written = Written(self.folder, self.save_id, said)
        sync_folder(self.folder)
        if self.made_folder:
            sync_folder(self.folder.parent)
        data = written.manifest(form, self._stored(pieces, written))
        write_whole(self.folder / MANIFEST_FILE, data)

    def _stored(self, pieces: list[Piece], written: Written) -> dict[str, Stored]:
        layouts = {n: layout_of(f) for n, f in self.named.globals.items()}
        tensors = written.tensors(pieces, layouts)
        for name, found in self.named.everything.items():
            if not found.is_global:
                array = found.array
                box = Box((0,) * array.ndim, tuple(array.shape))
                all_of_it = (written.part(name, box, _LEADER),) if array.size else ()
                tensors[name] = Stored(box.shape, array.dtype, None, all_of_it)
        return tensors

    def _remove_older(self) -> None:
        """Remove the files that the manifest no longer names: older shards, and a checkpoint that
        one rank wrote here. The new one is complete, so a file that cannot be removed is only
        reported.
        """
        try:
            sync_folder(self.folder)
            old = [n for n in os.listdir(self.folder) if n == FOLDER_FILE]
            for name in [*old, *left_over(os.listdir(self.folder), self.save_id)]:
                (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            log.warning("save to %s: an older checkpoint is still there: %s", self.folder, error)

    def clean_up(self) -> None:
        """Remove the files of this rank, unless the manifest may already name them."""
        try:
            self._remove_own()
        except OSError as error:  # the failure that brought us here is the one to report
            log.warning("%s: what it began is still there: %s", self.pact.what, error)
        self.pact.settle()
        if self.made_folder and self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _remove_own(self) -> None:
        if self.shard is None:
            return
        self.shard.abort()
        if not self.may_be_committed:
            self.shard.path.unlink(missing_ok=True)


# ---- the files of a save -------------------------------------------------------------------------


class ShardFile:
    """The file of one rank, which is there whole or not at all.

    shapes: of the pieces to come, in order. Raises OSError, or CheckpointError for too many.
    """

    def __init__(self, path: Path, save_id: str, shapes: Mapping[str, Kind]) -> None:
        self.path, self._digests = path, dict[str, int]()
        self._pending = PendingFile(path)
        try:
            self._writer = Writer(self._pending.file, shapes, {SAVE_ID_KEY: save_id})
        except BaseException:
            self.abort()
            raise

    def add(self, name: str, part: Array, starts: tuple[int, ...]) -> None:
        """Write a part of a tensor. starts: of its box."""
        array = to_host(part)
        self._digests[name] = checksum(array, starts)
        self._writer.add(name, array)

    def commit(self) -> dict[str, Any]:
        """Make it visible. Returns its size, and where in it everything begins, for `Written`."""
        nbytes, offsets = self._pending.commit(), self._writer.offsets
        places = {n: [offsets[n], f"{d:016x}"] for n, d in self._digests.items()}
        return {"nbytes": nbytes, "places": places}

    def abort(self) -> None:
        self._pending.abort()


class Written:
    """The files of a save as one rank finds them, when all ranks have written theirs.

    said: the result of each rank's `ShardFile.commit`; empty, if it had nothing to write. hint: for
    users of ranks that write to different folders. Raises CheckpointError if they do.
    """

    def __init__(self, folder: Path, save_id: str, said: Sequence[Any], hint: str = "") -> None:
        self._save_id, self._said = save_id, said
        self._files: list[tuple[str, int]] = []
        self._numbers: dict[int, int] = {}
        for rank, told in enumerate(said):
            if told:
                self._numbers[rank] = len(self._files)
                self._files.append((shard_name(save_id, rank), told["nbytes"]))
                _check_visible(folder / self._files[-1][0], told["nbytes"], rank, hint)

    def part(self, name: str, box: Box, rank: int) -> Part:
        """Find a box of a tensor, in the file of the rank that wrote it."""
        offset, digest = self._said[rank]["places"][name]
        return Part(self._numbers[rank], box, offset, int(digest, 16))

    def tensors(self, pieces: Sequence[Piece], layouts: Mapping[str, Layout]) -> dict[str, Stored]:
        """Describe global tensors. layouts: of all, in the order of the manifest."""
        parts: dict[str, list[Part]] = {name: [] for name in layouts}
        for piece in pieces:
            parts[piece.name].append(self.part(piece.name, piece.box, piece.writer))
        return {
            name: Stored(type_.shape, type_.dtype.np, (placement, nd_sbp), tuple(parts[name]))
            for name, (type_, placement, nd_sbp) in layouts.items()
        }

    def manifest(self, form: Json, tensors: dict[str, Stored]) -> bytes:
        """The content of the manifest. Raises CheckpointError if it would be too long."""
        return Manifest(self._save_id, form, tuple(self._files), tensors).to_bytes()


def _dtype(found: Found) -> np.dtype[Any]:
    kind: np.dtype[Any] = global_tensor(found).meta.dtype.np
    return kind


def layout_of(found: Found) -> Layout:
    """The type and the present layout of a global tensor."""
    x = global_tensor(found)
    return x.meta, x.placement, x.sbp


def _check_visible(path: Path, nbytes: int, rank: int, hint: str) -> None:
    found = path.stat().st_size if path.exists() else None
    if found != nbytes:
        raise CheckpointError(
            f"{path}, which rank {rank} wrote, is not what rank {_LEADER} sees there ({found} "
            f"instead of {nbytes} bytes); all ranks must save to one file system that they share"
            f"{hint}"
        )


def _summed(x: Tensor) -> Any:
    """This rank's part as it is written. Partial sums are summed up, which takes all ranks."""
    nd_sbp = stored_sbp(x.meta, x.sbp, x.placement)
    if nd_sbp == x.sbp:
        return x._array
    return relayout(x._array, x.meta, x.sbp, x.placement, nd_sbp, x.placement)


def stored_sbp(type_: TensorType, nd_sbp: NdSbp, placement: Placement) -> NdSbp:
    """`nd_sbp` without partial sums: each rank of such an axis gets a part of the sum."""
    axes = [i for i, s in enumerate(nd_sbp) if s.is_partial]
    if not axes:
        return nd_sbp
    parts = math.prod(placement.hierarchy[i] for i in axes)
    without = tuple(BROADCAST if s.is_partial else s for s in nd_sbp)
    dims = dims_to_split(type_.shape, without, parts) or tuple(range(type_.ndim))
    part = Split(dims[0]) if dims else BROADCAST
    return tuple(part if s.is_partial else s for s in nd_sbp)


def plan_pieces(types: Mapping[str, Layout], world_size: int) -> list[Piece]:
    """Choose the writer of each box: of its holders the one with the least to write so far, the
    first among equals. All ranks plan alike.
    """
    load = [0] * world_size
    pieces = []
    for name, (type_, placement, nd_sbp) in types.items():
        holders: dict[Box, list[int]] = {}
        for rank in placement.rank_ids:
            box = shard_box(type_.shape, nd_sbp, placement, rank)
            if 0 not in box.shape:
                holders.setdefault(box, []).append(rank)
        for box, ranks in holders.items():
            writer = min(ranks, key=load.__getitem__)
            load[writer] += math.prod(box.shape) * int(type_.dtype.bytes)
            pieces.append(Piece(name, box, writer))
    return pieces
