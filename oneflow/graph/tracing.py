"""The way from `build` to a traced graph: inputs become values, calls of ops become nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from oneflow.core.dispatch import is_traced
from oneflow.core.errors import GraphError, OneFlowError
from oneflow.core.location import (
    locate,
    package_file,
    user_location,
    user_stack,
    with_location,
)
from oneflow.graph.known import Known
from oneflow.graph.names import buffers_of
from oneflow.graph.precision import precision
from oneflow.graph.trace import Trace
from oneflow.graph.tree import Tree, map_tensors, tensors_of
from oneflow.nn.module import Module
from oneflow.optim.hooks import register_optimizer_step_pre_hook
from oneflow.tensor.grad_mode import no_grad, set_grad_enabled
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from oneflow.graph.spec import GraphSpec
    from oneflow.optim.optimizer import Optimizer


Build = Callable[..., Any]


class Traced(NamedTuple):
    """A trace, and the result of build, in which traced tensors stand."""

    trace: Trace
    outputs: Any


def trace_build(
    spec: GraphSpec,
    build: Build,
    given: Tree,
    *,
    num_pieces: int = 0,
    read_ahead: Sequence[Tensor] = (),
) -> Traced:
    """Traces `build`. given: (args, kwargs). The graph itself stays as it is.

    num_pieces: micro-batches, if not as many as `graph.config` says.  read_ahead: input that the
    graph's readers gave to an earlier trace, which no step has used.
    """
    pieces = num_pieces or spec.config.num_pieces
    trace = Trace(spec.name, pieces, Known(spec, read_ahead))
    if spec.debugging.stack is not None:
        trace.locate = partial(user_stack, *spec.debugging.stack)
    for parameter in spec.parameters():
        trace.hide_gradient(parameter)
    refusing = register_optimizer_step_pre_hook(_refuse_step)
    try:
        # Whether the first call is made inside no_grad() says nothing about the graph.
        with trace.active(), set_grad_enabled(True):
            return Traced(trace, _record(spec, build, trace, given))
    except OneFlowError as error:
        locate(error)
        raise
    finally:
        refusing.remove()
        trace.restore_gradients()
        trace.draws.close()


def _refuse_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """Refuse an optimizer's step in `build`: it would be one more update, with the learning rate
    and the number of the step that traced it. Other threads may go on.
    """
    if is_traced():
        name = type(optimizer).__name__
        raise with_location(
            GraphError(
                f"step() of {name} is called in build(), but a graph updates the parameters itself "
                "at the end of each step: leave the call out, and give the optimizer to "
                "add_optimizer()"
            )
        )


def _record(spec: GraphSpec, build: Build, trace: Trace, given: Tree) -> Any:
    """Run `build` and the optimizers, and return the result of `build`."""
    # Ops of build stand in lines of its own, all others in the line where it begins: that the graph
    # was called in another line makes no other graph of it.
    inside, place = trace.locate, place_of_build(build)
    outside = inside if spec.debugging.stack is not None else lambda: place
    trace.locate = outside
    traced = iter(
        [
            trace.pieces_of(f"input.{i}", x).requires_grad_(x.requires_grad)
            for i, x in enumerate(tensors_of(given))
        ]
    )
    args, kwargs = map_tensors(given, lambda _: next(traced))
    buffers = buffers_of(spec)
    for number in spec.scaler.tensors(spec.optimizers).values() if spec.scaler else ():
        trace.value_of(number)
    trace.locate = inside
    with precision(trace, spec.config.amp_dtype):
        outputs = build(*args, **kwargs)
    trace.locate = outside
    for module, name, buffer in buffers:
        _keep_buffer(module, name, buffer)
    if spec.optimizers and not any(o.has_gradients() for o in spec.optimizers):
        raise GraphError(
            f"graph {spec.name} has an optimizer, but build() gave no gradients; "
            "call backward() on the loss inside build()"
        )
    trace.end_build()
    for optimizer in spec.optimizers:
        optimizer.trace(trace)
    for i, x in enumerate(tensors_of(outputs)):
        trace.output(x, i)
    trace.forget_histories(tensors_of(outputs))
    return outputs


def place_of_build(build: Build) -> str:
    """`file:line` where `build` begins; of the user's call, if it is no function of the user's."""
    code = getattr(getattr(build, "__func__", build), "__code__", None)
    if code is None or package_file(code.co_filename):
        return user_location()
    return f"{code.co_filename}:{code.co_firstlineno}"


def _keep_buffer(module: Module, name: str, buffer: Tensor) -> None:
    """A buffer that forward() replaced (`self.count = self.count + 1`) is overwritten instead: the
    module keeps a tensor that has data.
    """
    new = module._buffers.get(name)
    if new is buffer or new is None or new.value is None:
        return
    module._buffers[name] = buffer
    if new.meta != buffer.meta:
        raise GraphError(
            f"buffer {name} of {type(module).__name__} is {buffer.meta}, but forward() sets it to "
            f"{new.meta}; in a graph a buffer keeps its shape and dtype"
        )
    with no_grad():
        buffer.copy_(new)
