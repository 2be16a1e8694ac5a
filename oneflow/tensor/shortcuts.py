"""Shortcuts: functions that remember which kernel a call came to.

The work of a function of the public table, an operator or an op on local tensors follows from their
types and from its other arguments: `x + y` of two float32[16] always runs the same kernel on new
arrays of the same types. On the way there it goes through several functions of Python, which take
longer than the kernel. So the second time that a call comes with arguments of the same types, it is
watched: if it runs one op, with the tensors that it was given, and returns the result of the op,
its kernel, types and arrays become a plan. From then on machine code (shortcut_code.py) finds the
plan by the arguments, makes arrays and tensors, runs the kernel, and has the call recorded if it
has a history. An unusual call takes the plain way, which is the function itself: a mode that is not
the default one, a global tensor, another device, a subclass, an error.

Only functions whose way follows from types and arguments alone may have a shortcut: none that looks
at the values of a tensor that it hands on, or at whether it has a history.

Where the machine code cannot be (another Python than CPython with its lock from 3.11 on, NumPy
before 2), a shortcut is the function itself.
"""

from __future__ import annotations

import ctypes
import importlib
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from types import EllipsisType, FunctionType
from typing import Any, TypeVar

import numpy as np

from oneflow.boxing.bound_op import BoundOp
from oneflow.core import dispatch
from oneflow.core.dispatch import Mode, ModeAbove, use_mode
from oneflow.core.dtype import DType
from oneflow.core.op import Op, OpClass
from oneflow.core.operand import Attrs
from oneflow.kernels.array import Array, data_address
from oneflow.kernels.expressions.binding import CompiledKernel
from oneflow.kernels.native.machine_code import address_of
from oneflow.kernels.quiet import quiet_context
from oneflow.tensor.eager import EAGER, Eager, bound_call
from oneflow.tensor.grad_mode import state
from oneflow.tensor.shortcut_code import (
    GLOBALS,
    MOST_ARGUMENTS,
    MOST_ARRAYS,
    MOST_LOOP,
    MOST_OUTPUTS,
    MOST_OWNED,
    MOST_STEPS,
    MOST_TENSORS,
    MOST_UFUNC,
    PLAN,
    ROW,
    ROWS,
    STEP,
    WHOLE,
    WORD,
    Offsets,
    bind_text,
    call_text,
)
from oneflow.tensor.tape import GradNode, OpNode, numbers, record
from oneflow.tensor.tensor import MEMBERS, Extra, Tensor, cpu_device
from oneflow.tensor.views import SHARED, View, link_view, view_of

F = TypeVar("F", bound=Callable[..., Any])
"""A function."""

CONSTANT = (int, float, bool, str, type(None), DType, OpClass, EllipsisType)
"""Types of the arguments that a plan may depend on, beside tuples and slices of them."""


class _Words:
    """Words that machine code reads, and the objects whose addresses are in them."""

    __slots__ = ("held", "names", "words")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.held: list[object] = []
        self.words = (ctypes.c_int64 * len(names))()

    @property
    def address(self) -> int:
        return ctypes.addressof(self.words)

    def write(self, **words: int) -> None:
        for name, value in words.items():
            self.words[self.names.index(name)] = value

    def hold(self, **objects: object) -> None:
        """Write the addresses of objects."""
        self.held += objects.values()
        self.write(**{name: id(x) for name, x in objects.items()})


class Plan(_Words):
    """The steps that a call of a function takes."""

    __slots__ = ()


