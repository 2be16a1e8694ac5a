"""Reads a folder of shards: each rank only the bytes of its own part, for any layout."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from oneflow.boxing.boxes import shard_box
from oneflow.core.errors import CheckpointError, InternalError
from oneflow.core.op import Box
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp, Sbp, Split
from oneflow.distributed.world import world
from oneflow.io.all_or_none import AllOrNone
from oneflow.io.assemble import MapLocation, as_layout, assemble, moved, names_in
from oneflow.io.checksum import MODULUS
from oneflow.io.files import AnyPath
from oneflow.io.manifest import (
    MANIFEST_FILE,
    Manifest,
    Stored,
    read_manifest,
)
from oneflow.io.safe_names import Names
from oneflow.io.shard_reader import ShardReader
from oneflow.io.verify import verify_alone, verify_digests
from oneflow.kernels.array import Array
from oneflow.kernels.cuda_device import gpu_count
from oneflow.tensor.eager_global import check_placement, empty_shard, to_device
from oneflow.tensor.tensor import Tensor, wrap, wrap_global

Layout = tuple[Placement, NdSbp]


def load_shards(path: AnyPath, map_location: MapLocation, names: Names | None = None) -> Any:
    """The object, with global tensors; all ranks of the world call it. See `load`.

    Raises CheckpointError on all ranks, before anything is allocated, if the manifest, the size of
    a file or a digest is wrong.
    """
    pact = AllOrNone(f'Cannot load file "{path}"', "load of a folder")
    manifest, has_gpus = _agreed_manifest(pact, Path(path))
    choose = _layout_chooser(map_location, has_gpus)
    load = _Load(pact, Path(path), manifest, lambda name: choose(manifest.tensors[name]))
    try:
        verify_digests(pact, load.reader, manifest)
        return load.run(map_location, names)
    finally:
        load.reader.close()


def verify_shards(path: AnyPath) -> None:
    """Whether all of a folder of shards is as it was written; all ranks of the world call it, each
    reads a share of it, and nothing is kept.

    Raises CheckpointError on all ranks if the manifest, the size of a file or a digest is wrong.
    """
    pact = AllOrNone(f'Cannot load file "{path}"', "check of a folder")
    manifest, _ = _agreed_manifest(pact, Path(path))
    reader = ShardReader(Path(path), manifest)
    try:
        verify_digests(pact, reader, manifest)
    finally:
        reader.close()


def load_parts(
    path: AnyPath,
    layouts_of: Callable[[Manifest], Mapping[str, Layout]],
    place_of: Callable[[str], Array | None],
) -> tuple[Any, dict[str, Array]]:
    """The tree's form (see io/tree.py) and this rank's part of each tensor by its name there; all
    ranks of the world call it, after `verify_shards`.

    layouts_of: where each tensor is wanted; it may raise for a checkpoint of something else.
    place_of: by name in the tree the array that this rank's part is read into; None: a new one.
    Raises CheckpointError as `load_shards` does, also if other bytes are read than were verified.
    """
    pact = AllOrNone(f'Cannot load file "{path}"', "load of parts of a folder")
    manifest, _ = _agreed_manifest(pact, Path(path))
    layouts = pact.attempt(lambda: layouts_of(manifest))
    pact.meet()
    load = _Load(pact, Path(path), manifest, (layouts or {}).get)
    try:
        return manifest.form, load.read(place_of)
    finally:
        load.reader.close()


def _agreed_manifest(pact: AllOrNone, folder: Path) -> tuple[Manifest, bool]:
    """The manifest that all ranks see, and whether all have the GPUs that it asks for."""
    found = pact.attempt(lambda: _checked_manifest(folder))
    heard = pact.meet(None if found is None else [found[1], _gpus_needed(found[0])])
    for rank, (digest, _) in enumerate(heard):
        if digest != heard[0][0]:
            raise CheckpointError(
                f"{pact.what}: rank {rank} finds another manifest there than rank 0; all ranks "
                "must load from one file system that they share, while nobody saves to it"
            )
    assert found is not None  # the meeting would have failed
    return found[0], all(gpus for _, gpus in heard)


class _Load:
    """One load in progress on this rank. layout_of: where a stored tensor is wanted, by name."""

    def __init__(
        self,
        pact: AllOrNone,
        folder: Path,
        manifest: Manifest,
        layout_of: Callable[[str], Layout | None],
    ) -> None:
        self.pact, self.manifest = pact, manifest
        self.reader = ShardReader(folder, manifest)
        tensors, arrays = names_in(manifest.form)
        self.layouts = {name: layout_of(name) for name in tensors}
        self.layouts |= dict.fromkeys(n for n in arrays if n not in self.layouts)
        self.boxes = {name: self._box(name) for name in self.layouts}

    def _box(self, name: str) -> Box | None:
        """Return the box that this rank reads of a tensor."""
        shape, layout = self.manifest.tensors[name].shape, self.layouts[name]
        if layout is None:
            return Box((0,) * len(shape), shape)
        placement, nd_sbp = layout
        if self.pact.rank not in placement:
            return None
        box = shard_box(shape, nd_sbp, placement, self.pact.rank)
        return box if box.is_first else None

    def read(self, place_of: Callable[[str], Array | None] = lambda _: None) -> dict[str, Array]:
        """This rank's parts, by name; verified by all ranks together."""

        def read(name: str, box: Box) -> Array:
            return self.reader.read(name, box, place_of(name))

        wanted = [(name, box) for name, box in self.boxes.items() if box is not None]
        self.pact.attempt(lambda: self.reader.check_files(wanted))
        self.pact.meet()
        arrays = {n: self.pact.attempt(partial(read, n, box)) for n, box in wanted}
        self.pact.meet()
        self._check_digests()
        return {n: a for n, a in arrays.items() if a is not None}

    def run(self, map_location: MapLocation, names: Names | None) -> Any:
        read = self.read()
        if as_layout(map_location, None):  # global tensors were read where they are wanted
            make = partial(self._tensor, read, map_location)
            return assemble(self.manifest.form, make, read.__getitem__, None, names)
        make = partial(self._tensor, read, None)
        return assemble(self.manifest.form, make, read.__getitem__, map_location, names)

    def _tensor(self, arrays: dict[str, Array], placed: MapLocation, name: str) -> Tensor:
        stored, layout = self.manifest.tensors[name], self.layouts[name]
        if layout is None:
            return moved(wrap(arrays[name]), placed)
        placement, nd_sbp = layout
        array = arrays.get(name)
        rank = self.pact.rank
        if rank not in placement:
            shard = empty_shard(stored.type, placement)
        else:
            if array is None:  # of partial sums the first rank has the value, the others zeros
                shape = shard_box(stored.shape, nd_sbp, placement, rank).shape
                array = np.zeros(shape, stored.dtype)
            shard = to_device(array, placement.type)
        return wrap_global(shard, stored.type, placement, nd_sbp)

    def _check_digests(self) -> None:
        """Add up the checksums of all ranks' reads: each part must have been read whole, and as
        often as there are copies."""
        mine = [s for name in self.layouts for s in self.reader.sums(name)]
        sums = np.array(mine, np.uint64)
        if self.pact.world_size > 1 and sums.size:
            sums = world().everyone.all_reduce(sums, what=f"digests of a load, {sums.size}")
        found = iter(sums.tolist())
        for name, layout in self.layouts.items():
            copies = self.pact.world_size if layout is None else _num_copies(layout)
            for part in self.manifest.tensors[name].parts:
                if next(found) != part.digest * copies % MODULUS:
                    raise self.reader.damaged(name, part)


