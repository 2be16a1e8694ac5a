"""Entries of op_db: functions, methods and in-place methods over their samples, and errors."""

from __future__ import annotations

import random
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db

import oneflow as flow

from .report import Finding
from .values import Different, Unsupported, array_of, compare, to_flow

SURFACES = ("function", "method", "in place", "errors")

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool)

# They sort, and equal elements may come in any order. Their arguments after the input, by position.
ORDERS = {
    "argsort": ("dim",),
    "kthvalue": ("k", "dim"),
    "median": ("dim",),
    "mode": ("dim",),
    "sort": ("dim",),
    "topk": ("k", "dim"),
}

# Their numbers are drawn: shapes and dtypes are compared, values are not.
RANDOM = (
    "bernoulli",
    "cauchy",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "exponential",
    "geometric",
    "log_normal",
    "multinomial",
    "new_empty",
    "new_empty_strided",
    "nn.functional.alpha_dropout",
    "nn.functional.dropout",
    "nn.functional.dropout2d",
    "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
    "nn.functional.gumbel_softmax",
    "nn.functional.rrelu",
    "normal",
    "pca_lowrank",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "resize_",
    "resize_as_",
    "svd_lowrank",
    "uniform",
)


KINDS = (IndexError, TypeError, ValueError, RuntimeError, Exception)
"""Classes of errors that scripts tell apart, the narrow ones first."""


def title(op: Any) -> str:
    """The name of an entry, with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def at(path: str) -> Any:
    """`oneflow.<path>`, or None."""
    found: Any = flow
    for part in path.split("."):
        found = getattr(found, part, None)
        if found is None:
            return None
    return found


def function_of(op: Any) -> Callable[..., Any] | None:
    """Our counterpart of an entry's function: `flow.name`, or the method if there is no function.

    Entries that PyTorch wraps in a function of its own (to exchange arguments, to seed) are called
    through the same wrapper, in which `torch` means oneflow.
    """
    if not _is_here(op):
        return None
    if isinstance(op.op, types.FunctionType) and "torch.testing" in op.op.__module__:
        return _through_wrapper(op.op)
    found = at(op.name)
    return found if callable(found) else getattr(flow.Tensor, op.name.rsplit(".", 1)[-1], None)


def _is_here(op: Any) -> bool:
    if "." in op.name:
        return callable(at(op.name))
    for name in (op.name, f"{op.name}_"):
        if callable(at(op.name)) or hasattr(flow.Tensor, name):
            return True
    return False


class _Switch:
    """`torch` inside PyTorch's wrappers: our names; missing ones are an AttributeError."""

    Tensor = flow.Tensor
    nn = flow.nn

    def __getattr__(self, name: str) -> Any:
        return getattr(flow, name)


def _through_wrapper(wrapper: types.FunctionType) -> Callable[..., Any]:
    def rebound(function: Any) -> Any:
        if not isinstance(function, types.FunctionType):
            return function
        if not function.__module__.startswith("torch.testing"):
            return at(function.__qualname__) or function
        names = {**function.__globals__, "torch": _Switch(), "F": flow.nn.functional}
        cells = function.__closure__ and tuple(
            types.CellType(rebound(c.cell_contents)) for c in function.__closure__
        )
        return types.FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, cells
        )

    new = rebound(wrapper)
    new.__kwdefaults__ = wrapper.__kwdefaults__
    return new


def method_of(op: Any) -> Callable[..., Any] | None:
    variant = op.method_variant
    return getattr(flow.Tensor, variant.__name__, None) if _named(variant) else None


def in_place_of(op: Any) -> Callable[..., Any] | None:
    variant = op.inplace_variant
    return getattr(flow.Tensor, variant.__name__, None) if _named(variant) else None


def _named(variant: Any) -> bool:
    name = getattr(variant, "__name__", "")
    return bool(name) and name != "<lambda>" and not isinstance(variant, types.FunctionType)


def check_entry(op: Any, limit: int | None, surfaces: tuple[str, ...]) -> Iterator[Finding]:
    """Findings of one entry.  limit: samples per dtype and surface, None for all."""
    function = function_of(op)
    if function is None:
        yield Finding("operators", title(op), "function", "", 0, "not there")
        return
    ours = {"function": function, "method": method_of(op), "in place": in_place_of(op)}
    theirs = {"function": op.op, "method": op.method_variant, "in place": op.inplace_variant}
    for surface in surfaces:
        if surface == "errors":
            yield from _check_errors(op, function, limit)
        elif ours[surface] is not None and theirs[surface] is not None:
            yield from _check_samples(op, surface, theirs[surface], ours[surface], limit)


