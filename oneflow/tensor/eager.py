"""The default mode: runs each op at once. Local tensors here; global ones in eager_global.py.

The output types, kernel and workspace of an op call depend on input types and attrs alone, so they
are found once and kept: a repeated call costs a dictionary look-up.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from oneflow.boxing.bound_op import BoundOp, bind
from oneflow.core.config import current_config, warn_of_unread
from oneflow.core.device import META, Device, chosen_device, require_kind
from oneflow.core.dispatch import Mode, set_default_mode
from oneflow.core.errors import (
    AutogradError,
    BatchingError,
    DeviceError,
    GraphError,
    OneFlowError,
)
from oneflow.core.location import with_location
from oneflow.core.malloc import keep_freed_memory
from oneflow.core.op import Op, infer_types
from oneflow.core.operand import Attrs
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp, SbpLike
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array
from oneflow.kernels.hardware import array_module
from oneflow.kernels.quiet import run_quietly
from oneflow.tensor import on_ranks
from oneflow.tensor.convert import move
from oneflow.tensor.devices import without_values
from oneflow.tensor.grad_mode import state
from oneflow.tensor.redistribution import relaid
from oneflow.tensor.tape import record
from oneflow.tensor.tensor import Tensor, cpu_device, raw
from oneflow.tensor.views import (
    SHARED,
    link_detached,
    link_view,
    require_single_places,
    write_shared,
    write_through,
    write_whole,
)

MAX_CACHED_CALLS = 8192


_calls: dict[tuple[Any, ...], BoundOp] = {}
_known: WeakValueDictionary[TensorType, TensorType] = WeakValueDictionary()
"""Types by value: one object of each, so that `_calls` is found by their identities, which are
quick to hash. A call in there holds its types, so an identity never changes hands; a type that a
tensor or a gradient's program holds stays the one of its value when `_calls` is emptied."""


def prepare(op: type[Op], types: tuple[TensorType, ...], attrs: Attrs, device: str) -> BoundOp:
    """Infer the types and bind the op to whole tensors. Raises the errors of `op.infer`."""
    warn_of_unread()
    require_kind(device)
    attrs = op.defaults | attrs
    out_types = tuple([_known.setdefault(t, t) for t in infer_types(op, types, attrs)])
    return bind(op, types, out_types, attrs, "cpu" if device == META else device)


def _find_call(op: type[Op], inputs: tuple[Tensor, ...], attrs: Attrs, key: list[Any]) -> BoundOp:
    """Looks by value; then the inputs hold the known types, and are found quickly.

    key: the device's kind, the op, the identity of each type, the attrs but for the seed of a
    random op, which differs in every call.
    """
    if len(_calls) >= MAX_CACHED_CALLS:
        _calls.clear()
    for i, x in enumerate(inputs):
        x.meta = _known.setdefault(x.meta, x.meta)
        key[2 + i] = id(x.meta)
    types = tuple([x.meta for x in inputs])
    try:
        found = _calls.get(tuple(key))
    except TypeError:  # an attr that cannot be hashed
        return prepare(op, types, attrs, key[0])
    if found is None:
        found = _calls[tuple(key)] = prepare(op, types, attrs, key[0])
    return found


