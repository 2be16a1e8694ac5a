"""User-defined functions with their own backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, ParamSpec, TypeVar

from oneflow.core.errors import AutogradError, CallError, DTypeError, ShapeError
from oneflow.core.tensor_type import TensorType
from oneflow.ops.cast import cast
from oneflow.ops.reduce import sum_to_shape
from oneflow.tensor.creation_like import filled_like
from oneflow.tensor.grad_mode import no_grad, state
from oneflow.tensor.inplace import overwrite
from oneflow.tensor.tape import kept, record_call
from oneflow.tensor.tensor import Tensor, alias

P = ParamSpec("P")
R = TypeVar("R")


class FunctionCtx:
    """The context that forward and backward share. Any attribute may be set on it."""

    def __init__(self) -> None:
        self._saved: tuple[tuple[Tensor, int] | partial[Tensor] | None, ...] = ()
        self._non_differentiable: tuple[int, ...] = ()
        self._dirty: tuple[int, ...] = ()
        self._materializes = True
        self._is_released = False
        self.needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keeps tensors (or None) for backward. Writing to them in place later is found out
        there.
        """
        hooks = state.saved_hooks
        if hooks:
            pack, unpack = hooks[-1]
            self._saved = tuple(None if t is None else partial(unpack, pack(t)) for t in tensors)
            return
        self._saved = tuple(None if t is None else (t, t._version[0]) for t in tensors)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors given to `save_for_backward`. Raises AutogradError if one has been written to
        since.
        """
        if self._is_released:
            raise AutogradError(
                "Trying to backward through the graph a second time, but the buffers have already "
                "been freed: saved_tensors of a Function. Please specify retain_graph=True when "
                "calling backward or autograd.grad the first time."
            )
        return tuple(None if s is None else _unpack(s) for s in self._saved)

    def _release(self) -> None:
        """Forget the saved tensors: a backward pass is over."""
        self._is_released, self._saved = bool(self._saved), ()

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """These outputs of forward do not require a gradient."""
        self._non_differentiable = tuple(id(t) for t in outputs)

    def mark_dirty(self, *inputs: Tensor) -> None:
        """These inputs were written to in place by forward, which returns them: they get this
        function as their history.
        """
        self._dirty = tuple(id(t) for t in inputs)

    def set_materialize_grads(self, value: bool) -> None:
        """Whether backward gets zeros (True) or None for an output whose gradient is not known."""
        self._materializes = bool(value)


def _unpack(saved: tuple[Tensor, int] | partial[Tensor]) -> Tensor:
    if isinstance(saved, partial):
        return saved()
    what, version = saved
    if what._version[0] != version:
        raise AutogradError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: a {what.meta} given to save_for_backward"
        )
    return what


def _no_forward(*_: object) -> None:
    raise AutogradError("a Function needs a static method forward(ctx, ...)")


def _no_backward(*_: object) -> None:
    raise AutogradError("a Function needs a static method backward(ctx, ...)")


class Function:
    """Subclass it with static methods `forward(ctx, *args)` and `backward(ctx, *grads)`, and call
    `apply`.
    """

    forward: ClassVar[Callable[..., Any]] = staticmethod(_no_forward)
    backward: ClassVar[Callable[..., Any]] = staticmethod(_no_backward)
    setup_context: ClassVar[Callable[..., Any] | None] = None
    """`setup_context(ctx, inputs, output)`: then forward is called without the context."""

    def __call__(self, *args: object) -> Any:
        return self.apply(*args)

    @classmethod
    def apply(cls, *args: object) -> Any:
        """Runs forward and records backward."""
        ctx = FunctionCtx()
        inputs = [a for a in args if isinstance(a, Tensor)]
        ctx.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        with no_grad():
            if cls.setup_context is None:
                made = cls.forward(ctx, *args)
            else:
                made = cls.forward(*args)
                cls.setup_context(ctx, args, made)
        single = not isinstance(made, tuple | list)
        results: Sequence[Any] = (made,) if single else tuple(made)
        # A result that is an input (or has a history) becomes a tensor of its own.
        outs = [
            _as_output(r, inputs)
            if isinstance(r, Tensor) and id(r) not in ctx._non_differentiable
            else r
            for r in results
        ]
        live = [o for o in outs if isinstance(o, Tensor) and id(o) not in ctx._non_differentiable]
        # Aliases: the outputs themselves will hold the node that holds this function.
        places = {id(t): (k, alias(t)) for k, t in enumerate(live)}
        slots = [places.get(id(o)) for o in outs]

        def backward(grads: Sequence[Tensor | None]) -> list[Any]:
            given = [None if s is None else grads[s[0]] for s in slots]
            if ctx._materializes:
                given = [
                    filled_like(s[1], 0) if g is None and s is not None else g
                    for g, s in zip(given, slots, strict=True)
                ]
            return _backward(cls, ctx, types, given)

        types = [a.meta if isinstance(a, Tensor) else None for a in args]

        def release() -> None:
            ctx._release()
            for _, y in places.values():
                y._array = kept(y).stand_in()._array

        record_call(cls.__name__, inputs, live, backward, on_release=release)
        for k, result in enumerate(results):
            if id(result) in ctx._dirty and outs[k] is not result:
                outs[k] = overwrite(result, outs[k])
        return outs[0] if single else tuple(outs)


def _as_output(result: Tensor, inputs: list[Tensor]) -> Tensor:
    return alias(result) if any(result is x for x in inputs) or result._requires_grad else result


def _backward(
    cls: type[Function],
    ctx: FunctionCtx,
    types: Sequence[TensorType | None],
    grads: Sequence[Tensor | None],
) -> list[Any]:
    """Calls the user's backward with one gradient per output and keeps those of the tensor
    inputs.

    types: of the arguments that are tensors.
    """
    made = cls.backward(ctx, *grads)
    results = list(made) if isinstance(made, tuple | list) else [made]
    while len(results) > len(types) and results[-1] is None:
        results.pop()
    name = f"{cls.__name__}Backward"
    if len(results) != len(types):
        raise AutogradError(
            f"function {name} returned an incorrect number of gradients (expected {len(types)}, "
            f"got {len(results)}): return one per input of forward, None where there is none"
        )
    for position, (type_, result) in enumerate(zip(types, results, strict=True), 1):
        if type_ is None and result is not None:
            raise AutogradError(
                f"function {name} returned a gradient different than None at position {position}, "
                "but the corresponding forward input was not a Variable"
            )
    return [
        _fitted(name, i, result, type_) if ctx.needs_input_grad[i] else None
        for i, (type_, result) in enumerate(zip(types, results, strict=True))
        if type_ is not None
    ]


def _fitted(name: str, index: int, grad: object, wanted: TensorType) -> Tensor | None:
    """A gradient in the type of its input: summed over the dims along which it is broadcast."""
    if grad is None:
        return None
    if not isinstance(grad, Tensor):
        raise CallError(
            f"expected Variable or None (got {type(grad).__name__}): {name} must return a Tensor "
            f"or None for input {index}"
        )
    if grad.meta.shape != wanted.shape:
        if not _is_broadcast(wanted.shape, grad.meta.shape):
            raise ShapeError(
                f"Function {name} returned an invalid gradient at index {index} - got "
                f"{list(grad.meta.shape)} but expected shape compatible with {list(wanted.shape)}"
            )
        grad = sum_to_shape(grad, wanted.shape)
    if grad.meta.dtype is not wanted.dtype:
        if grad.meta.dtype.is_complex and not wanted.dtype.is_complex:
            raise DTypeError(
                f"Function {name} returned an invalid gradient at index {index} - got "
                f"{grad.meta.dtype} for an input of {wanted.dtype}; return its real part"
            )
        grad = cast(grad, dtype=wanted.dtype)
    return grad


def _is_broadcast(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether broadcasting `shape` can give the shape `to`."""
    tail = to[len(to) - len(shape) :] if len(shape) <= len(to) else None
    return tail is not None and all(a in (1, b) for a, b in zip(shape, tail, strict=True))


def once_differentiable(backward: Callable[P, R]) -> Callable[P, R]:
    """Marks a backward that cannot itself be differentiated."""

    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with no_grad():
            return backward(*args, **kwargs)

    return wrapped