def _check_samples(
    op: Any, surface: str, theirs: Any, ours: Any, limit: int | None
) -> Iterator[Finding]:
    for dtype in DTYPES:
        if dtype not in op.dtypes:
            continue
        float_like = dtype.is_floating_point and op.supports_autograd and surface == "function"
        for number, sample in enumerate(samples_of(op, dtype, float_like)):
            if number == limit:
                break
            outcome, message = _outcome(op, surface, theirs, ours, sample, float_like)
            if outcome:
                name = str(dtype).removeprefix("torch.")
                yield Finding("operators", title(op), surface, name, number, outcome, message)


def samples_of(op: Any, dtype: torch.dtype, requires_grad: bool) -> Iterator[Any]:
    """Samples that the entry's own function yields: `op.sample_inputs` seeds all generators of all
    devices anew and looks for the test that asks, for each sample, which takes longer than the
    sample's comparison.
    """
    _seed()
    try:
        yield from op.sample_inputs_func(op, "cpu", dtype, requires_grad)
    except (RuntimeError, TypeError, ImportError):
        return  # PyTorch cannot make samples of this dtype, whatever its table says


def _seed() -> None:
    torch.default_generator.manual_seed(1)
    np.random.seed(1)
    random.seed(1)


def _outcome(
    op: Any, surface: str, theirs: Any, ours: Any, sample: Any, with_grad: bool
) -> tuple[str, str]:
    """Outcome and message; "" if PyTorch itself refuses the sample."""
    try:
        given = to_flow([sample.input, sample.args, sample.kwargs])
    except Unsupported as reason:
        return "not there", str(reason)
    if surface == "in place" and (
        not isinstance(sample.input, torch.Tensor) or sample.broadcasts_input
    ):
        return "", ""
    try:
        torch.default_generator.manual_seed(2)
        wanted = theirs(sample.input, *sample.args, **sample.kwargs)
    except Exception:
        return "", ""
    try:
        got = ours(given[0], *given[1], **given[2])
        if op.name in ORDERS and _same_up_to_ties(op.name, sample, wanted, got):
            return "passed", ""
        drawn = _is_drawn(op.name, sample)
        compare(wanted, got, values=not drawn, where="value")
        if with_grad and not drawn:
            _compare_gradients(_leaves(sample), _leaves(given), wanted, got)
    except Unsupported as reason:
        return "not there", str(reason)
    except Different as finding:
        return "failed", str(finding)
    except (Exception, SystemError) as error:
        return "failed", f"{type(error).__name__}: {error}"
    return "passed", ""


def _is_drawn(name: str, sample: Any) -> bool:
    """Do the numbers of the result hang on draws, which each library makes in its own way?"""
    rate = sample.args[9] if name == "nn.functional.multi_head_attention_forward" else 0
    return bool(name in RANDOM or rate or sample.kwargs.get("dropout_p"))


def _same_up_to_ties(name: str, sample: Any, wanted: Any, got: Any) -> bool:
    """Do positions differ, and only among equal elements, whose order PyTorch leaves open?

    Then gradients go to different elements too, and are not compared.
    """
    if sample.kwargs.get("stable") or isinstance(wanted, torch.Tensor) != (name == "argsort"):
        return False
    theirs, ours = (wanted, got) if name == "argsort" else (wanted[1], got[1])
    compare(
        wanted if name == "argsort" else wanted[0],
        got if name == "argsort" else got[0],
        values=name != "argsort",
        where="value",
    )
    compare(theirs, ours, values=False, where="positions")
    places = torch.from_numpy(array_of(ours).copy())
    if torch.equal(theirs, places):
        return False
    given = dict(zip(ORDERS[name], sample.args, strict=False), **sample.kwargs)
    dim, x = given.get("dim", -1), sample.input.detach()
    if theirs.ndim < x.ndim:
        theirs, places = theirs.unsqueeze(dim), places.unsqueeze(dim)
    if not torch.equal(x.gather(dim, theirs), x.gather(dim, places)):
        raise Different("positions: of other elements")
    return True


