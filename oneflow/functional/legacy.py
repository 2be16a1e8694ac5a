"""The tensor types of old scripts: `FloatTensor(2, 3)`, `isinstance(x, LongTensor)`, `cuda.*` of
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

from oneflow.core import dtype as dtypes
from oneflow.core.dtype import DType
from oneflow.functional.from_data import legacy_tensor
from oneflow.tensor.alike import Place
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
            isinstance(x, Tensor) and x.type.dtype is self.dtype and device_type(x) == self.device
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


def __getattr__(name: str) -> LegacyType:
    if name not in CPU_TYPES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return CPU_TYPES[name]
