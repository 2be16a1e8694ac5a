"""`flow.jobs.data`: input pipelines as declarations.

    data = flow.jobs.data.npz("digits.npz", x="images", y="labels").shuffle(7).batch(64).repeat()

Each keyword names an argument of the graph's `build`. By default the arrays are copied into the
job file; with embed=False the job file names the file, which each rank reads on its own host.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oneflow.core.dtype import DTypeLike, dtype_of
from oneflow.io.container import dtype_named
from oneflow.io.files import AnyPath
from oneflow.jobs.description import Column, DataSpec, JobFileError, SourceKind, check_data
from oneflow.jobs.order import Batches
from oneflow.jobs.sources import Access, open_columns
from oneflow.kernels.array import Array
from oneflow.tensor.tensor import Tensor


@dataclass(frozen=True)
class Data:
    """A declaration; each method gives a new one. They may be called in any order, and mean:
    first shuffled within the epoch, then cut into batches, then repeated.

    arrays: those that go into the job file; empty if the columns name files of the hosts.
    """

    spec: DataSpec
    arrays: Mapping[str, Array]

    def shuffle(self, seed: int = 0) -> Data:
        """The rows of each epoch in an order of its own, the same for any number of ranks."""
        return self._with(seed=int(seed) & 0xFFFFFFFFFFFFFFFF)

    def batch(self, size: int, drop_last: bool = True) -> Data:
        """Put the rows together to batches.

        size: rows of all ranks together. drop_last: skip the rows left of an epoch that make no
        whole batch; False: such a batch goes on with the next epoch's first rows, the last one of
        all too, since a graph is compiled for batches of one size.
        """
        return self._with(batch=int(size), drop_last=bool(drop_last))

    def repeat(self, epochs: int | None = None) -> Data:
        """epochs: how often all rows are seen; None: without end."""
        if epochs is not None and epochs < 1:
            raise JobFileError(f"data.repeat: {epochs} epochs; give at least 1, or None for no end")
        return self._with(epochs=epochs or 0)

    def _with(self, **fields: Any) -> Data:
        import msgspec

        spec: DataSpec = msgspec.structs.replace(self.spec, **fields)
        check_data(spec, "data")
        return replace(self, spec=spec)

    @property
    def batches(self) -> Batches:
        """Return which rows each batch has."""
        return Batches.of(self.spec)


# ---- where the rows come from --------------------------------------------------------------------


def arrays(**columns: Tensor | ArrayLike) -> Data:
    """Arrays or local tensors of equally many rows, which go into the job file."""
    found = {name: _as_array(name, value) for name, value in columns.items()}
    return _declare("arrays", [Column(name=n, dtype="", shape=()) for n in found], found)


def npz(path: AnyPath, *, embed: bool = True, **columns: str) -> Data:
    """Arrays of a NumPy archive: npz("d.npz", x="images", y="labels")."""
    listed = [_column(name, path, (key,)) for name, key in columns.items()]
    return _of_files("npz", listed, embed)


def npy(*, embed: bool = True, **columns: AnyPath) -> Data:
    """NumPy files of one array each: npy(x="images.npy", y="labels.npy")."""
    return _of_files("npy", [_column(name, path) for name, path in columns.items()], embed)


def safetensors(path: AnyPath, *, embed: bool = True, **columns: str) -> Data:
    """Tensors of a safetensors file: safetensors("d.safetensors", x="images")."""
    listed = [_column(name, path, (key,)) for name, key in columns.items()]
    return _of_files("safetensors", listed, embed)


def csv(
    path: AnyPath,
    *,
    embed: bool = True,
    types: Mapping[str, DTypeLike] | None = None,
    **columns: str | Sequence[str],
) -> Data:
    """Numbers of a csv file whose first line names its columns: csv("d.csv", x=["a", "b"], y="c").

    A list of names gives rows of as many numbers.  types: dtype of an argument, float32 by default.
    """
    listed = []
    for name, keys in columns.items():
        dtype = _dtype((types or {}).get(name, np.float32), name)
        many = () if isinstance(keys, str) else (len(keys),)
        names = (keys,) if isinstance(keys, str) else tuple(keys)
        listed.append(_column(name, path, names, dtype=dtype, shape=many))
    return _of_files("csv", listed, embed)


def raw(*, embed: bool = False, **columns: tuple[Any, ...]) -> Data:
    """Files of rows one after the other, mapped into memory: raw(x=("x.bin", "float32", (64,))).

    A column is (path, dtype, shape of a row) or (path, dtype, shape of a row, offset in bytes).
    """
    listed = []
    for name, (path, dtype, shape, *offset) in columns.items():
        kind = _dtype(dtype, name)
        at = int(offset[0]) if offset else 0
        listed.append(_column(name, path, dtype=kind, shape=tuple(shape), offset=at))
    return _of_files("raw", listed, embed)


def _column(name: str, path: AnyPath, keys: tuple[str, ...] = (), **fields: Any) -> Column:
    absolute = os.path.abspath(os.fspath(path))
    return Column(name=name, path=absolute, keys=keys, **{"dtype": "", "shape": (), **fields})


def _dtype(dtype: DTypeLike, name: str) -> str:
    text = dtype if isinstance(dtype, str) else dtype_of(dtype).np.name
    if dtype_named(text) is None:
        raise JobFileError(f"data column {name!r}: {text!r} is no dtype of data")
    return str(text)


def _as_array(name: str, value: Tensor | ArrayLike) -> Array:
    if isinstance(value, Tensor):
        value = value.numpy()
    array = np.asarray(value)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.ndim == 0 or dtype_named(array.dtype.name) != array.dtype:
        raise JobFileError(
            f"data column {name!r}: rows of numbers are needed, got "
            f"{array.dtype}{list(array.shape)}"
        )
    return array


def _of_files(kind: SourceKind, columns: list[Column], embed: bool) -> Data:
    found = open_columns(kind, columns, Access())
    if embed:
        bare = [Column(name=c.name, dtype="", shape=()) for c in columns]
        return _declare("arrays", bare, found)
    declared = _declare(kind, columns, found)
    return replace(declared, arrays={})


def _declare(kind: SourceKind, columns: list[Column], found: Mapping[str, Array]) -> Data:
    import msgspec

    counts = {name: len(array) for name, array in found.items()}
    if len(set(counts.values())) != 1:
        raise JobFileError(
            "data: the columns must have equally many rows, at least one; they have "
            f"{', '.join(f'{n}: {c}' for n, c in counts.items()) or 'none'}"
        )
    rows = next(iter(counts.values()))
    typed = tuple(
        msgspec.structs.replace(c, dtype=a.dtype.name, shape=tuple(a.shape[1:]))
        for c, a in zip(columns, found.values(), strict=True)
    )
    spec = DataSpec(kind=kind, rows=rows, columns=typed, batch=1)
    check_data(spec, "data")
    return Data(spec, found)
