"""A program in PyTorch, eagerly, in a graph and as global tensors; and the differences."""

from __future__ import annotations

import random
import re
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import InternalError

from .drawing import FLOATS, REFUSALS, Program, quietly, row_major
from .known import is_known

EAGER, GRAPH, GLOBAL = MODES = ("eager", "graph", "global")
TOLERANCES = {"float16": 5e-2, "bfloat16": 6e-2, "float32": 3e-4, "float64": 1e-6}
RANKS = 2


@dataclass
class Outcome:
    """All that a run shows.

    values: name -> numbers, dtype and shape of every value after the last line.
    line: number of the line that was refused, or -1.  error: its error.
    gradients: of the leaves, None where there is none; not there if there are none at all.
    followed: names of the results that require a gradient.
    tensors: the values themselves, to write into.
    """

    values: dict[str, Any] = field(default_factory=dict)
    line: int = -1
    error: Exception | None = None
    gradients: dict[str, Any] | None = None
    followed: tuple[str, ...] = ()
    refused_backward: Exception | None = None
    tensors: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """A place where two libraries part. kind: "value", "dtype", "error", "gradient" ..."""

    mode: str
    kind: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.mode}, {self.kind}: {self.text}"


def differences(program: Program, modes: tuple[str, ...] = MODES) -> list[Difference]:
    """Answers of the modes that are not PyTorch's, at most one a mode."""
    wanted = run_torch(program)
    found = []
    for mode in modes:
        if mode == GLOBAL and re.search(
            "index .*out of|out of range|Class values", str(wanted.error)
        ):
            continue  # it ends the rank that has the position, and only then the others
        got = RUNS[mode](program)
        difference = _compared(program, mode, wanted, got)
        if difference is not None and is_known(program, difference):
            difference = None
        if mode == GLOBAL:
            difference = _agreed(difference)
        if difference is not None and not _is_explained(program, mode, difference):
            found.append(difference)
    return found


def _is_explained(program: Program, mode: str, difference: Difference) -> bool:
    """Whether the first line after which the two libraries part does so for a reason."""
    for n in range(1, len(program.lines) + 1):
        part = replace(program, lines=program.lines[:n])
        cause = _compared(part, mode, run_torch(part), RUNS[mode](part))
        if cause is not None and cause.kind in ("value", "type", difference.kind):
            is_number = cause.kind in ("value", "gradient")
            return is_known(part, cause) or (is_number and _is_rounding(part, mode))
    return False


def _is_rounding(program: Program, mode: str) -> bool:
    """Whether each line gives PyTorch's result, if PyTorch goes on from the numbers of `mode`
    after every line: then last bits differ, and a later line is ill-conditioned where it is."""
    names = {"m": torch, **{leaf.name: leaf.tensor(torch) for leaf in program.leaves}}
    for n, text in enumerate(program.lines):
        part = replace(program, lines=program.lines[: n + 1])
        got = RUNS[mode](part)
        _follow(replace(program, lines=(text,)), names, Outcome(), has_memory=True)
        values = {k: v for k, v in names.items() if _is_value(k, v)}
        for name, value in values.items():
            if _value_difference(part, mode, name, _shown(value), got.values.get(name)):
                return False
        for name, value in values.items():
            if not _is_expanded(value):
                value.data.copy_(torch.from_numpy(got.values[name][0]))
    wanted = Outcome()
    _differentiate(program, torch, values, wanted)
    return wanted.gradients is None or not _gradient_difference(program, mode, wanted, got, n)


def said_by_ranks(number: int) -> list[int]:
    """The number of each rank."""
    ranks = flow.placement("cpu", list(range(RANKS)))
    numbers = flow.tensor([number]).to_global(ranks, flow.sbp.split(0)).numpy()
    return [int(n) for n in numbers]


def _agreed(difference: Difference | None) -> Difference | None:
    """The same on both ranks, which go on alike: that they differ is a difference, too."""
    kind = -1 if difference is None else zlib.crc32(difference.kind.encode())
    if len(set(said_by_ranks(kind))) == 1:
        return difference
    return Difference(
        GLOBAL, "ranks", -1, f"the other rank sees another kind; this one {difference}"
    )


