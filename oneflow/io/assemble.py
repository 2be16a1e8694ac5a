"""The way from the form of a tree and the stored values back to objects, moved to where they are
wanted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from oneflow.core.device import Device
from oneflow.core.errors import CallError, CheckpointError, OneFlowError
from oneflow.core.json_values import Json
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp, Sbp, all_broadcast, as_nd_sbp
from oneflow.io.decoding import AsObjects, decode
from oneflow.io.safe_names import Names
from oneflow.kernels.array import Array
from oneflow.kernels.cuda_device import gpu_count
from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter
from oneflow.tensor.tensor import Tensor

MapLocation: TypeAlias = (
    "str | Device | Placement | tuple[Placement, Sbp | NdSbp] | dict[str, str] | Mover | None"
)
Mover: TypeAlias = "Callable[..., Tensor | MapLocation]"
"""A function of the tensor, or as in PyTorch of (the tensor, where it was saved from)."""


def assemble(
    form: Json,
    make: Callable[[str], Tensor],
    array_of: Callable[[str], Array],
    map_location: MapLocation,
    names: Names | None = None,
) -> Any:
    """Make the object. make, array_of: give the tensor or array of a name, and are asked once for
    each, in the order of the tree.  map_location: see `load`.  names: those of code that are
    followed; None: those that the caller listed.

    Each tensor is moved before the next is made. Raises CheckpointError.
    """
    tensors: dict[str, Tensor] = {}
    twins: dict[tuple[str, bool, bool], Tensor] = {}
    arrays: dict[str, Array] = {}

    def tensor(name: str, requires_grad: bool, is_parameter: bool, was_on_gpu: bool) -> Tensor:
        key = name, requires_grad, is_parameter
        if key not in twins:
            if name in tensors:
                x = _with_grad(tensors[name].detach(), requires_grad, name)
            else:
                x = _with_grad(make(name), requires_grad, name)
                returns = map_location is None and was_on_gpu and not x.is_global
                came_from = "cuda:0" if was_on_gpu else "cpu"
                x = moved(x, "cuda" if returns and gpu_count() else map_location, came_from)
                tensors[name] = x
            twins[key] = Parameter(x, requires_grad) if is_parameter else x
        return twins[key]

    def array(name: str) -> Array:
        if name not in arrays:
            arrays[name] = array_of(name)
        return arrays[name]

    return decode(form, tensor, array, AsObjects(names or Names()))


def names_in(form: Json) -> tuple[list[str], list[str]]:
    """List the names in a tree: of the tensors and of the arrays, each once and in order. Raises
    CheckpointError for a form that is none; nothing is made.
    """
    tensors: dict[str, None] = {}
    arrays: dict[str, None] = {}
    try:
        decode(form, lambda name, *_: tensors.setdefault(name), arrays.setdefault)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError("load: the structure is malformed") from error
    return list(tensors), list(arrays)


def _with_grad(x: Tensor, requires_grad: bool, name: str) -> Tensor:
    if requires_grad:
        try:
            x.requires_grad = True
        except OneFlowError as error:
            raise CheckpointError(f"load: tensor {name!r}: {error}") from error
    return x


def mapped(value: object, where: MapLocation) -> Any:
    """A whole object with every tensor moved, shared ones once; dicts and objects are changed in
    place.
    """
    return _Mover(where).mapped(value)


class _Mover:
    """Moves the tensors of one object."""

    def __init__(self, where: MapLocation) -> None:
        self._where = where
        self._known: dict[int, tuple[Any, Any]] = {}
        """Each value that was met, so that it stays alive, and its moved form, by `id`."""

    def mapped(self, value: object) -> Any:
        if id(value) in self._known:
            return self._known[id(value)][1]
        if isinstance(value, Tensor):
            made = moved(value, self._where)
            if isinstance(value, Parameter) and not isinstance(made, Parameter):
                made = Parameter(made.detach(), value.requires_grad)
            self._known[id(value)] = value, made
            return made
        if isinstance(value, tuple):
            parts = [self.mapped(v) for v in value]
            is_same = all(a is b for a, b in zip(parts, value, strict=True))
            return value if is_same else tuple.__new__(type(value), parts)
        self._inside(value)
        return value

    def _inside(self, value: object) -> None:
        self._known[id(value)] = value, value
        if isinstance(value, dict):
            for key in value:
                dict.__setitem__(value, key, self.mapped(value[key]))
        elif isinstance(value, list):
            value[:] = [self.mapped(v) for v in value]
        if (not isinstance(value, type) and not callable(value)) or isinstance(value, Module):
            own = getattr(value, "__dict__", {})
            for key in own:
                own[key] = self.mapped(own[key])


def moved(x: Tensor, where: MapLocation, came_from: str = "cpu") -> Tensor:
    """`x` in the place that map_location says; x itself for None. came_from: the device of which
    it was saved.
    """
    if isinstance(where, dict):
        where = where.get(came_from)
    if where is None:
        return x
    requires_grad = x.requires_grad
    layout = as_layout(where, x.sbp if x.is_global else None)
    if layout is not None:
        if x.is_global and layout == (x.placement, x.sbp):
            return x
        whole = x.detach() if x.is_global else _copies(x, layout[0])
        y = whole.to_global(placement=layout[0], sbp=layout[1])
    elif callable(where):
        answer = where(x, came_from) if _takes_two(where) else where(x)
        if not isinstance(answer, Tensor):
            return moved(x, answer)
        y = answer
    elif isinstance(where, (str, Device)):
        Device(where)  # refuses one that is none
        y = x.detach().to(where)
    else:
        raise CallError(
            "load: map_location is a device, a placement, (placement, sbp), a dict of devices, or "
            f"a function that gives one of them or a tensor, got {where!r}"
        )
    if requires_grad and y._grad_fn is None:
        y.requires_grad = True
    return y


def _takes_two(function: Mover) -> bool:
    """Whether it is a function of (storage, location), as PyTorch's are."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function of C without one
        return False
    try:
        signature.bind(None)
    except TypeError:
        return True
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = [p for p in signature.parameters.values() if p.kind in places]
    return len(given) == 2


def _copies(x: Tensor, placement: Placement) -> Tensor:
    """A local tensor is the whole, not a part."""
    copies: Tensor = x.detach().to_global(placement, all_broadcast(placement.ndim))
    return copies


def as_layout(where: MapLocation, nd_sbp: NdSbp | None) -> tuple[Placement, NdSbp] | None:
    """A placement, or (placement, sbp), as both; None for any other map_location.

    nd_sbp: how the tensor lies now, which it keeps if it fits; None for a local tensor.
    """
    if isinstance(where, Placement):
        fits = nd_sbp is not None and len(nd_sbp) == where.ndim
        return where, nd_sbp if fits and nd_sbp is not None else all_broadcast(where.ndim)
    if isinstance(where, tuple) and len(where) == 2 and isinstance(where[0], Placement):
        return where[0], as_nd_sbp(where[1], where[0].ndim)
    return None
