"""Averages of weights over training: stochastic weight averaging (Izmailov et al., UAI 2018)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from oneflow.core.device import DeviceLike
from oneflow.nn.module import Module
from oneflow.nn.modules.normalization import _BatchNorm
from oneflow.optim.lr_scheduler.swa import SWALR
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor, wrap


class AveragedModel(Module):
    """A copy of `model` whose weights are the mean of those at each `update_parameters`.

    avg_fn(averaged, current, number averaged so far): another mean, such as an exponential one.
    use_buffers: average buffers too, else take the newest.
    """

    def __init__(
        self,
        model: Module,
        device: DeviceLike | None = None,
        avg_fn: Callable[[Tensor, Tensor, int], Tensor] | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module.to(device)
        self.register_buffer("n_averaged", wrap(np.zeros((), np.int64)))
        self.avg_fn = avg_fn or _running_mean
        self.use_buffers = use_buffers

    def forward(self, *args: object, **kwargs: object) -> Any:
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Takes the weights of `model` into the mean."""
        count = int(self.n_averaged.item())
        with no_grad():
            for own, new in zip(self.module.parameters(), model.parameters(), strict=True):
                self._average(own, new.detach(), count)
            for own_buffer, buffer in zip(self.module.buffers(), model.buffers(), strict=True):
                averaged = self.use_buffers and buffer.dtype.is_floating_point
                self._average(own_buffer, buffer, count if averaged else 0)
            self.n_averaged.add_(1)

    def _average(self, own: Tensor, new: Tensor, count: int) -> None:
        own.copy_(new if count == 0 else self.avg_fn(own.detach(), new, count))


def _running_mean(averaged: Tensor, current: Tensor, count: int) -> Tensor:
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


__all__ = ["SWALR", "AveragedModel", "update_bn"]
