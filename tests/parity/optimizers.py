"""Entries of optim_db: three steps of each optimizer over the same gradients."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_optimizers import optim_db

import oneflow as flow

from .report import Finding
from .values import Different, Unsupported, compare, to_flow

STEPS = 3

# Arguments that choose among PyTorch's implementations of one update, and change no number.
IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")


# Keywords that choose PyTorch's arithmetic where OneFlow's is another.
CHOICES = {"RMSprop": {"eps_in_root": False}, "SGD": {"dampens_first": False}}

RATES = ("lr", "eps", "weight_decay", "alpha", "rho")


def entries(names: list[str] | None = None) -> list[Any]:
    return [info for info in optim_db if names is None or info.optim_cls.__name__ in names]


def check(info: Any, limit: int | None) -> list[Finding]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(_check_entry(info, limit))


def _check_entry(info: Any, limit: int | None) -> Iterator[Finding]:
    name = info.optim_cls.__name__
    ours = getattr(flow.optim, name, None)
    if ours is None:
        yield Finding("optimizers", name, "step", "", 0, "not there")
        return
    for dtype in (torch.float32, torch.float64):
        for number, case in enumerate(info.optim_inputs_func(device="cpu", dtype=dtype)):
            if number == limit:
                break
            outcome, message = _outcome(info.optim_cls, ours, case, dtype)
            short = str(dtype).removeprefix("torch.")
            if outcome:
                note = f"{case.desc}: {message}" if message else ""
                yield Finding("optimizers", name, "step", short, number, outcome, note)


def _gradients(dtype: torch.dtype) -> Iterator[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        yield [torch.randn(*s, dtype=dtype, generator=generator) for s in ((3, 4), (5,))]


def _outcome(theirs: Any, ours: Any, case: Any, dtype: torch.dtype) -> tuple[str, str]:
    kwargs = {k: v for k, v in case.kwargs.items() if k not in IMPLEMENTATION}
    starts = [torch.linspace(-1, 1, 12, dtype=dtype).reshape(3, 4), torch.ones(5, dtype=dtype)]
    wanted = [s.clone().requires_grad_() for s in starts]
    try:
        optimizer = theirs(wanted, **kwargs)
        # The defaults of some rates are OneFlow's, which are other numbers.
        kwargs = {**{k: optimizer.defaults[k] for k in RATES if k in optimizer.defaults}, **kwargs}
        kwargs.update(CHOICES.get(theirs.__name__, {}))
        for gradients in _gradients(dtype):
            for parameter, gradient in zip(wanted, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
    except Exception:
        return "", ""
    got = [to_flow(s).requires_grad_() for s in starts]
    try:
        mine = ours(got, **to_flow(kwargs))
        for gradients in _gradients(dtype):
            for parameter, gradient in zip(got, gradients, strict=True):
                parameter.grad = to_flow(gradient)
            mine.step()
        compare([w.detach() for w in wanted], [g.detach() for g in got], where="parameters")
    except Unsupported as reason:
        return "not there", str(reason)
    except Different as finding:
        return "failed", str(finding)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    return "passed", ""
