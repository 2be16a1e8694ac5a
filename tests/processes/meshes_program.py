"""Program of the ranks of test_meshes.py: `meshes_program SCENE ...`; exits 0 if all is right. The
reference is PyTorch on the whole batch in each process.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import distributed as dist
from oneflow import nn
from oneflow.core.errors import AutogradError, CallError, GraphError, PlacementError
from oneflow.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from oneflow.distributed.device_mesh import DeviceMesh, init_device_mesh
from oneflow.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ModuleWrapPolicy,
    StateDictType,
    fully_shard,
)
from oneflow.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from oneflow.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from tests.support.launching import play
from tests.support.refusing import refuses

RANK, SIZE = flow.env.get_rank(), flow.env.get_world_size()
STEPS, ROWS = 3, 3 * SIZE
BATCHES = np.random.default_rng(1).standard_normal((STEPS, ROWS, 6)).astype(np.float32)


def block(lib: Any) -> Any:
    class Block(lib.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm = lib.nn.LayerNorm(6)
            self.up = lib.nn.Linear(6, 8)
            self.down = lib.nn.Linear(8, 6)

        def forward(self, x: Any) -> Any:
            return x + self.down(lib.relu(self.up(self.norm(x))))

    return Block()


def network(lib: Any) -> Any:
    """Two blocks and a head, with the same values in both libraries."""
    model = lib.nn.Sequential(block(lib), block(lib), lib.nn.Linear(6, 3))
    rng = np.random.default_rng(0)
    with lib.no_grad():
        for p in model.parameters():
            values = rng.standard_normal(tuple(p.shape)).astype(np.float32) * 0.3
            p.copy_(lib.tensor(values))
    return model


def losses(lib: Any, model: Any, rows: slice, clips: bool) -> list[float]:
    """Losses of some steps on some rows of the batches."""
    optimizer = lib.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.01)
    found = []
    for batch in BATCHES:
        loss = (model(lib.tensor(batch[rows])) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        if clips:
            lib.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        found.append(loss.item())
    return found


def check(model: Any, rows: slice, clips: bool = True) -> None:
    """The mean of the ranks' losses is PyTorch's loss of the whole batch, step by step."""
    mine = flow.tensor(losses(flow, model, rows, clips))
    dist.all_reduce(mine, dist.ReduceOp.AVG)
    expected = losses(torch, network(torch), slice(0, ROWS), clips)
    np.testing.assert_allclose(mine.numpy(), expected, rtol=2e-5)


OWN = slice(3 * RANK, 3 * RANK + 3)


def meshes() -> None:
    mesh = init_device_mesh("cpu", (SIZE // 2, 2), mesh_dim_names=("dp", "tp"))
    assert (mesh.ndim, mesh.shape, mesh.size(), mesh.size(1)) == (2, (SIZE // 2, 2), SIZE, 2)
    assert mesh.get_coordinate() == [RANK // 2, RANK % 2]
    assert (mesh["tp"].get_local_rank(), mesh.get_local_rank("dp")) == (RANK % 2, RANK // 2)
    assert mesh["tp"].mesh.tolist() == [RANK // 2 * 2, RANK // 2 * 2 + 1]
    x = flow.tensor([RANK + 1.0])
    dist.all_reduce(x, group=mesh.get_group("tp"))
    assert x.item() == sum(r + 1 for r in mesh["tp"].mesh.tolist())
    flat = mesh._flatten("all")
    assert mesh["all"] is flat
    assert flat.mesh.tolist() == list(range(SIZE))
    dist.all_reduce(x, group=flat.get_group())
    assert x.item() == sum(2 * (r + 1) for r in range(SIZE))
    assert mesh["dp"]._flatten("data").shape == mesh[("data",)].shape == (SIZE // 2,)
    grid = init_device_mesh("cpu", (SIZE,), mesh_dim_names=("world",))._unflatten(
        0, (1, SIZE // 2, 2), ("pp", "dp", "tp")
    )
    assert grid.shape == (1, SIZE // 2, 2)
    assert grid["tp"].mesh.tolist() == mesh["tp"].mesh.tolist()
    assert grid["pp"].size() == 1
    refuses(PlacementError, "not \\(3,\\)", lambda: grid._unflatten("tp", (3,), ("a",)))
    line = DeviceMesh.from_group(mesh.get_group("tp"), "cpu")
    assert line.mesh.tolist() == mesh["tp"].mesh.tolist()
    assert line.get_group() is mesh.get_group("tp")
    refuses(KeyError, "Invalid mesh_dim_name", lambda: mesh["pp"])
    refuses(PlacementError, "ranks", lambda: init_device_mesh("cpu", (SIZE + 1,)))
    refuses(PlacementError, "names", lambda: DeviceMesh("cpu", [0, 1], mesh_dim_names=("a", "b")))


def tensors() -> None:
    mesh = init_device_mesh("cpu", (SIZE,))
    whole = np.arange(24, dtype=np.float32).reshape(8, 3)
    x = distribute_tensor(flow.tensor(whole) + RANK, mesh, [Shard(0)])  # the first rank's values
    assert isinstance(x, DTensor)
    assert not isinstance(flow.ones(1), DTensor)
    assert x.placements == (Shard(0),)
    assert x.device_mesh == mesh
    assert x.to_local().tolist() == np.array_split(whole, SIZE)[RANK].tolist()
    assert x.full_tensor().tolist() == whole.tolist()
    y = x.redistribute(mesh, [Shard(1)])
    assert y.to_local().tolist() == np.array_split(whole, SIZE, 1)[RANK].tolist()
    summands = DTensor.from_local(flow.ones(2) * (RANK + 1), mesh, [Partial()])
    assert summands.full_tensor().tolist() == [SIZE * (SIZE + 1) / 2] * 2
    local = flow.ones(2, 3, requires_grad=True)
    rows = DTensor.from_local(local, mesh, [Shard(0)])
    assert tuple(rows.shape) == (2 * SIZE, 3)
    (rows * 3).full_tensor().sum().backward()
    assert local.grad.tolist() == [[3.0] * 3] * 2
    same = flow.ones(2, requires_grad=True)
    copies = DTensor.from_local(same, mesh, [Replicate()])
    (copies * 5).redistribute(mesh, [Shard(0)]).full_tensor().sum().backward()
    assert same.grad.tolist() == [5.0, 5.0]
    refuses(PlacementError, "1 axes|for 1", lambda: distribute_tensor(same, mesh, [Shard(0)] * 2))
    module = distribute_module(nn.Linear(4, 2), mesh)
    assert all(p.placements == (Replicate(),) for p in module.parameters())


def tensor_parallel() -> None:
    mesh = init_device_mesh("cpu", (SIZE,))
    model = network(flow)
    plan = {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()}
    parallelize_module(model, mesh, {f"{i}.{k[2:]}": v for i in "01" for k, v in plan.items()})
    assert model[0].up.weight.placements == (Shard(0),)
    check(model, slice(0, ROWS), clips=False)
    model = network(flow)
    rest = {
        "*.norm": SequenceParallel(sequence_dim=0),
        "*.up": ColwiseParallel(input_layouts=Shard(0)),
        "*.down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
        "0": PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(0), use_local_output=False
        ),
        "2": RowwiseParallel(input_layouts=Shard(0)),
    }
    parallelize_module(model, mesh, rest)
    check(model, slice(0, ROWS), clips=False)
    with pytest.warns(UserWarning, match="no part 'x'"):
        parallelize_module(model, mesh, {"x": RowwiseParallel()})


def without_values() -> None:
    """A module on the meta device is laid out before it has memory."""
    mesh = init_device_mesh("cpu", (SIZE // 2, 2), mesh_dim_names=("dp", "tp"))
    with flow.device("meta"):
        model = nn.Sequential(block(flow), block(flow), nn.Linear(6, 3))
    for part in model[:2]:
        parallelize_module(part, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(part, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    assert all(p.is_meta and isinstance(p, DTensor) for p in model.parameters())
    assert model[0].up.weight.device_mesh.size() == SIZE
    model.to_empty(device="cpu")
    assert not any(p.is_meta for p in model.parameters())
    with flow.no_grad():
        pairs = zip(model.parameters(), network(flow).parameters(), strict=True)
        for p, values in pairs:
            p.copy_(distribute_tensor(values, p.device_mesh, p.placements))
    rows = ROWS // (SIZE // 2)
    check(model, slice(RANK // 2 * rows, (RANK // 2 + 1) * rows))


def losses_in_parts() -> None:
    """Logits in parts meet local targets inside loss_parallel, and there alone."""
    mesh = init_device_mesh("cpu", (SIZE,))
    values = np.random.default_rng(0).standard_normal((5, 4 * SIZE)).astype(np.float32)
    goals = np.arange(5)
    local = flow.tensor(np.array_split(values, SIZE, 1)[RANK].copy(), requires_grad=True)
    logits = DTensor.from_local(local, mesh, [Shard(1)])
    cross_entropy = nn.functional.cross_entropy
    refuses(PlacementError, "mixed", lambda: cross_entropy(logits, flow.tensor(goals)))
    with loss_parallel():
        loss = cross_entropy(logits, flow.tensor(goals))
        loss.backward()
    x = torch.tensor(values, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(x, torch.tensor(goals))
    expected.backward()
    assert x.grad is not None
    np.testing.assert_allclose(loss.full_tensor().item(), expected.item(), rtol=1e-6)
    part = np.array_split(x.grad.numpy(), SIZE, 1)[RANK]
    np.testing.assert_allclose(local.grad.numpy(), part, atol=1e-7)


def sharded() -> None:
    model = network(flow)
    for part in model[:2]:
        fully_shard(part)
    fully_shard(model)
    assert isinstance(model, FSDPModule)
    assert isinstance(model, nn.Sequential)
    assert model[0].up.weight.placements == (Shard(0),)
    check(model, OWN)
    whole = {name: p.full_tensor() for name, p in model.state_dict().items()}
    assert tuple(whole["0.up.weight"].shape) == (8, 6)
    refuses(CallError, "sharded already", lambda: fully_shard(model))
    summed, plain = fully_shard(network(flow)), network(flow)
    summed.set_gradient_divide_factor(1.0)
    (summed(flow.tensor(BATCHES[0][OWN])) ** 2).sum().backward()
    (plain(flow.tensor(BATCHES[0])) ** 2).sum().backward()
    for p, q in zip(summed.parameters(), plain.parameters(), strict=True):
        found = p.grad.full_tensor().numpy()
        np.testing.assert_allclose(found, q.grad.numpy(), rtol=1e-4, atol=1e-4)
    kept = network(flow)
    fully_shard(kept[0], reshard_after_forward=False)
    fully_shard(kept, shard_placement_fn=lambda p: Shard(p.ndim - 1))
    check(kept, OWN)


def added_up() -> None:
    """Gradients of two passes, of which the first exchanges nothing, are those of both at once."""
    model, reference = network(flow), network(torch)
    fully_shard(model)
    (reference(torch.tensor(BATCHES[0])) ** 2).mean().backward()
    (reference(torch.tensor(BATCHES[1])) ** 2).mean().backward()
    model.set_requires_gradient_sync(False)
    (model(flow.tensor(BATCHES[0][OWN])) ** 2).mean().backward()
    assert all(p.grad is None for p in model.parameters())
    model.set_requires_gradient_sync(True)
    (model(flow.tensor(BATCHES[1][OWN])) ** 2).mean().backward()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        np.testing.assert_allclose(p.grad.full_tensor().numpy(), q.grad.numpy(), atol=2e-6)


def halved() -> None:
    """Mixed precision computes in bfloat16 and keeps float32."""
    model = network(flow)
    policy = MixedPrecisionPolicy(param_dtype=flow.bfloat16, reduce_dtype=flow.float32)
    fully_shard(model, mp_policy=policy)
    made = model(flow.tensor(BATCHES[0][OWN]))
    assert made.dtype is flow.bfloat16
    made.float().sum().backward()
    assert {p.dtype for p in model.parameters()} == {flow.float32}
    assert {p.grad.dtype for p in model.parameters()} == {flow.float32}
    expected = network(torch)(torch.tensor(BATCHES[0][OWN])).detach().numpy()
    np.testing.assert_allclose(made.float().numpy(force=True), expected, atol=0.05)


def wrapped() -> None:
    """PyTorch's wrapper of old."""
    policy = ModuleWrapPolicy({nn.Linear})
    model = FullyShardedDataParallel(network(flow), auto_wrap_policy=policy)
    check(model, OWN)
    assert tuple(model.state_dict()["0.up.weight"].shape) == (8, 6)
    kind = StateDictType.SHARDED_STATE_DICT
    with FullyShardedDataParallel.state_dict_type(model, kind):
        assert isinstance(model.state_dict()["0.up.weight"], DTensor)
    twin = network(flow)
    twin.load_state_dict(model.state_dict())
    x = flow.tensor(BATCHES[0])
    np.testing.assert_allclose(twin(x).numpy(force=True), model(x).numpy(force=True), atol=1e-6)


