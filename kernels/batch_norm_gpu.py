"""Batch norm on a GPU: one launch for each sum and one for each pass, in CuPy's kernels, which take
every mix of dtypes. Sums are float64, as on a CPU.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.batch_norm import column, sample_dims
from oneflow.kernels.registry import kernel

FLOATS = ("float32", "float64", "float16", "bfloat16")
MOMENTS = """
double average = (double)total / count;
double found = (double)squares / count - average * average;
double variance = found > 0.0 || isnan(found) ? found : 0.0;
"""
TRACK = (
    MOMENTS
    + """
double unbiased = variance * (count / (count > 1 ? count - 1 : 1.0));
out_mean = (1.0 - momentum) * (double)mean + momentum * average;
out_variance = (1.0 - momentum) * (double)biased + momentum * unbiased;
"""
)
SUMS = "S total, Q squares, float64 count"


@cache
def _each(name: str, takes: str, gives: str, code: str) -> Any:
    import cupy

    return cupy.ElementwiseKernel(takes, gives, code, f"batch_norm_{name}")


@cache
def _sum(name: str, takes: str, code: str) -> Any:
    import cupy

    return cupy.ReductionKernel(takes, "Y y", code, "a + b", "y = a", "0", f"batch_norm_{name}")


@kernel("batch_sums", device="cuda", dtypes=FLOATS)
def batch_sums(xp: ArrayModule, total: Array, squares: Array, x: Array) -> None:
    if not x.size:
        total[...], squares[...] = 0, 0
        return
    _sum("sum", "X x", "(double)x")(x, total, axis=sample_dims(x))
    _sum("squares", "X x", "(double)x * (double)x")(x, squares, axis=sample_dims(x))


@kernel("batch_moments", device="cuda", dtypes=("float64",))
def batch_moments(
    xp: ArrayModule,
    mean: Array,
    inv_std: Array,
    total: Array,
    squares: Array,
    *,
    count: int,
    eps: float,
    wide: bool,
) -> None:
    code = MOMENTS + "mean = average; inv_std = 1.0 / sqrt(variance + eps);"
    run = _each("moments", f"{SUMS}, float64 eps", "M mean, M inv_std", code)
    run(total, squares, np.float64(count), np.float64(eps), mean, inv_std)


@kernel("batch_norm_track", device="cuda", dtypes=FLOATS)
def batch_norm_track(
    xp: ArrayModule,
    out_mean: Array,
    out_variance: Array,
    mean: Array,
    variance: Array,
    total: Array,
    squares: Array,
    *,
    count: int,
    momentum: float,
) -> None:
    takes = f"M mean, V biased, {SUMS}, float64 momentum"
    run = _each("track", takes, "M out_mean, V out_variance", TRACK)
    numbers = np.float64(count), np.float64(momentum)
    run(mean, variance, total, squares, *numbers, out_mean, out_variance)


@kernel("batch_norm_average", device="cuda", dtypes=FLOATS)
def batch_norm_average(
    xp: ArrayModule,
    out_mean: Array,
    out_variance: Array,
    out_batches: Array,
    mean: Array,
    variance: Array,
    batches: Array,
    total: Array,
    squares: Array,
    *,
    count: int,
) -> None:
    xp.add(batches, 1, out=out_batches)
    takes = f"M mean, V biased, {SUMS}, int64 batches"
    code = f"double momentum = 1.0 / (double)batches; {TRACK}"
    run = _each("average", takes, "M out_mean, V out_variance", code)
    run(mean, variance, total, squares, np.float64(count), out_batches, out_mean, out_variance)


@kernel("batch_norm_apply", device="cuda", dtypes=FLOATS)
def batch_norm_apply(
    xp: ArrayModule, y: Array, x: Array, mean: Array, inv_std: Array, *affine: Array, count: int
) -> None:
    columns = [column(a, x) for a in (mean, inv_std, *affine)]
    takes, code = "X x, M mean, V inv_std", "((M)x - mean) * (M)inv_std"
    if affine:
        takes, code = f"{takes}, G gamma, B beta", f"{code} * (M)gamma + (M)beta"
    _each("affine" if affine else "apply", takes, "X y", f"y = {code};")(x, *columns, y)


@kernel("batch_norm_grad_sums", device="cuda", dtypes=FLOATS)
def batch_norm_grad_sums(
    xp: ArrayModule,
    d_beta: Array,
    d_gamma: Array,
    d_y: Array,
    x: Array,
    mean: Array,
    inv_std: Array,
) -> None:
    if not x.size:
        d_beta[...], d_gamma[...] = 0, 0
        return
    axis = sample_dims(x)
    _sum("sum", "X x", "(double)x")(d_y, d_beta, axis=axis)
    code = "((double)x - (double)mean) * (double)inv_std * (double)d_y"
    run = _sum("products", "D d_y, X x, M mean, V inv_std", code)
    run(d_y, x, column(mean, x), column(inv_std, x), d_gamma, axis=axis)


@kernel("batch_norm_grad_apply", device="cuda", dtypes=FLOATS)
def batch_norm_grad_apply(
    xp: ArrayModule,
    d_x: Array,
    d_y: Array,
    x: Array,
    mean: Array,
    inv_std: Array,
    d_beta: Array,
    d_gamma: Array,
    *gamma: Array,
    count: int,
) -> None:
    """a * (d_y - (d_beta + (x - mean) * inv_std * d_gamma) / count); count 0: a * d_y."""
    columns = [column(a, x) for a in (mean, inv_std, d_beta, d_gamma, *gamma)]
    takes = "float64 count, D d_y, X x, M mean, V inv_std, B d_beta, C d_gamma"
    code = "double a = (double)inv_std;"
    if gamma:
        takes, code = f"{takes}, G gamma", f"{code} a *= (double)gamma;"
    code += """
    double slope = -a * (double)inv_std * (double)d_gamma / count;
    double shift = -a * (double)d_beta / count;
    M direct = (M)a * (M)d_y;
    d_x = count == 0.0 ? direct : direct + ((M)x - mean) * (M)slope + (M)shift;
    """
    run = _each("grad_affine" if gamma else "grad", takes, "X d_x", code)
    run(np.float64(count), d_y, x, *columns, d_x)
