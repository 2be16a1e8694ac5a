"""Gradients of repeated calls, replayed as one function over arrays.

The gradient of an op is written with ops, and its calls follow from the types and attributes
of the call alone: nn.Graph traces it without values. So from the second time on that a local call
on the CPU is gone back over, its gradient is sketched once, as the text of a function that makes
the same kernel calls one after the other; later steps run that. The 14 gradient ops of the digits
network, dispatched afresh, were half of the cost of its backward pass.

A mode that times ops has a function of its own, which looks at the clock after each kernel.

Unusual calls take the plain way: random ops and those that overwrite, saved-tensor hooks,
other modes than the default one, gradients that are to have gradients themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from time import perf_counter_ns
from types import CodeType
from typing import Any

import numpy as np

from oneflow.boxing.bound_op import BoundOp
from oneflow.core.device import Device
from oneflow.core.dispatch import Mode, use_mode
from oneflow.core.op import Op
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.quiet import run_quietly
from oneflow.tensor.eager import bound_call
from oneflow.tensor.tape import OpNode
from oneflow.tensor.tensor import Tensor, raw

MOST = 8192

Result = int | TensorType | None
"""Number of an output gradient, type of a new array, or None where no gradient is wanted."""


class _Unusual(Exception):
    """The gradient does something that a sketch cannot show."""


Note = Callable[[Sequence[BoundOp], Sequence[int]], None]
"""`Mode.note_kernels`."""


@dataclass(slots=True)
class _Program:
    """The gradient of one call. function: takes arrays (gradients that are there, inputs, outputs),
    returns the new ones; None: not sketched, or not to be. timed: the same with times; None: not
    sketched."""

    call: BoundOp
    function: Callable[..., tuple[Any, ...]] | None = None
    results: tuple[Result, ...] = ()
    timed: _Timed | None = None


@dataclass(slots=True)
class _Timed:
    """function: appends the time to `times` after each of `calls`."""

    function: Callable[..., tuple[Any, ...]]
    calls: list[BoundOp]
    times: list[int]


_programs: dict[tuple[Any, ...], _Program] = {}


def replay(
    node: OpNode,
    grads: Sequence[Tensor | None],
    wanted: Sequence[bool],
    note: Note | None = None,
) -> list[Any] | None:
    """The input gradients, as `node.gradients` gives them; None if that has to be asked. note: is
    told how long each kernel took.
    """
    call = node.call
    if call is None or node.outputs[0].__class__ is not tuple:
        return None
    # An identity names a call for as long as its program holds it. The only gradient is there.
    key: tuple[Any, ...] = (id(call), *wanted)
    if len(grads) > 1:
        key += tuple([g is None for g in grads])
    program = _programs.get(key)
    if program is None:
        if len(_programs) >= MOST:
            _programs.clear()
        _programs[key] = _Program(call)
        return None
    if program.function is None:
        if program.results:
            return None
        program.function, program.results, _ = _sketched(call, node, grads, wanted)
        if program.function is None:
            return None
    arrays = _arrays(node, call, grads)
    if arrays is None:
        return None
    if note is None:
        made = iter(run_quietly(program.function, np, np.empty, *arrays))
    else:
        made = iter(_run_timed(program, node, grads, wanted, arrays, note))
    device = node.outputs[0][2]
    found: list[Any] = []
    for result in program.results:
        if result is None:
            found.append(None)
        elif isinstance(result, TensorType):
            found.append(raw(result, next(made), device))
        else:
            found.append(grads[result])
    return found


def _arrays(node: OpNode, call: BoundOp, grads: Sequence[Tensor | None]) -> list[Any] | None:
    """The arrays that the function takes; None if something is not as the plain way expects it."""
    arrays = []
    for grad, type_ in zip(grads, call.out_types, strict=False):
        if grad is not None:
            if grad._placement is not None or grad._array.__class__ is not np.ndarray:
                return None
            if grad.meta is not type_ and grad.meta != type_:
                return None
            arrays.append(grad._array)
    for saved in node.inputs:
        if saved.__class__ is not tuple or saved[0]._version[0] != saved[1]:
            return None
        arrays.append(saved[0]._array)
    for saved in node.outputs:
        if saved.__class__ is not tuple or saved[6][0] != saved[7]:
            return None
        arrays.append(saved[1])
    return arrays


def _run_timed(
    program: _Program,
    node: OpNode,
    grads: Sequence[Tensor | None],
    wanted: Sequence[bool],
    arrays: list[Any],
    note: Note,
) -> tuple[Any, ...]:
    """The results of a program, of whose kernels `note` is told."""
    timed = program.timed
    if timed is None:
        times: list[int] = []
        function, _, calls = _sketched(program.call, node, grads, wanted, times)
        assert function is not None  # it was sketched once without times
        timed = program.timed = _Timed(function, calls, times)
    timed.times[:] = [perf_counter_ns()]
    results: tuple[Any, ...] = run_quietly(timed.function, np, np.empty, *arrays)
    note(timed.calls, timed.times)
    return results


def _sketched(
    call: BoundOp,
    node: OpNode,
    grads: Sequence[Tensor | None],
    wanted: Sequence[bool],
    times: list[int] | None = None,
) -> tuple[Callable[..., tuple[Any, ...]] | None, tuple[Result, ...], list[BoundOp]]:
    """The function of a program, its results and its kernels; None if that cannot be done. times:
    is given the time after each kernel.
    """
    sketch = _Sketch(node.outputs[0][2], times)
    given = [
        None if g is None else sketch.parameter(f"d{i}", t)
        for i, (g, t) in enumerate(zip(grads, call.out_types, strict=True))
    ]
    inputs = [sketch.parameter(f"x{i}", t) for i, t in enumerate(call.in_types)]
    outputs = [sketch.parameter(f"y{i}", t) for i, t in enumerate(call.out_types)]
    results: list[Result] = []
    names = []
    try:
        with use_mode(sketch):
            entries = call.op.grad(*given, *inputs, *outputs, **node.attrs)
            for is_wanted, entry in zip(wanted, entries, strict=False):
                found: Any = entry() if is_wanted and callable(entry) else entry
                if not is_wanted or found is None:
                    results.append(None)
                elif found.value.startswith("d"):
                    results.append(int(found.value[1:]))
                elif found.value.startswith("v"):
                    results.append(found.meta)
                    names.append(found.value)
                else:  # memory that is somebody else's
                    raise _Unusual
        function = sketch.function(call.op.name, names)
    except _Unusual:
        return None, tuple(results) or (None,), []
    return function, tuple(results) or (None,), sketch.calls


class _Sketch(Mode):
    """Writes down the kernel calls of ops on local tensors, which stand for arrays by their names.

    Tensors of somewhere else and ops without inputs are unusual.
    calls: of the kernels so far, if they are timed.
    """

    def __init__(self, device: Device, times: list[int] | None) -> None:
        self._device = device
        self._parameters = ["np", "empty"]
        self._lines: list[str] = []
        self._values: dict[str, Any] = {}
        self._count = 0
        self._is_timed = times is not None
        self.calls: list[BoundOp] = []
        if times is not None:
            self._values |= {"note": times.append, "now": perf_counter_ns}

    def parameter(self, name: str, type_: TensorType) -> Tensor:
        self._parameters.append(name)
        return self._stand_in(name, type_)

    def function(self, title: str, results: list[str]) -> Callable[..., tuple[Any, ...]]:
        head = f"def backward({', '.join(self._parameters)}):"
        end = f"return ({''.join(name + ', ' for name in results)})"
        exec(_code("\n    ".join([head, *self._lines, end]), title), self._values)
        made: Callable[..., tuple[Any, ...]] = self._values["backward"]
        return made

    def run(self, op: type[Op], inputs: tuple[Tensor, ...], attrs: Attrs) -> Any:
        if op.is_random or op.mutates or not inputs or any([x.value is None for x in inputs]):
            raise _Unusual
        key: list[Any] = ["", op, *[id(x.meta) for x in inputs]]
        call = bound_call(op, inputs, attrs, self._device, key)
        names = [x.value for x in inputs]
        outs = [self._stand_in(self._fresh(), t) for t in call.out_types]
        first = outs[0].value
        if call.view is None:
            self._compute(call, [x.value for x in outs], names)
        else:
            view = self._value(partial(call.view, **call.attrs))
            run = self._value(call.run)
            self._lines.append(f"{first} = {view}({names[0]})")
            self._lines.append(f"if {first} is None: {first}, = {run}(np, [{', '.join(names)}])")
        if self._is_timed:
            self._lines.append("note(now())")
            self.calls.append(call)
        return outs[0] if op.num_outputs == 1 else tuple(outs)

    def _compute(self, call: BoundOp, outs: list[str], names: list[str]) -> None:
        work = [self._fresh() for _ in call.work]
        for name, kind in zip([*outs, *work], [*call.outs, *call.work], strict=True):
            shape, dtype = map(self._value, kind)
            self._lines.append(f"{name} = empty({shape}, {dtype})")
        function = call.function
        if call.keywords:
            function = partial(function, **call.keywords)
        arguments = ", ".join(["np", *outs, *names, *work])
        self._lines.append(f"{self._value(function)}({arguments})")

    def _stand_in(self, name: str, type_: TensorType) -> Tensor:
        x = raw(type_, None, self._device)
        x.value = name
        return x

    def _fresh(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _value(self, value: object) -> str:
        name = f"k{len(self._values)}"
        self._values[name] = value
        return name


@lru_cache(maxsize=1024)
def _code(text: str, title: str) -> CodeType:
    return compile(text, __file__.replace(".py", f"_{title}.py"), "exec")
