"""The default mode: runs each op at once. Local tensors here; global ones in eager_global.py.

What an op call needs (output types, kernel, workspace) depends on input types and attrs alone, so
it is found once and kept: a repeated call costs a dictionary look-up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oneflow.boxing.bound_op import BoundOp, bind
from oneflow.core.config import current_config
from oneflow.core.device import Device
from oneflow.core.dispatch import Mode, set_default_mode
from oneflow.core.errors import DeviceError, GraphError, OneFlowError
from oneflow.core.location import with_location
from oneflow.core.malloc import keep_freed_memory
from oneflow.core.op import Attr, Op, infer_types
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.cuda_device import use_device
from oneflow.tensor.convert import move
from oneflow.tensor.eager_global import create_global, run_global
from oneflow.tensor.relaying import relaid
from oneflow.tensor.tape import record
from oneflow.tensor.tensor import Tensor, cpu_device, raw
from oneflow.tensor.to_global import global_to_global, local_to_global
from oneflow.tensor.views import (
    SHARED,
    link_view,
    write_shared,
    write_through,
    write_whole,
)

MAX_CACHED_CALLS = 8192


_calls: dict[tuple[Any, ...], BoundOp] = {}


def prepare(
    op: type[Op], types: tuple[TensorType, ...], attrs: dict[str, Attr], device: str
) -> BoundOp:
    """Infers the types and binds the op to whole tensors. Raises what `op.infer` raises."""
    return bind(op, types, infer_types(op, types, attrs), attrs, device)


def cached_call(
    op: type[Op], types: tuple[TensorType, ...], attrs: dict[str, Attr], device: str
) -> BoundOp:
    """`prepare`, remembered. The seed of a random op is no part of the key: it differs in every
    call.
    """
    parts: list[Any] = [op, device]
    for t in types:
        parts.append(t.shape)
        parts.append(t.dtype)
    for name, value in attrs.items():
        if name != "seed":
            # 1, 1.0 and True are equal as keys but may mean different kernels or types
            parts.append((name, value, value.__class__))
    try:
        key = tuple(parts)
        call = _calls.get(key)
    except TypeError:  # an attr that cannot be hashed
        return prepare(op, types, attrs, device)
    if call is None:
        call = prepare(op, types, attrs, device)
        if len(_calls) >= MAX_CACHED_CALLS:
            _calls.clear()
        _calls[key] = call
    return call


class Eager(Mode):
    """Runs ops when they are called."""

    def run(self, op: type[Op], inputs: tuple[Tensor, ...], attrs: dict[str, Attr]) -> Any:
        device = None
        for x in inputs:
            if x._placement is not None:
                return run_global(op, inputs, attrs)
            if device is None:
                device = x._device
            elif x._device is not device and x._device != device:
                raise _device_mismatch(op, inputs)
            if x._array is None:
                raise _traced_outside(op, x)
        return run_local(op, inputs, attrs, device or cpu_device())

    def layout(self, x: Tensor, *, is_fixed: bool) -> NdSbp:
        """Raises GraphError: every eager tensor has a layout."""
        raise GraphError(
            f"the layout of {x.type}, a value of an nn.Graph under construction, is chosen when "
            "the graph is compiled; ask for .sbp inside build()"
        )

    def create(
        self,
        op: type[Op],
        attrs: dict[str, Attr],
        device: Device | None,
        placement: Placement | None,
        nd_sbp: NdSbp | None,
    ) -> Tensor:
        """Runs an op without inputs, on this rank's CPU unless another place is given."""
        if placement is None or nd_sbp is None:
            return run_local(op, (), attrs, device or cpu_device())  # type: ignore[no-any-return]
        return create_global(op, attrs, placement, nd_sbp)

    def lay_out(
        self,
        x: Tensor,
        placement: Placement | None,
        sbp: Any,
        *,
        grad_sbp: Any = None,
        check_meta: bool | None = None,
        copy: bool = False,
    ) -> Tensor:
        """See to_global.py."""
        if x._placement is None:
            return local_to_global(x, placement, sbp, check_meta is not False, copy)
        return global_to_global(x, placement, sbp, grad_sbp, check_meta, copy)

    def to_device(self, x: Tensor, device: Device) -> Tensor:
        """See convert.py."""
        return move(x, device)

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

    def store(self, x: Tensor, new: Tensor) -> None:
        """Copies the array of `new`, laid out as that of `x`, into that of `x`."""
        if x._array is None or new._array is None:
            kind = x.type if x._array is None else new.type
            raise with_location(
                GraphError(f"a tensor of a graph, {kind}, is used outside its build()")
            )
        layout = x._placement, x._sbp
        if x._placement is not None and layout != (new._placement, new._sbp):
            new = relaid(new, x.placement, x.sbp)
        if new._array is not x._array:
            x._array[...] = new._array


def run_local(
    op: type[Op], inputs: tuple[Tensor, ...], attrs: dict[str, Attr], device: Device
) -> Any:
    """Runs one op on local tensors of one device. device: also where an op without inputs puts its
    result.
    """
    call = cached_call(op, tuple([x.type for x in inputs]), attrs, device.type)
    arrays = [x._array for x in inputs]
    xp = np if device.type == "cpu" else use_device(device.index)
    if call.is_plain and op.num_outputs == 1:
        array = xp.empty(*call.outs[0])
        with np.errstate(all="ignore"):
            call.function(xp, array, *arrays, **call.attrs)
        out = raw(call.out_types[0], array, device)
        record(op, inputs, (out,), attrs)
        return out
    if call.view is not None:
        shared = call.view(*arrays, **call.attrs)
        if shared is not None:
            return _record_view(op, inputs, shared, call.out_types[0], attrs, device)
    with np.errstate(all="ignore"):
        results = call.run(xp, arrays, attrs["seed"] if op.is_random else 0)
    mutates = op.mutates
    outs = tuple(
        [
            _mutated(inputs[mutates[i]]) if i in mutates else raw(t, array, device)
            for i, (t, array) in enumerate(zip(call.out_types, results, strict=True))
        ]
    )
    record(op, inputs, outs, attrs)
    return outs[0] if op.num_outputs == 1 else outs


def _mutated(x: Tensor) -> Tensor:
    x._version[0] += 1
    return x


def _record_view(
    op: type[Op],
    inputs: tuple[Tensor, ...],
    array: Any,
    out_type: TensorType,
    attrs: dict[str, Attr],
    device: Device,
) -> Tensor:
    """The view of an input that shares its memory."""
    out = raw(out_type, array, device)
    link_view(op, inputs[0], out, attrs, own=False)
    record(op, inputs, (out,), attrs)
    return out


def _device_mismatch(op: type[Op], inputs: tuple[Tensor, ...]) -> OneFlowError:
    devices = ", ".join(dict.fromkeys(str(x._device) for x in inputs))
    return DeviceError(
        f"{op.name}: Expected all tensors to be on the same device, but found at least two "
        "devices, "
        f"{devices}! Move them with .to(device)"
    )


def _traced_outside(op: type[Op], x: Tensor) -> OneFlowError:
    return GraphError(
        f"{op.name}: {x.type} is a value of an nn.Graph under construction and has no data "
        "outside build()"
    )


if current_config().keep_freed_memory:
    keep_freed_memory()
set_default_mode(Eager())
