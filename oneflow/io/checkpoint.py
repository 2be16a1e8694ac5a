"""`flow.save` and `flow.load`.

Three ways: a process alone, one rank for all (`global_dst_rank`, `global_src_rank`), or all ranks
together, each its own part (io/save_shards.py, io/load_shards.py).
"""

from __future__ import annotations

import json
import os
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from oneflow.core.dtype import dtype_of
from oneflow.core.folders import sync_folder
from oneflow.core.json_values import Json
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST
from oneflow.core.tensor_type import TensorType
from oneflow.core.whole_files import PendingFile
from oneflow.distributed.world import world
from oneflow.io.agree import agree, named_locally
from oneflow.io.all_or_none import AllOrNone
from oneflow.io.assemble import MapLocation, assemble, mapped
from oneflow.io.container import Writer, dtype_named
from oneflow.io.files import AnyPath, Target, as_open, as_path
from oneflow.io.load_shards import WholeShards, load_shards
from oneflow.io.manifest import MANIFEST_FILE, left_over
from oneflow.io.safe_names import Names
from oneflow.io.save_shards import FOLDER_FILE, save_shards
from oneflow.io.sources import VERSION, Foreign, ObjectSource, Source, is_sharded, open_source
from oneflow.io.tree import Encoder, Found
from oneflow.kernels.array import Array
from oneflow.tensor.eager_global import brought, check_placement, empty_shard, to_host
from oneflow.tensor.tensor import Tensor, wrap, wrap_global

_MEET_NBYTES = 256 << 20
"""Bytes after which the ranks look whether the one that writes still can."""


@runtime_checkable
class Savable(Protocol):
    """An object with a file of its own: `nn.Graph`."""

    def save_job_file(self, path: AnyPath) -> None:
        """Write it to a file."""


def save(
    obj: object,
    path_or_buffer: Target,
    global_dst_rank: int | None = None,
    save_as_external_data: bool = False,
) -> None:
    """Writes containers, plain values, tensors, modules and other objects.

    Without global tensors: to a file, a folder (save_as_external_data, or a path at which there is
    a folder) or an open binary file.
    global_dst_rank: all ranks call it; this one gets the global tensors, one at a time, and writes
    the like.
    With global tensors and without global_dst_rank: all ranks call it with the same path, which
    becomes a folder; each rank writes a part of every tensor, and rank 0 the rest.

    A module, and any other object, is stored as the name of its class and its state: the result of
    its `__getstate__`, or its attributes. Functions and classes in it are names. Objects that a
    call has to make (open files, lambdas, iterators) have no form.

    A graph (`nn.Graph`) that was called is written as a job file for inference: see its `export`.

    A file or a folder becomes visible when it is complete and on the disk; before, an older one of
    the same name stays. Raises CheckpointError for objects that have no form in a checkpoint, and
    on all ranks if one of them fails; DesyncError if the ranks do not save the same. Files are in
    the safetensors format; the structure is JSON in their metadata, or in the folder's manifest.
    """
    if isinstance(obj, Savable):
        obj.save_job_file(as_path(path_or_buffer))
        return
    tree = Encoder(obj)
    is_folder = isinstance(path_or_buffer, str | Path) and os.path.isdir(path_or_buffer)
    save_as_external_data = save_as_external_data or is_folder
    if global_dst_rank is not None:
        _save_on(global_dst_rank, tree, path_or_buffer, save_as_external_data)
    elif any(found.is_global for found in tree.found):
        save_shards(tree, path_or_buffer)
    else:
        _save_alone(tree, path_or_buffer, save_as_external_data)


def _save_alone(tree: Encoder, target: Target, as_folder: bool) -> None:
    if tree.error is not None:
        raise tree.error
    found = named_locally(tree)
    output = _Output(target, as_folder)
    try:
        output.begin(tree.form, found)
        for name, one in found.items():
            output.add(name, to_host(one.array))
        output.finish()
    except BaseException:
        output.abort()
        raise