# -- runs


def run_torch(program: Program) -> Outcome:
    return _run(program, torch, {leaf.name: leaf.tensor(torch) for leaf in program.leaves})


_LEARNED = 3
"""Calls after which a repeated one takes a short way (oneflow/tensor/shortcuts.py)."""


def run_eager(program: Program) -> Outcome:
    for _ in range(_LEARNED):
        _run(program, flow, {leaf.name: leaf.tensor(flow) for leaf in program.leaves})
    return _run(program, flow, {leaf.name: leaf.tensor(flow) for leaf in program.leaves})


def _run(program: Program, m: Any, leaves: dict[str, Any]) -> Outcome:
    out = Outcome()
    names = {"m": m, **leaves}
    _follow(program, names, out, has_memory=True)
    values = {k: v for k, v in names.items() if _is_value(k, v)}
    if out.line < 0:
        _differentiate(program, m, values, out)
    out.values = {k: _shown(v) for k, v in values.items()}
    if out.line < 0:
        out.tensors = values
    return out


def run_graph(program: Program) -> Outcome:
    """The lines inside of a graph, and their gradients."""
    out = Outcome()
    kept: list[str] = []

    class Lines(nn.Graph):
        def build(self, *leaves: Any) -> Any:
            names = {"m": flow}
            for leaf, x in zip(program.leaves, leaves, strict=True):
                names[leaf.name] = x.requires_grad_() if leaf.requires_grad else x
            _follow(program, names, out)
            if out.error is not None:
                raise out.error
            values = {k: v for k, v in names.items() if _is_value(k, v)}
            _differentiate(program, flow, values, out)
            kept[:] = values
            gradients = out.gradients or {}
            given = [k for k, g in gradients.items() if g is not None]
            return [values[k] for k in kept], [gradients[k] for k in given]

    leaves = [leaf.tensor(flow) for leaf in program.leaves]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values, gradients = Lines()(*leaves)
    except Exception as error:
        if out.error is None:
            out.error, out.line = error, len(program.lines) - 1
        return out
    out.values = {k: _shown(v) for k, v in zip(kept, values, strict=True)}
    if out.gradients is not None:
        computed = iter(gradients)
        out.gradients = {
            k: None if g is None else _shown(next(computed)) for k, g in out.gradients.items()
        }
    return out


def run_global(program: Program) -> Outcome:
    """The lines on global tensors of two ranks, of which this process is one, in drawn layouts."""
    rng, out = random.Random(program.seed), Outcome()
    place = flow.placement("cpu", list(range(RANKS)))
    names: dict[str, Any] = {"m": flow}
    for leaf in program.leaves:
        layouts = [flow.sbp.broadcast]
        layouts += [flow.sbp.split(d) for d, size in enumerate(leaf.shape) if size >= RANKS]
        if leaf.dtype in FLOATS[:2] and not any(isinstance(n, str) for n in leaf.numbers):
            layouts.append(flow.sbp.partial_sum)
        made = leaf.tensor(flow).detach().to_global(place, flow.sbp.broadcast)
        made = made.to_global(sbp=rng.choice(layouts))
        names[leaf.name] = made.detach().requires_grad_() if leaf.requires_grad else made
    _follow(program, names, out)
    values = {k: v for k, v in names.items() if _is_value(k, v)}
    if out.line < 0:
        _differentiate(program, flow, values, out)
        if out.gradients is not None:
            out.gradients = {
                k: g if g is None else _shown(_whole(g)) for k, g in out.gradients.items()
            }
    out.values = {k: _shown(_whole(v)) for k, v in values.items()}
    return out


def _whole(value: Any) -> Any:
    if not value.is_global:
        return value
    return value.detach().to_global(sbp=flow.sbp.broadcast).to_local()


RUNS: dict[str, Callable[[Program], Outcome]] = {
    EAGER: run_eager,
    GRAPH: run_graph,
    GLOBAL: run_global,
}


