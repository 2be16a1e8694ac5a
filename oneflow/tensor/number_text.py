"""Arrays as text, in the form that PyTorch gives them: numbers of one width, `...` for omitted
elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oneflow.kernels.array import Array

Format = Callable[[Any], str]


@dataclass(frozen=True)
class PrintOptions:
    """The options of `set_printoptions`.

    precision: digits after the point. threshold: above so many elements only edgeitems per end of
    each dim are shown. linewidth: characters. sci_mode: None: where the numbers ask for it.
    """

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


def shown_positions(size: int, numel: int, options: PrintOptions) -> Array:
    """Return which positions along a dim of that size are shown of a tensor of `numel` elements."""
    edge = options.edgeitems
    if numel <= options.threshold or size <= 2 * edge:
        return np.arange(size)
    return np.concatenate([np.arange(edge), np.arange(size - edge, size)])


def array_text(shown: Array, shape: Sequence[int], options: PrintOptions, indent: int) -> str:
    """Write the shown elements of a tensor as nested lists.

    shown: the elements at `shown_positions`. shape: of the whole. indent: of new lines.
    """
    if shown.size == 0:
        return "[]"
    if shown.dtype.name == "bfloat16":
        shown = shown.astype(np.float32)
    return _nested(shown, tuple(shape), number_format(shown, options), options, indent)


def _nested(
    shown: Array, shape: tuple[int, ...], form: Format, options: PrintOptions, indent: int
) -> str:
    if not shape:
        return form(shown[()])
    is_cut = shown.shape[0] < shape[0]
    if len(shape) == 1:
        return _row([form(v) for v in shown], is_cut, options, indent)
    parts = [_nested(part, shape[1:], form, options, indent + 1) for part in shown]
    if is_cut:
        parts.insert(options.edgeitems, "...")
    gap = "," + "\n" * (len(shape) - 1) + " " * (indent + 1)
    return "[" + gap.join(parts) + "]"


def _row(words: list[str], is_cut: bool, options: PrintOptions, indent: int) -> str:
    room = options.linewidth - indent
    per_line = max(1, room // (len(words[0]) + 2))
    if is_cut:
        words.insert(options.edgeitems, " ...")
    lines = [", ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


# ---- single numbers ------------------------------------------------------------------------------


def number_format(values: Array, options: PrintOptions) -> Format:
    """Choose a format in which all `values` take the same width."""
    kind = values.dtype.kind
    if kind == "c":
        real, imag = (number_format(v, options) for v in (values.real, values.imag))
        return lambda v: real(v.real) + _signed(imag(v.imag).lstrip()) + "j"
    write = _float_writer(values.astype(np.float64), options) if kind == "f" else str
    regular = values[np.isfinite(values) & (values != 0)] if kind == "f" else values
    width = max((len(write(v)) for v in regular.reshape(-1)), default=1)
    return lambda v: write(v).rjust(width)


def _signed(text: str) -> str:
    return text if text[0] in "+-" else "+" + text


def _float_writer(values: Array, options: PrintOptions) -> Format:
    """Whole numbers as `2.`, others with `precision` digits, or in scientific notation."""
    regular = values[np.isfinite(values) & (values != 0)]
    is_whole = bool(np.all(regular == np.ceil(regular)))
    is_scientific = options.sci_mode
    if is_scientific is None:
        is_scientific = _needs_exponent(np.abs(regular), is_whole)
    digits = f".{options.precision}{'e' if is_scientific else 'f'}"
    if is_scientific or not is_whole:
        return lambda v: format(float(v), digits)
    return lambda v: f"{float(v):.0f}." if math.isfinite(v) else format(float(v))


def _needs_exponent(sizes: Array, is_whole: bool) -> bool:
    if not sizes.size:
        return False
    high, low = float(sizes.max()), float(sizes.min())
    return high / low > 1000.0 or high > 1e8 or (not is_whole and low < 1e-4)
