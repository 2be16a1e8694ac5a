"""The trace of a call of a function, with its backward pass behind it."""

from __future__ import annotations

import gc
import itertools
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from oneflow.amp.autocasting import Autocasting
from oneflow.autograd.api import grad
from oneflow.core.dispatch import current_mode, use_mode
from oneflow.core.errors import GraphError
from oneflow.core.graph import Value
from oneflow.graph.debugging import Debugging
from oneflow.graph.functions.guards import VALUES
from oneflow.graph.functions.two_passes import GRAD
from oneflow.graph.plans import Plans
from oneflow.graph.spec import GraphSpec
from oneflow.graph.trace import Trace
from oneflow.graph.tree import PLAIN, Tree, flatten, map_tensors, record_of, tensors_of
from oneflow.kernels.array import Array
from oneflow.kernels.registry import find_view
from oneflow.nn.module import Module
from oneflow.tensor.gate import Lifted, Place
from oneflow.tensor.grad_mode import is_grad_enabled, set_grad_enabled, state
from oneflow.tensor.tensor import Tensor


def surroundings(function: Callable[..., Any]) -> Iterator[object]:
    """The things that a function reads besides its arguments, as far as they can be seen: the
    object that it is a method of, variables of the functions around it, and tensors, modules and
    numbers among its globals.
    """
    if isinstance(function, types.MethodType):
        yield function.__self__
        function = function.__func__
    code = getattr(function, "__code__", None)
    if code is None:
        return
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            continue
    names = function.__globals__
    for name in code.co_names:
        found = names.get(name)
        if isinstance(found, (Tensor, Module, bool, int, float)):
            yield found


_numbers = itertools.count()
NOBODY: Mapping[int, Tensor] = {}
PARAMETERS = "parameters of the modules"
"""The name of the argument that has parameters which are other tensors in each call."""


class WrittenArguments(GraphError):
    """The function overwrites tensors that it was given.   positions: of these."""

    def __init__(self, positions: list[int], what: str) -> None:
        super().__init__(what)
        self.positions = positions


