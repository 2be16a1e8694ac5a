"""Cost of the first call of a graph by its phases, for the benchmarks of the compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGE = os.sysconf("SC_PAGE_SIZE")
STEPS = 5
"""Steps after the first one, of which the shortest counts as a step."""


def resident_mib() -> float:
    """Memory of this process, MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20


def phases(graph: Any, *inputs: Any) -> dict[str, Any]:
    """Run the first call of `graph` phase by phase; seconds of CPU time and MiB of each.

    The optimizers' states, trace, compile, bind and first run; nodes of the traced graph; the sums,
    and the sums per node. Of these `start_s` is the cost of making the graph: without the states,
    which a training without a graph makes too, and without the cost of each step.
    """
    from oneflow.actors.job import Job
    from oneflow.graph import binding as module
    from oneflow.graph.names import states_by_name

    binding: Any = module  # whose name is given to a class that measures

    spent: dict[str, float] = {}
    grown: dict[str, float] = {}

    def timed(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            started, before = time.process_time(), resident_mib()
            try:
                return run(*args, **kwargs)
            finally:
                spent[name] = time.process_time() - started
                grown[name] = resident_mib() - before

        return wrapped

    class TimedJob(Job):
        __init__ = timed("bind", Job.__init__)

    wall, before = time.perf_counter(), resident_mib()

    def make_states() -> None:
        for state in states_by_name(graph._spec).values():
            array = state._array
            array[...] = array  # its pages are the system's until they are written

    timed("states", make_states)()
    timed("trace", graph.build_graph)(*inputs)
    nodes = len(graph._spec.plans.built.trace.graph)
    job, binding.Job = binding.Job, TimedJob
    try:
        timed("compile", graph.finish_compile_and_init_runtime)()
    finally:
        binding.Job = job
    spent["compile"] -= spent["bind"]
    grown["compile"] -= grown["bind"]
    timed("first_run", graph)(*inputs)
    total, mib = sum(spent.values()), resident_mib() - before
    wall = time.perf_counter() - wall
    for _ in range(STEPS):
        timed("step", graph)(*inputs)
        spent["least"] = min(spent["step"], spent.get("least", spent["step"]))
    row: dict[str, Any] = {"nodes": nodes}
    row["start_s"] = total - spent["states"] - spent["least"]
    for name in ("states", "trace", "compile", "bind", "first_run"):
        row[f"{name}_s"] = spent[name]
    row |= {f"{name}_mib": grown[name] for name in grown}
    row |= {"all_s": total, "wall_s": wall, "all_mib": mib}
    row |= {"us_per_node": total / nodes * 1e6, "kb_per_node": mib * 1024 / nodes}
    return row


def alone(program: str, *args: str, caches: str = "", plans: str = "") -> Any:
    """The JSON that this program prints last, run with these arguments in a process of its own.

    One thread: those that spin while they wait would count as work. caches: the folder of kernels
    and plans, if not the user's. plans: that of plans and traces alone; "off": none are kept.
    """
    command = [sys.executable, program, *args]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    if caches:
        env |= {"XDG_CACHE_HOME": caches, "NUMBA_CACHE_DIR": caches}
    if plans:
        env["ONEFLOW_PLAN_CACHE"] = plans
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
    return json.loads(done.stdout.strip().splitlines()[-1])