class WholeShards:
    """A folder of shards read by one process alone, all of each tensor (see io/sources.py)."""

    def __init__(self, folder: Path) -> None:
        try:
            self._manifest, _ = _checked_manifest(folder)
        except CheckpointError as error:
            raise CheckpointError(f'Cannot load file "{folder}": {error}') from error
        self._reader = ShardReader(folder, self._manifest)
        try:
            self._reader.check_files((n, _whole(s)) for n, s in self._manifest.tensors.items())
        except CheckpointError:
            self.close()
            raise
        self.form = self._manifest.form
        self.shapes = {n: (s.dtype, s.shape) for n, s in self._manifest.tensors.items()}

    def verify(self) -> None:
        """Reads all of it once, in small pieces. Raises CheckpointError."""
        verify_alone(self._reader, self._manifest)

    def read(self, name: str) -> Array:
        stored = self._manifest.tensors[name]
        array = self._reader.read(name, _whole(stored))
        for part, found in zip(stored.parts, self._reader.sums(name), strict=True):
            if part.digest != found:
                raise self._reader.damaged(name, part)
        return array

    def close(self) -> None:
        self._reader.close()


def _whole(stored: Stored) -> Box:
    return Box((0,) * len(stored.shape), stored.shape)


def _checked_manifest(folder: Path) -> tuple[Manifest, str]:
    """Read the manifest, with a tree that names the tensors that are there. Raises CheckpointError,
    naming it.
    """
    manifest, digest = read_manifest(folder)
    try:
        _check_names(manifest)
    except CheckpointError as error:
        raise CheckpointError(f"{folder / MANIFEST_FILE}: {error}") from error
    return manifest, digest


