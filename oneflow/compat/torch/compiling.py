"""`torch.compile`: functions and modules as plans of `nn.Graph`, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from oneflow.core.errors import CallError
from oneflow.core.no_effect import without_effect
from oneflow.graph.functions.calls import CompiledCalls, compile_forward, compiled_call
from oneflow.nn.module import Module
from oneflow.nn.parallel import DistributedDataParallel

T = TypeVar("T", bound=Callable[..., object])

UNCOMPILED = ("eager", "eager_noexcept", "eager_debug", "none")
"""Backends that compile nothing."""


class OptimizedModule(Module):
    """A module that is called compiled. `_orig_mod` is the module itself, whose attributes it has;
    names in its `state_dict` begin with that.
    """

    _orig_mod: Module

    def __init__(self, model: Module, fullgraph: bool = False) -> None:
        super().__init__()
        self._orig_mod = model
        self.training = model.training
        calls: Callable[..., Any] = CompiledCalls(model, fullgraph)
        if isinstance(model, DistributedDataParallel):  # the ranks speak outside plans
            compile_forward(model.module, fullgraph)
            calls = model
        object.__setattr__(self, "_calls", calls)

    def forward(self, *args: object, **kwargs: object) -> Any:
        """The result of the module."""
        return self._calls(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__.get("_modules")
        if not modules:  # it is being copied
            raise AttributeError(name)
        model = modules["_orig_mod"]
        return model if name == "_orig_mod" else getattr(model, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("_orig_mod", "training", "__class__") or name in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._orig_mod)})


@overload
def compile(
    model: T,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: object = "inductor",
    mode: str | None = None,
    options: object = None,
    disable: bool = False,
) -> T: ...
@overload
def compile(
    model: None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: object = "inductor",
    mode: str | None = None,
    options: object = None,
    disable: bool = False,
) -> Callable[[T], T]: ...
def compile(
    model: object = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: object = "inductor",
    mode: str | None = None,
    options: object = None,
    disable: bool = False,
) -> object:
    """A function or module that runs compiled, or a decorator that makes one.

    It is traced once for each kind of call: the shapes, dtypes and layouts of tensors, all other
    arguments, and the modes of modules; eight plans are kept. Code that reads values while it is
    traced (`if x.sum() > 0`, `x.item()`), writes to Python objects or to views that it was given,
    returns a view of a tensor that it was given, or calls `backward` cannot be compiled: it runs as
    it is, and one warning says why and where. Other tensors are written where they lie: a cache of
    fixed shape, which `index_copy_` or `scatter_` writes at positions that are a tensor, decodes
    with one plan, and without a copy of the cache.

    fullgraph: that is an error instead.  dynamic: a plan is made for each shape all the same.
    backend: "eager" runs the function as it is; all others are this one compiler.  mode,
    options: of PyTorch's compiler, without effect.  disable: return the argument.

    Example::

        step = torch.compile(lambda x, y: loss(model(x), y))
        step(x, y).backward()
        optimizer.step()
    """
    if model is None:
        return lambda made: compile(
            made,
            fullgraph=fullgraph,
            dynamic=dynamic,
            backend=backend,
            mode=mode,
            options=options,
            disable=disable,
        )
    if not callable(model):
        raise CallError(f"compile takes a function or a module, got {type(model).__name__}")
    if disable or backend in UNCOMPILED:
        return model
    if callable(backend):
        without_effect("compile(backend=)", "a function of torch.fx graphs is never called")
    if isinstance(model, OptimizedModule):
        return model
    if isinstance(model, Module):
        return OptimizedModule(model, fullgraph)
    return compiled_call(model, fullgraph)
