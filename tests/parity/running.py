"""Entries run one after another, or by several processes."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from typing import Any

from . import modules, operators, optimizers
from .report import Finding

TABLES: dict[str, Any] = {
    "operators": operators,
    "modules": modules,
    "optimizers": optimizers,
}


@dataclass(frozen=True)
class Job:
    """One entry of a table."""

    table: str
    index: int
    samples: int | None = None  # per dtype and surface; None: all
    surfaces: tuple[str, ...] = operators.SURFACES  # of operators


def run(job: Job) -> list[Finding]:
    """Findings of one entry."""
    module = TABLES[job.table]
    entry = module.entries()[job.index]
    extra = (job.surfaces,) if module is operators else ()
    return list(module.check(entry, job.samples, *extra))


def run_all(jobs: list[Job], processes: int) -> list[Finding]:
    """Findings in the order of the jobs."""
    if processes == 1:
        one_thread()
        return [f for job in jobs for f in run(job)]
    with multiprocessing.get_context("spawn").Pool(processes, one_thread) as pool:
        return [f for part in pool.imap(run, jobs, chunksize=4) for f in part]


def one_thread() -> None:
    """Keeps either library to one thread: the processes share the cores."""
    import torch

    import oneflow as flow

    torch.set_num_threads(1)
    flow.set_num_threads(1)
