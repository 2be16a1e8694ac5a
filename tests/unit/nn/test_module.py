"""Module: its tree, attributes, modes, conversion, state dicts, hooks and text."""

from __future__ import annotations

import copy
import importlib
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.dtype import float16, float32, float64, int64
from oneflow.core.errors import OneFlowError
from oneflow.nn.module import Module
from oneflow.nn.modules.containers import (
    ModuleDict,
    ModuleList,
    ParameterDict,
    ParameterList,
    Sequential,
)
from oneflow.nn.parameter import Parameter
from oneflow.tensor.tensor import Tensor, wrap


class Scale(Module):
    """x * weight + shift, counting calls in a buffer."""

    def __init__(self, size: int = 2, value: float = 2.0) -> None:
        super().__init__()
        self.weight = Parameter(wrap(np.full(size, value, np.float32)))
        self.register_buffer("shift", wrap(np.ones(size, np.float32)))
        self.register_buffer("scratch", wrap(np.zeros(size, np.float32)), persistent=False)
        self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Any:
        return x * self.weight + self.shift

    def extra_repr(self) -> str:
        return f"size={self.weight.shape[0]}"


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Scale()
        self.second = Scale(value=3.0)
        self.shared = self.first

    def forward(self, x: Tensor) -> Any:
        return self.second(self.first(x))


def names(pairs: Any) -> list[str]:
    return [name for name, _ in pairs]


def test_a_parameter_is_a_leaf_that_shares_memory() -> None:
    array = np.ones(2, np.float32)
    parameter = Parameter(wrap(array))
    array[0] = 5
    assert isinstance(parameter, Tensor) and parameter.requires_grad and parameter.is_leaf
    assert parameter.tolist() == [5.0, 1.0]
    assert not Parameter(wrap(np.ones(2)), requires_grad=False).requires_grad
    assert repr(parameter).startswith("Parameter containing:")
    assert isinstance(copy.deepcopy(parameter), Parameter)
    assert isinstance(pickle.loads(pickle.dumps(parameter)), Parameter)


def test_members_are_found_once_and_by_path() -> None:
    net = Net()
    assert names(net.named_parameters()) == ["first.weight", "second.weight"]
    assert names(net.named_buffers()) == [
        "first.shift", "first.scratch", "second.shift", "second.scratch",
    ]  # fmt: skip
    assert names(net.named_modules()) == ["", "first", "second"]
    assert names(net.named_children()) == ["first", "second"]
    assert names(net.named_parameters(recurse=False)) == []
    assert names(net.first.named_parameters(prefix="p")) == ["p.weight"]
    assert net.get_submodule("second") is net.second and net.get_submodule("") is net
    assert net.get_parameter("first.weight") is net.first.weight
    with pytest.raises(AttributeError):
        net.get_submodule("third")


def test_attributes_follow_the_rules() -> None:
    m = Scale()
    with pytest.raises(TypeError, match="cannot assign 'Tensor' as parameter 'weight'"):
        m.weight = wrap(np.ones(2, np.float32))
    with pytest.raises(TypeError, match="cannot assign 'int' as buffer 'shift'"):
        m.shift = 3
    m.shift = wrap(np.zeros(2, np.float32))
    assert m.shift.tolist() == [0.0, 0.0] and "shift" in dict(m.named_buffers())
    m.bias = Parameter(wrap(np.ones(2, np.float32)))
    assert names(m.named_parameters()) == ["weight", "bias"]
    m.weight = None
    assert names(m.named_parameters()) == ["bias"] and m.weight is None
    m.plain = 7
    m.plain = Parameter(wrap(np.ones(1)))  # a plain attribute makes way
    assert "plain" in dict(m.named_parameters())
    del m.plain
    assert not hasattr(m, "plain") and "shift" in dir(m)
    with pytest.raises(AttributeError, match="'Scale' object has no attribute 'absent'"):
        _ = m.absent
    for register, name, error in (
        (m.register_buffer, "a.b", KeyError),
        (m.register_buffer, "", KeyError),
        (m.register_parameter, "forward", KeyError),
        (m.register_parameter, 3, TypeError),
    ):
        with pytest.raises(error):
            register(name, None)


