"""An all_reduce through the runtime, for the benchmarks: actors, registers and mailboxes, a step of
a compiled plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oneflow.distributed.world import world

PLAN = """graph sum pieces=1 {{
  %0: float32[{n}] P = variable(; name='x') @{ranks}
  %1: float32[{n}] B = to_global(%0) @{ranks}
  %2: float32[16] B = slice(%1; starts=(0,), stops=(16,), steps=(1,)) @{ranks}
  output(%{output}; index=0) @{ranks}
}}"""


def planned(x: Any, kind: str, lowered: bool = False) -> Callable[[], Any]:
    """A step that copies x to a register, sums it over the ranks and hands out 16 elements (the
    whole sum, for comparing, comes from a second plan).

    kind: of device, cpu or cuda.  lowered: the sum is a call of the backend of eager code.
    """
    whole, few = (_job(x, kind, output, lowered) for output in (1, 2))
    is_first = [True]

    def run() -> Any:
        job, is_first[0] = (whole if is_first[0] else few), False
        return job.run({})[0]

    return run


def _job(x: Any, kind: str, output: int, lowered: bool) -> Any:
    from oneflow.actors.fabric import open_fabric
    from oneflow.actors.job import Job
    from oneflow.core.config import current_config
    from oneflow.core.graph_text import parse_graph
    from oneflow.core.job_config import Cluster, JobConfig
    from oneflow.core.plan import Plan
    from oneflow.scheduler.compiler.pipeline import compile_graph

    here = world()
    ranks = list(range(here.world_size))
    text = PLAN.format(n=x.size, ranks=f"{kind}{ranks}", output=output)
    config = JobConfig("sum", lower_all_reduce=lowered)
    plan = compile_graph(parse_graph(text), config, Cluster(here.world_size))
    collectives = here.device_collectives if kind == "cuda" else here.collectives
    name = f"sum.{here.next_job_number()}"
    return Job(
        Plan.from_bytes(plan.to_bytes()),
        here.rank,
        {"x": x},
        open_fabric=lambda p, r: open_fabric(
            p, r, ranks, name, here.client, places=here.places, collectives=collectives
        ),
        check=here.client.check,
        device_index=current_config().local_rank if kind == "cuda" else 0,
    )
