"""Program of test_subclass_names.py: the names under which a subclass is asked, and the classes of
parameters and gradients, in either library; prints JSON.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from typing import Any

if sys.argv[1] == "torch":
    import torch as lib
else:
    import oneflow as lib  # type: ignore[no-redef]

tensor: Any = lib.Tensor
asked: list[str] = []


class Asked(tensor):  # type: ignore[misc]
    """Notes the names of functions."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        asked.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class Plain(tensor):  # type: ignore[misc]
    """Keeps its class, by the protocol's default."""


OPERATORS = """
add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv floordiv rfloordiv mod rmod pow
rpow matmul rmatmul eq ne lt le gt ge
"""
LOGICAL = "and rand or ror xor rxor"
ALONE = "neg pos abs len repr"
NUMBERS = "bool int float index"
METHODS = """
numpy tolist size dim numel cpu float double int half bool long t sum mean max std norm element_size
stride is_contiguous contiguous absolute negative arccos square var nonzero any all unbind flatten
squeeze detach clone zero_ positive
"""
WITH_ONE = (
    "multiply divide subtract greater gt clip add_ mul_ split chunk unsqueeze topk cumsum fill_"
)


def name_of(call: Callable[[], object]) -> str:
    asked.clear()
    call()
    return asked[0]


def operators() -> dict[str, str]:
    x = lib.ones(2, 2).as_subclass(Asked)
    yes = (lib.ones(2, 2) > 0).as_subclass(Asked)
    one = lib.ones((), dtype=lib.int64).as_subclass(Asked)
    other = lib.ones(2, 2)
    found = {o: name_of(lambda o=o: getattr(x, f"__{o}__")(other)) for o in OPERATORS.split()}
    found |= {o: name_of(lambda o=o: getattr(yes, f"__{o}__")(yes)) for o in LOGICAL.split()}
    found |= {o: name_of(lambda o=o: getattr(x, f"__{o}__")()) for o in ALONE.split()}
    found |= {o: name_of(lambda o=o: getattr(one, f"__{o}__")()) for o in NUMBERS.split()}
    found["getitem"] = name_of(lambda: x[0])
    found["setitem"] = name_of(lambda: x.__setitem__(0, 1.0))
    found["contains"] = name_of(lambda: 1.0 in x)
    found["invert"] = name_of(lambda: ~yes)
    return found


def methods() -> dict[str, str]:
    x = lib.ones(2, 2).as_subclass(Asked)
    found = {n: name_of(getattr(x, n)) for n in METHODS.split()}
    for n in WITH_ONE.split():
        found[n] = name_of(lambda n=n: getattr(lib.ones(2, 2).as_subclass(Asked), n)(1))
    return found


class Holder(lib.nn.Module):  # type: ignore[misc, name-defined]
    """A module with a parameter that keeps its class."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = lib.nn.Parameter(lib.ones(2).as_subclass(Plain))

    def forward(self, x: Any) -> Any:
        return (self.weight * x).sum()


def parameters() -> dict[str, Any]:
    holder = Holder()
    weight = holder.weight
    holder(lib.tensor([1.0, 2.0])).backward()
    lib.optim.SGD(holder.parameters(), lr=1.0).step()
    fixed = lib.nn.Parameter(lib.ones(2).as_subclass(Plain), requires_grad=False)
    return {
        "class": type(weight).__name__,
        "is a parameter": isinstance(weight, lib.nn.Parameter),
        "a plain one is": isinstance(lib.ones(2).as_subclass(Plain), lib.nn.Parameter),
        "a usual one is": isinstance(lib.nn.Parameter(lib.ones(2)), lib.nn.Parameter),
        "names": [name for name, _ in holder.named_parameters()],
        "state": {name: type(x).__name__ for name, x in holder.state_dict().items()},
        "stepped": weight.detach().tolist(),
        "flags": [weight.requires_grad, weight.is_leaf, fixed.requires_grad],
        "text": repr(weight)[:16],
    }


def gradients() -> dict[str, Any]:
    x = lib.ones(2).as_subclass(Plain).requires_grad_()
    (slope,) = lib.autograd.grad((x * x).sum(), x)
    (x * x).sum().backward()
    return {
        "grad": [type(slope).__name__, slope.tolist()],
        "attribute": type(x.grad).__name__,
        "text": repr(x)[:10],
        "pickle": type(pickle.loads(pickle.dumps(lib.ones(2).as_subclass(Plain)))).__name__,
    }


parts = (operators, methods, parameters, gradients)
print(json.dumps({part.__name__: part() for part in parts}))
