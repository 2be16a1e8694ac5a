"""How tensors print: `tensor([1., 2.], dtype=oneflow.float32)`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oneflow.tensor.tensor import Tensor, device_type


@dataclass(frozen=True)
class PrintOptions:
    """precision: digits after the point.  threshold: above so many elements only edgeitems per dim
    are shown.
    """

    precision: int = 4
    threshold: int = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES = {
    "default": PrintOptions(),
    "short": PrintOptions(precision=2, edgeitems=2),
    "full": PrintOptions(threshold=2**62),
}
_options = PrintOptions()


def set_printoptions(
    precision: int | None = None,
    threshold: int | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Changes how tensors print; what is not given stays.  profile: "default", "short" or
    "full".
    """
    global _options
    base = _options if profile is None else _PROFILES[profile]
    given = {
        "precision": precision,
        "threshold": threshold,
        "edgeitems": edgeitems,
        "linewidth": linewidth,
        "sci_mode": sci_mode,
    }
    _options = replace(base, **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]


def tensor_text(x: Tensor) -> str:
    """The repr of a tensor. Of a global one every rank must ask."""
    content = "..." if x.value is not None else _content(x.numpy())
    suffix = [content, *_layout(x)]
    if x.value is not None:
        suffix.append("is_lazy='True'")
    if x.value is not None or x.type.numel == 0:
        suffix.append(f"size={tuple(x.type.shape)}")
    suffix.append(f"dtype={x.type.dtype!r}")
    if x._grad_fn is not None:
        suffix.append(f"grad_fn={x._grad_fn!r}")
    elif x._requires_grad:
        suffix.append("requires_grad=True")
    return _join(suffix)


def _layout(x: Tensor) -> list[str]:
    if x._placement is not None:
        return [f"placement={x._placement!r}", f"sbp={x._sbp!r}"]
    return [f"device='{x._device}'"] if device_type(x) != "cpu" else []


def _content(array: np.ndarray[Any, Any]) -> str:
    if array.size == 0:
        return "[]"
    with np.printoptions(
        precision=_options.precision,
        threshold=_options.threshold,
        edgeitems=_options.edgeitems,
        linewidth=_options.linewidth,
        floatmode="maxprec_equal",
        suppress=_options.sci_mode is False,
    ):
        formatter: Any = {"float_kind": _scientific} if _wants_scientific(array) else None
        text = np.array2string(array, separator=", ", prefix="tensor(", formatter=formatter)
    return str(text)


def _wants_scientific(array: np.ndarray[Any, Any]) -> bool:
    if array.dtype.kind != "f" or _options.sci_mode is False:
        return False
    if _options.sci_mode:
        return True
    size = np.abs(array[np.isfinite(array) & (array != 0)])
    return bool(
        size.size and (size.max() > 1e8 or size.min() < 1e-4 or size.max() / size.min() > 1e3)
    )


def _scientific(value: float) -> str:
    return f"{value:.{_options.precision}e}"


def _join(parts: list[str]) -> str:
    """Parts in one line if it fits, else what does not fit goes to lines of its own."""
    text = "tensor(" + parts[0]
    width = len(text.rsplit("\n", 1)[-1])
    for part in parts[1:]:
        if width + len(part) + 2 > _options.linewidth + 10:
            text += ",\n       " + part
            width = 7 + len(part)
        else:
            text += ", " + part
            width += len(part) + 2
    return text + ")"