class Call:
    """A call of a function, and the gradients of its results by all that it reads.

    routes: for each tensor of the result where it is from: an int is the number of an output, the
    others are `Given`, `Detached`, `Made`, or tensors that were captured. wanted: the outputs that
    need gradients. targets: the tensors that get a gradient: a position among the arguments,
    or a captured one. places: of parameters that the caller gives as the argument PARAMETERS: their
    values, and whether they need gradients, are those of the call.  lent: tensors among the
    arguments, by their positions, that stand for themselves, as captured ones do, and so can be
    overwritten.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        places: Sequence[Place] = (),
        lent: Mapping[int, Tensor] = NOBODY,
    ) -> None:
        self.function, self.places, self.lent = function, places, lent
        self.differentiates = is_grad_enabled()
        mode = current_mode()
        self.casts = mode.dtypes if isinstance(mode, Autocasting) else None
        self.returned: Any = None
        self.routes: list[int | Given | Any] = []
        self.outputs: list[Tensor] = []
        self.wanted: list[int] = []
        self.targets: list[int | Any] = []

    def build(self, *args: object, **kwargs: object) -> list[Tensor]:
        """Runs the function, then its backward pass. Returns the outputs, and the gradients."""
        trace = cast(Trace, current_mode())
        trace.writes_outside = True
        given = tensors_of((args, kwargs))
        values = [x.value for x in given]
        if self.lent:
            given = [self.lent.get(i, x) for i, x in enumerate(given)]
            traced = iter(given)
            args, kwargs = map_tensors((args, kwargs), lambda _: next(traced))
        with self._given_parameters(cast(list[Tensor], kwargs.pop(PARAMETERS, []))):
            self._run(args, kwargs, trace)
            _check(trace, given, values, self.returned, self._held(args, kwargs))
            self._take_outputs(given)
            if not self.differentiates:
                return self.outputs
            self.wanted = [i for i, y in enumerate(self.outputs) if not y.is_leaf]
            return self.outputs + self._gradients(trace, given)

    @contextmanager
    def _given_parameters(self, parameters: list[Tensor]) -> Iterator[None]:
        """A block in which modules have these parameters, also where a checkpointed part of them
        runs again.
        """
        before = [table[name] for table, name in self.places]
        blocks, state.rerun_in = state.rerun_in, ()
        try:
            for (table, name), p in zip(self.places, parameters, strict=True):
                table[name] = p
            yield
        finally:
            state.rerun_in = blocks
            for (table, name), p in zip(self.places, before, strict=True):
                table[name] = p

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], trace: Trace) -> None:
        with set_grad_enabled(self.differentiates):
            if self.casts is None:
                self.returned = self.function(*args, **kwargs)
            else:
                with use_mode(Autocasting(trace, self.casts, {})):
                    self.returned = self.function(*args, **kwargs)
            if is_grad_enabled() != self.differentiates:
                raise GraphError("set_grad_enabled is called, and holds after the call")

    def _held(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[int]:
        """The objects that the caller has, by id: a call gives them back as they are."""
        own = [leaf for _, leaf in flatten((args, kwargs)) if not isinstance(leaf, Tensor)]
        return {id(x) for x in (*own, *surroundings(self.function))}

    def _take_outputs(self, given: list[Tensor]) -> None:
        known: dict[int, Any] = {id(x): Given(i) for i, x in enumerate(given)}
        same = {id(x.value): known[id(x)] for x in given if x.value is not None}
        listed = tensors_of(self.returned)
        for y in listed:
            if y.value is None and id(y) not in known:
                known[id(y)] = y if self._is_from_outside(y, listed) else Made(y)
            elif id(y) not in known:
                found = same.get(id(y.value))
                if found is not None and not y._requires_grad:
                    known[id(y)] = Detached(found)
                else:
                    known[id(y)] = same[id(y.value)] = len(self.outputs)
                    self.outputs.append(y)
            self.routes.append(known[id(y)])

    def _is_from_outside(self, x: Tensor, listed: list[Tensor]) -> bool:
        """Whether anything but the result holds a tensor of it. listed: all of these."""
        own = {id(part) for part in (*_parts(self.returned), self, vars(self), listed)}
        holders = gc.get_referrers(x)
        return any(id(h) not in own and not isinstance(h, types.FrameType) for h in holders)

    def _gradients(self, trace: Trace, given: list[Tensor]) -> list[Tensor]:
        captured = [x for x in trace.variables.values() if x._requires_grad]
        operands = [*enumerate(given), *((x, x) for x in captured)]
        needed = [(key, x) for key, x in operands if x._requires_grad]
        outputs = [self.outputs[i] for i in self.wanted]
        if not outputs or not needed:
            return []
        grads = [
            trace.input(f"{GRAD}{i}", y.meta, _laid_out(trace, y)) for i, y in enumerate(outputs)
        ]
        with _without_hooks(captured):  # the caller's backward pass runs them
            found = grad(outputs, [x for _, x in needed], grads, allow_unused=True)
        pairs = [(key, g) for (key, _), g in zip(needed, found, strict=True) if g is not None]
        self.targets = [key for key, _ in pairs]
        return [g for _, g in pairs]


@contextmanager
def _without_hooks(tensors: list[Tensor]) -> Iterator[None]:
    """A block in which gradients of leaves come without their hooks."""
    rare = [x._extra for x in tensors if x._extra is not None]
    hooks = [more.hooks for more in rare]
    for more in rare:
        more.hooks = {}
    try:
        yield
    finally:
        for more, own in zip(rare, hooks, strict=True):
            more.hooks = own


class Given(int):
    """The position of a tensor among the arguments."""


@dataclass(frozen=True)
class Made:
    """A tensor of values that the function makes anew in each call, all the same."""

    values: Tensor


def _parts(tree: Tree) -> Iterator[Tree]:
    """The containers of a tree."""
    inner: Any = record_of(tree) if type(tree) not in PLAIN else None
    if inner is not None:
        yield vars(tree)
    yield tree
    if inner is None:
        inner = tree
    if isinstance(inner, dict):
        inner = list(inner.values())
    for one in inner if isinstance(inner, (list, tuple)) else ():
        yield from _parts(one)


@dataclass(frozen=True)
class Detached:
    """An output or an argument without its history, in the same memory."""

    source: int | Given


def _check(
    trace: Trace, given: list[Tensor], values: list[Value], returned: Tree, caller_has: set[int]
) -> None:
    """Raises GraphError for effects on the caller's tensors that a plan would not have. caller_has:
    ids of objects that may be returned with any contents: guards tell if that changes."""
    pairs = enumerate(zip(given, values, strict=True))
    written = [i for i, (x, value) in pairs if x.value not in (None, value)]
    if written:
        what = f"tensor {written[0]} of the arguments, {given[written[0]].meta}, is written to"
        raise WrittenArguments(written, what)
    for x in trace.variables.values():
        if x._grad is not None:
            raise GraphError(f"backward() is called inside, for {x.meta}")
    for x in trace.overwritten():
        raise GraphError(f"a tensor made outside, {x.meta}, is written to")
    if (hidden := trace.hidden_write()) is not None:
        raise GraphError(
            f"a tensor made outside, {hidden.meta}, lies in the memory of one that is written to"
        )
    for module in trace.called.values():
        for name, p in module._parameters.items():
            if p is not None and not p.is_leaf:
                raise GraphError(
                    f"{type(module).__name__}.{name} is made anew for each call, as in "
                    "DistributedDataParallel and fully_shard"
                )
        for name, held in vars(module).items():
            if isinstance(held, Tensor) and held.value is not None:
                raise GraphError(f"{type(module).__name__}.{name} is set to a result")
    own = {id(value): f"tensor {i} of the arguments" for i, value in enumerate(values)}
    seen: dict[int, list[Tensor]] = {}
    for path, leaf in flatten(returned):
        if isinstance(leaf, Tensor) and leaf.value is not None and leaf.value not in values:
            base = _base(leaf.value)
            whose = own.get(id(base), "a tensor made outside" if base.node.op == "variable" else "")
            others = seen.setdefault(id(base), [])
            if not whose and any(_is_another_view(leaf, x) for x in others):
                whose = "another result"
            others.append(leaf)
            if whose:
                raise GraphError(f"result{path} is a view of {whose}; return a copy: clone()")
        if not isinstance(leaf, (Tensor, *VALUES)) and id(leaf) not in caller_has:
            kind = type(leaf).__name__
            raise GraphError(f"result{path} is a {kind}, in which tensors cannot be found")


def _base(value: Value) -> Value:
    """The value whose memory a view, or a value that was overwritten, shows."""
    while value.node.declared.is_view or value.node.declared.mutates:
        shown = value.node.shared_input(value.index)
        if shown is None:
            break
        value = shown
    return value


def _is_another_view(x: Tensor, earlier: Tensor) -> bool:
    """Whether a result shows elements of an earlier one, and is not just detached from it."""
    if x is earlier or (x.value is earlier.value and not x._requires_grad):
        return False
    return _meet(x.value, earlier.value)


def _meet(a: Value, b: Value) -> bool:
    """Whether two views of one value show an element both."""
    base = _base(a)
    whole = np.empty(base.type.shape, base.type.dtype.np)  # never touched

    def shown(value: Value) -> Array | None:
        source = whole if value is base else shown(value.node.inputs[0])
        view = find_view(value.node.op)
        if value is base or source is None or view is None:
            return source
        made: Array | None = view(source, **value.node.declared.defaults | value.node.attrs)
        return made

    first, second = shown(a), shown(b)
    if first is None or second is None:  # one of them may be a copy, or not
        return True
    return np.shares_memory(first, second)


def _laid_out(trace: Trace, y: Tensor) -> Tensor:
    """A traced tensor whose layout is fixed, as that of an input has to be."""
    if y._placement is not None and y._sbp is None:
        y._sbp = trace.layout(y, is_fixed=True)
    return y


def modules_of(function: Callable[..., Any], given: tuple[Any, ...]) -> list[Module]:
    """The modules that a function holds or is given."""
    if isinstance(function, Module):
        return [function]
    seen = [*surroundings(function), *(leaf for _, leaf in flatten(given))]
    return list({id(x): x for x in seen if isinstance(x, Module)}.values())


def apart_of(modules: list[Module], gates: Lifted) -> tuple[list[Place], list[Tensor]]:
    """The places of parameters of these modules for which tensors of other memory stood, and these
    tensors.
    """
    places, found = [], []
    for table in [m._parameters for top in modules for m in top.modules()]:
        for name in table:
            behind = gates.apart.get((id(table), name))
            if behind is not None:
                places.append((table, name))
                found.append(behind[1])
    return places, found


def spec_of_call(call: Call, given: tuple[Any, ...]) -> GraphSpec:
    """The definition of the graph that traces a call with such (args, kwargs), under the function's
    name.
    """
    function = call.function
    given_name = getattr(function, "__name__", type(function).__name__)
    name = f"{''.join(c for c in given_name if c.isalnum() or c == '_')}_{next(_numbers)}"
    modules = {f"module{i or ''}": m for i, m in enumerate(modules_of(function, given))}
    return GraphSpec(name, Debugging(name), Plans(1), modules=OrderedDict(modules))
