"""`flow.placement` as users call it, and the limits of dtypes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from oneflow.core.config import current_config
from oneflow.core.device import is_device_type
from oneflow.core.dtype import DType, DTypeLike, bool_, dtype_of
from oneflow.core.errors import CallError, DTypeError, PlacementError, SbpError
from oneflow.core.placement import Placement, Ranks
from oneflow.core.sbp import NdSbp, check_fits
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.hardware import hardware_class

NodeRanks: TypeAlias = "dict[int, int | Sequence[int]]"
"""Ranks of each node, as old scripts give them."""


class _PlacementType(type):
    """The type of `placement`: `placement(...)` makes, and `isinstance(x, placement)` recognises, a
    Placement.
    """

    def __call__(
        cls,
        type: str | None = None,
        ranks: Ranks | NodeRanks | None = None,
        hierarchy: Sequence[int] | None = None,
        *,
        device_type: str | None = None,
        device_ids: Ranks | NodeRanks | None = None,
    ) -> Placement:
        if device_type is not None or device_ids is not None or isinstance(ranks, dict):
            return _old_form(
                device_type or type, ranks if device_ids is None else device_ids, hierarchy
            )
        if type is None or ranks is None:
            raise CallError(
                'placement needs a device type and ranks, e.g. placement("cpu", [0, 1])'
            )
        return Placement(type, ranks)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Placement)


class placement(metaclass=_PlacementType):
    """`placement(type, ranks)`: "cpu" or "cuda", and a list, nested list or integer array of
    ranks.
    """

    @staticmethod
    def all(type: str) -> Placement:
        """Every device of the cluster, in one row."""
        if not is_device_type(type) or not hardware_class(type).count():
            raise PlacementError(
                f'Can\'t construct placement with "{type}" type because there is no device!'
            )
        return Placement(type, list(range(current_config().world_size)))


def has_cuda() -> bool:
    """Is there a GPU, and CuPy to use it?"""
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount() > 0)
    except ImportError:
        return False
    except Exception as error:  # CuPy raises its own type when no driver is there
        if type(error).__name__ == "CUDARuntimeError":
            return False
        raise


def _old_form(
    device_type: str | None,
    device_ids: Ranks | NodeRanks | None,
    hierarchy: Sequence[int] | None,
) -> Placement:
    """placement("cuda", {0: [0, 1]}, (2,)): ranks per node."""
    warnings.warn(
        "placement(device_type, device_ids, hierarchy) is deprecated; "
        'use placement("cuda", ranks=[...])',
        DeprecationWarning,
        stacklevel=3,
    )
    if device_type is None or device_ids is None:
        raise CallError("placement needs device_type and device_ids")
    ids = device_ids
    if isinstance(ids, dict):
        ids = [
            i for part in ids.values() for i in ([part] if isinstance(part, int) else list(part))
        ]
    array = np.asarray(ids)
    return Placement(device_type, array if hierarchy is None else array.reshape(tuple(hierarchy)))


def as_placement(value: object, who: str) -> Placement | None:
    """`value` if it is a placement or None. Raises TypeError."""
    if value is None or isinstance(value, Placement):
        return value
    raise CallError(
        f"{who}: placement must be an oneflow.placement, got {value!r}; "
        'write e.g. oneflow.placement("cpu", [0, 1])'
    )


def check_layout(type_: TensorType, nd_sbp: NdSbp, who: str) -> None:
    """Raises SbpError unless a tensor of this type can be laid out so."""
    check_fits(nd_sbp, type_.shape, who)
    if type_.dtype is bool_ and any(s.is_partial for s in nd_sbp):
        raise SbpError(
            f"{who}: {type_} cannot be partial_sum: truth values have no sums; "
            "use broadcast or split, or cast it to numbers first"
        )


_float_limits: Any = ml_dtypes.finfo  # of NumPy's floats and bfloat16 alike


class finfo:
    """Limits of a floating-point dtype: bits, eps, max, min, tiny, resolution."""

    def __init__(self, dtype: DTypeLike = "float32") -> None:
        found = dtype_of(dtype)
        if not found.is_floating_point:
            raise DTypeError(f"finfo needs a floating-point dtype, got {found}")
        limits: Any = _float_limits(found.np)
        self.dtype, self.bits = found.name, int(limits.bits)
        self.eps, self.max, self.min = float(limits.eps), float(limits.max), float(limits.min)
        self.tiny = self.smallest_normal = float(limits.tiny)
        self.resolution = float(f"{float(limits.resolution):.0e}")  # the decimal number

    def __repr__(self) -> str:
        return (
            f"finfo(resolution={self.resolution:g}, min={self.min:g}, max={self.max:g}, "
            f"eps={self.eps:g}, "
            f"tiny={self.tiny:g}, dtype={self.dtype})"
        )


class iinfo:
    """Limits of an integer dtype: bits, max, min."""

    def __init__(self, dtype: DTypeLike) -> None:
        found = dtype_of(dtype)
        if not found.is_integer:
            raise DTypeError(f"iinfo needs an integer dtype, got {found}")
        limits = np.iinfo(found.np)
        self.dtype, self.bits, self.max, self.min = (
            found.name,
            limits.bits,
            int(limits.max),
            int(limits.min),
        )

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"


def convert_oneflow_dtype_to_numpy_dtype(dtype: DType) -> Any:
    """The NumPy scalar type of a dtype."""
    return dtype.np.type
