"""Reads boxes of tensors from the files of a folder of shards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from oneflow.boxing.boxes import intersection, local_slices
from oneflow.core.errors import CheckpointError
from oneflow.core.op import Box
from oneflow.io.boxes import read_box
from oneflow.io.checksum import MODULUS, checksum
from oneflow.io.container import Container, Entry
from oneflow.io.files import OpenFile, Verified
from oneflow.io.manifest import MANIFEST_FILE, SAVE_ID_KEY, Manifest, Part
from oneflow.kernels.array import Array

MAX_OPEN_FILES = 64


class ShardReader:
    """Reads boxes of tensors from the files of a folder, and adds up the checksums of the bytes.

    Files are opened when needed, and never outside the folder.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self._manifest = folder, manifest
        self._open: dict[int, OpenFile] = {}
        self._checked: set[int] = set()
        self._sums = {name: [0] * len(s.parts) for name, s in manifest.tensors.items()}

    def check_files(self, wanted: Iterable[tuple[str, Box]]) -> None:
        """Looks whether the files that hold the given boxes are there and of the right size."""
        files = {part.file: name for name, box in wanted for _, part, _ in self._cells(name, box)}
        for file, name in sorted(files.items()):
            self._file(file, name)

    def read(self, name: str, box: Box, into: Array | None = None) -> Array:
        """Fills `into`, of the box's shape, or a new array. Raises CheckpointError."""
        stored = self._manifest.tensors[name]
        target: Array = np.empty(box.shape, stored.dtype) if into is None else into
        for index, part, cell in self._cells(name, box):
            at: Any = (*local_slices(cell, box), ...)
            place = target[at]
            file = self._checked_file(part.file, name)
            slices = local_slices(cell, part.box)
            try:
                read_box(file, part.offset, part.box.shape, slices, place)
            except (OSError, CheckpointError) as error:
                raise CheckpointError(f"{file.where}: tensor {name!r}: {error}") from error
            found = checksum(place, cell.starts)
            self._sums[name][index] = (self._sums[name][index] + found) % MODULUS
        return target

    def read_piece(self, name: str, part: Part, box: Box, buffer: Array) -> Array:
        """The elements of a box that lies in one piece in a part: a view of `buffer`, which is of
        bytes. Raises CheckpointError."""
        dtype, count = self._manifest.tensors[name].dtype, math.prod(box.shape)
        piece: Any = buffer[: count * dtype.itemsize]
        first = zip(box.starts, part.box.starts, strict=True)
        at = 0
        for (start, begin), size in zip(first, part.box.shape, strict=True):
            at = at * size + start - begin
        file = self._checked_file(part.file, name)
        try:
            file.read_into(part.offset + at * dtype.itemsize, memoryview(piece), is_counted=False)
        except (OSError, CheckpointError) as error:
            raise CheckpointError(f"{file.where}: tensor {name!r}: {error}") from error
        found: Array = piece.view(dtype).reshape(box.shape)
        return found

    def sums(self, name: str) -> list[int]:
        """Return the checksums of the bytes read, one for each part of a tensor."""
        return self._sums[name]

    def damaged(self, name: str, part: Part) -> CheckpointError:
        """The error for a part whose bytes are not those that were written."""
        path = self._folder / self._manifest.files[part.file][0]
        starts, stops = list(part.box.starts), list(part.box.stops)
        return CheckpointError(
            f"{path} is damaged: {starts} to {stops} of tensor {name!r} have another digest than "
            "when they were saved"
        )

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _cells(self, name: str, box: Box) -> Iterator[tuple[int, Part, Box]]:
        """Yield the parts that have something of `box`, each with the box in common."""
        for index, part in enumerate(self._manifest.tensors[name].parts):
            cell = intersection(part.box, box)
            if cell is not None:
                yield index, part, cell

    def _file(self, number: int, tensor: str) -> OpenFile:
        if number in self._open:
            return self._open[number]
        if len(self._open) >= MAX_OPEN_FILES:
            self._open.pop(next(iter(self._open))).close()
        name, nbytes = self._manifest.files[number]
        try:
            file = OpenFile(self._folder / name, follow=False)
        except OSError as error:
            raise CheckpointError(
                f"{self._folder / name}, which holds a part of tensor {tensor!r}, cannot be read: "
                f"{error.strerror}"
            ) from error
        self._open[number] = file
        if file.nbytes != nbytes:
            raise CheckpointError(
                f"{file.where}, which holds a part of tensor {tensor!r}, has {file.nbytes} bytes, "
                f"not the {nbytes} that were written"
            )
        return file

    def _checked_file(self, number: int, tensor: str) -> OpenFile:
        """The file, of which something is to be read."""
        file = self._file(number, tensor)
        if number not in self._checked:
            self._check_header(number, file)
        return file

    def _check_header(self, number: int, file: OpenFile) -> None:
        """The manifest says where everything is; other readers of safetensors go by the header."""
        try:
            found = Container(Verified(file))
        except CheckpointError as error:
            raise CheckpointError(f"{file.where} is damaged: {error}") from error
        filled = {n: e for n, e in found.entries.items() if e.begin != e.end}
        is_whole = found.metadata.get(SAVE_ID_KEY) == self._manifest.save_id
        if not is_whole or filled != self._placed[number]:
            raise CheckpointError(
                f"{file.where} is damaged: its header is not what was written with {MANIFEST_FILE}"
            )
        self._checked.add(number)

    @cached_property
    def _placed(self) -> dict[int, dict[str, Entry]]:
        """Return the entries of each file, by name."""
        placed: dict[int, dict[str, Entry]] = {n: {} for n in range(len(self._manifest.files))}
        for name, stored in self._manifest.tensors.items():
            for part in stored.parts:
                nbytes = math.prod(part.box.shape) * stored.dtype.itemsize
                if nbytes:
                    entry = Entry(stored.dtype, part.box.shape, part.offset, part.offset + nbytes)
                    placed[part.file][name] = entry
        return placed
