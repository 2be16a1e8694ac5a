"""`flow.report`: numbers of a training program on the curve of its job."""

from __future__ import annotations

from oneflow.core.config import current_config
from oneflow.core.errors import ArgumentError
from oneflow.core.operand import Number
from oneflow.distributed.world import world
from oneflow.services.curve import REPORTS
from oneflow.tensor.tensor import Tensor

MAX_VALUES, MAX_CHARS = 100, 64

_last_step = 0


def report(step: int | None = None, **values: Number | Tensor) -> None:
    """Add a point to the curve of the job: `oneflow job metrics`, the cluster's page.

        for step, batch in enumerate(loader, start=1):
            flow.report(step, loss=train(batch))

    Points of rank 0 count. In a program that no cluster has started the call does nothing. Of more
    than some hundred points a second every second, fourth, ... is kept.

    Args:
        step: Number of steps done; without it one more than the last time.
        values: Up to 100 numbers, or tensors of one element, by name (at most 64 characters).

    Raises:
        ArgumentError: For a negative step, no or too many values, or one that is no number.
    """
    global _last_step
    found = _checked(step, values)
    _last_step = _last_step + 1 if step is None else step
    config = current_config()
    if config.counts_file is not None and config.rank == 0:
        world()  # which has the thread that tells the daemon
        REPORTS.add(_last_step, found)


def _checked(step: int | None, values: dict[str, Number | Tensor]) -> dict[str, float]:
    if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
        raise ArgumentError(f"report: step is a whole number from 0 on, got {step!r}")
    if not 0 < len(values) <= MAX_VALUES:
        raise ArgumentError(f"report: needs 1 to {MAX_VALUES} values by name, got {len(values)}")
    found = {}
    for name, value in values.items():
        if len(name) > MAX_CHARS:
            raise ArgumentError(f"report: the name {name!r} has more than {MAX_CHARS} characters")
        try:
            found[name] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentError(f"report: {name} is no number: {error}") from None
    return found
