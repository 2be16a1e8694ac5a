"""The proxy that a graph hands out for a module: it calls the module and lets the user place it in
the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from oneflow.core.dispatch import current_mode
from oneflow.core.errors import GraphError
from oneflow.core.placement import Placement
from oneflow.graph.debugging import check_debugging
from oneflow.graph.describe import describe_module
from oneflow.graph.spec import GraphSpec, Stage
from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter
from oneflow.tensor.tensor import Tensor


class _Staged:
    """A graph's view of something that has a place in the pipeline."""

    type: str

    def __init__(self, owner: object, spec: GraphSpec, path: str) -> None:
        self._owner = owner
        self._spec = spec
        self._path = path

    @property
    def name(self) -> str:
        """The last part of the path; `name_prefix` is the rest."""
        return self._path.rpartition(".")[2]

    @property
    def name_prefix(self) -> str:
        return self._path.removesuffix(self.name)

    @property
    def _stage(self) -> Stage:
        return self._spec.stages.get(id(self._owner), Stage())

    def set_stage(self, stage_id: int, placement: Placement | None = None) -> None:
        """Makes it part of stage `stage_id` of the pipeline; the inputs of a module are moved to
        `placement` if given.
        """
        if not isinstance(stage_id, int) or stage_id < 0:
            raise GraphError(f"set_stage: the stage id must be an integer >= 0, got {stage_id!r}")
        self._spec.check_open("set_stage")
        self._spec.stages[id(self._owner)] = Stage(stage_id, placement)

    @property
    def stage_id(self) -> int:
        return self._stage.id

    @stage_id.setter
    def stage_id(self, stage_id: int) -> None:
        self.set_stage(stage_id, self.stage_placement)

    @property
    def stage_placement(self) -> Placement | None:
        return self._stage.placement

    @stage_placement.setter
    def stage_placement(self, placement: Placement | None) -> None:
        self.set_stage(self.stage_id, placement)


class GraphTensor(_Staged):
    """The graph's view of a parameter or buffer: `graph.model.weight.to(GraphTensor)`."""

    def __init__(self, tensor: Tensor, spec: GraphSpec, path: str) -> None:
        super().__init__(tensor, spec, path)
        self._tensor = tensor
        self.type = "PARAMETER" if isinstance(tensor, Parameter) else "BUFFER"

    def set_stage(self, stage_id: int, placement: Placement | None = None) -> None:
        """Makes it part of stage `stage_id` of the pipeline. Raises GraphError for a placement that
        is not the tensor's own: a tensor lies where it was put.
        """
        own = self._tensor.placement if self._tensor.is_global else None
        if placement is not None and placement != own:
            raise GraphError(
                f"set_stage: {self._path} lies on {own or 'this rank alone'}, which a stage does "
                f"not change; move it to {placement} with to_global() first"
            )
        super().set_stage(stage_id, placement)

    def __repr__(self) -> str:
        return f"(GraphTensor:{self._path}(stage_id={self.stage_id}))"


class _GraphTensors(GraphTensor):
    """The graph's view of all parameters and buffers of a module: `proxy.to(GraphTensor)`. Setting
    an attribute sets it for each of them; reading gives the value that they have in common.
    """

    def __init__(self, module: Module, spec: GraphSpec, path: str) -> None:
        _Staged.__init__(self, module, spec, path)
        named = (*module.named_parameters(path), *module.named_buffers(path))
        self._views = [GraphTensor(x, spec, name) for name, x in named]
        kinds = {view.type for view in self._views}
        self.type = "BUFFER" if kinds == {"BUFFER"} else "PARAMETER"

    def set_stage(self, stage_id: int, placement: Placement | None = None) -> None:
        for view in self._views:
            view.set_stage(stage_id, placement)

    @property
    def _stage(self) -> Stage:
        """Raises GraphError if the tensors have different stages."""
        stages = [view._stage for view in self._views]
        if any(stage != stages[0] for stage in stages):
            raise GraphError(
                f"the tensors of {self._path} have different stages; ask each for its own, or set "
                "one for all"
            )
        return stages[0] if stages else Stage()


class GraphModule(_Staged):
    """The graph's view of a module: `proxy.to(GraphModule)`."""

    def __init__(self, module: Module, spec: GraphSpec, path: str) -> None:
        super().__init__(module, spec, path)
        self._module = module
        self.type = "MODULE"

    @property
    def activation_checkpointing(self) -> bool:
        """Whether the module is computed again in the backward pass, from its arguments, instead
        of keeping the values that the backward pass reads. Modules in it may be, too.
        """
        return id(self._module) in self._spec.recomputed

    @activation_checkpointing.setter
    def activation_checkpointing(self, wanted: bool) -> None:
        self._spec.check_open("activation_checkpointing")
        if wanted:
            self._spec.recomputed.add(id(self._module))
        else:
            self._spec.recomputed.discard(id(self._module))

    def debug(
        self,
        v_level: int = 0,
        *,
        ranks: int | list[int] | None = None,
        max_py_stack_depth: int = 2,
        only_user_py_stack: bool = True,
        op_repr_with_py_stack: bool = False,
    ) -> None:
        """Print the module, with all in it, once the graph is compiled, from level 2 on with its
        ops; -1: do not. The ranks and the lines of code are those of `Graph.debug`; lines are kept
        of the whole graph.
        """
        check_debugging(v_level, max_py_stack_depth)
        self._spec.check_open("debug")
        debugging = self._spec.debugging
        debugging.modules.pop(self._path, None)
        if v_level >= 0:
            debugging.modules[self._path] = self._module, v_level, ranks
        if (v_level >= 2 or op_repr_with_py_stack) and debugging.stack is None:
            debugging.stack = max_py_stack_depth, only_user_py_stack

    def __repr__(self) -> str:
        return f"(GraphModule:{self._path}(stage_id={self.stage_id}))"


