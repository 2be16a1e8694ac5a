"""Every optimizer over several steps: against its formulas in NumPy, and torch where they agree."""

from __future__ import annotations

from collections import UserList
from typing import Any

import numpy as np
import pytest

from oneflow.core.dtype import float64
from oneflow.nn.parameter import Parameter
from oneflow.optim import LAMB, SGD, Adadelta, Adagrad, Adam, AdamW, RMSprop
from oneflow.optim.optimizer import scalar_beside
from oneflow.tensor.tensor import wrap

STEPS = 6
SHAPE = (3, 4)
RNG = np.random.default_rng(0)
START = RNG.normal(size=SHAPE)
GRADS = RNG.normal(size=(STEPS, *SHAPE))
Array = np.ndarray[Any, Any]


def run(make: Any, dtype: Any = np.float64) -> Array:
    parameter = Parameter(wrap(START.astype(dtype)))
    optimizer = make([parameter])
    for grad in GRADS:
        parameter.grad = wrap(grad.astype(dtype))
        optimizer.step()
    assert optimizer.state["step"] == STEPS
    return parameter.numpy()


def follow(update: Any, states: int = 1) -> Array:
    """update(w, g, memory, t) -> w over all steps; memory: a list of arrays of zeros."""
    w, memory = START.copy(), [np.zeros(SHAPE) for _ in range(states)]
    for t, g in enumerate(GRADS, start=1):
        w = update(w, g, memory, t)
    return w


def momentum(w: Array, g: Array, m: list[Array], t: int) -> Array:
    g = g + 0.1 * w
    m[0] = 0.9 * m[0] + 0.7 * g
    return w - 0.05 * m[0]


def nesterov(w: Array, g: Array, m: list[Array], t: int) -> Array:
    m[0] = 0.9 * m[0] + g
    return w - 0.05 * (g + 0.9 * m[0])


def adam_step(g: Array, m: list[Array], t: int, correct: bool = True) -> Array:
    m[0] = 0.8 * m[0] + 0.2 * g
    m[1] = 0.9 * m[1] + 0.1 * g * g
    first, second = (1 - 0.8**t, 1 - 0.9**t) if correct else (1.0, 1.0)
    return (m[0] / first) / (np.sqrt(m[1] / second) + 1e-3)


def lamb(w: Array, g: Array, m: list[Array], t: int) -> Array:
    step = adam_step(g, m, t)
    return w - 0.05 * np.linalg.norm(w) / np.linalg.norm(step) * (step + 0.1 * w)


def lamb_l2(w: Array, g: Array, m: list[Array], t: int) -> Array:
    step = adam_step(g + 0.1 * w, m, t)
    return w - 0.05 * np.linalg.norm(w) / np.linalg.norm(step) * step


def amsgrad(w: Array, g: Array, m: list[Array], t: int) -> Array:
    m[0] = 0.8 * m[0] + 0.2 * g
    m[1] = 0.9 * m[1] + 0.1 * g * g
    m[2] = np.maximum(m[2], m[1])
    return w - 0.05 * (m[0] / (1 - 0.8**t)) / (np.sqrt(m[2] / (1 - 0.9**t)) + 1e-3)


def adagrad(w: Array, g: Array, m: list[Array], t: int) -> Array:
    g = g + 0.1 * w
    m[0] = m[0] + g * g
    return w - 0.05 / (1 + (t - 1) * 0.2) * g / (np.sqrt(m[0] + 0.5) + 1e-3)


def rmsprop(w: Array, g: Array, m: list[Array], t: int) -> Array:
    m[0] = 0.9 * m[0] + 0.1 * g * g
    return w - 0.05 * g / np.sqrt(m[0] + 1e-3)


def rmsprop_full(w: Array, g: Array, m: list[Array], t: int) -> Array:
    m[0] = 0.9 * m[0] + 0.1 * g * g
    m[1] = 0.9 * m[1] + 0.1 * g
    m[2] = 0.8 * m[2] + 0.05 * g / np.sqrt(m[0] - m[1] ** 2 + 1e-3)
    return w - m[2]


def adadelta(w: Array, g: Array, m: list[Array], t: int) -> Array:
    g = g + 0.1 * w
    m[0] = 0.8 * m[0] + 0.2 * g * g
    d = g * np.sqrt(m[1] + 1e-3) / np.sqrt(m[0] + 1e-3)
    m[1] = 0.8 * m[1] + 0.2 * d * d
    return w - 0.5 * d


