"""Programs of a few lines, drawn from the public table beside PyTorch."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

import torch

from oneflow import api
from oneflow.api.row import Row

from . import (
    layer_recipes as layer_recipes,
)
from . import (
    loss_recipes as loss_recipes,
)
from . import (
    matrix_recipes as matrix_recipes,
)
from . import (
    position_recipes as position_recipes,
)
from . import (
    special_recipes as special_recipes,
)
from . import (
    spectrum_recipes as spectrum_recipes,
)
from .drawing import (
    FLOATS,
    INTEGERS,
    LARGEST,
    REFUSALS,
    Draft,
    Program,
    name_of,
    quietly,
    row_major,
)
from .recipes import IN_PLACE, RECIPES, Recipe

NAMES = re.compile(r"\bv\d+\b")
ZERO = re.compile(r"(?<![\w.])0(\.0)?(?![\w.])")
PREFIXES = {
    "flow": "m.",
    "F": "m.nn.functional.",
    "special": "m.special.",
    "linalg": "m.linalg.",
    "fft": "m.fft.",
}
FOLLOWED = (*FLOATS, *INTEGERS, "int16", "bool")
MANY = 2048
"""Elements of a value that later lines may grow no further."""

INDICES = (
    ("0", 1), ("-1", 1), ("1:", 1), ("::2", 1), (":-1", 1), ("None", 0), ("...", 0),
    ("...,0", 1), (":,0", 2), (":,1:", 2), (":,-1:", 2), ("0,0", 2), ("...,None", 0), ("1:1", 1),
    (":,None", 1), ("::2,::2", 2), (":,:,0", 3), ("[0, -1]", 1), (":,[0, 0]", 2), ("[0],[0]", 2),
    ("[[0],[0]],[0]", 2), ("[0],:,[0]", 3), ("True", 0), ("[True]", 0), ("5", 1),
)  # fmt: skip
UNARY = ("-{}", "abs({})", "+{}", "{}.T", "{}.mT")
OPERATORS = {"+": "algebra", "-": "algebra", "*": "algebra", "/": "divides", "**": ""}
OPERATORS["@"] = "algebra"
JUMPING = {k: "jumps" for k in ("//", "%", "<", "<=", ">", ">=", "==", "!=")} | {
    k: "moves" for k in ("&", "|", "^")
}


@dataclass(frozen=True)
class Line:
    """One line, and the facts known of it."""

    text: str
    traits: frozenset[str]
    target: str = ""
    """Name of the value that it writes into; else it gives a new one."""


def forms() -> dict[str, list[tuple[str, str]]]:
    """Name with a recipe -> (surface, name) of each way to call it that PyTorch has, too."""
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in RECIPES}
    for row in api.ROWS:
        for name in row.names if row.torch is not None else ():
            for surface in row.surfaces:
                key = name if f"{surface}.{name}" not in found else f"{surface}.{name}"
                if key in found and _is_there(surface, name):
                    found[key].append((surface, name))
    for name, ways in found.items():
        if not ways and hasattr(torch.Tensor, name):
            ways.append(("tensor", name))
    return {name: ways for name, ways in found.items() if ways}


def unknown(rows: list[Row]) -> list[str]:
    """Names of functions of tensors that PyTorch has, and no recipe calls."""
    called = {name.split(".")[-1] for name in RECIPES}
    return [r.names[0] for r in rows if r.torch is not None and r.names[0] not in called]


def _is_there(surface: str, name: str) -> bool:
    if surface == "tensor_":
        return hasattr(torch.Tensor, f"{name}_")
    if surface == "tensor":
        return hasattr(torch.Tensor, name)
    if surface not in PREFIXES:
        return False
    home: Any = torch
    for part in PREFIXES[surface].split(".")[1:-1]:
        home = getattr(home, part)
    return hasattr(home, name)


FORMS = forms()
CALLED = sorted(FORMS)


def draw(seed: int) -> Program:
    """The program of a seed."""
    d = Draft(random.Random(seed))
    for _ in range(d.pick((1, 2, 2))):
        d.leaf(d.shape())
    wanted, tries, refused = d.rng.randint(3, 12), 0, False
    while len(d.lines) < wanted and tries < 60 and not refused:
        tries += 1
        refused = _extend(d)
    used = set(NAMES.findall("\n".join(d.lines)))
    leaves = tuple(leaf for leaf in d.leaves if leaf.name in used)
    return Program(leaves, tuple(d.lines), refused, seed)


def _extend(d: Draft) -> bool:
    """Adds one line if PyTorch takes it; or one that it refuses, which then is the last: True."""
    count = len(d.leaves)
    line = _line(d)
    operands = NAMES.findall(line.text)
    if line.traits & {"jumps", "edges"} and not all(_holds(d, n) for n in operands):
        return _dropped(d, count)
    if "divides" in line.traits and not all(_holds(d, n) for n in operands):
        far = not ZERO.search(line.text) and all(_is_far(d.values[n]) for n in operands)
        if not far:
            return _dropped(d, count)
    if line.target and any(_overlaps(d.values[line.target], d.values[n]) for n in operands):
        return _dropped(d, count)  # PyTorch refuses some, and reads what it wrote of others
    if line.target and _has_windows(d.values[line.target]):
        return _dropped(d, count)  # which of the writes to an element is the last is not said
    if "order" in line.traits and _has_ties([d.values[n] for n in operands]):
        return _dropped(d, count)
    if "ends" in line.traits and any(_has_nan(d.values[n]) for n in operands):
        return _dropped(d, count)
    if "spread" in line.traits and not _is_spread(d.values[operands[0]]):
        return _dropped(d, count)
    names = {"m": torch, **d.values}
    try:
        quietly(f"found = {line.text}" if not line.target else line.text, names)
    except REFUSALS as error:
        # A zero divisor ends the rank that has it, and only then the others.
        if d.lines and d.chance(0.08) and "ZeroDivision" not in str(error):
            d.lines.append(line.text if line.target else f"{d.name()} = {line.text}")
            return True
        return _dropped(d, count)
    results = [] if line.target else _results(names["found"])
    if results:
        laid = row_major(d.values, dict(enumerate(results)))
        results = [laid.get(i, x) for i, x in enumerate(results)]
    if results is None or not all(map(_is_followed, results)):
        return _dropped(d, count)
    if line.target:
        d.values[line.target] = names[line.target]  # `x @= y` gives another tensor
    if line.target and not _is_followed(d.values[line.target]):
        return _undone(d, count)
    if line.target:
        d.lines.append(line.text)
    else:
        targets = [d.name() for _ in results]
        many = isinstance(names["found"], (tuple, list))
        d.values.update(zip(targets, results, strict=True))
        d.lines.append(f"{', '.join(targets)}{',' if many else ''} = {line.text}")
    _note_exactness(d, line, operands, [line.target] if line.target else targets)
    return False


def _holds(d: Draft, name: str) -> bool:
    return name in d.exact or not d.values[name].is_floating_point()


def _is_far(x: torch.Tensor) -> bool:
    """Is no number near 0?"""
    return not x.numel() or not bool((x.detach().double().abs() < 1e-2).any())


def _has_ties(operands: list[torch.Tensor]) -> bool:
    """Whether equal numbers require a gradient."""
    if not any(x.requires_grad for x in operands):
        return False
    whole = torch.cat([x.detach().double().reshape(-1) for x in operands if x.is_floating_point()])
    return bool(whole.unique().numel() < whole.numel() or whole.isnan().sum() > 1)


def _has_nan(x: torch.Tensor) -> bool:
    """Whether a NaN requires a gradient."""
    return x.requires_grad and bool(x.detach().isnan().any())


def _overlaps(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Do they share memory, but not element by element?"""
    if x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr():
        return False
    return (x.shape, x.stride(), x.storage_offset()) != (y.shape, y.stride(), y.storage_offset())


