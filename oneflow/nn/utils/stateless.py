"""Modules called with other parameters than their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from oneflow.core.errors import CallError, OneFlowError
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor

__all__ = ["functional_call"]


def functional_call(
    module: Module,
    parameters_and_buffers: Mapping[str, Tensor],
    args: object = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """The result of `module(*args, **kwargs)` with tensors in the places of its own, by name.

    args: a tuple, or one argument.  tie_weights: parameters that the module has under several names
    are exchanged under all of them.  strict: every name must be given. The module is afterwards as
    before. Raises CallError for an object that is no module, OneFlowError for names that do not
    fit.
    """
    if not isinstance(module, Module):
        raise CallError(
            "functional_call(): argument 'module' (position 1) must be Module, not "
            f"{type(module).__name__}"
        )
    given = () if args is None else args if isinstance(args, tuple) else (args,)
    with _exchanged(module, dict(parameters_and_buffers), tie_weights, strict):
        return module(*given, **(kwargs or {}))


def _own_tensors(module: Module) -> dict[str, tuple[dict[str, Any], str]]:
    """Full name -> the table that holds the tensor, and its name there; shared ones each time."""
    found = {}
    for path, part in module.named_modules(remove_duplicate=False):
        for table in (part._parameters, part._buffers):
            for name, x in table.items():
                if x is not None:
                    found[f"{path}.{name}" if path else name] = (table, name)
    return found


@contextmanager
def _exchanged(
    module: Module, new: dict[str, Tensor], tie_weights: bool, strict: bool
) -> Iterator[None]:
    own = _own_tensors(module)
    unknown, missing = new.keys() - own.keys(), own.keys() - new.keys()
    if unknown or (strict and missing):
        what = ("unexpected", unknown) if unknown else ("missing", missing)
        raise OneFlowError(
            f"functional_call: {what[0]} keys {sorted(what[1])} for {type(module).__name__}, whose "
            "parameters and buffers have other names"
        )
    places = {name: own[name] for name in new}
    if tie_weights:
        _add_shared(own, new, places)
    before = {name: table[key] for name, (table, key) in places.items()}
    try:
        for name, (table, key) in places.items():
            table[key] = new[name]
        yield
    finally:
        for name, (table, key) in places.items():
            table[key] = before[name]


def _add_shared(
    own: dict[str, tuple[dict[str, Any], str]],
    new: dict[str, Tensor],
    places: dict[str, tuple[dict[str, Any], str]],
) -> None:
    """Put a new tensor under the other names of the tensor that it stands for, too."""
    stands_for: dict[int, Tensor] = {}
    for name, (table, key) in places.items():
        if stands_for.setdefault(id(table[key]), new[name]) is not new[name]:
            raise OneFlowError(
                f"functional_call: {name} is one tensor under several names, which got different "
                "values; give one, or tie_weights=False"
            )
    for name, (table, key) in own.items():
        if name not in places and id(table[key]) in stands_for:
            new[name] = stands_for[id(table[key])]
            places[name] = (table, key)
