"""PyTorch's optimizers around their arithmetic: options, state dicts, hooks."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import oneflow.optim
from oneflow import nn
from oneflow.core import no_effect
from oneflow.core.no_effect import NoEffectWarning
from oneflow.nn.parameter import Parameter
from oneflow.optim import SGD, Adam, AdamW, Muon, Optimizer
from oneflow.optim.hooks import register_optimizer_step_post_hook
from oneflow.optim.optimizer import States
from oneflow.optim.options import NO_EFFECT
from oneflow.tensor.tensor import Tensor, wrap

RNG = np.random.default_rng(0)
STARTS = [RNG.normal(size=(3, 4)), RNG.normal(size=(5, 2))]
GRADS = RNG.normal(size=(8, 3, 4)), RNG.normal(size=(8, 5, 2))
CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.4, "dampens_first": False}),
    ("Adam", {"lr": 0.1, "amsgrad": True}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1}),
    ("Adadelta", {"lr": 0.5}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.5, "centered": True, "eps_in_root": False}),
    ("Adamax", {"lr": 0.1}),
    ("NAdam", {"lr": 0.1}),
    ("RAdam", {"lr": 0.1}),
    ("ASGD", {"lr": 0.1, "lambd": 0.1, "t0": 2}),
    ("Rprop", {"lr": 0.1}),
    ("Adafactor", {"lr": 0.1}),
    ("Muon", {"lr": 0.1}),
]
OURS_ALONE = ("dampens_first", "eps_in_root")


def ours(name: str, kwargs: dict[str, Any]) -> tuple[list[Parameter], Any]:
    params = [Parameter(wrap(x.copy())) for x in STARTS]
    return params, getattr(oneflow.optim, name)(params, **kwargs)


def theirs(name: str, kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    params = [torch.tensor(x, requires_grad=True) for x in STARTS]
    kept = {k: v for k, v in kwargs.items() if k not in OURS_ALONE}
    return params, getattr(torch.optim, name)(params, **kept)


def steps(params: list[Any], optimizer: Any, start: int, stop: int, make: Any) -> None:
    for at in range(start, stop):
        for param, grads in zip(params, GRADS, strict=True):
            param.grad = make(grads[at].copy())
        optimizer.step()


def to_torch(x: Any) -> Any:
    if isinstance(x, Tensor):
        return torch.tensor(x.numpy())
    if isinstance(x, dict):
        return {k: to_torch(v) for k, v in x.items()}
    return [to_torch(v) for v in x] if isinstance(x, list) else x


def to_ours(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return wrap(x.numpy().copy())
    if isinstance(x, dict):
        return {k: to_ours(v) for k, v in x.items()}
    return [to_ours(v) for v in x] if isinstance(x, list) else x


def same(params: list[Any], others: list[Any]) -> None:
    for a, b in zip(params, others, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize(("name", "kwargs"), CASES)
def test_state_dicts_go_to_torch_and_back(name: str, kwargs: Any) -> None:
    mine, my_optimizer = ours(name, kwargs)
    its, its_optimizer = theirs(name, kwargs)
    steps(its, its_optimizer, 0, 3, torch.tensor)
    for a, b in zip(mine, its, strict=True):
        a.detach().copy_(wrap(b.detach().numpy()))
    my_optimizer.load_state_dict(to_ours(its_optimizer.state_dict()))
    steps(its, its_optimizer, 3, 5, torch.tensor)
    steps(mine, my_optimizer, 3, 5, wrap)
    same(mine, its)
    saved, model = my_optimizer.state_dict(), its_optimizer.state_dict()
    assert list(saved["state"]) == list(model["state"])
    for own, other in zip(saved["state"].values(), model["state"].values(), strict=True):
        assert list(own) == list(other) or (name == "RMSprop" and set(own) == set(other))
    fresh, fresh_optimizer = theirs(name, kwargs)
    for a, b in zip(fresh, mine, strict=True):
        a.data.copy_(torch.tensor(b.numpy()))
    fresh_optimizer.load_state_dict(to_torch(saved))
    steps(fresh, fresh_optimizer, 5, 8, torch.tensor)
    steps(its, its_optimizer, 5, 8, torch.tensor)
    same(fresh, its)


@pytest.mark.parametrize(("name", "kwargs"), CASES)
def test_an_optimizer_takes_its_own_state_dict(name: str, kwargs: Any) -> None:
    mine, optimizer = ours(name, kwargs)
    its, other = theirs(name, kwargs)
    steps(mine, optimizer, 0, 3, wrap)
    steps(its, other, 0, 3, torch.tensor)
    optimizer.load_state_dict(optimizer.state_dict())  # its own tensors, not copies
    steps(mine, optimizer, 3, 5, wrap)
    steps(its, other, 3, 5, torch.tensor)
    same(mine, its)


@pytest.mark.parametrize(("name", "kwargs"), CASES)
def test_groups_have_all_of_torchs_options(name: str, kwargs: Any) -> None:
    wanted, found = (make(name, kwargs)[1].param_groups[0] for make in (theirs, ours))
    assert set(wanted) <= set(found)
    unset = {k: v for k, v in wanted.items() if v is None or isinstance(v, bool)}
    assert {k: found[k] for k in unset} == unset


def test_a_parameter_counts_its_own_updates() -> None:
    """One that joins later, or lacks a gradient at times, is corrected for its own steps."""
    mine, my_optimizer = ours("Adam", {"lr": 0.1})
    its, its_optimizer = theirs("Adam", {"lr": 0.1})
    for params, optimizer, make in (
        (mine, my_optimizer, lambda x: wrap(x.copy())),
        (its, its_optimizer, torch.tensor),
    ):
        for at in range(5):
            params[0].grad = make(GRADS[0][at])
            params[1].grad = make(GRADS[1][at]) if at in (2, 4) else None
            optimizer.step()
    same(mine, its)
    assert my_optimizer.state["step"] == 5 and my_optimizer.state[mine[1]]["step"] == 2


def test_a_later_parameter_counts_its_own_updates_in_a_graph() -> None:
    layers = [nn.Linear(4, 4, bias=False) for _ in range(2)]
    for layer in layers:
        layer.weight.data[...] = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    optimizer = Adam(layers[0].parameters(), lr=0.1)
    for _ in range(3):
        layers[0].weight.grad = wrap(np.ones((4, 4), np.float32))
        optimizer.step()
    optimizer.add_param_group({"params": list(layers[1].parameters())})
    start = layers[1].weight.numpy().copy()

    class Train(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layers
            self.add_optimizer(optimizer)

        def build(self, x: Tensor) -> Tensor:
            loss = (self.first(x) + self.second(x)).sum()
            loss.backward()
            return loss

    Train()(wrap(np.ones((2, 4), np.float32)))
    moved = start - layers[1].weight.numpy()  # the first step of Adam is lr times a sign
    np.testing.assert_allclose(moved, np.full((4, 4), 0.1), rtol=1e-4)
    assert [optimizer.state[x.weight]["step"] for x in layers] == [4, 1]


def test_the_rate_may_be_a_tensor() -> None:
    rate = wrap(np.array(0.5))
    param = Parameter(wrap(np.zeros(2)))
    optimizer = SGD([param], lr=rate)
    for expected in (-0.5, -0.75):
        param.grad = wrap(np.ones(2))
        optimizer.step()
        assert param.tolist() == [expected] * 2
        rate.fill_(0.25)
    with pytest.raises(ValueError, match="1-element"):
        SGD([param], lr=wrap(np.ones(2)))


def test_options_of_implementations_are_kept_and_mistakes_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    param = Parameter(wrap(np.zeros(2)))
    monkeypatch.setattr(no_effect, "_said", {f"{name}=True of an optimizer" for name in NO_EFFECT})
    optimizer = Adam([param], foreach=True, capturable=True)
    assert optimizer.param_groups[0]["foreach"] and optimizer.defaults["fused"] is None
    with pytest.raises(RuntimeError, match="cannot be `True` together"):
        Adam([param], foreach=True, fused=True)
    with pytest.raises(TypeError, match="'capturable'"):
        SGD([param], capturable=True)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="2D parameters"):
        Muon([param])


@pytest.mark.parametrize("name", NO_EFFECT)
def test_an_option_that_changes_nothing_says_so_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(no_effect, "_said", set())
    param = Parameter(wrap(np.zeros(2)))
    given: dict[str, Any] = {name: True}
    with pytest.warns(NoEffectWarning, match=f"{name}=True of an optimizer has no effect: "):
        AdamW([param], **given)
    Adam([param], **given)
    AdamW([param], **{**given, name: False})


def test_named_parameters_are_taken() -> None:
    model = nn.Linear(3, 2)
    optimizer = SGD(model.named_parameters(), lr=0.1)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    assert optimizer.param_groups[0]["params"][0] is model.weight
    with pytest.raises(ValueError, match="with/without names"):
        optimizer.add_param_group({"params": [Parameter(wrap(np.zeros(2)))]})


def test_hooks_stand_around_steps_and_state_dicts() -> None:
    _, optimizer = ours("SGD", {"lr": 0.1})
    seen: list[str] = []

    def closure() -> float:
        seen.append("closure")
        return 3.0

    handles = [
        optimizer.register_step_pre_hook(lambda o, args, kwargs: ((closure,), {})),
        optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append("after")),
        register_optimizer_step_post_hook(lambda o, args, kwargs: seen.append("every")),
    ]
    assert optimizer.step() == 3.0 and seen == ["closure", "every", "after"]
    for handle in handles:
        handle.remove()
    assert optimizer.step() is None and len(seen) == 3
    optimizer.register_state_dict_pre_hook(lambda o: seen.append("saving"))
    optimizer.register_state_dict_post_hook(lambda o, made: {**made, "more": 1})
    optimizer.register_load_state_dict_pre_hook(
        lambda o, saved: {k: v for k, v in saved.items() if k != "more"}
    )
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append("loaded"), prepend=True)
    saved = optimizer.state_dict()
    assert saved["more"] == 1
    optimizer.load_state_dict(saved)
    assert seen[3:] == ["saving", "loaded"]


class Signs(Optimizer):
    """An optimizer as people write them for PyTorch."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["sum"] = oneflow.zeros_like(p)
                state["step"] += 1
                state["sum"].add_(p.grad)
                p.data.add_(state["sum"].sign(), alpha=-group["lr"])


