"""A graph is traced once for all equal ones, and anew for who changed anything that it reads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.core.config import current_config, set_config
from oneflow.graph import build_key, package_state, trace_cache
from oneflow.graph.trace_cache import TraceCache
from oneflow.nn.forward_hooks import register_module_forward_hook
from oneflow.scheduler.compiler import plan_cache

from .found_traces import INPUT, Run, assert_eager, is_found, keeps_all, run

__all__ = ["keeps_all"]

FACTOR = 2.0
TABLE = {"shift": 1.0, "unused": 0.0}


def shifted(x: flow.Tensor, by: float = 1.0) -> flow.Tensor:
    return x + by * TABLE["shift"]


def halved(x: flow.Tensor) -> flow.Tensor:
    return x * 0.5


class Settings:
    def __init__(self, power: int) -> None:
        self.power = power

    def raised(self, x: flow.Tensor) -> flow.Tensor:
        return x**self.power


class Net(nn.Module):
    """Reads a global, a table, an object, a default argument, an attribute, parts and a buffer."""

    bias = 0.25

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.parts = nn.Sequential(nn.ReLU(), nn.Dropout(0.0), nn.Linear(4, 3))
        self.scale = 3.0
        self.settings = Settings(1)
        self.order = {"a": 1.0, "b": 2.0}
        self.register_buffer("offset", flow.ones(3))

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        x = shifted(F.gelu(self.first(x) * self.scale)) * FACTOR
        for weight in self.order.values():
            x = self.settings.raised(x + weight) * weight
        x = self.parts(x) + self.offset + self.bias
        return x if self.training else -x


def net(kind: Callable[[], nn.Module] = Net, seed: int = 0) -> Any:
    flow.manual_seed(seed)
    return kind()


def test_an_equal_graph_is_not_traced_again_and_uses_its_own_parameters() -> None:
    one, other = net(seed=0), net(seed=1)
    was_found, result = run(Run(one))
    assert not was_found
    assert_eager(one, result)
    was_found, result = run(Run(other))
    assert was_found
    assert_eager(other, result)


def test_a_found_graph_says_what_one_says_that_was_traced() -> None:
    module = net()
    first, second = Run(net()), Run(module)
    assert not run(first)[0]
    assert run(second)[0]
    one, other = first._compiled, second._compiled
    assert one is not None and other is not None
    assert list(one.variables) == list(other.variables)
    assert other.variables["m.first.weight"] is module.first.weight
    assert str(first.explain()).replace(first.name, "") == str(second.explain()).replace(
        second.name, ""
    )
    assert second.memory_report().arena_nbytes == first.memory_report().arena_nbytes


def test_training_follows_the_eager_steps_from_a_found_trace() -> None:
    class Train(nn.Graph):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.m = module
            self.add_optimizer(flow.optim.AdamW(module.parameters(), lr=0.1))

        def build(self, x: flow.Tensor) -> dict[str, Any]:
            loss = self.m(x).square().mean()
            loss.backward()
            return {"loss": loss, "both": (loss * 2, [1, None])}

    x = flow.tensor(INPUT)
    for seed in (0, 1):
        graph, module = Train(net(seed=seed)), net(seed=seed)
        optimizer = flow.optim.AdamW(module.parameters(), lr=0.1)
        graph.build_graph(x)
        assert is_found(graph) == (seed == 1)
        for _ in range(3):
            loss = module(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            told = graph(x)
            np.testing.assert_allclose(told["loss"].numpy(), loss.numpy(), rtol=1e-5)
            np.testing.assert_allclose(told["both"][0].numpy(), 2 * loss.numpy(), rtol=1e-5)
            assert told["both"][1] == [1, None]


def test_random_numbers_of_a_found_graph_go_on_where_the_generator_is() -> None:
    class Draw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: flow.Tensor) -> flow.Tensor:
            return self.drop(x) + flow.rand(2, 4)

    found = []
    for _ in range(2):
        module = Draw()
        flow.manual_seed(5)
        was_found, result = run(Run(module))
        found.append(was_found)
        flow.manual_seed(5)
        assert_eager(module, result)
    assert found == [False, True]


# ---- changes that are seen -----------------------------------------------------------------------


def _hook(module: nn.Module, args: Any, output: flow.Tensor) -> flow.Tensor:
    return output * 7


def _pre_hook(module: nn.Module, args: Any) -> Any:
    return (args[0] + 1,)


class Louder(nn.ReLU):
    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return super().forward(x) * 10


def _quiet(self: nn.Module, x: flow.Tensor) -> flow.Tensor:
    return x * 0.1


def _first_last(module: Any) -> None:
    module.order = dict(reversed(module.order.items()))


CHANGES: dict[str, Callable[[Any], object]] = {
    "attribute": lambda m: setattr(m, "scale", 4.0),
    "attribute of another type": lambda m: setattr(m, "scale", 3),
    "object's attribute": lambda m: setattr(m.settings, "power", 2),
    "part's attribute": lambda m: setattr(m.parts[1], "p", 1.0),
    "order of a dict": _first_last,
    "hook": lambda m: m.parts[0].register_forward_hook(_hook),
    "pre-hook": lambda m: m.register_forward_pre_hook(_pre_hook),
    "subclass": lambda m: m.parts.__setitem__(0, Louder()),
    "own forward": lambda m: setattr(m.parts[0], "forward", MethodType(_quiet, m.parts[0])),
    "class of an object": lambda m: setattr(m.parts[0], "__class__", nn.Sigmoid),
    "mode of a part": lambda m: m.parts.eval(),
    "mode": lambda m: m.eval(),
    "part left out": lambda m: m.parts.__delitem__(1),
    "no bias": lambda m: setattr(m.first, "bias", None),
    "frozen parameter": lambda m: m.first.weight.requires_grad_(False),
    "buffer's dtype": lambda m: m.register_buffer("offset", flow.ones(3, dtype=flow.float64)),
    "shape": lambda m: m.register_buffer("offset", flow.ones(1)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_module_is_traced_anew(name: str) -> None:
    assert not run(Run(net()))[0]
    module = net()
    CHANGES[name](module)
    was_found, result = run(Run(module))
    assert not was_found
    assert_eager(module, result)


def test_tied_parameters_are_no_equal_ones() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: flow.Tensor) -> flow.Tensor:
            return self.b(self.a(x))

    assert not run(Run(net(Two)))[0]
    for share in ("weight", "data"):
        module = net(Two)
        if share == "weight":
            module.b.weight = module.a.weight
        else:
            module.b.weight.data = module.a.weight.detach()
        was_found, result = run(Run(module))
        assert not was_found
        assert_eager(module, result)


REPLACED: dict[str, tuple[object, str, object]] = {
    "global": (globals(), "FACTOR", 5.0),
    "entry of a global dict": (TABLE, "shift", 2.0),
    "function": (globals(), "shifted", halved),
    "class attribute": (Net, "bias", 0.5),
    "method of a class": (Settings, "raised", lambda self, x: x * 3),
    "forward of a class": (Net, "forward", lambda self, x: self.parts(self.first(x))),
    "forward of a class of oneflow": (nn.Linear, "forward", lambda self, x: x @ self.weight.t()),
    "public function": (F, "gelu", F.relu),
    "public function by one's own": (F, "gelu", halved),
    "function of a part": (F, "linear", lambda x, w, b=None: x @ w.t()),
    "function of a part by another one": (F, "dropout", F.alpha_dropout),
    "call of modules": (
        nn.Module,
        "__call__",
        lambda self, *args, **kwargs: self.forward(*args, **kwargs) * 2,
    ),
    "method of tensors": (flow.Tensor, "__mul__", lambda a, b: a + b),
    "defaults": (shifted, "__defaults__", (3.0,)),
    "code": (shifted, "__code__", halved.__code__),
    "defaults of a public function": (F.gelu, "__defaults__", (None, "tanh")),
    "defaults inside of a public function": (
        F.linear.__wrapped__,
        "__defaults__",
        (flow.ones(1),),
    ),
    "keyword of a public function": (F.gelu.__kwdefaults__, "x", 0),
}


@pytest.mark.parametrize("name", REPLACED)
def test_a_replaced_function_or_value_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, key, value = REPLACED[name]
    assert not run(Run(net()))[0]
    assert run(Run(net()))[0]
    if isinstance(where, dict):
        monkeypatch.setitem(where, key, value)
    else:
        monkeypatch.setattr(where, key, value)
    module = net()
    was_found, result = run(Run(module))
    assert not was_found
    assert_eager(module, result)
    monkeypatch.undo()
    module = net()
    was_found, result = run(Run(module))
    assert was_found
    assert_eager(module, result)


def test_hooks_of_all_modules_are_seen() -> None:
    assert not run(Run(net()))[0]
    handle = register_module_forward_hook(_hook)
    try:
        module = net()
        was_found, result = run(Run(module))
        assert not was_found
        assert_eager(module, result)
    finally:
        handle.remove()


def test_a_cell_of_build_is_seen() -> None:
    def graph(factor: float, act: Callable[..., Any]) -> nn.Graph:
        class Scale(nn.Graph):
            def build(self, x: flow.Tensor) -> flow.Tensor:
                inner = [act(x * part) for part in (1.0, factor)]
                return inner[0] + inner[1]

        return Scale()

    for factor, act, expected in (
        (2.0, F.relu, False),
        (2.0, F.relu, True),
        (3.0, F.relu, False),
        (2.0, halved, False),
        (2.0, F.relu, True),
    ):
        was_found, result = run(graph(factor, act))
        assert was_found == expected
        x = flow.tensor(INPUT)
        np.testing.assert_allclose(result, (act(x) + act(x * factor)).numpy(), rtol=1e-6)


def test_arguments_are_seen() -> None:
    class Mul(nn.Graph):
        def build(self, x: Any, by: Any = 2) -> Any:
            return x[0] * by if isinstance(x, tuple) else x * by

    x = flow.tensor(INPUT)
    calls: list[tuple[tuple[Any, ...], bool]] = [
        ((x,), False), ((x,), True), ((x, 3), False), ((x, 3.0), False), (((x,), 3), False),
        (([x, x][0], 3), True), ((x.double(),), False), ((x[:1].clone(),), False),
    ]  # fmt: skip
    for args, expected in calls:
        graph = Mul()
        graph.build_graph(*args)
        assert is_found(graph) == expected, args
        tensor, by = args[0][0] if isinstance(args[0], tuple) else args[0], (*args, 2)[1]
        np.testing.assert_allclose(graph(*args).numpy(), tensor.numpy() * by, rtol=1e-6)


def test_options_and_default_dtype_are_seen() -> None:
    class Fill(nn.Graph):
        def build(self, x: flow.Tensor) -> flow.Tensor:
            return x.double() + flow.full((2, 4), 0.1)

    def pieces(graph: nn.Graph) -> None:
        graph.config.set_gradient_accumulation_steps(2)

    assert not run(Fill())[0]
    assert run(Fill())[0]
    flow.set_default_dtype(flow.float64)
    try:
        was_found, result = run(Fill())
        assert not was_found
        np.testing.assert_allclose(result, INPUT.astype(np.float64) + 0.1, rtol=1e-15)
    finally:
        flow.set_default_dtype(flow.float32)
    assert run(Fill())[0]
    for change in (lambda g: g.config.enable_amp(True, dtype=flow.bfloat16), pieces):
        graph = Run(net())
        run(Run(net()))
        change(graph)
        assert not run(graph)[0]


def test_options_of_optimizers_are_seen() -> None:
    class Train(nn.Graph):
        def __init__(self, **options: Any) -> None:
            super().__init__()
            self.m = net()
            self.add_optimizer(flow.optim.SGD(self.m.to(nn.Module).parameters(), **options))

        def build(self, x: flow.Tensor) -> flow.Tensor:
            loss = self.m(x).sum()
            loss.backward()
            return loss

    for options, expected in (
        ({"lr": 0.1}, False), ({"lr": 0.1}, True), ({"lr": 0.1, "momentum": 0.9}, False),
        ({"lr": 0.1, "momentum": 0.8}, False), ({"lr": 0.1, "weight_decay": 0.1}, False),
    ):  # fmt: skip
        assert run(Train(**options))[0] == expected, options


# ---- programs that are always traced -------------------------------------------------------------

CALLS: list[str] = []


class Counts(nn.Module):
    def forward(self, x: flow.Tensor) -> flow.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return x + self.calls


class Appends(nn.Module):
    def forward(self, x: flow.Tensor) -> flow.Tensor:
        CALLS.append("forward")
        return x + len(CALLS)


class Prints(nn.Module):
    def forward(self, x: flow.Tensor) -> flow.Tensor:
        print("called")
        return x + 1.0


class Rolls(nn.Module):
    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return x + random.random()


class Asks(nn.Module):
    def forward(self, x: flow.Tensor) -> flow.Tensor:
        import os

        return x + float(os.environ.get("SHIFT", "0"))


class Looks(nn.Module):
    """Reads the values of a buffer, which differ between modules of one key."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("by", flow.rand(1))

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return x + float(self.by)


