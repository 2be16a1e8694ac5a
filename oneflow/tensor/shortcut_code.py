"""The machine code of shortcuts (shortcuts.py): functions of LLVM IR that call Python's C API.

Values are words of 64 bits: addresses of objects, and numbers. References are counted by Python's
own functions, and members are found at offsets that are asked for at run time (`Offsets`), so that
the code knows no layout but that of `PyObject` (a count, then the type), of `float`, of `slice` and
of an array of NumPy, all of which have stood for as long as CPython 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from oneflow.kernels.expressions.binding import FIRST_ARRAY
from oneflow.kernels.native.c_api import INT, Routine, module_text
from oneflow.kernels.native.llvm_code import Value

WORD = 8
TYPE = 8  # of every object
FLOAT = 16
SLICE = (16, 24, 32)  # start, stop, step
DATA, STRIDES, FLAGS = 16, 40, 64  # of an array of NumPy
WRITEABLE = 0x400

MOST_ARGUMENTS, MOST_OUTPUTS, MOST_ARRAYS, MOST_STEPS = 8, 4, 16, 8
MOST_UFUNC, MOST_LOOP = 4, 40
MOST_TENSORS = 32
"""Inputs and outputs of all steps of a plan."""
MOST_OWNED = 256
"""References that a call holds: no more than four for each array of a step, and three for it."""
ROWS, WAYS, ROW = 4096, 4, 16
"""Rows of the table of plans; rows in which a call may be; bytes of one: the call's hash, and the
address of its plan: 0 before it is made, 1 if there is none to be made."""
NO_PLAN = 1
HISTORY, IN_PYTHON = 1, 2
"""Whether a call may have a history: one that is written here, or one that Python sees to."""
WHOLE = -1
"""The result of a plan that is the tuple of all outputs of its last step."""

GLOBALS = (
    "tensor", "parameter", "array", "float", "int", "tuple", "slice",  # types
    "none", "false", "zero", "cpu", "state", "mode", "eager", "eager_type", "context", "numpy",
    "learn", "record", "link", "new_array", "set_base", "rows", "extra", "view", "node", "shared",
    "true", "no_hooks", "grad_state", "enabled", "saved_hooks", "numbers", "out", "exception",
)  # fmt: skip
"""Words of the table that every shortcut points at."""

PLAN = (
    "object", "function", "count", "total", "names", "tensors", "twins", "result",
    "num_recorded", "num_plain", *(f"argument{i}" for i in range(MOST_ARGUMENTS)),
    *(f"recorded{i}" for i in range(MOST_STEPS)), *(f"plain{i}" for i in range(MOST_STEPS)),
)  # fmt: skip
"""Words of a plan: the arguments that a call must have, and the addresses of its steps, for calls
with a history and for those without one. twins: a bit for each argument that is the one before it.
result: the number of the tensor that is returned."""

STEP = (
    "object", "is_view", "kernel", "first", "num_inputs", "num_outputs", "num_arrays", "offset",
    "source_ndim", "source_strides", "steps", "floats", "op", "call", "attrs", "count",
    "loop", "loop_words", "num_loop_words", "num_loop_arrays",
    "num_ufunc", *(f"ufunc{i}" for i in range(MOST_UFUNC)),
    *(f"input{i}" for i in range(MOST_ARGUMENTS)),
    *(f"type{i}" for i in range(MOST_OUTPUTS)),
    *(f"{what}{i}" for i in range(MOST_ARRAYS) for what in ("dtype", "ndim", "shape", "strides")),
)  # fmt: skip
"""Words of a step, the call of a kernel or the making of a view. inputs: the numbers of tensors:
arguments first, then the outputs of the steps. first: the number of its first output. steps: of
a view. floats: a bit for each output with a gradient; 0 if the call is not recorded here. count: of
outputs, as an object. ufunc: the arguments of a kernel that is a ufunc: places among those of a
kernel, or addresses of objects. loop: of a kernel that is a compiled loop, see
`CompiledKernel.as_words`."""


@dataclass(frozen=True)
class Offsets:
    """Offsets of members in bytes. members: of a tensor, by name. extra, view, node: of an `Extra`,
    a `View`, an `OpNode`. shortcut: of the function of a shortcut, which stands before the address
    of the globals. tuple_items: of the items of a tuple."""

    members: tuple[tuple[str, int], ...]
    extra: tuple[tuple[str, int], ...]
    view: tuple[tuple[str, int], ...]
    node: tuple[tuple[str, int], ...]
    shortcut: int
    tuple_items: int


def _at(base: Value, names: Sequence[str], name: str) -> Value:
    return base + names.index(name) * WORD


# ---- hashes and equality of arguments that are no tensors ----------------------------------------


def _write_mixed(offsets: Offsets) -> Routine:
    """`mixed(hash, x, globals)`: the hash of the earlier arguments and of `x`: of the value of a
    number, a tuple or a slice; of the identity of anything else."""
    r = Routine("mixed", ("before", "x", "globals"), "internal")
    x, known = r["x"], r["globals"]
    kind = r.load(x + TYPE)
    total = r.words()
    r.store(r["before"], total)

    def mix(word: Value) -> None:
        r.store((r.load(total) ^ word) * _SPREAD, total)

    def is_a(name: str) -> Value:
        return kind.compare("eq", r.load(_at(known, GLOBALS, name)))

    def inside(item: Value) -> None:
        r.store(r.call("mixed", r.load(total), item, known), total)

    def of_tuple() -> None:
        start = x + offsets.tuple_items
        r.each(r.call("PyTuple_Size", x), lambda i: inside(r.load(start + i * WORD)))

    def of_slice() -> None:
        for at in SLICE:
            inside(r.load(x + at))

    def other() -> None:
        r.either(
            is_a("int"),
            lambda: mix(r.call("PyObject_Hash", x)),
            lambda: r.either(is_a("float"), lambda: mix(r.load(x + FLOAT)), lambda: mix(x)),
        )

    r.either(is_a("tuple"), of_tuple, lambda: r.either(is_a("slice"), of_slice, other))
    r.code.do(f"ret i64 {r.load(total).name}")
    return r


_SPREAD = -7046029254386353131  # 2**64 over the golden ratio, an odd number


def _write_equal(offsets: Offsets) -> Routine:
    """`equal(x, y, globals)`: 1 if both are one object, or numbers, tuples or slices of one type
    and value; -0.0 is not 0.0 here, nor 1 True. `y` has no parts but such."""
    r = Routine("equal", ("x", "y", "globals"), "internal")
    x, y, known = r["x"], r["y"], r["globals"]
    no = "no"
    same = r.code.fresh("same")
    r.need(x.compare("ne", y), same)
    r.need((x.compare("ne", 0)) & (y.compare("ne", 0)), no)
    kind = r.load(x + TYPE)
    r.need(kind.compare("eq", r.load(y + TYPE)), no)

    def is_a(name: str) -> Value:
        return kind.compare("eq", r.load(_at(known, GLOBALS, name)))

    def alike(a: Value, b: Value) -> None:
        r.need(r.call("equal", a, b, known).compare("ne", 0), no)

    def of_tuple() -> None:
        count = r.call("PyTuple_Size", x)
        r.need(count.compare("eq", r.call("PyTuple_Size", y)), no)

        def of_item(i: Value) -> None:
            at = i * WORD + offsets.tuple_items
            alike(r.load(x + at), r.load(y + at))

        r.each(count, of_item)
        r.go(same)

    def of_slice() -> None:
        for at in SLICE:
            alike(r.load(x + at), r.load(y + at))
        r.go(same)

    def of_int() -> None:
        answer = r.call("PyObject_RichCompareBool", x, y, 2) & INT  # Py_EQ; an int
        r.need(answer.compare("eq", 1), no)
        r.go(same)

    def of_float() -> None:
        r.need(r.load(x + FLOAT).compare("eq", r.load(y + FLOAT)), no)
        r.go(same)

    r.when(is_a("int"), of_int)
    r.when(is_a("float"), of_float)
    r.when(is_a("tuple"), of_tuple)
    r.when(is_a("slice"), of_slice)
    r.label(no)
    r.answer(0)
    r.label(same)
    r.code.do("ret i64 1")
    return r


# ---- a call --------------------------------------------------------------------------------------


class _Call:
    """`vectorcall(shortcut, arguments, count, names)`: the function that Python calls for
    `f(*arguments)`.

    Any doubt, and any error, ends in a call of the function that the shortcut is for; an error that
    is no `Exception`, as of Ctrl-C, goes on to the caller.
    """

    def __init__(self, offsets: Offsets) -> None:
        self.offsets = offsets
        self.at, self.node_at = dict(offsets.members), dict(offsets.node)
        self.extra_at, self.view_at = dict(offsets.extra), dict(offsets.view)
        self.r = r = Routine("KERNEL", ("self", "arguments", "flagged", "names"))
        self.function = r.load(r["self"] + offsets.shortcut)
        self.known = r.load(r["self"] + (offsets.shortcut + WORD))
        self.count = r["flagged"] & ((1 << 63) - 1)  # PY_VECTORCALL_ARGUMENTS_OFFSET
        self.plan = self.step = r.number(0)
        self.owned, self.num_owned = r.words(MOST_OWNED), r.words()
        self.stack = r.words(1 + MOST_ARRAYS + MOST_ARGUMENTS)
        self.tensors, self.num_tensors = r.words(MOST_TENSORS), r.words()
        self.chosen, self.loop = r.words(MOST_UFUNC), r.words(MOST_LOOP)
        self.history, self.twins = r.words(), r.words()

    def written(self) -> Routine:
        r = self.r
        self._need_default_mode()
        total = r.words()
        r.store(self.count, total)
        r.when(
            r["names"].compare("ne", 0),
            lambda: r.store(self.count + r.call("PyTuple_Size", r["names"]), total),
        )
        self.total = r.load(total)
        r.need(self.total.compare("le", MOST_ARGUMENTS), "plain")
        self._find(self._hash())
        self._verify()
        self.own(r.hold(self.planned("object")))  # nobody throws the plan away in the meantime
        recorded = r.load(self.history).compare("ne", 0)
        start = recorded.choose(_at(self.plan, PLAN, "recorded0"), _at(self.plan, PLAN, "plain0"))
        count = recorded.choose(self.planned("num_recorded"), self.planned("num_plain"))
        r.each(count, lambda i: self._take(r.load(start + i * WORD)))
        self._end()
        return r

    def known_word(self, name: str) -> Value:
        return self.r.load(_at(self.known, GLOBALS, name))

    def planned(self, name: str) -> Value:
        return self.r.load(_at(self.plan, PLAN, name))

    def in_step(self, name: str) -> Value:
        return self.r.load(_at(self.step, STEP, name))

    def tensor(self, number: Value) -> Value:
        return self.r.load(self.tensors + number * WORD)

    def input(self, i: Value) -> Value:
        return self.tensor(self.r.load(_at(self.step, STEP, "input0") + i * WORD))

    def argument(self, i: Value) -> Value:
        return self.r.load(self.r["arguments"] + i * WORD)

    def member(self, x: Value, name: str) -> Value:
        return x + self.at[name]

    def _is_tensor(self, x: Value) -> Value:
        kind = self.r.load(x + TYPE)
        tensor, parameter = self.known_word("tensor"), self.known_word("parameter")
        return kind.compare("eq", tensor) | kind.compare("eq", parameter)

    def _hash(self) -> Value:
        """The hash of the function, of the types of tensors and the values of other arguments, and
        of tensors that come twice in a row, as in x * x."""
        r = self.r
        found, before = r.words(), r.words()
        r.store(self.function, found)

        def of_argument(i: Value) -> None:
            x = self.argument(i)
            is_twin = x.compare("eq", r.load(before)).to("i64", signed=False)
            r.store(r.load(self.twins) | (is_twin << i), self.twins)
            r.store(x, before)
            r.either(
                self._is_tensor(x),
                lambda: r.store((r.load(found) ^ r.load(self.member(x, "meta"))) * _SPREAD, found),
                lambda: r.store(r.call("mixed", r.load(found), x, self.known), found),
            )

        r.each(self.total, of_argument)
        mixed = (r.load(found) ^ r.load(self.twins)) * _SPREAD
        return mixed | 1  # no hash is 0, as in empty rows

    def _find(self, found: Value) -> None:
        """The plan of the call. A call that comes for the first time leaves its hash in a row; one
        that comes for the second time is learned."""
        r = self.r
        first = self.known_word("rows") + ((found >> 32) & (ROWS - WAYS)) * ROW
        row = r.words()
        r.store(first + ((found >> 20) & (WAYS - 1)) * ROW, row)  # where it goes if it is new
        for way in range(WAYS):
            here = first + way * ROW
            r.when(r.load(here).compare("eq", 0), partial(r.store, here, row))
        for way in range(WAYS):
            here = first + way * ROW
            r.when(r.load(here).compare("eq", found), partial(r.store, here, row))
        row = r.load(row)

        def note() -> None:
            r.store(found, row)
            r.store(0, row + WORD)
            r.go("plain")

        r.when(r.load(row).compare("ne", found), note)
        self.plan = r.load(row + WORD)
        r.when(self.plan.compare("eq", 0), lambda: self._learn(row))
        r.need(self.plan.compare("ne", NO_PLAN), "plain")

    def _learn(self, row: Value) -> None:
        """Have the call made by `learn(row, function, *arguments)`, which may write a plan."""
        r = self.r
        r.store(NO_PLAN, row + WORD)
        number = r.call("PyLong_FromLongLong", row)
        r.need(number.compare("ne", 0), "plain")
        r.store(number, self.stack)
        r.store(self.function, self.stack + WORD)
        r.each(
            self.total,
            lambda i: r.store(self.argument(i), self.stack + 2 * WORD + i * WORD),
        )
        learn = self.known_word("learn")
        made = r.call("PyObject_Vectorcall", learn, self.stack, self.count + 2, r["names"])
        r.drop(number)
        r.answer(made)

    def _need_default_mode(self) -> None:
        """Go on in a thread that has entered no mode, while no worker overlaps calls."""
        r = self.r
        eager = self.known_word("eager")
        r.need(r.load(eager + TYPE).compare("eq", self.known_word("eager_type")), "plain")
        none = self.known_word("none")
        mode = r.call("PyObject_GetAttr", self.known_word("state"), self.known_word("mode"))
        r.need(mode.compare("ne", 0), "failed")
        r.drop(mode)
        r.need(mode.compare("eq", none), "plain")

    def _verify(self) -> None:
        """Go on if it is the call of the plan, of local tensors on the CPU."""
        r, none = self.r, self.known_word("none")
        r.need(self.planned("function").compare("eq", self.function), "plain")
        r.need(self.planned("count").compare("eq", self.count), "plain")
        r.need(self.planned("total").compare("eq", self.total), "plain")
        r.need(self.planned("twins").compare("eq", r.load(self.twins)), "plain")
        equal = r.call("equal", r["names"], self.planned("names"), self.known)
        r.need(equal.compare("ne", 0), "plain")
        tensors, false = self.planned("tensors"), self.known_word("false")

        def of_view(x: Value, view: Value) -> None:
            """Its base may have been written to since its history was taken."""
            at = r.load(view + self.view_at["history_at"])
            is_new = at.compare("ne", self._version_of(x))
            r.when(is_new, lambda: r.store(IN_PYTHON, self.history))

        def of_argument(i: Value) -> None:
            x = self.argument(i)
            wanted = r.load(_at(self.plan, PLAN, "argument0") + i * WORD)

            def of_tensor() -> None:
                r.need(self._is_tensor(x), "plain")
                r.need(r.load(self.member(x, "meta")).compare("eq", wanted), "plain")
                r.need(r.load(self.member(x, "_placement")).compare("eq", none), "plain")
                cpu = self.known_word("cpu")
                r.need(r.load(self.member(x, "_device")).compare("eq", cpu), "plain")
                array = r.load(self.member(x, "_array"))
                r.need(array.compare("ne", 0), "plain")
                r.need(r.load(array + TYPE).compare("eq", self.known_word("array")), "plain")
                number = r.load(self.num_tensors)
                r.store(x, self.tensors + number * WORD)
                r.store(number + 1, self.num_tensors)
                wants = r.load(self.member(x, "_requires_grad"))
                r.when(wants.compare("ne", false), lambda: r.store(HISTORY, self.history))
                self._when_view(x, partial(of_view, x))

            def of_value() -> None:
                equal = r.call("equal", x, wanted, self.known)
                r.need(equal.compare("ne", 0), "plain")

            is_tensor = ((tensors >> i) & 1).compare("ne", 0)
            r.either(is_tensor, of_tensor, of_value)

        r.each(self.total, of_argument)
        r.when(r.load(self.history).compare("ne", 0), self._ask_for_histories)

    def _ask_for_histories(self) -> None:
        """Whether this thread records, and whether it does so in a special way."""
        r = self.r
        state = self.known_word("grad_state")
        enabled = r.call("PyObject_GetAttr", state, self.known_word("enabled"))
        r.need(enabled.compare("ne", 0), "failed")
        r.drop(enabled)
        is_off = enabled.compare("ne", self.known_word("true"))
        r.when(is_off, lambda: r.store(0, self.history))
        hooks = r.call("PyObject_GetAttr", state, self.known_word("saved_hooks"))
        r.need(hooks.compare("ne", 0), "failed")
        r.drop(hooks)
        are_there = hooks.compare("ne", self.known_word("no_hooks"))
        recorded = r.load(self.history).compare("ne", 0)
        r.when(are_there & recorded, lambda: r.store(IN_PYTHON, self.history))

    def _when_view(self, x: Value, body: Callable[[Value], None]) -> None:
        """`body(view)` if `x` is one."""
        r, none = self.r, self.known_word("none")
        extra = r.load(self.member(x, "_extra"))

        def look() -> None:
            view = r.load(extra + self.extra_at["view"])
            r.when(view.compare("ne", none), lambda: body(view))

        r.when(extra.compare("ne", none), look)

    def _version_of(self, x: Value) -> Value:
        """The number of writes, as an object."""
        return self.r.call("PyList_GetItem", self.r.load(self.member(x, "_version")), 0)

    def own(self, x: Value, otherwise: str = "failed") -> Value:
        """Let a new reference go when the call ends; 0: there was an error."""
        r = self.r
        r.need(x.compare("ne", 0), otherwise)
        number = r.load(self.num_owned)
        r.store(x, self.owned + number * WORD)
        r.store(number + 1, self.num_owned)
        return x

    def _take(self, step: Value) -> None:
        """A step: its outputs become tensors."""
        r = self.r
        self.step = step
        r.either(self.in_step("is_view").compare("ne", 0), self._view, self._compute)

    def _view(self) -> None:
        r = self.r
        x = self.input(r.number(0))
        source = r.load(self.member(x, "_array"))
        known, strides = self.in_step("source_strides"), r.load(source + STRIDES)

        def of_dim(i: Value) -> None:
            here = r.load(strides + i * WORD)
            r.need(here.compare("eq", r.load(known + i * WORD)), "plain_owned")

        r.each(self.in_step("source_ndim"), of_dim)
        data = r.load(source + DATA) + self.in_step("offset")
        flags = r.load(source + FLAGS, "i32") & WRITEABLE
        made = self._array(r.number(0), data, flags)
        r.hold(source)  # as the array does from here on
        done = r.call(self.known_word("set_base"), made, source) & INT
        r.need(done.compare("eq", 0), "failed")
        self._tensor(r.number(0), made, r.hold(r.load(self.member(x, "_version"))))
        self._link(x, self.tensor(self.in_step("first")))
        self._when_recorded()

    def _link(self, x: Value, out: Value) -> None:
        """Link a view as `link_view` does, to which rare ones are left: those of a tensor that
        became one itself, and those whose values are their own."""
        r, none = self.r, self.known_word("none")
        base, steps = r.words(), r.words()
        r.store(x, base)
        r.store(r.hold(self.in_step("steps")), steps)
        python, done = r.code.fresh("python"), r.code.fresh("done")

        def of_view(view: Value) -> None:
            detached = r.load(view + self.view_at["is_detached"])

            def of_base() -> None:
                lies = r.load(view + self.view_at["taken_at"])
                r.need(lies.compare("eq", self.known_word("shared")), python)
                root = r.load(view + self.view_at["_base"])
                r.need(r.load(self.member(root, "_extra")).compare("eq", none), python)
                before = r.load(view + self.view_at["steps"])
                r.store(root, base)
                r.drop(r.load(steps))
                r.store(r.call("PySequence_Concat", before, self.in_step("steps")), steps)
                r.need(r.load(steps).compare("ne", 0), "failed")

            r.when(detached.compare("eq", self.known_word("false")), of_base)

        self._when_view(x, of_view)
        false = self.known_word("false")
        view = self._made("view", self.view_at, {
            "_base": r.hold(r.load(base)), "steps": r.load(steps), "is_detached": r.hold(false),
            "taken_at": r.hold(self.known_word("shared")),
            "history_at": r.hold(self._version_of(x)),
        })  # fmt: skip
        extra = self._made("extra", self.extra_at, {
            "hooks": r.call("PyDict_New"), "post_accumulate": r.call("PyDict_New"),
            "view": view, "copied": r.hold(false), "retains": r.hold(false),
        })  # fmt: skip
        r.drop(none)
        r.store(extra, self.member(out, "_extra"))
        r.go(done)
        r.label(python)
        r.drop(r.load(steps))
        self._tell("link")
        r.label(done)

    def _made(self, name: str, at: Mapping[str, int], members: Mapping[str, Value]) -> Value:
        """A new object of a type. members: new references, which it takes; it has None for the
        others."""
        r = self.r
        x = r.call("PyType_GenericAlloc", self.known_word(name), 0)
        r.need(x.compare("ne", 0), "failed")
        for member, offset in at.items():
            found = members.get(member)
            r.store(r.hold(self.known_word("none")) if found is None else found, x + offset)
        return x

    def _compute(self) -> None:
        """The kernel on new arrays."""
        r = self.r
        num_outputs, num_inputs = self.in_step("num_outputs"), self.in_step("num_inputs")
        num_arrays = self.in_step("num_arrays")
        r.store(self.known_word("numpy"), self.stack)

        def of_array(i: Value) -> None:
            made = self._array(i)
            is_work = i.compare("ge", num_outputs)
            place = is_work.choose(i + num_inputs, i)  # inputs come between
            r.store(made, self.stack + WORD + place * WORD)
            r.when(is_work ^ 1, lambda: self._tensor(i, made, self._new_version()))

        def of_input(i: Value) -> None:
            array = r.load(self.member(self.input(i), "_array"))
            self.own(r.hold(array))
            r.store(array, self.stack + WORD + (num_outputs + i) * WORD)

        r.each(num_arrays, of_array)
        r.each(num_inputs, of_input)
        done = r.code.fresh("done")
        r.when(self.in_step("loop").compare("ne", 0), partial(self._loop, done))
        self._kernel()
        r.label(done)
        self._when_recorded()

    def _loop(self, done: str) -> None:
        """Go to `done` after the compiled loop; go on where it refuses its arrays."""
        r = self.r
        source = self.in_step("loop_words")

        def of_word(i: Value) -> None:
            r.store(r.load(source + i * WORD), self.loop + i * WORD)

        def of_array(i: Value) -> None:
            at = self.loop + (i + FIRST_ARRAY) * WORD
            r.store(r.load(self.stack + (r.load(at) + 1) * WORD), at)

        r.each(self.in_step("num_loop_words"), of_word)
        r.each(self.in_step("num_loop_arrays"), of_array)
        refused = r.call(self.in_step("loop"), self.loop, 0) & INT
        r.need(refused.compare("ne", 0), done)

    def _kernel(self) -> None:
        """The function of Python or of NumPy, unheard (kernels/quiet.py)."""
        r = self.r
        num_inputs, num_arrays = self.in_step("num_inputs"), self.in_step("num_arrays")
        context = self.known_word("context")
        entered = r.call("PyContext_Enter", context) & INT
        r.need(entered.compare("eq", 0), "failed")
        given, count, names = r.words(), r.words(), r.words()
        r.store(0, names)
        r.store(self.stack, given)
        r.store(num_arrays + num_inputs + 1, count)
        num_ufunc = self.in_step("num_ufunc")

        def of_ufunc() -> None:
            r.store(self.chosen, given)
            r.store(num_ufunc - 1, count)
            r.store(self.known_word("out"), names)  # the last one goes by its name

            def of_argument(i: Value) -> None:
                x, at = r.load(_at(self.step, STEP, "ufunc0") + i * WORD), self.chosen + i * WORD
                is_place = x.compare("lt", MOST_ARRAYS + MOST_ARGUMENTS, signed=False)
                r.either(
                    is_place,
                    lambda: r.store(r.load(self.stack + (x + 1) * WORD), at),
                    lambda: r.store(x, at),
                )

            r.each(num_ufunc, of_argument)

        r.when(num_ufunc.compare("ne", 0), of_ufunc)
        kernel = self.in_step("kernel")
        done = r.call("PyObject_Vectorcall", kernel, r.load(given), r.load(count), r.load(names))
        r.call("PyContext_Exit", context)
        self.own(done)

    def _when_recorded(self) -> None:
        r = self.r
        how, floats = r.load(self.history), self.in_step("floats")
        is_usual = how.compare("eq", HISTORY) & floats.compare("ne", 0)

        def record() -> None:
            r.either(is_usual, self._record, lambda: self._tell("record"))

        r.when(how.compare("ne", 0), record)

    def _record(self) -> None:
        """Record an op with a gradient as `record` does, unless no input has a history."""
        r = self.r
        num_inputs, num_outputs = self.in_step("num_inputs"), self.in_step("num_outputs")
        false, none = self.known_word("false"), self.known_word("none")
        done, first = r.code.fresh("done"), self.in_step("first")
        is_wanted = r.words()

        def look(i: Value) -> None:
            wants = r.load(self.member(self.input(i), "_requires_grad"))
            r.when(wants.compare("ne", false), lambda: r.store(1, is_wanted))

        r.store(0, is_wanted)
        r.each(num_inputs, look)
        r.need(r.load(is_wanted).compare("ne", 0), done)
        edges, inputs = r.call("PyList_New", num_inputs), r.call("PyList_New", num_inputs)
        outputs = r.call("PyList_New", num_outputs)
        for made in (edges, inputs, outputs):
            r.need(made.compare("ne", 0), "failed")

        def of_input(i: Value) -> None:
            x = self.input(i)
            version = self._version_of(x)
            r.call("PyList_SetItem", inputs, i, self._packed(x, version))
            edge, node = r.words(), r.load(self.member(x, "_grad_fn"))
            r.store(none, edge)
            wants = r.load(self.member(x, "_requires_grad")).compare("ne", false)
            is_leaf = node.compare("eq", none)
            target = is_leaf.choose(x, node)
            index = is_leaf.choose(self.known_word("shared"), r.load(self.member(x, "_out_index")))
            r.either(
                wants,
                lambda: r.store(self._packed(target, index), edge),
                lambda: r.store(r.hold(none), edge),
            )
            r.call("PyList_SetItem", edges, i, r.load(edge))

        r.each(num_inputs, of_input)
        node = self._made("node", self.node_at, {
            "edges": edges, "inputs": inputs, "outputs": outputs,
            "number": r.call("PyIter_Next", self.known_word("numbers")),
            "num_outputs": r.hold(self.in_step("count")), "released": r.hold(false),
            "is_packed": r.hold(false),
            **{name: r.hold(self.in_step(name)) for name in ("op", "call", "attrs")},
        })  # fmt: skip
        self.own(node)
        floats, true = self.in_step("floats"), self.known_word("true")

        def of_output(i: Value) -> None:
            y = self.tensor(first + i)
            names = ("meta", "_array", "_device", "value", "_placement", "_sbp", "_version")
            kept = [r.load(self.member(y, name)) for name in names]
            r.call("PyList_SetItem", outputs, i, self._packed(*kept, self._version_of(y)))

            def attach() -> None:
                r.drop(false)
                r.store(r.hold(true), self.member(y, "_requires_grad"))
                r.drop(none)
                r.store(r.hold(node), self.member(y, "_grad_fn"))
                r.drop(self.known_word("zero"))
                r.store(r.call("PyLong_FromLongLong", i), self.member(y, "_out_index"))

            r.when(((floats >> i) & 1).compare("ne", 0), attach)

        r.each(num_outputs, of_output)
        r.label(done)

    def _packed(self, *items: Value) -> Value:
        """A tuple."""
        r = self.r
        made = r.call("PyTuple_New", len(items))
        r.need(made.compare("ne", 0), "failed")
        for i, x in enumerate(items):
            r.call("PyTuple_SetItem", made, i, r.hold(x))
        return made

    def _tell(self, name: str) -> None:
        """Call the function `name` of Python with the step, its outputs and its inputs."""
        r = self.r
        num_outputs, num_inputs = self.in_step("num_outputs"), self.in_step("num_inputs")
        first = self.in_step("first")
        r.store(self.in_step("object"), self.stack)
        start = self.stack + WORD
        r.each(num_outputs, lambda i: r.store(self.tensor(first + i), start + i * WORD))
        after = start + num_outputs * WORD
        r.each(num_inputs, lambda i: r.store(self.input(i), after + i * WORD))
        count = num_outputs + num_inputs + 1
        self.own(r.call("PyObject_Vectorcall", self.known_word(name), self.stack, count, 0))

    def _array(self, i: Value, data: Value | int = 0, flags: Value | int = 0) -> Value:
        """The new array of a number in the step; data, flags: of the memory that it shares."""
        r = self.r
        entry = _at(self.step, STEP, "dtype0") + i * (4 * WORD)
        dtype, ndim, shape, strides = (r.load(entry + k * WORD) for k in range(4))
        kind = self.known_word("array")
        r.hold(dtype)  # which the call takes over
        given = (kind, dtype, ndim, shape, 0 if isinstance(data, int) else strides, data, flags, 0)
        return self.own(r.call(self.known_word("new_array"), *given))

    def _tensor(self, i: Value, array: Value, version: Value) -> None:
        """Output `i` of the step: a new tensor over an array. version: a new reference."""
        r = self.r
        members = {
            "meta": r.load(_at(self.step, STEP, "type0") + i * WORD),
            "_array": array,
            "_device": self.known_word("cpu"),
            "_requires_grad": self.known_word("false"),
            "_out_index": self.known_word("zero"),
        }
        held = {name: r.hold(x) for name, x in members.items()}
        x = self.own(self._made("tensor", self.at, {**held, "_version": version}))
        r.store(x, self.tensors + (self.in_step("first") + i) * WORD)

    def _new_version(self) -> Value:
        r = self.r
        version = r.call("PyList_New", 1)
        r.need(version.compare("ne", 0), "failed")
        r.call("PyList_SetItem", version, 0, r.hold(self.known_word("zero")))
        return version

    def _end(self) -> None:
        r = self.r
        result = r.words()

        def of_all() -> None:
            """Those of the last step, which are the last tensors."""
            count, first = self.in_step("num_outputs"), self.in_step("first")
            made = r.call("PyTuple_New", count)
            r.need(made.compare("ne", 0), "failed")

            def of_output(i: Value) -> None:
                r.call("PyTuple_SetItem", made, i, r.hold(self.tensor(first + i)))

            r.each(count, of_output)
            r.store(made, result)

        def of_one() -> None:
            r.store(r.hold(self.tensor(self.planned("result"))), result)

        self.step = r.load(
            _at(self.plan, PLAN, "recorded0") + (self.planned("num_recorded") - 1) * WORD
        )
        r.either(self.planned("result").compare("eq", WHOLE), of_all, of_one)
        self._let_go()
        r.answer(r.load(result))
        r.label("failed")
        r.need(r.call("PyErr_Occurred").compare("ne", 0), "plain_owned")
        is_error = r.call("PyErr_ExceptionMatches", self.known_word("exception")) & INT
        r.need(is_error.compare("ne", 0), "interrupted")
        r.call("PyErr_Clear")
        r.label("plain_owned")
        self._let_go()
        r.label("plain")
        given = self.function, r["arguments"], r["flagged"], r["names"]
        r.answer(r.call("PyObject_Vectorcall", *given))
        r.label("interrupted")
        self._let_go()
        r.code.do("ret i64 0")

    def _let_go(self) -> None:
        r = self.r
        r.each(r.load(self.num_owned), lambda i: r.drop(r.load(self.owned + i * WORD)))
        r.store(0, self.num_owned)


def call_text(offsets: Offsets) -> str:
    """LLVM IR of the function that Python calls for a shortcut."""
    return module_text(_write_mixed(offsets), _write_equal(offsets), _Call(offsets).written())


def bind_text() -> str:
    """LLVM IR of `get(shortcut, object, type)`: the method of an object, as a function has it."""
    r = Routine("KERNEL", ("self", "object", "type"))
    r.when(r["object"].compare("eq", 0), lambda: r.answer(r.hold(r["self"])))
    r.code.do(f"ret i64 {r.call('PyMethod_New', r['self'], r['object']).name}")
    return module_text(r)
