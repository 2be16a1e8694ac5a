"""The argument that is to blame when a function fails inside: found after the error, from types.

A function checks the types of its arguments at no cost: it just fails, somewhere inside. Then each
argument is held against its annotation, as far as that says which Python types there may be, and
the first that does not fit is named in the error.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from oneflow.core.errors import CallError, OneFlowError
from oneflow.tensor.tensor import Tensor

_NUMBERS = (numbers.Number, np.generic, Tensor)
_WHOLE = (int, np.integer, Tensor)
_LISTS = (list, tuple, np.ndarray, Tensor)

_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "None": ((type(None),), "None"),
    "Tensor": ((Tensor,), "Tensor"),
    "TensorLike": ((*_NUMBERS, np.ndarray), "Tensor or Number"),
    "Number": (_NUMBERS, "Number"),
    "float": (_NUMBERS, "float"),
    "int": (_WHOLE, "int"),
    "bool": ((bool, np.bool_, *_WHOLE), "bool"),
    "str": ((str,), "str"),
    "DimLike": ((*_WHOLE, *_LISTS, type(None)), "int or tuple of ints"),
    "Size": ((*_WHOLE, *_LISTS), "int or tuple of ints"),
    "Sequence[int]": (_LISTS, "tuple of ints"),
    "Sequence[Tensor]": (_LISTS, "tuple of Tensors"),
}
"""Word of an annotation -> the Python types that it takes, and its name in errors."""


def explain(
    function: Callable[..., Any],
    args: tuple[object, ...],
    keywords: Mapping[str, object],
    error: Exception,
) -> None:
    """Raise CallError naming the first argument of a call that has a wrong type, if there is one.

    error: the one that the call ended in. An error of ours has said more already.
    """
    if isinstance(error, OneFlowError):
        return
    try:
        parameters = inspect.signature(function).parameters
        given = inspect.signature(function).bind(*args, **keywords).arguments
    except TypeError:
        return  # too few or too many: the error says so
    name = getattr(function, "__name__", "function")
    for place, (argument, parameter) in enumerate(parameters.items(), 1):
        if argument not in given:
            continue
        value = given[argument]
        if parameter.kind is parameter.VAR_KEYWORD or value is parameter.default:
            continue
        where = f" (position {place})" if parameter.kind is not parameter.KEYWORD_ONLY else ""
        values: Any = value if parameter.kind is parameter.VAR_POSITIONAL else (value,)
        for one in values:
            wanted = _wanted(str(parameter.annotation), one)
            if wanted:
                raise CallError(
                    f"{name}(): argument '{argument}'{where} must be {wanted}, not "
                    f"{type(one).__name__}"
                ) from None


def _wanted(annotation: str, value: object) -> str:
    """The types that an annotation takes, in words; "" if the value may be one of them."""
    words = annotation.split(" | ")
    if any(word not in _KINDS for word in words):
        return ""
    kinds = [_KINDS[word] for word in words]
    if any(isinstance(value, types) for types, _ in kinds):
        return ""
    return " or ".join(name for _, name in kinds if name != "None")
