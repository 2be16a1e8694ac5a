"""Gradients that users give, beside PyTorch: returned by Function.backward and hooks, assigned to
`.grad`, passed to backward().
"""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

import oneflow as flow

Case = Callable[[Any], Any]


def _function(
    library: Any, backward: Case, forward: Case = lambda a: a * 1, shape: Any = 2, rest: Any = ()
) -> Any:
    class Fn(library.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, a: Any, *others: Any) -> Any:
            return forward(a)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return backward(g)

    a = library.ones(shape, requires_grad=True)
    Fn.apply(a, *rest).sum().backward()
    return a.grad


def _tensor_hook(library: Any, hook: Case, is_leaf: bool) -> Any:
    a = library.ones(2, requires_grad=True)
    b = a if is_leaf else a * 1
    b.register_hook(hook)
    (b * 1).sum().backward()
    return a.grad


def _module_hook(library: Any, hook: Case, register: str) -> Any:
    layer = library.nn.Linear(2, 2)
    getattr(layer, register)(hook)
    a = library.ones(1, 2, requires_grad=True)
    layer(a).sum().backward()


def _assigned(library: Any, grad: Case, shape: Any = 2) -> Any:
    a = library.ones(shape, requires_grad=True)
    a.grad = grad(a)
    return a.grad


def _root(library: Any, grad: Case) -> Any:
    a = library.ones(2, requires_grad=True)
    (a * 1).backward(grad(library))
    return a.grad


RETURNED: dict[str, tuple[Case, str]] = {
    "float64": (lambda f: _function(f, lambda g: g.double()), ""),
    "half": (lambda f: _function(f, lambda g: g.half()), ""),
    "integers": (lambda f: _function(f, lambda g: g.long()), ""),
    "broadcast": (lambda f: _function(f, lambda g: g, lambda a: a.expand(3, 2) * 1), ""),
    "broadcast size 1": (lambda f: _function(f, lambda g: f.ones(2, 3), shape=(2, 1)), ""),
    "a number, broadcast": (lambda f: _function(f, lambda g: f.ones(2, 3), shape=()), ""),
    "too few": (lambda f: _function(f, lambda g: f.ones(1)), "but expected shape compatible with"),
    "a scalar": (lambda f: _function(f, lambda g: f.ones(())), "returned an invalid gradient"),
    "other shape": (lambda f: _function(f, lambda g: f.ones(3)), "at index 0 - got [3]"),
    "a dim less": (lambda f: _function(f, lambda g: f.ones(2), shape=(1, 2)), "got [2]"),
    "two for one": (lambda f: _function(f, lambda g: (g, g)), "(expected 1, got 2)"),
    "None behind": (lambda f: _function(f, lambda g: (g, None)), ""),
    "one for two": (lambda f: _function(f, lambda g: g, rest=(1,)), "(expected 2, got 1)"),
    "for a number": (
        lambda f: _function(f, lambda g: (g, g), rest=(1,)),
        "returned a gradient different than None at position 2",
    ),
    "for no use": (lambda f: _function(f, lambda g: (g, f.ones(7)), rest=(f.ones(2),)), ""),
    "an int": (lambda f: _function(f, lambda g: 3), "expected Variable or None (got int)"),
    **{
        f"hook of a {'leaf' if leaf else 'result'}: {name}": (
            lambda f, leaf=leaf, change=change: _tensor_hook(f, change(f), leaf),  # type: ignore[misc]
            text,
        )
        for leaf in (True, False)
        for name, change, text in (
            ("same", lambda f: lambda g: g * 2, ""),
            ("nothing", lambda f: lambda g: None, ""),
            ("shape", lambda f: lambda g: f.ones(3), "has changed the size of value"),
            ("broadcast", lambda f: lambda g: f.ones(3, 2), "has changed the size of value"),
            ("dtype", lambda f: lambda g: g.double(), "has changed the type of value"),
            ("an int", lambda f: lambda g: 3, "expected Variable, but hook returned 'int'"),
        )
    },
    **{
        f"{register}: {name}": (
            lambda f, register=register, change=change: _module_hook(f, change(f), register),  # type: ignore[misc]
            text,
        )
        for register in ("register_full_backward_hook", "register_full_backward_pre_hook")
        for name, change, text in (
            ("same", lambda f: lambda m, *g: (g[0][0] * 2,), ""),
            ("shape", lambda f: lambda m, *g: (f.ones(3),), "has changed the size of value"),
            ("dtype", lambda f: lambda m, *g: (g[0][0].double(),), "has changed the type"),
        )
    },
    "grad_input twice": (
        lambda f: _module_hook(f, lambda m, i, o: (i[0], i[0]), "register_full_backward_hook"),
        "invalid number of grad_input, got 2, but expected 1",
    ),
    "assigned": (lambda f: _assigned(f, lambda a: f.ones(2)), ""),
    "assigned None": (lambda f: _assigned(f, lambda a: None), ""),
    "assigned shape": (lambda f: _assigned(f, lambda a: f.ones(3)), "gradient of size '[3]'"),
    "assigned more dims": (lambda f: _assigned(f, lambda a: f.ones(2, 1)), "of size '[2]'"),
    "assigned dtype": (lambda f: _assigned(f, lambda a: f.ones(2).double()), "with dtype"),
    "assigned int": (lambda f: _assigned(f, lambda a: 3), "got grad of type int"),
    "assigned list": (lambda f: _assigned(f, lambda a: [1.0, 2.0]), "a Tensor or None but got"),
    "assigned itself": (lambda f: _assigned(f, lambda a: a), "can't assign Variable as its own"),
    "assigned elsewhere": (
        lambda f: _assigned(f, lambda a: f.ones(2, device="meta")),
        "with device type 'meta' to a tensor with device type 'cpu'",
    ),
    "root shape": (lambda f: _root(f, lambda f: f.ones(3)), "Mismatch in shape: grad_output[0]"),
    "root dtype": (lambda f: _root(f, lambda f: f.ones(2).double()), ""),
    "root int": (lambda f: _root(f, lambda f: f.ones(2).long()), ""),
}


