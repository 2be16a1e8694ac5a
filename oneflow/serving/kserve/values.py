"""Tensors of the protocol: names of types, JSON lists, raw bytes, typed contents."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from oneflow.jobs.description import Port
from oneflow.jobs.requests import Interface
from oneflow.kernels.array import Array
from oneflow.serving.kserve.failures import Refusal

if TYPE_CHECKING:
    from oneflow.protos import open_inference_pb2 as pb

TYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
    "FP64": np.float64,
}
_NAMES = {np.dtype(kind).name: name for name, kind in TYPES.items()}
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
BINARY_ONLY = ("FP16", "BF16")
"""Types without a form in JSON and in typed contents."""


def type_name(dtype: str) -> str:
    """Return the protocol's name of a dtype. Raises Refusal for one that it does not have."""
    if dtype not in _NAMES:
        raise Refusal(400, f"{dtype} has no type in the Open Inference Protocol")
    return _NAMES[dtype]


def shape_of(port: Port, interface: Interface) -> list[int]:
    """Return the shape of an input or output, with -1 for any number of rows."""
    return [-1, *port.shape[1:]] if interface.batch else list(port.shape)


class Given:
    """An input of a request, before its values are read."""

    def __init__(self, name: object, datatype: object, shape: object) -> None:
        if not isinstance(name, str) or not isinstance(datatype, str):
            raise Refusal(400, "each input has a name and a datatype")
        if datatype not in TYPES:
            raise Refusal(400, f"input {name[:80]!r}: there is no datatype {datatype[:20]!r} here")
        sizes: list[Any] = shape if isinstance(shape, list) else [None]
        if not all(type(n) is int and 0 <= n < 1 << 40 for n in sizes):
            raise Refusal(400, f"input {name[:80]!r}: the shape is a list of numbers")
        self.name, self.datatype = name, datatype
        self.shape: tuple[int, ...] = tuple(sizes)
        self.kind = np.dtype(TYPES[datatype])

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(self.kind.itemsize)

    def of_bytes(self, data: bytes | memoryview) -> Array:
        """Return the tensor of its raw bytes, row by row, little-endian."""
        if len(data) != self.nbytes:
            raise Refusal(
                400,
                f"input {self.name[:80]!r}: {self.datatype}{list(self.shape)} has {self.nbytes} "
                f"bytes, got {len(data)}",
            )
        array: Array = np.frombuffer(data, self.kind).reshape(self.shape)
        return array

    def of_list(self, data: object) -> Array:
        """Return the tensor of a list of numbers, flat or nested."""
        if self.datatype in BINARY_ONLY:
            text = f"input {self.name[:80]!r}: {self.datatype} is sent as binary data"
            raise Refusal(400, text)
        try:
            found = np.asarray(data)
            if found.size and found.dtype.kind not in "biuf":
                raise ValueError(f"the data is a list of {found.dtype}")
            if found.dtype.kind == "f" and self.kind.kind != "f":
                raise ValueError("the data has fractions")
            if self.kind.kind in "iu" and found.size:
                limits = np.iinfo(self.kind)
                if found.min() < limits.min or found.max() > limits.max:
                    raise ValueError("a number is out of range")
            array: Array = found.astype(self.kind).reshape(self.shape)
        except (ValueError, TypeError, OverflowError) as error:
            text = f"input {self.name[:80]!r}: no {self.datatype}{list(self.shape)}: {error}"
            raise Refusal(400, text) from None
        return array

    def of_contents(self, contents: pb.InferTensorContents) -> Array:
        """Return the tensor of typed contents."""
        if self.datatype in BINARY_ONLY:
            text = f"input {self.name[:80]!r}: {self.datatype} is sent as raw_input_contents"
            raise Refusal(400, text)
        return self.of_list(np.array(getattr(contents, _CONTENTS[self.datatype]), self.kind))


def checked(given: Mapping[str, Array], interface: Interface) -> int:
    """Return the number of rows of a request's inputs, 0 where the graph has no batch. Raises
    Refusal for inputs that do not fit the graph.
    """
    known = {port.name: port for port in interface.inputs}
    wanted = "; the inputs are " + ", ".join(
        f"{port.name}: {type_name(port.dtype)}{shape_of(port, interface)}"
        for port in known.values()
    )
    if odd := sorted(set(given) ^ set(known)):
        what = "there is no input" if odd[0] in given else "missing input"
        raise Refusal(400, f"{what} {odd[0][:80]!r}{wanted}")
    rows = set()
    for name, array in given.items():
        port = known[name]
        fits = array.shape == port.shape
        if interface.batch:
            fits = array.ndim == len(port.shape) > 0 and array.shape[1:] == port.shape[1:]
            rows.add(array.shape[0] if array.ndim else 0)
        if array.dtype.name != port.dtype or not fits:
            found = f"{type_name(array.dtype.name)}{list(array.shape)}"
            raise Refusal(400, f"input {name[:80]!r} is {found}{wanted}")
    if interface.batch and (len(rows) != 1 or 0 in rows):
        raise Refusal(400, f"the inputs have {sorted(rows)} rows; all have the same, one at least")
    return rows.pop() if rows else 0