class Step(_Words):
    """The call of a kernel, or the view that some ops make of a tensor.

    calls: one, or those of a chain of views.
    """

    __slots__ = ("calls", "num_outputs")

    def __init__(self, calls: tuple[BoundOp, ...], inputs: list[int], first: int) -> None:
        super().__init__(STEP)
        self.calls, last = calls, calls[-1]
        self.num_outputs = len(last.out_types)
        self.write(
            object=id(self), first=first, num_inputs=len(inputs), num_outputs=self.num_outputs,
            num_arrays=len(last.outs) + len(last.work),
            **{f"input{i}": number for i, number in enumerate(inputs)},
        )  # fmt: skip
        self.hold(**{f"type{i}": t for i, t in enumerate(last.out_types)})
        self.hold(
            steps=tuple([(c.op, c.attrs) for c in calls]), op=last.op, call=last, attrs=last.attrs,
            count=self.num_outputs,
        )  # fmt: skip
        kinds = [t.dtype for t in last.out_types]
        if last.op.has_gradient and not any(kind.is_complex for kind in kinds):
            self.write(floats=sum(k.is_floating_point << i for i, k in enumerate(kinds)))

    def describe(self, i: int, array: Array) -> None:
        """Array `i` is to be like that one."""
        dims = (ctypes.c_int64 * (2 * array.ndim))(*array.shape, *array.strides)
        self.held.append(dims)
        self.hold(**{f"dtype{i}": array.dtype})
        start = ctypes.addressof(dims)
        self.write(**{
            f"ndim{i}": array.ndim, f"shape{i}": start, f"strides{i}": start + array.ndim * WORD,
        })  # fmt: skip


class _Watch(ModeAbove):
    """Runs ops in the mode below, and notes their calls; None for anything more than a call."""

    def __init__(self, inner: Mode) -> None:
        super().__init__(inner)
        self.seen: list[Any] = []

    def run(self, op: type[Op], inputs: tuple[Tensor, ...], attrs: Attrs) -> Any:
        made = self.inner.run(op, inputs, attrs)
        self.seen.append((op, inputs, attrs, made))
        return made

    def __getattribute__(self, name: str) -> Any:
        if name in _DOES_MORE:
            self.seen.append(None)
        return super().__getattribute__(name)


_DOES_MORE = frozenset(("create", "lay_out", "to_device", "write", "store", "share", "source"))

_plans: dict[int, Plan] = {}
"""Plans by the address of the row that names them."""


def learn(row: int, function: Callable[..., Any], *args: object, **keywords: object) -> Any:
    """The result of a call, whose plan is written into a row of the table if it can have one."""
    watch = _Watch(EAGER)
    with use_mode(watch):
        made = function(*args, **keywords)
    given = (*args, *keywords.values())
    if watch.seen and None not in watch.seen and all(map(_is_known, given)):
        plan = _planned(function, given, tuple(keywords), made, watch.seen)
        if plan is not None:
            _plans[row] = plan
            ctypes.c_int64.from_address(row + WORD).value = plan.address
    return made


Seen = tuple[type[Op], tuple[Tensor, ...], Attrs, Any]
"""An op, its inputs, attributes and outputs."""


def _planned(
    function: Callable[..., Any],
    given: tuple[Any, ...],
    names: tuple[str, ...],
    made: object,
    seen: list[Seen],
) -> Plan | None:
    """The plan of a call that ran some ops; None if it did more than that, or they are unusual."""
    known = [x for x in given if isinstance(x, Tensor)]
    unread = {id(x) for x in known}
    twins = [x is before for before, x in zip((given, *given), given, strict=False)]
    if sum(twins[i] for i, x in enumerate(given) if isinstance(x, Tensor)) + len(unread) < len(
        known
    ):
        return None  # a tensor comes twice, apart: which of both an op reads cannot be told
    steps: list[Step] = []
    arrays = 0
    for op, inputs, attrs, outputs in seen:
        numbers = [_place(known, x) for x in inputs]
        if None in numbers or not inputs or not all(map(_is_plain, inputs)):
            return None
        unread -= {id(x) for x in inputs}
        outs = outputs if isinstance(outputs, tuple) else (outputs,)
        step = _stepped(op, inputs, attrs, outs, numbers, len(known))
        if step is None:
            return None
        steps.append(step)
        known += outs
        arrays += len(step.calls[0].outs) + len(step.calls[0].work) + len(inputs)
    result = WHOLE if made is seen[-1][3] and isinstance(made, tuple) else _place(known, made)
    many = len(steps) > MOST_STEPS or len(known) > MOST_TENSORS or 4 * arrays + 16 > MOST_OWNED
    if unread or many or result is None:  # the values of a tensor that no op reads may have decided
        return None
    plan = Plan(PLAN)
    plan.write(
        object=id(plan), count=len(given) - len(names), total=len(given), result=result,
        tensors=sum(isinstance(x, Tensor) << i for i, x in enumerate(given)),
        twins=sum(is_twin << i for i, is_twin in enumerate(twins)),
    )  # fmt: skip
    plan.hold(function=function)
    if names:
        plan.hold(names=names)
    plan.hold(
        **{f"argument{i}": x.meta if isinstance(x, Tensor) else x for i, x in enumerate(given)}
    )
    _write_steps(plan, "recorded", steps)
    source = seen[0][1][0]
    chain = _chained(steps, source, made, known) if len(steps) > 1 else None
    _write_steps(plan, "plain", steps if chain is None else [chain])
    return plan