class Proxy:
    """A module of a graph. Calls and attributes go to the module; modules in it come out as
    proxies, also of containers and of modules(), children() and the like.
    """

    def __init__(self, module: Module, spec: GraphSpec, path: str) -> None:
        object.__setattr__(self, "_module", module)
        object.__setattr__(self, "_spec", spec)
        object.__setattr__(self, "_path", path)

    def to(self, view: object, *args: Any, **kwargs: Any) -> Any:
        """The view asked for: GraphModule, GraphTensor for all tensors of the module, or nn.Module
        for the module itself; anything else (a device, a dtype) goes to the module's own `to`.
        """
        if view is GraphModule:
            return GraphModule(self._module, self._spec, self._path)
        if view is GraphTensor:
            return _GraphTensors(self._module, self._spec, self._path)
        if not isinstance(view, type):
            self._module.to(view, *args, **kwargs)
            return self
        if isinstance(self._module, view):
            return self._module
        raise GraphError(
            f"{self._path} is a {type(self._module).__name__} of a graph: "
            "to() takes GraphModule, GraphTensor or nn.Module"
        )

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("origin", "config") and not hasattr(self._module, name):
            return self._module if name == "origin" else self.to(GraphModule)  # older upstream
        return _proxied(self._spec, getattr(self._module, name), f"{self._path}.{name}")

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, Proxy):
            value = value._module
        elif isinstance(value, ProxyTensor):
            value = value._tensor
        setattr(self._module, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._module)})

    # ---- the modules in it -----------------------------------------------------------------------

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """Yield as the module does, with proxies."""
        for name, module in self._module.named_modules(memo, prefix, remove_duplicate):
            yield name, self._at(module, name)

    def named_children(self) -> Iterator[tuple[str, Any]]:
        """Yield as the module does, with proxies."""
        for name, module in self._module.named_children():
            yield name, self._at(module, name)

    def modules(self) -> Iterator[Any]:
        """This and all modules in it."""
        for _, module in self.named_modules():
            yield module

    def children(self) -> Iterator[Any]:
        """The modules directly in it."""
        for _, module in self.named_children():
            yield module

    def _at(self, value: object, name: object) -> Any:
        path = f"{self._path}.{name}" if name != "" else self._path
        return _proxied(self._spec, value, path)

    # ---- containers ------------------------------------------------------------------------------

    def __getitem__(self, key: int | slice | str) -> Any:
        if isinstance(key, slice):
            return [self._at(self._module[i], i) for i in range(len(self._module))[key]]
        if isinstance(key, int):
            key = range(len(self._module))[key]
        return self._at(self._module[key], key)

    def __iter__(self) -> Any:
        if hasattr(self._module, "keys"):
            yield from self._module
            return
        for i, child in enumerate(self._module):
            yield self._at(child, i)

    def __len__(self) -> int:
        return len(self._module)

    def __bool__(self) -> bool:
        return bool(self._module)

    def __contains__(self, key: object) -> bool:
        return key in self._module

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield the names and the values of a ModuleDict or ParameterDict."""
        for key, value in self._module.items():
            yield key, self._at(value, key)

    def values(self) -> Iterator[Any]:
        """Yield the values of a ModuleDict or ParameterDict."""
        for _, value in self.items():
            yield value

    def __repr__(self) -> str:
        return describe_module(self._spec, self._path, self._module, with_ops=True)


class ProxyTensor:
    """A parameter or buffer of a graph outside of `build`; inside, a graph gives the tensor itself.
    Attributes are the tensor's.
    """

    __slots__ = ("_path", "_spec", "_tensor")

    def __init__(self, tensor: Tensor, spec: GraphSpec, path: str) -> None:
        object.__setattr__(self, "_tensor", tensor)
        object.__setattr__(self, "_spec", spec)
        object.__setattr__(self, "_path", path)

    def to(self, *wanted: object, **kwargs: object) -> Any:
        """The view asked for: GraphTensor, or flow.Tensor for the tensor itself; anything else goes
        to the tensor's own `to`.
        """
        if wanted == (GraphTensor,):
            return self.config
        own: Callable[..., Any] = self._tensor.to
        return own(*wanted, **kwargs)

    @property
    def origin(self) -> Tensor:
        """The tensor itself, as older upstream calls it."""
        tensor: Tensor = self._tensor
        return tensor

    @property
    def config(self) -> GraphTensor:
        """Its view, as older upstream calls it."""
        return GraphTensor(self._tensor, self._spec, self._path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._tensor, name, value)

    def __reduce__(self) -> tuple[type[ProxyTensor], tuple[Tensor, GraphSpec, str]]:
        return ProxyTensor, (self._tensor, self._spec, self._path)

    def __repr__(self) -> str:
        return f"({self.config.type}:{self._path}:{self._tensor.meta})"


def _proxied(spec: GraphSpec, value: object, path: str) -> object:
    """A module as its proxy, outside of `build` a tensor, too; anything else as it is."""
    if isinstance(value, Module):
        return Proxy(value, spec, path)
    if isinstance(value, Tensor) and current_mode().has_memory:
        return ProxyTensor(value, spec, path)
    return value
