"""The ONNX graph under construction: nodes, constants and names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from oneflow.core.dtype import DType, dtype_of, float32, float64, int64
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.onnx.errors import OnnxExportError
from oneflow.onnx.writer.sizes import Size, is_dynamic

if TYPE_CHECKING:
    import onnx

    from oneflow.core.graph import Value

SHARED_NBYTES = 1024
"""Constants of at most this size are written once."""


FORMS = {"Pad": 11, "Resize": 11, "TopK": 11, "CumSum": 11, "GatherElements": 11}
"""Versions in which operators got the form in which they are written here."""


@dataclass
class Call:
    """One node of the logical graph, for the row that writes it.

    inputs: names of the values that it reads.  attrs: with defaults.  types: of the inputs.
    results: types of the outputs.  numbers: the values of inputs that are constants, by position.
    """

    op: str
    inputs: tuple[str, ...]
    attrs: Attrs
    types: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    read: tuple[bool, ...] = ()
    """Whether somebody reads each output; empty: all are read."""
    where: str = ""
    values: tuple[Value, ...] = ()
    """The inputs in the logical graph, for rows that look at what made them."""

    def is_read(self, index: int) -> bool:
        return not self.read or self.read[index]

    def refuse(self, reason: str) -> OnnxExportError:
        """The error that says why the call has no form in ONNX."""
        return OnnxExportError(f"onnx.export: {self.op} {reason}{self.where}")


Sizer = Callable[["Builder", Size], "str | None"]
"""Writes nodes that compute a Size as int64[]; None if no formula fits."""


@dataclass
class Builder:
    """Collects nodes. opset: the version of the operator set to write for.

    sizer: see `Sizer`.  call: the logical node that is being written, for errors and names.
    """

    opset: int
    sizer: Sizer | None = None
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)
    call: Call | None = None
    prefix: str = ""
    taken: frozenset[str] = frozenset()
    """Names of weights, inputs and results, which are no others'."""
    names: dict[int, str] = field(default_factory=dict)
    """Names of the values of the logical graph that are written, by their ids."""
    _constants: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)
    _sizes: dict[tuple[int, ...], str] = field(default_factory=dict)
    _count: int = 0

    # ---- nodes -----------------------------------------------------------------------------------

    def __call__(self, kind: str, *inputs: str, **attrs: object) -> str:
        """A node with one output, whose name it returns."""
        return self.many(kind, 1, *inputs, **attrs)[0]

    def many(self, kind: str, outputs: int, *inputs: str, **attrs: object) -> tuple[str, ...]:
        """A node with several outputs. An attribute of None is left out."""
        from onnx import helper

        self._check(kind)
        for key, value in attrs.items():
            if is_dynamic(tuple(value) if isinstance(value, list) else value):
                raise self.refuse(f"has an attribute {key} that depends on a dynamic dim")
        made = tuple(self.fresh(kind) for _ in range(outputs))
        given = {k: v for k, v in attrs.items() if v is not None}
        name = f"{self.prefix}{made[0]}"
        self.nodes.append(helper.make_node(kind, list(inputs), list(made), name=name, **given))
        return made

    def made_by(self, name: str) -> onnx.NodeProto | None:
        """The node that has an output, if it is among the last ones written."""
        return next((n for n in reversed(self.nodes[-8:]) if name in n.output), None)

    def again(self, node: onnx.NodeProto, *more: str) -> str:
        """The same node with more inputs; the old one goes if nothing else reads it."""
        from onnx import NodeProto

        made = NodeProto()
        made.CopyFrom(node)
        made.input.extend(more)
        made.output[0] = self.fresh(node.op_type)
        made.name = f"{self.prefix}{made.output[0]}"
        self.nodes.append(made)
        return str(made.output[0])

    def fresh(self, word: str) -> str:
        self._count += 1
        made = f"{word}_{self._count}"
        return self.fresh(word) if made in self.taken else made

    def refuse(self, reason: str) -> OnnxExportError:
        call = self.call or Call("the graph", (), {}, (), ())
        return call.refuse(reason)

    def need(self, opset: int, what: str) -> None:
        """Raise OnnxExportError where the operator set is older than `what` needs."""
        if self.opset < opset:
            raise self.refuse(f"{what} needs opset {opset}; pass opset_version={opset} or more")

    def _check(self, kind: str) -> None:
        versions = max(_versions(kind), FORMS.get(kind, 0))
        if versions and versions > self.opset:
            self.need(versions, f"is written with the operator {kind}, which")

    # ---- constants -------------------------------------------------------------------------------

    def constant(self, array: npt.ArrayLike, name: str = "") -> str:
        """An initializer. name: of a weight, which is written as it is."""
        array = np.asarray(array)
        key = (
            str(array.dtype),
            array.shape,
            array.tobytes() if array.nbytes <= SHARED_NBYTES else b"",
        )
        if not name and array.nbytes <= SHARED_NBYTES and key in self._constants:
            return self._constants[key]
        made = name or self.fresh("constant")
        self.initializers[made] = tensor_proto(made, array)
        if not name:
            self._constants[key] = made
        return made

    def number(self, value: object, dtype: DType) -> str:
        """A constant without dims, or a size that is computed."""
        if isinstance(value, Size):
            return self.cast(self.size(value), dtype, int64)
        with np.errstate(all="ignore"):
            return self.constant(np.asarray(value).astype(dtype.np))

    def ints(self, values: Sequence[int]) -> str:
        """int64[n], for shapes, axes and bounds; computed where one of the numbers is a Size."""
        if not is_dynamic(tuple(values)):
            return self.constant(np.array(values, np.int64))
        parts = [
            self("Reshape", self.size(v), self.ints([1])) if isinstance(v, Size) else self.ints([v])
            for v in values
        ]
        return parts[0] if len(parts) == 1 else self("Concat", *parts, axis=0)

    def shape(self, values: Sequence[int]) -> str:
        """The shape to reshape to: one dynamic dim is -1, and needs no computing."""
        dynamic = [i for i, v in enumerate(values) if isinstance(v, Size)]
        if len(dynamic) == 1 and 0 not in values:
            return self.ints([-1 if i in dynamic else v for i, v in enumerate(values)])
        return self.ints(values)

    def size(self, value: Size) -> str:
        """int64[]: a number that depends on dynamic dims."""
        known = self._sizes.get(value.values)
        if known is None:
            known = self.sizer(self, value) if self.sizer is not None else None
            if known is None:
                raise self.refuse(
                    f"needs a number that is {value.values} for the sizes tried, which is no "
                    "product of the dynamic dims; export it with fixed sizes"
                )
            self._sizes[value.values] = known
        return known

    # ---- short forms -----------------------------------------------------------------------------

    def cast(self, x: str, dtype: DType, source: DType | None = None) -> str:
        """Cast x to `dtype`; x itself if it has that already."""
        return x if source is dtype else self("Cast", x, to=onnx_dtype(dtype))

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        empty = 1 if 0 in shape else None  # else a 0 means: as before
        return self("Reshape", x, self.shape(shape), allowzero=empty)

    def expand(self, x: str, shape: Sequence[int]) -> str:
        return self("Expand", x, self.ints(shape))

    def unsqueeze(self, x: str, axes: Sequence[int]) -> str:
        return self._along("Unsqueeze", x, axes) if axes else x

    def squeeze(self, x: str, axes: Sequence[int]) -> str:
        return self._along("Squeeze", x, axes) if axes else x

    def _along(self, kind: str, x: str, axes: Sequence[int]) -> str:
        """An operator whose axes became an input in opset 13."""
        if self.opset >= 13:
            return self(kind, x, self.ints(axes))
        return self(kind, x, axes=list(axes))

    def transpose(self, x: str, dims: Sequence[int]) -> str:
        return x if list(dims) == sorted(dims) else self("Transpose", x, perm=list(dims))

    def swap(self, x: str, ndim: int) -> str:
        """The last two dims exchanged."""
        return self.transpose(x, [*range(ndim - 2), ndim - 1, ndim - 2])

    def slice(self, x: str, starts: Sequence[int], stops: Sequence[int], axes: Sequence[int],
              steps: Sequence[int] | None = None) -> str:  # fmt: skip
        more = [self.ints(steps)] if steps is not None else []
        return self("Slice", x, self.ints(starts), self.ints(stops), self.ints(axes), *more)

    def reduce(self, kind: str, x: str, axes: Sequence[int] | None, keepdims: bool = False) -> str:
        """ReduceSum and its kin, whose axes became an input in opset 18 (the sum's in 13)."""
        keep = int(keepdims)
        if axes is not None and not axes:
            return x
        if self.opset >= (13 if kind == "ReduceSum" else 18):
            return self(kind, x, *([] if axes is None else [self.ints(axes)]), keepdims=keep)
        return self(kind, x, axes=None if axes is None else list(axes), keepdims=keep)


