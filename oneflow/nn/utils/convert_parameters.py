"""All parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from oneflow.core.errors import ShapeError
from oneflow.functional.concat_split import cat, narrow
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """The elements of all parameters, one after another, with history."""
    vector: Tensor = cat([p.reshape(-1) for p in parameters], 0)
    return vector


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Copies a vector into parameters, one after another. Raises ShapeError unless it fits."""
    listed = list(parameters)
    total = sum(p.meta.numel for p in listed)
    if vec.ndim != 1 or vec.meta.numel != total:
        raise ShapeError(f"the parameters have {total} elements, the vector is {vec.meta}")
    start = 0
    with no_grad():
        for parameter in listed:
            stop = start + parameter.meta.numel
            parameter.copy_(narrow(vec, 0, start, stop - start).reshape(parameter.shape))
            start = stop