def test_assigning_before_init_is_an_error() -> None:
    class Early(Module):
        def __init__(self) -> None:
            self.weight = Parameter(wrap(np.ones(1)))

    with pytest.raises(AttributeError, match=r"before Module\.__init__"):
        Early()


def test_modes_reach_all_parts() -> None:
    net = Net()
    assert not net.eval().second.training and net.train().first.training
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    seen: list[str] = []
    net.apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Scale", "Scale", "Net"]
    with pytest.raises(ValueError, match="boolean"):
        net.train(1)  # type: ignore[arg-type]


def test_zero_grad() -> None:
    m = Scale()
    m.weight.grad = wrap(np.ones(2, np.float32))
    m.zero_grad()
    assert m.weight.grad.tolist() == [0.0, 0.0]
    m.zero_grad(set_to_none=True)
    assert m.weight.grad is None


def test_conversion_keeps_objects_and_integers() -> None:
    m = Scale()
    m.register_buffer("count", wrap(np.array(3)))
    weight = m.weight
    m.weight.grad = wrap(np.ones(2, np.float32))
    m.double()
    assert m.weight is weight and weight.requires_grad and weight.dtype is float64
    assert weight.grad.dtype is float64 and m.shift.dtype is float64 and m.count.dtype is int64
    assert m.half().shift.dtype is float16 and m.float().shift.dtype is float32
    assert m.to(wrap(np.zeros(1))).weight.dtype is float64
    assert m.to("cpu", float32).weight.dtype is float32 and weight.tolist() == [2.0, 2.0]
    assert m.to(None) is m and m.weight.dtype is float32
    assert m.to(None, float64, True).weight.dtype is float64  # True: non_blocking
    with pytest.raises(TypeError, match=r"got 1\.5"):
        m.to(1.5)
    with pytest.raises(TypeError, match="floating point"):
        m.to(int64)
    with pytest.raises(OneFlowError, match="placement and sbp"):
        m.to_global()


def test_state_dict_holds_parameters_and_persistent_buffers() -> None:
    net = Net()
    state = net.state_dict()
    assert list(state) == [
        "first.weight", "first.shift", "second.weight", "second.shift",
        "shared.weight", "shared.shift",
    ]  # fmt: skip
    assert not state["first.weight"].requires_grad
    state["first.weight"].data[...] = 9
    assert net.first.weight.tolist() == [9.0, 9.0]  # shares memory
    assert net.state_dict(keep_vars=True)["first.weight"] is net.first.weight


def test_a_state_dict_goes_round_also_as_arrays_of_another_dtype() -> None:
    source, target = Scale(value=4.0), Scale(value=1.0)
    weight = target.weight
    result = target.load_state_dict(source.state_dict())
    assert target.weight is weight and weight.tolist() == [4.0, 4.0]
    assert repr(result) == "<All keys matched successfully>"
    target.load_state_dict({"weight": np.array([1.0, 2.0]), "shift": np.array([3, 4])})
    assert weight.tolist() == [1.0, 2.0] and weight.dtype is float32
    assert target.shift.tolist() == [3.0, 4.0] and weight.requires_grad


def test_all_differences_are_listed() -> None:
    bad = {"weight": np.zeros(3), "extra": np.zeros(1)}
    with pytest.raises(RuntimeError) as caught:
        Scale().load_state_dict(bad)
    text = str(caught.value)
    assert 'Missing key(s) in state_dict: "shift"' in text
    assert 'Unexpected key(s) in state_dict: "extra"' in text
    assert "size mismatch for weight" in text and "(3,)" in text
    result = Scale().load_state_dict({"weight": np.zeros(2), "extra": 1}, strict=False)
    assert result.missing_keys == ["shift"] and result.unexpected_keys == ["extra"]


