"""The mode inside `vmap`: tensors stand for one sample, and each op runs once for all samples.

A call is lifted (lifting.py): made of the tensors of all samples, by the mode below. That mode
records it on the tape where those have a history, and so gradients of all samples flow to tensors
outside. Beside it the call is recorded as one of a sample: gradients that the function itself asks
for are computed sample by sample, all at once. The two histories do not know of each other, just as
`grad` inside `vmap` and `vmap` inside `grad` differ.

A tensor of a sample has a value, not memory: a write to it, or to a view of it, gives it another.
Tensors from outside, and those that no sample has a part in, are as elsewhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from oneflow.core.device import Device
from oneflow.core.dispatch import Mode, ModeAbove, call, current_mode, swap_mode, use_mode
from oneflow.core.draws import mix_seed
from oneflow.core.errors import AutogradError, BatchingError
from oneflow.core.op import Op, find_op
from oneflow.core.operand import Attrs
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp, SbpLike
from oneflow.ops import unary
from oneflow.ops.compare import scalar_compare
from oneflow.ops.reduce import reduce_sum
from oneflow.ops.scalar import scalar_mul
from oneflow.ops.where import masked_fill
from oneflow.tensor.batching.lifting import (
    AS_IS,
    InFront,
    Lift,
    Within,
    find_lift,
    lengthened,
    lifted_attrs,
)
from oneflow.tensor.batching.rules import OF_WHOLES, WRITTEN, results_of
from oneflow.tensor.batching.values import (
    DIFFERENT,
    ERROR,
    SAME,
    Batched,
    Level,
    from_front,
    repeated,
    sample_of,
    set_whole,
    shaped,
    with_front,
)
from oneflow.tensor.tape import CallNode, record, record_call
from oneflow.tensor.tensor import Tensor, alias
from oneflow.tensor.views import (
    copies,
    link_detached,
    link_view,
    refresh,
    view_of,
    write_through,
    write_whole,
)

_looped: set[str] = set()


class BatchingWarning(UserWarning):
    """An op inside `vmap` runs once for each sample; the text names it."""


class Batching(ModeAbove):
    """The mode of one level, above the one that `vmap` was called in."""

    replays = False
    call_module = None
    scale_gradient = None

    def __init__(self, inner: Mode, level: Level) -> None:
        super().__init__(inner)
        self.level = level
        self._records = True

    # ---- tensors of a sample ---------------------------------------------------------------------

    def has_own(self, x: Tensor) -> bool:
        """Whether samples have values of their own of `x`."""
        value = x.value
        return value.__class__ is Batched and value.level is self.level and value.is_split

    def is_here(self, x: Tensor) -> bool:
        """Whether `x` is a tensor of this level."""
        return x.value.__class__ is Batched and x.value.level is self.level

    def whole(self, x: Tensor) -> Tensor:
        """Return the tensor of all samples; one that they share as it is."""
        if not self.is_here(x):
            return x
        if x._extra is not None:
            refresh(x)
        found: Tensor = x.value.whole
        return found

    def split_whole(self, x: Tensor) -> Tensor:
        """Return the tensor of all samples, which has them in dim 0."""
        found = self.whole(x)
        if self.has_own(x):
            return found
        with self.wholes():
            return repeated(found, self.level.size)

    @contextmanager
    def wholes(self) -> Iterator[None]:
        """Ops of this thread run on tensors of all samples."""
        with use_mode(self.inner):
            yield

    def enter_samples(self, whole: Tensor) -> Tensor:
        """Return the tensor of a sample of one from outside, which has the samples in dim 0. It
        requires a gradient if that does, whose history goes on below.
        """
        x = sample_of(self.level, whole)
        if whole.requires_grad:
            x._requires_grad, x._grad_fn = True, CallNode("vmap", (), 1, lambda grads: ())
        return x

    def enter(self, x: Tensor) -> Tensor:
        """Return a tensor from outside, which all samples share, as one of this level."""
        if self.is_here(x):
            return x
        made = sample_of(self.level, x, False)
        with self._unrecorded():
            record_call("vmap", (x,), (made,), lambda grads: grads)
        return made

    @contextmanager
    def _unrecorded(self) -> Iterator[None]:
        """A block whose calls are not recorded a second time, on the other level."""
        before, self._records = self._records, False
        try:
            yield
        finally:
            self._records = before

    # ---- running ---------------------------------------------------------------------------------

    def run(self, op: type[Op], inputs: tuple[Tensor, ...], attrs: Attrs) -> Any:
        """Run an op for all samples."""
        attrs = op.defaults | attrs
        split = tuple([self.has_own(x) for x in inputs])
        if op.is_random:
            made, are_split = self._draw(op, inputs, split, attrs)
        elif True in split:
            made, are_split = self._lift(op, inputs, split, attrs), True
        else:
            wholes = [self.whole(x) for x in inputs]
            made, are_split = self._call(op, wholes, attrs), False
            if not any(map(self.is_here, inputs)):
                return made[0] if op.num_outputs == 1 else made
        outs = tuple(
            [
                self._mutated(inputs[op.mutates[i]], y, are_split)
                if i in op.mutates
                else sample_of(self.level, y, are_split)
                for i, y in enumerate(made)
            ]
        )
        if self._records:
            record(op, inputs, outs, attrs)
            if op.is_view and self.is_here(inputs[0]) and not copies(op, inputs[0], attrs):
                link_view(op, inputs[0], outs[0], attrs, own=True)
        return outs[0] if op.num_outputs == 1 else outs

    def _call(self, op: type[Op], wholes: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
        before = swap_mode(self.inner)
        try:
            return results_of(call(op, *wholes, **attrs))
        finally:
            swap_mode(before)

    def _lift(
        self, op: type[Op], inputs: tuple[Tensor, ...], split: tuple[bool, ...], attrs: Attrs
    ) -> tuple[Tensor, ...]:
        """The results of all samples, which are their dim 0."""
        lift = find_lift(op, tuple([x.meta for x in inputs]), split, attrs)
        if lift is not None:
            return self._lifted(op, lift, inputs, attrs)
        if op.name in OF_WHOLES:
            wholes = [self.split_whole(x) for x in inputs]
            with self.wholes():
                return results_of(OF_WHOLES[op.name](*wholes, **attrs))
        written = WRITTEN.get(op.name) or (op.written if op.num_outputs == 1 else None)
        if written is not None:
            with self._unrecorded():
                return tuple(map(self.split_whole, results_of(written(*inputs, **attrs))))
        if op.name not in _looped:
            _looped.add(op.name)
            warnings.warn(
                f"vmap: {op.name} runs once for each sample, which costs time: it has no rule for "
                "all samples at once",
                BatchingWarning,
                stacklevel=2,
            )
        return self._loop(op, inputs, split, [attrs] * self.level.size)

    def _lifted(
        self, op: type[Op], lift: Lift, inputs: tuple[Tensor, ...], attrs: Attrs
    ) -> tuple[Tensor, ...]:
        size = self.level.size
        wholes = [
            self.whole(x) if at == AS_IS else self.split_whole(x)
            for x, at in zip(inputs, lift.operands, strict=True)
        ]
        with self.wholes():
            if isinstance(lift, InFront):
                wholes = list(map(_with_rank, wholes, lift.operands))
                attrs = lifted_attrs(attrs, lift.form, size)
            else:
                wholes = list(map(_joined, wholes, lift.operands))
            for i in op.mutates.values():
                wholes[i] = unary.copy(wholes[i])
            made = results_of(call(op, *wholes, **attrs))
            if isinstance(lift, Within):
                made = tuple([_cut(y, d, size) for y, d in zip(made, lift.results, strict=True)])
        return made

    def _loop(
        self,
        op: type[Op],
        inputs: tuple[Tensor, ...],
        split: tuple[bool, ...],
        attrs: Sequence[Attrs],
    ) -> tuple[Tensor, ...]:
        """attrs: of each sample."""
        wholes = [self.whole(x) for x in inputs]
        with self.wholes():
            rows = []
            for number, own in enumerate(attrs):
                given = [_sample(x, number) if s else x for x, s in zip(wholes, split, strict=True)]
                for i in op.mutates.values():
                    given[i] = unary.copy(given[i])
                rows.append(results_of(call(op, *given, **own)))
            return tuple([_stacked(column) for column in zip(*rows, strict=True)])

    def _mutated(self, x: Tensor, whole: Tensor, is_split: bool) -> Tensor:
        """An operand that an op has overwritten."""
        if self.is_here(x):
            set_whole(x, self.level, whole, is_split)
        elif is_split:
            self._refuse_writing(x)
        x._version[0] += 1
        return x

    # ---- random numbers --------------------------------------------------------------------------

    def _draw(
        self, op: type[Op], inputs: tuple[Tensor, ...], split: tuple[bool, ...], attrs: Attrs
    ) -> tuple[tuple[Tensor, ...], bool]:
        self._check_draw(op)
        if self.level.randomness == DIFFERENT:
            return self._lift(op, inputs, (True,) * len(inputs), attrs), True
        wholes = [self.whole(x) for x in inputs]
        if True not in split:
            return self._call(op, wholes, attrs), False
        if op.name == "dropout":
            return (self._dropout_alike(inputs[0], attrs),), True
        return self._loop(op, inputs, split, [attrs] * self.level.size), True

    def _dropout_alike(self, x: Tensor, attrs: Attrs) -> Tensor:
        """Every sample with the elements of one mask dropped."""
        whole = self.whole(x)
        with self.wholes():
            ones = unary.full_like(_sample(whole, 0), value=1)
            (one,) = self._call(find_op("dropout"), [ones], attrs)
            scaled: Tensor = call(find_op("mul"), whole, one.detach())
            dropped = scalar_compare(one, value=0, kind="eq")
            made: Tensor = masked_fill(scaled, repeated(dropped, self.level.size), value=0)
        return made

    def _check_draw(self, op: type[Op]) -> None:
        if self.level.randomness == ERROR:
            raise BatchingError(
                f"vmap: {op.name} draws random numbers while in randomness error mode; say "
                "vmap(..., randomness='different') or 'same', or draw them outside"
            )

    def create(
        self,
        op: type[Op],
        attrs: Attrs,
        device: Device | None,
        placement: Placement | None,
        nd_sbp: NdSbp | None,
    ) -> Any:
        """Run an op without operands: once for all samples, unless it draws numbers for each."""
        if op.is_random:
            self._check_draw(op)
        if not op.is_random or self.level.randomness == SAME:
            # As one of a sample it can be overwritten by values of each sample.
            return self.enter(self.inner.create(op, attrs, device, placement, nd_sbp))
        if "shape" in attrs:
            more = {**attrs, "shape": (self.level.size, *attrs["shape"])}
            return sample_of(self.level, self.inner.create(op, more, device, placement, nd_sbp))
        if self.inner.draws is not None:
            raise BatchingError(f"vmap: {op.name} inside a graph cannot differ between samples")
        with self.wholes():
            rows = [
                self.inner.create(
                    op, {**attrs, "seed": mix_seed(attrs["seed"], i)}, device, placement, nd_sbp
                )
                for i in range(self.level.size)
            ]
            return sample_of(self.level, _stacked(rows))

    # ---- writing ---------------------------------------------------------------------------------

    def write(self, x: Tensor, new: Tensor) -> None:
        """Give `x`, and the tensor of which it is a view, other values (views.py)."""
        if not self.is_here(x):
            if self.has_own(new):
                self._refuse_writing(x)
            with self.wholes():
                self.inner.write(x, self.whole(new))
        elif (view := view_of(x)) is None:
            write_whole(self, x, new)
        else:
            write_through(self, x, view, new)

    def store(self, x: Tensor, new: Tensor) -> None:
        """Give `x` alone the values of `new`."""
        if self.is_here(x):
            set_whole(x, self.level, self.whole(new), self.has_own(new))
        elif self.has_own(new):
            self._refuse_writing(x)
        else:
            self.inner.store(x, self.whole(new))

    def _refuse_writing(self, x: Tensor) -> NoReturn:
        raise BatchingError(
            f"vmap: {x.meta} is one tensor for all {self.level.size} samples, so a value that each "
            "sample has of its own cannot be written into it (an inplace operation is not possible "
            "there); write into flow.zeros_like(...) of a tensor of a sample, or use operations "
            "that return a new tensor"
        )

    def share(self, x: Tensor, other: Tensor) -> None:
        """Cut `other`, a detached `x`, off from the histories of both levels."""
        if not self.is_here(x):
            self.inner.share(x, other)
            return
        with self.wholes():
            other.value = x.value._replace(whole=self.whole(x).detach())
        link_detached(x, other)

    # ---- moving ----------------------------------------------------------------------------------

    def to_device(self, x: Tensor, device: Device, non_blocking: bool = False) -> Tensor:
        """Move all samples."""
        if not self.is_here(x):
            return self.inner.to_device(x, device, non_blocking)
        with self.wholes():
            moved = self.inner.to_device(self.whole(x), device, non_blocking)
        out = sample_of(self.level, moved, self.has_own(x))
        home = x._device
        with self._unrecorded():
            record_call("to", (x,), (out,), lambda grads: [self.to_device(grads[0], home)])
        return out

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
        """Raise BatchingError for a tensor of a sample, which has no layout over ranks."""
        if self.is_here(x):
            raise BatchingError(
                f"vmap: {x.meta}, a tensor of one sample, cannot become a global tensor; lay out "
                "the whole batch outside"
            )
        return self.inner.lay_out(
            x, placement, sbp, grad_sbp=grad_sbp, check_meta=check_meta, copy=copy
        )

    # ---- histories -------------------------------------------------------------------------------

    def check_backward(self) -> None:
        """Raise AutogradError: `.grad` of a tensor outside would get the gradients of samples."""
        raise AutogradError(
            "vmap: backward() inside adds to .grad, which all samples share; use torch.func.grad "
            "or torch.autograd.grad, which return gradients"
        )

    def record_below(
        self,
        name: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        backward: Callable[[list[Any]], Sequence[Any]],
    ) -> None:
        """Record a call that is of no op, as custom functions are, for all samples, too."""
        wholes = [self.whole(x) for x in inputs]
        if not self._records or not any(x.requires_grad for x in wholes):
            return
        split = [self.has_own(x) for x in inputs], [self.has_own(y) for y in outputs]
        made = []
        for y in outputs:
            made.append(alias(self.whole(y)))
            if self.is_here(y):
                y.value = y.value._replace(whole=made[-1])
        level = self.level

        def backward_of_all(grads: list[Any]) -> list[Any]:
            mode = Batching(current_mode(), level)
            with use_mode(mode):
                given = [
                    None if g is None else sample_of(level, g, s)
                    for g, s in zip(grads, split[1], strict=True)
                ]
                results = [r() if callable(r) else r for r in backward(given)]
                pairs = zip(results, split[0], strict=False)
                return [mode.total(r, s, True in split[1]) for r, s in pairs]

        with self.wholes():
            record_call(name, wholes, made, backward_of_all)

    def total(self, grad: Tensor | None, is_split: bool, differs: bool) -> Tensor | None:
        """Return the gradient of all samples: of each one, or the sum of one that all share.

        differs: whether it is of results that differ between samples.
        """
        if grad is None:
            return None
        if is_split:
            return self.split_whole(grad)
        whole = self.whole(grad)
        with self.wholes():
            if self.has_own(grad):
                return reduce_sum(whole, dims=(0,))
            return scalar_mul(whole, value=self.level.size) if differs else whole


@contextmanager
def batching(size: int, randomness: str) -> Iterator[Batching]:
    """Ops of this thread run for that many samples at once. randomness: see `Level`."""
    made: list[Batching] = []

    def put(inner: Mode) -> Mode:
        made.append(Batching(inner, Level(size, randomness)))
        return made[0]

    with use_mode(current_mode().below(put)):
        yield made[0]


# ---- tensors of all samples ----------------------------------------------------------------------


def _with_rank(whole: Tensor, ndim: int) -> Tensor:
    """The samples before that many dims, of which the first may be new ones of size 1."""
    if ndim == AS_IS:
        return whole
    size, *own = whole.meta.shape
    return shaped(whole, (size, *(1,) * (ndim - len(own)), *own))


def _joined(whole: Tensor, dim: int) -> Tensor:
    """The samples one after the other within a dim."""
    if dim == AS_IS:
        return whole
    size, *own = whole.meta.shape
    return shaped(from_front(whole, dim), lengthened(own, dim, size))


def _cut(joined: Tensor, dim: int, size: int) -> Tensor:
    """The samples that lie within a dim, as dim 0."""
    own = joined.meta.shape
    apart = shaped(joined, (*own[:dim], size, own[dim] // max(size, 1), *own[dim + 1 :]))
    return with_front(apart, dim)


def _sample(whole: Tensor, number: int) -> Tensor:
    own = whole.meta.shape[1:]
    one: Tensor = call(
        find_op("slice"),
        whole,
        starts=(number, *(0,) * len(own)),
        stops=(number + 1, *own),
        steps=(1,) * (len(own) + 1),
    )
    return shaped(one, own)


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    made: Tensor = call(find_op("concat"), *[shaped(x, (1, *x.meta.shape)) for x in rows], dim=0)
    return made
