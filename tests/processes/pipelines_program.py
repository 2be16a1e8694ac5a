"""Program of the ranks of test_pipelines.py: `pipelines_program SCENE ...`; exits 0 if all is
right. The reference is PyTorch on the whole model in each process, or a closed form.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import oneflow as flow
from oneflow import distributed as dist
from oneflow.core.errors import CallError, CheckpointError, OneFlowError
from oneflow.distributed import _functional_collectives as collectives
from oneflow.distributed import checkpoint
from oneflow.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from oneflow.distributed.device_mesh import init_device_mesh
from oneflow.distributed.fsdp import fully_shard
from oneflow.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    get_schedule_class,
    pipeline,
)
from tests.processes.meshes_program import network
from tests.support.launching import play
from tests.support.refusing import refuses

RANK, SIZE = flow.env.get_rank(), flow.env.get_world_size()
ROWS, MICRO = 12, 6
DATA = np.random.default_rng(2).standard_normal((3, ROWS, 5)).astype(np.float32)
GOALS = np.random.default_rng(3).standard_normal((3, ROWS, 5)).astype(np.float32)
SHARED = Path(tempfile.gettempdir()) / f"pipelines-{os.environ['MASTER_PORT']}"


def layers(lib: Any, count: int = SIZE) -> list[Any]:
    made = [lib.nn.Sequential(lib.nn.Linear(5, 5), lib.nn.Tanh()) for _ in range(count)]
    rng = np.random.default_rng(0)
    with lib.no_grad():
        for layer in made:
            for p in layer.parameters():
                p.copy_(lib.tensor(rng.standard_normal(tuple(p.shape)).astype(np.float32)))
    return made


def schedules() -> None:
    for kind in (ScheduleGPipe, Schedule1F1B):
        mine, reference = layers(flow)[RANK], torch.nn.Sequential(*layers(torch))
        stage = PipelineStage(mine, RANK, SIZE, "cpu")
        schedule = kind(stage, MICRO, loss_fn=flow.nn.functional.mse_loss)
        ours = flow.optim.SGD(mine.parameters(), lr=0.1)
        theirs = torch.optim.SGD(reference.parameters(), lr=0.1)
        for x, goal in zip(DATA, GOALS, strict=True):
            ours.zero_grad()
            theirs.zero_grad()
            losses: list[Any] = []
            first = (flow.tensor(x),) if stage.is_first else ()
            target = flow.tensor(goal) if stage.is_last else None
            made = schedule.step(*first, target=target, losses=losses)
            loss = torch.nn.functional.mse_loss(reference(torch.tensor(x)), torch.tensor(goal))
            loss.backward()
            if stage.is_last:
                assert len(losses) == MICRO
                mean = sum(float(part) for part in losses) / MICRO
                np.testing.assert_allclose(mean, loss.item(), rtol=1e-5)
                expected = reference(torch.tensor(x)).detach().numpy()
                np.testing.assert_allclose(made.numpy(force=True), expected, atol=1e-5)
            else:
                assert made is None
            for p, q in zip(mine.parameters(), reference[RANK].parameters(), strict=True):
                assert q.grad is not None
                np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-4, atol=1e-6)
            ours.step()
            theirs.step()
        out = schedule.eval(*((flow.tensor(DATA[0]),) if stage.is_first else ()))
        if stage.is_last:
            expected = reference(torch.tensor(DATA[0])).detach().numpy()
            np.testing.assert_allclose(out.numpy(force=True), expected, atol=1e-5)
    refuses(OneFlowError, "PipelineStage", pipeline)
    refuses(CallError, "no stage", lambda: PipelineStage(mine, SIZE, SIZE))
    if stage.is_first:
        short = flow.ones(2, 5)
        refuses(CallError, "cut into", lambda: schedule.step(short))


LOOPED = {
    "Interleaved1F1B": lambda s: s % SIZE,
    "InterleavedZeroBubble": lambda s: s % SIZE,
    "LoopedBFS": lambda s: s % SIZE,
    "ZBVZeroBubble": lambda s: min(s, 2 * SIZE - 1 - s),
    "DualPipeV": lambda s: min(s, 2 * SIZE - 1 - s),
}
"""The rank of a stage, of two on each rank."""


def several_stages() -> None:
    for name, rank_of in LOOPED.items():
        ours, reference = layers(flow, 2 * SIZE), torch.nn.Sequential(*layers(torch, 2 * SIZE))
        mine = [s for s in range(2 * SIZE) if rank_of(s) == RANK]
        stages = [PipelineStage(ours[s], s, 2 * SIZE, "cpu") for s in mine]
        kind = get_schedule_class(name)
        schedule = kind(stages, 2 * SIZE, loss_fn=flow.nn.functional.mse_loss)
        x, goal = DATA[0][: 2 * SIZE], GOALS[0][: 2 * SIZE]
        losses: list[Any] = []
        first = (flow.tensor(x),) if 0 in mine else ()
        target = flow.tensor(goal) if 2 * SIZE - 1 in mine else None
        schedule.step(*first, target=target, losses=losses)
        loss = torch.nn.functional.mse_loss(reference(torch.tensor(x)), torch.tensor(goal))
        loss.backward()
        if target is not None:
            np.testing.assert_allclose(np.mean([k.item() for k in losses]), loss.item(), rtol=1e-5)
        for s in mine:
            for p, q in zip(ours[s].parameters(), reference[s].parameters(), strict=True):
                assert q.grad is not None
                np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-4, atol=1e-6)
        refuses(CallError, "has stages", partial(kind, stages[:1], 4))
    refuses(ValueError, "Unknown schedule", lambda: get_schedule_class("2F2B"))


def functional() -> None:
    x = flow.arange(4 * SIZE).reshape(2 * SIZE, 2).float() + RANK
    everyone = [np.arange(4 * SIZE).reshape(2 * SIZE, 2) + r for r in range(SIZE)]
    assert collectives.all_reduce(x, "sum").tolist() == sum(everyone).tolist()  # type: ignore[attr-defined]
    assert collectives.all_gather_tensor(x, 1).tolist() == np.concatenate(everyone, 1).tolist()
    part = np.split(sum(everyone), SIZE)[RANK]  # type: ignore[arg-type]
    assert collectives.reduce_scatter_tensor(x, "sum", 0).tolist() == part.tolist()
    mesh = init_device_mesh("cpu", (SIZE,))
    assert collectives.broadcast(x, SIZE - 1, mesh).tolist() == everyone[-1].tolist()
    came = np.concatenate([np.split(e, SIZE)[RANK] for e in everyone])
    assert collectives.all_to_all_single(x).tolist() == came.tolist()
    refuses(CallError, "reduction is one of", lambda: collectives.all_reduce(x, "nope"))


class Counter:
    """An object that stands for its own state."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def _trained(steps: int) -> tuple[Any, Any]:
    model = network(flow)
    fully_shard(model[0])
    fully_shard(model)
    optimizer = flow.optim.AdamW(model.parameters(), lr=0.05)
    for k in range(steps):
        optimizer.zero_grad()
        (model(flow.tensor(DATA[k, :, :3].repeat(2, -1))) ** 2).mean().backward()
        optimizer.step()
    return model, optimizer


