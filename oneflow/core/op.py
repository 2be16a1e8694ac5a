"""The declaration of an op: one class holds all that is true of it in every mode.

A declaration is a subclass of `Op` in `oneflow/ops`; its arithmetic is a kernel of the same name.
`declare` registers the class and gives the callable with which everybody runs the op:

    class Relu(Op):
        name = "relu"
        @staticmethod
        def infer(x: Operand) -> TensorType: return x.meta
        @staticmethod
        def sbp(x: TensorType) -> list[SbpSignature]: return elementwise_signatures(x)
        @staticmethod
        def grad(d_out: Tensor, x: Tensor, out: Tensor) -> Gradients:
            return (lambda: relu_grad(d_out, out),)

    relu = declare(Relu)

`infer` has the op's only signature: the operands, then the attrs, keyword-only, with their types
and defaults. The callable takes the same, and returns a tensor for each TensorType that `infer`
returns; type checkers know both. `infer`, `sbp`, `sbp_for` and `grad` are given every attr, those
with defaults too.

`grad` is called with the output gradients (None where there is none), the inputs, the outputs, then
the attrs as keywords, and returns one entry per input: a tensor, None, or a function called only if
that gradient is needed. It is written with ops, so gradients are differentiable, boxable and
traceable.
"""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, ParamSpec, Protocol, TypeVar, overload

from oneflow.core.dispatch import call
from oneflow.core.errors import CallError, GraphError, InternalError
from oneflow.core.operand import Attrs, Gradients, Tensor
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, Sbp, SbpSignature, Split
from oneflow.core.tensor_type import TensorType

if TYPE_CHECKING:
    from oneflow.core.parts import Parts
    from oneflow.core.precision import Precision

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


