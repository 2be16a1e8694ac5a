"""Embeddings and the updates of their rows, against dense rows in float64 NumPy and torch."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.errors import (
    ArgumentError,
    CallError,
    DTypeError,
    PositionError,
    RowStoreError,
    ShapeError,
)
from oneflow.core.metrics import Metrics
from oneflow.core.metrics_samples import Aggregator, Exporter
from oneflow.kernels import open_tables
from oneflow.kernels.open_tables import open_table
from oneflow.one_embedding.store.owners import owners_of
from oneflow.ops.one_embedding import BUCKETS

from .making import embedding, one

Array = np.ndarray[Any, Any]
IDS = np.array(
    [
        [[1, 2], [1, 5], [7, 2]],
        [[1, 9], [8, 5], [1, 5]],
        [[7, 2], [3, 3], [7, 9]],
        [[1, 2], [3, 5], [8, 9]],
        [[1, 9], [1, 9], [3, 2]],
    ]
)
"""Ids of five steps: some rows are touched in each, some in few."""
TARGET = np.random.default_rng(0).normal(size=(3, 2, 4))


def loss_of(out: Any, target: Any) -> Any:
    return ((out - target) ** 2).sum()


def sums_by_row(grads: Array) -> Array:
    """Sum, for each of the first step's ids, the gradients of its row."""
    of_row = IDS[0][:, None] == IDS[0][None]
    sums: Array = np.einsum("ijt,jtd->itd", of_row, grads)
    return sums


class Training(flow.nn.Graph):
    def __init__(self, module: Any, optimizer: Any) -> None:
        super().__init__()
        self.module = module
        self.add_optimizer(optimizer)

    def build(self, ids: Any, target: Any) -> Any:
        loss = loss_of(self.module(ids), target)
        loss.backward()
        return loss


