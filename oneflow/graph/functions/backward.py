"""The plan of a function's backward pass, and the values that it reads of the forward pass.

The forward plan lends its registers: the backward plan reads saved values where the forward pass
has put them, as its variables. Before the forward plan runs again, a call whose backward pass is
still to come takes copies; that pass then brings them back.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from oneflow.actors.job import Job
from oneflow.core.draws import Randomness
from oneflow.core.errors import AutogradError
from oneflow.core.graph import LogicalGraph, Value
from oneflow.graph.compiling import output_tensor
from oneflow.graph.functions.two_passes import GRAD, SAVED, Passes
from oneflow.kernels.array import Array
from oneflow.tensor.devices import array_on
from oneflow.tensor.grad_mode import is_grad_enabled, state
from oneflow.tensor.tape import Kept, kept
from oneflow.tensor.tensor import Tensor, raw

Bind = Callable[[LogicalGraph, dict[str, Tensor]], Job]
"""Compiles a graph and binds it to its variables, given by their names."""
Unpack = Callable[[Any], Tensor]


class BackwardPlan:
    """The second plan of a function, which is compiled when it is first needed.

    passes: of the function.  variables: the tensors that it captured, by name.  made: the outputs
    of the forward plan.

    turn: is held while one of the two plans runs.
    """

    def __init__(
        self,
        name: str,
        passes: Passes,
        variables: Mapping[str, Tensor],
        made: Mapping[int, Value],
        bind: Bind,
    ) -> None:
        self.name, self._graph, self._bind = name, passes.backward, bind
        self.turn = threading.RLock()
        lent = {
            int(n.attrs["index"]): bool(n.attrs.get("lent"))
            for n in passes.forward.of_kind("output")
        }
        self._lent = [lent[k] for k in passes.saved]
        self._handed = [(f"{SAVED}{i}", made[k], k) for i, k in enumerate(passes.saved)]
        names = [str(node.attrs["name"]) for node in passes.backward.of_kind("input")]
        self._inputs = [int(n.partition(".")[2]) for n in names if n.startswith("input.")]
        self._variables = {n: variables[n] for n in passes.backward.variables if n in variables}
        self._results_read = passes.read
        self._job: Job | None = None
        self._values: dict[int, Value] = {}
        self._arrays: list[Array | None] = []  # that both plans have saved values in
        self._borrower: Callable[[], Saved | None] = _nobody

    def saved(
        self,
        feeds: dict[str, Any],
        inputs: list[Tensor],
        made: list[Tensor],
        results: dict[int, Any],
        wanted: list[int],
        targets: list[Tensor],
        drawn: Randomness | None,
    ) -> Saved:
        """The values that a call of the forward plan has just left."""
        kept_feeds = {f"input.{i}": feeds[f"input.{i}"] for i in self._inputs}
        packed: dict[str, tuple[Any, Unpack]] = {}
        if state.saved_hooks:
            pack, unpack = state.saved_hooks[-1]
            packed = {f"input.{i}": (pack(inputs[i].detach()), unpack) for i in self._inputs}
            kept_feeds = {}
        arrays = [results.get(k) for _, _, k in self._handed]
        read = [inputs[i] for i in self._inputs] + list(self._variables.values())
        read += [made[i] for i in self._results_read]
        outputs = [kept(made[i]) for i in wanted]
        saved = Saved(self, kept_feeds, packed, arrays, read, outputs, targets, drawn)
        self._arrays = self._arrays or [
            a if a is None or is_lent else a.copy()
            for a, is_lent in zip(arrays, self._lent, strict=True)
        ]
        if arrays:
            self._borrower = weakref.ref(saved)
        return saved

    def give_back_registers(self) -> None:
        """Let the call whose saved values lie in registers, if there is one, take copies."""
        borrower = self._borrower()
        if borrower is not None:
            borrower.arrays = [a if a is None else a.copy() for a in borrower.arrays]
        self._borrower = _nobody

    def run(self, saved: Saved, feeds: dict[str, Any]) -> list[Tensor]:
        """The gradients of the targets of a call. With its randomness masks of dropout are made
        again.
        """
        with self.turn:
            if saved is not self._borrower():
                self.give_back_registers()
            for own, array in zip(self._arrays, saved.arrays, strict=True):
                if own is not array and own is not None:
                    own[...] = array
            job = self._job = self._job or self._compile(saved)
            if saved.drawn is not None:
                job.draw(saved.drawn)
            results = job.run(feeds)
            values = self._values
            return [
                output_tensor(x, values[i], results.get(i)) for i, x in enumerate(saved.targets)
            ]

    def _compile(self, saved: Saved) -> Job:
        tensors = dict(self._variables)
        variables = {str(node.attrs["name"]): node for node in self._graph.of_kind("variable")}
        for (name, value, _), array in zip(self._handed, self._arrays, strict=True):
            variables[name].outputs[0].sbp = value.sbp
            tensors[name] = held = raw(value.type, array, saved.outputs[0].device)
            held._placement, held._sbp = value.placement, value.sbp
        job = self._bind(self._graph, tensors)
        self._values = job.bound.plan.graph.outputs
        return job

    def close(self) -> None:
        self.give_back_registers()
        if self._job is not None:
            self._job.close()


def _nobody() -> None:
    return None


class Saved:
    """Values that a call has left for its backward pass.

    feeds: arguments that it reads, by the names of inputs.  packed: those that went through hooks
    of saved tensors, each with the hook that gives it back.  arrays: the values handed over, in
    registers of the forward plan as long as nobody else needs these.  read: the tensors whose
    memory it reads.  outputs: facts of the results that need gradients.
    """

    def __init__(
        self,
        plan: BackwardPlan,
        feeds: dict[str, Any],
        packed: dict[str, tuple[Any, Unpack]],
        arrays: list[Array | None],
        read: list[Tensor],
        outputs: list[Kept],
        targets: list[Tensor],
        drawn: Randomness | None,
    ) -> None:
        self._plan, self._feeds, self._packed, self.drawn = plan, feeds, packed, drawn
        self.arrays, self.outputs, self.targets = arrays, outputs, targets
        self._versions = [(x._version, x._version[0], x.meta) for x in read]

    def gradients(self, grads: list[Any]) -> list[Tensor]:
        """Gradients of the targets. Raises AutogradError for a pass that is to be differentiated
        itself, and where a saved value has been overwritten.
        """
        name = self._plan.name
        if is_grad_enabled():
            raise AutogradError(
                f"{name}: a compiled function has no second derivatives; call the function itself"
            )
        for counter, version, meta in self._versions:
            if counter[0] != version:
                raise AutogradError(
                    "one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: {meta}, of a call of {name}"
                )
        feeds = dict(self._feeds)
        for name, (packed, unpack) in self._packed.items():
            feeds[name] = unpack(packed)._array
        for i, (g, like) in enumerate(zip(grads, self.outputs, strict=True)):
            feeds[f"{GRAD}{i}"] = _gradient_array(g, like)
        return self._plan.run(self, feeds)


def _gradient_array(g: Tensor | None, like: Kept) -> Any:
    """The array of a gradient, laid out as its tensor; zeros for none."""
    if g is None:
        return array_on(np.zeros(like.shape, like.meta.dtype.np), like.device)
    if like.placement is not None and (g._placement, g._sbp) != (like.placement, like.sbp):
        g = g.to_global(like.placement, like.sbp)
    return g._array
