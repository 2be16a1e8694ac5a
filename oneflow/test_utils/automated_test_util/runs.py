"""One run of an AutoTest: the calls so far, and the tensors and modules that must agree."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from oneflow.core.errors import OneFlowError
from oneflow.test_utils.automated_test_util.comparing import (
    Tolerance,
    difference,
    is_pytorch,
)
from oneflow.test_utils.automated_test_util.graph_check import GraphCall

LAST_CALLS = 30
"""Calls that an error names."""

UNDEFINED = frozenset(("empty", "empty_like", "new_empty", "empty_strided", "data_ptr"))
"""Functions whose results have no values to compare until something is written to them."""


class DifferenceError(OneFlowError, AssertionError):
    """A call that gives other values, or an error, where PyTorch gives none."""


class PyTorchError(Exception):
    """PyTorch's refusal of arguments that were drawn, which are drawn again."""


@dataclass
class Run:
    """The calls of one run, and their results.

    seed: That of all random numbers.  checks_graph: Is each call compared with an `nn.Graph` of
    it?  compares: Are values compared at all?
    """

    title: str
    seed: int
    tolerance: Tolerance
    compares: bool = True
    checks_graph: bool = True
    takes_complex: bool = False
    calls: list[str] = field(default_factory=list)
    tensors: list[tuple[str, Any, Any]] = field(default_factory=list)
    modules: list[tuple[str, Any, Any]] = field(default_factory=list)

    def call(
        self, text: str, theirs: Callable[[], Any], ours: Callable[[], Any], graph: GraphCall | None
    ) -> tuple[Any, Any]:
        """Call both libraries, and compare their results."""
        self.calls.append(text)
        try:
            wanted = theirs()
        except unittest.SkipTest:
            raise
        except Exception as error:
            raise PyTorchError(f"{text}: {type(error).__name__}: {error}") from error
        traced = graph.copied() if graph is not None and self.checks_graph else None
        try:
            found = ours()
        except unittest.SkipTest:
            raise
        except Exception as error:
            raise self.failure(f"{text}: OneFlow raises {type(error).__name__}: {error}") from error
        self._compare(text, wanted, found)
        if traced is not None and traced.is_for(found):
            self._compare_graph(text, found, traced)
        return wanted, found

    def _compare(self, text: str, wanted: object, found: object) -> None:
        if not self.compares or text.partition("(")[0].rpartition(".")[2] in UNDEFINED:
            return
        if said := difference(wanted, found, self.tolerance):
            raise self.failure(f"{text}: {said}")

    def _compare_graph(self, text: str, found: object, traced: GraphCall) -> None:
        try:
            values = traced.run()
        except Exception as error:
            raise self.failure(
                f"{text}: in nn.Graph OneFlow raises {type(error).__name__}: {error}"
            ) from error
        if self.compares and (said := traced.difference(found, values, self.tolerance)):
            raise self.failure(f"{text}: in nn.Graph: {said}")

    def note(self, text: str, theirs: object, ours: object) -> None:
        """Keep a tensor or a module of both, which `finish` compares."""
        kept = self.modules if is_pytorch(theirs, "nn.Module") else self.tensors
        kept.append((text, theirs, ours))

    def finish(self) -> None:
        """Compare all tensors as they are at the end, parameters, and their gradients."""
        for text, theirs, ours in self.modules:
            state = ours.state_dict()
            for key in theirs.state_dict():
                if key in state:
                    pair = _member(theirs, key), _member(ours, key)
                    self.tensors.append((f"{key} of {text}", *pair))
        for text, theirs, ours in self.tensors if self.compares else ():
            self._compare(text, theirs, ours)
            if _has_grad(theirs):
                self._compare(f"gradient of {text}", theirs.grad, ours.grad)

    def failure(self, said: str) -> DifferenceError:
        """Build the error of a difference, with the way to see it again."""
        calls = self.calls[-LAST_CALLS:]
        lines = "\n".join(f"  {i}. {call}" for i, call in enumerate(calls, 1))
        return DifferenceError(
            f"{self.title}: {said}\nafter the calls\n{lines}\n"
            f"with the seed {self.seed}: ONEFLOW_TEST_SEED={self.seed} begins with this run"
        )


def _member(module: object, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module


def _has_grad(theirs: object) -> bool:
    """Has a tensor of PyTorch's a gradient? It warns if that of an inner tensor is read."""
    if not is_pytorch(theirs):
        return False
    return bool(theirs.is_leaf or theirs.retains_grad) and theirs.grad is not None