def _write_steps(plan: Plan, name: str, steps: list[Step]) -> None:
    plan.held += steps
    plan.write(**{f"num_{name}": len(steps)})
    plan.write(**{f"{name}{i}": step.address for i, step in enumerate(steps)})


def _stepped(
    op: type[Op],
    inputs: tuple[Tensor, ...],
    attrs: Attrs,
    outs: tuple[Tensor, ...],
    numbers: list[Any],
    first: int,
) -> Step | None:
    if op.is_random or op.mutates or op.has_effect or len(inputs) > MOST_ARGUMENTS:
        return None
    call = bound_call(op, inputs, attrs, cpu_device(), ["", op, *[id(x.meta) for x in inputs]])
    if len(call.outs) > MOST_OUTPUTS or len(call.outs) + len(call.work) > MOST_ARRAYS:
        return None
    step = Step((call,), numbers, first)
    if call.view is not None:
        return step if _sees(step, inputs[0], outs[0]) else None
    for i, (shape, dtype) in enumerate((*call.outs, *call.work)):
        step.describe(i, np.empty(shape, dtype))
    kernel, *given = getattr(call.function, "ufunc", ()) or (call.function,)
    if isinstance(kernel, CompiledKernel):
        _write_loop(step, kernel)
    if len(given) > MOST_UFUNC:
        kernel, given = call.function, []
    step.hold(kernel=partial(kernel, **call.keywords) if call.keywords else kernel)
    step.write(num_ufunc=len(given))
    for i, x in enumerate(given):
        if isinstance(x, int):
            step.write(**{f"ufunc{i}": x})
        else:
            array = x if isinstance(x, np.ndarray) else np.array(x, call.outs[0][1])
            step.hold(**{f"ufunc{i}": array})
    return step


def _write_loop(step: Step, kernel: CompiledKernel) -> None:
    found = kernel.as_words()
    if found is None or len(found[1]) > MOST_LOOP:
        return
    function, words = found
    table = (ctypes.c_int64 * len(words))(*words)
    step.held.append(table)
    step.write(
        loop=function, loop_words=ctypes.addressof(table), num_loop_words=len(words),
        num_loop_arrays=len(kernel.positions),
    )  # fmt: skip


def _sees(step: Step, x: Tensor, out: Tensor) -> bool:
    """Describe the view `out` of `x`, whose strides are then those of `x`; whether it is one."""
    source, array = x._array, out._array
    view = view_of(out)
    if view is None or view.taken_at != SHARED:
        return False
    strides = (ctypes.c_int64 * source.ndim)(*source.strides)
    step.held.append(strides)
    step.describe(0, array)
    step.write(
        is_view=1, offset=data_address(array) - data_address(source), source_ndim=source.ndim,
        source_strides=ctypes.addressof(strides),
    )  # fmt: skip
    return True


def _chained(steps: list[Step], x: Tensor, out: object, known: list[Tensor]) -> Step | None:
    """Views of views as one step; None if the steps are anything else."""
    for i, step in enumerate(steps):
        is_next = step.words[STEP.index("input0")] == i
        if not is_next or not step.words[STEP.index("is_view")]:
            return None
    step = Step(tuple([s.calls[0] for s in steps]), [0], len(known) - 1)
    return step if out is known[-1] and _sees(step, x, out) else None


def _is_plain(x: Tensor) -> bool:
    return (
        x.__class__ in _KINDS
        and x._placement is None
        and x._device is cpu_device()
        and x._array.__class__ is np.ndarray
    )