def checkpoints() -> None:
    """Two models go on alike after a checkpoint of one."""
    model, optimizer = _trained(2)
    counter = Counter()
    counter.count = 7
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    checkpoint.save({**states, "counter": counter, "step": 2}, checkpoint_id=SHARED)
    kept = {name: v.full_tensor().tolist() for name, v in states["model"].items()}
    twin, other = _trained(1)
    again = Counter()
    found = dict(zip(("model", "optimizer"), get_state_dict(twin, other), strict=True))
    wanted: dict[str, Any] = {**found, "counter": again, "step": 0}
    checkpoint.load(wanted, checkpoint_id=SHARED)
    set_state_dict(
        twin,
        other,
        model_state_dict=wanted["model"],
        optim_state_dict=wanted["optimizer"],
    )
    assert (wanted["step"], again.count) == (2, 7)
    x = flow.tensor(DATA[2, :, :3].repeat(2, -1))
    for _ in range(2):
        results = []
        for m, o in ((model, optimizer), (twin, other)):
            o.zero_grad()
            loss = (m(x) ** 2).mean()
            loss.backward()
            o.step()
            results.append(loss.item())
        assert results[0] == results[1]
    plain = network(flow)  # a model that lies otherwise
    wanted = {"model": plain.state_dict()}
    checkpoint.load(wanted, checkpoint_id=SHARED)
    assert {name: v.tolist() for name, v in wanted["model"].items()} == kept
    refuses(
        CheckpointError,
        "has no model.x",
        lambda: checkpoint.load({"model": {"x": flow.ones(1)}}, checkpoint_id=SHARED),
    )
    dist.barrier()
    if RANK == 0:
        shutil.rmtree(SHARED)


def whole_states() -> None:
    model, optimizer = _trained(2)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, states = get_state_dict(model, optimizer, options=options)
    assert bool(weights) == (RANK == 0)
    if RANK == 0:
        assert tuple(weights["0.up.weight"].shape) == (8, 6)
        assert not weights["0.up.weight"].is_global
    twin, other = _trained(1)
    set_state_dict(
        twin,
        other,
        model_state_dict=weights,
        optim_state_dict=states,
        options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
    )
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert p.to_local().tolist() == q.to_local().tolist()
    x = flow.tensor(DATA[2, :, :3].repeat(2, -1))
    results = []
    for m, o in ((model, optimizer), (twin, other)):
        o.zero_grad()
        (m(x) ** 2).mean().backward()
        o.step()
        results.append((m(x) ** 2).mean().item())
    assert results[0] == results[1]


if __name__ == "__main__":
    play([globals()[name] for name in sys.argv[1:]])