# -- parts of a run


def _is_value(name: str, value: Any) -> bool:
    return name[0] == "v" and isinstance(value, (torch.Tensor, flow.Tensor))


def _follow(
    program: Program, names: dict[str, Any], out: Outcome, has_memory: bool = False
) -> None:
    for number, text in enumerate(program.lines):
        before = dict(names)
        try:
            quietly(text, names)
        except Exception as error:
            out.line, out.error = number, error
            return
        if has_memory:
            names |= row_major(before, names)
            for value in names.values():
                with suppress(RuntimeError):  # of some views PyTorch has none
                    getattr(value, "grad_fn", None)  # of a view, it is that of now when it is read


def _differentiate(program: Program, m: Any, values: dict[str, Any], out: Outcome) -> None:
    """Gradients of all results in one pass."""
    leaves = [leaf.name for leaf in program.leaves if leaf.requires_grad]
    leaves = [n for n in leaves if values[n].requires_grad]
    out.followed = tuple(
        k
        for k, v in values.items()
        if k not in leaves and v.requires_grad and v.is_floating_point()  # bools do, in PyTorch
    )
    if not leaves or not out.followed:
        return
    results = [values[k] for k in out.followed]
    try:
        weights = [
            m.full_like(values[k].detach(), (1.0, 0.5, -1.0, 2.0)[int(k[1:]) % 4])
            for k in out.followed
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = m.autograd.grad(
                results, [values[n] for n in leaves], weights, allow_unused=True
            )
    except REFUSALS as error:
        out.refused_backward = error
        return
    has_numbers = m is torch or not any(g is not None and (g.is_lazy or g.is_global) for g in found)
    out.gradients = {
        n: _shown(g) if g is not None and has_numbers else g
        for n, g in zip(leaves, found, strict=True)
    }


def _shown(value: Any) -> tuple[np.ndarray[Any, Any], str, tuple[int, ...]]:
    """Numbers (a copy), dtype, shape."""
    dtype = str(value.dtype).split(".")[-1]
    plain = value.detach()
    if isinstance(plain, torch.Tensor):
        plain = plain.clone() if plain._is_zerotensor() else plain.resolve_neg()
    if dtype == "bfloat16":
        plain = plain.float()
    return np.array(plain.numpy()), dtype, tuple(map(int, value.shape))


def _touched(m: Any, values: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Names of the values that change, too, by the name of the one that is written."""
    views = {k: v.detach() for k, v in values.items() if v.numel()}
    found: dict[str, tuple[str, ...]] = {}
    before = {k: _memory(v) for k, v in views.items()}
    for name, view in views.items():
        if _is_expanded(view):
            continue
        try:
            _overwrite(m, view)
        except REFUSALS as error:
            found[name] = (f"{type(error).__name__}",)
            continue
        after = {k: _memory(v) for k, v in views.items()}
        found[name] = tuple(k for k in views if k != name and after[k] != before[k])
        before = after
    return found


def _is_expanded(value: Any) -> bool:
    return any(s == 0 and n > 1 for s, n in zip(value.stride(), value.shape, strict=True))


def _memory(value: Any) -> bytes:
    is_brain = value.dtype is torch.bfloat16  # which NumPy lacks
    found: bytes = (value.view(torch.int16) if is_brain else value).numpy().tobytes()
    return found


def _overwrite(m: Any, view: Any) -> None:
    """Writes another number into every element."""
    if view.dtype == m.bool:
        view.logical_not_()
    else:
        numbers = _shown(view)[0]
        view.fill_(next(n for n in range(64, 128) if not (numbers == n).any()))


# -- comparison


def _compared(program: Program, mode: str, wanted: Outcome, got: Outcome) -> Difference | None:
    last = len(program.lines) - 1
    if isinstance(got.error, InternalError):
        return Difference(mode, "internal", got.line, repr(got.error)[:300])
    last_wanted = wanted.line if wanted.error is not None else last + 1
    if got.error is not None and got.line < last_wanted:
        text = f"{type(got.error).__name__}: {got.error}"
        return Difference(mode, "refused", got.line, text[:300])
    if wanted.error is not None:
        if got.error is None:
            text = f"not refused; PyTorch: {type(wanted.error).__name__}: {wanted.error}"
            return Difference(mode, "accepted", last, text[:300])
        if mode == GRAPH or not re.match(r"v\d+ = ", program.lines[-1]):
            return None  # what PyTorch refuses to write in place may be half written there
    for name, value in wanted.values.items():
        difference = _value_difference(program, mode, name, value, got.values.get(name))
        if difference is not None:
            return difference
    if wanted.error is None and wanted.followed != got.followed:
        text = f"{wanted.followed} require gradients in PyTorch, {got.followed} here"
        return Difference(mode, "followed", last, text)
    if wanted.gradients is not None and got.error is None:
        difference = _gradient_difference(program, mode, wanted, got, last)
        if difference is not None:
            return difference
    ours = _touched(flow, got.tensors)
    for name, names in _touched(torch, wanted.tensors).items() if ours else ():
        if ours.get(name, names) != names:
            text = f"writing {name} changes {names} in PyTorch, {ours[name]} here"
            return Difference(mode, "aliasing", last, text)
    return None


def _rate(program: Program, dtype: str) -> float:
    """The tolerance of a result: of the coarsest dtype that it may be made of."""
    coarse = [TOLERANCES[name] for name in program.dtypes if name in TOLERANCES]
    return max([TOLERANCES[dtype], *coarse])


def _value_difference(
    program: Program, mode: str, name: str, wanted: Any, got: Any
) -> Difference | None:
    line = next((i for i, t in enumerate(program.lines) if name in t.split(" = ")[0]), -1)
    if got is None:
        return Difference(mode, "value", line, f"{name} is not there")
    if wanted[1:] != got[1:]:
        text = f"{name} is {got[1]}{list(got[2])}, PyTorch's {wanted[1]}{list(wanted[2])}"
        return Difference(mode, "type", line, text)
    text = _unlike(program, wanted[0], got[0], wanted[1])
    return Difference(mode, "value", line, f"{name} {text}") if text else None


def _gradient_difference(
    program: Program, mode: str, wanted: Outcome, got: Outcome, last: int
) -> Difference | None:
    if got.gradients is None:
        text = f"{got.refused_backward!r}" if got.refused_backward else "no gradient"
        return Difference(mode, "backward", last, text[:300])
    assert wanted.gradients is not None
    for name, value in wanted.gradients.items():
        mine = got.gradients.get(name)
        if value is None or mine is None:
            known = value or mine
            if known is not None and np.nan_to_num(known[0]).any():  # zeros are as good
                text = f"of {name}: {'none' if mine is None else 'one'}, PyTorch the other"
                return Difference(mode, "gradient", last, text)
            continue
        text = "" if value[1:] == mine[1:] else f"is {mine[1:]}, not {value[1:]}"
        text = text or _unlike(program, value[0], mine[0], value[1], lost=3.0)
        if text:
            return Difference(mode, "gradient", last, f"of {name} {text}")
    return None


def _unlike(program: Program, wanted: Any, got: Any, dtype: str, lost: float = 0.3) -> str:
    """The first unlike numbers of two arrays of one shape, or nothing.  lost: the part of the
    largest number by which sums may be wrong, in units of the tolerance.
    """
    if dtype not in TOLERANCES:
        if np.array_equal(wanted, got):
            return ""
        near = wanted == got
    else:
        a, b = wanted.astype(np.float64), got.astype(np.float64)
        with np.errstate(all="ignore"):
            finite = np.abs(a[np.isfinite(a)])
            scale = max(1.0, float(finite.max())) if finite.size else 1.0
            rate = _rate(program, dtype)
            near = np.isclose(b, a, rate, rate * scale * lost, equal_nan=True)
        if near.all():
            return ""
    at = tuple(int(i) for i in np.argwhere(~near)[0])
    return f"at {at} of {list(wanted.shape)} is {got[at]!r}, PyTorch's {wanted[at]!r}"
