"""The argument that is to blame when a function fails inside: found after the error.

A function checks its arguments at no cost: it just fails, somewhere inside. Then each argument is
held against its annotation, as far as that says which Python types there may be, and the first that
does not fit is named in the error. If all fit, but no check of ours failed, the error names the
function and its arguments, instead of the words of the inner error.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from oneflow.core.config import current_config
from oneflow.core.dtype import DType
from oneflow.core.errors import ArgumentError, CallError, OneFlowError, PositionError
from oneflow.tensor.creation_like import number_of
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
    "ShapeLike": ((*_WHOLE, *_LISTS), "int or tuple of ints"),
    "Sequence[int]": (_LISTS, "tuple of ints"),
    "Sequence[Tensor]": (_LISTS, "tuple of Tensors"),
    "Tensors": (_LISTS, "Tensor or tuple of Tensors"),
}
"""Word of an annotation -> the Python types that it takes, and its name in errors."""

_ELEMENTS: dict[str, tuple[tuple[type, ...], str]] = {
    "DimLike": (_WHOLE, "int"),
    "Size": (_WHOLE, "int"),
    "ShapeLike": (_WHOLE, "int"),
    "Sequence[int]": (_WHOLE, "int"),
    "Sequence[Tensor]": ((Tensor,), "Tensor"),
    "Tensors": ((Tensor,), "Tensor"),
}
"""Word of an annotation -> the types that the elements of a list may have, and their name."""

_HERE = f"{Path(__file__).resolve().parents[2]}/"
_LIBRARIES = ("/numpy/", "/numba/", "/scipy/", "/ml_dtypes/", "<__array_function__")
_MOST_TEXT = 60

_MADE_BY_ARGUMENTS = (
    TypeError,
    AttributeError,
    LookupError,
    ValueError,
    ArithmeticError,
    AssertionError,
)
"""Errors that a wrong argument causes inside. Others are news of the machine (of files, of memory,
a warning that is to be an error), which are passed on as they are."""


def plain(
    args: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments with Python's numbers in place of NumPy's; None if there are none of these."""
    new_args = tuple(map(_plain, args))
    new_keywords = {name: _plain(value) for name, value in keywords.items()}
    pairs = [*zip(args, new_args, strict=True)]
    pairs += [(value, new_keywords[name]) for name, value in keywords.items()]
    return (new_args, new_keywords) if any(a is not b for a, b in pairs) else None


def _plain(value: object) -> Any:
    if isinstance(value, np.generic) and not isinstance(value, np.void | np.object_):
        return value.item()
    if isinstance(value, list | tuple) and any(isinstance(v, np.generic) for v in value):
        kind = type(value)
        return kind(map(_plain, value)) if kind in (list, tuple) else value
    return value


def as_numbers(
    function: Callable[..., Any],
    numbers: tuple[tuple[str, int], ...],
    args: tuple[Any, ...],
    keywords: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with the numbers of tensors in place of the tensors, where numbers are wanted.

    Raises CallError for a tensor that requires a gradient: none would reach it.
    """
    given, named = list(args), dict(keywords)
    for name, place in numbers:
        if place < len(given):
            given[place] = number_of(given[place], name, function.__name__)
        elif name in named:
            named[name] = number_of(named[name], name, function.__name__)
    return tuple(given), named


def explain(
    function: Callable[..., Any],
    args: tuple[object, ...],
    keywords: Mapping[str, object],
    error: Exception,
) -> None:
    """Raise CallError naming the first argument of a call that has a wrong type, if there is one;
    for an error that is none of ours one that names the function and its arguments.

    error: the one that the call ended in. An error of ours has said more already.
    """
    if isinstance(error, OneFlowError):
        return
    try:
        parameters = inspect.signature(function).parameters
        given = inspect.signature(function).bind(*args, **keywords).arguments
    except (TypeError, ValueError):
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
                    f"{name}(): argument '{argument}'{where} must be {wanted}"
                ) from _cause(error)
    if _is_inner(error):
        said = ", ".join(f"{argument}={_described(value)}" for argument, value in given.items())
        raise _kind_of(error)(f"{name}(): cannot be called with {said}") from _cause(error)


def _cause(error: Exception) -> Exception | None:
    """The error inside, for a search for our own defects."""
    return error if current_config().debug else None


def _kind_of(error: Exception) -> type[OneFlowError]:
    if isinstance(error, TypeError | AttributeError):
        return CallError
    return PositionError if isinstance(error, IndexError) else ArgumentError


def _is_inner(error: Exception) -> bool:
    """Whether an error came of our own code or of a library below, with no code of a user's in
    between, and is not one that a check of ours raised.
    """
    if not isinstance(error, _MADE_BY_ARGUMENTS) or isinstance(error, UnicodeError):
        return False
    trace: TracebackType | None = error.__traceback__
    last = trace
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not path.startswith(_HERE) and not any(part in path for part in _LIBRARIES):
            return False
        last, trace = trace, trace.tb_next
    if last is None:
        return False
    opcode = last.tb_frame.f_code.co_code[last.tb_lasti]
    is_raised = opcode == _RAISE and last.tb_frame.f_code.co_filename.startswith(_HERE)
    return not is_raised


_RAISE = __import__("opcode").opmap["RAISE_VARARGS"]


def _described(value: object) -> str:
    """A value in few words: a tensor by its type."""
    if isinstance(value, Tensor):
        return str(value.meta)
    if isinstance(value, DType):
        return str(value)
    if isinstance(value, list | tuple) and any(isinstance(v, Tensor) for v in value):
        return f"[{', '.join(map(_described, value))}]"
    text = repr(value)
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 3]}..."


def _wanted(annotation: str, value: object) -> str:
    """The types that an annotation takes, and the type that was given, in words; "" if the value
    may be one of them.
    """
    words = annotation.split(" | ")
    if any(word not in _KINDS for word in words):
        return ""
    kinds = [_KINDS[word] for word in words]
    types = tuple(t for some, _ in kinds for t in some)
    names = " or ".join(name for _, name in kinds if name != "None")
    if not isinstance(value, types):
        return f"{names}, not {type(value).__name__}"
    lists = [_ELEMENTS[word] for word in words if word in _ELEMENTS]
    if not isinstance(value, list | tuple) or not lists:
        return ""
    elements = tuple(t for some, _ in lists for t in some)
    for place, one in enumerate(value):
        if not isinstance(one, elements):
            said = " or ".join(name for _, name in lists)
            return f"{names}: expected {said} as element {place}, but got {type(one).__name__}"
    return ""
