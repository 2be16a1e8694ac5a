"""`flow.backends.cuda`: how GPUs multiply matrices."""

from __future__ import annotations

from typing import ClassVar

from oneflow.core.no_effect import without_effect
from oneflow.surfaces import accept_paths

__all__ = ["cuMatmulMode", "is_built", "matmul"]

REASONS = {
    "allow_tf32": "matrix products of float32 follow CUPY_TF32, which CuPy reads when it starts",
    "allow_fp16_reduced_precision_reduction": "sums of half precision are kept in float32",
    "allow_bf16_reduced_precision_reduction": "sums of half precision are kept in float32",
}


class cuMatmulMode:
    """The switches of matrix products on GPUs; setting one warns once and is remembered."""

    _set: ClassVar[dict[str, bool]] = {}

    def __getattr__(self, name: str) -> bool:
        if name not in REASONS:
            raise AttributeError(f"backends.cuda.matmul has no attribute {name!r}")
        return self._set.get(name, False)

    def __setattr__(self, name: str, value: bool) -> None:
        if name not in REASONS:
            raise AttributeError(f"backends.cuda.matmul has no attribute {name!r}")
        if bool(value) is not getattr(self, name):
            without_effect(f"backends.cuda.matmul.{name}", REASONS[name])
        self._set[name] = bool(value)


matmul = cuMatmulMode()


def is_built() -> bool:
    """True: kernels for GPUs are part of the package; `flow.cuda.is_available` says if they can
    run.
    """
    return True


accept_paths(__name__)