def _is_known(x: object) -> bool:
    """Whether a plan may depend on an argument."""
    return x.__class__ in _KINDS or _is_constant(x)


def _is_constant(x: object) -> bool:
    if isinstance(x, tuple) and x.__class__ is tuple:
        return all(map(_is_constant, x))
    if isinstance(x, slice):
        return all(map(_is_constant, (x.start, x.stop, x.step)))
    return isinstance(x, CONSTANT)


def _place(tensors: Sequence[Tensor], made: object) -> int | None:
    return next((i for i, x in enumerate(tensors) if x is made), None)


def _record(step: Step, *tensors: Tensor) -> None:
    """The history of the outputs, which come before the inputs."""
    count, (call,) = step.num_outputs, step.calls
    record(call.op, tensors[count:], tensors[:count], call.attrs, call)


def _link(step: Step, out: Tensor, x: Tensor) -> None:
    """`out` is a view of `x`. A chain of views has no history."""
    call = step.calls[0]
    link_view(call.op, x, out, call.attrs, own=False)
    for following in step.calls[1:]:
        link_view(following.op, out, out, following.attrs, own=False)
    if len(step.calls) == 1:
        record(call.op, (x,), (out,), call.attrs, call)


# ---- the type of shortcuts -----------------------------------------------------------------------
#
# Types whose instances Python calls through an address (PEP 590) are made by C alone. This one is
# made as C would, by PyType_FromSpec. Its instances have the attributes of the function, and are
# methods as a function is.

_KINDS: tuple[type, ...] = (Tensor,)
_HEAD = object.__basicsize__
_CALLED, _FUNCTION, _GLOBALS, _DICT, _SIZE = (_HEAD + i * WORD for i in range(5))
_FLAGS = 1 << 18 | 1 << 17 | 1 << 11  # default, a method, has an address to call
_SLOT_CALL, _SLOT_GET, _SLOT_MEMBERS, _SLOT_GETSET = 50, 54, 72, 73
_SSIZE, _READ_ONLY = 19, 1

_kept: list[Any] = []


@cache
def is_possible() -> bool:
    """Return whether the objects of this Python lie as the machine code has it."""
    return (
        sys.implementation.name == "cpython"
        and hasattr(ctypes.pythonapi, "PyObject_Vectorcall")  # from 3.11 on
        and struct.calcsize("P") == WORD
        and object.__basicsize__ == 2 * WORD
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and np.lib.NumpyVersion(np.__version__) >= "2.0.0"
    )


@cache
def _made_class() -> Any:
    node = (*GradNode.__slots__[1:], *OpNode.__slots__)
    offsets = Offsets(
        _offsets(Tensor, MEMBERS),
        _offsets(Extra, Extra.__slots__),
        _offsets(View, View.__slots__),
        _offsets(OpNode, node),
        _FUNCTION,
        tuple.__basicsize__,
    )
    called, bound = address_of(call_text(offsets)), address_of(bind_text())
    api = ctypes.pythonapi

    def address(name: str) -> int:
        found = ctypes.cast(getattr(api, name), ctypes.c_void_p).value
        assert found is not None
        return found

    def table(*entries: tuple[Any, ...]) -> int:
        """Address of an array of structs of words and texts."""
        words = []
        for entry in entries:
            for x in entry:
                if isinstance(x, bytes):
                    text = ctypes.create_string_buffer(x)
                    _kept.append(text)
                    x = ctypes.addressof(text)
                words.append(x)
        made = (ctypes.c_int64 * len(words))(*words)
        _kept.append(made)
        return ctypes.addressof(made)

    nothing = (0,) * 5
    member_table = table(
        (b"__vectorcalloffset__", _SSIZE, _CALLED, _READ_ONLY, 0),
        (b"__dictoffset__", _SSIZE, _DICT, _READ_ONLY, 0),
        nothing,
    )
    getset = table(
        (b"__dict__", address("PyObject_GenericGetDict"), address("PyObject_GenericSetDict"), 0, 0),
        nothing,
    )
    slots = table(
        (_SLOT_CALL, address("PyVectorcall_Call")),
        (_SLOT_GET, bound),
        (_SLOT_MEMBERS, member_table),
        (_SLOT_GETSET, getset),
        (0, 0),
    )
    name = ctypes.create_string_buffer(b"oneflow.Shortcut")
    spec = struct.pack("@QiiIQ", ctypes.addressof(name), _SIZE, 0, _FLAGS, slots)
    memory = ctypes.create_string_buffer(spec)
    _kept.extend([name, memory])
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(("PyType_FromSpec", api))
    made = make(ctypes.addressof(memory))
    made.__reduce__ = lambda short: short.__qualname__  # found by name, as functions are
    made.called = called
    made.known = ctypes.addressof(_globals())
    return made