def test_state_dict_hooks_are_called() -> None:
    net = Net()
    seen: list[Any] = []
    net.second.register_state_dict_pre_hook(lambda m, prefix, keep: seen.append(prefix))

    def without_shift(module: Module, state: Any, prefix: str, metadata: Any) -> None:
        del state[f"{prefix}shift"]

    net.second._register_state_dict_hook(without_shift)
    state = net.state_dict()
    assert seen == ["second."] and "second.shift" not in state
    net.second._register_load_state_dict_pre_hook(
        lambda state, prefix, *_: state.setdefault(f"{prefix}shift", np.full(2, 8.0))
    )
    keys: list[Any] = []
    net.register_load_state_dict_post_hook(lambda m, found: keys.append(found.missing_keys))
    net.load_state_dict(state)
    assert net.second.shift.tolist() == [8.0, 8.0] and keys == [[]]


def test_forward_hooks_see_and_change_values() -> None:
    m = Scale()
    x = wrap(np.ones(2, np.float32))
    calls: list[str] = []
    before = m.register_forward_pre_hook(
        lambda module, args: calls.append("pre") or (args[0] * 10,)
    )
    after = m.register_forward_hook(lambda module, args, out: calls.append("post") or out + 1)
    assert m(x).tolist() == [22.0, 22.0] and calls == ["pre", "post"]
    before.remove()
    after.remove()
    assert m(x).tolist() == [3.0, 3.0]
    with pytest.raises(NotImplementedError, match="forward"):
        Module()(x)


def test_backward_hooks_get_both_gradients_and_may_change_them() -> None:
    m = Scale()
    seen: list[Any] = []

    def hook(module: Module, grad_input: Any, grad_output: Any) -> Any:
        seen.append((grad_input[0].tolist(), grad_output[0].tolist()))
        return (grad_input[0] * 100,)

    handle = m.register_full_backward_hook(hook)
    x = wrap(np.array([1.0, 2.0], np.float32), requires_grad=True)
    m(x).backward(wrap(np.array([1.0, 3.0], np.float32)))
    assert seen == [([2.0, 6.0], [1.0, 3.0])]
    assert x.grad.tolist() == [200.0, 600.0] and m.weight.grad.tolist() == [1.0, 6.0]
    handle.remove()
    x.grad = None
    m(x).backward(wrap(np.ones(2, np.float32)))
    assert x.grad.tolist() == [2.0, 2.0] and len(seen) == 1


def test_backward_hooks_work_where_the_input_needs_no_gradient() -> None:
    m = Scale()
    seen: list[Any] = []
    m.register_full_backward_hook(lambda module, gi, go: seen.append((gi, go[0].tolist())))
    m(wrap(np.ones(2, np.float32))).backward(wrap(np.array([1.0, 3.0], np.float32)))
    assert seen == [((), [1.0, 3.0])] and m.weight.grad.tolist() == [1.0, 3.0]


def test_text_shows_the_tree() -> None:
    net = Sequential(OrderedDict(a=Scale(), b=ModuleList([Scale(3)])))
    assert repr(net) == (
        "Sequential(\n  (a): Scale(size=2)\n  (b): ModuleList(\n    (0): Scale(size=3)\n  )\n)"
    )


def test_sequential_calls_and_is_a_list() -> None:
    net = Sequential(Scale(), Scale(value=3.0))
    assert net(wrap(np.ones(2, np.float32))).tolist() == [10.0, 10.0]
    assert len(net) == 2 and net[-1] is net[1] and isinstance(net[:1], Sequential)
    net.append(Scale(3))
    net[0] = Scale(4)
    del net[1]
    assert [m.weight.shape[0] for m in net] == [4, 3]
    assert list(net.state_dict()) == ["0.weight", "0.shift", "1.weight", "1.shift"]
    named = Sequential(OrderedDict(x=Scale(), y=Scale()))
    assert named.x is named[0] and list(named[1:]._modules) == ["y"]
    with pytest.raises(IndexError, match="out of range"):
        _ = net[2]