def train(module: Any, optimizer: Any, is_graph: bool) -> list[float]:
    graph = Training(module, optimizer) if is_graph else None
    target, losses = flow.tensor(TARGET.astype(np.float32)), []
    for ids in IDS:
        if graph is not None:
            losses.append(graph(flow.tensor(ids), target).item())
            continue
        loss = loss_of(module(flow.tensor(ids)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Rows:
    """Rows by table and id with states of their own, in float64: the values of dense training
    with updates of touched rows alone."""

    def __init__(self, module: Any, states: tuple[float, ...]) -> None:
        keys = sorted({(t, int(k)) for ids in IDS for row in ids for t, k in enumerate(row)})
        ids = flow.tensor([k for _, k in keys])
        tables = flow.tensor([t for t, _ in keys], dtype=flow.int32)
        first = module(ids, tables).detach().numpy().astype(np.float64)
        self.rows = {key: row.copy() for key, row in zip(keys, first, strict=True)}
        self.states = {key: [np.full(4, s) for s in states] for key in keys}
        self.seen = dict.fromkeys(keys, 0)

    def train(self, update: Callable[..., Array]) -> list[float]:
        losses = []
        for step, ids in enumerate(IDS, start=1):
            out = np.array([[self.rows[t, k] for t, k in enumerate(row)] for row in ids])
            losses.append(float(((out - TARGET) ** 2).sum()))
            sums: dict[Any, Array] = {}
            for row, grads in zip(ids, 2 * (out - TARGET), strict=True):
                for t, (k, g) in enumerate(zip(row, grads, strict=True)):
                    sums[t, int(k)] = sums.get((t, int(k)), 0) + g
            for key, g in sums.items():
                self.rows[key] = update(self.rows[key], g, self.states[key], step, self.seen[key])
                self.seen[key] = step
        return losses


def sgd(w: Array, g: Array, s: list[Array], t: int, seen: int) -> Array:
    return w - 0.05 * (g + 0.01 * w)


def momentum(w: Array, g: Array, s: list[Array], t: int, seen: int) -> Array:
    s[0] = 0.9 * s[0] + g
    return w - 0.05 * s[0]


def adam(w: Array, g: Array, s: list[Array], t: int, seen: int, decay: float = 0.0) -> Array:
    s[0], s[1] = 0.9 * s[0] + 0.1 * g, 0.99 * s[1] + 0.01 * g * g
    m, v = s[0] / (1 - 0.9**t), s[1] / (1 - 0.99**t)
    return w * (1 - 0.05 * decay) - 0.05 * m / (np.sqrt(v) + 1e-8)


def adamw(w: Array, g: Array, s: list[Array], t: int, seen: int) -> Array:
    return adam(w, g, s, t, seen, decay=0.1)


def adagrad(w: Array, g: Array, s: list[Array], t: int, seen: int) -> Array:
    s[0] = s[0] + g * g
    return w - 0.05 * g / (np.sqrt(s[0]) + 1e-10)


def ftrl(w: Array, g: Array, s: list[Array], t: int, seen: int) -> Array:
    n = s[0] + g * g
    s[1] = s[1] + g - (np.sqrt(n) - np.sqrt(s[0])) / 0.05 * w
    s[0] = n
    shrunk = np.sign(s[1]) * 0.1 - s[1]
    return np.where(np.abs(s[1]) <= 0.1, 0.0, shrunk / ((1.0 + np.sqrt(n)) / 0.05 + 0.2))


def smart_adam(w: Array, g: Array, s: list[Array], t: int, seen: int) -> Array:
    """Step by step: the updates that the row missed, with the root of its last update."""
    if seen:
        root = np.sqrt(s[1] / (1 - 0.99**seen)) + 1e-8
        for _ in range(seen + 1, t):
            s[0], s[1] = 0.9 * s[0], 0.99 * s[1]
            w = w - 0.05 * s[0] / (1 - 0.9**seen) / root
    return adam(w, g, s, t, seen)


BETAS = {"lr": 0.05, "betas": (0.9, 0.99)}
RULES: dict[str, tuple[Callable[..., Any], Callable[..., Array], tuple[float, ...]]] = {
    "sgd": (lambda p: flow.optim.SGD(p, lr=0.05, weight_decay=0.01), sgd, ()),
    "momentum": (lambda p: flow.optim.SGD(p, lr=0.05, momentum=0.9), momentum, (0.0,)),
    "adam": (lambda p: flow.optim.Adam(p, **BETAS), adam, (0.0, 0.0)),
    "adamw": (lambda p: flow.optim.AdamW(p, weight_decay=0.1, **BETAS), adamw, (0.0, 0.0)),
    "adagrad": (
        lambda p: flow.optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.1),
        adagrad,
        (0.1,),
    ),
    "ftrl": (
        lambda p: one.Ftrl(p, lr=0.05, lr_power=0.5, lambda1=0.1, lambda2=0.2, beta=1.0),
        ftrl,
        (0.1, 0.0),
    ),
    "smart_adam": (lambda p: one.SmartDecayAdam(p, **BETAS), smart_adam, (0.0, 0.0)),
}


@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("rule", RULES)
def test_training_equals_that_of_dense_rows_of_which_touched_ones_change(
    rule: str, is_graph: bool
) -> None:
    make, update, states = RULES[rule]
    module = embedding()
    expected = Rows(module, states)
    losses = train(module, make(module.parameters()), is_graph)
    np.testing.assert_allclose(losses, expected.train(update), rtol=2e-5)
    ids = flow.tensor([k for _, k in expected.rows])
    tables = flow.tensor([t for t, _ in expected.rows], dtype=flow.int32)
    rows = module(ids, tables).numpy()
    np.testing.assert_allclose(rows, list(expected.rows.values()), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("num_rows", [10, 5000], ids=["few", "many"])
def test_sparse_adam_of_torch_gives_the_same_rows(num_rows: int) -> None:
    module = embedding(tables=1, capacity=num_rows)
    ids = flow.arange(num_rows)
    theirs = torch.nn.Embedding(num_rows, 4, sparse=True)
    theirs.weight.data = torch.from_numpy(module(ids).detach().numpy().copy())
    optimizer = flow.optim.Adam(module.parameters(), lr=0.05)
    other = torch.optim.SparseAdam(theirs.parameters(), lr=0.05)
    for row in (IDS.reshape(5, 6, 1) + np.arange(0, num_rows, 10)).reshape(5, -1):
        optimizer.zero_grad()
        ((module(flow.tensor(row)) - 5) ** 2).sum().backward()
        optimizer.step()
        other.zero_grad()
        ((theirs(torch.from_numpy(row)) - 5) ** 2).sum().backward()
        other.step()
    np.testing.assert_allclose(
        module(ids).detach().numpy(), theirs.weight.detach().numpy(), rtol=1e-5, atol=1e-6
    )


def test_one_embedding_optimizer_adds_the_rows_to_those_of_a_dense_optimizer() -> None:
    module, dense = embedding(size_factor=1), flow.nn.Linear(4, 1)
    optimizer = one.Optimizer(flow.optim.SGD(dense.parameters(), lr=0.1), [module])
    ids = flow.tensor(IDS[0])
    before, weight = module(ids).detach().numpy(), dense.weight.numpy().copy()
    dense(module(ids)).sum().backward()
    optimizer.step()
    once = before[0, 1] - 0.1 * weight[0]  # the id 2 of table 1 comes twice, id 5 once
    np.testing.assert_allclose(module(ids).detach().numpy()[1, 1], before[1, 1] - 0.1 * weight[0],
                               rtol=1e-5)  # fmt: skip
    np.testing.assert_allclose(
        module(ids).detach().numpy()[0, 1], once - 0.1 * weight[0], rtol=1e-5
    )
    assert not np.array_equal(dense.weight.numpy(), weight)


def test_padding_gives_zeros_and_learns_nothing() -> None:
    module = embedding(tables=1, size_factor=1, padding_idx=0)
    ids = flow.tensor([[0, 3], [3, 0]])
    optimizer = flow.optim.SGD(module.parameters(), lr=1.0)
    out = module(ids)
    assert np.abs(out.numpy()[[0, 1], [0, 1]]).max() == 0.0
    first = out.numpy()[0, 1].copy()
    out.sum().backward()
    optimizer.step()
    after = module(ids).detach().numpy()
    assert np.abs(after[[0, 1], [0, 1]]).max() == 0.0
    np.testing.assert_allclose(after[0, 1], first - 2.0, rtol=1e-6)


def test_gradients_of_several_backward_passes_add_up() -> None:
    one_pass, two = embedding(size_factor=1), embedding(size_factor=1)
    for module, parts in ((one_pass, [IDS[0]]), (two, [IDS[0][:1], IDS[0][1:]])):
        optimizer = flow.optim.SGD(module.parameters(), lr=0.1)
        for part in parts:
            (module(flow.tensor(part)) ** 2).sum().backward()
        optimizer.step()
    ids = flow.tensor(IDS[0])
    np.testing.assert_allclose(one_pass(ids).numpy(), two(ids).numpy(), rtol=1e-6)


def test_gradients_that_zero_grad_clears_are_forgotten() -> None:
    module = embedding(size_factor=1)
    ids, other = flow.tensor(IDS[0]), flow.tensor(IDS[2])
    before = module(other).detach().numpy()
    optimizer = flow.optim.SGD(module.parameters(), lr=0.1)
    (module(other) * 3).sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    np.testing.assert_array_equal(module(other).detach().numpy(), before)
    module(ids).sum().backward()
    optimizer.step()
    changed = module(other).detach().numpy() != before
    # Of the ids of step 2 the ids 7 and 2 were among those of step 0.
    assert changed[0].all() and changed[2, 0].all()
    assert not changed[1].any() and not changed[2, 1].any()


@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "graph"])
def test_clipping_by_norm_takes_rows_into_account(is_graph: bool) -> None:
    module = embedding(size_factor=1)
    ids, target = flow.tensor(IDS[0]), flow.tensor(TARGET.astype(np.float32))
    before = module(ids).detach().numpy().astype(np.float64)
    groups = [{"params": list(module.parameters()), "clip_grad_max_norm": 0.5}]
    optimizer = flow.optim.SGD(groups, lr=1.0)
    if is_graph:
        Training(module, optimizer)(ids, target)
    else:
        loss_of(module(ids), target).backward()
        optimizer.clip_grad()
        optimizer.step()
    grads = 2 * (before - TARGET)
    sums = sums_by_row(grads)
    moves = sums * 0.5 / np.sqrt((sums * grads).sum())  # a row's sum times each of its gradients
    np.testing.assert_allclose(module(ids).detach().numpy(), before - moves, rtol=1e-5, atol=1e-6)


