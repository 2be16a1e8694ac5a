"""Kernel calls that are watched, one by one, to find a defect: each waits for its device, or its
results are searched for numbers that are not finite.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oneflow.core.config import Config, current_config
from oneflow.core.errors import NonFiniteError
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.hardware import Host, device_of, to_host
from oneflow.kernels.registry import KernelFunction, path_of, taking

UNSET = ("empty", "empty_strided")
"""Ops whose results are uninitialized memory."""


def watched(name: str, function: KernelFunction, num_outs: int, num_ins: int) -> KernelFunction:
    """Return the kernel of op `name`, watched as the environment asks for."""
    config = current_config()

    def run(xp: ArrayModule, *arrays: Array, **keywords: object) -> None:
        function(xp, *arrays, **keywords)
        if arrays:
            device_of(arrays[0]).synchronize()
        if config.checks_numerics and name not in UNSET:
            _check(name, arrays[:num_outs], arrays[num_outs : num_outs + num_ins], config)

    return taking(run, path_of(function))


def _check(name: str, outs: Sequence[Array], ins: Sequence[Array], config: Config) -> None:
    for out in outs:
        if out.dtype.kind not in "fc" and out.dtype.name != "bfloat16":
            continue
        numbers = to_host(out)
        odd = numbers.size - int(np.count_nonzero(np.isfinite(numbers)))
        if odd:
            dumped = f"; {_dump(name, outs, ins, config)} has them" if config.dumps_numerics else ""
            taken = ", ".join(map(_range, ins)) or "no inputs"
            raise NonFiniteError(
                f"{name}: {odd} of {out.size} numbers of a result are not finite, "
                f"of {taken}{dumped}"
            )


def _range(x: Array) -> str:
    """Return the type of an array and the numbers between which it lies."""
    shape = f"{x.dtype.name}{list(x.shape)}"
    if not x.size or x.dtype.kind == "c":
        return shape
    numbers = to_host(x)
    return f"{shape} in {numbers.min()}..{numbers.max()}"


def _dump(name: str, outs: Sequence[Array], ins: Sequence[Array], config: Config) -> Path:
    """Write inputs and outputs of a call to a file of NumPy's, and return its path."""
    path = Path(config.log_dir, socket.gethostname(), f"nonfinite_rank{config.rank}_{name}.npz")
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {f"in{i}": _plain(x) for i, x in enumerate(ins)}
    arrays |= {f"out{i}": _plain(x) for i, x in enumerate(outs)}
    np.savez(path, **arrays)
    return path


def _plain(x: Array) -> Host:
    """Return the numbers in a dtype of NumPy's own."""
    host = to_host(x)
    return host.astype(np.float32) if host.dtype.name == "bfloat16" else host
