"""Samples of the special functions, and of windows and views by strides."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from .bessel_samples import bessel_samples
from .factoring_samples import factoring_samples
from .sample import Sample, between, distinct, integers, normal

Array = np.ndarray[Any, Any]


def _exact(name: str, *orders: int) -> Any:
    """A function of mpmath, element by element."""

    def reference(x: Array, **_: Any) -> Array:
        import mpmath

        function = getattr(mpmath, name)
        return np.vectorize(lambda v: float(function(*orders, float(v))), otypes=[np.float64])(x)

    return reference


def _clamped_logit(x: Array, eps: float) -> Array:
    p = np.clip(x, eps, 1 - eps)
    return np.log(p / (1 - p))


def _zeta(s: Array, q: Array) -> Array:
    import mpmath

    return np.vectorize(lambda a, b: float(mpmath.zeta(float(a), float(b))))(s, q)


def _scaled_erfc(x: Array) -> Array:
    return np.vectorize(lambda v: math.exp(v * v) * math.erfc(v), otypes=[np.float64])(x)


def _gamma_grad(a: Array, x: Array) -> Array:
    """The derivative of the distribution function by its shape, over the density, in 30 digits."""
    import mpmath

    def one(shape: float, at: float) -> float:
        with mpmath.workdps(30):
            share = mpmath.diff(lambda s: mpmath.gammainc(s, 0, at, regularized=True), shape)
            density = mpmath.mpf(at) ** (shape - 1) * mpmath.exp(-at) / mpmath.gamma(shape)
            return float(-share / density)

    return np.vectorize(one)(a, x)


_SHAPES = np.array([0.05, 0.7, 2.0, 2.0, 2.0, 30.0, 30.0, 150.0, 150.0]).reshape(3, 3)
_DRAWS = np.array([0.001, 5.0, 0.5, 2.9, 8.0, 22.0, 41.0, 130.0, 170.0]).reshape(3, 3)
_GAMMA = np.concatenate([between(0.1, 9, 9), between(-3.9, -3.1, 4), [30.0, 0.5]]).reshape(5, 3)


def _special() -> list[Sample]:
    return [
        Sample("standard_gamma_grad", (_SHAPES, _DRAWS), {}, _gamma_grad, tolerance=2e-5, wrt=()),
        Sample("erfinv", (between(-0.95, 0.95, 5, 4),), {}, _exact("erfinv")),
        Sample("erfinv", (np.array([-0.98, 1e-7, 0.0, 0.5]),), {}, _exact("erfinv")),
        Sample("erfc", (between(-3, 9, 5, 4),), {}, np.vectorize(math.erfc, otypes=[np.float64])),
        Sample("erfcx", (between(-2, 3, 5, 4),), {}, _scaled_erfc),
        Sample("lgamma", (np.abs(_GAMMA),), {}, _exact("loggamma")),
        Sample("digamma", (_GAMMA,), {}, _exact("digamma"), tolerance=2e-5),
        *(
            Sample("polygamma", (x,), {"order": n}, _exact("psi", n), tolerance=1e-4)
            for n, x in ((1, _GAMMA), (2, np.abs(_GAMMA)), (3, np.abs(_GAMMA) + 0.4))
        ),
        Sample("logit", (between(0.1, 0.9, 5, 4),), {}, lambda x: np.log(x / (1 - x))),
        Sample("logit", (between(0.02, 0.98, 5, 4),), {"eps": 0.2}, _clamped_logit),
        Sample("entr", (between(0.1, 3, 5, 4),), {}, lambda x: -x * np.log(x)),
        *(
            Sample("xlogy", x, {}, lambda a, b: a * np.log(b))
            for x in (
                (between(-2, 2, 5, 4), between(0.5, 3, 5, 4)),
                (between(-2, 2, 5, 1), between(0.5, 3, 4)),
            )
        ),
        Sample(
            "xlog1py",
            (between(-2, 2, 5, 4), between(-0.5, 3, 4)),
            {},
            lambda a, b: a * np.log1p(b),
        ),
        Sample("zeta", (between(1.2, 5, 5, 1), between(0.5, 9, 4)), {}, _zeta, wrt=(1,)),
    ]


def _unfold(x: Array, dim: int, size: int, step: int) -> Array:
    count = (x.shape[dim] - size) // step + 1
    rows = [x.take(range(i * step, i * step + size), axis=dim) for i in range(count)]
    return np.stack([np.moveaxis(r, dim, -1) for r in rows], axis=dim)


def _unfold_grad(d: Array, dim: int, step: int, length: int) -> Array:
    out = np.zeros((*d.shape[:dim], length, *d.shape[dim + 1 : -1]))
    moved, windows = np.moveaxis(out, dim, -1), np.moveaxis(d, dim, -2)
    for i in range(d.shape[dim]):
        for k in range(d.shape[-1]):
            moved[..., i * step + k] += windows[..., i, k]
    return out


def _places(size: Any, stride: Any, offset: int) -> Array:
    return offset + sum(i * s for i, s in zip(np.indices(size), stride, strict=True))


def _strided_grad(d: Array, shape: Any, stride: Any, offset: int) -> Array:
    out = np.zeros(math.prod(shape))
    np.add.at(out, _places(d.shape, stride, offset), d)
    return out.reshape(shape)


def _strided_update(x: Array, part: Array, stride: Any, offset: int) -> Array:
    out = x.reshape(-1).copy()
    out[_places(part.shape, stride, offset)] = part
    return out.reshape(x.shape)


def _sliding() -> list[Sample]:
    result = []
    for attrs in ({"dim": 0, "size": 3, "step": 1}, {"dim": 1, "size": 2, "step": 3}):
        result.append(Sample("unfold", (normal(5, 9, 3),), attrs, _unfold))
    for d, attrs in (
        (normal(3, 4, 3), {"dim": 0, "step": 1, "length": 5}),
        (normal(4, 3, 5, 2), {"dim": 1, "step": 3, "length": 9}),
    ):
        result.append(Sample("unfold_grad", (d,), attrs, _unfold_grad))
    for size, stride, offset in (((3, 2), (5, 2), 1), ((4, 3), (1, 1), 0), ((), (), 3)):
        at: dict[str, Any] = {"stride": stride, "offset": offset}
        x = normal(5, 4)
        result += [
            Sample(
                "as_strided",
                (x,),
                {"size": size, **at},
                lambda x, size, stride, offset: x.reshape(-1)[_places(size, stride, offset)],
            ),
            Sample("as_strided_grad", (normal(*size),), {"shape": (5, 4), **at}, _strided_grad),
        ]
        if stride != (1, 1):
            part = normal(*size, seed=1)
            result.append(Sample("as_strided_update", (x, part), at, _strided_update))
    ints = integers(-9, 9, 6)
    result.append(Sample("unfold", (ints,), {"dim": 0, "size": 2, "step": 2}, _unfold))
    return result


def _running(x: Array, dim: int, largest: bool) -> tuple[Array, Array]:
    extreme = np.maximum if largest else np.minimum
    values = extreme.accumulate(x, axis=dim)
    moved, line = np.moveaxis(values, dim, -1), np.moveaxis(x, dim, -1)
    places = np.zeros(moved.shape, np.int64)
    for i in range(line.shape[-1]):
        for j in range(i + 1):
            places[..., i] = np.where(line[..., j] == moved[..., i], j, places[..., i])
    return values, np.moveaxis(places, -1, dim)


def _scans() -> list[Sample]:
    def sums(x: Array, dim: int) -> Array:
        return np.log(np.cumsum(np.exp(x), axis=dim))

    x, ties = distinct(5, 4), np.array([1.0, 3.0, 3.0, 2.0, 3.0])
    return [
        *(
            Sample("cumextreme", (x,), {"dim": d, "largest": b}, _running)
            for d in (0, 1)
            for b in (True, False)
        ),
        Sample("cumextreme", (ties,), {"dim": 0, "largest": True}, _running, wrt=()),
        Sample("logcumsumexp", (normal(5, 4),), {"dim": 0}, sums),
        Sample("logcumsumexp", (normal(3, 5, 2),), {"dim": 1}, sums),
    ]


def _pairs() -> list[Sample]:
    a, b = integers(-20, 20, 5, 4), integers(1, 20, 4, seed=1)
    x, y = normal(5, 4) + 3, normal(4, seed=1)
    return [
        Sample("gcd", (a, b), {}, np.gcd),
        Sample("lcm", (a, b), {}, np.lcm),
        Sample("bitwise_left_shift", (a, b % 5), {}, lambda a, b: a * 2**b),
        Sample("bitwise_right_shift", (a, b % 5), {}, lambda a, b: a // 2**b),
        Sample("hypot", (x, y), {}, lambda a, b: np.sqrt(a * a + b * b)),
        Sample("copysign", (x, y), {}, lambda a, b: np.abs(a) * np.sign(b)),
        Sample("nextafter", (x, y), {}, np.nextafter, tolerance=1e-6),
        Sample("frexp", (x * 5,), {}, np.frexp, compared=(0,)),
    ]


def _complex_samples() -> list[Sample]:
    z = normal(5, 4) + 1j * normal(5, 4, seed=1)
    x, y = normal(5, 4), normal(4, seed=2)
    pairs = normal(5, 3, 2)
    return [
        Sample("conj", (z,), {}, np.conj),
        Sample("real", (z,), {}, np.real),
        Sample("imag", (z,), {}, np.imag),
        Sample("complex", (x, y), {}, lambda a, b: a + 1j * b, dtypes=("float64",), wrt=()),
        Sample("complex_abs", (z,), {}, lambda x: np.sqrt(x.real**2 + x.imag**2)),
        Sample("complex_angle", (z,), {}, np.angle),
        Sample("view_as_real", (z,), {}, lambda x: np.stack([x.real, x.imag], -1)),
        Sample(
            "view_as_complex",
            (pairs,),
            {},
            lambda x: x[..., 0] + 1j * x[..., 1],
            dtypes=("float64",),
            wrt=(),
        ),
    ]


def _turning(n: int) -> Array:
    """The matrix of the transform of n elements."""
    return np.exp(-2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n)


def _transform(x: Array, dims: Any, inverse: bool, scale: float) -> Array:
    out = x.astype(np.complex128)
    for d in dims:
        matrix = _turning(x.shape[d])
        matrix = matrix.conj() if inverse else matrix
        out = np.moveaxis(np.tensordot(matrix, out, (1, d)), 0, d)
    return out * scale


def _fft_samples() -> list[Sample]:
    z = normal(5, 4) + 1j * normal(5, 4, seed=1)

    def c2c(x: Array, dims: Any, is_inverse: bool = False, scale: float = 1.0) -> Array:
        return _transform(x, dims, is_inverse, scale)

    def r2c(x: Array, dims: Any, scale: float = 1.0) -> Array:
        n = x.shape[dims[-1]] // 2 + 1
        return _transform(x, dims, False, scale).take(range(n), axis=dims[-1])

    def c2r(x: Array, dims: Any, size: int, scale: float = 1.0) -> Array:
        x = _transform(x, dims[:-1], True, 1.0)
        last = dims[-1]
        k = np.arange(size // 2 + 1)
        weight = np.where((k == 0) | (2 * k == size), 1, 2)[:, None]
        table = weight * np.exp(2j * np.pi * np.outer(k, np.arange(size)) / size)
        return np.moveaxis(np.tensordot(table, x, (0, last)), 0, last).real * scale

    real: dict[str, Any] = {"dtypes": ("float64",), "wrt": ()}
    return [
        Sample("fft_c2c", (z,), {"dims": (1,)}, c2c),
        Sample("fft_c2c", (z,), {"dims": (0, 1), "is_inverse": True, "scale": 0.25}, c2c),
        Sample("fft_r2c", (normal(5, 4),), {"dims": (1,)}, r2c, **real),
        Sample("fft_r2c", (normal(4, 5),), {"dims": (0, 1), "scale": 0.5}, r2c, **real),
        Sample("fft_c2r", (z,), {"dims": (1,), "size": 6}, c2r),
        Sample("fft_c2r", (z,), {"dims": (1,), "size": 7, "scale": 0.5}, c2r),
        Sample("fft_c2r", (z[:4],), {"dims": (1, 0), "size": 7}, c2r),
    ]


def _paths(targets: Array, frames: Array, lengths: Array, classes: int, blank: int) -> Any:
    """Yield each sample's number and each path of its target."""
    for n in range(len(targets)):
        wanted = list(targets[n, : lengths[n]])
        for path in itertools.product(range(classes), repeat=int(frames[n])):
            if [c for c, _ in itertools.groupby(path) if c != blank] == wanted:
                yield n, path