class Eager(Mode):
    """Runs ops when they are called."""

    replays = True

    def run(self, op: type[Op], inputs: tuple[Tensor, ...], attrs: Attrs) -> Any:
        """Most calls are of one kernel on the CPU that makes one array. Their way is written out
        here: a function less is 0.2 us of the 4 that an op costs besides its kernel.
        """
        device = None
        key: list[Any] = ["", op]
        arrays = []
        for x in inputs:
            if x._placement is not None:
                return on_ranks.run_global(op, inputs, op.defaults | attrs)
            if x._device is not device:
                if device is None:
                    device = x._device
                elif x._device != device:
                    raise _device_mismatch(op, inputs)
            array = x._array
            if array is None:
                raise _traced_outside(op, x)
            arrays.append(array)
            key.append(id(x.meta))
        if device is None:
            device = chosen_device() or cpu_device()
        call = bound_call(op, inputs, attrs, device, key)
        if not call.is_plain or device.type != "cpu" or op.num_outputs != 1:
            return _run_any(op, call, inputs, arrays, attrs, device)
        array = np.empty(*call.outs[0])
        run_quietly(call.function, np, array, *arrays, **call.keywords)
        out = raw(call.out_types[0], array, device)
        if state.enabled:
            record(op, inputs, (out,), call.attrs, call)
        return out

    def layout(self, x: Tensor, *, is_fixed: bool) -> NdSbp:
        """Raises GraphError: every eager tensor has a layout."""
        raise GraphError(
            f"the layout of {x.meta}, a value of an nn.Graph under construction, is chosen when "
            "the graph is compiled; ask for .sbp inside build()"
        )

    def create(
        self,
        op: type[Op],
        attrs: Attrs,
        device: Device | None,
        placement: Placement | None,
        nd_sbp: NdSbp | None,
    ) -> Tensor:
        """Runs an op without inputs, on this rank's CPU unless another place is given."""
        if placement is None or nd_sbp is None:
            device = device or chosen_device() or cpu_device()
            call = bound_call(op, (), attrs, device, ["", op])
            made: Tensor = _run_any(op, call, (), [], attrs, device)
            return made
        return on_ranks.create_global(op, attrs, placement, nd_sbp)

    def lay_out(
        self,
        x: Tensor,
        placement: Placement | None,
        sbp: SbpLike | None,
        *,
        grad_sbp: SbpLike | None = None,
        check_meta: bool | None = None,
        copy: bool = False,
    ) -> Tensor:
        """See to_global.py."""
        if x._placement is None:
            return on_ranks.local_to_global(x, placement, sbp, check_meta is not False, copy)
        return on_ranks.global_to_global(x, placement, sbp, grad_sbp, check_meta, copy)

    def to_device(self, x: Tensor, device: Device, non_blocking: bool = False) -> Tensor:
        """See convert.py."""
        return move(x, device, non_blocking)

    def write(self, x: Tensor, new: Tensor) -> None:
        """See views.py. `x` keeps its layout."""
        if x._placement is not None and (new._placement, new._sbp) != (x._placement, x._sbp):
            new = relaid(new, x.placement, x.sbp)
        view = x._extra.view if x._extra is not None else None
        if view is None:
            write_whole(self, x, new)
        elif view.taken_at == SHARED:
            write_shared(self, x, view, new)
        else:
            write_through(self, x, view, new)

    def share(self, x: Tensor, other: Tensor) -> None:
        """See views.py."""
        link_detached(x, other)

    def store(self, x: Tensor, new: Tensor) -> None:
        """Copies the array of `new`, laid out as that of `x`, into that of `x`."""
        if x._array is None or new._array is None:
            kind = x.meta if x._array is None else new.meta
            raise with_location(
                GraphError(f"a tensor of a graph, {kind}, is used outside its build()")
            )
        layout = x._placement, x._sbp
        if x._placement is not None and layout != (new._placement, new._sbp):
            new = relaid(new, x.placement, x.sbp)
        if new._array is not x._array and x._device.type != META:
            if 0 in x._array.strides:
                require_single_places(x._array)
            try:
                x._array[...] = new._array
            except ValueError:
                raise AutogradError(
                    f"{x.meta} cannot be written to: it shares the memory of an array that is "
                    "read-only; write to a copy (x.clone())"
                ) from None


