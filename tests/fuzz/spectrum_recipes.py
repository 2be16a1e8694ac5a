"""Recipes of transforms and complex numbers. Complex results are shown as pairs."""

from __future__ import annotations

from .drawing import Draft, name_of
from .operands import WIDE, between, fresh, of, second
from .recipes import nothing, recipe

PAIRS = "m.view_as_real(({}).resolve_conj())"


def complex_numbers(d: Draft, shape: tuple[int, ...] | None = None) -> str:
    x = d.leaf(d.shape() if shape is None else shape, d.pick(WIDE), special=False)
    y = d.leaf(tuple(d.values[x].shape), name_of(d.values[x]), special=False)
    return f"m.complex({x}, {y})"


def real_or_complex(d: Draft) -> str:
    shape = d.pick(((4,), (5,), (2, 3), (3, 4), (2, 3, 4), (1,)))
    return complex_numbers(d, shape) if d.chance(0.4) else fresh(shape, dtypes=WIDE)(d)


def spectrum(d: Draft, x: str) -> list[str]:
    """n, dim, norm of a transform in one dim."""
    found = [f"n={d.pick((2, 3, 4, 5))}"] if d.chance(0.3) else []
    found += (
        [f"dim={d.rng.randint(-d.values[x].ndim, d.values[x].ndim - 1)}"] if d.chance(0.5) else []
    )
    return [*found, *(["norm='ortho'"] if d.chance(0.25) else [])]


def norm_of_spectrum(d: Draft, x: str) -> list[str]:
    return [f"norm='{d.pick(('ortho', 'forward', 'backward'))}'"] if d.chance(0.4) else []


recipe("fft.fft fft.ifft", spectrum, own=real_or_complex, result=PAIRS)
recipe("fft.fftn fft.ifftn", norm_of_spectrum, own=real_or_complex, result=PAIRS)
recipe("fft.rfft fft.ihfft", spectrum, own=fresh((4,), (5,), (2, 3), dtypes=WIDE), result=PAIRS)
recipe("fft.irfft fft.hfft", spectrum, own=real_or_complex)
recipe(
    "fft.rfftn fft.ihfftn",
    norm_of_spectrum,
    own=fresh((4,), (2, 3), (2, 3, 4), dtypes=WIDE),
    result=PAIRS,
)
recipe(
    "fft.rfft2 fft.fft2 fft.ifft2 fft.ihfft2",
    norm_of_spectrum,
    own=fresh((3, 4), (2, 3), (2, 3, 4), dtypes=WIDE),
    result=PAIRS,
)
recipe(
    "fft.irfftn fft.irfft2 fft.hfft2 fft.hfftn",
    norm_of_spectrum,
    own=fresh((3, 4), (2, 3), (2, 3, 4), dtypes=WIDE),
)
recipe(
    "fft.fftshift fft.ifftshift",
    of("", "dim=-1", "dim=0"),
    "moves",
    own=fresh((4,), (2, 3), (3, 5)),
)
recipe("imag", nothing, "moves", own=complex_numbers)
recipe("view_as_real", nothing, "moves", own=complex_numbers)
recipe("polar", second(-3, 3), own=between(0.25, 3), result=PAIRS)
recipe(
    "stft",
    of(
        "4, return_complex=True",
        "4, 2, return_complex=True",
        "3, 1, center=False, return_complex=True",
    ),
    own=fresh((8,), (2, 9), dtypes=WIDE),
    result=PAIRS,
)