def test_an_optimizer_with_a_step_of_its_own_is_saved_and_loaded() -> None:
    param = Parameter(wrap(np.zeros(2)))
    optimizer = Signs([param])
    param.grad = wrap(np.array([1.0, -1.0]))
    optimizer.step()
    assert param.tolist() == [-0.1, 0.1]
    seen: list[int] = []
    optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append(1))
    optimizer.step()
    assert seen == [1]
    other = Signs([Parameter(wrap(np.zeros(2)))])
    other.load_state_dict(optimizer.state_dict())
    (state,) = other.state.values()
    assert state["sum"].tolist() == [2.0, -2.0] and int(state["step"]) == 2


def test_states_are_made_at_first_use_and_the_count_is_no_entry() -> None:
    states = States()
    param = wrap(np.zeros(2))
    assert states["step"] == 0 and states[param] == {}
    states["step"] = 3
    assert list(states) == [param] and copy.copy(states)["step"] == 3
    with pytest.raises(KeyError):
        states["other"]
    states[param]["sum"] = wrap(np.zeros(2))
    assert [name for entry in states.values() for name in entry] == ["sum"]


def test_oneflows_state_dicts_are_taken() -> None:
    params, optimizer = ours("SGD", {"lr": 0.1, "momentum": 0.9})
    group = {"lr": 0.2, "momentum": 0.9, "params": [0, 1]}
    buffers = {i: {"momentum_buf": wrap(np.full(p.shape, 2.0))} for i, p in enumerate(params)}
    optimizer.load_state_dict({"state": {"step": 7, **buffers}, "param_groups": [group]})
    assert optimizer.state["step"] == 7 and optimizer.param_groups[0]["lr"] == 0.2
    assert (optimizer.state[params[1]]["momentum_buffer"].numpy() == 2.0).all()