_known: dict[str, int] = {}


def _versions(kind: str) -> int:
    """The first version of the operator set that has an operator."""
    from onnx import defs

    if not _known:
        for schema in defs.get_all_schemas_with_history():
            if schema.domain == "":
                first = _known.get(schema.name, schema.since_version)
                _known[schema.name] = min(first, schema.since_version)
    return _known.get(kind, 0)


def tensor_proto(name: str, array: np.ndarray[Any, Any]) -> onnx.TensorProto:
    from onnx import helper

    dtype = onnx_dtype(dtype_of(array.dtype))
    data = np.ascontiguousarray(array).tobytes()
    return helper.make_tensor(name, dtype, array.shape, data, raw=True)


def onnx_dtype(dtype: DType) -> int:
    """The number that ONNX has for a dtype."""
    from onnx import TensorProto

    name = {
        "bool": "BOOL",
        "float32": "FLOAT",
        "float64": "DOUBLE",
        "float8_e4m3fn": "FLOAT8E4M3FN",
        "float8_e5m2": "FLOAT8E5M2",
    }.get(dtype.name)
    return int(getattr(TensorProto, name or dtype.name.upper()))


def wide(dtype: DType) -> DType:
    """The dtype in which sums of a half float are made."""
    return float32 if dtype.is_floating_point and dtype is not float64 else dtype
