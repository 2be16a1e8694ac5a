"""exp, tanh and the normal distribution for float32, written so that LLVM turns loops over them
into vector code.

numba's `math.exp` calls libm once per element. Here exp(x) = 2^n * exp(r), |r| <= ln(2) / 2, with
exp(r) a polynomial and 2^n made of bits. NaN stays NaN everywhere. Errors are below 2 units in the
last place of float32 for exp.
"""

from __future__ import annotations

from functools import wraps
from importlib import import_module
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, njit, set_num_threads, types
from numba.extending import intrinsic

from oneflow.core.jit import compiled
from oneflow.kernels.normal import scaled_erfc_coefficients
from oneflow.kernels.threads import allowed

F = np.float32
REORDER = {"reassoc", "contract", "nsz"}
"""Sums may be reordered and products contracted, which vector code needs; NaN and infinity keep
their meaning.
"""


def inlined(function: Any) -> Any:
    """Compiles a helper that becomes part of every loop that calls it. Division by zero gives
    infinity, as in NumPy: the check that Python makes would keep the loop from becoming vector
    code."""
    return njit(inline="always", fastmath=REORDER, error_model="numpy")(function)


def _may_run_parallel() -> bool:
    """Is there a threading layer that several Python threads may call at once?

    TBB and OpenMP are; numba's own work queue, which it falls back to where neither library is
    installed, ends the process instead.
    """
    if config.THREADING_LAYER == "workqueue":  # type: ignore[attr-defined]
        return False
    for pool in ("tbbpool", "omppool"):
        try:
            import_module(f"numba.np.ufunc.{pool}")
        except ImportError:
            continue
        return True
    return False


PARALLEL = _may_run_parallel()


ALONE = 1 << 19
"""Elements below which one thread does a loop. Waking a second one for less gains little on an idle
machine (training steps of a small GPT took 26.4 ms with two threads everywhere, 25.2 with one) and
costs milliseconds on a busy one, where the second thread has to be waited for."""


def vectorized(function: Any) -> Any:
    """Compiles a kernel on its first call (or loads it from the cache on disk); its pranges use
    numba's threads if its first argument is an array of at least ALONE elements.
    """
    options: dict[str, Any] = {"parallel": PARALLEL, "nogil": True}
    loop = compiled(function, fastmath=REORDER, error_model="numpy", **options)
    if not PARALLEL:
        return loop

    @wraps(function)
    def call(*args: Any) -> Any:
        # Read at each call: a process may learn how many there are after its imports.
        every: int = config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
        set_num_threads(allowed(every) if args[0].size >= ALONE else 1)
        return loop(*args)

    return call


_LOG2_E = F(1.4426950408889634)
_LN2_HIGH = F(0.693359375)  # exact in few bits, so that n * _LN2_HIGH is exact
_LN2_LOW = F(0.693147180559945309417 - 0.693359375)
_C2, _C3, _C4, _C5, _C6, _C7 = (F(1.0 / f) for f in (2, 6, 24, 120, 720, 5040))
_LOWEST, _HIGHEST = F(-87.33654), F(88.72283)
_ZERO, _ONE, _TWO, _HALF, _FOUR = F(0), F(1), F(2), F(0.5), F(4)
_INFINITY = F(np.inf)
_ROOT_HALF = F(0.7071067811865476)
_DENSITY = F(0.3989422804014327)
_E0, _E1, _E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9 = (
    F(c) for c in np.polynomial.chebyshev.cheb2poly(scaled_erfc_coefficients(9))
)


@intrinsic
def _bits_to_float(context: Any, bits: Any) -> Any:
    """Reads an int32 as a float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.int32), generate


@intrinsic
def _larger(context: Any, a: Any, b: Any) -> Any:
    """The larger float32; NaN if either is. Unlike a comparison, reductions of it become vector
    code.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        single = context.get_value_type(types.float32)
        signature_ir = ir.FunctionType(single, [single, single])
        function = builder.module.declare_intrinsic("llvm.maximum", [single], signature_ir)
        return builder.call(function, args)

    return types.float32(types.float32, types.float32), generate


# For the type checker, which takes an intrinsic for a function of the compiler's context.
_float_of_bits: Any = _bits_to_float
maximum: Any = _larger


@inlined
def _exp_parts(x: Any) -> Any:
    """(n, exp(r)) of x = n ln(2) + r."""
    n = np.floor(x * _LOG2_E + _HALF)
    r = x - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    p = _C7
    p = p * r + _C6
    p = p * r + _C5
    p = p * r + _C4
    p = p * r + _C3
    p = p * r + _C2
    return np.int32(n), p * r * r + r + _ONE


@inlined
def exp(x: Any) -> Any:
    """e^x; 0 below -87.3, infinity above 88.7."""
    n, p = _exp_parts(x)
    # 2^n as a product of two, because n = 128 has no float of its own.
    half = n >> np.int32(1)
    low = _float_of_bits(np.int32((half + np.int32(127)) << np.int32(23)))
    high = _float_of_bits(np.int32((n - half + np.int32(127)) << np.int32(23)))
    y = p * low * high
    y = _ZERO if x < _LOWEST else y
    return _INFINITY if x > _HIGHEST else y


@inlined
def exp_down(x: Any) -> Any:
    """e^x for x <= 1, with fewer steps than `exp`."""
    n, p = _exp_parts(x)
    y = p * _float_of_bits(np.int32((n + np.int32(127)) << np.int32(23)))
    return _ZERO if x < _LOWEST else y


@inlined
def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x)."""
    return _ONE / (_ONE + exp(-x))


@inlined
def phi_and_density(x: Any) -> Any:
    """(Phi(x), Phi'(x)) of the standard normal distribution."""
    gauss = exp_down(-_HALF * x * x)
    t = _FOUR / (_TWO + _ROOT_HALF * abs(x)) - _ONE
    p = _E9
    p = p * t + _E8
    p = p * t + _E7
    p = p * t + _E6
    p = p * t + _E5
    p = p * t + _E4
    p = p * t + _E3
    p = p * t + _E2
    p = p * t + _E1
    p = p * t + _E0
    tail = _HALF * gauss * p
    return (_ONE - tail if x > _ZERO else tail), _DENSITY * gauss
