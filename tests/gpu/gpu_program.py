"""Runs on the ranks of test_gpu_ranks.py: `gpu_program.py SCENE`; exits 0 if all is right."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

import oneflow as flow
from oneflow import nn
from tests.unit.one_embedding.making import embedding

# The environment is read at the first question: a far scene must speak before.
if sys.argv[-1].endswith("_far"):  # each rank says that it is on a host of its own
    os.environ["ONEFLOW_HOST_IDENTITY"] = f"host{os.environ['RANK']}"

RANK, SIZE = flow.env.get_rank(), flow.env.get_world_size()
S0, B = flow.sbp.split(0), flow.sbp.broadcast
ROWS, STEPS = 8, 4


def losses(kind: str, split: bool, dropped: float = 0.0, pieces: int = 1) -> list[float]:
    """Losses of a graph trained on all ranks of placement type `kind`: data-parallel, or whole on
    each.
    """
    everyone = flow.placement(kind, list(range(SIZE)))
    flow.manual_seed(1)
    middle = [nn.Tanh(), nn.Dropout(dropped)] if dropped else [nn.Tanh()]
    model = nn.Sequential(nn.Linear(6, 16), *middle, nn.Linear(16, 3))
    model.to_global(placement=everyone, sbp=B)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    class Step(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.criterion = model, nn.CrossEntropyLoss()
            self.add_optimizer(optimizer)
            self.config.set_gradient_accumulation_steps(pieces)

        def build(self, x: Any, labels: Any) -> Any:
            loss = self.criterion(self.model(x), labels)
            loss.backward()
            return loss

    step, rng, found = Step(), np.random.default_rng(2), []
    for _ in range(STEPS):
        x = rng.normal(size=(ROWS * SIZE, 6)).astype(np.float32)
        labels = rng.integers(0, 3, ROWS * SIZE)
        sbp = S0 if split else B
        loss = step(
            flow.tensor(x, placement=everyone, sbp=sbp),
            flow.tensor(labels, placement=everyone, sbp=sbp),
        )
        found.append(float(loss.numpy().mean()))
    compiled: Any = step._spec.plans.now
    recordings = compiled.job.bound.recordings
    assert (kind == "cpu") == (recordings is None)
    assert recordings is None or (recordings.num_graphs and not recordings.plain)
    return found


def data_parallel() -> None:
    """Ranks that may share one GPU reduce gradients in each other's memory."""
    np.testing.assert_allclose(losses("cuda", True), losses("cpu", False), rtol=1e-4)