def _has_windows(x: torch.Tensor) -> bool:
    """Do elements share memory?"""
    places = torch.zeros(x.shape, dtype=torch.int64)
    for dim, (size, step) in enumerate(zip(x.shape, x.stride(), strict=True)):
        along = [1] * x.ndim
        along[dim] = size
        places += (torch.arange(size) * step).reshape(along)
    return places.unique().numel() < x.numel()


def _is_spread(x: torch.Tensor) -> bool:
    """Do the numbers of each row differ well?"""
    if not x.ndim or x.shape[-1] < 2 or not x.numel():
        return False
    rows = x.detach().double()
    return bool((rows.amax(-1) - rows.amin(-1)).min() > 0.25)


def _dropped(d: Draft, count: int) -> bool:
    for leaf in d.leaves[count:]:
        del d.values[leaf.name]
    del d.leaves[count:]
    return False


def _undone(d: Draft, count: int) -> bool:
    """Takes back the writes of a line: all is computed anew."""
    _dropped(d, count)
    names: dict[str, Any] = {"m": torch, **{leaf.name: leaf.tensor(torch) for leaf in d.leaves}}
    for text in d.lines:
        before = dict(names)
        quietly(text, names)
        names |= row_major(before, names)
    d.values = {name: names[name] for name in d.values}
    return False


def _results(found: Any) -> list[torch.Tensor] | None:
    """Tensors of a line's result, or None if it has others."""
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    if not results or len(results) > 6 or not all(isinstance(r, torch.Tensor) for r in results):
        return None
    return results


def _is_followed(value: torch.Tensor) -> bool:
    if value.numel() > MANY or name_of(value) not in FOLLOWED:
        return False
    if value.is_floating_point() and value.numel():
        finite = value.detach()[value.detach().isfinite()]
        return not finite.numel() or bool(finite.abs().max() < LARGEST)
    if not value.numel() or value.dtype is torch.bool:
        return True
    return bool(value.detach().abs().max() < 2**40)


