"""Entries of module_db: layers built from the same arguments, given PyTorch's parameters, run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_modules import module_db

import oneflow as flow

from .report import Finding
from .values import Different, Unsupported, compare, to_flow

DTYPES = (torch.float32, torch.float64)

# Their results are drawn in training: shapes and dtypes are compared, values are not.
RANDOM = (
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "AlphaDropout",
    "FeatureAlphaDropout",
    "RReLU",
)


def entries(names: list[str] | None = None) -> list[Any]:
    """Entries of module_db, all or those among `names` ("Linear" or "nn.Linear")."""
    return [
        info
        for info in module_db
        if names is None or info.module_cls.__name__ in names or info.name in names
    ]


def check(info: Any, limit: int | None) -> list[Finding]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(_check_entry(info, limit))


def _check_entry(info: Any, limit: int | None) -> Iterator[Finding]:
    name = info.module_cls.__name__
    ours = getattr(flow.nn, name, None)
    if ours is None:
        yield Finding("modules", name, "train", "", 0, "not there")
        return
    for dtype in DTYPES:
        if dtype not in info.dtypes:
            continue
        for training in (True, False) if info.train_and_eval_differ else (True,):
            torch.default_generator.manual_seed(1)
            inputs = info.module_inputs_func(
                info, device="cpu", dtype=dtype, requires_grad=True, training=training
            )
            for number, case in enumerate(inputs):
                if number == limit:
                    break
                surface = "train" if training else "eval"
                outcome, message = _outcome(info.module_cls, ours, case, dtype, training)
                short = str(dtype).removeprefix("torch.")
                if outcome:
                    yield Finding("modules", name, surface, short, number, outcome, message)


def _outcome(
    theirs: Any, ours: Any, case: Any, dtype: torch.dtype, training: bool
) -> tuple[str, str]:
    build, forward = case.constructor_input, case.forward_input
    try:
        if any(isinstance(value, torch.nn.Module) for value in build.args):
            raise Unsupported("a layer of PyTorch")
        built = to_flow([build.args, build.kwargs])
        given = to_flow([forward.args, forward.kwargs])
    except Unsupported as reason:
        return "not there", str(reason)
    try:
        torch.default_generator.manual_seed(2)
        wanted_module = theirs(*build.args, **build.kwargs).to(dtype).train(training)
        states = {k: to_flow(v.detach()) for k, v in wanted_module.state_dict().items()}
        wanted = wanted_module(*forward.args, **forward.kwargs)
    except Exception:
        return "", ""
    try:
        module = ours(*built[0], **built[1]).to(to_flow(dtype)).train(training)
        module.load_state_dict(states)
        got = module(*given[0], **given[1])
        drawn = training and theirs.__name__ in RANDOM
        compare(wanted, got, values=not drawn, where="value")
        if not drawn:
            _compare_gradients(wanted_module, module, wanted, got)
    except Unsupported as reason:
        return "not there", str(reason)
    except Different as finding:
        return "failed", str(finding)
    except (Exception, SystemError) as error:
        return "failed", f"{type(error).__name__}: {error}"
    return "passed", ""


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in _flat(v)]
    return [value] if isinstance(value, (torch.Tensor, flow.Tensor)) else []


def _compare_gradients(theirs: Any, ours: Any, wanted: Any, got: Any) -> None:
    pairs = [
        (a, b) for a, b in zip(_flat(wanted), _flat(got), strict=True) if a.is_floating_point()
    ]
    parameters = dict(theirs.named_parameters())
    mine = dict(ours.named_parameters())
    if set(parameters) != set(mine):
        raise Different(f"parameters: wanted {sorted(parameters)}, got {sorted(mine)}")
    if not parameters or not pairs:
        return
    weights = [
        torch.linspace(0.5, 1.5, a.numel(), dtype=a.dtype).reshape(a.shape) for a, _ in pairs
    ]
    names = sorted(parameters)
    first = torch.autograd.grad(
        [a for a, _ in pairs], [parameters[n] for n in names], weights, allow_unused=True
    )
    second = flow.autograd.grad(
        [b for _, b in pairs],
        [mine[n] for n in names],
        [to_flow(w) for w in weights],
        allow_unused=True,
    )
    for name, a, b in zip(names, first, second, strict=True):
        if (a is None) != (b is None):
            raise Different(f"gradient of {name}: one is None")
        if a is not None:
            compare(a, b, where=f"gradient of {name}")
