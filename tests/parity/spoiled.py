"""Calls of all public functions with arguments that are systematically wrong.

Right calls come from PyTorch's tables of samples (op_db) and from those of this folder; of each
call one argument after the other is replaced by each of SPOILED. A function may take it or refuse
it; its refusal must be an error of ours, or of PyTorch's kinds with words of our own.

    python -m tests.parity.spoiled      all of them, in two minutes
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

import oneflow as flow
from oneflow import surfaces
from oneflow.core.errors import InternalError, OneFlowError

from .public_samples import SAMPLES
from .values import Unsupported, to_flow

SPOILED: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "text": lambda: "spoiled",
    "object": object,
    "nan": lambda: float("nan"),
    "half": lambda: 0.5,
    "negative": lambda: -7,
    "huge": lambda: 1 << 70,
    "no elements": lambda: [],
    "none inside": lambda: [None],
    "texts": lambda: ["a", "b"],
    "sizes of nan": lambda: [float("nan"), 2],
    "dict": lambda: {"a": 1},
    "other shape": lambda: flow.ones(7, 5, 3, 2),
    "empty tensor": lambda: flow.ones(0),
    "bool tensor": lambda: flow.ones(2, 3).bool(),
    "complex tensor": lambda: flow.ones(2, 3).to(flow.complex64),
    "array of objects": lambda: np.array([None, "x"], dtype=object),
}

FOREIGN = re.compile(
    r"numpy|\bnp\.(?!ndarray)|ufunc|numba|grpc|protobuf|is not iterable|has no attribute|has no len"
    r"|not supported between|unsupported operand|truth value of an? (empty )?array"
    r"|could not be broadcast|operands could not|zip\(\)|unhashable|cannot be interpreted as"
    r"|not subscriptable|index out of range$|not enough values to unpack"
    r"|too many values to unpack|must be real number|can't multiply sequence|cannot unpack"
    r"|invalid literal|could not convert|can only concatenate|an integer is required"
    r"|arg is an empty sequence|incompatible function arguments|object is not callable"
    r"|cannot convert float",
    re.IGNORECASE,
)
"""Words of NumPy, of the interpreter and of services: they tell nothing to who made the call."""

STATES = ("set_", "use_", "manual_seed", "save")
"""Beginnings of the names of functions that change what others do, or write files."""

TOO_LONG = {("tensor_split", "1: huge")}
"""Calls that ask for more than there is time for, here as in PyTorch."""

PLAIN = (TypeError, ValueError, IndexError, RuntimeError, NotImplementedError)


@dataclass(frozen=True)
class Sample:
    """A right call of a public function."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: dict[str, Any]

    def spoiled(self) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
        """Names and arguments of wrong calls."""
        for kind, make in SPOILED.items():
            for place in range(len(self.args)):
                if (self.name, f"{place}: {kind}") not in TOO_LONG:
                    args = (*self.args[:place], make(), *self.args[place + 1 :])
                    yield f"{place}: {kind}", args, self.keywords
            for key in self.keywords:
                yield f"{key}: {kind}", self.args, {**self.keywords, key: make()}


def fault_of(sample: Sample, args: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """The fault of the answer to a wrong call, "" if it is a right one."""
    try:
        sample.function(*args, **keywords)
    except InternalError as error:
        return f"a defect of ours: {error}"
    except (MemoryError, OneFlowError) as error:
        said = str(error)
    except PLAIN as error:
        said = str(error)
        if type(error) not in PLAIN:
            return f"{type(error).__name__}: {said}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    else:
        return ""
    if not said or FOREIGN.search(said):
        return said or "no words"
    return ""


class _Watched:
    """A module of the library whose functions note how they are called."""

    def __init__(self, module: Any, wanted: str, calls: list[Any]) -> None:
        self._module, self._wanted, self._calls = module, wanted, calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if isinstance(found, type(flow)):
            return _Watched(found, self._wanted, self._calls)
        if name != self._wanted or not callable(found) or isinstance(found, type):
            return found

        def call(*args: Any, **keywords: Any) -> Any:
            self._calls.append((found, args, keywords))
            return found(*args, **keywords)

        return call


@cache
def samples() -> dict[str, Sample]:
    """One right call for each public function that there is a sample of."""
    made: dict[str, Sample] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, found in SAMPLES.items():
            calls: list[Any] = []
            for sample in found[:1]:
                sample(_Watched(flow, name, calls))
            for function, args, keywords in calls[:1]:
                if not name.startswith(STATES):
                    made[name] = Sample(name, function, args, keywords)
        made.update(_of_torch())
        return {name: sample for name, sample in made.items() if _is_right(sample)}


def _is_right(sample: Sample) -> bool:
    """Whether a call can be made with these very arguments: not where they were used up."""
    try:
        sample.function(*sample.args, **sample.keywords)
    except Exception:
        return False
    return True


def _of_torch() -> dict[str, Sample]:
    from torch.testing._internal.common_methods_invocations import op_db

    from .operators import samples_of

    made: dict[str, Sample] = {}
    places = {
        "": "flow",
        "nn.functional": "F",
        "linalg": "linalg",
        "fft": "fft",
        "special": "special",
    }
    for op in op_db:
        space, _, name = op.name.rpartition(".")
        if op.name in made or space not in places or name not in surfaces.index()[places[space]]:
            continue
        for dtype in (torch.float32, torch.int64, torch.bool):
            if dtype not in op.supported_dtypes("cpu"):
                continue
            try:
                first = next(samples_of(op, dtype, requires_grad=False))
                args = tuple(to_flow([first.input, *first.args]))
                keywords = {key: to_flow([value])[0] for key, value in first.kwargs.items()}
            except (Unsupported, StopIteration):
                continue
            function = surfaces.find(places[space], name)
            if not callable(function):
                break  # a dtype
            made[op.name] = Sample(op.name, function, args, keywords)
            break
    return made


def faults_in(part: int, parts: int) -> list[str]:
    """The faults of a part of all wrong calls, each of which is in one part."""
    faults = []
    calls = ((sample, *spoiled) for sample in samples().values() for spoiled in sample.spoiled())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, (sample, what, args, keywords) in enumerate(calls):
            if number % parts == part and (said := fault_of(sample, args, keywords)):
                faults.append(f"{sample.name}, argument {what}: {said[:200]}")
    return faults


if __name__ == "__main__":
    for fault in (found := faults_in(0, 1)):
        print(fault)
    raise SystemExit(bool(found))