def _note_exactness(d: Draft, line: Line, operands: list[str], results: list[str]) -> None:
    exact = all(_holds(d, n) for n in operands)
    if not ("moves" in line.traits or "jumps" in line.traits):
        exact = exact and "algebra" in line.traits
    for name in results:
        value = d.values[name]
        holds = exact and ("algebra" not in line.traits or _is_on_grid(value))
        if not value.is_floating_point():
            holds = True
        if holds and not line.target:
            d.exact.add(name)
        elif not holds:
            place = value.untyped_storage().data_ptr()
            d.exact -= {n for n, v in d.values.items() if v.untyped_storage().data_ptr() == place}


def _is_on_grid(value: torch.Tensor) -> bool:
    """Few enough digits that no order of summation can have rounded?"""
    if not value.is_floating_point() or not value.numel():
        return True
    half = value.dtype in (torch.float16, torch.bfloat16)
    steps, largest = (8, 16) if half else (256, 2048)
    finite = value.detach().double()
    finite = finite[finite.isfinite()]
    scaled = finite * steps
    return bool((scaled == scaled.round()).all() and (finite.abs() <= largest).all())


def _line(d: Draft) -> Line:
    kind = d.rng.choices(
        ("call", "operator", "getitem", "setitem", "augmented", "unary", "in place"),
        (66, 10, 9, 5, 4, 3, 3),
    )[0]
    if kind == "call":
        return _call(d)
    if kind == "operator":
        symbol, traits = d.pick((OPERATORS | JUMPING).items())
        is_exact = "jumps" in traits or symbol == "**"  # a whole exponent is another
        x = d.any(exact=is_exact)
        other = d.number(x) if d.chance(0.4) else d.partner(x, exact=is_exact)
        pair = (x, other) if d.chance(0.7) else (other, x)
        return Line(f"{pair[0]} {symbol} {pair[1]}", frozenset(traits.split()))
    if kind == "augmented":
        symbol = d.pick(OPERATORS)
        x = d.any()
        other = d.number(x) if d.chance(0.4) else d.partner(x, exact=symbol == "**")
        return Line(f"{x} {symbol}= {other}", frozenset(OPERATORS[symbol].split()), x)
    if kind == "unary":
        return Line(d.pick(UNARY).format(d.any()), frozenset(("moves",)))
    if kind == "in place":
        name, made = d.pick(IN_PLACE.items())
        x = d.any(min_dims=made.min_dims)
        if name in ("requires_grad_", "detach_") and _has_views(d, x):
            name = "zero_"  # what becomes of views taken before is not specified
        return Line(f"{x}.{name}({', '.join(made.arguments(d, x))})", made.traits, x)
    x, index = _indexed(d)
    if kind == "getitem":
        return Line(f"{x}[{index}]", frozenset(("moves",)))
    value = d.number(x) if d.chance(0.5) else _source_of(d, x, index)
    return Line(f"{x}[{index}] = {value}", frozenset(("moves",)), x)


def _has_views(d: Draft, x: str) -> bool:
    place = d.values[x].untyped_storage().data_ptr()
    return sum(v.untyped_storage().data_ptr() == place for v in d.values.values()) > 1


def _indexed(d: Draft) -> tuple[str, str]:
    """A value, and an index of it."""
    x = d.any()
    rank = d.values[x].ndim
    if d.chance(0.15):
        return x, d.leaf(tuple(d.values[x].shape), "bool")
    if rank and d.chance(0.15):
        return x, d.positions(d.pick(((2,), (1,), (2, 2), ())), d.size(x, "0"), negative=True)
    return x, d.pick([index for index, dims in INDICES if dims <= rank])


def _source_of(d: Draft, x: str, index: str) -> str:
    """A tensor that fits `x[index]`, more or less."""
    names = {"m": torch, **d.values}
    try:
        quietly(f"found = {x}[{index}]", names)
    except REFUSALS:
        return d.any()
    shape = tuple(map(int, names["found"].shape))
    wants_grad = None if d.values[x].is_floating_point() else False
    return d.leaf(shape, name_of(d.values[x]) if d.chance(0.8) else None, grad=wants_grad)


def _call(d: Draft) -> Line:
    name = d.pick(CALLED)
    made: Recipe = d.pick(RECIPES[name])
    surface, name = d.pick(FORMS[name])
    if made.own is not None:
        operand = made.own(d)
        x = NAMES.findall(operand)[0]
    else:
        exact = bool(made.traits & {"jumps", "edges"})
        x = operand = d.any(floats=made.floats, exact=exact, min_dims=made.min_dims)
    arguments = made.arguments(d, x)
    if surface == "tensor_" and ("compares" in made.traits or operand != x):
        surface = "tensor"  # PyTorch lets comparisons overwrite leaves, and forgets their history
    if surface == "tensor_":
        return Line(f"{x}.{name}_({', '.join(arguments)})", made.traits, x)
    if surface == "tensor" and not made.listed:
        text = f"{operand}.{name}({', '.join(arguments)})"
    else:
        prefix = PREFIXES["flow" if surface == "tensor" else surface]
        first = () if made.listed else (operand,)
        text = f"{prefix}{name}({', '.join((*first, *arguments))})"
    return Line(made.result.format(text), made.traits)
