"""Random tensors and dtypes of both libraries."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from oneflow import sbp
from oneflow.env import all_device_placement
from oneflow.test_utils.automated_test_util.comparing import ABSENT
from oneflow.test_utils.automated_test_util.dual_object import DualObject, made, state
from oneflow.test_utils.automated_test_util.generators import (
    choice_array,
    generator,
    pytorch,
    random_array,
    random_name,
    stream,
)


def random_tensor(
    ndim: object = None,
    dim0: object = 1,
    dim1: object = None,
    dim2: object = None,
    dim3: object = None,
    dim4: object = None,
    low: object = None,
    high: object = None,
    dtype: object = float,
    requires_grad: object = True,
    pin_memory: bool = False,
) -> Any:
    """Return a tensor of both libraries with the same random numbers.

    ndim: From 1 to 5 if it is None, and a size from 1 to 7.  dtype: float, int or complex.
    low, high: Bounds of the numbers, -1 and 1 (ints: -10 and 10).  In global tests it is
    broadcast over all ranks.
    """
    if dtype is float and state.run is not None and state.run.takes_complex:
        dtype = stream.choice((float, complex))
    dims = dim0, dim1, dim2, dim3, dim4
    array = random_array(ndim, dims, low, high, dtype).value()
    return tensor_of(array, _value(requires_grad) and array.dtype.kind in "fc", pin_memory)


def choice_tensor(
    a: Sequence[float] | int,
    size: int | Sequence[int] | None = None,
    replace: bool = True,
    p: Sequence[float] | None = None,
    dtype: type = int,
    requires_grad: object = False,
) -> Any:
    """Return a tensor of both libraries with values drawn as by `numpy.random.choice`."""
    array = choice_array(a, size, replace, p, dtype)
    return tensor_of(array, _value(requires_grad) and dtype is not int)


def random_dtype(seq_names: Sequence[str]) -> DualObject:
    """Return a dtype of both libraries of some groups: "float", "int", "half", "all", ..."""
    name = random_name(seq_names)
    if name is None:
        return DualObject("None", None, None)
    flow: Any = sys.modules["oneflow"]
    theirs = getattr(pytorch(), name) if "pytorch" in state.libraries else ABSENT
    return DualObject(name, theirs, getattr(flow, name))


def tensor_of(array: np.ndarray[Any, Any], requires_grad: bool, pin_memory: bool = False) -> Any:
    """Return an array as a tensor of both libraries."""
    flow: Any = sys.modules["oneflow"]
    theirs = ours = ABSENT
    if "pytorch" in state.libraries:
        theirs = pytorch().tensor(array, requires_grad=requires_grad)
        theirs = theirs.pin_memory() if pin_memory else theirs
    if "oneflow" in state.libraries:
        everywhere = {"placement": all_device_placement("cpu"), "sbp": sbp.broadcast}
        where = everywhere if state.is_global else {"pin_memory": pin_memory}
        ours = flow.tensor(array, requires_grad=requires_grad, **where)
    return made(f"random_tensor{list(array.shape)}", theirs, ours)


def _value(x: object) -> bool:
    return bool(x.value() if isinstance(x, generator) else x)
