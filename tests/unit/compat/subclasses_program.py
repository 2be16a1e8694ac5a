"""Program of test_subclasses.py: the calls and results of subclasses of Tensor, in either library;
prints JSON. The first subclass changes how a process calls functions, so it has one of its own.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

if sys.argv[1] == "torch":
    import torch as lib
else:
    import oneflow as lib  # type: ignore[no-redef]

tensor: Any = lib.Tensor


class Plain(tensor):  # type: ignore[misc]
    """Keeps its class, by the protocol's default."""


class Below(Plain):
    """A subclass of it."""


class Logged(tensor):  # type: ignore[misc]
    """Notes calls."""

    called: list[str] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Logged.called.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class Noted(tensor):  # type: ignore[misc]
    """Hands a note on."""

    def __new__(cls, data: Any, note: str) -> Any:
        made = tensor._make_subclass(cls, lib.as_tensor(data))
        made.note = note
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(made, Noted):
            made.note = "".join(a.note for a in args if isinstance(a, Noted))
        return made


class Silent(tensor):  # type: ignore[misc]
    """Asks nothing."""

    __torch_function__ = lib._C._disabled_torch_function_impl


class Refusing(tensor):  # type: ignore[misc]
    """Knows no function."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


def described(x: Any) -> Any:
    if isinstance(x, lib.Tensor):
        return [type(x).__name__, np.asarray(x.detach().cpu().tolist()).tolist()]
    if isinstance(x, (list, tuple)):
        return [described(y) for y in x]
    return x if isinstance(x, (bool, int, float, str, type(None))) else type(x).__name__


F = lib.nn.functional
BASE = lib.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])
x, y = BASE.as_subclass(Plain), (BASE * 2).as_subclass(Below)
EXPRESSIONS = """
x + 1 | 1 + x | x - BASE | BASE - x | x * x | x / 2 | 2 / x | x ** 2 | -x | abs(x) | x @ x.T
x == BASE | x > 0 | x[0] | x[:, 1:] | x[x > 0] | x.sum() | x.max(1) | x.split(1)
x.reshape(3, 2) | x.T | x.data | x.exp() | lib.exp(x) | lib.add(BASE, x)
lib.cat([BASE, x]) | lib.stack([x, x]) | F.relu(x) | F.linear(BASE, x)
lib.where(x > 0, x, BASE) | lib.matmul(x, BASE.T) | x.to(lib.float64) | x.clone()
x.detach() | x.float() | x.long() | lib.zeros_like(x) | x.new_zeros(2) | x.unbind()
list(x) | x.mean().item() | len(x) | x.tolist() | x.dim() | x.shape[0]
bool((x > 9).any()) | x + y | y + x | lib.add(x, y) | lib.cat([x, y]) | y.exp()
isinstance(x, lib.Tensor) | x.clone().add_(1) | x.clone().mul_(y) | BASE + 1
lib.linalg.norm(x) | lib.sort(x)[0] | lib.topk(x, 1)
"""
found: dict[str, Any] = {}
for expression in EXPRESSIONS.replace("\n", " | ").split(" | "):
    if expression.strip():
        found[expression.strip()] = described(eval(expression))
leaf = lib.ones(3, requires_grad=True)
(leaf.as_subclass(Plain) * 3).sum().backward()
found["gradient"] = described(leaf.grad)
a, b = Noted([1.0, 2.0], "a"), Noted([3.0, 4.0], "b")
found["notes"] = [(a + b).note, lib.exp(a).note, (a * 2).note, a.sum().note, b.clone().note]
noted = BASE.as_subclass(Logged)
Logged.called.clear()
lib.exp(noted)
noted.sum()
noted + 1
noted * noted
F.relu(noted)
found["called"] = [name.strip("_") for name in Logged.called]
found["silent"] = described(BASE.as_subclass(Silent) + 1)
try:
    lib.exp(BASE.as_subclass(Refusing))
    found["refused"] = "not"
except TypeError as error:
    found["refused"] = "returned NotImplemented" in str(error)
refusing = BASE.as_subclass(Refusing)
found["asked nobody"] = [lib.is_tensor(refusing), lib.as_tensor(refusing) is refusing]
with lib._C.DisableTorchFunctionSubclass():
    found["off"] = type(x + 1).__name__
from_overrides = lib.overrides if hasattr(lib, "overrides") else None
found["overrides"] = [
    from_overrides.has_torch_function((x,)),
    from_overrides.has_torch_function((BASE,)),
    from_overrides.is_tensor_like(x),
    from_overrides.is_tensor_like(3),
]
found["batch"] = [
    described(lib.utils.data.default_collate([{"x": x}, {"x": x}])["x"]),
    lib.utils.data.default_collate([a, b]).shape[0],
    *[described(batch) for batch in lib.utils.data.DataLoader([x, x, x], batch_size=2)],
]
found["parameter"] = type(lib.nn.Parameter(BASE.clone())).__name__
found["module"] = type(lib.nn.Linear(3, 2)(x)).__name__
print(json.dumps(found))
