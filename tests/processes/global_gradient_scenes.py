"""Scenes of global_api_program.py: gradients, trees, modules, modes, data parallelism."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np

import oneflow as flow

from .global_words import (
    ALL,
    FIRST,
    LAST,
    LAYOUTS,
    RANK,
    S0,
    S1,
    SIZE,
    SOME_LAYOUTS,
    B,
    N,
    P,
    part,
    refuses,
    same,
    scenes_of,
    together,
)

# ---- gradients -----------------------------------------------------------------------------------


def gradients_reach_local_parts() -> None:
    """loss = sum(tanh(x @ w) * c) of global x and w made of local ones, against float64 NumPy."""
    random = np.random.default_rng(1)
    x_whole, w_whole = random.standard_normal((6, 5)), random.standard_normal((5, 7))
    c = random.standard_normal((6, 7))
    in_turn = itertools.cycle(((B, None), (S1, B), (S0, P)))
    for (placement, nd_sbp), (middle, grad_sbp) in zip(LAYOUTS, in_turn, strict=False):
        size = placement.ranks.ndim
        x, x_value = local_part(x_whole, placement, nd_sbp)
        w, w_value = local_part(w_whole, placement, (B,) * size)
        seen = x.to_global(placement, nd_sbp).to_global(
            sbp=(middle,) * size, grad_sbp=None if grad_sbp is None else (grad_sbp,) * size
        )
        out = flow.tanh(flow.matmul(seen, w.to_global(placement, (B,) * size)))
        weights = flow.tensor(c, placement=placement, sbp=(B,) * size)
        (out * weights).sum().backward()
        d_out = c * (1 - np.tanh(x_value @ w_value) ** 2)
        by_copies(x.grad, d_out @ w_value.T, placement, nd_sbp)
        by_copies(w.grad, x_value.T @ d_out, placement, (B,) * size)


def local_part(whole: np.ndarray, placement: Any, nd_sbp: Any) -> tuple[Any, np.ndarray]:
    """A local leaf of this rank, and the value of the whole; ranks outside bring a stranger."""
    if RANK not in placement.ranks:
        return flow.ones(1, requires_grad=RANK % 2 == 0), whole
    addends = np.prod(
        [n for s, n in zip(nd_sbp, placement.ranks.shape, strict=True) if s.is_partial]
    )
    mine = part(whole, placement, nd_sbp) / addends
    return flow.tensor(mine, requires_grad=True), whole


def by_copies(grad: Any, expected: np.ndarray, placement: Any, nd_sbp: Any) -> None:
    """Copies (B) get summands of the gradient, parts (S) and summands (P) the gradient itself;
    ranks outside get none."""
    grads = flow.comm.all_gather_object(None if grad is None else grad.tolist())
    if RANK not in placement.ranks:
        assert grad is None
        return
    mine = part(expected, placement, nd_sbp)
    where = np.argwhere(placement.ranks == RANK)[0]
    copies = [
        r
        for r, at in zip(placement.ranks.flat, np.ndindex(placement.ranks.shape), strict=True)
        if all(a == b or s.is_broadcast for s, a, b in zip(nd_sbp, at, where, strict=True))
    ]
    same(sum(np.reshape(grads[r], mine.shape) for r in copies), mine, 1e-6)


def gradients_pass_random_chains_of_layouts() -> None:
    """Through any ranks, grids and SBP, with and without grad_sbp, empty parts included."""
    random = np.random.default_rng(4)
    places = [
        flow.placement("cpu", np.reshape(ranks, grid))
        for n in range(1, SIZE + 1)
        for ranks in itertools.combinations(range(SIZE), n)
        for grid in {1: [1], 2: [2, (1, 2)], 4: [4, (2, 2), (2, 1, 2)]}.get(n, [n])
    ]

    def any_layout(ndim: int) -> Any:
        placement = places[random.integers(len(places))]
        return placement, any_sbp(placement, ndim)

    def any_sbp(placement: Any, ndim: int) -> Any:
        kinds = [B, P, *(flow.sbp.split(d) for d in range(ndim))]
        return tuple(kinds[random.integers(len(kinds))] for _ in placement.ranks.shape)

    for _ in range(12):
        shape = tuple(random.integers(1, 7, random.integers(1, 4)).tolist())
        placement, nd_sbp = any_layout(len(shape))
        leaf, value = local_part(random.standard_normal(shape), placement, nd_sbp)
        x, slope = leaf.to_global(placement, nd_sbp), np.ones(shape)
        for _ in range(3):
            grad_sbp = any_sbp(x.placement, len(shape)) if random.integers(2) else None
            x = flow.tanh(x.to_global(*any_layout(len(shape)), grad_sbp=grad_sbp))
            value = np.tanh(value)
            slope *= 1 - value**2
        x.sum().backward()
        by_copies(leaf.grad, slope, placement, nd_sbp)


def gradients_leave_by_to_local() -> None:
    whole = np.random.default_rng(2).standard_normal((5, 6))
    for placement, nd_sbp in LAYOUTS[:20]:
        x = flow.tensor(whole, placement=placement, sbp=nd_sbp, requires_grad=True)
        mine = x.to_local()
        (mine * mine).sum().backward() if P not in nd_sbp else (mine * 3.0).sum().backward()
        swap = {B: P, P: B}
        assert x.grad.sbp == tuple(swap.get(s, s) for s in nd_sbp), x.grad.sbp
        copies = np.prod(
            [n for s, n in zip(nd_sbp, placement.ranks.shape, strict=True) if s.is_broadcast]
        )
        expected = 2 * whole * copies if P not in nd_sbp else np.full((5, 6), 3.0) * copies
        same(x.grad.to_global(ALL, B), expected, 1e-9)


def gradients_follow_tensors_over_placements() -> None:
    """A chain from one rank over all to another: ranks outside take part in backward."""
    inside = RANK == 0
    mine = flow.tensor([1.0, 2.0, 3.0] if inside else [0.0], requires_grad=inside)
    x = mine.to_global(FIRST, B)
    assert x.requires_grad
    y = x.to_global(ALL, S0) * 2.0
    z = (y * y).to_global(LAST, B)
    z.sum().backward()
    if inside:
        same(mine.grad, 8 * np.array([1.0, 2.0, 3.0]))
    else:
        assert mine.grad is None
    with flow.no_grad():
        assert not mine.to_global(FIRST, B).requires_grad
    stranger = flow.ones(1, requires_grad=True)
    quiet = (flow.ones(3) if inside else stranger).to_global(FIRST, B)
    assert not quiet.requires_grad or SIZE == 1


def gradients_add_up_and_are_cleared() -> None:
    x = flow.full((4,), 3.0, placement=ALL, sbp=B, requires_grad=True)
    optimizer = flow.optim.SGD([x], lr=0.0)
    for times in (1, 2):
        (x.to_global(sbp=S0) ** 2).sum().backward()
        same(x.grad, np.full(4, 6.0 * times))
    optimizer.zero_grad()
    assert x.grad is None or not x.grad.numpy().any()
    (x.to_global(sbp=S0) ** 2).sum().backward()
    same(x.grad, np.full(4, 6.0))
    optimizer.zero_grad(set_to_none=True)
    assert x.grad is None
    y = x.to_global(sbp=S0, grad_sbp=S0)
    (y * 2.0).sum().backward()
    assert x.grad.sbp == (S0,)
    same(x.grad, np.full(4, 2.0))
    (second,) = flow.autograd.grad((x.to_global(sbp=S0) ** 3).sum(), [x], create_graph=True)
    (again,) = flow.autograd.grad(second.sum(), [x])
    same(again, np.full(4, 18.0))


def gradients_of_what_was_written_through_a_view() -> None:
    """Whether or not an axis cuts the rows."""
    for placement, nd_sbp in SOME_LAYOUTS:
        x = flow.ones(3, 4, placement=placement, sbp=nd_sbp, requires_grad=True)
        y = x * 2.0
        y[1:2].mul_(5.0)
        same(y.to_global(ALL, B), [[2.0] * 4, [10.0] * 4, [2.0] * 4])
        (y * y).sum().backward()
        same(x.grad.to_global(ALL, B), [[8.0] * 4, [200.0] * 4, [8.0] * 4])


# ---- trees, modules, modes -----------------------------------------------------------------------


def trees_of_tensors() -> None:
    from collections import OrderedDict, defaultdict, namedtuple

    from oneflow.utils import global_view

    Pair = namedtuple("Pair", "left right")
    tree = {
        "a": flow.ones(2),
        "b": [flow.zeros(3, 2), (flow.ones(1),)],
        "c": Pair(flow.ones(1), None),
    }
    made = global_view.to_global(tree, ALL, S0)
    assert made["a"].shape == (2 * SIZE,) and type(made["b"][1]) is tuple
    assert isinstance(made["c"], Pair) and made["c"].right is None
    by_size = global_view.to_global(
        tree, ALL, lambda whole, x: S1 if x.ndim == 2 and whole is tree else B
    )
    assert by_size["b"][0].sbp == (S1,) and by_size["a"].sbp == (B,)
    back = global_view.to_local(made)
    assert back["b"][0].shape == (3, 2) and back["c"].left.is_local
    kept = global_view.to_local(made, copy=True)
    assert kept["a"].data_ptr() != made["a"].to_local().data_ptr()
    for kind in (OrderedDict(a=flow.ones(1)), defaultdict(list, a=flow.ones(1))):
        again = global_view.to_global(kind, ALL, B)
        assert type(again) is type(kind) and again["a"].is_global
    moved = global_view.to_global(made, sbp=B)
    assert moved["a"].sbp == (B,)
    assert flow.to_global(flow.ones(1), ALL, B).is_global and flow.to_local(together()).is_local
    assert flow.local_to_global(flow.ones(1), ALL, B).is_global
    assert flow.global_to_global(together(), ALL, B).sbp == (B,)
    refuses("Expected local tensor", lambda: flow.local_to_global(together(), ALL, B))
    refuses("Expected global tensor", lambda: flow.global_to_global(flow.ones(1), ALL, B))


def modules_change_in_place() -> None:
    model = flow.nn.Sequential(flow.nn.Linear(6, 4), flow.nn.BatchNorm1d(4))
    with flow.no_grad():
        model[0].weight.fill_(float(RANK))
    weight, mean = model[0].weight, model[1].running_mean
    refuses("to_global of 1.num_batches_tracked: S(0) needs", lambda: model.to_global(ALL, S0))
    assert weight.is_local
    del model[1].num_batches_tracked
    refuses("must have placement and sbp parameters", model.to_global)
    assert model.to_global(ALL, B) is model
    assert (
        model[0].weight is weight and weight.is_global and weight.requires_grad and weight.is_leaf
    )
    assert model[1].running_mean.is_global and mean.shape == (4,)
    same(weight.to_local(), np.zeros((4, 6)))
    model.to_global(sbp=S0)
    assert weight.sbp == (S0,)
    model.to_global(placement=LAST, sbp=B)
    assert weight.placement == LAST
    model.to_global(placement=ALL, sbp=S0).to_local()
    assert weight.is_local and weight.is_leaf
    assert weight.shape == part(np.zeros((4, 6)), ALL, (S0,)).shape
    same(weight, np.zeros(weight.shape))


def attention_spreads_a_batch() -> None:
    """A transformer's layer with a mask of padding, against the whole batch on one rank."""
    flow.manual_seed(5)
    model = flow.nn.TransformerEncoderLayer(8, 2, 6, 0.0, batch_first=True)
    random = np.random.default_rng(5)
    x = random.standard_normal((N, 4, 8)).astype(np.float32)
    hidden = random.integers(0, 2, (N, 4)).astype(bool)
    hidden[:, 0] = False
    expected = model(flow.tensor(x), src_key_padding_mask=flow.tensor(hidden))
    expected.sin().sum().backward()
    grads = [p.grad.numpy() for p in model.parameters()]
    for nd_sbp in (B, S0):
        spread = copy.deepcopy(model).to_global(ALL, B)
        spread.zero_grad()
        whole = [flow.tensor(v, placement=ALL, sbp=nd_sbp) for v in (x, hidden)]
        out = spread(whole[0], src_key_padding_mask=whole[1])
        assert SIZE == 1 or out.sbp == (nd_sbp,)  # one rank: all layouts are alike
        out.sin().sum().backward()
        same(out, expected.numpy(), 1e-5)
        for p, grad in zip(spread.parameters(), grads, strict=True):
            same(p.grad, grad, 1e-4)


