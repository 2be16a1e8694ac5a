"""Inputs and outputs of a graph: structures, dtypes, sizes, new tensors, refusals."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.actors.executor import Executor
from oneflow.core.errors import OneFlowError

HERE = flow.placement("cpu", [0])
B = flow.sbp.broadcast
DATA = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)


class Compute(nn.Graph):
    """A graph of a function, and of modules that the function reads from it."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def build(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def x() -> flow.Tensor:
    return flow.tensor(DATA)


def test_structures_go_in_and_come_out() -> None:
    Pair = namedtuple("Pair", "a b")

    def function(tree: Any, none: Any = None, *, key: Any) -> Any:
        total = tree["u"] + tree["v"][0]
        return {"x": [total, (total * 2, None)], "y": key, "z": none, "p": Pair(total, 3)}

    out = Compute(function)({"u": x(), "v": [x()]}, None, key=(x(),))
    np.testing.assert_array_equal(out["x"][1][0].numpy(), DATA * 4)
    assert out["x"][1][1] is None and out["z"] is None and out["p"].b == 3
    assert isinstance(out["y"], tuple) and isinstance(out["p"], Pair)
    assert not out["y"][0].is_lazy


@dataclass
class Pair(OrderedDict[str, Any]):
    """A dict of its fields besides, as outputs of diffusers and transformers are."""

    first: Any
    second: Any = None

    def __post_init__(self) -> None:
        self.update(first=self.first)


def test_dataclasses_go_in_and_come_out() -> None:
    class Swap(nn.Graph):
        def build(self, pair: Pair, mode: Any) -> Any:
            return Pair(pair.second * 2.0, pair.first), mode

    graph, mode = Swap(), Pair(7)
    for scale in (1.0, 3.0):
        ones = flow.ones(2) * scale
        out, kept = graph(Pair(ones, ones + 1.0), mode)
        assert type(out) is Pair and kept is mode
        assert out.first.tolist() == out["first"].tolist() == [2.0 * scale + 2.0] * 2
        assert out.second.tolist() == [scale] * 2


def test_arguments_are_matched_by_their_place() -> None:
    graph = Compute(lambda tree, *, a, b: tree["u"] - tree["v"] + 10 * a - b)
    first = graph({"u": x(), "v": x() * 2}, a=x(), b=x() * 3)
    again = graph({"v": x() * 2, "u": x()}, b=x() * 3, a=x())
    np.testing.assert_array_equal(first.numpy(), again.numpy())


def test_integer_and_boolean_outputs() -> None:
    best, positive, whole = Compute(lambda a: (a.argmax(1), a > 0, a.long()))(x())
    np.testing.assert_array_equal(best.numpy(), DATA.argmax(1))
    np.testing.assert_array_equal(positive.numpy(), DATA > 0)
    assert (best.dtype, positive.dtype, whole.dtype) == (flow.int64, flow.bool, flow.int64)


def test_an_input_and_one_result_twice_may_be_returned() -> None:
    given = x()
    same, more, again = Compute(lambda a: (a, a + 1, a))(given)
    np.testing.assert_array_equal(same.numpy(), DATA)
    np.testing.assert_array_equal(more.numpy(), DATA + 1)
    assert same is not given
    again.fill_(0)
    np.testing.assert_array_equal(given.numpy(), DATA)


def test_outputs_of_earlier_calls_stay() -> None:
    graph = Compute(lambda a: a * 2)
    outs = [graph(flow.full((3,), float(i))) for i in range(5)]
    assert [o.numpy().tolist() for o in outs] == [[2.0 * i] * 3 for i in range(5)]


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes(dtype: str) -> None:
    wanted = getattr(flow, dtype)
    model = nn.Linear(8, 2).to(wanted)
    expected = model(x().to(wanted))
    out = Compute(lambda a: model(a), model=model)(x().to(wanted))
    assert out.dtype is wanted
    np.testing.assert_array_equal(out.numpy(), expected.numpy())


def test_nothing_may_go_in() -> None:
    model = nn.Linear(8, 2)
    product, total, joined, layer = Compute(
        lambda a: (a @ flow.ones(8, 3), a.sum(), flow.cat([a, a]), model(a)), model=model
    )(flow.zeros(0, 8))
    assert (product.shape, joined.shape, layer.shape) == ((0, 3), (0, 8), (0, 2))
    assert total.item() == 0.0


def test_inputs_need_not_be_contiguous() -> None:
    columns = flow.tensor(DATA).t()
    graph = Compute(lambda a: a + 1)
    np.testing.assert_array_equal(graph(columns).numpy(), DATA.T + 1)