@dataclass(frozen=True)
class Box:
    """The part of a global tensor that one rank holds: [start, stop) along every dim.

    is_first: for partial sums and broadcasts: is this the first rank of its group along all P and B
    axes.
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    is_first: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in zip(self.starts, self.stops, strict=True))

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(a, b) for a, b in zip(self.starts, self.stops, strict=True))


Boxes = tuple[Box, ...]
"""Boxes of all inputs, or of all outputs, of an op on one rank."""


class Factors(NamedTuple):
    """A product of two matrices of rows of their last dim, which may have more dims before.

    operands: their positions.  turned: which of them are transposed.  bias: the position of the
    addend of each row.
    """

    operands: tuple[int, int]
    turned: tuple[bool, bool]
    bias: int | None = None


def _last_dim(*_: object, **__: object) -> int:
    return 1


def _no_types(*_: object, **__: object) -> TensorType:
    raise InternalError("an op without type inference")


def _no_signatures(*_: object, **__: object) -> list[SbpSignature]:
    return []


def _no_gradients(*_: object, **__: object) -> Gradients:
    return ()


class OpClass(type):
    """The class of declarations: calling one runs the op instead of making an instance."""

    __call__ = call


class Op(metaclass=OpClass):
    """Base of all declarations. Subclasses are never instantiated: calling one runs the op."""

    name: ClassVar[str] = ""
    num_outputs: ClassVar[int] = 1
    """-1: it follows from inputs and attrs. Read from what `infer` is annotated to return."""
    is_random: ClassVar[bool] = False
    """The kernel gets `rng=Rng(...)` (oneflow/core/rng.py); the attrs carry `seed`."""
    is_view: ClassVar[bool] = False
    """The output may share the memory of input 0 (the kernel table then has a view function)."""
    is_alias: ClassVar[bool] = False
    """The output of a node is the memory of input 0 (the kernel table has a view function). Unlike
    a view it is a tensor of its own to the program, which does not write to it."""
    is_conversion: ClassVar[bool] = False
    """It gives input 0 another dtype or shape and does nothing else: where the result has the type
    of that input, it is that input."""
    mutates: ClassVar[dict[int, int]] = {}
    """output index -> index of the input whose memory it overwrites (optimizer updates, moving
    averages)."""
    has_effect: ClassVar[bool] = False
    """Not to be removed although nobody reads its outputs."""

    is_conjugating: ClassVar[bool] = True
    """`grad` gets the conjugates of complex output gradients, and its results are conjugated: right
    for every function that is differentiable as a complex one."""

    may_repeat: ClassVar[bool] = True
    """Whether every rank may do the same: all-B is a valid signature. False: on several ranks the
    op has the signatures that `sbp` lists, and no other."""

    formula: ClassVar[Callable[..., Any] | None] = None
    """`formula(*types, **attrs)`: the outputs as expressions (core/expression.py) of the operands'
    names; kernels of every device follow from it. Operands that it reads as scalars are 0-d."""
    derivative: ClassVar[Callable[..., Any] | None] = None
    """`derivative(*types, **attrs)`: the gradient of the only input as an expression of `adjoint`,
    the input's name and `result`; None: what the formula gives. For formulas whose own derivative
    is inexact or costly: at corners, or where an intermediate result is infinite."""
    is_named_formula: ClassVar[bool] = False
    """`formula()` takes nothing: a derivative that equals it is emitted as this op."""
    per_row: ClassVar[frozenset[str]] = frozenset()
    """Operands of a formula with reductions that have one element per row, and lack its dims."""

    @classmethod
    def rows(cls, attrs: Attrs) -> frozenset[str]:
        """`per_row` of a call with `attrs`."""
        return cls.per_row

    row_dims: ClassVar[Callable[..., int]] = staticmethod(_last_dim)
    """`row_dims(*types, **attrs)`: number of trailing dims that reductions in `formula` run
    over."""

    declared_by: ClassVar[Callable[..., Any] | None] = None
    """The function whose keyword-only parameters are the attrs, where that is not `infer`."""
    operands: ClassVar[tuple[str, ...]] = ()
    """Names of the positional parameters of `infer`. Read from the declaration, as are the next."""
    defaults: ClassVar[Attrs] = {}
    """Defaults of attrs. `declare` adds those that the signature of `infer` gives."""
    attrs: ClassVar[frozenset[str] | None] = frozenset()
    """Their names, as `infer` takes them. Set by `declare`, as is `has_gradient`."""
    check: ClassVar[Callable[..., None] | None] = None
    """`check(**attrs)`: raises ValueError for attrs that fit no operand, where they can be told
    before there is one: a layer calls it when it is made."""
    has_gradient: ClassVar[bool] = False

    infer: ClassVar[Callable[..., TensorType | tuple[TensorType, ...]]] = staticmethod(_no_types)
    """`infer(*types, **attrs)`: output types of input types. Raises ShapeError or DTypeError naming
    the op, what it got and wanted."""

    sbp: ClassVar[Callable[..., list[SbpSignature]]] = staticmethod(_no_signatures)
    """`sbp(*types, **attrs)`: valid signatures over one hierarchy axis, besides all-B (which is
    valid but for ops that may not repeat, and added by the caller)."""

    grad: ClassVar[Callable[..., Gradients]] = staticmethod(_no_gradients)
    """`grad(*tensors, **attrs)`: input gradients; see the top of this file. The default: the op has
    none."""

    recorded_grad: ClassVar[Callable[..., Gradients] | None] = None
    """`grad` in ops that have gradients themselves, where `grad` uses one that has none; taken
    where the backward pass is recorded (create_graph)."""

    written: ClassVar[Callable[..., Any] | None] = None
    """`written(*tensors, **attrs)`: the first outputs as made of ops that have gradients of every
    order. Where a backward pass is recorded, its gradient is taken instead of `grad`."""

    is_flat: ClassVar[bool] = False
    """Nothing is lost where the recording of a backward pass ends at the op: its derivative is 0,
    or is contained in another op's gradient. Any other op without `grad` refuses a second
    derivative."""

    sbp_for: ClassVar[Callable[..., list[SbpSignature]] | None] = None
    """`sbp_for(num_ranks, *types, **attrs)`: as `sbp`, for a known number of ranks; only for ops
    where that number decides what is valid (reshape). num_ranks: into how many parts one dim may be
    cut: the axis's size, or the product of the hierarchy where several axes may split one dim."""

    kept: ClassVar[Callable[..., NdSbp | None] | None] = None
    """`kept(nd_sbp, hierarchy, x, **attrs)`: the layout of the result if each rank makes of its own
    shard its own part of the result, over all axes of a hierarchy together; None: no layout says
    what that gives. Only for ops of which the axes' signatures one by one do not tell it
    (reshape)."""

    localize: ClassVar[Callable[..., Attrs] | None] = None
    """`localize(attrs, in_boxes, out_boxes) -> attrs` of one rank's shard, for ops whose attrs
    speak of global positions."""

    by_parts: ClassVar[Callable[..., tuple[Any, ...]] | None] = None
    """`by_parts(*tensors, **attrs)`: the outputs, of other ops that overwrite the same operands and
    run on parts of them; of an update that itself needs whole ones."""

    undo: ClassVar[Callable[..., Any] | None] = None
    """`undo(x, part, **attrs)`: x with the view that the op makes of it replaced by `part`, written
    with ops; only for views of which no two elements are one in memory."""

    parts: ClassVar[Callable[..., Parts | None] | None] = None
    """`parts(*types, **attrs)`: where elements go, for ops that pick, place or reorder positions
    along dims that no signature keeps split (core/parts.py)."""

    place: ClassVar[Callable[..., Box | None] | None] = None
    """`place(*types, **attrs)`, of one rank's attrs: the box of the result, zero elsewhere, that is
    the operand; None: the call gives something else."""

    joins: ClassVar[Callable[..., int] | None] = None
    """`joins(*types, **attrs)`: the dim along which the result is the operands, one after
    another."""

    moves_rows: ClassVar[bool] = False
    """True of an op that, on as many ranks as it has parts (`num_parts`), runs no kernel but moves
    rows between them (boxing/rows.py); its tensors then are split along dim 0."""

    positions: ClassVar[Callable[..., dict[int, range]] | None] = None
    """`positions(*types, **attrs)`, of whole tensors: by the number of an operand that holds
    positions (indices, labels), the values that it may have; `ignore_index` is allowed besides.
    Checked before every call, whole or on a shard."""

    precision: ClassVar[Precision | None] = None
    """The part it plays in mixed precision; None: derived from the formula. See
    core/precision.py."""

    widens: ClassVar[tuple[str, ...] | None] = None
    """Kinds of devices on which `autocast` has the op run in float32, as PyTorch's lists have it;
    None: GPUs, if it keeps float32."""

    stays_wide: ClassVar[Collection[int]] = ()
    """Operands that are not lowered with the others: statistics, and weights that may be wider."""

    reads_half: ClassVar[Collection[int]] = ()
    """Operands that come in half floats as they are where the op is not lowered, because the dtype
    of its results does not depend on theirs."""

    picks: ClassVar[bool] = False
    """Reads no more of its first input than it writes."""

    flops: ClassVar[Callable[..., int] | None] = None
    """`flops(*types, **attrs)`: floating-point operations of a call, of which a product of matrices
    of (m, k) and (k, n) has 2 m k n; None: one for each function of the formula and element, and
    none without a formula."""

    factors: ClassVar[Callable[..., Factors | None] | None] = None
    """`factors(*types, **attrs)`: the product that a call is; None: it is none of two matrices."""

    uniform: ClassVar[Callable[..., Collection[int]] | None] = None
    """`uniform(*types, **attrs)`: the dims of the output along which all elements are equal,
    whatever the inputs hold; for ops that fill or repeat."""