def grid() -> None:
    """Parts of parts, and copies of parts, on two axes of a mesh."""
    mesh = init_device_mesh("cpu", (SIZE // 2, 2), mesh_dim_names=("dp", "tp"))
    model = network(flow)
    for i in (0, 1):
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(model[i], mesh["tp"], plan)
        fully_shard(model[i], mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    rows = ROWS // (SIZE // 2)
    check(model, slice(RANK // 2 * rows, (RANK // 2 + 1) * rows))
    copies = network(flow)
    fully_shard(copies[0], mesh=mesh)
    fully_shard(copies, mesh=mesh)
    check(copies, OWN)


def small(lib: Any) -> Any:
    """Two layers with one weight, and a head with one row."""
    model = lib.nn.Sequential(lib.nn.Linear(6, 6), lib.nn.Tanh(), lib.nn.Linear(6, 6))
    model.append(lib.nn.Linear(6, 1))
    model[2].weight = model[0].weight
    with lib.no_grad():
        for k, p in enumerate(model.parameters()):
            p.copy_(lib.linspace(-0.5 - k, 0.5, p.numel()).reshape(p.shape))
    return model


def check_gradients(model: Any, reference: Any) -> None:
    """The gradients after a backward pass on OWN rows are those of PyTorch on all rows."""
    (model(flow.tensor(BATCHES[0][OWN])) ** 2).mean().backward()
    (reference(torch.tensor(BATCHES[0])) ** 2).mean().backward()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        np.testing.assert_allclose(
            p.grad.full_tensor().numpy(), q.grad.numpy(), rtol=2e-5, atol=1e-5
        )


def ahead() -> None:
    """While a part runs the next one is gathered; no more than two parts are whole at a time."""
    parts = [nn.Linear(6, 6) for _ in range(6)]
    model = nn.Sequential(*[fully_shard(part) for part in parts])
    fully_shard(model)
    log: list[tuple[str, int]] = []
    wholes: list[list[weakref.ref[Any]]] = [[] for _ in parts]
    most = 0

    def whole_parts() -> int:
        return sum(any(r() is not None for r in refs) for refs in wholes)

    def watch(i: int, group: Any) -> None:
        begin, exchange = group.begin, group._exchange

        def begins() -> Any:
            log.append(("gather", i))
            return begin()

        def exchanges(*args: Any) -> Any:
            made = exchange(*args)
            wholes[i] = [weakref.ref(x) for x in made]
            return made

        group.begin, group._exchange = begins, exchanges

    def runs(i: int) -> None:
        nonlocal most
        log.append(("run", i))
        most = max(most, whole_parts())

    for i, part in enumerate(parts):
        watch(i, part._fsdp)
        part.register_forward_hook(lambda *_, i=i: runs(i))
        part.register_full_backward_pre_hook(lambda *_, i=i: runs(i))
    x = flow.tensor(BATCHES[0][OWN])
    for step in range(3):
        log.clear()
        most = 0
        model(x).sum().backward()
        gathered, ran = [log.index(("gather", i)) for i in range(6)], log.index
        assert log.count(("gather", 0)) == 2  # once for each pass
        if step:
            assert all(gathered[i] < ran(("run", i - 1)) for i in range(1, 6))
            back = log[ran(("run", 5)) + 1 :]
            assert all(back.index(("gather", i)) < back.index(("run", i)) for i in range(5)), log
            assert most <= 2, log
    for part in parts[:2]:
        part.set_modules_to_forward_prefetch([])
    log.clear()
    model(x)
    assert log[:4] == [("gather", 0), ("run", 0), ("gather", 1), ("run", 1)]
    parts[0].unshard(async_op=True).wait()
    with flow.no_grad():
        parts[0].weight.zero_()  # gathered ahead of a write
        parts[0].bias.zero_()
    assert not parts[0](x).detach().numpy().any()


def tied() -> None:
    """A parameter that two modules share stays one; parameters of one row stay in their part."""
    model = small(flow)
    fully_shard(model)
    assert model[0].weight is model[2].weight
    assert model[3].weight.placements == (Shard(0),)
    check_gradients(model, small(torch))
    twin = small(flow)
    fully_shard(twin)
    twin.load_state_dict({k: v.detach() for k, v in model.state_dict().items()}, assign=True)
    twin[2].weight = twin[0].weight
    x = flow.tensor(BATCHES[0])
    np.testing.assert_array_equal(twin(x).numpy(force=True), model(x).numpy(force=True))
    apart = small(flow)
    fully_shard(apart[0])
    refuses(CallError, "shared with a module", lambda: fully_shard(apart))
    mixed = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6).double())
    refuses(CallError, "one dtype", lambda: fully_shard(mixed))


def run_again() -> None:
    """Checkpointed parts have whole parameters when they run again; so do second derivatives."""
    for shards_first in (True, False):
        model = network(flow)
        for i in (0, 1):
            if shards_first:
                fully_shard(model[i])
            model[i] = checkpoint_wrapper(model[i])
            if not shards_first:
                fully_shard(model[i])
        fully_shard(model)
        check_gradients(model, network(torch))
    model, reference = network(flow), network(torch)
    fully_shard(model)
    for lib, m in ((flow, model), (torch, reference)):
        x = lib.tensor(BATCHES[0], requires_grad=True)
        (g,) = lib.autograd.grad(lib.tanh(m(x)).sum(), x, create_graph=True)
        (g**2).sum().backward()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        found = np.zeros(tuple(q.shape)) if q.grad is None else q.grad.numpy()
        np.testing.assert_allclose(p.grad.full_tensor().numpy(), found, rtol=1e-3, atol=1e-4)
    y = model(flow.tensor(BATCHES[0])).sum()
    with flow.no_grad():
        model[0].up.weight.add_(1)
    refuses(AutogradError, "modified by an inplace operation", y.backward)
    for checks_again in (False, True):
        model = network(flow)
        for i in (0, 1):
            inner = checkpoint_wrapper(model[i]) if checks_again else model[i]
            model[i] = fully_shard(flow.compile(inner, fullgraph=True))
        fully_shard(model)
        check(model, OWN)
    for compiles_first in (True, False):
        model = network(flow)
        for i in (0, 1):
            if compiles_first:
                model[i].compile(fullgraph=True)
            fully_shard(model[i])
            if not compiles_first:
                model[i].compile(fullgraph=True)
        fully_shard(model)
        check(model, OWN)
    compiled = flow.compile(model, fullgraph=True)
    refuses(GraphError, "cannot be traced", lambda: compiled(flow.tensor(BATCHES[0])))


if __name__ == "__main__":
    play([globals()[name] for name in sys.argv[1:]])