def test_module_list_and_dict_are_containers() -> None:
    modules = ModuleList([Scale(1)])
    modules += [Scale(2)]
    modules.insert(0, Scale(3))
    assert [m.weight.shape[0] for m in [*modules, Scale(4)]] == [3, 1, 2, 4]
    table = ModuleDict({"a": Scale(1)})
    table["b"] = Scale(2)
    table.update([("c", Scale(3))])
    assert list(table) == ["a", "b", "c"] and "b" in table and len(table) == 3
    assert table.pop("a").weight.shape == (1,) and list(table.keys()) == ["b", "c"]
    del table["b"]
    assert names(table.items()) == ["c"]


def test_parameter_containers_register_their_entries() -> None:
    listed = ParameterList([Parameter(wrap(np.ones(1))), wrap(np.ones(2))])
    listed.append(Parameter(wrap(np.ones(3))))
    assert names(listed.named_parameters()) == ["0", "1", "2"]
    assert listed[-1].shape == (3,) and len(listed) == 3 and len(listed[1:]) == 2
    table = ParameterDict({"a": Parameter(wrap(np.ones(1)))})
    table["b"] = wrap(np.ones(2))
    assert names(table.named_parameters()) == ["a", "b"] and isinstance(table["b"], Parameter)
    del table["a"]
    assert list(table) == ["b"] and "a" not in table


def test_copies_are_independent() -> None:
    net = Net()
    other = copy.deepcopy(net)
    other.first.weight.data[...] = 0
    assert net.first.weight.tolist() == [2.0, 2.0] and other.shared is other.first
    again = pickle.loads(pickle.dumps(net))
    assert again.second.weight.tolist() == [3.0, 3.0]


# ---- the same script on both libraries -----------------------------------------------------------

LIBRARIES: list[Any] = [torch, flow]


def models() -> list[Any]:
    """One model of each library with the same values."""
    theirs = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    ours = flow.nn.Sequential(flow.nn.Linear(2, 3), flow.nn.BatchNorm1d(3))
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    return [(torch, theirs), (flow, ours)]


def test_hooks_with_options_run_as_in_torch() -> None:
    logs: list[Any] = []
    for lib in LIBRARIES:
        log: list[Any] = []

        class Layer(lib.nn.Module):  # type: ignore[name-defined, misc]
            def forward(self, x: Any, scale: float = 1.0) -> Any:
                if scale < 0:
                    raise RuntimeError("no")
                return x * scale

        layer = Layer()
        layer.register_forward_pre_hook(lambda m, a, log=log: log.append(("pre", len(a))))
        layer.register_forward_pre_hook(
            lambda m, a, k, log=log: log.append(("first", dict(k))) or (a, {"scale": -k["scale"]}),
            prepend=True,
            with_kwargs=True,
        )
        layer.register_forward_hook(lambda m, a, y, log=log: log.append(("post", y.tolist())))
        layer.register_forward_hook(
            lambda m, a, k, y, log=log: log.append(("early", k)) or y + 1,
            prepend=True,
            with_kwargs=True,
        )
        always = layer.register_forward_hook(
            lambda m, a, y, log=log: log.append(("always", y is None)), always_call=True
        )
        layer(lib.ones(2), scale=-3.0)
        with pytest.raises(RuntimeError, match="no"):
            layer(lib.ones(2), scale=2.0)
        always.remove()
        logs.append(log)
    assert logs[0] == logs[1]
    assert ("post", [4.0, 4.0]) in logs[1] and ("always", True) in logs[1]