def _offsets(kind: type, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Offsets of slots of an object: the descriptor of a member holds its PyMemberDef, which has
    it."""
    found = []
    for name in names:
        slot = next(vars(base)[name] for base in kind.__mro__ if name in vars(base))
        definition = ctypes.c_int64.from_address(id(slot) + _HEAD + 3 * WORD).value
        found.append((name, ctypes.c_ssize_t.from_address(definition + 2 * WORD).value))
    return tuple(found)


@cache
def _globals() -> Any:
    """The words that every shortcut points at."""
    rows = (ctypes.c_int64 * (ROWS * ROW // WORD))()
    objects = {
        "tensor": Tensor, "parameter": Tensor, "array": np.ndarray, "float": float, "int": int,
        "tuple": tuple, "slice": slice, "none": None, "false": False, "zero": 0,
        "cpu": cpu_device(), "state": dispatch.thread_state(), "mode": "mode", "eager": EAGER,
        "eager_type": Eager, "context": quiet_context(), "numpy": np, "learn": learn,
        "record": _record, "link": _link, "extra": Extra, "view": View, "node": OpNode,
        "shared": SHARED, "true": True, "no_hooks": (), "grad_state": state, "enabled": "enabled",
        "saved_hooks": "saved_hooks", "numbers": numbers, "out": ("out",), "exception": Exception,
    }  # fmt: skip
    words = {name: id(x) for name, x in objects.items()}
    words |= {
        "rows": ctypes.addressof(rows),
        "new_array": _of_numpy(94),
        "set_base": _of_numpy(282),
    }
    made = (ctypes.c_int64 * len(GLOBALS))(*[words[name] for name in GLOBALS])
    _kept.extend([rows, objects, made])
    return made


def _of_numpy(index: int) -> int:
    """Address of a function of NumPy's C API: PyArray_NewFromDescr is number 94 of its table,
    PyArray_SetBaseObject number 282."""
    umath = importlib.import_module("numpy._core._multiarray_umath")
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    start = get(("PyCapsule_GetPointer", ctypes.pythonapi))(umath._ARRAY_API, None)
    return ctypes.c_int64.from_address(start + index * WORD).value


def shortcut(function: F) -> F:
    """`function`, with a short way for calls that it has had before."""
    if not is_possible():
        return function
    kind = _made_class()
    made = kind()
    for at, word in ((_CALLED, kind.called), (_FUNCTION, id(function)), (_GLOBALS, kind.known)):
        ctypes.c_int64.from_address(id(made) + at).value = word
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(made, name, getattr(function, name))
    made.__dict__.update(function.__dict__)
    made.__wrapped__ = function
    _kept.append(made)
    short: F = made
    return short


def shortcut_class() -> Any:
    """The class of shortcuts; that of functions where there are none."""
    return _made_class() if is_possible() else FunctionType


def count_as_tensor(kind: type[Tensor]) -> None:
    """Let instances of a class take short ways as tensors do: of parameters."""
    global _KINDS
    _KINDS = (Tensor, kind)
    if is_possible():
        _globals()[GLOBALS.index("parameter")] = id(kind)


@contextmanager
def plain_ways() -> Iterator[None]:
    """A block in which every call, of all threads, goes the plain way."""
    if not is_possible():
        yield
        return
    words, at = _globals(), GLOBALS.index("eager_type")
    before, words[at] = words[at], 0
    try:
        yield
    finally:
        words[at] = before