REGISTRY: dict[str, type[Op]] = {}


class Declares(Protocol[P, R]):
    """A declaration, as type checkers see it: the signature of its `infer`."""

    @staticmethod
    def infer(*operands: P.args, **attrs: P.kwargs) -> R: ...


class Declared(Protocol[P, R]):
    """A declared op: called as its `infer` is, but with tensors, and for tensors."""

    name: str

    def __call__(self, *operands: P.args, **attrs: P.kwargs) -> R: ...


@overload
def declare(op: type[Declares[P, TensorType]]) -> Declared[P, Tensor]: ...
@overload
def declare(
    op: type[Declares[P, tuple[TensorType, TensorType]]],
) -> Declared[P, tuple[Tensor, Tensor]]: ...
@overload
def declare(
    op: type[Declares[P, tuple[TensorType, TensorType, TensorType]]],
) -> Declared[P, tuple[Tensor, Tensor, Tensor]]: ...
@overload
def declare(
    op: type[Declares[P, tuple[TensorType, ...]]],
) -> Declared[P, tuple[Tensor, ...]]: ...
def declare(op: Any) -> Any:
    """Make a declaration known under its name, and return the callable that runs the op.

    That is the class itself; type checkers are told the signature that its metaclass gives it.
    """
    return register(op)


