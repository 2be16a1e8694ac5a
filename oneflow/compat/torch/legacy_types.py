"""The tensor types of old scripts: `FloatTensor(2, 3)`, `isinstance(x, LongTensor)`, `cuda.*` of
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

from oneflow.core import dtype as dtypes
from oneflow.core.dtype import DType
from oneflow.functional.conversion import to
from oneflow.functional.from_data import legacy_tensor
from oneflow.functional.promotion import get_default_dtype
from oneflow.tensor.creation_like import Place
from oneflow.tensor.tensor import Tensor, device_type

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack


class LegacyType:
    """A dtype and a kind of device in one name. Calling it makes a tensor as `Tensor(...)` does."""

    def __init__(self, name: str, dtype: DType, device: str) -> None:
        self.__name__, self.dtype, self.device = name, dtype, device

    def __call__(
        self, *args: ArrayLike, requires_grad: bool = False, **where: Unpack[Place]
    ) -> Tensor:
        if not {"device", "placement"} & set(where):
            where["device"] = self.device
        return legacy_tensor(*args, dtype=self.dtype, requires_grad=requires_grad, **where)

    def __instancecheck__(self, x: object) -> bool:
        return (
            isinstance(x, Tensor) and x.meta.dtype is self.dtype and device_type(x) == self.device
        )

    def __or__(self, other: object) -> Any:
        """`LongTensor | None` in an annotation."""
        return Union.__getitem__((self, other))

    def __ror__(self, other: object) -> Any:
        return Union.__getitem__((other, self))

    def __repr__(self) -> str:
        return f"oneflow.{'cuda.' if self.device == 'cuda' else ''}{self.__name__}"


_DTYPES = {
    "FloatTensor": dtypes.float32,
    "DoubleTensor": dtypes.float64,
    "HalfTensor": dtypes.float16,
    "BFloat16Tensor": dtypes.bfloat16,
    "CharTensor": dtypes.int8,
    "ByteTensor": dtypes.uint8,
    "IntTensor": dtypes.int32,
    "LongTensor": dtypes.int64,
    "BoolTensor": dtypes.bool_,
    "ComplexFloatTensor": dtypes.complex64,
    "ComplexDoubleTensor": dtypes.complex128,
}
CPU_TYPES = {name: LegacyType(name, dtype, "cpu") for name, dtype in _DTYPES.items()}
CUDA_TYPES = {name: LegacyType(name, dtype, "cuda") for name, dtype in _DTYPES.items()}


def type(
    input: Tensor,
    dtype: DType | LegacyType | str | None = None,
    non_blocking: bool = False,
    **_: object,
) -> Tensor | str:
    """The name of a tensor's type, as "oneflow.cuda.FloatTensor"; or the tensor in another type.

    dtype: a dtype, which leaves the tensor where it is, or a type or its name, which also
    names the kind of device; None asks for the name. non_blocking: accepted; it changes nothing.
    Raises ValueError for an unknown name, TypeError for anything else.
    """
    if dtype is None:
        types = CPU_TYPES if device_type(input) == "cpu" else CUDA_TYPES
        named = (repr(found) for found in types.values() if found.dtype is input.meta.dtype)
        return next(named, f"oneflow.{input.meta.dtype.name}")
    if dtype is Tensor:
        dtype = get_default_dtype()
    if isinstance(dtype, DType):
        return to(input, dtype)
    if isinstance(dtype, str):
        dtype = _type_named(dtype)
    if not isinstance(dtype, LegacyType):
        raise TypeError(f"type(): dtype must be a dtype, a tensor type or its name, got {dtype!r}")
    if device_type(input) == dtype.device:
        return to(input, dtype.dtype)
    return to(input, dtype.device, dtype.dtype)


def _type_named(name: str) -> LegacyType:
    """The type of a name such as "torch.FloatTensor" or "oneflow.cuda.HalfTensor"."""
    library, _, rest = name.partition(".")
    found = CPU_TYPES.get(rest) or CUDA_TYPES.get(rest.removeprefix("cuda."))
    if library not in ("oneflow", "torch") or found is None:
        raise ValueError(f"invalid type: {name!r}; a type is called like oneflow.FloatTensor")
    return found


def __getattr__(name: str) -> LegacyType:
    found = CPU_TYPES.get(name) or CUDA_TYPES.get(name.removeprefix("cuda_"))
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
