"""Ranks of a launcher, forked from a process that has done their imports.

It is `worker.py --fork N [-m] script args` (launcher/forks.py starts it). A rank that is forked has
its own environment and streams, and draws random numbers of its own; the kernel goes on showing the
command and environment of the process that it came from, so it is named for its number.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
from importlib import import_module

import numpy as np

from oneflow.core.config import set_config
from oneflow.core.rng import words_of_runs
from oneflow.functional.random_state import default_generator
from oneflow.kernels.native.placing import offsets_of
from oneflow.kernels.registry import load
from oneflow.services.forking import serve

WARM = (
    "oneflow.nn.modules",
    "oneflow.nn.functional",
    "oneflow.nn.init",
    "oneflow.optim",
    "oneflow.graph.graph",
    "oneflow.utils.data",
    "oneflow.ops",
    "oneflow.sbp",
    "oneflow.tensor.to_global",
    "oneflow.actors.control",
    "oneflow.actors.job",
    "oneflow.actors.fabric",
    "oneflow.scheduler.server",
    "oneflow.scheduler.compiler.service",
    "oneflow.boxing.collectives.shared_memory",
    "oneflow.distributed.groups",
    "oneflow.kernels.elementwise",
    "oneflow.kernels.expressions.compiled_loop",
    "grpc.aio",
)
MANY = 1 << 16
_PR_SET_NAME = 15


def warm_up() -> None:
    """Import the modules that ranks need."""
    for name in WARM:
        import_module(name)
    load()
    offsets_of(*np.ones((3, 1), np.int64))  # the placing of registers: compiled, if no disk has it
    words_of_runs(0, np.zeros(1, np.uint64), MANY)  # first weights


def become_rank(control: int) -> bool:
    """Return True in each rank that is forked, False here when the launcher needs no more."""
    ends = serve(socket.socket(fileno=control))
    if ends is None:
        return False
    with open(ends[0]) as file:
        told = json.load(file)
    os.environ.update(told["env"])
    set_config(None)  # it was read with what was imported
    ctypes.CDLL(None).prctl(_PR_SET_NAME, f"rank-{os.environ['RANK']}".encode(), 0, 0, 0)
    for descriptor, target in zip(ends[1:], told["streams"], strict=True):
        os.dup2(descriptor, target)
        os.close(descriptor)
    default_generator.seed()
    np.random.seed()
    return True