def test_hooks_of_the_backward_pass_run_as_in_torch() -> None:
    found = []
    for lib, model in models():
        layer, seen = model[0], []
        layer.register_full_backward_hook(
            lambda m, gi, go, seen=seen: seen.append(("hook", go[0].tolist()))
        )
        layer.register_full_backward_hook(
            lambda m, gi, go, seen=seen: seen.append(("first", gi[0].shape)), prepend=True
        )
        layer.register_full_backward_pre_hook(
            lambda m, go, seen=seen: seen.append(("pre", go[0].tolist())) or (go[0] * 2,)
        )
        x = lib.tensor([[1.0, 2.0]]).requires_grad_()
        layer(x).sum().backward()
        seen.append(("grad", layer.bias.grad.tolist()))
        found.append(seen)
    assert found[0] == found[1]


def test_hooks_of_all_modules() -> None:
    found = []
    for lib, model in models():
        path = "torch.nn.modules.module" if lib is torch else "oneflow.nn.modules.module"
        space, seen = importlib.import_module(path), []
        handles = [
            space.register_module_forward_pre_hook(
                lambda m, a, seen=seen: seen.append(("pre", type(m).__name__))
            ),
            space.register_module_forward_hook(
                lambda m, a, y, seen=seen: seen.append(("post", type(m).__name__))
            ),
        ]
        model.eval()(lib.ones(1, 2))
        for handle in handles:
            handle.remove()
        model(lib.ones(1, 2))
        found.append(seen)
    assert found[0] == found[1] and len(found[1]) == 6


def test_values_may_take_the_place_of_parameters() -> None:
    for lib, model in models():
        weight = model[0].weight.requires_grad_(False)
        values = {k: v.clone() for k, v in model.state_dict().items()}
        values["0.weight"] = lib.ones(3, 2, dtype=lib.float64)
        values["0.bias"] = lib.nn.Parameter(lib.ones(3))
        assert not model.load_state_dict(values, assign=True).missing_keys
        assert model[0].weight is not weight and model[0].weight.dtype is lib.float64
        assert isinstance(model[0].weight, lib.nn.Parameter)
        assert not model[0].weight.requires_grad and model[0].bias.requires_grad
        assert model[0].bias is values["0.bias"]
        assert model[1].running_mean is values["1.running_mean"]
        meta = lib.nn.Linear(2, 3, device="meta")
        meta.load_state_dict(lib.nn.Linear(2, 3).state_dict(), assign=True)
        assert meta.weight.device.type == "cpu" and meta(lib.ones(1, 2)).shape == (1, 3)


def test_subclasses_save_and_load_their_own_way() -> None:
    for lib in LIBRARIES:

        class Renamed(lib.nn.Linear):  # type: ignore[name-defined, misc]
            _version = 2

            def _save_to_state_dict(self, destination: Any, prefix: Any, keep_vars: Any) -> None:
                super()._save_to_state_dict(destination, prefix, keep_vars)
                destination[prefix + "kernel"] = destination.pop(prefix + "weight")

            def _load_from_state_dict(
                self, state: Any, prefix: Any, metadata: Any, *rest: Any
            ) -> None:
                self.found = metadata.get("version")
                state[prefix + "weight"] = state.pop(prefix + "kernel")
                super()._load_from_state_dict(state, prefix, metadata, *rest)

            def get_extra_state(self) -> Any:
                return {"steps": 3}

            def set_extra_state(self, state: Any) -> None:
                self.steps = state["steps"]

        model = lib.nn.Sequential(Renamed(2, 3))
        state = model.state_dict()
        assert list(state) == ["0.bias", "0._extra_state", "0.kernel"]
        again = lib.nn.Sequential(Renamed(2, 3))
        calls: list[Any] = []
        again[0].register_load_state_dict_pre_hook(
            lambda m, s, p, *_, calls=calls: calls.append((type(m).__name__, p))
        )
        again.load_state_dict(state)
        assert again[0].found == 2 and again[0].steps == 3 and calls == [("Renamed", "0.")]
        assert again[0].weight.tolist() == model[0].weight.tolist()
        with pytest.raises(RuntimeError, match="_extra_state"):
            again.load_state_dict({k: v for k, v in state.items() if "extra" not in k})
        extra = dict(state, **{"0.more": lib.ones(1), "9.x": lib.ones(1)})
        found = again.load_state_dict(extra, strict=False)
        assert sorted(found.unexpected_keys) == ["0.more", "9.x"] and not found.missing_keys