ADAM = {"lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-3}
CASES = [
    (lambda p: SGD(p, lr=0.1, weight_decay=0.2), lambda w, g, m, t: w - 0.1 * (g + 0.2 * w)),
    (lambda p: SGD(p, lr=0.1, maximize=True), lambda w, g, m, t: w + 0.1 * g),
    (lambda p: SGD(p, 0.05, 0.9, 0.3, 0.1), momentum),
    (lambda p: SGD(p, 0.05, 0.9, nesterov=True), nesterov),
    (lambda p: Adam(p, **ADAM), lambda w, g, m, t: w - 0.05 * adam_step(g, m, t)),
    (
        lambda p: Adam(p, **ADAM, weight_decay=0.1),
        lambda w, g, m, t: w - 0.05 * adam_step(g + 0.1 * w, m, t),
    ),
    (
        lambda p: Adam(p, **ADAM, do_bias_correction=False),
        lambda w, g, m, t: w - 0.05 * adam_step(g, m, t, False),
    ),
    (lambda p: Adam(p, **ADAM, amsgrad=True), amsgrad),
    (
        lambda p: AdamW(p, **ADAM, weight_decay=0.1),
        lambda w, g, m, t: w - 0.05 * (adam_step(g, m, t) + 0.1 * w),
    ),
    (lambda p: LAMB(p, **ADAM, weight_decay=0.1), lamb),
    (lambda p: LAMB(p, **ADAM, weight_decay=0.1, adam_w_mode=False), lamb_l2),
    (lambda p: Adagrad(p, 0.05, 0.2, 0.1, 0.5, 1e-3), adagrad),
    (lambda p: RMSprop(p, 0.05, 0.9, 1e-3), rmsprop),
    (lambda p: RMSprop(p, 0.05, 0.9, 1e-3, momentum=0.8, centered=True), rmsprop_full),
    (lambda p: Adadelta(p, 0.5, 0.8, 1e-3, 0.1), adadelta),
]


@pytest.mark.parametrize(("make", "update"), CASES)
def test_steps_follow_the_formula(make: Any, update: Any) -> None:
    expected = follow(update, 3)
    np.testing.assert_allclose(run(make), expected, rtol=1e-10)
    np.testing.assert_allclose(run(make, np.float32), expected, rtol=2e-4, atol=2e-5)


TORCH_CASES = [
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.1, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1}),
    ("Adadelta", {"lr": 0.5, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Adamax", {"lr": 0.1, "weight_decay": 0.1}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.1, "momentum_decay": 0.1}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.1, "weight_decay": 0.1, "betas": (0.9, 0.8)}),
    ("RAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("ASGD", {"lr": 0.1, "weight_decay": 0.1, "lambd": 0.3, "t0": 2}),
    ("Rprop", {"lr": 0.1, "etas": (0.4, 1.3), "step_sizes": (0.05, 0.12)}),
    ("Adafactor", {"lr": 0.1, "weight_decay": 0.1, "d": 1.5}),
]


@pytest.mark.parametrize(("name", "kwargs"), TORCH_CASES)
def test_steps_are_those_of_torch(name: str, kwargs: Any) -> None:
    import torch

    import oneflow.optim

    theirs = torch.tensor(START, requires_grad=True)
    optimizer = getattr(torch.optim, name)([theirs], **kwargs)
    for grad in GRADS:
        theirs.grad = torch.tensor(grad)
        optimizer.step()
    ours = run(lambda p: getattr(oneflow.optim, name)(p, **kwargs))
    rtol = 2e-6 if name in ("NAdam", "ASGD") else 1e-9  # PyTorch holds numbers in float32 there
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=rtol)


def test_a_loaded_state_goes_on_where_it_was() -> None:
    def make() -> tuple[Parameter, Adam]:
        parameter = Parameter(wrap(START.copy()))
        return parameter, Adam([parameter], lr=0.1, amsgrad=True)

    def steps(parameter: Parameter, optimizer: Adam, grads: Array) -> None:
        for grad in grads:
            parameter.grad = wrap(grad)
            optimizer.step()

    whole, optimizer = make()
    steps(whole, optimizer, GRADS)
    first, optimizer = make()
    steps(first, optimizer, GRADS[:3])
    saved = optimizer.state_dict()
    assert saved["param_groups"][0]["params"] == [0]
    assert set(saved["state"]) == {0} and saved["state"][0]["step"].item() == 3.0
    second, other = make()
    second.data[...] = first.data
    other.param_groups[0]["lr"] = 7.0
    other.load_state_dict(saved)
    steps(second, other, GRADS[3:])
    np.testing.assert_array_equal(second.numpy(), whole.numpy())


def test_a_state_of_another_optimizer_is_refused() -> None:
    two = SGD([{"params": [Parameter(wrap(START))]}, {"params": [Parameter(wrap(START))]}])
    one = SGD([Parameter(wrap(START))])
    with pytest.raises(ValueError, match="different number of parameter groups"):
        one.load_state_dict(two.state_dict())
    pair = SGD([Parameter(wrap(START)), Parameter(wrap(START))])
    with pytest.raises(ValueError, match="doesn't match the size"):
        one.load_state_dict(pair.state_dict())


def test_groups_have_their_own_options_and_parameters_without_gradient_stay() -> None:
    a, b, c = (Parameter(wrap(np.ones(2))) for _ in range(3))
    optimizer = SGD([{"params": [a, c], "lr": 0.5}, {"params": b}], lr=0.25)
    a.grad = b.grad = wrap(np.ones(2))
    optimizer.step()
    assert [p.tolist() for p in (a, b, c)] == [[0.5, 0.5], [0.75, 0.75], [1.0, 1.0]]
    assert c not in optimizer.state


def test_states_exist_before_the_first_step_if_asked_for() -> None:
    parameter = Parameter(wrap(START.astype(np.float32)))
    optimizer = Adagrad([parameter], initial_accumulator_value=2.0)
    states = optimizer.init_state(parameter)
    assert states["sum"].meta == parameter.meta and (states["sum"].numpy() == 2.0).all()
    assert optimizer.state_of(parameter) is states


def test_update_takes_its_scalars_from_the_caller() -> None:
    parameter = Parameter(wrap(np.zeros(2)))
    parameter.grad = wrap(np.ones(2))
    optimizer = SGD([parameter], lr=100.0)
    optimizer.update(
        lambda group, p: scalar_beside(p, 0.5, float64), lambda p: scalar_beside(p, 1, float64)
    )
    assert parameter.tolist() == [-0.5, -0.5] and optimizer.state["step"] == 0


def test_closure_is_evaluated_with_gradients() -> None:
    parameter = Parameter(wrap(np.array([2.0])))
    optimizer = SGD([parameter], lr=0.5)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (parameter * parameter).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert parameter.tolist() == [0.0]


def test_zero_grad_leaves_zeros_or_nothing() -> None:
    parameter = Parameter(wrap(np.ones(2)))
    parameter.grad = wrap(np.ones(2))
    optimizer = SGD([parameter])
    optimizer.zero_grad()
    assert parameter.grad.tolist() == [0.0, 0.0]
    optimizer.zero_grad(set_to_none=True)
    assert parameter.grad is None


def test_clip_grad_clips_the_groups_that_ask_for_it() -> None:
    a, b = (Parameter(wrap(np.zeros(2))) for _ in range(2))
    optimizer = SGD(
        [{"params": [a], "clip_grad_max_norm": 1.0, "clip_grad_norm_type": 2.0}, {"params": [b]}]
    )
    a.grad, b.grad = wrap(np.array([3.0, 4.0])), wrap(np.array([3.0, 4.0]))
    optimizer.clip_grad()
    np.testing.assert_allclose(a.grad.numpy(), [0.6, 0.8], rtol=1e-6)
    assert b.grad.tolist() == [3.0, 4.0]


def test_mistakes_are_named() -> None:
    parameter = Parameter(wrap(START))
    for params, error, message in (
        ({parameter}, TypeError, "ordered collections"),
        (parameter, TypeError, "iterable of Tensors"),
        ([3], TypeError, "can only optimize Tensors"),
        ([parameter * 2], ValueError, "can't optimize a non-leaf Tensor"),
        ([parameter, parameter], ValueError, "more than one parameter group"),
        (
            [{"params": [parameter]}, {"params": [parameter]}],
            ValueError,
            "more than one parameter group",
        ),
    ):
        with pytest.raises(error, match=message):
            SGD(params)
    for make in (
        lambda: SGD([parameter], lr=-1),
        lambda: SGD([parameter], nesterov=True),
        lambda: Adam([parameter], betas=(1.0, 0.9)),
        lambda: RMSprop([parameter], alpha=2),
        lambda: LAMB([parameter], amsgrad=True),
        lambda: Adagrad([parameter], initial_accumulator_value=-1),
    ):
        with pytest.raises(ValueError):
            make()


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "SGD"])
def test_maximize_climbs(name: str) -> None:
    import oneflow.optim

    make = getattr(oneflow.optim, name)
    up = run(lambda p: make(p, lr=0.1, maximize=True))
    down = run(lambda p: make(p, lr=0.1))
    np.testing.assert_allclose(up - START, START - down, rtol=1e-9)


def test_groups_are_scaled_without_a_schedule() -> None:
    halved = run(lambda p: SGD([{"params": p, "lr_scale": 0.5}], lr=0.2))
    np.testing.assert_allclose(halved, run(lambda p: SGD(p, lr=0.1)))


def test_sequences_of_a_configuration_become_tuples() -> None:
    """Betas of OmegaConf, say: a checkpoint has no form for them."""
    optimizer = Adam([Parameter(wrap(START))], betas=UserList([0.8, 0.9]))  # type: ignore[arg-type]
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    assert type(optimizer.state_dict()["param_groups"][0]["betas"]) is tuple


def test_states_follow_parameters_that_moved_to_another_group() -> None:
    first, second, third = (Parameter(wrap(np.ones(2, np.float32))) for _ in range(3))
    optimizer = Adagrad([{"params": [first, second], "initial_accumulator_value": 1.0}])
    optimizer.init_state(first)
    optimizer.param_groups[0]["params"] = [first]
    optimizer.add_param_group({"params": [second], "initial_accumulator_value": 5.0})
    assert optimizer.init_state(second)["sum"].tolist() == [5.0, 5.0]
    with pytest.raises(ValueError, match="not among this optimizer's parameters"):
        optimizer.init_state(third)