def _leaves(value: Any) -> list[Any]:
    """Tensors that want a gradient, in the order of the arguments, each once."""
    if hasattr(value, "sample_input") or hasattr(value, "kwargs"):
        value = [value.input, value.args, value.kwargs]
    found: list[Any] = []

    def visit(item: Any) -> None:
        if isinstance(item, (torch.Tensor, flow.Tensor)):
            if item.requires_grad and all(item is not f for f in found):
                found.append(item)
        elif isinstance(item, dict):
            visit(list(item.values()))
        elif isinstance(item, (list, tuple)):
            for part in item:
                visit(part)

    visit(value)
    return found


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in _flat(v)]
    return [value] if isinstance(value, (torch.Tensor, flow.Tensor)) else []


def _compare_gradients(leaves: list[Any], ours: list[Any], wanted: Any, got: Any) -> None:
    """Gradients of a weighted sum of all results: None where PyTorch has None."""
    outs = [(a, b) for a, b in zip(_flat(wanted), _flat(got), strict=True) if a.requires_grad]
    if not outs or not leaves:
        return
    if any(a.layout is not torch.strided for a, _ in outs):
        return
    for _, b in outs:
        if not b.requires_grad:
            raise Different("gradient: the result does not require one")
    weights = [torch.linspace(0.5, 1.5, a.numel(), dtype=a.dtype).reshape(a.shape) for a, _ in outs]
    for i, (a, _) in enumerate(outs):
        if a.is_complex():
            weights[i] = torch.view_as_complex(
                torch.stack(
                    [weights[i].real, weights[i].real.flip(0) if a.ndim else weights[i].real], -1
                )
            )
    try:
        first = torch.autograd.grad([a for a, _ in outs], leaves, weights, allow_unused=True)
    except (RuntimeError, NotImplementedError):
        return
    second = flow.autograd.grad(
        [b for _, b in outs], ours, [to_flow(w) for w in weights], allow_unused=True
    )
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        if (a is None) != (b is None):
            kinds = ["None" if g is None else "a tensor" for g in (a, b)]
            raise Different(f"gradient {i}: wanted {kinds[0]}, got {kinds[1]}")
        if a is not None and a.layout is torch.strided:
            compare(a, b, where=f"gradient {i}")


def _check_errors(op: Any, ours: Any, limit: int | None) -> Iterator[Finding]:
    """Refusals: a call that PyTorch refuses with an exception is refused here, by an error of the
    user's.
    """
    if op.error_inputs_func is None:
        return
    _seed()
    try:
        cases = list(op.error_inputs_func(op, "cpu"))
    except (RuntimeError, TypeError):
        return
    for number, case in enumerate(cases):
        if number == limit:
            break
        sample = case.sample_input
        try:
            given = to_flow([sample.input, sample.args, sample.kwargs])
        except Unsupported as reason:
            yield Finding("operators", title(op), "errors", "", number, "not there", str(reason))
            continue
        try:
            op.op(sample.input, *sample.args, **sample.kwargs)
        except Exception as error:
            outcome, message = _refused(ours, given, error)
            yield Finding("operators", title(op), "errors", "", number, outcome, message)


def _refused(ours: Any, given: Any, wanted: Exception) -> tuple[str, str]:
    """Whether the same call ends in an error of the class of PyTorch's, which is `wanted`."""
    kind = next(k for k in KINDS if isinstance(wanted, k))
    try:
        ours(given[0], *given[1], **given[2])
    except flow.core.errors.InternalError as error:
        return "failed", f"{type(error).__name__}: {error}"
    except kind:
        return "passed", ""
    except Exception as error:
        return "failed", f"wanted {kind.__name__}: {wanted}; got {type(error).__name__}: {error}"
    return "failed", f"accepted; wanted {kind.__name__}: {wanted}"


def entries(names: list[str] | None = None) -> list[Any]:
    """Entries of op_db, all or those whose name or title is among `names`."""
    return [op for op in op_db if names is None or op.name in names or title(op) in names]


def check(op: Any, limit: int | None, surfaces: tuple[str, ...]) -> list[Finding]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(check_entry(op, limit, surfaces))