def code_for_one_device_makes_global_tensors() -> None:
    from oneflow.utils.global_view import current_global_mode, global_mode

    assert not current_global_mode().is_enabled
    refuses("disabled", lambda: current_global_mode().placement)
    refuses("disabled", lambda: current_global_mode().sbp)
    refuses("needs both placement and sbp", lambda: global_mode(True, ALL).__enter__())
    with global_mode(True, placement=ALL, sbp=S0):
        mode = current_global_mode()
        assert mode.is_enabled and mode.placement == ALL and mode.sbp == (S0,)
        x = flow.ones(4, 2)
        assert x.sbp == (S0,) and x.device.type == "cpu"
        assert x.to(x.device) is x and x.to("cpu") is x
        y = x + flow.arange(2, device=x.device)
        z = flow.tensor([1.0, 2.0], device=x.device)
        assert y.placement == z.placement == ALL
        same(y, np.ones((4, 2)) + np.arange(2))
        layer = flow.nn.Linear(2, 3)
        assert layer.weight.is_global
        with global_mode(False):
            assert flow.ones(1).is_local and not current_global_mode().is_enabled
        assert flow.ones(1).is_global
    assert flow.ones(1).is_local
    ones = together()
    refuses("Only local tensors have 'device'", lambda: ones.device)

    class Step(flow.nn.Graph):
        def build(self, x: flow.Tensor) -> flow.Tensor:
            with global_mode(True, placement=ALL, sbp=B):
                return x + flow.arange(x.shape[1], device=x.device).to(x.dtype)

    same(Step()(flow.ones(SIZE, 3, placement=ALL, sbp=S0)), np.ones((SIZE, 3)) + np.arange(3))