class Scaled(Training):
    """A graph whose gradients are scaled."""

    def __init__(self, module: Any, optimizer: Any) -> None:
        super().__init__(module, optimizer)
        self.set_grad_scaler(flow.amp.GradScaler(init_scale=2.0**10, growth_interval=1000))


def test_a_scaled_step_is_the_plain_one_and_one_with_infinity_changes_nothing() -> None:
    module, plain = embedding(), embedding()
    graph = Scaled(module, flow.optim.Adam(module.parameters(), lr=0.1))
    other = Training(plain, flow.optim.Adam(plain.parameters(), lr=0.1))
    target = flow.tensor(TARGET.astype(np.float32))
    ids = flow.tensor(IDS[0])
    graph(ids, target)
    other(ids, target)
    np.testing.assert_allclose(module(ids).numpy(), plain(ids).numpy(), rtol=1e-5)
    before = module(ids).detach().numpy()
    graph(ids, flow.full((3, 2, 4), 1e38))
    np.testing.assert_array_equal(module(ids).detach().numpy(), before)
    graph(ids, target)
    other(ids, target)
    np.testing.assert_allclose(module(ids).numpy(), plain(ids).numpy(), rtol=1e-4)


class Mixed(Training):
    """A graph whose products are in half precision."""

    def __init__(self, module: Any, optimizer: Any) -> None:
        super().__init__(module, optimizer)
        self.config.enable_amp(True, dtype=flow.bfloat16)


