"""The function that users call for an op of one tensor, made from the op's declaration.

Its parameters are the tensor, then the attrs under their names and with their defaults, in the
order of the declaration, then `inplace` if the public table says so. It is written out as source,
as `dataclasses` does: a call costs no more than one of a function written by hand.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from inspect import Parameter, Signature, signature
from typing import Any

from oneflow.core.dtype import uint8
from oneflow.core.errors import CallError, DTypeError
from oneflow.core.op import Op
from oneflow.core.operand import Number
from oneflow.tensor.inplace import before, check_writable, overwrite
from oneflow.tensor.tensor import Tensor


def attrs_of(op: type[Op]) -> list[Parameter]:
    """The attrs of an op as its declaration lists them."""
    declared = signature(op.declared_by or op.infer).parameters.values()
    return [p for p in declared if p.kind is Parameter.KEYWORD_ONLY]


def function_of(
    op: type[Op], *, cast: Callable[[Tensor], Tensor] | None, inplace: bool
) -> Callable[..., Tensor]:
    """`op` with its attrs as ordinary parameters.

    cast: applied to the tensor first.  inplace: users may have the tensor overwritten.
    """
    attrs = attrs_of(op)
    required = [p for p in attrs if p.default is Parameter.empty]
    first = "input: Tensor" if required else "input: Tensor = None"
    taken = [first, *[f"{p.name}: {p.annotation}" for p in required]]
    taken += [f"{p.name}: {p.annotation} = {p.default!r}" for p in attrs if p not in required]
    given = "".join(f", {p.name}={_converted(p)}" for p in attrs)
    tensor = "cast(input)" if cast else "input"
    lines = [f"return op({tensor}{given})"]
    if inplace:
        taken.append("inplace: bool = False")
        lines.insert(0, f"if inplace: return written(op, input{given})")
    if not required:  # upstream calls the tensor x
        taken += ["*", "x: Tensor = None"]
        lines.insert(0, "if input is None: input = the_tensor(x)")
    source = f"def {op.name}({', '.join(taken)}) -> Tensor:\n"
    space: dict[str, Any] = {"op": op, "cast": cast, "fitting": _fitting, "written": _written}
    space["the_tensor"] = partial(_the_tensor, op.name)
    space["explain"] = _explain
    space["number"] = _number
    source = "from __future__ import annotations\n" + source + " try:\n"
    source += "".join(f"  {x}\n" for x in lines)
    source += " except (AttributeError, TypeError, ValueError) as error:\n"
    named = ", ".join(f"{p.name!r}: {p.name}" for p in attrs)
    source += f"  explain(made, (input,), {{{named}}}, error)\n  raise\n"
    exec(compile(source, __file__, "exec"), space)  # a file of ours: the user's line is above it
    made: Callable[..., Tensor] = space[op.name]
    made.__module__, made.__doc__ = op.__module__, op.__doc__
    made.__dict__["check"] = op.check
    made.__dict__["__signature__"] = _as_documented(made)
    space["made"] = made
    return made


def _explain(
    function: Callable[..., Tensor],
    args: tuple[object, ...],
    keywords: dict[str, object],
    error: Exception,
) -> None:
    importlib.import_module("oneflow.functional.argument_errors").explain(
        function, args, keywords, error
    )


def _the_tensor(name: str, x: Tensor | None) -> Tensor:
    """The tensor that was given as `x=`. Raises TypeError if there is none."""
    if x is None:
        raise CallError(f"{name}() missing 1 required positional argument: 'input'")
    return x


def _as_documented(function: Callable[..., Tensor]) -> Signature:
    """The signature without upstream's name of the tensor."""
    whole = signature(function)
    parameters = [p for p in whole.parameters.values() if p.name != "x"]
    parameters[0] = parameters[0].replace(default=Parameter.empty)
    return whole.replace(parameters=parameters)


def _number(value: object) -> object:
    """The number of a tensor of one element; anything else as it is, for the op to refuse."""
    is_number = isinstance(value, Tensor) and value.meta.numel == 1
    return value.item() if is_number and isinstance(value, Tensor) else value


def _converted(attr: Parameter) -> str:
    """Source of the value that the op gets: a float as one, so that 2 and 2.0 are one kernel."""
    name = attr.name
    plain = f"{name} if {name}.__class__ is float else number({name})"
    if attr.annotation == "float":
        return f"float({plain})"
    return f"fitting(input, {plain})" if attr.annotation == "Number" else name


def _fitting(x: Tensor, value: Number) -> Number:
    """A number of the kind of `x`: an integer for integers. Raises DTypeError if it cannot be."""
    if not x.meta.dtype.is_integer:
        return value
    if value < 0 and x.meta.dtype is uint8:
        raise DTypeError(f"{x.meta} cannot take the negative number {value}; cast the tensor first")
    return int(value)


def _written(op: Callable[..., Tensor], x: Tensor, **attrs: object) -> Tensor:
    """`x`, overwritten with the result of `op`."""
    check_writable(x)
    return overwrite(x, op(before(x), **attrs))