@pytest.mark.parametrize("is_global", [False, True])
def test_tensors_made_in_build(is_global: bool) -> None:
    where = {"placement": HERE, "sbp": B} if is_global else {}

    def function(a: Any) -> Any:
        return (
            a + flow.ones(4, 8, **where),
            flow.zeros(2, 3, **where),
            flow.arange(5, **where),
            flow.full((2,), 3.0, **where),
            flow.tensor([1.0, 2.0], **where),
            flow.eye(3, **where),
            flow.ones_like(a),
            a.new_zeros(2),
            flow.randn(3, 3, **where),
        )

    given = x().to_global(HERE, B) if is_global else x()
    graph = Compute(function)
    first, second = graph(given), graph(given)
    expected = [DATA + 1, np.zeros((2, 3)), np.arange(5), np.full(2, 3), [1, 2], np.eye(3)]
    expected += [np.ones((4, 8)), np.zeros(2)]
    for got, wanted in zip(first, expected, strict=False):
        assert got.is_global == is_global
        np.testing.assert_array_equal(got.numpy(), wanted)
    assert not np.array_equal(first[-1].numpy(), second[-1].numpy())


def test_captured_tensors_are_read_at_every_call() -> None:
    weight = flow.ones(8, 3)
    graph = Compute(lambda a: a @ weight)
    first = graph(x()).numpy()
    weight.fill_(2.0)
    np.testing.assert_allclose(graph(x()).numpy(), 2 * first)


def test_a_traced_tensor_prints_without_data() -> None:
    texts = []

    def function(a: Any) -> Any:
        texts.append(repr(a + 1))
        return a + 1

    Compute(function)(x())
    assert texts == ["tensor(..., is_lazy='True', size=(4, 8), dtype=oneflow.float32)"]


def test_names_are_counted_per_class() -> None:
    class Counted(nn.Graph):
        def build(self, a: Any) -> Any:
            return a + 1

    first, second = Counted(), Counted()
    assert (first.name, second.name) == ("Counted_0", "Counted_1")
    assert not first.is_compiled
    np.testing.assert_array_equal(first(x()).numpy(), DATA + 1)
    np.testing.assert_array_equal(second(x()[:2]).numpy(), DATA[:2] + 1)
    assert first.is_compiled


def test_a_function_as_a_graph() -> None:
    calls = []

    @nn.Graph.trace
    def double(a: Any, *, b: Any) -> Any:
        """Twice a, and b."""
        calls.append(1)
        return a * 2 + b

    for _ in range(3):
        np.testing.assert_allclose(double(x(), b=x()).numpy(), DATA * 3, rtol=1e-6)
    assert calls == [1] and double.name.startswith("double_")


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda a: (a + 1).numpy(), "do not exist while nn.Graph.build is traced"),
        (lambda a: 1 if a.sum() > 0 else 0, "do not exist while nn.Graph.build is traced"),
        (lambda a: a.to_global(HERE, B), "local_tensor.to_global() is not supported within nn.Gra"),
        (lambda a: a.to_local(), "Expected global tensor for to_local but got local tensor!"),
        (lambda a: a.backward(), "does not require grad"),
        (lambda a: a @ a, "matmul"),
    ],
)
def test_mistakes_in_build_name_the_users_line(function: Any, message: str) -> None:
    with pytest.raises(OneFlowError) as caught:
        Compute(function)(x())
    assert message in str(caught.value)
    assert "test_graph_calls.py:" in str(caught.value)


CAUGHT = flow.arange(6.0)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a,
        lambda a: (a, a),
        lambda a: a.detach(),
        lambda a: a.reshape(-1),
        lambda a: a.view(4, 8),
        lambda a: a.transpose(0, 1),
        lambda a: a.unsqueeze(0).expand(3, 4, 8),
        lambda a: a.split(2),
        lambda a: a.unbind(0)[1:],
        lambda a: a[0:4][1:2].reshape(8),
        lambda a: CAUGHT,
        lambda a: (CAUGHT, a[0], 3, None),
    ],
)
def test_a_graph_that_computes_nothing_runs(function: Any) -> None:
    graph = Compute(function)
    for given in (x(), x() + 1):
        for got, expected in zip(_leaves(graph(given)), _leaves(function(given)), strict=True):
            if isinstance(expected, flow.Tensor):
                np.testing.assert_array_equal(got.numpy(), expected.numpy())
            else:
                assert got is expected


def _leaves(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (list, tuple)) else [result]