# ---- data parallel -------------------------------------------------------------------------------


class Net(flow.nn.Module):
    """Two layers, one that no rank uses, one that only rank 0 uses, a frozen one, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = flow.nn.Linear(5, 8)
        self.unused = flow.nn.Linear(3, 3)
        self.sometimes = flow.nn.Linear(8, 8, bias=False)
        self.frozen = flow.nn.Linear(8, 8)
        self.last = flow.nn.Linear(8, 2)
        self.register_buffer("offset", flow.full((8,), float(RANK)))
        self.frozen.requires_grad_(False)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        hidden = flow.tanh(self.first(x)) + self.offset
        if hasattr(self, "watch"):
            hidden.register_hook(self.watch)
        if RANK == 0:
            hidden = hidden + 0.0 * self.sometimes(hidden)
        return self.last(self.frozen(hidden))


def replicas_learn_as_one() -> None:
    """Three steps on parts of batches are three steps on the batches, in float64 NumPy."""
    random = np.random.default_rng(3)
    for bucket_size, use_bucket in ((10, True), (1, False)):
        flow.manual_seed(RANK)
        model = Net()
        wrapped = flow.nn.parallel.DistributedDataParallel(
            model, bucket_size=bucket_size, use_bucket=use_bucket
        )
        weights = {k: v.numpy().astype(np.float64) for k, v in model.state_dict().items()}
        everywhere = flow.comm.all_gather_object({k: v.tolist() for k, v in weights.items()})
        assert all(e[k] == everywhere[0][k] for e in everywhere for k in e if k != "offset")
        weights["offset"] *= 0
        optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            data = random.standard_normal((4 * SIZE, 5)).astype(np.float32)
            optimizer.zero_grad(set_to_none=True)
            (wrapped(flow.tensor(data[4 * RANK : 4 * RANK + 4])) ** 2).mean().backward()
            grads = whole_batch_grads(weights, data)
            for name, p in model.named_parameters():
                if p.requires_grad:
                    same(p.grad, grads.get(name, np.zeros(p.shape)), 1e-5)
            optimizer.step()
            for name, grad in grads.items():
                weights[name] -= 0.1 * grad
        same(model.offset, np.zeros(8))


def replicas_average_every_float_dtype() -> None:
    """Weights of two dtypes, of which the gradients are rank + 1 and its double on each rank."""
    model = flow.nn.Module()
    model.wide = flow.nn.Parameter(flow.zeros(3, dtype=flow.float64))
    model.narrow = flow.nn.Parameter(flow.zeros(3, dtype=flow.bfloat16))
    model.forward = lambda by: (
        (model.wide * by).sum() + 2 * (model.narrow * by).sum().to(flow.float64)
    )
    flow.nn.parallel.DistributedDataParallel(model)(float(RANK + 1)).backward()
    mean = (SIZE + 1) / 2
    for parameter, slope in ((model.wide, 1), (model.narrow, 2)):
        assert parameter.grad.dtype == parameter.dtype
        same(parameter.grad.to(flow.float64), np.full(3, slope * mean), 1e-12)


def whole_batch_grads(w: dict[str, Any], x: np.ndarray) -> dict[str, np.ndarray]:
    act = np.tanh(x @ w["first.weight"].T + w["first.bias"])
    middle = act @ w["frozen.weight"].T + w["frozen.bias"]
    out = middle @ w["last.weight"].T + w["last.bias"]
    d_out = 2 * out / out.size
    d_act = d_out @ w["last.weight"] @ w["frozen.weight"] * (1 - act**2)
    return {
        "first.weight": d_act.T @ x,
        "first.bias": d_act.sum(0),
        "last.weight": d_out.T @ middle,
        "last.bias": d_out.sum(0),
    }


def buckets_leave_while_backward_goes_on() -> None:
    """The last layer's gradients are averaged before the first layer's are known; accumulation,
    autograd.grad and a second backward pass give averages too."""
    from oneflow.distributed.world import world

    model = Net()
    del model.unused, model.sometimes
    model.forward = lambda x: model.last(watched(flow.tanh(model.first(x))))
    events: list[str] = []

    def watched(x: flow.Tensor) -> flow.Tensor:
        x.register_hook(lambda grad: events.append("hidden"))
        return x

    model = flow.nn.parallel.DistributedDataParallel(model, use_bucket=False)
    everyone = world().everyone
    original = everyone.all_reduce

    def counted(x: Any, *args: Any, **kwargs: Any) -> Any:
        events.append("reduce")
        return original(x, *args, **kwargs)

    everyone.all_reduce = counted
    loss = model(flow.full((2, 5), float(RANK))).sum()
    loss.backward(retain_graph=True)
    everyone.all_reduce = original
    assert events == ["reduce", "reduce", "hidden", "reduce", "reduce"], events
    once = model.first.weight.grad.numpy().copy()
    loss.backward()
    same(model.first.weight.grad, 2 * once, 1e-6)
    loss = model(flow.full((2, 5), float(RANK))).sum()
    (direct,) = flow.autograd.grad(loss, [model.first.weight])
    same(direct, once, 1e-6)
    everywhere = flow.comm.all_gather_object(direct.tolist())
    assert all(e == everywhere[0] for e in everywhere)


def what_cannot_be_replicated_is_refused() -> None:
    wrap = flow.nn.parallel.DistributedDataParallel
    phases = flow.nn.ParameterList([flow.zeros(2, dtype=flow.complex64)])
    refuses("must be real floats", lambda: wrap(phases))
    refuses("local parameters", lambda: wrap(flow.nn.Linear(2, 2).to_global(ALL, B)))
    flow.manual_seed(RANK)
    model = flow.nn.Linear(2, 2)
    before = model.weight.numpy().copy()
    wrap(model, broadcast_parameters=False, broadcast_buffers=False)
    same(model.weight, before)


SCENES = scenes_of(globals(), (local_part, by_copies, whole_batch_grads, Net))