class Projected(flow.nn.Module):
    """Rows times a weight, which autocast computes in half precision."""

    def __init__(self, weight: Array) -> None:
        super().__init__()
        self.rows = embedding(size_factor=1)
        self.top = flow.nn.Linear(4, 4, bias=False)
        self.top.weight.data = flow.tensor(weight)

    def forward(self, ids: Any) -> Any:
        return self.top(self.rows(ids))


@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "graph"])
def test_autocast_rounds_products_and_trains_float32_rows(is_graph: bool) -> None:
    weight = np.random.default_rng(1).integers(-4, 5, (4, 4)).astype(np.float32) / 4
    model = Projected(weight)
    ids, target = flow.tensor(IDS[0]), flow.tensor(TARGET.astype(np.float32))
    before = model.rows(ids).detach().numpy()
    optimizer = flow.optim.SGD(model.rows.parameters(), lr=0.25)
    if is_graph:
        Mixed(model, optimizer)(ids, target)
    else:
        with flow.autocast("cpu"):
            rows = model.rows(ids)
            out = model.top(rows)
        assert rows.dtype is flow.float32 and out.dtype is flow.bfloat16
        loss_of(out.float(), target).backward()
        optimizer.step()
    d_out = 2 * (before.astype(np.float64) @ weight.T.astype(np.float64) - TARGET)
    moves = 0.25 * sums_by_row(d_out @ weight.astype(np.float64))
    error = np.abs(model.rows(ids).detach().numpy() - (before - moves)).max() / np.abs(moves).max()
    assert 2.0**-12 < error < 2.0**-5  # products and their gradients have the 8 bits of bfloat16


class Accumulating(Training):
    """A graph that makes one update of three micro-batches."""

    def __init__(self, module: Any, optimizer: Any) -> None:
        super().__init__(module, optimizer)
        self.config.set_gradient_accumulation_steps(3)


def test_a_graph_takes_the_mean_of_its_micro_batches() -> None:
    module = embedding(size_factor=1)
    ids, target = flow.tensor(IDS[0]), flow.tensor(TARGET.astype(np.float32))
    before = module(ids).detach().numpy().astype(np.float64)
    Accumulating(module, flow.optim.SGD(module.parameters(), lr=0.3))(ids, target)
    moves = sums_by_row(2 * (before - TARGET)) * 0.3 / 3
    np.testing.assert_allclose(module(ids).detach().numpy(), before - moves, rtol=1e-5, atol=1e-6)


def test_columns_have_initializers_of_their_own() -> None:
    columns = [
        one.make_column_options(one.make_uniform_initializer(-1.0, 1.0)),
        one.make_column_options(one.make_constant_initializer(0.25)),
    ]
    module = one.MultiTableMultiColumnEmbedding(
        "columns", [3, 2], flow.float, flow.int64, [one.make_table_options(columns)],
        one.make_device_mem_store_options("", 100), seed=1,
    )  # fmt: skip
    out = module(flow.arange(50)).numpy()
    assert out.shape == (50, 5)
    assert (out[:, 3:] == 0.25).all()
    assert np.abs(out[:, :3]).max() <= 1.0 and np.unique(out[:, :3]).size == 150