def _outcome(library: ModuleType, case: Case) -> Any:
    try:
        grad = case(library)
    except Exception as error:
        return type(error), str(error)
    return None if grad is None else (tuple(grad.shape), grad.tolist(), str(grad.dtype)[-7:])


@pytest.mark.parametrize("name", RETURNED)
def test_given_gradient_is_taken_or_refused_as_in_pytorch(name: str) -> None:
    case, text = RETURNED[name]
    theirs, ours = _outcome(torch, case), _outcome(flow, case)
    if not text:
        assert ours == theirs
        return
    assert text in theirs[1]
    assert text in ours[1]
    assert issubclass(ours[0], theirs[0])


class _Widened(flow.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any) -> Any:
        return a.expand(3, 2) * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g.double() * 2


@pytest.mark.parametrize("sbp", [flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.partial_sum])
def test_gradient_of_a_global_input_is_summed(sbp: Any) -> None:
    a = flow.ones(2).to_global(flow.placement("cpu", [0]), sbp).requires_grad_()
    _Widened.apply(a).sum().backward()
    assert a.grad.numpy().tolist() == [6, 6] and a.grad.dtype is flow.float32


def test_gradient_is_summed_in_a_graph() -> None:
    class Train(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.layer = flow.nn.Linear(2, 2, bias=False)
            self.add_optimizer(flow.optim.SGD(self.layer.parameters(), lr=1.0))

        def build(self, x: Any) -> Any:
            loss = _Widened.apply(self.layer(x)).sum()
            loss.backward()
            return loss

    graph = Train()
    before = graph.layer.weight.numpy().copy()
    graph(flow.ones(2))
    assert (before - graph.layer.weight.numpy()).tolist() == [[6, 6], [6, 6]]


def test_kept_gradient_may_be_written_to() -> None:
    a = flow.ones(2, requires_grad=True)
    b = a * 1
    b.retain_grad()
    b.sum().backward()
    b.grad[0] = 3.0
    assert b.grad.tolist() == [3, 1] and a.grad.tolist() == [1, 1]


# ---- words that PyTorch programs say to autograd -------------------------------------------------


def test_dirty_input_has_the_function_as_its_history() -> None:
    def run(f: Any, of_view: bool) -> list[Any]:
        class Add(f.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, a: Any) -> Any:
                a.add_(1)
                ctx.mark_dirty(a)
                return a

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * 3

        x = f.ones(2, 2, requires_grad=True)
        y = x * 2
        out = Add.apply(y[0] if of_view else y)
        (y * 5 + out).sum().backward()
        return [y.tolist(), out.tolist(), x.grad.tolist(), of_view or out is y]

    assert run(flow, False) == run(torch, False)
    with pytest.raises(RuntimeError, match="a leaf"):
        leaf = flow.ones(1, requires_grad=True)

        class Keep(flow.autograd.Function):
            @staticmethod
            def forward(ctx: Any, a: Any) -> Any:
                ctx.mark_dirty(a)
                return a

        Keep.apply(leaf)


@pytest.mark.parametrize("materializes", [True, False])
def test_unknown_gradients_are_zeros_or_none(materializes: bool) -> None:
    seen = []

    class Two(flow.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any) -> Any:
            ctx.set_materialize_grads(materializes)
            return a * 1, a * 2

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            seen.append(h if h is None else h.tolist())
            return g * 5

    a = flow.ones(1, requires_grad=True)
    Two.apply(a)[0].backward()
    assert a.grad.item() == 5 and seen == [[0] if materializes else None]


def test_setup_context_takes_the_place_of_the_context_of_forward() -> None:
    class Times(flow.autograd.Function):
        @staticmethod
        def forward(a: Any, b: Any) -> Any:
            return a * b

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs, output)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            a, b, out = ctx.saved_tensors
            assert (a * b).item() == out.item()
            return g * b, g * a

    a, b = flow.ones(1, requires_grad=True), flow.tensor([5.0], requires_grad=True)
    Times.apply(a, b).backward()
    assert a.grad.item() == 5 and b.grad.item() == 1


