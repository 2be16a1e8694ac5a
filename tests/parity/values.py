"""Values on the way from PyTorch to oneflow, and comparison of both results."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import oneflow as flow

# Relative and absolute tolerance per dtype: a few roundings more than one operation makes.
TOLERANCES = {
    "float16": (1e-2, 1e-3),
    "float32": (2e-4, 2e-5),
    "float64": (1e-6, 1e-8),
    "complex64": (2e-4, 2e-5),
    "complex128": (1e-6, 1e-8),
}


MAX_DIMS = 32  # NumPy 1 has no more


class Unsupported(Exception):
    """A kind of value that oneflow does not have: complex or sparse tensors, say."""


class Different(Exception):
    """Both libraries answered, and the answers differ."""


def to_flow(value: Any, made: dict[int, Any] | None = None) -> Any:
    """`value` with each tensor, dtype and device replaced by its counterpart.

    made: id of a PyTorch tensor -> its counterpart, so that a tensor given twice stays one tensor.
    """
    made = {} if made is None else made
    if isinstance(value, torch.Tensor):
        if id(value) not in made:
            made[id(value)] = _tensor(value)
        return made[id(value)]
    if isinstance(value, torch.dtype):
        return _named(value)
    if isinstance(value, torch.device):
        return flow.device(str(value))
    if isinstance(value, (torch.memory_format, torch.layout)):
        return _named(value)
    name = getattr(value, "__name__", "")
    if name and getattr(torch.nn.functional, name, None) is value:
        return getattr(flow.nn.functional, name)
    if isinstance(value, torch.Generator):
        return flow.Generator("cpu").manual_seed(value.initial_seed())
    if isinstance(value, dict):
        return {k: to_flow(v, made) for k, v in value.items()}
    if isinstance(value, torch.Size):
        return flow.Size(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_flow(v, made) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(to_flow(v, made) for v in value)
    return value


def _named(value: Any) -> Any:
    name = str(value).removeprefix("torch.")
    if not hasattr(flow, name):
        raise Unsupported(name)
    return getattr(flow, name)


def _tensor(value: torch.Tensor) -> Any:
    if value.layout is not torch.strided or value.ndim > MAX_DIMS or value.device.type != "cpu":
        raise Unsupported(f"a {value.layout} tensor of {value.dtype} on {value.device}")
    if value.dtype is torch.bfloat16:
        array = value.detach().float().numpy().copy()
        out = flow.from_numpy(array).to(flow.bfloat16)
    elif not hasattr(flow, str(value.dtype).removeprefix("torch.")):
        raise Unsupported(f"a tensor of {value.dtype}")
    else:
        out = flow.from_numpy(_copied(value.detach().numpy()))
    if value.requires_grad:
        out.requires_grad_()
    return out


def _copied(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """New memory with the order, and the stretched dims, of `array`."""
    if 0 not in array.shape and 0 in array.strides and array.ndim:
        short = array[tuple(slice(0, 1) if s == 0 else slice(None) for s in array.strides)]
        return np.lib.stride_tricks.as_strided(short.copy(order="K"), array.shape, array.strides)
    return array.copy(order="K")


def array_of(value: Any) -> np.ndarray[Any, Any]:
    """The numbers of a tensor of either library."""
    if isinstance(value, torch.Tensor):
        value = value.detach().resolve_conj().resolve_neg()
        if value.layout is not torch.strided:
            raise Unsupported(f"a {value.layout} result")
        return (value.float() if value.dtype is torch.bfloat16 else value).numpy(force=True)
    if str(value.dtype).endswith("bfloat16"):
        return np.asarray(value.detach().to(flow.float32).numpy())
    return np.asarray(value.detach().numpy())


def compare(wanted: Any, got: Any, *, values: bool = True, where: str = "") -> None:
    """Raises Different unless both hold the same, in the same types.

    values: are numbers compared, or shapes and dtypes alone (of random results)?
    """
    if isinstance(wanted, torch.Tensor):
        _compare_tensors(wanted, got, values, where)
    elif isinstance(wanted, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(wanted) != len(got):
            raise Different(f"{where}: wanted {len(wanted)} results, got {_shown(got)}")
        for i, (a, b) in enumerate(zip(wanted, got, strict=True)):
            compare(a, b, values=values, where=f"{where}[{i}]")
    elif isinstance(wanted, torch.dtype):
        if str(wanted).removeprefix("torch.") != str(got).removeprefix("oneflow."):
            raise Different(f"{where}: wanted {wanted}, got {got}")
    elif isinstance(wanted, (bool, int, float)):
        if not isinstance(got, (bool, int, float)) or not np.isclose(wanted, got, equal_nan=True):
            raise Different(f"{where}: wanted {wanted!r}, got {_shown(got)}")
    elif isinstance(wanted, complex):
        if not isinstance(got, complex) or not np.isclose(wanted, got, equal_nan=True):
            raise Different(f"{where}: wanted {wanted!r}, got {_shown(got)}")
    elif wanted is None and got is not None:
        raise Different(f"{where}: wanted None, got {_shown(got)}")


def _shown(value: Any) -> str:
    if isinstance(value, (torch.Tensor, flow.Tensor)):
        return f"{str(value.dtype).split('.')[-1]}{list(value.shape)}"
    return f"{type(value).__name__} {value!r}"[:80]


def _compare_tensors(wanted: torch.Tensor, got: Any, values: bool, where: str) -> None:
    if not isinstance(got, flow.Tensor):
        raise Different(f"{where}: wanted {_shown(wanted)}, got {_shown(got)}")
    mine, theirs = str(got.dtype).split(".")[-1], str(wanted.dtype).split(".")[-1]
    if tuple(wanted.shape) != tuple(got.shape) or mine != theirs:
        raise Different(f"{where}: wanted {_shown(wanted)}, got {_shown(got)}")
    if not values or not wanted.numel():
        return
    a, b = array_of(wanted), array_of(got)
    relative, absolute = TOLERANCES.get(theirs, (0.0, 0.0))
    with np.errstate(all="ignore"):
        wide = np.complex128 if wanted.is_complex() else np.float64
        near = np.isclose(b.astype(wide), a.astype(wide), relative, absolute, equal_nan=True)
    if not near.all():
        at = tuple(int(i) for i in np.argwhere(~near)[0])
        raise Different(
            f"{where}: {int((~near).sum())} of {a.size} numbers of {_shown(wanted)} differ, "
            f"at {at} wanted {a[at]!r}, got {b[at]!r}"
        )
