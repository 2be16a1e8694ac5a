"""Old and inner names of `torch.nn.init`."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from oneflow.core.errors import ShapeError
from oneflow.functional import initial
from oneflow.functional.creation import randperm, zeros
from oneflow.functional.initial import normal_, trunc_normal_, uniform_
from oneflow.functional.random_state import Generator
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

OLD = (
    *("uniform", "normal", "constant", "eye", "dirac", "xavier_uniform", "xavier_normal"),
    *("kaiming_uniform", "kaiming_normal", "orthogonal", "sparse"),
)
__all__ = ["_no_grad_fill_", "_no_grad_normal_", "_no_grad_trunc_normal_", "_no_grad_uniform_"]
__all__ += ["_no_grad_zero_", "sparse_", *OLD]

_no_grad_uniform_, _no_grad_normal_ = uniform_, normal_
_no_grad_trunc_normal_ = trunc_normal_
_no_grad_fill_, _no_grad_zero_ = initial.constant_, initial.zeros_


def sparse_(
    tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None
) -> Tensor:
    """Fill a matrix with draws of N(0, std^2), but for a share of each column, rounded up, that is
    0. Raises ShapeError for anything but a matrix.
    """
    if tensor.ndim != 2:
        raise ShapeError(f"nn.init.sparse_ takes a matrix, got {tensor.meta}")
    rows, columns = tensor.meta.shape
    count = -int(-sparsity * rows // 1)
    with no_grad():
        normal_(tensor, 0.0, std, generator=generator)
        for column in range(columns):
            chosen = randperm(rows, generator=generator)[:count]
            tensor[chosen, column] = zeros(count, dtype=tensor.dtype)
    return tensor


def _renamed(name: str) -> Callable[..., Tensor]:
    function: Callable[..., Tensor] = sparse_ if name == "sparse" else vars(initial)[f"{name}_"]

    def call(*args: object, **kwargs: object) -> Tensor:
        warnings.warn(
            f"`nn.init.{name}` is now deprecated in favor of `nn.init.{name}_`.",
            FutureWarning,
            stacklevel=2,
        )
        return function(*args, **kwargs)

    call.__name__ = name
    call.__doc__ = f"The name of old for `{name}_`."
    return call


uniform, normal, constant, eye, dirac, xavier_uniform, xavier_normal = map(_renamed, OLD[:7])
kaiming_uniform, kaiming_normal, orthogonal, sparse = map(_renamed, OLD[7:])
