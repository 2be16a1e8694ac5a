"""Fourier transforms, as `flow.fft` has them, and those of short windows.

norm: where the division by the number n of elements takes place: "backward" (the default): in the
inverse transforms; "forward": in the others; "ortho": by the root of n in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from oneflow.core import dtype as dtypes
from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DType
from oneflow.core.errors import ArgumentError, DTypeError, ShapeError
from oneflow.functional.arithmetic import div, mul
from oneflow.functional.complex_numbers import conj, real, view_as_complex, view_as_real
from oneflow.functional.concat_split import cat, narrow
from oneflow.functional.creation import arange
from oneflow.functional.dims import one_dim
from oneflow.functional.nn.layers import pad
from oneflow.functional.promotion import as_float, as_type
from oneflow.functional.shaping import expand, pad_with, reshape, roll, unsqueeze
from oneflow.functional.strides import unfold_dim
from oneflow.ops import fft as ops
from oneflow.ops import sliding
from oneflow.ops.complex_numbers import WHOLES
from oneflow.tensor.tensor import Tensor

Dims = int | Sequence[int] | None


def _scale(count: int, norm: str | None, is_inverse: bool) -> float:
    if norm not in (None, "backward", "ortho", "forward"):
        raise ArgumentError(f'Invalid normalization mode: "{norm}"')
    if norm == "ortho":
        return 1.0 / math.sqrt(count)
    return 1.0 / count if is_inverse == (norm in (None, "backward")) else 1.0


def _complex(x: Tensor) -> Tensor:
    if x.meta.dtype.is_complex:
        return x
    x = as_float(x)
    if x.meta.dtype not in WHOLES:
        raise DTypeError(f"fft: Unsupported dtype {x.meta}; cast it to float32")
    return as_type(x, WHOLES[x.meta.dtype])


def _real(who: str, x: Tensor) -> Tensor:
    if x.meta.dtype.is_complex:
        raise DTypeError(f"{who} expects a real input tensor, but got {x.meta}")
    return as_float(x)


def _resized(x: Tensor, dim: int, size: int) -> Tensor:
    """`x` cut, or with zeros at its end."""
    own = x.meta.shape[dim]
    if size < 1:
        raise ShapeError(f"fft: Invalid number of data points ({size}) specified")
    if size <= own:
        return x if size == own else narrow(x, dim, 0, size)
    pads = tuple(n for i in range(x.ndim) for n in (0, size - own if i == dim else 0))
    return pad_with(x, pads, 0)


def _places(x: Tensor, s: Dims, dim: Dims, who: str) -> tuple[tuple[int, ...], list[int]]:
    """The dims that are transformed, and their sizes; -1: its own."""
    sizes = None if s is None else [s] if isinstance(s, int) else [int(n) for n in s]
    if dim is None:
        count = x.ndim if sizes is None else len(sizes)
        if count > x.ndim:
            raise ShapeError(f"{who}: got shape with {count} values but {x.meta} has less dims")
        dims = tuple(range(x.ndim - count, x.ndim))
    else:
        many = (dim,) if isinstance(dim, int) else tuple(dim)
        dims = tuple(one_dim(d, x.ndim, who) for d in many)
    if len(set(dims)) != len(dims):
        raise ShapeError(f"{who}: FFT dims must be unique, got {dim}")
    if sizes is None:
        sizes = [-1] * len(dims)
    if len(sizes) != len(dims):
        raise ShapeError(f"{who}: dim {dim} and the shape {s} must have the same length")
    return dims, sizes


def _cut(x: Tensor, dims: tuple[int, ...], sizes: list[int]) -> Tensor:
    for d, n in zip(dims, sizes, strict=True):
        x = _resized(x, d, x.meta.shape[d] if n == -1 else n)
    return x


def _count(x: Tensor, dims: tuple[int, ...]) -> int:
    return math.prod(x.meta.shape[d] for d in dims)


def _c2c(x: Tensor, s: Dims, dim: Dims, norm: str | None, is_inverse: bool, who: str) -> Tensor:
    x = _complex(x)
    dims, sizes = _places(x, s, dim, who)
    x = _cut(x, dims, sizes)
    scale = _scale(_count(x, dims), norm, is_inverse)
    return ops.fft_c2c(x, dims=dims, is_inverse=is_inverse, scale=scale) if dims else x


def _r2c(x: Tensor, s: Dims, dim: Dims, norm: str | None, is_inverse: bool, who: str) -> Tensor:
    x = _real(who, x)
    dims, sizes = _places(x, s, dim, who)
    if not dims:
        raise ShapeError(f"{who} must transform at least one axis")
    x = _cut(x, dims, sizes)
    out = ops.fft_r2c(x, dims=dims, scale=_scale(_count(x, dims), norm, is_inverse))
    return conj(out) if is_inverse else out


def _c2r(x: Tensor, s: Dims, dim: Dims, norm: str | None, is_inverse: bool, who: str) -> Tensor:
    x = _complex(x)
    dims, sizes = _places(x, s, dim, who)
    if not dims:
        raise ShapeError(f"{who} must transform at least one axis")
    last = dims[-1]
    size = 2 * (x.meta.shape[last] - 1) if sizes[-1] == -1 else sizes[-1]
    if size < 1:
        raise ShapeError(f"{who}: Invalid number of data points ({size}) specified")
    x = _cut(x, dims, [*sizes[:-1], size // 2 + 1])
    count = _count(x, dims[:-1]) * size
    x = x if is_inverse else conj(x)
    return ops.fft_c2r(x, dims=dims, size=size, scale=_scale(count, norm, is_inverse))


class _Along(Protocol):
    def __call__(
        self, input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None
    ) -> Tensor: ...


class _Over(Protocol):
    def __call__(
        self, input: Tensor, s: Dims = None, dim: Dims = None, norm: str | None = None
    ) -> Tensor: ...


_Kind = Callable[[Tensor, Dims, Dims, str | None, bool, str], Tensor]


def _family(
    kind: _Kind, name: str, doc: str, *, is_inverse: bool = False
) -> tuple[_Along, _Over, _Over]:
    """The transform along one dim, over the last two, and over several, named as users know them.

    doc: of the first, in which DIMS stands for the dims.
    """

    def along(
        input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None
    ) -> Tensor:
        return kind(input, n, dim, norm, is_inverse, name)

    def plane(
        input: Tensor, s: Dims = None, dim: Dims = (-2, -1), norm: str | None = None
    ) -> Tensor:
        return kind(input, s, dim, norm, is_inverse, f"{name}2")

    def over(input: Tensor, s: Dims = None, dim: Dims = None, norm: str | None = None) -> Tensor:
        return kind(input, s, dim, norm, is_inverse, f"{name}n")

    texts = (
        "along `dim`.  n: the input is cut, or filled with zeros, to that size first",
        "over two dims",
        "over several dims, all if None",
    )
    for made, tail, dims in zip((along, plane, over), ("", "2", "n"), texts, strict=True):
        made.__name__ = made.__qualname__ = name + tail
        made.__doc__ = doc.replace("DIMS", dims)
    return along, plane, over


fft, fft2, fftn = _family(_c2c, "fft", "The Fourier transform DIMS.")
ifft, ifft2, ifftn = _family(
    _c2c, "ifft", "The inverse of the Fourier transform DIMS.", is_inverse=True
)
rfft, rfft2, rfftn = _family(
    _r2c, "rfft", "Half of the transform of real numbers, whose rest is its mirror image, DIMS."
)
irfft, irfft2, irfftn = _family(
    _c2r,
    "irfft",
    "The real inverse of a half transform of m numbers, of size 2 (m - 1), DIMS.",
    is_inverse=True,
)
hfft, hfft2, hfftn = _family(
    _c2r, "hfft", "The real transform of numbers, of which the input is the first half, DIMS."
)
ihfft, ihfft2, ihfftn = _family(
    _r2c, "ihfft", "The first half of the inverse transform of real numbers DIMS.", is_inverse=True
)


def _shifted(input: Tensor, dim: Dims, forward: bool) -> Tensor:
    dims, _ = _places(input, None, dim, "fftshift")
    sizes = [input.meta.shape[d] for d in dims]
    return roll(input, [n // 2 if forward else (n + 1) // 2 for n in sizes], dims)


def fftshift(input: Tensor, dim: Dims = None) -> Tensor:
    """The frequency 0 moved to the middle of each dim."""
    return _shifted(input, dim, True)


def ifftshift(input: Tensor, dim: Dims = None) -> Tensor:
    """The inverse of `fftshift`."""
    return _shifted(input, dim, False)


def fftfreq(
    n: int, d: float = 1.0, *, dtype: DType | None = None, device: DeviceLike | None = None
) -> Tensor:
    """The frequencies of `fft` of n samples that are d apart."""
    up, down = arange(0, (n + 1) // 2, 1), arange(-(n // 2), 0, 1)
    steps = as_type(cat([up, down], 0), dtype or dtypes.float32)
    out = mul(steps, 1.0 / (n * d))
    return out if device is None else out.to(device)


def rfftfreq(
    n: int, d: float = 1.0, *, dtype: DType | None = None, device: DeviceLike | None = None
) -> Tensor:
    """The frequencies of `rfft` of n samples that are d apart."""
    out = mul(as_type(arange(0, n // 2 + 1, 1), dtype or dtypes.float32), 1.0 / (n * d))
    return out if device is None else out.to(device)


# ---- short windows -------------------------------------------------------------------------------


def _window(like: Tensor, window: Tensor | None, length: int, n_fft: int) -> Tensor:
    """The window of `length` samples, with zeros on both sides up to n_fft."""
    part = like.meta.dtype
    shape = like if window is None else window
    if window is not None and (window.ndim != 1 or window.meta.shape[0] != length):
        raise ShapeError(f"stft: expected a 1D window of {length} elements, got {shape.meta}")
    values = like.new_ones((length,)) if window is None else window
    left = (n_fft - length) // 2
    values = values if values.meta.dtype.is_complex else as_type(values, part)
    return pad_with(values, (left, n_fft - length - left), 0)


def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Tensor:
    """The transforms of windows of n_fft samples, hop_length apart: (frequencies, windows), after
    the batch dim if there is one.

    center: a window is around its sample, beyond the ends as pad_mode says.  onesided: the first
    half of the frequencies, as usual for real samples.
    """
    x = input if input.ndim == 2 else unsqueeze(input, 0)
    hop, length = hop_length or n_fft // 4, win_length or n_fft
    if x.ndim != 2 or not 0 < length <= n_fft or hop <= 0:
        raise ShapeError(
            f"stft: cannot cut {input.meta} into windows of {length} of {n_fft}, {hop} apart"
        )
    is_real = not x.meta.dtype.is_complex
    if center:
        edge = n_fft // 2
        x = reshape(pad(unsqueeze(x, 1), (edge, edge), mode=pad_mode), (x.meta.shape[0], -1))
    if x.meta.shape[1] < n_fft:
        raise ShapeError(f"stft: expected 0 < n_fft <= {x.meta.shape[1]}, got n_fft {n_fft}")
    frames = unfold_dim(x, 1, n_fft, hop)
    if window is not None or length != n_fft:
        frames = mul(frames, _window(frames, window, length, n_fft))
    half = is_real if onesided is None else onesided
    norm = "ortho" if normalized else None
    out = rfft(frames, norm=norm) if half else fft(frames, norm=norm)
    out = out.transpose(1, 2)
    out = out if input.ndim == 2 else reshape(out, out.meta.shape[1:])
    return view_as_real(out) if return_complex is False else out


def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The samples of which `stft` has made `input`, by adding up the windows.  length: of the
    result.
    """
    x = input if input.meta.dtype.is_complex else view_as_complex(input)
    single = x.ndim == 2
    x = unsqueeze(x, 0) if single else x
    hop, wide = hop_length or n_fft // 4, win_length or n_fft
    half = x.meta.shape[1] != n_fft if onesided is None else onesided
    if x.meta.shape[1] != (n_fft // 2 + 1 if half else n_fft):
        raise ShapeError(f"istft: {input.meta} does not have the frequencies of n_fft {n_fft}")
    norm = "ortho" if normalized else None
    spectra = x.transpose(1, 2)
    frames = irfft(spectra, n_fft, norm=norm) if half else ifft(spectra, norm=norm)
    frames = frames if return_complex or not frames.meta.dtype.is_complex else real(frames)
    shape = _window(frames, window, wide, n_fft)
    count = frames.meta.shape[1]
    whole = n_fft + hop * (count - 1)
    total = sliding.unfold_grad(mul(frames, conj(shape)), dim=1, step=hop, length=whole)
    size = mul(shape, conj(shape))
    weight = expand(unsqueeze(size, 0), (count, n_fft))
    weight = sliding.unfold_grad(weight, dim=0, step=hop, length=whole)
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else whole - (n_fft // 2 if center else 0)
    stop = min(end, whole)
    heavy = narrow(weight, 0, start, stop - start)
    needed = heavy if not heavy.meta.dtype.is_complex else real(heavy)
    if needed._array is not None and float(needed.abs().min().item()) < 1e-11:
        raise ArgumentError("istft: window overlap add min: 1")
    out = div(narrow(total, 1, start, stop - start), heavy)
    if end > stop:
        out = pad_with(out, (0, 0, 0, end - stop), 0)
    return reshape(out, out.meta.shape[1:]) if single else out