def _save_on(rank: int, tree: Encoder, target: Target, as_folder: bool) -> None:
    """All ranks bring their global tensors to `rank`, which writes."""
    check_placement(Placement("cpu", [rank]))
    pact = AllOrNone(f"save to {target} on rank {rank}", f"save(global_dst_rank={rank})")
    named = agree(pact, tree)
    output = _Output(target, as_folder) if pact.rank == rank else None
    try:
        _write_together(pact, tree, named.everything, rank, output)
    except BaseException:
        if output is not None:
            output.abort()
        raise


def _write_together(
    pact: AllOrNone,
    tree: Encoder,
    found: dict[str, Found],
    rank: int,
    output: _Output | None,
) -> None:
    if output is not None:
        pact.attempt(lambda: output.begin(tree.form, found))
    pact.meet()
    nbytes = 0
    for name, one in found.items():
        _write_one(pact, name, one, rank, output)
        nbytes += one.value.meta.nbytes if isinstance(one.value, Tensor) and one.is_global else 0
        if nbytes > _MEET_NBYTES:
            pact.meet()
            nbytes = 0
    if output is not None:
        pact.attempt(output.finish)
    pact.meet()


def _write_one(pact: AllOrNone, name: str, one: Found, rank: int, output: _Output | None) -> None:
    """Its values are in memory here and nowhere after: one whole tensor at a time."""
    if isinstance(one.value, Tensor) and one.is_global:
        x = one.value
        array = brought(x._array, x.meta, x.sbp, x.placement, rank)
        if output is not None:
            pact.attempt(lambda: output.add(name, array))
    elif output is not None:
        pact.attempt(lambda: output.add(name, to_host(one.array)))


class _Output:
    """The file that one rank writes: at a path, in a folder, or one that the user opened."""

    def __init__(self, target: Target, as_folder: bool) -> None:
        self._target, self._as_folder = target, as_folder
        self._pending: PendingFile | None = None
        self._writer: Writer | None = None

    def begin(self, form: Json, found: dict[str, Found]) -> None:
        metadata = {"oneflow": VERSION, "tree": json.dumps(form, separators=(",", ":"))}
        shapes = {name: _dtype_and_shape(one) for name, one in found.items()}
        file = as_open(self._target)
        if file is None:
            path = as_path(self._target)
            if self._as_folder:
                path.mkdir(parents=True, exist_ok=True)
                path = path / FOLDER_FILE
            self._pending = PendingFile(path)
            file = self._pending.file
        self._writer = Writer(file, shapes, metadata)

    def add(self, name: str, array: Array) -> None:
        assert self._writer is not None  # begin made it
        self._writer.add(name, array)

    def finish(self) -> None:
        if self._pending is None:
            return
        self._pending.commit()
        folder = self._pending.path.parent
        if self._as_folder:  # a checkpoint of all ranks that was there would still be found first
            (folder / MANIFEST_FILE).unlink(missing_ok=True)
            for name in left_over(os.listdir(folder), ""):
                (folder / name).unlink(missing_ok=True)
        sync_folder(folder)

    def abort(self) -> None:
        if self._pending is not None:
            self._pending.abort()


def _dtype_and_shape(found: Found) -> tuple[np.dtype[Any], tuple[int, ...]]:
    if isinstance(found.value, Tensor):
        return found.value.meta.dtype.np, found.value.meta.shape
    return found.value.dtype, found.value.shape


# ---- loading -------------------------------------------------------------------------------------