class Shows(Looks):
    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return x + len(str(self.by))


class Gets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.names = ["relu", "tanh"]

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return getattr(F, self.names[0])(x)


class Holds(nn.Module):
    """Has a tensor that is neither parameter nor buffer, and whose values a graph keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["by"] = flow.rand(4)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return x + self.by


class Made(nn.Module):
    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return x + flow.tensor(np.arange(4, dtype=np.float32))


class Orders(nn.Module):
    def forward(self, x: flow.Tensor) -> flow.Tensor:
        for name in {"a", "b", "c"}:
            x = x * 2 if name == "a" else x + 1
        return x


def _never(self: object, *args: object) -> Any:
    raise SystemExit("called")


METHODS = ("items", "keys", "values", "__iter__", "__len__", "__eq__", "__hash__", "__bool__")
Strange: Any = type("Strange", (dict,), dict.fromkeys(METHODS, _never))
"""A dict whose methods end the program, as a key must not call them."""


class Deep(nn.Module):
    """Has attributes that are hard to read, and a list that holds itself."""

    def __init__(self) -> None:
        super().__init__()
        circle: list[Any] = [1]
        circle.append(circle)
        self.strange, self.circle = Strange(a=1.0), circle
        self.text, self.large, self.odd = "\ud800", 1 << 200, (float("nan"), -0.0)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return x * 2.0


def test_objects_are_read_without_calling_them() -> None:
    for expected in (False, True):
        module = net(Deep)
        was_found, result = run(Run(module))
        assert was_found == expected
        assert_eager(module, result)


def test_a_chain_too_deep_to_read_is_traced() -> None:
    module = net()
    for _ in range(100_000):
        module.settings = Settings(module.settings)
    module.forward = lambda x: x * 2.0
    was_found, result = run(Run(module))
    assert not was_found
    assert_eager(module, result)


@pytest.mark.parametrize(
    "kind",
    [Counts, Appends, Prints, Rolls, Asks, Looks, Shows, Gets, Holds, Made, Orders],
)
def test_what_cannot_be_keyed_is_traced_each_time(
    kind: type[nn.Module], capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(2):
        module = net(kind, seed)
        was_found, result = run(Run(module))
        assert not was_found
        if kind is Prints:
            assert capsys.readouterr().out == "called\n"
        if kind not in (Counts, Appends, Rolls):
            assert_eager(module, result)
        capsys.readouterr()
    if kind is Appends:
        assert len(CALLS) == 2


def test_a_graph_that_is_watched_is_traced() -> None:
    class Named(nn.Graph):
        def build(self, x: flow.Tensor) -> flow.Tensor:
            return x + len(self.name)

    assert not run(Run(net()))[0]
    graph = Run(net())
    graph.debug(2)
    assert not run(graph)[0]
    assert not run(Named())[0]
    assert not run(Named())[0]


# ---- on disk -------------------------------------------------------------------------------------


@pytest.fixture
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(plan_cache, "LEAST_NODES", 0)
    before = current_config()
    set_config(replace(before, plan_cache=tmp_path))
    _forget()
    yield tmp_path
    set_config(before)
    _forget()


def _forget() -> None:
    """Forget all that another process would not know."""
    trace_cache._traces.cache_clear()
    plan_cache._plans.cache_clear()


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.trace"))


def test_another_process_finds_the_trace_on_disk(_folder: Path) -> None:
    assert not run(Run(net()))[0]
    assert len(_files(_folder)) == 1
    _forget()
    module = net(seed=3)
    was_found, result = run(Run(module))
    assert was_found
    assert_eager(module, result)


@pytest.mark.parametrize("damage", ["cut", "other", "no plan", "version"])
def test_a_damaged_or_stale_entry_is_written_anew(
    damage: str, _folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(Run(net()))
    (file,) = _files(_folder)
    data = file.read_bytes()
    if damage == "cut":
        file.write_bytes(data[:-5])
    elif damage == "other":
        file.write_bytes(data.replace(b"variables", b"variabels"))
    elif damage == "no plan":
        for plan in _folder.glob("*.plan"):
            plan.unlink()
    else:
        monkeypatch.setattr(plan_cache, "files_state", lambda: "changed")
    _forget()
    module = net(seed=2)
    was_found, result = run(Run(module))
    assert not was_found
    assert_eager(module, result)
    _forget()
    assert run(Run(net()))[0]


def test_a_process_with_swapped_functions_finds_nothing(
    _folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(Run(net()))
    _forget()
    monkeypatch.setattr(F, "layer_norm", F.linear)
    monkeypatch.setattr(F, "linear", lambda x, w, b=None: x @ w.t())
    monkeypatch.setattr(nn.modules.linear, "F", F)
    monkeypatch.setattr(build_key, "package", package_state.PackageState())
    monkeypatch.setattr(trace_cache, "package", build_key.package)
    module = net()
    was_found, result = run(Run(module))
    assert not was_found
    assert_eager(module, result)


def test_a_process_with_changed_defaults_finds_nothing(
    _folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(Run(net()))
    _forget()
    monkeypatch.setattr(F.gelu, "__defaults__", (None, "tanh"))
    monkeypatch.setattr(build_key, "package", package_state.PackageState())
    monkeypatch.setattr(trace_cache, "package", build_key.package)
    module = net()
    was_found, result = run(Run(module))
    assert not was_found
    assert_eager(module, result)


def test_few_records_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_cache, "MOST", 1)
    cache = trace_cache._traces()
    assert isinstance(cache, TraceCache)
    run(Run(net()))
    run(Run(nn.Linear(4, 4)))
    assert not run(Run(net()))[0]
