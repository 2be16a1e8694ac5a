"""Modules of PyTorch whose calls run as nn.Graph, over the same parameters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from oneflow.core.device import DeviceLike
from oneflow.core.errors import ConfigError
from oneflow.graph.graph import Graph
from oneflow.graph.tree import record_of
from oneflow.infer_compiler.calls import PLANS
from oneflow.infer_compiler.converting import torch2oflow
from oneflow.infer_compiler.types import from_torch, to_torch
from oneflow.io.checkpoint import load, save
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    import torch

    from oneflow.nn.module import Module


class Options(TypedDict, total=False):
    """Options of `compile_from_torch`.

    size: Plans that are kept, one for each shape of inputs.
    dynamic: Plans share their parameters, as they always do.
    debug: Level of `graph.debug`; -1 for none.
    graph_file: A file of plans: read before the first call if it is there, else written behind it.
    """

    size: int
    dynamic: bool
    debug: int
    graph_file: str | Path | None


def compile_from_torch(
    torch_module: torch.nn.Module, *, use_graph: bool = True, options: Options | None = None
) -> Any:
    """Return a module of the same class whose calls run here, for inference.

    It shares parameters and buffers with `torch_module`: an update of either is seen by both, and a
    module or parameter that is put in another's place is noticed at the next call.

    Args:
        torch_module: A module of PyTorch; its class must be importable, or `register`ed.
        use_graph: Compile by nn.Graph, one plan for each shape of inputs; False: call the ops.
        options: See Options.

    Returns:
        An instance of the module's class with `to`, `apply_model`, `load_graph` and `save_graph`
        besides.

    Raises:
        ConfigError: For an option that is not known.
        OneFlowError: At the first call, if a class has no counterpart here.
    """
    given: Options = {"size": PLANS, "dynamic": True, "debug": -1, "graph_file": None}
    if unknown := set(options or {}) - set(given):
        raise ConfigError(
            f"compile_from_torch: no such option {sorted(unknown)[0]!r}; there are "
            f"{', '.join(given)}"
        )
    given.update(options or {})
    if isinstance(torch_module, _deployed()):
        torch_module = torch_module._original
    kind: Any = type(torch_module)
    return _mixed(kind)(torch_module, use_graph, given)


@cache
def _graphs(plans: int) -> Callable[[Module], Graph]:
    """The class of graphs that keep this number of plans."""

    class TorchGraph(Graph):
        @Graph.with_dynamic_input_shape(size=plans)
        def __init__(self, model: Module) -> None:
            super().__init__()
            self.model = model

        def build(self, method: str, *args: object, **kwargs: object) -> Any:
            run = self.model if method == "forward" else getattr(self.model, method)
            return run(*args, **kwargs)

    return TorchGraph


@cache
def _deployed() -> Any:
    """The class of compiled modules, made when PyTorch is there."""
    import torch

    class DeployableModule(torch.nn.Module):
        """A compiled module; every attribute that is not its own is the original's."""

        def __init__(self, original: torch.nn.Module, use_graph: bool, options: Options) -> None:
            object.__setattr__(self, "_original", original)
            object.__setattr__(self, "_use_graph", use_graph)
            object.__setattr__(self, "_options", options)
            object.__setattr__(self, "_plans", None)

        def __getattribute__(self, name: str) -> Any:
            if name in OWN:
                return object.__getattribute__(self, name)
            return getattr(object.__getattribute__(self, "_original"), name)

        def __setattr__(self, name: str, value: object) -> None:
            setattr(self._original, name, value)

        def __delattr__(self, name: str) -> None:
            delattr(self._original, name)

        def __call__(self, *args: object, **kwargs: object) -> Any:
            return self._run("forward", *args, **kwargs)

        def forward(self, *args: object, **kwargs: object) -> Any:
            """Run the original's method of this name, compiled and without gradients."""
            return self._run("forward", *args, **kwargs)

        def apply_model(self, *args: object, **kwargs: object) -> Any:
            """Run the original's method of this name, compiled."""
            return self._run("apply_model", *args, **kwargs)

        def decode(self, *args: object, **kwargs: object) -> Any:
            """Run the original's method of this name, compiled."""
            return self._run("decode", *args, **kwargs)

        def to(self, *args: object, **kwargs: object) -> Any:
            """Move or cast the original."""
            self._original.to(*args, **kwargs)
            return self

        def save_graph(self, file_path: str | Path) -> None:
            """Write the plans of all shapes that were called. Raises GraphError before a call."""
            save(self._graph().runtime_state_dict(), file_path)

        def load_graph(
            self, file_path: str | Path, device: DeviceLike | None = None, run_warmup: bool = True
        ) -> None:
            """Read plans, so that their shapes need no compilation."""
            state = load(file_path)
            if device is not None:
                state = Graph.runtime_state_dict_to(state, device)
            self._graph().load_runtime_state_dict(state, warmup_with_run=run_warmup)

        def _graph(self) -> Graph:
            parts = _parts(self._original)
            if self._plans is None or self._plans[0] != parts:
                graph = _graphs(self._options["size"])(torch2oflow(self._original))
                if self._options["debug"] >= 0:
                    graph.debug(self._options["debug"])
                object.__setattr__(self, "_plans", (parts, graph))
                file = self._options["graph_file"]
                if file is not None and Path(file).exists():
                    self.load_graph(file)
            made: Graph = self._plans[1]
            return made

        def _run(self, method: str, *args: object, **kwargs: object) -> Any:
            graph = self._graph()
            run = graph if self._use_graph else graph.build
            with no_grad():
                made = run(method, *_ours(args), **_ours(kwargs))
            file = self._options["graph_file"]
            if file is not None and self._use_graph and not Path(file).exists():
                self.save_graph(file)
            return _theirs(made)

        def __repr__(self) -> str:
            return f"{self._original!r} compiled by oneflow"

    OWN = frozenset(
        name
        for name in vars(DeployableModule)
        if name not in ("__dict__", "__weakref__", "__module__", "__doc__")
    ) | {"_original", "_use_graph", "_options", "_plans", "__class__"}
    return DeployableModule


@cache
def _mixed(kind: type) -> Any:
    """A class of compiled modules that is a class of the given ones, too."""
    return type(kind.__name__, (_deployed(), kind), {"__module__": kind.__module__})


def _parts(module: torch.nn.Module) -> list[object]:
    """The identities of all modules, and where their tensors lie."""
    parts: list[object] = []
    for one in module.modules():
        parts.append((id(one), one.training))
        for table in (one._parameters, one._buffers):
            parts += [None if x is None else (x.data_ptr(), x.dtype) for x in table.values()]
    return parts


def _ours(tree: object) -> Any:
    import torch

    return _mapped(tree, torch.Tensor, lambda x: from_torch(x.contiguous()))


def _theirs(tree: object) -> Any:
    return _mapped(tree, Tensor, to_torch)


def _mapped(tree: object, kind: type, function: Callable[[Any], Any]) -> Any:
    """Nested containers with all tensors replaced; dataclasses are those of this program."""
    if isinstance(tree, kind):
        return function(tree)
    if (record := record_of(tree)) is not None:
        made = {key: _mapped(x, kind, function) for key, x in record.items()}
        return _real(type(tree))(**made)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_mapped(x, kind, function) for x in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(_mapped(x, kind, function) for x in tree)
    if isinstance(tree, Mapping):
        return {key: _mapped(x, kind, function) for key, x in tree.items()}
    return tree


def _real(kind: type) -> Any:
    """The class of that name that the program imports: of PyTorch, if the other is a twin."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and is_dataclass(found) else kind