def test_parts_are_put_and_found_by_path() -> None:
    for lib, model in models():
        assert model.get_buffer("1.running_var") is model[1].running_var
        with pytest.raises(AttributeError):
            model.get_buffer("1.weight")
        model.set_submodule("1", lib.nn.Identity())
        assert isinstance(model.get_submodule("1"), lib.nn.Identity)
        with pytest.raises(ValueError):
            model.set_submodule("", lib.nn.Identity())
        with pytest.raises(AttributeError):
            model.set_submodule("1.a", lib.nn.Identity(), strict=True)
        assert model.to("cpu", non_blocking=True) is model


def test_containers_are_edited_as_in_torch() -> None:
    found: list[Any] = []
    for lib in LIBRARIES:
        parts = lib.nn.ModuleList([lib.nn.Identity(), lib.nn.ReLU(), lib.nn.Tanh()])
        taken = type(parts.pop(1)).__name__
        sequence = lib.nn.Sequential(*parts)
        last = type(sequence.pop(-1)).__name__
        values = lib.nn.ParameterDict({"a": lib.ones(1), "b": lib.zeros(2)})
        values.setdefault("c", lib.ones(3))
        joined = values | {"d": lib.ones(4)}
        values |= {"e": lib.ones(5)}
        copied = values.copy()
        name, _ = values.popitem()
        fresh = values.fromkeys(["x", "y"], lib.ones(1))
        found.append([taken, last, len(parts), len(sequence), list(joined), list(copied), name])
        found[-1] += [list(reversed(values)), values.get("z"), list(fresh), values["c"].tolist()]
    assert found[0] == found[1]


def _cleared(x: Any, prepare: Any, clear: Any) -> tuple[list[float], bool]:
    """The gradient that a program holds, after `clear`, and whether it still is `.grad`."""
    prepare(x)
    held = x.grad
    clear(x)
    return held.tolist(), held is x.grad


PREPARES = {
    "backward": lambda x: (2 * x).sum().backward(),
    "by hand": lambda x: setattr(x, "grad", flow.ones_like(x)),
    "by hand, of a view": lambda x: setattr(x, "grad", flow.ones(2, 3)[0]),
}
CLEARS = {
    "optimizer": lambda x: flow.optim.SGD([x], lr=0.1).zero_grad(),
    "module": lambda x: flow.nn.ParameterList([x]).zero_grad(),
}


@pytest.mark.parametrize("clear", CLEARS)
@pytest.mark.parametrize(
    ("prepare", "is_global"),
    [*((name, False) for name in PREPARES), ("backward", True), ("by hand", True)],
)
def test_gradients_are_cleared_in_place(prepare: str, clear: str, is_global: bool) -> None:
    x = flow.ones(3)
    if is_global:
        x = x.to_global(flow.placement("cpu", [0]), flow.sbp.split(0))
    parameter = flow.nn.Parameter(x)
    found = _cleared(parameter, PREPARES[prepare], CLEARS[clear])
    assert found == ([0.0, 0.0, 0.0], True)
    assert _cleared(parameter, PREPARES["backward"], lambda x: None)[0] == [2.0, 2.0, 2.0]


def test_cleared_gradients_with_a_history_are_others() -> None:
    x = flow.nn.Parameter(flow.ones(2))
    (x * x).sum().backward(create_graph=True)
    held = x.grad
    flow.nn.ParameterList([x]).zero_grad()
    assert held is not None and held.tolist() == [2.0, 2.0]
    assert x.grad is not None and x.grad.tolist() == [0.0, 0.0] and not x.grad.requires_grad
