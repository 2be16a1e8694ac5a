"""Weights of a Hugging Face folder: each rank reads its own part of the safetensors files."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from oneflow.core.errors import CheckpointError, ModelError
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, Sbp, Split
from oneflow.distributed.world import world
from oneflow.functional.from_data import tensor
from oneflow.io.boxes import read_box
from oneflow.io.container import Container
from oneflow.io.files import OpenFile
from oneflow.kernels.array import Array
from oneflow.nn.parameter import Parameter
from oneflow.serving.language.config import read_json
from oneflow.tensor.tensor import Tensor

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


@dataclass(frozen=True)
class Ranks:
    """The ranks that share a model. placement: None: this process has all of it."""

    placement: Placement | None = None

    @property
    def size(self) -> int:
        return 1 if self.placement is None else len(self.placement.rank_ids)

    def part(self, count: int) -> slice:
        """Return this rank's part of `count` things, cut as SBP cuts them."""
        each, more = divmod(count, self.size)
        rank = world().rank if self.size > 1 else 0
        begin = rank * each + min(rank, more)
        return slice(begin, begin + each + (rank < more))

    def put(self, own: Array, sbp: Sbp) -> Tensor:
        """Make a tensor of this rank's part."""
        local = tensor(own)
        if self.placement is None:
            return local
        return local.to_global(self.placement, [sbp])


class Piece(NamedTuple):
    """A matrix (out, in) or a vector (out,) in a file.

    is_turned: it is stored as (in, out).  section: (i, n): rows of the i-th of n equal parts alone.
    """

    name: str
    is_turned: bool = False
    section: tuple[int, int] = (0, 1)


class Weights:
    """The open files of a folder, for ranks that share the model."""

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        self.folder, self.ranks = folder, ranks
        self._open = ExitStack()
        self._files: dict[str, tuple[OpenFile, Container]] = {}
        for path in _files_of(folder):
            file = self._open.enter_context(OpenFile(path))
            try:
                container = Container(file)
            except CheckpointError as error:
                raise ModelError(f"{path}: {error}") from None
            self._files |= {name: (file, container) for name in container.entries}

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def get(self, piece: Piece, split: int | None, shape: tuple[int, ...]) -> Parameter:
        """Read the parameter of a piece. split: its dim that is cut between the ranks.

        shape: of the whole. Raises ModelError if the file has another.
        """
        file, container = self._file(piece.name)
        entry = container.entries[piece.name]
        i, n = piece.section
        stored = (shape[0] * n, *shape[1:])
        if entry.shape != (stored[::-1] if piece.is_turned else stored):
            raise ModelError(
                f"{self.folder}: {piece.name} has the shape {list(entry.shape)}; config.json makes "
                f"it {list(stored[::-1] if piece.is_turned else stored)}"
            )
        wanted = [slice(0, size) for size in shape]
        if split is not None:
            wanted[split] = self.ranks.part(shape[split])
        first = i * shape[0]
        wanted[0] = slice(first + wanted[0].start, first + wanted[0].stop)
        if piece.is_turned:
            wanted.reverse()
        found = np.empty([s.stop - s.start for s in wanted], entry.dtype)
        read_box(file, entry.begin, entry.shape, wanted, found)
        own = np.ascontiguousarray(found.T if piece.is_turned else found, np.float32)
        sbp = BROADCAST if split is None else Split(split)
        return Parameter(self.ranks.put(own, sbp), requires_grad=False)

    def _file(self, name: str) -> tuple[OpenFile, Container]:
        if name not in self._files:
            raise ModelError(f"{self.folder}: no file has the weight {name}")
        return self._files[name]


def _files_of(folder: Path) -> list[Path]:
    """The files that the index names, or the only one."""
    if (folder / INDEX).exists():
        table = read_json(folder / INDEX).get("weight_map", {})
        names = sorted({str(name) for name in table.values()})
        if not names or any(Path(name).name != name for name in names):
            raise ModelError(f"{folder / INDEX}: weight_map must name files of the folder")
        return [folder / name for name in names]
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    raise ModelError(f"{folder}: has neither {SINGLE} nor {INDEX}; other weights are not read")
