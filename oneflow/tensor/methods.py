"""The methods of Tensor that compute: a table of functions of `oneflow.functional`.

A row is a module and the names that become methods as they are; names in IN_PLACE also get an `x.name_()` twin.
"""

from __future__ import annotations

import operator as python_operator
from collections.abc import Callable
from typing import Any

from oneflow.functional import arithmetic, elementwise, moving
from oneflow.functional.arithmetic import operator
from oneflow.tensor.inplace import in_place
from oneflow.tensor.tensor import Tensor

METHODS: tuple[tuple[Any, str], ...] = (
    (arithmetic, "add sub mul div floor_divide remainder fmod pow maximum minimum atan2 eq ne lt le gt ge "
                 "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor lerp addcmul addcdiv isclose"),
    (elementwise, "exp exp2 expm1 log log1p log2 log10 sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh "
                  "tanh asinh acosh atanh erf erfc sigmoid neg abs sign square floor ceil round trunc frac bitwise_not "
                  "logical_not isnan isinf isfinite logaddexp cast clamp clip clamp_min clamp_max masked_fill clone "
                  "logit nan_to_num signbit"),
    (moving, "to cpu cuda type_as get_device"),
)  # fmt: skip

IN_PLACE = (
    "add sub mul div floor_divide remainder fmod pow lerp addcmul addcdiv exp log sqrt rsqrt reciprocal sin cos tanh "
    "sigmoid neg abs square floor ceil round trunc frac clamp clip clamp_min clamp_max masked_fill erf expm1 "
    "gt ge lt le eq ne logical_not"
)

ALIASES = {
    "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan", "arctanh": "atanh",
    "negative": "neg", "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
    "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "to_numpy": "numpy",
}  # fmt: skip

OPERATORS: dict[str, Callable[..., Any]] = {
    "add": arithmetic.add, "sub": arithmetic.sub, "mul": arithmetic.mul, "truediv": arithmetic.div,
    "floordiv": arithmetic.floor_divide, "mod": arithmetic.remainder, "pow": arithmetic.pow,
    "and": arithmetic.bitwise_and, "or": arithmetic.bitwise_or, "xor": arithmetic.bitwise_xor,
}  # fmt: skip
COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": arithmetic.eq, "ne": arithmetic.ne, "lt": arithmetic.lt, "le": arithmetic.le, "gt": arithmetic.gt, "ge": arithmetic.ge,
}  # fmt: skip


def install() -> None:
    """Gives Tensor its methods, operators and properties. Done once, when `oneflow.functional` is imported."""
    for module, names in METHODS:
        for name in names.split():
            setattr(Tensor, name, getattr(module, name))
    for name in IN_PLACE.split():
        setattr(Tensor, f"{name}_", in_place(getattr(Tensor, name)))
    for name, original in ALIASES.items():
        setattr(Tensor, name, getattr(Tensor, original))
    for name, function in OPERATORS.items():
        setattr(Tensor, f"__{name}__", operator(function))
        setattr(Tensor, f"__r{name}__", operator(function, swap=True))
        setattr(Tensor, f"__i{name}__", in_place(function))
    for name, function in COMPARISONS.items():
        setattr(Tensor, f"__{name}__", operator(function))
    Tensor.__neg__ = elementwise.neg  # type: ignore[attr-defined]
    Tensor.__pos__ = lambda self: self  # type: ignore[attr-defined]
    Tensor.__abs__ = elementwise.abs  # type: ignore[attr-defined]
    Tensor.__invert__ = elementwise.bitwise_not  # type: ignore[attr-defined]
    for name, function in METHODS_HERE.items():
        setattr(Tensor, name, function)


# ---- small ones that belong to tensors alone ------------------------------------------------------------------------


def copy_(self: Tensor, source: Any) -> Tensor:
    """Copies the values of `source`, broadcast and cast, into this tensor."""
    from oneflow.functional.shaping import expand
    from oneflow.tensor.creation import as_tensor
    from oneflow.tensor.inplace import check_writable, overwrite

    check_writable(self)
    new = as_tensor(source)
    if self._placement is None and new._device != self._device:
        new = moving.to(new, self._device)
    if new.type.shape != self.type.shape:
        new = expand(new, self.type.shape)
    return overwrite(self, new)


def fill_(self: Tensor, value: Any) -> Tensor:
    """Sets every element to `value`."""
    from oneflow.functional.creation import full_like
    from oneflow.tensor.inplace import overwrite

    return overwrite(self, full_like(self, value))


def zero_(self: Tensor) -> Tensor:
    """Sets every element to 0."""
    return fill_(self, 0)


def _dtype_method(name: str) -> Callable[[Tensor], Tensor]:
    from oneflow.core.dtype import dtype_of

    dtype = dtype_of(name)

    def method(self: Tensor) -> Tensor:
        return elementwise.cast(self, dtype)

    method.__doc__ = f"The elements as {name}."
    return method


def size(self: Tensor, dim: int | None = None) -> Any:
    """The shape, or the size of one dim."""
    return self.shape if dim is None else self.shape[dim]


def stride(self: Tensor, dim: int | None = None) -> Any:
    """Steps between neighbours along each dim, in elements."""
    if self._array is None:
        steps, step = [], 1
        for n in reversed(self.type.shape):
            steps.insert(0, step)
            step *= n
        strides = tuple(steps)
    else:
        strides = tuple(s // self.type.dtype.bytes for s in self._array.strides)
    return strides if dim is None else strides[dim]


def is_contiguous(self: Tensor, memory_format: Any = None) -> bool:
    """Is the memory in row-major order without gaps?"""
    return self._array is None or bool(self._array.flags.c_contiguous)


def contiguous(self: Tensor, memory_format: Any = None) -> Tensor:
    """The tensor itself if contiguous, else a contiguous copy."""
    return self if is_contiguous(self) else elementwise.clone(self)


def data_ptr(self: Tensor) -> int:
    """Address of the first element."""
    from oneflow.tensor.tensor import needs_data

    needs_data(self, "data_ptr()")
    array = self._array
    pointer = array.ctypes.data if self.is_cpu else array.data.ptr
    return python_operator.index(pointer)


def storage_offset(self: Tensor) -> int:
    """Elements between the start of the tensor this is a view of and its own first element."""
    base = self._extra.base if self._extra is not None else None
    return 0 if base is None else (data_ptr(self) - data_ptr(base)) // self.type.dtype.bytes


METHODS_HERE: dict[str, Any] = {
    "copy_": copy_,
    "fill_": fill_,
    "zero_": zero_,
    "size": size,
    "stride": stride,
    "is_contiguous": is_contiguous,
    "contiguous": contiguous,
    "data_ptr": data_ptr,
    "storage_offset": storage_offset,
    "is_view": lambda self: self._extra is not None and self._extra.base is not None,
    "dim": lambda self: self.ndim,
    "ndimension": lambda self: self.ndim,
    "numel": lambda self: self.type.numel,
    "nelement": lambda self: self.type.numel,
    "element_size": lambda self: self.type.dtype.bytes,
    "is_floating_point": lambda self: self.type.dtype.is_floating_point,
    "float": _dtype_method("float32"),
    "double": _dtype_method("float64"),
    "half": _dtype_method("float16"),
    "bfloat16": _dtype_method("bfloat16"),
    "int": _dtype_method("int32"),
    "long": _dtype_method("int64"),
    "short": _dtype_method("int16"),
    "byte": _dtype_method("uint8"),
    "char": _dtype_method("int8"),
    "bool": _dtype_method("bool"),
}