def load(
    path: Target,
    global_src_rank: int | MapLocation = None,
    map_location: MapLocation = None,
    *,
    support_pytorch_format: bool = True,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    pickle_module: object = None,
) -> Any:
    """Read a file or folder of `save`, a checkpoint of PyTorch or of upstream OneFlow, safetensors
    files, or several of them through their index (`*.safetensors.index.json`).

    global_src_rank: all ranks call it; only this one reads; all get global tensors on
    placement("cpu", [global_src_rank]).
    A folder that all ranks wrote is read by all ranks of the world together, each its own part:
    laid out as when it was saved, or, if this world lacks some of those ranks, on all
    ranks (copies as copies, the rest split along dim 0).
    map_location: a device, a placement, (placement, sbp), a dict from devices to devices, or a
    function of the tensor, or of the tensor and the device that it was saved from, that gives one
    of these or the tensor to use; the second argument may be one, too, as in PyTorch. Without
    it local tensors come back on the kind of device that they were saved from: to this rank's GPU,
    or to the CPU where there is no GPU.
    With a placement (and sbp) each rank reads of such a folder its own part there; a function
    gets the tensor laid out as said above.

    weights_only: False makes objects of every class that can be imported, which runs code of those
    modules and classes; None: the same if ONEFLOW_LOAD_ANY_CLASS=1. Else a file gets only the
    classes and functions listed by `serialization.add_safe_globals`, and layers of `oneflow.nn`,
    also for those of PyTorch. No function that a file names is ever called.
    mmap, pickle_module: accepted: tensors are read one at a time.

    Raises CheckpointError for a file that is damaged or asks for anything but values and tensors,
    on all ranks if they read together.
    """
    if global_src_rank is not None and type(global_src_rank) is not int:
        if map_location is not None:
            raise TypeError(
                f"load: got two map_locations, {global_src_rank!r} and {map_location!r}"
            )
        global_src_rank, map_location = None, global_src_rank
    names = Names(weights_only)
    if global_src_rank is not None:
        return _load_from(global_src_rank, path, map_location, support_pytorch_format, names)
    if is_sharded(path):
        return load_shards(as_path(path), map_location, names)
    source = open_source(path, support_pytorch_format, names)
    if isinstance(source, Foreign):
        return source.value if map_location is None else mapped(source.value, map_location)
    with closing(source):
        return _assembled(source, map_location, names)


def _assembled(source: Source, map_location: MapLocation, names: Names) -> Any:
    arrays: dict[str, Array] = {}  # a tensor over an array that is there too shares its memory

    def array(name: str) -> Array:
        if name not in arrays:
            arrays[name] = source.read(name)
        return arrays[name]

    return assemble(source.form, lambda name: wrap(array(name)), array, map_location, names)


def _load_from(
    rank: int,
    path: Target,
    map_location: MapLocation,
    support_pytorch_format: bool,
    names: Names,
) -> Any:
    """One rank reads; it sends the structure, then each tensor is made global from it."""
    check_placement(Placement("cpu", [rank]))
    pact = AllOrNone(f"load on rank {rank}", f"load(global_src_rank={rank})")
    source: Source | None = None
    if pact.rank == rank:
        source = pact.attempt(lambda: _local_source(path, support_pytorch_format, names))
    with closing(source) if source is not None else nullcontext():
        return _from_one(pact, rank, source, map_location, names)


def _from_one(
    pact: AllOrNone, rank: int, source: Source | None, map_location: MapLocation, names: Names
) -> Any:
    """source: on the rank that reads."""
    home = Placement("cpu", [rank])
    form, shapes = pact.meet(_described(source))[rank]

    def read(name: str) -> Array:
        """Read the values on the rank that does; if it cannot, it must still take part in moves."""
        dtype, shape = dtype_named(shapes[name][0]), tuple(shapes[name][1])
        found = None if source is None else pact.attempt(lambda: source.read(name))
        return np.zeros(shape, dtype) if found is None else found

    def make(name: str) -> Tensor:
        type_ = TensorType(tuple(shapes[name][1]), dtype_of(shapes[name][0]))
        shard = read(name) if pact.rank == rank else empty_shard(type_, home)
        return wrap_global(shard, type_, home, (BROADCAST,))

    def array(name: str) -> Array:
        """Arrays are plain values: every rank gets them."""
        found = read(name)
        if pact.world_size == 1:
            return found
        flat = found.reshape(-1).view(np.uint8)
        sent: Array = world().everyone.broadcast(flat, rank, f"load({name})")
        whole: Array = sent.view(found.dtype).reshape(found.shape)
        return whole

    obj = assemble(form, make, array, map_location, names)
    pact.meet()
    return obj


def _local_source(path: Target, support_pytorch_format: bool, names: Names) -> Source:
    source = open_source(path, support_pytorch_format, names)
    if isinstance(source, WholeShards):
        try:
            source.verify()
        except BaseException:
            source.close()
            raise
    return ObjectSource(source.value) if isinstance(source, Foreign) else source


def _described(source: Source | None) -> Any:
    """The facts of a source that all ranks need."""
    if source is None:
        return None
    return source.form, {n: (dtype.name, shape) for n, (dtype, shape) in source.shapes.items()}