def _check_names(manifest: Manifest) -> None:
    for name in itertools.chain(*names_in(manifest.form)):
        if name not in manifest.tensors:
            raise CheckpointError(f"the tree names tensor {name!r}, of which nothing is known")


# ---- layouts -------------------------------------------------------------------------------------


def _gpus_needed(manifest: Manifest) -> bool:
    """Whether this rank has the GPU that the saved placements ask for; True if they ask for
    none."""
    kinds = {s.layout[0].type for s in manifest.tensors.values() if s.layout is not None}
    if kinds <= {"cpu"}:
        return True
    return gpu_count() > 0


def _layout_chooser(map_location: MapLocation, has_gpus: bool) -> Callable[[Stored], Layout | None]:
    """Return the function that says where a stored tensor is wanted. Raises PlacementError if this
    world has no such place.
    """
    asked = as_layout(map_location, None)
    if asked is not None:
        check_placement(asked[0])

    def choose(stored: Stored) -> Layout | None:
        if stored.layout is None:
            return None
        if asked is None:
            return default_layout(stored, world().world_size, has_gpus)
        if isinstance(map_location, Placement):
            return map_location, sbp_on(map_location, stored.layout[1], stored.shape)
        return asked

    return choose


def default_layout(stored: Stored, world_size: int, has_gpus: bool = True) -> Layout:
    """The saved layout if this world has its ranks; else all ranks in a row, each with a part of
    dim 0, or with a copy if there were only copies."""
    if stored.layout is None:
        raise InternalError("load: a layout for a tensor that is not global")
    placement, nd_sbp = stored.layout
    kind = placement.type if has_gpus else "cpu"
    if placement.rank_ids[-1] < world_size:
        return Placement(kind, placement.ranks), nd_sbp
    everyone = Placement(kind, list(range(world_size)))
    return everyone, (_cut_or_copied(nd_sbp, stored.shape),)


def sbp_on(placement: Placement, nd_sbp: NdSbp, shape: tuple[int, ...]) -> NdSbp:
    """Return how a tensor saved as `nd_sbp` lies on a placement that the user chose: alike if that
    has as many hierarchy axes, else as `default_layout` says along the first axis.
    """
    if len(nd_sbp) == placement.ndim:
        return nd_sbp
    return (_cut_or_copied(nd_sbp, shape), *(BROADCAST,) * (placement.ndim - 1))


def _cut_or_copied(nd_sbp: NdSbp, shape: tuple[int, ...]) -> Sbp:
    return Split(0) if shape and not all(s.is_broadcast for s in nd_sbp) else BROADCAST


def _num_copies(layout: Layout) -> int:
    placement, nd_sbp = layout
    axes = zip(nd_sbp, placement.hierarchy, strict=True)
    return math.prod(n for s, n in axes if s.is_broadcast)
