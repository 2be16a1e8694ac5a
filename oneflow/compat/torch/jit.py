"""`flow.jit`: names by which scripts mark code for a compiler of Python. There is none
here: marked code stays as it is and runs eagerly; `nn.Graph` compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import UnionType
from typing import Final as Final
from typing import NoReturn, TypeVar, Union, get_args, get_origin, overload

from oneflow.core.dispatch import is_traced
from oneflow.core.errors import OneFlowError
from oneflow.nn.module import Module

T = TypeVar("T")


class ScriptModule(Module):
    """A compiled module: none is ever made, so `isinstance` is False."""

    def __init__(self) -> None:
        raise OneFlowError("jit.ScriptModule: nothing is compiled here; derive from nn.Module")


class ScriptFunction:
    """A compiled function: none is ever made, so `isinstance` is False."""


def script(obj: T, optimize: bool | None = None, _frames_up: int = 0, _rcb: object = None) -> T:
    """The function, class or module as it is."""
    return obj


def trace(func: T, example_inputs: object = None, **options: object) -> T:
    """The function or module as it is."""
    return func


def script_if_tracing(fn: T) -> T:
    """The function as it is."""
    return fn


_script_if_tracing = script_if_tracing


def _overload_method(fn: T) -> T:
    """The function as it is: a later one of the same name takes its place."""
    return fn


_overload = _overload_method


def export(fn: T) -> T:
    """The function as it is."""
    return fn


def interface(obj: T) -> T:
    """The class as it is."""
    return obj


@overload
def ignore(drop: T) -> T: ...
@overload
def ignore(drop: bool = False, **options: object) -> Callable[[T], T]: ...
def ignore(drop: object = False, **options: object) -> object:
    """The function as it is, under `@ignore` and `@ignore()` alike."""
    return drop if callable(drop) else export


def unused(fn: T) -> T:
    """The function as it is."""
    return fn


def is_scripting() -> bool:
    """False: nothing is compiled."""
    return False


def is_tracing() -> bool:
    """Return whether `nn.Graph.build` is being traced."""
    return is_traced()


class TracerWarning(Warning):
    """PyTorch's warning of values that a trace would keep: never raised."""

    @staticmethod
    def ignore_lib_warnings() -> None:
        """Change nothing: it is never raised."""


class RecursiveScriptModule(Module):
    """A compiled module: none is ever made, so `isinstance` is False."""

    def __init__(self, *_: object) -> None:
        raise OneFlowError("jit.RecursiveScriptModule: nothing is compiled; derive from nn.Module")


TopLevelTracedModule = RecursiveScriptModule


def annotate(the_type: object, the_value: T) -> T:
    """Return the value as it is."""
    return the_value


def Attribute(value: T, type: object = None) -> T:
    """Return the value as it is."""
    return value


def trace_module(mod: T, inputs: Mapping[str, object], **options: object) -> T:
    """Return the module as it is."""
    return mod


def freeze(mod: T, preserved_attrs: object = None, optimize_numerics: bool = True) -> T:
    """Return the module as it is."""
    return mod


def optimize_for_inference(mod: T, other_methods: object = None) -> T:
    """Return the module as it is."""
    return mod


def isinstance_(obj: object, target_type: object) -> bool:
    """Return whether a value is of a type, or of a container of it such as `List[int]`."""
    if get_origin(target_type) in (Union, UnionType):
        return any(isinstance_(obj, one) for one in get_args(target_type))
    if isinstance(target_type, tuple):
        return any(isinstance_(obj, one) for one in target_type)
    kind, inner = get_origin(target_type), get_args(target_type)
    if kind is None or not inner:
        return isinstance(obj, target_type) if isinstance(target_type, type) else False
    if not isinstance(obj, kind):
        return False
    if isinstance(obj, dict):
        return all(isinstance_(k, inner[0]) and isinstance_(v, inner[1]) for k, v in obj.items())
    if isinstance(obj, tuple) and Ellipsis not in inner:
        return len(obj) == len(inner) and all(map(isinstance_, obj, inner))
    return not isinstance(obj, list | tuple) or all(isinstance_(one, inner[0]) for one in obj)


def load(*_: object, **__: object) -> NoReturn:
    """Refuse: a file of TorchScript holds code."""
    raise OneFlowError(
        "jit.load: a file of TorchScript holds code, which nothing here runs; make the module and "
        "load_state_dict() what PyTorch saved of it with torch.save(module.state_dict(), file)"
    )


def save(m: object, *_: object, **__: object) -> NoReturn:
    """Refuse: nothing here writes code into files."""
    raise OneFlowError(
        "jit.save: nothing here writes code into files; save the state_dict(), or write a job file "
        "with graph.export(file)"
    )


def fork(func: Callable[..., T], *args: object, **kwargs: object) -> Callable[[], T]:
    """Call the function at once; `wait` gives its result."""
    made = func(*args, **kwargs)
    return lambda: made


def wait(future: Callable[[], T]) -> T:
    """Return the result of `fork`."""
    return future()


def enable_onednn_fusion(enabled: bool) -> None:
    """Change nothing: `nn.Graph` fuses ops by itself."""


set_fusion_strategy = enable_onednn_fusion


class _Inert:
    """A block that changes nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


class fuser(_Inert):
    """A block that would choose how TorchScript fuses ops; nothing is compiled."""


class strict_fusion(_Inert):
    """A block that would insist on fused ops; nothing is compiled."""