def test_half_precision_results_train_float32_rows() -> None:
    module = embedding(tables=1, size_factor=1, dtype=flow.float16)
    out = module(flow.tensor([5]))
    assert out.dtype is flow.float16
    out.sum().backward()
    flow.optim.SGD(module.parameters(), lr=2.0**-20).step()
    after = module(flow.tensor([5]))
    assert np.array_equal(after.detach().numpy(), out.detach().numpy())  # too small for float16


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "dtype": (lambda: embedding()(flow.zeros(3, 2)), DTypeError, "ids are float32.*int64"),
    "nan": (lambda: embedding()(flow.tensor([np.nan, 1.0])), DTypeError, "ids are float"),
    "no tensor": (
        lambda: embedding()([1, 2]),
        DTypeError,
        "ids are a list, must be a tensor of int64",
    ),
    "capacity": (lambda: embedding(capacity="many"), ArgumentError, "more than 0 rows, not 'many'"),
    "negative capacity": (
        lambda: one.make_cached_ssd_store_options(1, "", -5),
        ArgumentError,
        "more than 0 rows, not -5",
    ),
    "nan initializer": (
        lambda: one.MultiTableEmbedding(
            "of nan",
            4,
            flow.float,
            flow.int64,
            [one.make_table_options(one.make_constant_initializer(np.nan))],
            one.make_device_mem_store_options("", 10),
        ),
        ArgumentError,
        "a number that is NaN",
    ),
    "negative": (
        lambda: embedding(tables=1)(flow.tensor([4, -3])),
        PositionError,
        "id -3 is negative.*uint64",
    ),
    "columns": (lambda: embedding()(flow.arange(3)), ShapeError, "a column for each of 2 tables"),
    "table": (
        lambda: embedding()(flow.tensor([1]), flow.tensor([2])),
        PositionError,
        "table ids are 2 to 2, but there are 2 tables",
    ),
    "key": (lambda: embedding(key_type=flow.float32), DTypeError, "key_type"),
    "result": (lambda: embedding(dtype=flow.int32), DTypeError, "dtype is"),
    "width": (lambda: embedding(dim=[2, 3]), ArgumentError, "MultiTableMultiColumnEmbedding"),
    "width of a bool": (lambda: embedding(dim=True), ArgumentError, "embedding_dim is True, must"),
    "width of a float": (
        lambda: one.Embedding(
            "of a float",
            1.5,
            flow.float,
            flow.int64,
            [{}],
            one.make_device_mem_store_options("", 9),
        ),
        ArgumentError,
        r"embedding_dim is 1\.5, must be a width",
    ),
    "bounds": (
        lambda: one.MultiTableEmbedding(
            "of bounds",
            4,
            flow.float,
            flow.int64,
            [
                one.make_table_options(one.make_constant_initializer(0.0)),
                one.make_table_options(one.make_trunc_normal_initializer(0.0, 1.0, 2.0, -2.0)),
            ],
            one.make_device_mem_store_options("", 10),
        ),
        ArgumentError,
        "'of bounds', table 1: trunc_normal between a=2 and b=-2: no number lies there",
    ),
    "none": (lambda: embedding(tables=0), ArgumentError, "has no tables"),
    "options": (lambda: embedding(store_options={}), ArgumentError, "no size_factor"),
    "initializer": (
        lambda: one.MultiTableEmbedding(
            "bad", 2, flow.float, flow.int64, [{}], one.make_device_mem_store_options("", 9)
        ),
        ArgumentError,
        "without an initializer",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_misuse_is_told(case: str) -> None:
    call, error, text = WRONG[case]
    with pytest.raises(error, match=text):
        call()


def test_states_without_room_beside_the_row_are_refused() -> None:
    module = embedding(size_factor=2)
    module(flow.tensor(IDS[0])).sum().backward()
    with pytest.raises(ArgumentError, match=r"adam_update keeps 2 states.*size_factor=3"):
        flow.optim.Adam(module.parameters()).step()


def test_numbers_of_a_row_may_be_given_instead_of_a_factor() -> None:
    options = one.make_device_mem_store_options("", 100, storage_dim=8)
    module = embedding(store_options=options)
    assert module.one_embedding.sizes == (8, 4, 2)
    module(flow.tensor(IDS[0])).sum().backward()
    flow.optim.Adagrad(module.parameters(), lr=0.1).step()
    with pytest.raises(ArgumentError, match="storage_dim is 3, but a row alone has 4 numbers"):
        embedding(store_options=one.make_device_mem_store_options("", 100, storage_dim=3))


def test_a_copy_is_refused_also_within_a_model() -> None:
    module = embedding(name="only one")
    for whole in (module, flow.nn.Sequential(module, flow.nn.Linear(4, 1))):
        with pytest.raises(CallError, match="'only one' cannot be copied: its rows lie in"):
            copy.deepcopy(whole)


@pytest.mark.parametrize("dtype", ["half", "double", "bfloat16"])
def test_a_module_of_another_dtype_keeps_gradients_that_others_join(dtype: str) -> None:
    module, plain = embedding(size_factor=1), embedding(size_factor=1)
    for each in (module, plain):
        each(flow.tensor(IDS[0])).sum().backward()
    if dtype == "bfloat16":
        module.to(flow.bfloat16)
    else:
        getattr(module, dtype)()
    assert module.shadow.dtype is module.shadow.grad.dtype is flow.float32
    for each in (module, plain):
        each(flow.tensor(IDS[0])).sum().backward()
        flow.optim.SGD(each.parameters(), lr=0.1).step()
    rows, expected = (each(flow.tensor(IDS[0])).detach().numpy() for each in (module, plain))
    assert np.array_equal(rows, expected)


def test_a_path_that_can_be_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", Path("/proc/nothing")):
        options = one.make_device_mem_store_options(str(path), 100)
        module = embedding(name=f"lost {path.name}", size_factor=1, store_options=options)
        text = rf"'lost {path.name}': {path}/0-1 cannot be a folder of rows .*persistent_path"
        with pytest.raises(RowStoreError, match=text):
            module(flow.tensor(IDS[0]))
        with pytest.raises(RowStoreError, match=text):
            module.load_snapshot("a")


def test_optimizers_that_look_at_whole_tensors_are_refused() -> None:
    module = embedding()
    module(flow.tensor(IDS[0])).sum().backward()
    with pytest.raises(CallError, match="LAMB has no form for the rows"):
        flow.optim.LAMB(module.parameters()).step()


def test_a_name_is_for_one_embedding_at_a_time() -> None:
    module = embedding(name="taken")
    with pytest.raises(ArgumentError, match=r"'taken' in this process already"):
        embedding(name="taken")
    del module
    embedding(name="taken")


def test_hashes_of_64_bits_are_ids() -> None:
    module = embedding(tables=1, key_type="uint64")
    out = module(flow.tensor([-1, 1, -1, -(2**63)])).numpy()
    np.testing.assert_array_equal(out[0], out[2])
    assert np.unique(out[:, 0]).size == 3


def test_a_state_dict_brings_rows_and_their_states_back(tmp_path: Path) -> None:
    options = one.make_device_mem_store_options(str(tmp_path / "rows"), 1000, size_factor=2)
    module = embedding(store_options=options, name="kept")
    optimizer = flow.optim.Adagrad(module.parameters(), lr=0.1)
    ids, target = flow.tensor(IDS[0]), flow.tensor(TARGET.astype(np.float32))

    def step() -> Any:
        optimizer.zero_grad()
        loss_of(module(ids), target).backward()
        optimizer.step()
        return module(ids).detach().numpy()

    step()
    flow.save(module.state_dict(), str(tmp_path / "state"))
    wanted = step()
    del module, optimizer
    module = embedding(store_options=options, name="kept")
    optimizer = flow.optim.Adagrad(module.parameters(), lr=0.1)
    module.load_state_dict(flow.load(str(tmp_path / "state")))
    np.testing.assert_array_equal(step(), wanted)


def test_statistics_count_ids_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    monkeypatch.setattr(open_tables, "METRICS", metrics)
    module = embedding(size_factor=1)
    optimizer = flow.optim.SGD(module.parameters(), lr=0.1)
    module(flow.tensor(IDS[0])).sum().backward()
    optimizer.step()
    with flow.no_grad():
        module(flow.tensor(IDS[1]))
    counted = module.statistics()
    distinct = [len({(t, k) for row in ids for t, k in enumerate(row)}) for ids in IDS[:2]]
    assert (counted["ids"], counted["distinct"]) == (12, sum(distinct))
    assert counted["updated"] == distinct[0] and counted["rows"] == counted["created"] == 6
    assert metrics.row_ids == {"asked": 12, "distinct": sum(distinct)}
    shown = Metrics()
    Aggregator(shown, "job").take(Exporter(metrics).news())
    assert shown.row_ids == metrics.row_ids


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_each_rank_counts_the_ids_of_its_own_rows_and_no_padding(num_ranks: int) -> None:
    text, share = embedding(tables=1).one_embedding.text, BUCKETS // num_ranks
    asked = distinct = 0
    for rank in range(num_ranks):
        part = open_table(text, rank * share, (rank + 1) * share)
        part.look_up(part.request(np.array([5, 0, 7, 5, 9, 0, 5]), None, 0))
        asked, distinct = asked + part.counts.ids, distinct + part.counts.distinct
    assert (asked, distinct) == (5, 3)


def test_owners_of_ids_are_the_ranks_whose_kernels_find_them(rng: np.random.Generator) -> None:
    module = embedding(tables=3)
    keys, tables = rng.integers(0, 2**62, 500), rng.integers(0, 3, 500).astype(np.int32)
    for num_ranks in (1, 3, 8):
        owners, share = owners_of(keys.view(np.uint64), tables, num_ranks), BUCKETS // num_ranks
        for rank in range(num_ranks):
            part = open_table(module.one_embedding.text, rank * share, (rank + 1) * share)
            found = part.request(keys, tables, None).inverse >= 0
            np.testing.assert_array_equal(found, owners == rank)


def test_a_number_of_ranks_that_cannot_share_evenly_is_refused() -> None:
    with pytest.raises(ArgumentError, match="cannot be shared evenly by 11 ranks"):
        open_table(embedding().one_embedding.text, 0, 459)


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_full_tables_are_evaluated_on_ids_that_they_lack(tier: str, tmp_path: Path) -> None:
    options = (
        one.make_device_mem_store_options(str(tmp_path), 2, size_factor=1)
        if tier == "memory"
        else one.make_cached_ssd_store_options(1, str(tmp_path), 2, 1)
    )
    module = embedding(tables=1, store_options=options)
    optimizer = flow.optim.SGD(module.parameters(), lr=1.0)
    known, mixed = flow.tensor(np.array([[3], [4]])), flow.tensor(np.array([[9], [4], [7], [9]]))
    module(known).sum().backward()
    optimizer.step()
    with pytest.raises(RowStoreError, match="the capacity is 2 rows"):
        module(mixed)
    fresh = embedding(tables=1, size_factor=1)(mixed).detach().numpy()
    module.eval()
    got = module(mixed).detach().numpy()
    fresh[1] -= 1.0  # the row that was trained
    np.testing.assert_array_equal(got, fresh)
    assert module.statistics()["rows"] == 2
    module.train()
    with pytest.raises(RowStoreError, match="the capacity is 2 rows"):
        module(mixed)


def test_snapshots_are_listed_and_removed(tmp_path: Path) -> None:
    options = one.make_device_mem_store_options(str(tmp_path), 100, size_factor=1)
    module = embedding(tables=1, store_options=options)
    rows = module(flow.tensor(np.array([[1], [2]]))).detach().numpy()
    module.save_snapshot("b")
    module.save_snapshot("a")
    module.state_dict()
    names = module.snapshots()
    assert names[:2] == ["a", "b"] and names[2].startswith("state-")
    module.remove_snapshot("b")
    module.remove_snapshot(names[2])
    assert module.snapshots() == ["a"]
    with pytest.raises(RowStoreError, match=r"no snapshot 'b' in .*; there are a"):
        module.remove_snapshot("b")
    module.load_snapshot("a")
    np.testing.assert_array_equal(module(flow.tensor(np.array([[1], [2]]))).detach(), rows)


def test_garbage_that_is_collected_while_a_table_is_opened_may_close_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = embedding().one_embedding.text
    opened = open_tables.OpenTable

    def collecting(*key: Any) -> Any:
        open_tables.close_tables(other)
        return opened(*key)

    monkeypatch.setattr(open_tables, "OpenTable", collecting)
    text = embedding(tables=1).one_embedding.text
    opening = threading.Thread(target=open_table, args=(text, None, None), daemon=True)
    opening.start()
    opening.join(60)
    assert not opening.is_alive() and open_tables.opened(text)