def row(
    name: str,
    infer: Callable[P, TensorType],
    *,
    doc: str,
    base: type[Op] = Op,
    **members: object,
) -> Declared[P, Tensor]:
    """Declare one of a table of ops that differ in little. members: as in the body of a class."""
    body = {k: staticmethod(v) if inspect.isfunction(v) else v for k, v in members.items()}
    body |= {"name": name, "infer": staticmethod(infer), "__doc__": doc}
    title = "".join(part.capitalize() for part in name.split("_"))
    made: Declared[P, Tensor] = declare(type(title, (base,), body))
    return made


def register(op: type[Op]) -> type[Op]:
    """Make a declaration known under its name. Raises InternalError if the name is taken."""
    if not op.name or op.name in REGISTRY:
        raise InternalError(f"op name {op.name!r} is missing or taken")
    op.has_gradient = op.grad is not _no_gradients
    declared = op.declared_by or op.infer
    op.defaults = op.defaults | (declared.__kwdefaults__ or {})
    op.attrs = _attr_names(declared)
    code = op.infer.__code__
    op.num_outputs = _count_outputs(op.infer.__annotations__["return"])
    op.operands = code.co_varnames[inspect.ismethod(op.infer) : code.co_argcount]
    REGISTRY[op.name] = op
    return op


def _count_outputs(returns: str) -> int:
    """Number of TensorTypes that the annotation of a result lists; -1: it follows from the call."""
    return -1 if "..." in returns else returns.count("TensorType")


def _attr_names(infer: Callable[..., Any]) -> frozenset[str] | None:
    """The keyword-only parameters, and the keys of the TypedDict in `**attrs: Unpack[Keys]`.

    None: any, as `infer` takes all keywords.
    """
    code = infer.__code__
    end = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[code.co_argcount : end]
    if not code.co_flags & inspect.CO_VARKEYWORDS:
        return frozenset(names)
    rest = code.co_varnames[end + bool(code.co_flags & inspect.CO_VARARGS)]
    text = infer.__annotations__[rest]
    if not text.startswith("Unpack["):
        return None
    keys = infer.__globals__[text.removeprefix("Unpack[").removesuffix("]")]
    return frozenset((*names, *keys.__annotations__))


def find_op(name: str) -> type[Op]:
    """The declaration named `name`. Raises GraphError."""
    if not REGISTRY:
        import oneflow.ops  # noqa: F401  (declares all)
    try:
        return REGISTRY[name]
    except KeyError:
        raise GraphError(f"there is no op named {name!r}") from None


def infer_types(
    op: type[Op], types: tuple[TensorType, ...], attrs: Attrs
) -> tuple[TensorType, ...]:
    """`op.infer`, its result always a tuple. Raises CallError for attrs that it does not take."""
    if op.attrs is None or attrs.keys() != op.attrs:
        attrs = op.defaults | attrs
        if op.attrs is not None and attrs.keys() != op.attrs:
            raise _wrong_attrs(op.name, op.attrs, attrs.keys())
    for key, value in attrs.items():
        if getattr(value, "ndim", 0):
            raise CallError(f"{op.name}: {key} must be a number, got {value}")
    result = op.infer(*types, **attrs)
    return result if isinstance(result, tuple) else (result,)


def _wrong_attrs(name: str, known: frozenset[str], given: Collection[str]) -> CallError:
    takes = ", ".join(sorted(known)) or "none"
    for attr in sorted(set(given) - known):
        return CallError(f"{name} has no attribute {attr!r}; its attributes: {takes}")
    missing = ", ".join(sorted(known - set(given)))
    return CallError(f"{name} needs the attribute {missing}; its attributes: {takes}")


