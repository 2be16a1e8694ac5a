"""`torch.autograd.forward_ad`: dual tensors are not there, so that every tensor is a plain one;
`flow.autograd.functional.jvp` differentiates forwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from oneflow.core.errors import AutogradError
from oneflow.tensor.tensor import Tensor

__all__ = ["UnpackedDualTensor", "dual_level", "make_dual", "unpack_dual"]


class UnpackedDualTensor(NamedTuple):
    """A tensor and its tangent, which is None."""

    primal: Tensor
    tangent: Tensor | None


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """Return the tensor, without a tangent."""
    return UnpackedDualTensor(tensor, None)


def make_dual(tensor: Tensor, tangent: Tensor, *, level: int | None = None) -> NoReturn:
    """Refuse: no tensor has a tangent."""
    raise AutogradError(
        "forward_ad.make_dual: no tensor has a tangent here; use flow.autograd.functional.jvp"
    )


@contextmanager
def dual_level() -> Iterator[Any]:
    """Change nothing inside: no tensor has a tangent."""
    yield


enter_dual_level = exit_dual_level = make_dual
