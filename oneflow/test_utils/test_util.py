"""Small helpers of tests, by upstream's names: products of arguments, dtypes by name, positions."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from oneflow.core.dtype import DType, dtype_of
from oneflow.core.errors import ArgumentError

__all__ = [
    "Args",
    "Array2Numpy",
    "Coordinate2Index",
    "FlattenArray",
    "GenArgDict",
    "GenArgList",
    "GenCartesianProduct",
    "Index2Coordinate",
    "type_name_to_flow_type",
    "type_name_to_np_type",
]

SPELLINGS = {"double": "float64", "half": "float16"}

_NAMES = (
    *("bool", "float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bfloat16"),
    *("complex64", "complex128"),
)

type_name_to_flow_type: dict[str, DType] = {
    name: dtype_of(SPELLINGS.get(name, name)) for name in (*_NAMES, *SPELLINGS)
}
"""Dtypes of OneFlow by their names."""

type_name_to_np_type: dict[str, type[np.generic]] = {
    name: getattr(np, SPELLINGS.get(name, name))
    for name in (*_NAMES, *SPELLINGS)
    if name not in ("bool", "bfloat16")
}
"""Types of NumPy by the same names."""


def GenCartesianProduct(sets: Iterable[Iterable[Any]]) -> Iterator[tuple[Any, ...]]:
    """Return all combinations of one value of each set; without "cuda" under
    ONEFLOW_TEST_CPU_ONLY.
    """
    cpu_only = bool(os.environ.get("ONEFLOW_TEST_CPU_ONLY"))
    kept = [[x for x in values if not (cpu_only and _is_cuda(x))] for values in sets]
    return itertools.product(*kept)


def _is_cuda(x: object) -> bool:
    return isinstance(x, str) and x == "cuda"


def GenArgList(arg_dict: Mapping[str, Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """Return all combinations of arguments. arg_dict: Name of each one -> its values."""
    for name, values in arg_dict.items():
        if not isinstance(values, list):
            raise ArgumentError(f"GenArgList: the values of {name!r} are a list, got {values!r}")
    return GenCartesianProduct(arg_dict.values())


def GenArgDict(arg_dict: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return all combinations of arguments as dicts by their names."""
    return [dict(zip(arg_dict, values, strict=True)) for values in GenArgList(arg_dict)]


class Args:
    """Arguments of an op of ours, and those of its counterpart (default: the same)."""

    def __init__(self, flow_args: object, tf_args: object = None) -> None:
        self.flow_args = flow_args
        self.tf_args = flow_args if tf_args is None else tf_args

    def __repr__(self) -> str:
        return f"flow_args={self.flow_args} tf_args={self.tf_args}"


def FlattenArray(input_array: np.ndarray[Any, Any]) -> list[Any]:
    """Return the values of an array in a list, in the order of memory."""
    return list(input_array.ravel(order="K").tolist())


def Array2Numpy(input_array: Sequence[Any], target_shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return values as an array of a shape."""
    return np.array(input_array).reshape(tuple(target_shape))


def Index2Coordinate(idx: int, tensor_shape: Sequence[int]) -> list[int]:
    """Return the position in a tensor of the value with a number, counted row by row."""
    return [int(i) for i in np.unravel_index(idx, tuple(tensor_shape))]


def Coordinate2Index(coordinate: Sequence[int], tensor_shape: Sequence[int]) -> int:
    """Return the number, counted row by row, of the value at a position in a tensor."""
    if len(coordinate) != len(tensor_shape):
        raise ArgumentError(
            f"Coordinate2Index: {list(coordinate)} is no position in {list(tensor_shape)}"
        )
    return int(np.ravel_multi_index(tuple(coordinate), tuple(tensor_shape)))