def signatures(
    op: type[Op],
    types: tuple[TensorType, ...],
    attrs: Attrs,
    num_ranks: int | None = None,
) -> list[SbpSignature]:
    """All valid signatures over one axis, all-B last. num_ranks: see `Op.sbp_for`; None: valid for
    any number."""
    attrs = op.defaults | attrs
    if op.sbp_for is not None and num_ranks is not None:
        listed = op.sbp_for(num_ranks, *types, **attrs)
    else:
        listed = op.sbp(*types, **attrs)
    if not op.may_repeat and num_ranks is not None and num_ranks > 1:
        return listed
    return [
        *listed,
        SbpSignature((BROADCAST,) * len(types), (BROADCAST,) * num_outputs(op, types, attrs)),
    ]


def operand_names(op: type[Op], count: int) -> tuple[str, ...]:
    """Names of the first `count` operands in the op's formula: of `infer`'s parameters, or a, b,
    c ... for an op that takes any number."""
    return (op.operands or tuple(string.ascii_lowercase))[:count]


def expression_of(op: type[Op], types: tuple[TensorType, ...], attrs: Attrs) -> Any:
    """The expression of a call's output, or those of its outputs; None without a formula."""
    return None if op.formula is None else op.formula(*types, **op.defaults | attrs)


def num_outputs(op: type[Op], types: tuple[TensorType, ...], attrs: Attrs) -> int:
    """Number of outputs; -1 in the class means that it follows from inputs and attrs (split,
    unbind)."""
    return op.num_outputs if op.num_outputs >= 0 else len(infer_types(op, types, attrs))


# ---- common signature lists ----------------------------------------------------------------------


def elementwise_signatures(
    *types: TensorType, linear: bool = False, num_outputs: int = 1
) -> list[SbpSignature]:
    """Signatures of an elementwise op with NumPy broadcasting of its inputs.

    An input may be split where its dim equals the output's, also if that is 1 and one rank has all;
    an input that lacks the dim, or has 1 there while the output has more, is B.
    linear: also all-P (sums commute with the op).
    """
    ndim = max((t.ndim for t in types), default=0)
    out = [max((_dim_from_right(t, ndim, i) for t in types), default=1) for i in range(ndim)]
    result = []
    for i, size in enumerate(out):
        inputs: list[Sbp] = []
        for t in types:
            own = i - (ndim - t.ndim)
            inputs.append(Split(own) if own >= 0 and t.shape[own] == size else BROADCAST)
        result.append(SbpSignature(tuple(inputs), (Split(i),) * num_outputs))
    if linear:
        result.append(SbpSignature((PARTIAL,) * len(types), (PARTIAL,) * num_outputs))
    return result


def _dim_from_right(t: TensorType, ndim: int, i: int) -> int:
    own = i - (ndim - t.ndim)
    return t.shape[own] if own >= 0 else 1


def leading_signatures(ndim: int, num_inputs: int) -> list[SbpSignature]:
    """Split any of the first `ndim` dims, alike in all inputs and the one output."""
    return [SbpSignature((Split(i),) * num_inputs, (Split(i),)) for i in range(ndim)]


def einsum_signatures(equation: str) -> list[SbpSignature]:
    """Signatures of a product of two tensors written as an einsum, e.g. "mk,kn->mn".

    A letter of the output may be split (B for an operand without it); a letter that is summed over,
    split in both, gives P; and the product is linear in each operand: P B -> P and B P -> P.
    """
    left, _, out = equation.partition("->")
    operands = left.split(",")
    result = []
    for letter in dict.fromkeys(c for c in left if c in string.ascii_letters):
        inputs = tuple(Split(o.index(letter)) if letter in o else BROADCAST for o in operands)
        output = Split(out.index(letter)) if letter in out else PARTIAL
        result.append(SbpSignature(inputs, (output,)))
    if len(operands) == 2:
        result.append(SbpSignature((PARTIAL, BROADCAST), (PARTIAL,)))
        result.append(SbpSignature((BROADCAST, PARTIAL), (PARTIAL,)))
    return result
