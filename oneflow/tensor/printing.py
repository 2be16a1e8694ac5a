"""Printed tensors: `tensor([1., 2.], dtype=oneflow.float32)`. Numbers look as PyTorch prints them;
of large tensors only the edges are shown, and only these are gathered from other ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from oneflow.boxing.boxes import shard_box
from oneflow.core.device import META
from oneflow.core.placement import Placement
from oneflow.core.sbp import nd_sbp_str
from oneflow.tensor import on_ranks
from oneflow.tensor.devices import to_host
from oneflow.tensor.number_text import PrintOptions, array_text, shown_positions
from oneflow.tensor.tensor import Tensor, device_type

_PROFILES = {
    "default": PrintOptions(),
    "short": PrintOptions(precision=2, edgeitems=2),
    "full": PrintOptions(threshold=math.inf),
}
_options = PrintOptions()


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Change how tensors print; options that are not given stay.  profile: "default", "short" or
    "full"; any other changes nothing, as in PyTorch.
    """
    global _options
    base = _options if profile is None else _PROFILES.get(profile, _options)
    given: dict[str, Any] = {
        "precision": precision,
        "threshold": threshold,
        "edgeitems": edgeitems,
        "linewidth": linewidth,
        "sci_mode": sci_mode,
    }
    _options = replace(base, **{k: v for k, v in given.items() if v is not None})


def tensor_text(x: Tensor) -> str:
    """The repr of a tensor. Of a global one every rank of the world must ask."""
    shown, kind = _shown(x), type(x)
    is_own = kind.__module__.partition(".")[0] != "oneflow"  # a class of a program has a name here
    head = f"{kind.__name__}(" if is_own else "tensor("
    suffix = [
        "..." if shown is None else array_text(shown, x.meta.shape, _options, len(head)),
        *_layout(x),
    ]
    if x.value is not None:
        suffix.append(getattr(x.value, "shown", "is_lazy='True'"))
    if shown is None or x.meta.numel == 0:
        suffix.append(f"size={tuple(x.meta.shape)}")
    suffix.append(f"dtype={x.meta.dtype!r}")
    if x._grad_fn is not None:
        suffix.append(f"grad_fn={x._grad_fn!r}")
    elif x._requires_grad:
        suffix.append("requires_grad=True")
    text = _join(head, suffix)
    return f"Parameter({text})" if "_is_param" in vars(x) else text


def _layout(x: Tensor) -> list[str]:
    if x._placement is not None:
        return [f"placement={x._placement!r}", f"sbp={x._sbp!r}"]
    return [f"device='{x._device}'"] if device_type(x) != "cpu" else []


def _join(head: str, parts: list[str]) -> str:
    """Parts in one line if it fits, else those that do not fit go to lines of their own."""
    text = head + parts[0]
    width = len(text.rsplit("\n", 1)[-1]) + 1
    for part in parts[1:]:
        if width + len(part) + 2 > _options.linewidth:
            text += ",\n" + " " * len(head) + part
            width = len(head) + len(part)
        else:
            text += ", " + part
            width += len(part) + 2
    return text + ")"


# ---- which values are shown ----------------------------------------------------------------------


def _shown(x: Tensor) -> np.ndarray[Any, Any] | None:
    """The elements that are printed: all, or the edges of long dims. None: no values here."""
    if x.value is not None or x._device.type == META:
        return None
    positions = [shown_positions(size, x.meta.numel, _options) for size in x.meta.shape]
    if x._placement is not None:
        return _gathered(x, x._placement, positions)
    array = x._array
    for dim, where in enumerate(positions):
        if len(where) < x.meta.shape[dim]:
            array = array.take(where, axis=dim)
    return to_host(array)


def _gathered(
    x: Tensor, placement: Placement, positions: Sequence[np.ndarray[Any, Any]]
) -> np.ndarray[Any, Any]:
    """Each rank puts the wanted elements that it holds into zeros; their sum is printed. Copies of
    a shard beyond the first add nothing, so partial sums need no care.
    """
    here = on_ranks.world()
    dtype = x._array.dtype
    whole: np.ndarray[Any, Any] = np.zeros([len(w) for w in positions], _summable(dtype))
    if here.rank in placement:
        _put_own(x, placement, positions, whole)
    if here.world_size == 1:
        return whole.astype(dtype)
    what = _call_name(x, placement, whole.shape)
    return here.everyone.all_reduce(whole, what=what).astype(dtype)


def _put_own(
    x: Tensor,
    placement: Placement,
    positions: Sequence[np.ndarray[Any, Any]],
    whole: np.ndarray[Any, Any],
) -> None:
    rank = on_ranks.world().rank
    at = zip(x.sbp, placement.coordinate(rank), strict=True)
    if any(i for s, i in at if s.is_broadcast):
        return
    box = shard_box(x.meta.shape, x.sbp, placement, rank)
    part, places = x._array, []
    for dim, (where, start, stop) in enumerate(zip(positions, box.starts, box.stops, strict=True)):
        inside = np.flatnonzero((where >= start) & (where < stop))
        part = part.take(where[inside] - start, axis=dim)
        places.append(inside)
    whole[np.ix_(*places)] = to_host(part)


def _call_name(x: Tensor, placement: Placement, shown: tuple[int, ...]) -> str:
    """Name the printing to the other ranks, which must ask for the same elements."""
    part = "" if shown == x.meta.shape else f" ({list(shown)} of it)"
    return f"printing {x.meta} {nd_sbp_str(x.sbp)}@{placement.notation}{part}"


def _summable(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.uint8) if dtype == np.bool_ else dtype