@pytest.mark.parametrize("f", [flow, torch], ids=["oneflow", "torch"])
def test_backward_of_chosen_inputs(f: Any) -> None:
    a, b = (f.ones(1, requires_grad=True) for _ in range(2))
    c = a * 2
    d = c * b * 3
    d.backward(inputs=[a, c], retain_graph=True)
    assert (a.grad.item(), b.grad, c.grad.item()) == (6, None, 3)
    f.autograd.backward(d, inputs=b, retain_graph=True)
    assert (a.grad.item(), b.grad.item()) == (6, 6)
    with pytest.raises(RuntimeError, match="cannot be empty"):
        d.backward(inputs=[])
    with pytest.raises(RuntimeError, match=r"does not require grad|requires_grad=False"):
        d.backward(inputs=[f.ones(1)])


@pytest.mark.parametrize("f", [flow, torch], ids=["oneflow", "torch"])
def test_materialized_gradients_of_unused_inputs(f: Any) -> None:
    a, b = f.ones(1, requires_grad=True), f.ones(2, requires_grad=True)
    found = f.autograd.grad(a * 2, [a, b], materialize_grads=True)
    assert [g.tolist() for g in found] == [[2], [0, 0]]
    with pytest.raises(ValueError, match="Expected allow_unused to be True or not passed"):
        f.autograd.grad(a * 2, [a, b], allow_unused=False, materialize_grads=True)


@pytest.mark.parametrize("f", [flow, torch], ids=["oneflow", "torch"])
def test_hook_after_accumulation_gets_the_leaf(f: Any) -> None:
    seen = []
    a = f.ones(1, requires_grad=True)
    handle = a.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.item()))
    for _ in range(2):
        (a * 2).backward()
    handle.remove()
    (a * 2).backward()
    assert seen == [2, 4]


# ---- attributes of a user's own ------------------------------------------------------------------


def _tagged(x: Any) -> Any:
    x.tag = {"a": [1]}
    return x


ATTRIBUTES: dict[str, Case] = {
    "deepcopy": lambda f: copy.deepcopy(_tagged(f.ones(2))),
    "deepcopy of a parameter": lambda f: copy.deepcopy(_tagged(f.nn.Parameter(f.ones(2)))),
    "copy": lambda f: copy.copy(_tagged(f.ones(2))),
    "pickle": lambda f: pickle.loads(pickle.dumps(_tagged(f.ones(2)))),
    "pickle of a parameter": lambda f: pickle.loads(
        pickle.dumps(_tagged(f.nn.Parameter(f.ones(2))))
    ),
    "clone": lambda f: _tagged(f.ones(2)).clone(),
    "detach": lambda f: _tagged(f.ones(2)).detach(),
    "data": lambda f: _tagged(f.ones(2)).data,
    "view": lambda f: _tagged(f.ones(2)).view(2),
    "cast": lambda f: _tagged(f.ones(2)).double(),
    "no cast": lambda f: _tagged(f.ones(2)).float(),
    "in place": lambda f: _tagged(f.ones(2)).add_(1),
    "parameter": lambda f: f.nn.Parameter(_tagged(f.ones(2))),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_go_where_pytorch_takes_them(name: str) -> None:
    ours, theirs = (getattr(ATTRIBUTES[name](f), "tag", None) for f in (flow, torch))
    assert ours == theirs


def test_attributes_of_modules_tensors_stay() -> None:
    layer = flow.nn.Linear(2, 2)
    layer.register_buffer("mask", _tagged(flow.ones(2)))
    _tagged(layer.weight)
    layer.half().to("cpu").float()
    assert layer.weight.tag == layer.mask.tag == {"a": [1]}
    assert vars(layer.bias) == {} and not hasattr(layer.bias, "tag")
    del layer.weight.tag
    with pytest.raises(AttributeError):
        _ = layer.weight.tag


def test_members_are_no_attributes() -> None:
    x = flow.ones(2)
    for name in ("shape", "dtype", "device", "ndim"):
        with pytest.raises(AttributeError):
            setattr(x, name, 3)
    x.me = x
    assert copy.deepcopy(x).me.me.tolist() == [1, 1]
    del x
    gc.collect()