def _ctc_loss(log_probs: Array, targets: Array, frames: Array, lengths: Array, blank: int) -> Any:
    """The sum over all paths, sample by sample."""
    total = np.zeros(len(targets))
    for n, path in _paths(targets, frames, lengths, log_probs.shape[2], blank):
        total[n] += np.exp(sum(log_probs[t, n, c] for t, c in enumerate(path)))
    return -np.log(total), None


def _ctc_slopes(
    d: Array, log_probs: Array, targets: Array, frames: Array, lengths: Array, *_: Array, blank: int
) -> Array:
    """The share of all paths that are at each class in each frame, times -d."""
    shares = np.zeros_like(log_probs)
    for n, path in _paths(targets, frames, lengths, log_probs.shape[2], blank):
        at = range(len(path)), n, path
        shares[at] += np.exp(log_probs[at].sum())
    return -d[:, None] * shares / np.maximum(shares.sum(axis=2, keepdims=True), 1e-300)


def _ctc_beginnings(log_probs: Array, targets: Array) -> Array:
    """The logarithm of the sum of all beginnings of paths that end at each place among the targets
    and the blanks (0) around them, by frame and sample."""
    frames, batch, _ = log_probs.shape
    places = np.zeros((batch, 2 * targets.shape[1] + 1), np.int64)
    places[:, 1::2] = targets
    found = np.zeros((frames, *places.shape))
    for n, t, s in itertools.product(range(batch), range(frames), range(places.shape[1])):
        skips = s > 1 and places[n, s] not in (0, places[n, s - 2])
        before = found[t - 1, n, max(s - 1 - skips, 0) : s + 1].sum() if t else float(s < 2)
        found[t, n, s] = before * np.exp(log_probs[t, n, places[n, s]])
    with np.errstate(divide="ignore"):
        return np.log(found)


