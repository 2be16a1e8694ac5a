"""Scenes of global_api_program.py: conversion, printing, creation."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import oneflow as flow
from oneflow.core.config import current_config, set_config

from .global_words import (
    ALL,
    FIRST,
    GRID,
    LAST,
    LAYOUTS,
    ONE_AXIS,
    RANK,
    S0,
    S1,
    SIZE,
    SOME_LAYOUTS,
    TWO_AXES,
    B,
    N,
    P,
    part,
    refuses,
    same,
    scenes_of,
    together,
)

# ---- local to global -----------------------------------------------------------------------------


def parts_make_the_whole() -> None:
    """Even, uneven and empty parts, on one axis and on two."""
    for rows, columns in ((8, 8), (7, 5), (1, 9), (0, 3), (SIZE + 1, 2)):
        whole = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
        for placement, nd_sbp in LAYOUTS:
            if any(s.is_partial for s in nd_sbp):
                continue
            mine = whole[:0] if RANK not in placement.ranks else part(whole, placement, nd_sbp)
            x = flow.tensor(mine.copy()).to_global(placement, nd_sbp)
            assert x.shape == whole.shape and x.sbp == nd_sbp and x.placement == placement
            same(x.to_global(ALL, B), whole)
            if RANK in placement.ranks:
                same(x.to_local(), mine)
            same(x, whole)


def shapes_come_from_the_placement() -> None:
    """Ranks outside bring anything; they know the type and hold nothing."""
    inside = RANK == SIZE - 1
    mine = flow.ones(3, 2, 2, dtype=flow.int32) if inside else flow.tensor([])
    x = mine.to_global(LAST, S1)
    assert (x.shape, x.dtype, x.sbp, x.placement) == ((3, 2, 2), flow.int32, (S1,), LAST)
    assert x.is_global and not x.is_local and x.is_cpu and x.is_eager
    assert x.to_local().shape == ((3, 2, 2) if inside else (0, 0, 0))
    np.testing.assert_array_equal(x.numpy(), np.ones((3, 2, 2)))
    same(x.to_global(ALL, B), np.ones((3, 2, 2)))
    y = (x + x).to_global(ALL, S0)
    same(y, 2 * np.ones((3, 2, 2)))
    unchecked = mine.to_global(LAST, S1, check_meta=False)
    assert unchecked.shape == (3, 2, 2) and unchecked.dtype is flow.int32


def the_first_copy_wins() -> None:
    """Converts in place unless copy; only along broadcast axes."""
    mine = flow.full((2, 2), float(RANK))
    x = mine.to_global(ALL, B)
    same(x.to_local(), np.zeros((2, 2)))
    same(mine, np.zeros((2, 2)))
    assert x.to_local().data_ptr() == mine.data_ptr()
    mine = flow.full((2, 2), float(RANK))
    x = mine.to_global(ALL, B, copy=True)
    same(x.to_local(), np.zeros((2, 2)))
    same(mine, np.full((2, 2), RANK))
    row, column = np.argwhere(GRID.ranks == RANK)[0]
    mine = flow.full((2, 2), float(RANK))
    same(mine.to_global(GRID, (B, S0), copy=True).to_local(), np.full((2, 2), column))
    first = GRID.ranks[row, 0]
    same(mine.to_global(GRID, (S0, B), copy=True).to_local(), np.full((2, 2), first))
    weight = flow.ones(3, requires_grad=True)
    loss = (weight * weight).sum()
    same(weight.to_global(ALL, B).to_local(), np.ones(3))
    loss.backward()  # equal copies are not written to, so what was saved is still good
    same(weight.grad, np.full(3, 2.0))
    frozen = np.full(3, RANK, np.float32)
    frozen.flags.writeable = False
    same(flow.from_numpy(frozen).to_global(ALL, B).to_local(), np.zeros(3))
    assert frozen[0] == RANK
    spread = flow.full((1,), float(RANK)).expand(4).to_global(ALL, B)
    same(spread.to_local(), np.zeros(4))


def partial_sums_stay_where_they_are() -> None:
    mine = flow.full((2,), float(RANK + 1))
    x = mine.to_global(ALL, P)
    assert x.to_local().data_ptr() == mine.data_ptr()
    same(x, np.full(2, SIZE * (SIZE + 1) / 2))
    truth = flow.ones(2, dtype=flow.bool)
    refuses("truth values have no sums", lambda: truth.to_global(ALL, P))
    refuses("truth values have no sums", lambda: truth.to_global(ALL, B).to_global(sbp=P))
    refuses(
        "truth values have no sums",
        lambda: flow.zeros(2, dtype=flow.bool, placement=ALL, sbp=P),
    )
    refuses("truth values have no sums", lambda: flow.tensor([True], placement=ALL, sbp=P))


def sizes_are_checked_or_trusted() -> None:
    lopsided = flow.ones(1 + RANK, 2)
    wide = flow.ones(2, 2 + RANK)
    if SIZE > 1:
        refuses(
            "in dimension 0 must be same or match balanced", lambda: lopsided.to_global(ALL, S0)
        )
        refuses(
            "except in dimension 0. Expected size 2 but got size 3 for tensor on rank 1!",
            lambda: wide.to_global(ALL, S0),
        )
        refuses("must match except", lambda: lopsided.to_global(ALL, B))
        refuses("same number of dims", lambda: flow.ones(*[2] * (RANK + 1)).to_global(ALL, S0))
        odd = flow.ones(2, dtype=flow.float64 if RANK == 1 else flow.float32)
        refuses(
            "Expected all tensors on each rank to be the same dtype", lambda: odd.to_global(ALL, B)
        )
    assert flow.ones(2, 3).to_global(ALL, S1, check_meta=False).shape == (2, 3 * SIZE)
    assert flow.ones(2, 3).to_global(GRID, (S1, S1), check_meta=False).shape == (2, 3 * SIZE)
    assert flow.ones(2, 3).to_global(ALL, P, check_meta=False).shape == (2, 3)
    config = current_config()
    set_config(replace(config, debug=False, trust_local_sizes=True))
    assert lopsided.to_global(ALL, S0).shape == ((1 + RANK) * SIZE, 2)
    set_config(replace(config, trust_local_sizes=True, debug=True))
    if SIZE > 1:
        refuses("balanced split", lambda: lopsided.to_global(ALL, S0, check_meta=False))
    set_config(config)


def requests_must_be_equal() -> None:
    """If one rank asks for anything else, all ranks hear of it, and the next call works."""
    refuses("must have placement and sbp parameters", lambda: flow.ones(2).to_global(ALL))
    refuses("must have placement and sbp parameters", lambda: flow.ones(2).to_global(sbp=B))
    refuses(
        "sbp parameter must be type of oneflow.sbp.sbp",
        lambda: flow.ones(2).to_global(ALL, 0),
        TypeError,
    )
    refuses("sbp parameter must be", lambda: flow.ones(2).to_global(ALL, ["B"]), TypeError)
    refuses("placement must be", lambda: flow.ones(2).to_global("cpu", B), TypeError)
    refuses(
        "Split axis out of range (expected to be in range of [0, 1), but got 1!)",
        lambda: flow.ones(2).to_global(ALL, S1),
    )
    refuses("Split axis out of range", lambda: flow.tensor(1.0).to_global(ALL, S0))
    refuses("give one per axis", lambda: flow.ones(2).to_global(GRID, S0))
    refuses(
        "less than world size", lambda: flow.ones(2).to_global(flow.placement("cpu", [SIZE]), B)
    )
    if not flow.cuda.is_available():
        gpus = flow.placement("cuda", list(range(SIZE)))
        refuses("CuPy", lambda: flow.ones(2).to_global(gpus, B))
        refuses("CuPy", lambda: together().to_global(placement=gpus))
        refuses("CuPy", lambda: together().cuda())
    if SIZE == 1:
        return
    where = ALL if RANK else flow.placement("cpu", [0])
    refuses(
        "Each rank must have the same input placement", lambda: flow.ones(2).to_global(where, B)
    )
    refuses("Inconsistent parallel description", lambda: flow.ones(2).to_global(where, B))
    refuses("asks for sbp", lambda: flow.ones(2).to_global(ALL, B if RANK else S0))
    x = together()
    refuses(
        "must be the same on all ranks", lambda: x.to_global(sbp=B if RANK else P, check_meta=True)
    )
    same(x.to_global(sbp=B, check_meta=True), np.ones(N))
    same(x.sum(), N)


# ---- global to global ----------------------------------------------------------------------------


def layouts_change() -> None:
    whole = np.random.default_rng(0).integers(-9, 9, (6, 7)).astype(np.float32)
    places = (
        [(ALL, s) for s in ONE_AXIS]
        + [(GRID, s) for s in TWO_AXES[::3]]
        + [(FIRST, (B,)), (LAST, (S1,))]
    )
    for (p, s), (q, t) in itertools.product(places, repeat=2):
        x = flow.tensor(whole, placement=p, sbp=s)
        y = x.to_global(q, t)
        assert (y.placement, y.sbp, y.shape) == (q, t, (6, 7))
        assert (y is x) == ((p, s) == (q, t))
        same(y.to_global(ALL, B), whole)
        if RANK in q.ranks and not any(c.is_partial for c in t):
            same(y.to_local(), part(whole, q, t))


def what_does_not_change_is_kept() -> None:
    x = together()
    assert x.to_global(sbp=S0) is x and x.to_global() is x
    assert x.to_global(placement=ALL, sbp=[S0]) is x
    twin = x.to_global(copy=True)
    assert twin is not x and twin.to_local().data_ptr() != x.to_local().data_ptr()
    marked = x.to_global(grad_sbp=B)
    assert marked is not x and marked.sbp == x.sbp
    assert x.to_global(placement=LAST).sbp == (S0,)
    refuses("give sbp=", lambda: x.to_global(placement=GRID))
    refuses("Split axis out of range", lambda: x.to_global(sbp=S1))
    local = x.to_local()
    local.add_(1.0)
    same(x, np.full(N, 2.0))
    x.to_local(copy=True).add_(1.0)
    same(x, np.full(N, 2.0))
    refuses("Expected global tensor for to_local but got local tensor!", lambda: local.to_local())


def inputs_meet_on_one_placement() -> None:
    x, y = together(), flow.ones(N, placement=LAST, sbp=B, requires_grad=True)
    if SIZE > 1:
        refuses("Expected all tensors to be on the same placement", lambda: x + y)
    os.environ["ONEFLOW_ENABLE_GLOBAL_INPUTS_WITH_INCONSISTENT_PLACEMENT"] = "true"
    out = y * 2.0 + x
    assert out.placement == ALL and (x + y).placement == LAST
    low = flow.ones(N, placement=FIRST, sbp=B)
    assert (y + low).placement == (low + y).placement == LAST
    same(out, np.full(N, 3.0))
    out.sum().backward()
    assert y.grad.placement == LAST
    same(y.grad.to_global(ALL, B), np.full(N, 2.0))
    del os.environ["ONEFLOW_ENABLE_GLOBAL_INPUTS_WITH_INCONSISTENT_PLACEMENT"]


def values_leave() -> None:
    x = flow.arange(2 * SIZE, placement=ALL, sbp=S0)
    assert x.tolist() == list(range(2 * SIZE))
    assert flow.ones(1, placement=ALL, sbp=P).item() == 1.0
    assert float(together().sum()) == N and bool(together().sum() > 0)
    assert int(x.sum().to_global(sbp=B)) == sum(range(2 * SIZE))
    same(x.to(flow.bfloat16), np.arange(2 * SIZE))
    assert x.to(flow.bfloat16).numpy().dtype == np.float32
    assert flow.ones(1, placement=FIRST, sbp=B).item() == 1.0
    part = flow.tensor([1.5, 2.0], placement=LAST, sbp=P)
    assert part.tolist() == [1.5, 2.0] and str(part).startswith("tensor([1.5000, 2.0000],")
    assert (part.sum() > 3) and int(part[1]) == 2 and f"{part[0]:.1f}" == "1.5"
    assert flow.equal(part, part) and flow.any(part > 1.9).item()
    again = pickle.loads(pickle.dumps(x))
    assert (again.sbp, again.placement, again.shape) == (x.sbp, x.placement, x.shape)
    same(again, np.arange(2 * SIZE))
    deep = copy.deepcopy(x)
    deep += 1
    same(deep, np.arange(2 * SIZE) + 1)
    same(x, np.arange(2 * SIZE))
    numbers = flow.comm.all_gather_object([x.global_id(), x.global_id(), deep.global_id()])
    assert numbers == [numbers[0]] * SIZE and numbers[0][0] == numbers[0][1] != numbers[0][2]


def arrays_and_local_numbers_join_in() -> None:
    """An array is the whole, the same on all ranks; a local tensor without dims is a number."""
    a = np.arange(2.0 * SIZE)
    two = flow.tensor(2.0)
    for sbp in (S0, B, P):
        x = flow.ones(2 * SIZE, placement=ALL, sbp=sbp)
        for got, want in (
            (x + a, 1 + a),
            (a - x, a - 1),
            (x * a.astype(np.int64), a),
            (flow.maximum(x, a), np.maximum(1, a)),
            (x + two, np.full(2 * SIZE, 3.0)),
            (two - x, np.ones(2 * SIZE)),
            (flow.where(x > 0, two, x), np.full(2 * SIZE, 2.0)),
            (x.masked_fill(x > 0, two), np.full(2 * SIZE, 2.0)),
            (flow.clamp(x, min=two), np.full(2 * SIZE, 2.0)),
            (flow.lerp(x, x + 1, two), np.full(2 * SIZE, 3.0)),
        ):
            assert got.placement == ALL and got.dtype is flow.float32
            same(got, want)
        assert (x.to(flow.int64) + a).dtype is flow.float64
        x[1] = two
        same(x[:2], np.array([1.0, 2.0]))
    x = flow.ones(2 * SIZE, placement=ALL, sbp=S0, requires_grad=True)
    (x * a * two).sum().backward()
    same(x.grad, 2 * a)
    if SIZE > 1:
        refuses("same input sequence", lambda: x + (a + RANK))
    refuses("local and global tensors are mixed", lambda: x + flow.ones(2 * SIZE))
    refuses("local and global tensors are mixed", lambda: x + flow.ones((), requires_grad=True))


def attributes_and_their_errors() -> None:
    x, local = together(), flow.ones(2)
    assert x.is_global and not x.is_local and not x.is_lazy and x.is_leaf and x.is_contiguous()
    assert x.is_floating_point() and not x.is_cuda
    assert flow.ones(4, 6, placement=ALL, sbp=S1).stride() == (6, 1)
    refuses("Only local tensors have 'device'. Please use", lambda: x.device)
    refuses("Only global tensors have 'placement'", lambda: local.placement)
    refuses("Only global tensors have 'sbp'", lambda: local.sbp)
    refuses("Only global tensors have 'global_id'", lambda: local.global_id())
    for t in (x, local):
        refuses("has been removed, please use .is_global instead", lambda t=t: t.is_consistent)
        refuses(
            "has been removed, please use .to_global instead", lambda t=t: t.to_consistent(ALL, B)
        )
    x.check_meta_consistency()
    if SIZE > 1:
        shape = (SIZE, 1 + RANK)
        odd = flow.ones(SIZE, 1).to_global(ALL, S0, check_meta=False)
        odd.meta = odd.meta.with_shape(shape)
        refuses("must be the same on all ranks", odd.check_meta_consistency)


def moves_and_casts() -> None:
    x = together()
    assert x.to("cpu") is x and x.cpu() is x
    assert x.to(flow.float64).dtype is flow.float64 and x.to(flow.float64).sbp == (S0,)
    only = 'Only string device without device id (eg. "cpu" or "cuda") is expected for global '
    refuses(only, lambda: x.to("cuda:0"))
    refuses(only, lambda: x.to(flow.device("cpu")))
    refuses(only, lambda: x.to(ALL))
    other = flow.zeros(2, dtype=flow.int32, placement=LAST, sbp=B)
    assert x.to(other).dtype is flow.int32 and x.to(other).placement == ALL
    assert x.type_as(other).dtype is flow.int32 and x.type_as(other).sbp == (S0,)
    for made in (
        other.new_zeros(2, 3),
        other.new_ones(2, 3),
        other.new_full((2, 3), 1),
        other.new_empty(2, 3),
    ):
        assert (made.dtype, made.placement, made.sbp) == (flow.int32, LAST, (B,))
    moved = other.new_ones(2, 3, placement=ALL, sbp=S1)
    assert (moved.placement, moved.sbp) == (ALL, (S1,))
    assert other.new_ones(2, 3, sbp=S0).sbp == (S0,)
    assert other.new_tensor([1, 2]).placement == LAST
    assert x.new_zeros(3, device="cpu").is_local
    for like in (flow.zeros_like, flow.ones_like, flow.empty_like, flow.rand_like, flow.randn_like):
        assert (like(x).placement, like(x).sbp) == (ALL, (S0,))
        made = like(x, placement=LAST, sbp=B)
        assert (made.placement, made.sbp) == (LAST, (B,))
        assert like(x, sbp=B).sbp == (B,)
    sums = flow.full((3,), 2.0, placement=ALL, sbp=P)
    assert flow.zeros_like(sums).sbp == flow.ones_like(sums).sbp == (P,)
    same(flow.ones_like(sums), np.ones(3))


def copies_go_through_the_own_layout() -> None:
    whole = np.arange(SIZE * 2.0, dtype=np.float32).reshape(SIZE, 2)
    for placement, nd_sbp in SOME_LAYOUTS:
        x = flow.zeros(SIZE, 2, placement=placement, sbp=nd_sbp)
        for q, t in ((ALL, (S1,)), (FIRST, (B,)), (GRID, (P, S0))):
            x.zero_()
            assert x.copy_(flow.tensor(whole, placement=q, sbp=t)) is x
            assert (x.placement, x.sbp) == (placement, nd_sbp)
            same(x.to_global(ALL, B), whole)
        x.copy_(2 * whole)
        same(x.to_global(ALL, B), 2 * whole)
        x.copy_(3.0)
        same(x.to_global(ALL, B), np.full((SIZE, 2), 3.0))
    refuses("Only global tensor can be assigned", lambda: together().copy_(flow.ones(N)))
    refuses("Only local tensor can be assigned", lambda: flow.ones(N).copy_(together()))


def tensors_print() -> None:
    x = flow.arange(SIZE, placement=ALL, sbp=S0)
    inner = ", ".join(map(str, range(SIZE)))
    ranks = ", ".join(map(str, range(SIZE)))
    expected = (
        f'tensor([{inner}], placement=oneflow.placement(type="cpu", ranks=[{ranks}]), '
        "sbp=(oneflow.sbp.split(dim=0),), dtype=oneflow.int64)"
    )
    assert " ".join(str(x).split()) == expected, str(x)
    assert repr(x) == str(x)
    big = np.random.default_rng(0).standard_normal((50, 60)).astype(np.float32)
    values = repr(flow.tensor(big)).rsplit("dtype", 1)[0].rstrip(", ")
    for placement, nd_sbp in LAYOUTS:
        text = repr(flow.tensor(big, placement=placement, sbp=nd_sbp))
        assert text.startswith(values), (text, values)
        assert "..." in values
    truth = flow.tensor([True, False], placement=ALL, sbp=S0)
    assert str(truth).startswith("tensor([ True, False],"), str(truth)
    assert "requires_grad=True" in str(flow.ones(2, placement=ALL, sbp=B, requires_grad=True))
    assert "size=(0, 3)" in str(flow.ones(0, 3, placement=ALL, sbp=S0))
    assert f"{together().sum():.1f}" == f"{N:.1f}"


# ---- creation ------------------------------------------------------------------------------------


def created_tensors_are_the_same_everywhere() -> None:
    """Known values, in every layout."""
    known: list[tuple[Callable[..., Any], Any]] = [
        (lambda **w: flow.ones(6, 5, **w), np.ones((6, 5))),
        (lambda **w: flow.zeros((6, 5), dtype=flow.int8, **w), np.zeros((6, 5))),
        (lambda **w: flow.full((6, 5), 2.5, **w), np.full((6, 5), 2.5)),
        (lambda **w: flow.eye(6, 5, **w), np.eye(6, 5)),
        (lambda **w: flow.eye(5, 6, dtype=flow.float64, **w), np.eye(5, 6)),
        (lambda **w: flow.tensor([[1.5, 2], [3, 4]], **w), [[1.5, 2], [3, 4]]),
        (lambda **w: flow.tensor(np.eye(3), **w), np.eye(3)),
        (lambda **w: flow.Tensor([[1, 2], [3, 4]], **w), [[1, 2], [3, 4]]),
        (lambda **w: flow.Tensor(np.eye(3), **w), np.eye(3)),
    ]
    rows: list[tuple[Callable[..., Any], Any]] = [
        (lambda **w: flow.arange(7, **w), np.arange(7)),
        (lambda **w: flow.arange(1.0, 3.0, 0.25, **w), np.arange(1.0, 3.0, 0.25)),
        (lambda **w: flow.linspace(-1, 1, 7, **w), np.linspace(-1, 1, 7)),
        (lambda **w: flow.logspace(0, 2, 5, **w), np.logspace(0, 2, 5)),
        (lambda **w: flow.hann_window(8, periodic=False, **w), np.hanning(8)),
        (lambda **w: flow.tensor([1, 2, 3], **w), [1, 2, 3]),
    ]
    for placement, nd_sbp in SOME_LAYOUTS:
        flat = S1 not in nd_sbp
        for make, expected in known + (rows if flat else []):
            x = make(placement=placement, sbp=nd_sbp)
            assert (x.placement, x.sbp, x.is_leaf) == (placement, nd_sbp, True), (x.sbp, nd_sbp)
            same(x.to_global(ALL, B), expected, 1e-6)
            if RANK in placement.ranks and not any(s.is_partial for s in nd_sbp):
                same(x.to_local(), part(np.asarray(expected), placement, nd_sbp), 1e-6)
    assert flow.tensor([1.0], placement=ALL, sbp=B).dtype is flow.float32
    assert flow.tensor([1], placement=ALL, sbp=B).dtype is flow.int64
    assert flow.tensor(np.ones(1), placement=ALL, sbp=B).dtype is flow.float64
    assert flow.Tensor(2, 3, placement=ALL, sbp=S1).shape == (2, 3)
    assert flow.empty(2, 3, placement=ALL, sbp=P).sbp == (P,)


def random_numbers_do_not_depend_on_the_layout() -> None:
    makers: list[Callable[..., Any]] = [
        lambda **w: flow.rand(6, 5, **w),
        lambda **w: flow.randn(6, 5, **w),
        lambda **w: flow.randint(0, 100, (6, 5), **w),
        lambda **w: flow.normal(1.0, 2.0, (6, 5), **w),
        lambda **w: flow.randperm(9, **w),
    ]
    for make in makers:
        flow.manual_seed(7)
        expected = make().numpy()
        for placement, nd_sbp in LAYOUTS:
            if S1 in nd_sbp and expected.ndim == 1:
                continue
            flow.manual_seed(7 if min(placement.ranks.flat) == RANK else RANK)
            if any(s.is_partial for s in nd_sbp):
                refuses(
                    "random source op only support broadcast or split",
                    lambda m=make, p=placement, s=nd_sbp: m(placement=p, sbp=s),
                )
                continue
            x = make(placement=placement, sbp=nd_sbp)
            same(x.to_global(ALL, B), expected)
    generator = flow.Generator("cpu")
    generator.manual_seed(5)
    once = flow.rand(8, placement=ALL, sbp=S0, generator=generator)
    other = flow.rand(8, placement=ALL, sbp=S0, generator=generator)
    generator.manual_seed(5)
    same(flow.rand(8, placement=ALL, sbp=B, generator=generator), once.numpy())
    assert (once != other).any()
    x = flow.zeros(6, 4, placement=ALL, sbp=S0)
    y = flow.zeros(6, 4, placement=ALL, sbp=S1)
    for fill in ("uniform_", "normal_"):
        flow.manual_seed(3)
        getattr(x, fill)()
        flow.manual_seed(3)
        getattr(y, fill)()
        same(x, y.numpy())


def graphs_create_what_scripts_create() -> None:
    """Summands and values that cannot be made in parts included; random numbers for every layout
    alike.
    """

    class Create(flow.nn.Graph):
        def __init__(self, places: list[Any]) -> None:
            super().__init__()
            self.places = places

        def build(self, x: flow.Tensor) -> list[flow.Tensor]:
            made = [x + 1]
            for placement, nd_sbp in self.places:
                w = {"placement": placement, "sbp": nd_sbp}
                made += [
                    flow.arange(6, **w),
                    flow.linspace(0, 1, 6, **w),
                    flow.full((6,), 2.0, **w),
                ]
                made += [flow.eye(6, **w), flow.tensor([1.0, 2.0], **w)]
            return made

    class Draw(flow.nn.Graph):
        def __init__(self, sbp: Any) -> None:
            super().__init__()
            self.sbp = sbp

        def build(self, x: flow.Tensor) -> list[flow.Tensor]:
            w = {"placement": ALL, "sbp": self.sbp}
            return [
                x + 1,
                flow.randperm(9, **w),
                flow.randn(6, 3, **w),
                flow.randint(0, 9, (6,), **w),
            ]

    class Refused(flow.nn.Graph):
        def build(self, x: flow.Tensor) -> flow.Tensor:
            return (x > 0).to_global(sbp=P)

    refuses("truth values have no sums", lambda: Refused()(together()))
    places = [(p, s) for p, s in LAYOUTS[:20] if S1 not in s]
    expected = [np.arange(6), np.linspace(0, 1, 6), np.full(6, 2.0), np.eye(6), [1.0, 2.0]]
    _, *made = Create(places)(together())
    for i, x in enumerate(made):
        assert x.sbp == places[i // 5][1]
        same(x, expected[i % 5], 1e-6)
    drawn = []
    for sbp in (S0, B):
        flow.manual_seed(8)
        drawn.append([x.numpy() for x in Draw(sbp)(together())])
    for split, whole in zip(*drawn, strict=True):
        same(split, whole)
    assert sorted(drawn[0][1]) == list(range(9))


def data_must_be_the_same_everywhere() -> None:
    if SIZE > 1:
        text = "Each rank must have same input sequence or numpy array"
        for data in (
            [1.0, float(RANK)],
            np.ones(2 + RANK),
            np.ones(2, np.int32 if RANK else np.int64),
        ):
            refuses(text, lambda d=data: flow.tensor(d, placement=ALL, sbp=B))
        refuses(text, lambda: flow.Tensor([float(RANK)], placement=ALL, sbp=B))
    only_last = flow.tensor([float(RANK)], placement=LAST, sbp=B)
    same(only_last.to_global(ALL, B), [SIZE - 1])
    moved = flow.tensor(flow.arange(4, placement=LAST, sbp=S0), placement=ALL, sbp=B)
    same(moved, np.arange(4))
    for wrong in ({"placement": ALL}, {"sbp": B}):
        refuses("placement and sbp go together", lambda w=wrong: flow.ones(2, **w))
        refuses("placement and sbp go together", lambda w=wrong: flow.tensor([1.0], **w))
    both = {"placement": ALL, "sbp": B, "device": "cpu"}
    refuses("not both", lambda: flow.ones(2, **both))
    refuses("not both", lambda: flow.tensor([1.0], **both))
    refuses("Split axis out of range", lambda: flow.ones(2, placement=ALL, sbp=S1))
    refuses("Split axis out of range", lambda: flow.tensor([1.0], placement=ALL, sbp=S1))


SCENES = scenes_of(globals())
