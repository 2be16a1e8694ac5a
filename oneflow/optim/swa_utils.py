"""Averages of weights over training: stochastic weight averaging (Izmailov et al., UAI 2018)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from oneflow.core.device import DeviceLike
from oneflow.nn.module import Module
from oneflow.nn.modules.normalization import _BatchNorm
from oneflow.optim.lr_scheduler.swa import SWALR
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor, wrap

Average = Callable[[Tensor, Tensor, Tensor | int], Tensor]
"""(averaged, current, number averaged so far) -> the new average."""
AverageAll = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor | int], None]
"""The same of all parameters at once, written into the first."""


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """An exponential mean: decay · averaged + (1 - decay) · current."""
    _check_decay(decay)

    def average(averaged: Tensor, current: Tensor, count: Tensor | int) -> Tensor:
        mean: Tensor = averaged * decay + current * (1 - decay)
        return mean

    return average


def get_swa_avg_fn() -> Average:
    """The plain mean."""
    return _running_mean


def get_ema_multi_avg_fn(decay: float = 0.999) -> AverageAll:
    """`get_ema_avg_fn` of all parameters."""
    return _each_with(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> AverageAll:
    """`get_swa_avg_fn` of all parameters."""
    return _each_with(_running_mean)


def _each_with(average: Average) -> AverageAll:
    def average_all(
        averaged: Sequence[Tensor], current: Sequence[Tensor], count: Tensor | int
    ) -> None:
        for own, new in zip(averaged, current, strict=True):
            if own.dtype.is_floating_point or own.dtype.is_complex:
                own.copy_(average(own, new, count))
            else:
                own.copy_(new)

    return average_all


def _check_decay(decay: float) -> None:
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1]")


class AveragedModel(Module):
    """A copy of `model` whose weights are the mean of those at each `update_parameters`.

    avg_fn(averaged, current, number averaged so far): another mean, such as an exponential one.
    multi_avg_fn: the same for all parameters at once, which writes into the first list.
    use_buffers: average buffers too, else take the newest.
    """

    def __init__(
        self,
        model: Module,
        device: DeviceLike | None = None,
        avg_fn: Average | None = None,
        use_buffers: bool | AverageAll | None = False,
        multi_avg_fn: AverageAll | bool | None = None,
    ) -> None:
        super().__init__()
        last = (use_buffers, multi_avg_fn)  # by position PyTorch has them in the other order
        average_all = next((one for one in last if callable(one)), None)
        if avg_fn is not None and average_all is not None:
            raise ValueError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module.to(device)
        self.register_buffer("n_averaged", wrap(np.zeros((), np.int64)))
        self.avg_fn, self.multi_avg_fn = avg_fn, average_all
        self.use_buffers = True in last

    def forward(self, *args: object, **kwargs: object) -> Any:
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Takes the weights of `model` into the mean."""
        own: list[Tensor] = [*self.module.parameters()]
        new: list[Tensor] = [*model.parameters()]
        kept, fresh = [*self.module.buffers()], [*model.buffers()]
        if self.use_buffers:
            own, new, kept, fresh = [*own, *kept], [*new, *fresh], [], []
        with no_grad():
            for mine, theirs in zip(kept, fresh, strict=True):
                mine.copy_(theirs)
            self._average([x.detach() for x in own], [x.detach() for x in new])
            self.n_averaged.add_(1)

    def _average(self, own: list[Tensor], new: list[Tensor]) -> None:
        if not int(self.n_averaged.item()):
            for mine, theirs in zip(own, new, strict=True):
                mine.copy_(theirs)
            return
        average_all = self.multi_avg_fn or _each_with(self.avg_fn or _running_mean)
        average_all(own, new, self.n_averaged)


def _running_mean(averaged: Tensor, current: Tensor, count: Tensor | int) -> Tensor:
    """The mean of count + 1 values, given the mean of the first `count`."""
    mean: Tensor = averaged + (current - averaged) / (count + 1)
    return mean


def update_bn(loader: Iterable[Any], model: Module, device: DeviceLike | None = None) -> None:
    """Makes the running statistics of all batch norms anew, from one pass over the data.

    loader: batches, or tuples whose first entry is the batch.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    was_training = model.training
    model.train()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean of all batches
    with no_grad():
        for batch in loader:
            x = batch[0] if isinstance(batch, list | tuple) else batch
            model(x if device is None else x.to(device))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.train(was_training)


__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]
