"""Edges where PyTorch has a finite answer, or refuses: zeros, infinities, uneven parts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
import oneflow.nn.functional as F

TF = torch.nn.functional


def same(ours: Any, theirs: Any) -> None:
    assert tuple(ours.shape) == tuple(theirs.shape)
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-6, atol=1e-7)


def check(ours: Any, theirs: Any, *arrays: Any) -> None:
    """The same values and the same gradients."""
    xs = [flow.tensor(np.array(a, np.float64), requires_grad=True) for a in arrays]
    ts = [torch.tensor(np.array(a, np.float64), requires_grad=True) for a in arrays]
    y, t = ours(*xs), theirs(*ts)
    same(y, t)
    y.sum().backward()
    t.sum().backward()
    for x, other in zip(xs, ts, strict=True):
        same(x.grad, other.grad)


ROWS = [[0.0, 0.0, 0.0], [3.0, 0.0, 4.0], [1.0, -2.0, 0.5]]


@pytest.mark.parametrize("order", [1, 2, 3, 0.5, 1.5, float("inf")])
@pytest.mark.parametrize("dim", [None, 1])
def test_norm_of_zeros_has_gradient_zero(order: float, dim: int | None) -> None:
    check(lambda x: x.norm(order, dim), lambda x: x.norm(order, dim), ROWS)
    check(lambda x: x.norm(order, dim), lambda x: x.norm(order, dim), [[0.0, 0.0]])


def test_zero_rows_are_normalized_with_finite_gradients() -> None:
    check(F.normalize, TF.normalize, ROWS)
    check(F.cosine_similarity, TF.cosine_similarity, ROWS, ROWS[::-1])


def test_std_of_constants_has_gradient_zero() -> None:
    check(lambda x: x.std(1), lambda x: x.std(1), [[2.0, 2.0, 2.0], [1.0, 2.0, 4.0]])


@pytest.mark.parametrize(
    "row", [[2.0, 3.0, 4.0], [2.0, 0.0, 4.0, 5.0], [0.0, 3.0, 0.0, 2.0], [0.0], [1.0, 2.0, 0.0]]
)
def test_cumprod_with_zeros_has_finite_gradients(row: list[float]) -> None:
    check(lambda x: x.cumprod(1), lambda x: x.cumprod(1), [row, row[::-1]])


def test_binary_cross_entropy_at_zero_and_one() -> None:
    p, t = [0.0, 1.0, 0.0, 1.0, 0.3], [0.0, 1.0, 1.0, 0.0, 0.6]
    check(F.binary_cross_entropy, TF.binary_cross_entropy, p, t)


@pytest.mark.parametrize("pos_weight", [None, 2.5])
def test_targets_of_binary_cross_entropy_have_gradients(pos_weight: float | None) -> None:
    x, t = [-1.0, 0.5, 3.0], [0.2, 0.0, 1.0]
    ours = None if pos_weight is None else flow.tensor(pos_weight, dtype=flow.float64)
    theirs = None if pos_weight is None else torch.tensor(pos_weight, dtype=torch.float64)
    check(
        lambda x, t: F.binary_cross_entropy_with_logits(x, t, pos_weight=ours),
        lambda x, t: TF.binary_cross_entropy_with_logits(x, t, pos_weight=theirs),
        x,
        t,
    )


def test_hardswish_has_the_outer_slopes_at_its_corners() -> None:
    check(F.hardswish, TF.hardswish, [-4.0, -3.0, -1.0, 0.0, 2.0, 3.0, 5.0])


@pytest.mark.parametrize("indexing", ["ij", "xy"])
def test_meshgrid(indexing: str) -> None:
    arrays = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0]]
    for count in (1, 2, 3):
        ours = flow.meshgrid(*map(flow.tensor, arrays[:count]), indexing=indexing)
        theirs = torch.meshgrid(*map(torch.tensor, arrays[:count]), indexing=indexing)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b)


def test_logaddexp_of_infinities() -> None:
    a = np.array([np.inf, -np.inf, np.inf, 1.0, 2.0])
    b = np.array([np.inf, -np.inf, -np.inf, 1.0, -np.inf])
    same(
        flow.logaddexp(flow.tensor(a), flow.tensor(b)),
        torch.logaddexp(torch.tensor(a), torch.tensor(b)),
    )
    check(flow.logaddexp, torch.logaddexp, [1.0, 2.0, -3.0], [1.0, -1.0, 5.0])


def test_nan_to_num_leaves_integers() -> None:
    x = flow.tensor([1, -2, 3])
    assert flow.nan_to_num(x).tolist() == [1, -2, 3] and flow.nan_to_num(x).dtype is flow.int64


def test_uneven_splits_are_refused() -> None:
    x = flow.zeros(4, 4)
    for split in (flow.hsplit, flow.vsplit):
        with pytest.raises(flow.core.errors.ShapeError, match="not divisible by 3"):
            split(x, 3)
    with pytest.raises(flow.core.errors.ShapeError, match="at least 2 dimensions"):
        flow.vsplit(flow.zeros(4), 2)
    assert [tuple(p.shape) for p in flow.hsplit(x, (1, -1))] == [(4, 1), (4, 2), (4, 1)]


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "midpoint", "nearest"])
@pytest.mark.parametrize("dim", [None, 0, -1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_quantile(interpolation: str, dim: int | None, keepdim: bool) -> None:
    x = np.random.default_rng(0).normal(size=(4, 5))
    x[1, 2] = np.nan
    for q in (0.3, [0.0, 0.25, 1.0]):
        ours = q if isinstance(q, float) else flow.tensor(q, dtype=flow.float64)
        theirs = q if isinstance(q, float) else torch.tensor(q, dtype=torch.float64)
        kwargs = {"keepdim": keepdim, "interpolation": interpolation}
        same(
            flow.quantile(flow.tensor(x), ours, dim, **kwargs),
            torch.quantile(torch.tensor(x), theirs, dim, **kwargs),
        )


def test_take_along_dim_without_dim_takes_from_the_flat_tensor() -> None:
    x, index = np.arange(6.0).reshape(2, 3), np.array([[5, 0, 3]])
    ours, theirs = (flow.tensor(x), flow.tensor(index)), (torch.tensor(x), torch.tensor(index))
    same(flow.take_along_dim(*ours), torch.take_along_dim(*theirs))
    index = np.array([[2], [0]])
    same(
        flow.take_along_dim(flow.tensor(x), flow.tensor(index[:1]), 1),
        torch.take_along_dim(torch.tensor(x), torch.tensor(index[:1]), 1),
    )


def test_four_dims_are_repeated_in_global_tensors_and_in_graphs() -> None:
    x = np.arange(24.0).reshape(1, 2, 3, 4)
    placed = flow.tensor(x).to_global(flow.placement("cpu", [0]), flow.sbp.split(1))

    class Repeat(flow.nn.Graph):
        def build(self, x: Any) -> Any:
            return x.repeat(2, 2, 1, 3)

    wanted = np.tile(x, (2, 2, 1, 3))
    for y in (placed.repeat(2, 2, 1, 3), placed.tile((2, 2, 1, 3)), Repeat()(placed)):
        np.testing.assert_array_equal(y.to_local().numpy(), wanted)


def test_where_takes_numpy_numbers_as_python_numbers() -> None:
    mask = flow.tensor([True, False])
    whole = flow.where(mask, np.int64(1), np.int64(0))
    assert whole.dtype is flow.int64 and whole.tolist() == [1, 0]
    assert flow.where(mask, np.array([1, 2]), np.array([3, 4])).tolist() == [1, 4]
    with pytest.raises(TypeError, match="a value for true"):
        flow.where(mask, 1)


INF, NAN = math.inf, math.nan
EDGES = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 6.0, 3.0, -3.0, 0.5, -0.5]


def test_remainders_of_infinite_divisors() -> None:
    a, b = [1.0, -1.0, 1.0, -1.0, 0.0, 2.0, NAN, 5.0], [INF, INF, -INF, -INF, 0.0, NAN, 1.0, -3.0]
    check(flow.remainder, torch.remainder, a, b)
    x = [7, -7, 6]
    assert (flow.tensor(x) % -3).tolist() == (torch.tensor(x) % -3).tolist()


@pytest.mark.parametrize("divisor", [INF, -INF, 3.0, -0.5])
def test_remainders_with_a_number(divisor: float) -> None:
    check(lambda x: x % divisor, lambda x: x % divisor, [1.0, -1.0, 0.0, 7.0, -7.5])
    row = np.array([1.0, -1.0, 7.0, -7.5])
    same(divisor % flow.tensor(row), divisor % torch.tensor(row))


@pytest.mark.parametrize("row", [[1.0, NAN, 3.0, 2.0], [1.0, NAN, 3.0, NAN], [3.0, 1.0, 3.0, 1.0]])
def test_the_gradient_of_an_extreme_goes_to_nan(row: list[float]) -> None:
    for name in ("max", "min"):
        check(getattr(flow, name), getattr(torch, name), row)


def test_logit_beyond_its_interval() -> None:
    p = [0.0, 1.0, -0.5, 1.5, 0.5, NAN, 0.001, 0.999]
    check(flow.logit, torch.logit, p)
    # With eps, PyTorch's gradient at NaN is 0 in vectorized code and NaN in the rest of a row.
    numbers = [x for x in p if x == x]
    check(lambda x: flow.special.logit(x, 0.01), lambda x: torch.special.logit(x, 0.01), numbers)


def test_of_equal_operands_fmax_and_fmin_choose_the_first() -> None:
    a, b = [1.0, 2.0, NAN, 1.0, NAN, INF], [1.0, 1.0, 1.0, NAN, NAN, INF]
    check(flow.fmax, torch.fmax, a, b)
    check(flow.fmin, torch.fmin, a, b)


@pytest.mark.parametrize(
    "row", [[0.0, 0.0, 0.0, 1.0, -1.0], [2.0, NAN, 2.0, NAN, 7.0], [3.0, -4.0]]
)
def test_equal_medians_share_the_gradient(row: list[float]) -> None:
    for name in ("median", "nanmedian"):
        check(getattr(flow, name), getattr(torch, name), row)


def test_zero_times_a_logarithm() -> None:
    a = [0.0, 0.0, 0.0, 1.0, 0.0, NAN, 0.0, 2.0]
    b = [2.0, 0.0, NAN, 0.0, -1.0, 1.0, INF, 3.0]
    check(flow.xlogy, torch.xlogy, a, b)
    check(lambda b: flow.xlogy(0.0, b), lambda b: torch.xlogy(0.0, b), b)
    check(lambda a: flow.xlogy(a, 2.0), lambda a: torch.xlogy(a, 2.0), a)
    below = [2.0, -1.0, NAN, -1.0, -2.0, 1.0, INF, 3.0]
    check(flow.special.xlog1py, torch.special.xlog1py, a, below)
    check(flow.special.entr, torch.special.entr, [0.0, -1.0, 1.0, NAN, INF, 0.3])


BOUNDED = {
    "clamp": lambda lib, x: lib.clamp(x, -1, 1),
    "clamp, min": lambda lib, x: lib.clamp(x, min=-1),
    "clamp, max": lambda lib, x: lib.clamp(x, max=1),
    "clip, crossed": lambda lib, x: lib.clip(x, 1, -1),
    "relu": lambda lib, x: lib.relu(x),
    "relu6": lambda lib, x: lib.nn.functional.relu6(x),
    "hardtanh": lambda lib, x: lib.nn.functional.hardtanh(x),
    "threshold": lambda lib, x: lib.nn.functional.threshold(x, 0.5, 2.0),
    "hardsigmoid": lambda lib, x: lib.nn.functional.hardsigmoid(x),
    "hardshrink": lambda lib, x: lib.nn.functional.hardshrink(x),
    "softshrink": lambda lib, x: lib.nn.functional.softshrink(x),
    "leaky_relu": lambda lib, x: lib.nn.functional.leaky_relu(x),
    "huber_loss": lambda lib, x: lib.nn.functional.huber_loss(
        x, lib.zeros_like(x).detach(), reduction="none"
    ),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_bounded_functions_of_nan_and_infinities(name: str) -> None:
    # PyTorch's gradients of the others at NaN hang on the length of the machine's vectors.
    points = EDGES if name.startswith(("cl", "huber")) else EDGES[1:]
    check(lambda x: BOUNDED[name](flow, x), lambda x: BOUNDED[name](torch, x), points)


def test_clamp_by_tensors() -> None:
    x, low, high = (
        [NAN, 0.0, 1.0, 2.0, 0.0, 5.0, -9.0],
        [0.0, NAN, 1.0, 1.0, 0.0, 3.0, -2.0],
        [1.0, 1.0, 1.0, 2.0, NAN, 2.0, 4.0],
    )
    check(flow.clamp, torch.clamp, x, low, high)
    check(lambda x, a: flow.clamp(x, min=a), lambda x, a: torch.clamp(x, min=a), x, low)
    check(lambda x, a: flow.clamp(x, max=a), lambda x, a: torch.clamp(x, max=a), x, high)


@pytest.mark.parametrize(
    "row", [[2.0, 0.0, NAN, 3.0, 0.0], [2.0, NAN, 3.0, 0.0, 5.0], [2.0, INF, 3.0, 0.0, 5.0]]
)
def test_cumprod_of_zeros_and_nan(row: list[float]) -> None:
    check(lambda x: x.cumprod(0), lambda x: x.cumprod(0), row)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rms_norm_without_eps(dtype: str) -> None:
    row = [[1e-4, 2e-4, 3e-4]]
    ours = F.rms_norm(flow.tensor(row, dtype=getattr(flow, dtype)), (3,))
    theirs = TF.rms_norm(torch.tensor(row, dtype=getattr(torch, dtype)), (3,))
    rtol = {"float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 1e-6)
    np.testing.assert_allclose(ours.float().numpy(), theirs.float().numpy(), rtol=rtol)
    layer = flow.nn.RMSNorm(3, eps=None)(flow.tensor(row))
    same(layer, torch.nn.RMSNorm(3)(torch.tensor(row)))


@pytest.mark.parametrize("norm_type", [1.0, 2.0])
def test_only_rows_that_are_read_are_shortened(norm_type: float) -> None:
    table = np.arange(12, dtype=np.float64).reshape(4, 3) - 3
    index = [[2, 0], [0, 0]]
    ours, theirs = flow.tensor(table, requires_grad=True), torch.tensor(table, requires_grad=True)
    y = F.embedding(flow.tensor(index), ours, max_norm=2.0, norm_type=norm_type)
    t = TF.embedding(torch.tensor(index), theirs, max_norm=2.0, norm_type=norm_type)
    same(y, t)
    same(ours, theirs)
    assert ours[3].tolist() == table[3].tolist()


@pytest.mark.parametrize("padding_idx", [None, 2])
def test_gradients_of_rows_are_scaled_by_how_often_they_are_read(padding_idx: int | None) -> None:
    index = [[2, 0, 1], [0, 0, 2]]
    layers = [lib.nn.Embedding(4, 3, padding_idx, scale_grad_by_freq=True) for lib in (flow, torch)]
    layers[1].weight.data = torch.from_numpy(layers[0].weight.detach().numpy().copy())
    for layer, lib in zip(layers, (flow, torch), strict=True):
        out = layer(lib.tensor(index))
        (out * out).sum().backward()
    same(layers[0].weight.grad, layers[1].weight.grad)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize(
    "sizes",
    [{"size": (5, 4)}, {"size": (13, 3)}, {"scale_factor": 0.4}, {"scale_factor": (0.7, 1.9)}],
    ids=str,
)
def test_antialiased_images(mode: str, align_corners: bool, sizes: dict[str, Any]) -> None:
    image = np.random.default_rng(0).standard_normal((2, 3, 9, 11))
    form = {"mode": mode, "align_corners": align_corners, "antialias": True, **sizes}
    check(lambda x: F.interpolate(x, **form), lambda t: TF.interpolate(t, **form), image)


def test_other_modes_are_not_antialiased() -> None:
    with pytest.raises(ValueError, match="restricted to bilinear and bicubic"):
        F.interpolate(flow.ones(1, 1, 4, 4), 2, antialias=True)


@pytest.mark.parametrize(
    "form",
    [
        {"stride": (3, 2), "padding": (1, 2), "output_padding": (2, 3), "dilation": (4, 4)},
        {"stride": 1, "output_padding": 1, "dilation": 2},
    ],
    ids=["cut", "reaching further"],
)
def test_output_padding_from_the_stride_on(form: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s) for s in ((2, 2, 4, 4), (2, 2, 4, 5), 2))
    check(
        lambda x, w, b: F.conv_transpose2d(x, w, b, **form),
        lambda x, w, b: TF.conv_transpose2d(x, w, b, **form),
        *(x, w, b),
    )


@pytest.mark.parametrize("row", [[2.0, 0.0, -1.0, 3.0, 0.5], [0.0, 2.0, 0.0, -1.0, 3.0]])
def test_running_products_of_zeros_have_second_derivatives(row: list[float]) -> None:
    def slope(m: Any, x: Any) -> Any:
        y = m.cumprod(x, 0)
        return m.autograd.grad((y * y + y).sum(), [x], create_graph=True)[0]

    check(lambda x: slope(flow, x), lambda t: slope(torch, t), row)


def test_tensors_are_filled_with_complex_numbers() -> None:
    def made(m: Any) -> Any:
        x = m.full((3,), 1 + 2j)
        chosen = x.masked_fill(m.tensor([True, False, True]), 3 - 1j)
        return m.stack([x, chosen, m.full_like(x, 1j)])

    assert made(flow).dtype is flow.complex64
    same(made(flow), made(torch))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_images_are_read_at_what_is_no_number(mode: str) -> None:
    grid = [[[[math.nan, 0.0], [0.3, math.inf], [-5.0, 2.0], [0.1, -0.2]]]]
    image = np.arange(9.0).reshape(1, 1, 3, 3)
    form = {"mode": mode, "align_corners": False}
    ours = F.grid_sample(flow.tensor(image), flow.tensor(grid, dtype=flow.float64), **form)
    same(ours, TF.grid_sample(torch.tensor(image), torch.tensor(grid).double(), **form))


def test_differences_of_order_zero_join_nothing() -> None:
    x, more = np.arange(4.0).reshape(2, 2), np.ones((2, 1))
    found = (m.diff(m.tensor(x), 0, 1, m.tensor(more), m.tensor(more)) for m in (flow, torch))
    same(*found)


def test_a_histogram_of_nothing_lies_between_zero_and_one() -> None:
    for keywords in ({}, {"range": (0.0, 0.0)}):
        ours, theirs = (m.histogram(m.zeros(0), 3, **keywords) for m in (flow, torch))
        same(ours[0], theirs[0])
        same(ours[1], theirs[1])


@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
@pytest.mark.parametrize("interpolation", ["linear", "lower"])
def test_shares_have_a_slope_between_numbers_alone(name: str, interpolation: str) -> None:
    found = []
    for m in (flow, torch):
        x, q = m.tensor([1.0, 4.0, 2.0], requires_grad=True), m.tensor(0.3, requires_grad=True)
        getattr(m, name)(x, q, interpolation=interpolation).backward()
        same(x.grad, m.tensor([0.4, 0.0, 0.6] if interpolation == "linear" else [1.0, 0.0, 0.0]))
        found.append(q.grad)
    if interpolation == "linear":
        same(*found)
    else:
        assert found == [None, None]


def test_windows_of_an_empty_batch() -> None:
    x, drawn = np.zeros((0, 1, 5, 6, 7)), np.zeros((0, 1, 3))
    found = (
        m.nn.functional.fractional_max_pool3d(
            m.tensor(x), 2, output_size=(2, 3, 2), _random_samples=m.tensor(drawn)
        )
        for m in (flow, torch)
    )
    same(*found)


def test_an_empty_batch_is_normalized_in_its_own_dtype() -> None:
    ours = F.local_response_norm(flow.zeros(0, 1, 2, dtype=flow.int64), 2)
    assert ours.dtype is flow.int64 and tuple(ours.shape) == (0, 1, 2)


def test_the_slope_of_a_next_number() -> None:
    found = []
    for m in (flow, torch):
        a, b = (m.tensor(v, requires_grad=True) for v in ([1.0, 2.0, 2.0], [2.0, 1.0, 2.0]))
        (m.nextafter(a, b) * m.tensor([3.0, 4.0, 5.0])).sum().backward()
        found.append((a.grad, b.grad))
    for ours, theirs in zip(*found, strict=True):
        same(ours, theirs)


def test_a_bool_alpha_leaves_bools() -> None:
    for alpha in (False, True):
        a, b = flow.tensor([True, False]), flow.tensor([True, True])
        assert flow.add(a, b, alpha=alpha).dtype is flow.bool
        a.add_(b, alpha=alpha)
        assert a.tolist() == [True, alpha]


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(
    "mode", ["nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear"]
)
def test_factors_that_keep_or_double_the_size(mode: str, align_corners: bool) -> None:
    ndim = {"linear": 1, "trilinear": 3}.get(mode, 2)
    corners = {} if mode.startswith("nearest") else {"align_corners": align_corners}
    x = np.random.default_rng(1).normal(size=(2, 1, *(4, 3, 2)[:ndim]))
    for factor in (1.0, 1.001, 1.2453, 1.3417, 1.5, 2.0, 2.1, 2.4, 0.9):
        given = {"scale_factor": factor, "mode": mode, **corners}
        wanted = torch.nn.functional.interpolate(torch.tensor(x), **given)
        found = flow.nn.functional.interpolate(flow.tensor(x), **given)
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=1e-6, err_msg=str(factor))


@pytest.mark.parametrize("right", [False, True])
def test_places_in_a_sequence(right: bool, rng: np.random.Generator) -> None:
    """Sorted or not: the same elements are looked at as by PyTorch."""
    for lead, size in (((), 9), ((2,), 16), ((2, 3), 1), ((), 1000)):
        numbers = rng.integers(0, 30, (*lead, size)).astype(np.float32)
        values = rng.integers(-1, 31, (*lead, 7)).astype(np.float32)
        values.reshape(-1)[0] = np.nan
        for sequence in (numbers, np.sort(numbers, -1)):
            wanted = torch.searchsorted(
                torch.tensor(sequence), torch.tensor(values), right=right
            ).numpy()
            found = flow.searchsorted(flow.tensor(sequence), flow.tensor(values), right=right)
            np.testing.assert_array_equal(found.numpy(), wanted)


def test_places_need_no_table_of_all_pairs() -> None:
    count = 200_000
    found = flow.searchsorted(flow.arange(count), flow.arange(count))
    np.testing.assert_array_equal(found.numpy(), np.arange(count))
    with pytest.raises(RuntimeError, match="the first N-1 dimensions"):
        flow.searchsorted(flow.zeros(2, 5), flow.ones(1, 2))
