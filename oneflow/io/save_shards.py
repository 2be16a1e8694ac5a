"""Saves global tensors into a folder: every rank writes its own part, one rank the manifest.

The previous checkpoint in the folder stays readable until the very last step, which is one rename;
only then its files are taken away. All ranks of the world call it and fail together.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from oneflow.boxing.boxes import shard_box
from oneflow.boxing.transitions import dims_to_split
from oneflow.core.errors import CheckpointError, DesyncError, InternalError
from oneflow.core.json_values import Json
from oneflow.core.log import get_logger
from oneflow.core.op import Box
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp, Split
from oneflow.core.tensor_type import TensorType
from oneflow.io.agree import Named, agree
from oneflow.io.checksum import checksum
from oneflow.io.container import Kind, Writer
from oneflow.io.files import PendingFile, Target, as_open, as_path, sync_folder
from oneflow.io.manifest import (
    MANIFEST_FILE,
    SAVE_ID_KEY,
    Manifest,
    Part,
    Stored,
    left_over,
    shard_name,
)
from oneflow.io.pact import Pact
from oneflow.io.tree import Encoder, Found, global_tensor
from oneflow.kernels.array import Array
from oneflow.tensor.eager_global import relayout, to_host
from oneflow.tensor.tensor import Tensor

log = get_logger(__name__)


FOLDER_FILE = "checkpoint.safetensors"  # of a folder that one rank wrote
_LEADER = 0  # writes the manifest, and what is not global


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
    pact = Pact(f"save to {target}")
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


def _check_same_path(pact: Pact, said: list[Any]) -> None:
    for rank, (path, _) in enumerate(said):
        if path != said[0][0]:
            raise DesyncError(
                f"{pact.what}: rank {rank} saves to {path}, rank 0 to {said[0][0]}; all ranks must "
                "give the same path"
            )


class _Save:
    """One save in progress on this rank."""

    def __init__(self, pact: Pact, folder: Path, save_id: str, named: Named) -> None:
        self.pact, self.folder, self.save_id, self.named = pact, folder, save_id, named
        self.shard = folder / shard_name(save_id, pact.rank)
        self.pending: PendingFile | None = None
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

    def _types(self) -> dict[str, tuple[TensorType, Placement, NdSbp]]:
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
        writer = self.pact.attempt(lambda: self._open(shapes)) if shapes else None
        digests: dict[str, int] = {}
        for name, found in self.named.globals.items():
            shard = _summed(global_tensor(found))
            if name in mine:
                add = partial(_add, writer, digests, name, shard, mine[name].box.starts)
                self.pact.attempt(add)
        for name, array in alone.items():
            add = partial(_add, writer, digests, name, array, (0,) * array.ndim)
            self.pact.attempt(add)
        if writer is None or self.pending is None:
            return None
        nbytes = self.pact.attempt(self.pending.commit)
        places = {n: [writer.offsets[n], f"{d:016x}"] for n, d in digests.items()}
        return {"nbytes": nbytes, "places": places}

    def _open(self, shapes: Mapping[str, Kind]) -> Writer:
        self.pending = PendingFile(self.shard)
        return Writer(self.pending.file, shapes, {SAVE_ID_KEY: self.save_id})

    def _local_values(self) -> dict[str, Array]:
        """Return the values that are not global; one rank writes them, as they are there."""
        if self.pact.rank != _LEADER:
            return {}
        return {n: to_host(f.array) for n, f in self.named.everything.items() if not f.is_global}

    def _commit(self, form: Json, pieces: list[Piece], written: list[Any]) -> None:
        """Looks whether all shards are there, then makes the checkpoint the one of the folder."""
        numbers: dict[int, int] = {}
        files: list[tuple[str, int]] = []
        for rank, said in enumerate(written):
            if said is not None:
                numbers[rank] = len(files)
                files.append((shard_name(self.save_id, rank), said["nbytes"]))
                _check_visible(self.folder / files[-1][0], said["nbytes"], rank)
        sync_folder(self.folder)
        if self.made_folder:
            sync_folder(self.folder.parent)
        tensors = self._stored(pieces, written, numbers)
        data = Manifest(self.save_id, form, tuple(files), tensors).to_bytes()
        pending = PendingFile(self.folder / MANIFEST_FILE)
        try:
            pending.file.write(data)
        except BaseException:
            pending.abort()
            raise
        pending.commit()

    def _stored(
        self, pieces: list[Piece], written: list[Any], numbers: dict[int, int]
    ) -> dict[str, Stored]:
        def part(name: str, box: Box, rank: int) -> Part:
            offset, digest = written[rank]["places"][name]
            return Part(numbers[rank], box, offset, int(digest, 16))

        parts: dict[str, list[Part]] = {name: [] for name in self.named.globals}
        for piece in pieces:
            parts[piece.name].append(part(piece.name, piece.box, piece.writer))
        tensors = {}
        for name, found in self.named.everything.items():
            if found.is_global:
                x = global_tensor(found)
                layout = x.placement, x.sbp
                tensors[name] = Stored(x.meta.shape, x.meta.dtype.np, layout, tuple(parts[name]))
                continue
            array = found.array
            box = Box((0,) * array.ndim, tuple(array.shape))
            all_of_it = (part(name, box, _LEADER),) if array.size else ()
            tensors[name] = Stored(box.shape, array.dtype, None, all_of_it)
        return tensors

    def _remove_older(self) -> None:
        """Takes away what the manifest no longer names: older shards, and a checkpoint that one
        rank wrote here. The new one is complete, so what cannot be removed is only reported."""
        try:
            sync_folder(self.folder)
            old = [n for n in os.listdir(self.folder) if n == FOLDER_FILE]
            for name in [*old, *left_over(os.listdir(self.folder), self.save_id)]:
                (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            log.warning("save to %s: an older checkpoint is still there: %s", self.folder, error)

    def clean_up(self) -> None:
        """Takes away what this rank made, unless the manifest may already name it."""
        try:
            self._remove_own()
        except OSError as error:  # the failure that brought us here is the one to report
            log.warning("%s: what it began is still there: %s", self.pact.what, error)
        self.pact.settle()
        if self.made_folder and self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _remove_own(self) -> None:
        if self.pending is None:
            return
        self.pending.abort()
        if not self.may_be_committed:
            self.shard.unlink(missing_ok=True)


def _add(
    writer: Writer | None, digests: dict[str, int], name: str, part: Array, starts: tuple[int, ...]
) -> None:
    if writer is None:
        raise InternalError(f"save: there is no file to write {name} to")
    array = to_host(part)
    digests[name] = checksum(array, starts)
    writer.add(name, array)


def _dtype(found: Found) -> np.dtype[Any]:
    kind: np.dtype[Any] = global_tensor(found).meta.dtype.np
    return kind


def _check_visible(path: Path, nbytes: int, rank: int) -> None:
    found = path.stat().st_size if path.exists() else None
    if found != nbytes:
        raise CheckpointError(
            f"{path}, which rank {rank} wrote, is not what rank {_LEADER} sees there ({found} "
            f"instead of {nbytes} bytes); all ranks must save to one file system that they share"
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


def plan_pieces(
    types: dict[str, tuple[TensorType, Placement, NdSbp]], world_size: int
) -> list[Piece]:
    """Choose who writes what: of the holders of a box the one with the least to write so far, the
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
