"""The base of all layers: a tree of modules that own parameters and buffers.

State dicts are in module_state.py, hooks in forward_hooks.py and backward_hooks.py; here are the
tree, attributes, conversion and the call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from oneflow.core.device import Device, DeviceLike
from oneflow.core.dispatch import current_mode
from oneflow.core.dtype import DType, bfloat16, float16, float32, float64
from oneflow.core.errors import PlacementError
from oneflow.core.no_effect import without_effect
from oneflow.core.placement import Placement
from oneflow.core.sbp import SbpLike, as_nd_sbp
from oneflow.core.spelling import is_mocked
from oneflow.functional.creation import empty_like, zeros_like
from oneflow.kernels.array import Array
from oneflow.nn.forward_hooks import call_with_hooks, enter, everywhere, with_options
from oneflow.nn.module_state import (
    IncompatibleKeys,
    WithModule,
    load_own,
    load_state_dict,
    save_own,
    state_dict,
)
from oneflow.nn.parameter import Buffer, Parameter, RowTable
from oneflow.tensor.grad_mode import no_grad, switches
from oneflow.tensor.layout import check_layout
from oneflow.tensor.tensor import RemovableHandle, Tensor
from oneflow.tensor.views import view_of

if TYPE_CHECKING:
    from oneflow.core.placement import Placement

Self = TypeVar("Self", bound="Module")
Hooks = dict[int, Callable[..., Any]]


def _own_parameters(module: Module) -> Iterable[tuple[str, Any]]:
    found: dict[str, Any] = module.__dict__["_parameters"]
    return found.items()


def _own_buffers(module: Module) -> Iterable[tuple[str, Any]]:
    found: dict[str, Any] = module.__dict__["_buffers"]
    return found.items()


def _no_forward(self: Module, *_: object, **__: object) -> NoReturn:
    raise NotImplementedError(
        f'Module [{type(self).__name__}] is missing the required "forward" function'
    )


class Module:
    """Base class of all layers and models: subclasses make their parts in `__init__` and define
    `forward`.

    A Parameter or a Module assigned to an attribute is registered under the attribute's name; a
    tensor that is no parameter but part of the state is made known with `register_buffer`.
    """

    training: bool
    call_super_init: bool = False
    dump_patches: bool = False
    _version: int = 1
    """Written into the metadata of state dicts, for `_load_from_state_dict` of later versions."""
    if TYPE_CHECKING:  # at run time, `typing.get_type_hints(layer)` could not look these names up
        _parameters: dict[str, Parameter | None]
        _buffers: dict[str, Tensor | None]
        _modules: dict[str, Module | None]
        forward: Callable[..., Any]
        """Computes the module's result; every subclass that is called defines it."""

    def __init__(self) -> None:
        d = self.__dict__
        d["training"] = True
        for name in ("_parameters", "_buffers", "_modules"):
            d[name] = OrderedDict()
        d["_non_persistent_buffers_set"] = set()
        for name in HOOK_KINDS:
            d[name] = {}

    # ---- the call --------------------------------------------------------------------------------

    if not TYPE_CHECKING:
        forward = _no_forward

    def __call__(self, *args: object, **kwargs: object) -> Any:
        call_module = current_mode().call_module
        if call_module is not None:
            return call_module(self, args, kwargs)
        if (
            self._forward_hooks
            or self._forward_pre_hooks
            or self._backward_hooks
            or self._backward_pre_hooks
            or everywhere.before
            or everywhere.after
            or everywhere.backward
        ):
            return call_with_hooks(self, args, kwargs)
        return self.forward(*args, **kwargs)

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args)` before `forward`; its result replaces the arguments.

        prepend: before the hooks that are there.  with_kwargs: `hook(module, args, kwargs)`, which
        returns None or both.
        """
        return enter(self._forward_pre_hooks, with_options(hook, with_kwargs), prepend)

    def register_forward_hook(
        self,
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Call `hook(module, args, output)` after `forward`; its result replaces output.

        prepend: before the hooks that are there.  with_kwargs: `hook(module, args, kwargs,
        output)`.  always_call: with the output None where `forward` raises, too.
        """
        return enter(self._forward_hooks, with_options(hook, with_kwargs, always_call), prepend)

    def register_full_backward_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Calls `hook(module, grad_input, grad_output)` in the backward pass; may return other
        grad_input.
        """
        return enter(self._backward_hooks, hook, prepend)

    register_backward_hook = register_full_backward_hook

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Calls `hook(module, grad_output)` before the module's part of the backward pass; may
        return other grad_output.
        """
        return enter(self._backward_pre_hooks, hook, prepend)

    # ---- parts -----------------------------------------------------------------------------------

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Adds a parameter (None: a name without one). Raises KeyError, TypeError, ValueError."""
        self._check_name(name, "parameter", self._parameters)
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{type(param).__name__}' object to parameter '{name}' "
                "(nn.Parameter or None required)"
            )
        switches.count += 1
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Adds a tensor that is part of the state but no parameter. persistent: is it in the state
        dict?
        """
        self._check_name(name, "buffer", self._buffers)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{type(tensor).__name__}' object to buffer '{name}' (Tensor or "
                "None required)"
            )
        switches.count += 1
        self._buffers[name] = tensor
        if persistent:
            self._non_persistent_buffers_set.discard(name)
        else:
            self._non_persistent_buffers_set.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Adds a part under a name. Raises KeyError, TypeError."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._check_name(name, "module", self._modules)
        switches.count += 1
        self._modules[name] = module

    register_module = add_module

    def _check_name(self, name: str, what: str, known: Mapping[str, Any]) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"cannot assign {what} before Module.__init__() call")
        if not isinstance(name, str):
            raise TypeError(f"{what} name should be a string, got {type(name).__name__}")
        if "." in name:
            raise KeyError(f'{what} name can\'t contain ".", got {name!r}')
        if name == "":
            raise KeyError(f'{what} name can\'t be empty string ""')
        if name not in known and hasattr(self, name):
            raise KeyError(f"attribute '{name}' already exists")

    def __getattr__(self, name: str) -> Any:
        d = self.__dict__
        for kind in ("_parameters", "_buffers", "_modules"):
            if kind in d and name in d[kind]:
                return d[kind][name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: object) -> None:
        d = self.__dict__
        if isinstance(value, Parameter):
            self._forget(name, "_buffers", "_modules")
            self.register_parameter(name, value)
        elif isinstance(value, Buffer):
            self._forget(name, "_parameters", "_buffers", "_modules")
            self.register_buffer(name, value, persistent=value.persistent)
        elif isinstance(value, Module):
            if "_modules" not in d:
                raise AttributeError("cannot assign module before Module.__init__() call")
            self._forget(name, "_parameters", "_buffers")
            switches.count += 1
            self._modules[name] = value
        else:
            kind = self._kind_of(name)
            if kind is None:
                if name == "training" and d.get(name) is not value:
                    switches.count += 1
                object.__setattr__(self, name, value)
                return
            if value is not None and not (kind == "_buffers" and isinstance(value, Tensor)):
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as {_KIND_WORDS[kind][0]} '{name}' "
                    f"({_KIND_WORDS[kind][1]} or None expected)"
                )
            if d[kind][name] is not value:
                switches.count += 1
            d[kind][name] = value

    def _kind_of(self, name: str) -> str | None:
        d = self.__dict__
        return next((kind for kind in _KIND_WORDS if name in d.get(kind, ())), None)

    def _forget(self, name: str, *kinds: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError("cannot assign parameters before Module.__init__() call")
        self.__dict__.pop(name, None)
        for kind in kinds:
            self.__dict__[kind].pop(name, None)
        self._non_persistent_buffers_set.discard(name)

    def __delattr__(self, name: str) -> None:
        kind = self._kind_of(name)
        if kind is None:
            object.__delattr__(self, name)
            return
        switches.count += 1
        del self.__dict__[kind][name]
        self._non_persistent_buffers_set.discard(name)

    def __dir__(self) -> list[str]:
        parts = [*self._parameters, *self._buffers, *self._modules]
        return sorted({*object.__dir__(self), *(p for p in parts if p.isidentifier())})

    def get_submodule(self, target: str) -> Module:
        """The module at a dotted path; "" is this one. Raises AttributeError."""
        module: Any = self
        for part in target.split(".") if target else ():
            module = getattr(module, part)
            if not isinstance(module, Module):
                raise AttributeError(f"`{part}` of {target!r} is not an nn.Module")
        found: Module = module
        return found

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a dotted path. Raises AttributeError."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._parameters.get(name)
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no parameter {target!r}")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a dotted path. Raises AttributeError."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._buffers.get(name)
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no buffer {target!r}")
        return found

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Puts a module at a dotted path.  strict: one must be there already. Raises ValueError,
        AttributeError.
        """
        path, _, name = target.rpartition(".")
        if not name or not isinstance(module, Module):
            raise ValueError(
                f"set_submodule: needs a path and a module, got {target!r} and "
                f"{type(module).__name__}"
            )
        parent = self.get_submodule(path)
        if strict and not hasattr(parent, name):
            raise AttributeError(f"{parent._get_name()} has no attribute `{name}`")
        if not isinstance(getattr(parent, name, module), Module):
            raise AttributeError(f"`{name}` of {target!r} is not an nn.Module")
        setattr(parent, name, module)

    # ---- walking ---------------------------------------------------------------------------------

    def children(self) -> Iterator[Module]:
        """The direct parts, each once."""
        for _, module in self.named_children():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        seen: set[int] = set()
        for name, module in self._modules.items():
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def modules(self, remove_duplicate: bool = True) -> Iterator[Module]:
        """This module and all its parts, each once unless remove_duplicate is False."""
        for _, module in self.named_modules(remove_duplicate=remove_duplicate):
            yield module

    def named_modules(
        self,
        memo: set[Module] | None = None,
        prefix: str = "",
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, Module]]:
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                path = f"{prefix}.{name}" if prefix else name
                yield from module.named_modules(memo, path, remove_duplicate)

    def _named_members(
        self,
        get_members_fn: Callable[[Module], Iterable[tuple[str, Any]]],
        prefix: str = "",
        recurse: bool = True,
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, Any]]:
        """Members that a function gives of each module, with whole names: parameters, buffers.

        remove_duplicate: one that has several names comes under the first alone.
        """
        seen: set[int] = set()
        whole = self.named_modules(None, prefix, remove_duplicate)
        for path, module in whole if recurse else [(prefix, self)]:
            for name, member in get_members_fn(module):
                if member is not None and id(member) not in seen:
                    if remove_duplicate:
                        seen.add(id(member))
                    yield f"{path}.{name}" if path else name, member

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters, each once; recurse: also those of the parts."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """All parameters with their names; remove_duplicate: each once."""
        yield from self._named_members(_own_parameters, prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers, each once; recurse: also those of the parts."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """All buffers with their names; remove_duplicate: each once."""
        yield from self._named_members(_own_buffers, prefix, recurse, remove_duplicate)

    # ---- modes -----------------------------------------------------------------------------------

    def train(self: Self, mode: bool = True) -> Self:
        """Sets training mode here and in all parts."""
        if not isinstance(mode, bool):
            raise ValueError(f"training mode is expected to be boolean, got {mode!r}")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self: Self) -> Self:
        """`train(False)`."""
        return self.train(False)

    def requires_grad_(self: Self, requires_grad: bool = True) -> Self:
        """Sets `requires_grad` of all parameters."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clears the gradients of all parameters: to zeros, or to None, as is the default under the
        mock of PyTorch.
        """
        zero_gradients(self.parameters(), is_mocked() if set_to_none is None else set_to_none)

    def apply(self: Self, fn: Callable[[Module], object]) -> Self:
        """Calls `fn` on all parts and then on this module."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # ---- conversion ------------------------------------------------------------------------------

    def _apply(self: Self, fn: Callable[[Tensor], Tensor]) -> Self:
        """Replaces the contents of every parameter, gradient and buffer by `fn` of them; the
        objects stay.
        """
        with no_grad():
            for x in [*self.parameters(), *self.buffers()]:
                new = fn(x.detach())
                grad = None if x.grad is None else fn(x.grad)
                x.data = new
                if grad is not None:
                    x.grad = grad
        return self

    def to(
        self: Self,
        *args: DeviceLike | DType | Tensor | int | None,
        device: DeviceLike | None = None,
        dtype: DType | None = None,
        non_blocking: bool = False,
        memory_format: object = None,
    ) -> Self:
        """`to(device)`, `to(dtype)`, `to(device, dtype)`, `to(tensor)`; dtype changes floating-
        point tensors only.  non_blocking: as of tensors.  memory_format changes nothing.
        """
        device, dtype = _parse_to(args, device, dtype)

        def convert(x: Tensor) -> Tensor:
            if device is not None:
                x = x.to(device, non_blocking=non_blocking)
            if dtype is not None and x.dtype.is_floating_point:
                x = x.to(dtype)
            return x

        return self._apply(convert)

    def cpu(self: Self) -> Self:
        """Moves all parameters and buffers to the CPU."""
        return self.to("cpu")

    def cuda(self: Self, device: int | str | Device | None = None) -> Self:
        """Moves all parameters and buffers to a GPU, by default this rank's."""
        if isinstance(device, int):
            device = Device("cuda", device)
        return self.to("cuda" if device is None else device)

    def half(self: Self) -> Self:
        """All floating-point parameters and buffers become float16."""
        return self.to(float16)

    def bfloat16(self: Self) -> Self:
        """All floating-point parameters and buffers become bfloat16."""
        return self.to(bfloat16)

    def float(self: Self) -> Self:
        """All floating-point parameters and buffers become float32."""
        return self.to(float32)

    def double(self: Self) -> Self:
        """All floating-point parameters and buffers become float64."""
        return self.to(float64)

    def type(self: Self, dst_type: DType) -> Self:
        """All floating-point parameters and buffers become `dst_type`."""
        return self.to(dst_type)

    def to_empty(self: Self, *, device: DeviceLike | None = None, recurse: bool = True) -> Self:
        """Moves all parts to a device, without their values; global ones stay on their ranks."""

        def empty(x: Tensor) -> Tensor:
            if x._placement is None or device is None:
                return empty_like(x, device=device)
            placement = Placement(Device(device).type, x._placement.ranks)
            return empty_like(x, placement=placement, sbp=x._sbp)

        return self._apply(empty)

    def compile(self, *, fullgraph: bool = False, **_: object) -> None:
        """Lets `forward` run compiled from now on; see `flow.compile`, whose arguments it takes."""
        from oneflow.nn.graph import compile_forward

        compile_forward(self, fullgraph)

    def to_memory_format(self: Self, memory_format: object) -> Self:
        """Returns the module: kernels work on channels before positions."""
        return self

    def to_consistent(self, *_: object, **__: object) -> NoReturn:
        """Raises RuntimeError: the name of old for `to_global`."""
        raise RuntimeError(".to_consistent has been removed, please use .to_global instead")

    def make_contiguous_params_group(self) -> None:
        """Warns once: parameters are not laid out in one piece of memory."""
        without_effect("Module.make_contiguous_params_group", "parameters keep memory of their own")

    def to_global(
        self: Self, placement: Placement | None = None, sbp: SbpLike | None = None
    ) -> Self:
        """Makes parameters and buffers global, or moves them; the objects stay, so optimizers keep
        them.

        A local module needs both arguments; its B values are those of the placement's first rank.
        """
        if any(x.is_local for x in [*self.parameters(), *self.buffers()]) and (
            placement is None or sbp is None
        ):
            raise PlacementError(
                "Converting a local module to global must have placement and sbp parameters."
            )
        if sbp is not None:
            self._check_layouts(placement, sbp)
        return self._apply(lambda x: x.to_global(placement=placement, sbp=sbp))

    def _check_layouts(self, placement: Placement | None, sbp: SbpLike) -> None:
        """Raises SbpError before anything is moved, if a parameter or buffer cannot lie so."""
        for name, x in [*self.named_parameters(), *self.named_buffers()]:
            nd_sbp = as_nd_sbp(sbp, (placement or x.placement).ndim)
            check_layout(x.meta, nd_sbp, f"to_global of {name}")

    def to_local(self: Self) -> Self:
        """Every parameter and buffer becomes this rank's shard of it."""
        return self._apply(lambda x: x.to_local())

    # ---- state -----------------------------------------------------------------------------------

    def state_dict(
        self,
        destination: OrderedDict[str, Tensor] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> OrderedDict[str, Tensor]:
        """Dotted path -> parameter or persistent buffer, sharing memory; keep_vars: with their
        history.
        """
        return state_dict(self, destination, prefix, keep_vars)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        """Enters this module's own values, not those of its parts; subclasses may add others."""
        save_own(self, destination, prefix, keep_vars)

    def load_state_dict(
        self,
        state_dict: Mapping[str, Tensor | Array],
        strict: bool = True,
        assign: bool = False,
    ) -> IncompatibleKeys:
        """Copies values (tensors, local or global, or arrays) into parameters and buffers.

        strict: every name must be in both. Raises RuntimeError that lists all differences.
        assign: the values take the place of parameters and buffers instead, with their own dtype
        and device; optimizers made before know only the old ones.
        Where this module is global every rank must call it, with whole values or global tensors.
        """
        return load_state_dict(self, state_dict, strict, assign)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Takes this module's own values, not those of its parts; subclasses may change names."""
        load_own(
            self,
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )

    def get_extra_state(self) -> Any:
        """Any object that `state_dict()` is to hold besides tensors, in subclasses that define it
        and `set_extra_state`.
        """
        raise RuntimeError(
            f"{type(self).__name__} calls get_extra_state of Module; a subclass defines both it "
            "and set_extra_state, or none"
        )

    def set_extra_state(self, state: object) -> None:
        """Take the state that `get_extra_state` gave."""
        raise RuntimeError(
            f"{type(self).__name__} calls set_extra_state of Module; a subclass defines both it "
            "and get_extra_state, or none"
        )

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls `hook(module, prefix, keep_vars)` before its part of a state dict is made."""
        return RemovableHandle(self._state_dict_pre_hooks, hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls `hook(module, state_dict, prefix, metadata)` afterwards, which may edit it."""
        return RemovableHandle(self._state_dict_hooks, hook)

    def _register_state_dict_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls `hook(module, state_dict, prefix, metadata)` afterwards; it may return another
        dict.
        """
        return RemovableHandle(self._state_dict_hooks, hook)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls `hook(module, state_dict, prefix, metadata, strict, missing, unexpected, errors)`
        before loading.
        """
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def _register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], with_module: bool = False
    ) -> RemovableHandle:
        """Calls `hook(state_dict, prefix, metadata, strict, missing, unexpected, errors)` before
        loading.  with_module: the module comes first.
        """
        return RemovableHandle(
            self._load_state_dict_pre_hooks, WithModule(hook, self) if with_module else hook
        )

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls `hook(module, incompatible_keys)` after loading."""
        return RemovableHandle(self._load_state_dict_post_hooks, hook)

    # ---- text ------------------------------------------------------------------------------------

    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        """Return the text that `repr` shows besides the parts."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        children = [f"({k}): " + repr(m).replace("\n", "\n  ") for k, m in self._modules.items()]
        if not children and len(lines) <= 1:
            return f"{self._get_name()}({extra})"
        return "\n  ".join([f"{self._get_name()}(", *lines, *children]) + "\n)"


HOOK_KINDS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_KIND_WORDS = {
    "_parameters": ("parameter", "nn.Parameter"),
    "_modules": ("child module", "nn.Module"),
    "_buffers": ("buffer", "Tensor"),
}


def zero_gradients(parameters: Iterable[Tensor], set_to_none: bool) -> None:
    """Clears `.grad` of each: to None, or to zeros in place. A gradient that has a history, or that
    a graph under construction makes, is replaced."""
    mode = current_mode()
    mode.before_writing()
    with no_grad():
        for parameter in parameters:
            grad = parameter._grad
            if grad is None:
                continue
            if set_to_none or isinstance(parameter, RowTable):  # whose rows have no dense zeros
                parameter._grad = None
            elif grad._requires_grad or not mode.has_memory:
                parameter.grad = zeros_like(grad)
            elif isinstance(grad._array, np.ndarray) and view_of(grad) is None:
                # As zero_(), without an op: these were a sixth of the ops of a small step.
                grad._array.fill(0)
                grad._version[0] += 1
            else:
                grad.zero_()


def _parse_to(
    args: tuple[DeviceLike | DType | Tensor | int | None, ...],
    device: DeviceLike | None,
    dtype: DType | None,
) -> tuple[DeviceLike | None, DType | None]:
    """device (anything `Tensor.to` takes, or None) and dtype of the arguments of `Module.to`."""
    for arg in args:
        if isinstance(arg, DType):
            dtype = arg
        elif isinstance(arg, Tensor):
            dtype = arg.dtype
            device = arg.placement.type if arg.is_global else arg.device
        elif isinstance(arg, str | Device):
            device = arg
        elif isinstance(arg, int) and not isinstance(arg, bool):
            device = Device("cuda", arg)
        elif arg is not None and not isinstance(arg, bool):  # True: non_blocking
            raise TypeError(f"to() takes a device, a dtype or a tensor, got {arg!r}")
    if dtype is not None and not dtype.is_floating_point:
        raise TypeError(f"nn.Module.to only accepts floating point dtypes, but got {dtype}")
    return device, dtype