def test_a_graph_without_tensors_has_nothing_to_run() -> None:
    with pytest.raises(OneFlowError, match=r"nothing to run: build\(\) takes no tensor"):
        Compute(lambda: 3)()


def test_a_move_alone_is_work_enough() -> None:
    moved = Compute(lambda a: a.to_global(sbp=B))(x().to_global(HERE, flow.sbp.split(0)))
    assert moved.sbp == (B,)
    np.testing.assert_array_equal(moved.numpy(), DATA)


def test_a_global_value_has_no_local_part_yet() -> None:
    with pytest.raises(OneFlowError, match=r"to_local\(\).*no data yet"):
        Compute(lambda a: a.to_local())(x().to_global(HERE, B))


def test_local_and_global_are_not_mixed() -> None:
    with pytest.raises(OneFlowError, match="local and global tensors are mixed"):
        Compute(lambda a: a + flow.ones(4, 8))(x().to_global(HERE, B))


@pytest.mark.parametrize(
    "other",
    [
        lambda: flow.zeros(5, 8),
        lambda: flow.zeros(4, 8, dtype=flow.float64),
        lambda: flow.zeros(4, 8, placement=HERE, sbp=B),
    ],
)
def test_other_inputs_than_at_the_first_call(other: Any) -> None:
    graph = Compute(lambda a: a + 1)
    graph(x())
    with pytest.raises(OneFlowError) as caught:
        graph(other())
    text = str(caught.value)
    assert "nn.Graph ONLY accepts static inputs tensor meta, please check whether your" in text
    assert "The excepted tensor meta is: float32[4, 8], but the actual tensor meta is: " in text
    assert text.endswith("The input index is 0.")
    np.testing.assert_array_equal(graph(x()).numpy(), DATA + 1)


@pytest.mark.parametrize("other", [(2,), (None,), (), (1, 1)])
def test_what_is_no_tensor_is_fixed(other: Any) -> None:
    graph = Compute(lambda a, *more: a + sum(more))
    np.testing.assert_array_equal(graph(x(), 1).numpy(), DATA + 1)
    np.testing.assert_array_equal(graph(x(), 1).numpy(), DATA + 1)
    if other == ():
        np.testing.assert_array_equal(graph(x(), 1).numpy(), DATA + 1)
        return
    with pytest.raises(OneFlowError, match="What is no tensor is fixed when the graph is built"):
        graph(x(), *other)


def test_a_graph_without_build() -> None:
    class Empty(nn.Graph):
        pass

    with pytest.raises(NotImplementedError, match="build must be overridden"):
        Empty()(x())


def test_what_a_graph_cannot_hold() -> None:
    graph = Compute(lambda a: a)
    with pytest.raises(AttributeError, match="a tensor cannot be an attribute of a graph"):
        graph.weight = x()
    with pytest.raises(AttributeError, match="add_optimizer"):
        graph.optimizer = flow.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = graph.missing


def test_settings_out_of_range() -> None:
    config = Compute(lambda a: a).config
    with pytest.raises(AssertionError, match="please choose one of"):
        config.enable_straighten_algorithm("Fastest")
    with pytest.raises(OneFlowError, match="outputs buffer size"):
        config.set_outputs_buffer_size(0)
    with pytest.raises(OneFlowError, match="accumulation steps"):
        config.set_gradient_accumulation_steps(1.5)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="verbose"):
        Compute(lambda a: a).debug(4)


def test_a_batch_that_cannot_be_cut() -> None:
    graph = Compute(lambda a: a + 1)
    graph.config.set_gradient_accumulation_steps(3)
    with pytest.raises(OneFlowError, match="divisible by the 3 gradient accumulation steps"):
        graph(x())


def test_a_graph_whose_first_call_failed_can_be_called_again() -> None:
    graph = Compute(lambda a, b: a + b)
    with pytest.raises(OneFlowError):
        graph(x(), flow.zeros(3, 3))
    np.testing.assert_array_equal(graph(x(), x()).numpy(), DATA * 2)


def test_threads_that_call_one_graph_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Compute(lambda a: a * 2)
    graph(x())
    inside, go, step = Event(), Event(), Executor.run_step

    def slow(self: Executor) -> None:
        inside.set()
        assert go.wait(60)
        step(self)

    monkeypatch.setattr(Executor, "run_step", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(graph, x())
        assert inside.wait(60)
        second = pool.submit(graph, x() + 1)
        with suppress(Late):  # it would be refused at once
            second.exception(timeout=0.1)
        go.set()
        np.testing.assert_array_equal(first.result(60).numpy(), DATA * 2)
        np.testing.assert_array_equal(second.result(60).numpy(), (DATA + 1) * 2)
