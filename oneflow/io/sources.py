"""The sources that a checkpoint can be read from, one value at a time: a file, a folder, a loaded
object.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from oneflow.core.errors import CheckpointError
from oneflow.core.json_values import Json
from oneflow.io.agree import named_locally
from oneflow.io.assemble import names_in
from oneflow.io.container import Container
from oneflow.io.files import (
    Memory,
    OpenFile,
    Readable,
    Target,
    as_open,
    as_path,
    read_bytes,
)
from oneflow.io.foreign import LEGACY, load_torch, load_torch_legacy, load_upstream
from oneflow.io.load_shards import WholeShards
from oneflow.io.manifest import MANIFEST_FILE
from oneflow.io.safe_names import Names
from oneflow.io.save_shards import FOLDER_FILE
from oneflow.io.tree import Encoder
from oneflow.kernels.array import Array
from oneflow.tensor.eager_global import to_host

VERSION = "1"


class Source(Protocol):
    """A source that is open for reading.

    form: of the tree (see io/tree.py). shapes: name -> dtype and shape of the arrays to read.
    """

    form: Json
    shapes: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]

    def read(self, name: str) -> Array:
        """All of a tensor or an array, as a new array. Raises CheckpointError."""

    def close(self) -> None:
        """No more reads."""


class ContainerSource:
    """A file that `save` wrote, or any safetensors file. Raises CheckpointError if damaged."""

    def __init__(self, readable: Readable) -> None:
        self._container = Container(readable)
        entries, metadata = self._container.entries, self._container.metadata
        self.shapes = {name: (e.dtype, e.shape) for name, e in entries.items()}
        if "oneflow" not in metadata:  # a plain safetensors file
            self.form: Json = {"dict": [[name, {"tensor": name}] for name in entries]}
            return
        if metadata["oneflow"] != VERSION:
            raise CheckpointError(
                f"it is of version {metadata['oneflow']}, this program reads {VERSION}"
            )
        try:
            self.form = json.loads(metadata["tree"])
        except (KeyError, ValueError, RecursionError) as error:
            raise CheckpointError("its structure is malformed") from error
        tensors, arrays = names_in(self.form)
        for name in (*tensors, *arrays):
            if name not in entries:
                raise CheckpointError(f"tensor {name!r} is missing")

    def read(self, name: str) -> Array:
        return self._container.read(name)

    def close(self) -> None:
        self._container.source.close()


class IndexSource:
    """Several safetensors files and an index that says which tensor lies where: `weight_map`.

    Each tensor is read when it is asked for. Raises CheckpointError for files that are missing,
    lie elsewhere, or lack a tensor.
    """

    def __init__(self, path: Path) -> None:
        try:
            places = json.loads(path.read_text())["weight_map"]
            self._places = {str(name): str(file) for name, file in places.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f'Cannot load file "{path}": it holds no weight_map') from error
        self._files: dict[str, Container] = {}
        for file in sorted(set(self._places.values())):
            if Path(file).name != file or not (path.parent / file).is_file():
                self.close()
                raise CheckpointError(f'Cannot load file "{path}": there is no {file} beside it')
            self._files[file] = Container(OpenFile(path.parent / file))
        self.form: Json = {"dict": [[name, {"tensor": name}] for name in self._places]}
        self.shapes = {}
        for name, file in self._places.items():
            entry = self._files[file].entries.get(name)
            if entry is None:
                self.close()
                raise CheckpointError(f'Cannot load file "{path}": {file} holds no {name!r}')
            self.shapes[name] = entry.dtype, entry.shape

    def read(self, name: str) -> Array:
        return self._files[self._places[name]].read(name)

    def close(self) -> None:
        for container in self._files.values():
            container.source.close()


class ObjectSource:
    """An object that is in memory already."""

    def __init__(self, value: object) -> None:
        tree = Encoder(value)
        if tree.error is not None:
            raise tree.error
        self._found = named_locally(tree)
        self.form = tree.form
        self.shapes = {
            name: (np.dtype(found.array.dtype), tuple(found.array.shape))
            for name, found in self._found.items()
        }

    def read(self, name: str) -> Array:
        return to_host(self._found[name].array)

    def close(self) -> None:
        self._found.clear()


class Foreign:
    """An object of another program's file."""

    def __init__(self, value: object) -> None:
        self.value = value


def open_source(
    path: Target, support_pytorch_format: bool, names: Names | None = None
) -> Source | Foreign:
    """Open a path or an open binary file. names: see `assemble`.

    Raises CheckpointError if it is damaged or asks for anything but values and tensors,
    FileNotFoundError if there is nothing.
    """
    file = as_open(path)
    if file is not None:
        return _from_readable(Memory(file.read(), "the buffer"), support_pytorch_format, names)
    found = as_path(path)
    if found.is_dir():
        return _from_folder(found, names)
    if not found.exists():
        raise FileNotFoundError(f'Cannot load file "{found}": there is no such file')
    if found.name.endswith(".safetensors.index.json"):
        return IndexSource(found)
    return _from_readable(OpenFile(found), support_pytorch_format, names)


def is_sharded(path: Target) -> bool:
    """Whether `path` is a folder into which all ranks wrote."""
    return as_open(path) is None and (as_path(path) / MANIFEST_FILE).exists()


def _from_folder(folder: Path, names: Names | None) -> Source | Foreign:
    if is_sharded(folder):
        return WholeShards(folder)
    if (folder / FOLDER_FILE).exists():
        return _from_readable(OpenFile(folder / FOLDER_FILE), False, names)
    if (folder / "pickled_data").is_file():
        return Foreign(load_upstream((folder / "pickled_data").read_bytes(), folder, names))
    raise CheckpointError(
        f'Cannot load file "{folder}": the folder holds neither {MANIFEST_FILE}, {FOLDER_FILE} nor '
        "pickled_data"
    )


def _from_readable(
    readable: Readable, support_pytorch_format: bool, names: Names | None
) -> Source | Foreign:
    try:
        source = _judged(readable, support_pytorch_format, names)
    except CheckpointError as error:
        readable.close()
        raise CheckpointError(f'Cannot load file "{readable.where}": {error}') from error
    if isinstance(source, Foreign):
        readable.close()
    return source


def _judged(
    readable: Readable, support_pytorch_format: bool, names: Names | None
) -> Source | Foreign:
    """Open a file as the source that its first bytes say it is."""
    start = read_bytes(readable, 0, min(readable.nbytes, len(LEGACY)))
    if start == LEGACY:
        if not support_pytorch_format:
            raise CheckpointError("it is a PyTorch file, and support_pytorch_format is False")
        return Foreign(load_torch_legacy(read_bytes(readable, 0, readable.nbytes), names))
    if start[:4] == b"PK\x03\x04":
        if not support_pytorch_format:
            raise CheckpointError("it is a PyTorch file, and support_pytorch_format is False")
        return Foreign(load_torch(read_bytes(readable, 0, readable.nbytes), names))
    if _is_pickle(start):
        return Foreign(load_upstream(read_bytes(readable, 0, readable.nbytes), None, names))
    return ContainerSource(readable)


def _is_pickle(start: bytes) -> bool:
    protocols = (b"\x02", b"\x03", b"\x04", b"\x05")
    return start[:1] == b"\x80" and start[1:2] in protocols and start[8:9] != b"{"