def _ctc_samples() -> list[Sample]:
    logs = normal(4, 5, 3)
    logs -= np.log(np.exp(logs).sum(axis=-1, keepdims=True))
    targets = np.array([[1, 2], [1, 1], [2, 0], [0, 0], [2, 1]])
    frames, lengths = np.array([4, 4, 3, 2, 2]), np.array([2, 2, 1, 0, 2])
    given = (logs, targets, frames, lengths)
    d, loss = normal(5, seed=1), _ctc_loss(*given, 0)[0]
    return [
        Sample("ctc_loss", given, {"blank": 0}, _ctc_loss, tolerance=1e-4, compared=(0,)),
        Sample(
            "ctc_loss_grad",
            (d, *given, loss, _ctc_beginnings(logs, targets)),
            {"blank": 0},
            _ctc_slopes,
            wrt=(),
            tolerance=1e-4,
        ),
    ]


def _linalg_samples() -> list[Sample]:
    a = normal(5, 3, 3) + 3 * np.eye(3)
    b, even = normal(5, 3, 2, seed=1), a @ a.swapaxes(-1, -2)
    tall, wide = normal(5, 4, 3), normal(5, 3, 4)
    turned = a * np.array([1, -1, 1, -1, -1])[:, None, None]  # determinants of both signs
    x = {"tolerance": 1e-3}
    svd = {**x, "compared": (1,)}

    def singular(x: Array) -> tuple[Array | None, Array, Array | None]:
        return None, np.sqrt(np.linalg.eigvalsh(x @ x.swapaxes(-1, -2))[..., ::-1]), None

    return [
        Sample("inv", (a,), {}, lambda x: np.linalg.solve(x, np.broadcast_to(np.eye(3), x.shape))),
        Sample("solve", (a, b), {}, lambda a, b: np.linalg.inv(a) @ b, **x),
        Sample("slogdet", (turned,), {}, lambda x: tuple(np.linalg.slogdet(x)), **x),
        Sample("det", (a,), {}, np.linalg.det, **x),
        Sample("cholesky", (even,), {}, np.linalg.cholesky, **x, wrt=()),
        Sample("qr", (tall,), {}, lambda x: tuple(np.linalg.qr(x)), **x),
        Sample("qr", (wide,), {}, lambda x: tuple(np.linalg.qr(x)), **x),
        Sample("eigh", (even,), {}, lambda x: (np.linalg.eigvalsh(x), None), wrt=(), compared=(0,)),
        Sample("svd", (wide,), {}, singular, **svd),
        Sample("svd", (normal(5, 3, 3),), {}, singular, **svd),
        Sample("pinv", (tall,), {"rtol": 1e-12}, lambda x, rtol: np.linalg.pinv(x), **x),
        Sample("pinv", (wide,), {"rtol": 1e-12}, lambda x, rtol: np.linalg.pinv(x), **x),
    ]


SPECIAL_SAMPLES: list[Sample] = [
    *_linalg_samples(),
    *factoring_samples(),
    *bessel_samples(),
    *_ctc_samples(),
    *_complex_samples(),
    *_fft_samples(),
    *_special(),
    *_sliding(),
    *_scans(),
    *_pairs(),
]