def bound_call(
    op: type[Op],
    inputs: tuple[Tensor, ...],
    attrs: Attrs,
    device: Device,
    key: list[Any],
) -> BoundOp:
    """The kernel of a call. key: of `_find_call`, but for the device's kind and the attrs."""
    key[0] = device.type
    for name, value in attrs.items():
        if name != "seed":
            # 1, 1.0 and True are equal as keys but may mean different kernels or types; so are
            # 0.0 and -0.0, which their texts tell apart.
            kind = value.__class__
            key += (name, value, kind if kind is not float or value else repr(value))
    try:
        return _calls[tuple(key)]
    except (KeyError, TypeError):
        pass  # searched below: an error there would show the missing key as its context
    return _find_call(op, inputs, attrs, key)


def _run_any(
    op: type[Op],
    call: BoundOp,
    inputs: tuple[Tensor, ...],
    arrays: list[Any],
    attrs: Attrs,
    device: Device,
) -> Any:
    """Run any op, also one that makes views, overwrites, is random, has other than one output, or
    runs on a GPU.

    device: also where an op without inputs puts its result.
    """
    if device.type == META:
        return _types_only(op, call, inputs, device)
    attrs = {**call.attrs, **attrs} if op.is_random else call.attrs
    for i in op.mutates.values():
        if 0 in arrays[i].strides:
            require_single_places(arrays[i])
    xp = np if device.type == "cpu" else array_module(device.type, device.index)
    if call.view is not None:
        shared = call.view(*arrays, **attrs)
        if shared is not None:
            return record_view(op, inputs, shared, call, device)
    results = run_quietly(call.run, xp, arrays, attrs["seed"] if op.is_random else 0)
    outs: list[Tensor] = []
    for i, array in enumerate(results):
        if i in op.mutates:
            outs.append(_mutated(inputs[op.mutates[i]]))
        else:
            outs.append(raw(call.out_types[i], array, device))
    if state.enabled:
        is_repeatable = device.type == "cpu" and not (op.is_random or op.mutates)
        record(op, inputs, outs, attrs, call if is_repeatable else None)
    return outs[0] if op.num_outputs == 1 else tuple(outs)


def _types_only(
    op: type[Op], call: BoundOp, inputs: tuple[Tensor, ...], device: Device
) -> Tensor | tuple[Tensor, ...]:
    """The outputs of an op on `meta`: shapes and dtypes. They take part in no backward pass."""
    outs = [
        _mutated(inputs[op.mutates[i]])
        if i in op.mutates
        else raw(type_, without_values(type_.shape, type_.dtype.np), device)
        for i, type_ in enumerate(call.out_types)
    ]
    return outs[0] if op.num_outputs == 1 else tuple(outs)


def _mutated(x: Tensor) -> Tensor:
    x._version[0] += 1
    return x


def record_view(
    op: type[Op], inputs: tuple[Tensor, ...], array: Array, call: BoundOp, device: Device
) -> Tensor:
    """The view of an input that shares its memory."""
    out = raw(call.out_types[0], array, device)
    link_view(op, inputs[0], out, call.attrs, own=False)
    record(op, inputs, (out,), call.attrs, call if device.type == "cpu" else None)
    return out


def _device_mismatch(op: type[Op], inputs: tuple[Tensor, ...]) -> OneFlowError:
    devices = ", ".join(dict.fromkeys(str(x._device) for x in inputs))
    return DeviceError(
        f"{op.name}: Expected all tensors to be on the same device, but found at least two "
        "devices, "
        f"{devices}! Move them with .to(device)"
    )


def _traced_outside(op: type[Op], x: Tensor) -> OneFlowError:
    if hasattr(x.value, "refuse"):
        return BatchingError(
            f"{op.name}: {x.meta} is a tensor of one sample inside vmap and has no data outside of "
            "the function; return it from the function"
        )
    return GraphError(
        f"{op.name}: {x.meta} is a value of an nn.Graph under construction and has no data "
        "outside build()"
    )


if current_config().keep_freed_memory:
    keep_freed_memory()
EAGER = Eager()
EAGER.replays = not current_config().waits_for_kernels
set_default_mode(EAGER)