def replicas() -> None:
    """DistributedDataParallel averages gradients of every float dtype, beside the backward pass."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(4 * SIZE, 8)).astype(np.float32)
    for dtype, rtol in ((flow.float32, 1e-5), (flow.float64, 1e-7), (flow.bfloat16, 3e-2)):
        flow.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to("cuda", dtype)
        whole = [flow.tensor(p.double().numpy(), requires_grad=True) for p in model.parameters()]
        wrapped = nn.parallel.DistributedDataParallel(model, bucket_size=1, use_bucket=RANK < 0)
        mine = flow.tensor(x[4 * RANK : 4 * RANK + 4], device="cuda", dtype=dtype)
        (wrapped(mine) ** 2).mean().backward()
        w, b, v, c = whole
        out = flow.relu(flow.tensor(x).double() @ w.t() + b) @ v.t() + c
        (out**2).mean().backward()
        for p, q in zip(model.parameters(), whole, strict=True):
            np.testing.assert_allclose(p.grad.double().numpy(), q.grad.numpy(), rtol, rtol / 10)


def dropped() -> None:
    """Recorded draws of micro-batches whose rows lie on both ranks are those of the CPU."""
    expected = losses("cpu", False, 0.4, 2)
    np.testing.assert_allclose(losses("cuda", True, 0.4, 2), expected, rtol=1e-4)


def layouts() -> None:
    """Eager global tensors on GPUs, in every layout."""
    everyone = flow.placement("cuda", list(range(SIZE)))
    a = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    for sbp in (S0, flow.sbp.split(1), B, flow.sbp.partial_sum):
        x = flow.tensor(a, placement=everyone, sbp=sbp)
        got = flow.relu(flow.matmul(x, flow.tensor(a.T.copy(), placement=everyone, sbp=B)))
        np.testing.assert_allclose(got.numpy(), np.maximum(a @ a.T, 0), rtol=1e-4, atol=1e-4)


def boxing() -> None:
    """Every pair of layouts, from GPUs to GPUs, to other ranks and to the host."""
    everyone = flow.placement("cuda", list(range(SIZE)))
    last = flow.placement("cuda", [SIZE - 1])
    grid = flow.placement("cuda", [list(range(SIZE))])
    on_host = flow.placement("cpu", list(range(SIZE)))
    a = np.random.default_rng(0).integers(-9, 9, (5, 6)).astype(np.float32)
    layouts = (S0, flow.sbp.split(1), B, flow.sbp.partial_sum)
    for before in layouts:
        x = flow.tensor(a, placement=everyone, sbp=before)
        for after in layouts:
            np.testing.assert_array_equal(x.to_global(sbp=after).numpy(), a)
            np.testing.assert_array_equal(x.to_global(on_host, after).numpy(), a)
            np.testing.assert_array_equal(x.to_global(grid, (B, after)).numpy(), a)
        there = x.to_global(last, B)
        np.testing.assert_array_equal(there.to_global(everyone, S0).numpy(), a)


def opened() -> Any:
    """The collectives of all ranks; the test has seen to it that they can use NCCL."""
    from oneflow.boxing.collectives.nccl import NcclCollectives
    from oneflow.distributed.world import world

    ends = world().device_collectives(tuple(range(SIZE)))
    assert isinstance(ends, NcclCollectives), type(ends)
    return ends


def nccl() -> None:
    """The primitives against NumPy, their counts, and their order with kernels."""
    import cupy

    ends = opened()
    parts = [np.random.default_rng(r).normal(size=(2 * SIZE, 3)) for r in range(SIZE)]
    mine, total = cupy.asarray(parts[RANK]), sum(parts)
    np.testing.assert_allclose(cupy.asnumpy(ends.all_reduce(mine)), total)
    assert ends.received_nbytes == 2 * (SIZE - 1) * total.nbytes // SIZE
    np.testing.assert_allclose(
        cupy.asnumpy(ends.reduce_scatter(mine)), total[2 * RANK : 2 * RANK + 2]
    )
    uneven = np.array_split(total[1:], SIZE)[RANK]
    np.testing.assert_allclose(cupy.asnumpy(ends.reduce_scatter(mine[1:])), uneven)
    gathered = cupy.asnumpy(ends.all_gather(mine)).reshape(SIZE, 2 * SIZE, 3)
    np.testing.assert_array_equal(gathered, np.stack(parts))
    swapped = cupy.asnumpy(ends.all_to_all(mine.reshape(SIZE, 2, 3)))
    np.testing.assert_array_equal(swapped, np.stack([p.reshape(SIZE, 2, 3)[RANK] for p in parts]))
    np.testing.assert_array_equal(cupy.asnumpy(ends.broadcast(mine, SIZE - 1)), parts[-1])
    for dtype in (np.int16, np.complex64):  # NCCL cannot add these: kernels do
        found = ends.all_reduce(mine.astype(dtype))
        wanted = sum(p.astype(dtype) for p in parts)
        np.testing.assert_allclose(cupy.asnumpy(found), wanted, rtol=1e-5, atol=1e-5)
    several = ends.all_reduce_each([mine, mine[:1], mine.astype(np.float32)])
    for found, wanted in zip(several, (total, total[:1], total), strict=True):
        np.testing.assert_allclose(cupy.asnumpy(found), wanted, rtol=1e-5, atol=1e-5)
    ends.barrier()


def streams() -> None:
    """Calls see the writes of kernels launched before, and kernels launched after see
    those of calls; memory that is freed at once is not used twice."""
    import cupy

    ends = opened()
    n = 4 << 20
    for step in range(5):  # large ones: kernels must still run when the call is started
        x = cupy.full(n, float(RANK + step), cupy.float32)
        for _ in range(20):
            x += 1
        y = ends.all_reduce(x)
        del x
        z = cupy.zeros(n, cupy.float32)  # may lie where x was
        y += 1
        wanted = sum(r + step + 20 for r in range(SIZE)) + 1
        assert float(y.min()) == float(y.max()) == wanted, (step, float(y[0]), wanted)
        assert float(z.max()) == 0.0
    with ends.deferred():
        results = [ends.all_reduce(cupy.full(n, float(RANK + i), cupy.float32)) for i in range(8)]
        other = cupy.ones(n, cupy.float32) * 3
    for i, found in enumerate(results):
        assert float(found.min()) == float(found.max()) == sum(r + i for r in range(SIZE))
    assert float(other.min()) == 3.0


def desync() -> None:
    """Ranks in different calls, both known: an error that names them, and no hang."""
    import cupy

    from oneflow.boxing.collectives.device_watch import raise_if_broken

    ends = opened()
    x = cupy.ones((SIZE, 1 << 20), cupy.float32)
    ends.all_reduce(x)
    ends.all_to_all(x)
    ends.synchronize()
    try:
        (ends.all_reduce if RANK else ends.all_to_all)(x)
        cupy.cuda.get_current_stream().synchronize()
        raise_if_broken()
        ends.all_reduce(x[:, :3])  # new, so compared
    except flow_errors().OneFlowError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        print("ended", flush=True)
        raise
    raise AssertionError("nobody noticed")


def killed() -> None:
    """A rank dies while the other waits for it in a GPU call."""
    import signal

    import cupy

    ends = opened()
    x = cupy.ones(1 << 20, cupy.float32)
    ends.all_reduce(x)
    ends.synchronize()
    if RANK == SIZE - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ends.all_reduce(x)
    ends.synchronize()
    raise AssertionError("a sum without the last rank")


def embeddings() -> None:
    """Rows in the memory of the GPUs, split over the ranks, train as those of one rank on a CPU."""
    everyone = flow.placement("cuda", list(range(SIZE)))
    rng = np.random.default_rng(5)
    batches = [rng.zipf(1.3, (ROWS, 2)) % 30 for _ in range(STEPS)]

    def trained(on_ranks: bool, is_graph: bool, form: str = "float32") -> tuple[Any, Any]:
        model: Any = embedding(tables=2, communication=form)
        if on_ranks:
            model.to_global(placement=everyone, sbp=B)
        optimizer = flow.optim.Adam(model.parameters(), lr=0.1)

        class Step(nn.Graph):
            def __init__(self) -> None:
                super().__init__()
                self.model = model
                self.add_optimizer(optimizer)

            def build(self, ids: Any) -> Any:
                loss = (model(ids) ** 3).mean()
                loss.backward()
                return loss

        step, found = Step(), []
        for ids in batches:
            x = flow.tensor(ids, placement=everyone, sbp=S0) if on_ranks else flow.tensor(ids)
            if is_graph:
                found.append(step(x).numpy().item())
                continue
            loss = (model(x) ** 3).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.numpy().item())
        return found, model.statistics()

    wanted, _ = trained(False, False)
    for is_graph in (False, True):
        for form, near in (("float32", 1e-5), ("float16", 0.01), ("int8", 0.03)):
            got, told = trained(True, is_graph, form)
            np.testing.assert_allclose(got, wanted, rtol=near, err_msg=f"{form} {is_graph}")
            assert told["device_hits"] and not told["memory_hits"], told


def flow_errors() -> Any:
    import oneflow.core.errors

    return oneflow.core.errors


SCENES = {
    "data_parallel": data_parallel,
    "data_parallel_far": data_parallel,
    "dropped": dropped,
    "replicas": replicas,
    "layouts": layouts,
    "boxing": boxing,
    "embeddings": embeddings,
    "nccl": nccl,
    "streams": streams,
    "desync": desync,
    "killed": killed,
}

if __name__ == "__main__":
    SCENES[sys.argv[1]]()
    print("done", flush=True)
