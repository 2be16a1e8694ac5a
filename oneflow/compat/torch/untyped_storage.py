"""The bytes below tensors: files as memory, and other dtypes over the same bytes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from oneflow.core.dtype import DType, DTypeLike, dtype_of
from oneflow.core.errors import OneFlowError, ShapeError
from oneflow.core.operand import ShapeLike
from oneflow.functional import shaping
from oneflow.functional.from_data import as_tensor, frombuffer
from oneflow.tensor.tensor import Tensor, needs_data, wrap

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from oneflow.core.device import DeviceLike


class UntypedStorage:
    """Bytes that tensors are made of: of a given number, or of a file."""

    def __init__(self, size: int = 0) -> None:
        self._bytes: np.ndarray[Any, np.dtype[np.uint8]] = np.zeros(size, np.uint8)

    @classmethod
    def from_file(
        cls, filename: str | os.PathLike[str], shared: bool = False, nbytes: int = 0
    ) -> UntypedStorage:
        """The first bytes of a file, read when they are needed.

        shared: writes change the file; otherwise they stay in this process.
        """
        made = cls()
        made._bytes = np.memmap(filename, np.uint8, "r+" if shared else "c", shape=(nbytes,))
        return made

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> UntypedStorage: ...
    def __getitem__(self, index: int | slice) -> int | UntypedStorage:
        if isinstance(index, int):
            return int(self._bytes[index])
        part = UntypedStorage()
        part._bytes = self._bytes[index]
        return part

    def __len__(self) -> int:
        return self._bytes.size

    nbytes = size = __len__

    def __sizeof__(self) -> int:
        return super().__sizeof__() + self._bytes.nbytes

    def untyped(self) -> UntypedStorage:
        """The storage itself."""
        return self

    def data_ptr(self) -> int:
        """The address of the first byte."""
        return int(self._bytes.ctypes.data)


def untyped_storage(input: Tensor) -> UntypedStorage:
    """The bytes of a local tensor on the CPU, with those around it that its views share."""
    needs_data(input, "untyped_storage()")
    if input._placement is not None or not isinstance(input._array, np.ndarray):
        raise OneFlowError("untyped_storage() is of a local tensor on the CPU")
    whole = input._array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    if not whole.flags.forc:
        raise OneFlowError(f"untyped_storage(): the bytes of {input.meta} are not in one piece")
    made = UntypedStorage()
    made._bytes = whole.ravel("K").view(np.uint8)
    return made


def asarray(
    obj: ArrayLike | UntypedStorage | bytes,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    copy: bool | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """The data as a tensor, over its own memory where that is possible and `copy` is not True."""
    if isinstance(obj, UntypedStorage):
        found = wrap(np.asarray(obj._bytes))
        found = found if dtype is None else bytes_as(found, dtype_of(dtype))
    elif isinstance(obj, bytes | bytearray | memoryview):
        found = frombuffer(obj, dtype="float32" if dtype is None else dtype)
    else:
        found = as_tensor(obj, dtype=dtype)
    found = found if device is None else found.to(device)
    found = found.clone() if copy else found
    if requires_grad:
        found.requires_grad = True
    return found


def bytes_as(x: Tensor, dtype: DType) -> Tensor:
    """The bytes of a local tensor read as numbers of another dtype: memory is shared, and the last
    dim shrinks or grows where the sizes of the two dtypes differ.
    """
    if dtype is x.meta.dtype:
        return shaping.reshape(x, x.meta.shape)
    needs_data(x, "view(dtype)")
    if x._placement is not None:
        raise OneFlowError("view(dtype) reads the bytes of local tensors; use to_local() first")
    try:
        return wrap(x._array.view(dtype.np), x._device)
    except ValueError as error:
        raise ShapeError(f"view({dtype}): {x.meta} cannot be read so: {error}") from None


def view(
    input: Tensor,
    *sizes: ShapeLike | DType,
    shape: ShapeLike | None = None,
    size: ShapeLike | None = None,
    dtype: DType | None = None,
) -> Tensor:
    """The tensor in another shape, as `reshape`, but never a copy. Given a dtype instead: its bytes
    read as numbers of that dtype. Raises OneFlowError where a copy would be needed.
    """
    wanted = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], DType) else dtype
    if wanted is not None:
        return bytes_as(input, wanted)
    return shaping.view(input, *cast("tuple[ShapeLike, ...]", sizes), shape=shape, size=size)
