"""Program of the ranks of test_process_groups.py: `process_groups_program SCENE ...`; exits 0 if
all is right. Every expected value is a closed form of the ranks' numbers.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import oneflow as flow
from oneflow import distributed as dist
from oneflow.core.errors import PlacementError
from oneflow.distributed.algorithms.ddp_comm_hooks import default_hooks
from oneflow.futures import Future
from oneflow.nn.parallel import DistributedDataParallel
from tests.support.launching import play
from tests.support.refusing import refuses

RANK, SIZE = flow.env.get_rank(), flow.env.get_world_size()
EVEN = [r for r in range(SIZE) if r % 2 == 0]


def mine(extra: float = 0.0) -> Any:
    return flow.tensor([RANK + 1 + extra, 2.0])


def total(ranks: list[int]) -> list[float]:
    return [float(sum(r + 1 for r in ranks)), 2.0 * len(ranks)]


def begins() -> None:
    assert not dist.is_initialized()
    dist.init_process_group("gloo")
    assert dist.is_initialized()
    assert dist.get_backend() == "gloo"
    refuses(ValueError, "twice", dist.init_process_group)
    dist.destroy_process_group()
    assert not dist.is_initialized()
    dist.init_process_group("gloo", rank=RANK, world_size=SIZE)


def groups() -> None:
    """All collectives on some of the ranks, while the others do something else."""
    everyone = list(range(SIZE))
    group = dist.new_group(EVEN)
    other = dist.new_group([r for r in everyone if r not in EVEN] or EVEN)
    x = mine()
    if RANK not in EVEN:
        assert group == dist.GroupMember.NON_GROUP_MEMBER
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            dist.all_reduce(x, group=group)
        assert "not in the group" in str(told[0].message)
        dist.all_reduce(x, group=other)
        assert x.tolist() == total([r for r in everyone if r not in EVEN])
        return
    assert dist.get_world_size(group) == len(EVEN)
    assert dist.get_rank(group) == EVEN.index(RANK)
    assert dist.get_process_group_ranks(group) == EVEN
    last = EVEN[-1]
    assert dist.get_global_rank(group, len(EVEN) - 1) == last
    assert dist.get_group_rank(group, last) == len(EVEN) - 1
    refuses(PlacementError, "not part of group", lambda: dist.get_group_rank(group, SIZE + 5))
    dist.all_reduce(x, group=group)
    assert x.tolist() == total(EVEN)
    dist.all_reduce(y := mine(), dist.ReduceOp.AVG, group=group)
    np.testing.assert_allclose(y.numpy(), np.array(total(EVEN)) / len(EVEN))
    parts = [flow.zeros(2) for _ in EVEN]
    dist.all_gather(parts, mine(), group=group)
    assert [p[0].item() for p in parts] == [r + 1.0 for r in EVEN]
    z = mine()
    dist.broadcast(z, last, group=group)
    assert z[0].item() == last + 1
    dist.broadcast(z := mine(), group=group, group_src=0)
    assert z[0].item() == EVEN[0] + 1
    out = flow.zeros(2)
    dist.reduce_scatter(out, [mine(i) for i in range(len(EVEN))], group=group)
    assert out[0].item() == total(EVEN)[0] + EVEN.index(RANK) * len(EVEN)
    got = flow.zeros(2)
    dist.scatter(got, [mine(i) for i in range(len(EVEN))] if last == RANK else None, last, group)
    assert got[0].item() == last + 1 + EVEN.index(RANK)
    listed = [None] * len(EVEN)
    dist.all_gather_object(listed, {"rank": RANK}, group=group)
    assert listed == [{"rank": r} for r in EVEN]
    objects = [RANK]
    dist.broadcast_object_list(objects, last, group=group)
    assert objects == [last]
    dist.barrier(group)
    refuses(PlacementError, "group is what new_group", lambda: dist.barrier("all"))  # type: ignore[arg-type]


def begun() -> None:
    """Calls that are not waited for at once, beside others that are."""
    first, second, third = mine(), mine(), mine()
    works = [dist.all_reduce(x, async_op=True) for x in (first, second)]
    dist.all_reduce(third)  # comes behind them
    assert all(w is not None and w.wait() and w.is_completed() and w.is_success() for w in works)
    for x in (first, second, third):
        assert x.tolist() == total(list(range(SIZE)))
    wrong = dist.all_gather([flow.zeros(2)], mine(), async_op=True)  # too short a list, everywhere
    assert wrong is not None
    refuses(Exception, "one entry per rank", wrong.wait)
    assert not wrong.is_success()
    dist.all_reduce(x := mine())
    assert x.tolist() == total(list(range(SIZE)))


def pairs() -> None:
    """Everybody sends to the next and hears the one before, in either order."""
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for sends_first in (True, RANK % 2 == 0):
        got = flow.zeros(2)
        sends = lambda: dist.isend(mine(), after)  # noqa: E731
        hears = lambda got=got: dist.irecv(got, before)  # noqa: E731
        works = [sends(), hears()] if sends_first else [hears(), sends()]
        assert [w.wait() for w in works] == [True, True]
        assert got[0].item() == before + 1
    back = flow.zeros(2)
    ops = [dist.P2POp(dist.isend, mine(7), before), dist.P2POp(dist.irecv, back, after)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert back[0].item() == after + 8
    if RANK == 0:
        works = [dist.isend(mine(t), 1, tag=t) for t in (1, 2)]
        dist.send_object_list([1, "two"], 1)
    elif RANK == 1:
        two, one = flow.zeros(2), flow.zeros(2)
        works = [dist.irecv(two, 0, tag=2), dist.irecv(one, 0, tag=1)]
        listed: list[Any] = [None, None]
        dist.recv_object_list(listed, 0)
        assert listed == [1, "two"]
    if RANK < 2:
        for work in works:
            work.wait()
    if RANK == 1:
        assert (one[0].item(), two[0].item()) == (2.0, 3.0)
    dist.barrier()


def bits() -> None:
    for op, expected in (("BAND", 8), ("BOR", 8 | (2**SIZE - 1)), ("BXOR", None)):
        x = flow.tensor([8 | (1 << RANK) & 7], dtype=flow.int64)
        values = [8 | (1 << r) & 7 for r in range(SIZE)]
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
        function = {"BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}[op]
        assert x.tolist() == [int(function.reduce(values))]
        assert expected is None or SIZE > 3 or x.tolist() == [expected]


def store() -> None:
    known: Any = dist.distributed_c10d._get_default_store()
    known.set(f"of{RANK}", str(RANK))
    assert known.get(f"of{(RANK + 1) % SIZE}") == str((RANK + 1) % SIZE).encode()
    known.add("counted", 1)
    dist.barrier()
    assert int(known.add("counted", 0)) == SIZE
    shared = Path(tempfile.gettempdir()) / f"store-{os.environ['MASTER_PORT']}"
    file = dist.FileStore(str(shared), SIZE)
    for _ in range(20):
        file.add("n", 1)
    dist.barrier()
    assert int(file.add("n", 0)) == 20 * SIZE
    dist.barrier()
    if RANK == 0:
        shared.unlink()


def gradients() -> None:
    """Data parallelism over a group, and with hooks that exchange gradients."""
    halves = [dist.new_group(ranks) for ranks in ([*range(0, SIZE, 2)], [*range(1, SIZE, 2)])]
    own = list(range(RANK % 2, SIZE, 2))
    layer = flow.nn.Linear(3, 2, bias=False)
    flow.nn.init.constant_(layer.weight, 0.5)
    x = np.arange(3, dtype=np.float32) + 1
    model = DistributedDataParallel(layer, process_group=halves[RANK % 2])
    model(flow.tensor(x * (RANK + 1))).sum().backward()
    mean = sum(r + 1 for r in own) / len(own)
    np.testing.assert_allclose(layer.weight.grad.numpy(), np.stack([x * mean] * 2), rtol=1e-6)
    everyone = sum(r + 1 for r in range(SIZE)) / SIZE
    for hook, rtol in (
        (default_hooks.allreduce_hook, 1e-6),
        (default_hooks.fp16_compress_hook, 1e-3),
        (default_hooks.bf16_compress_hook, 1e-2),
        (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), 1e-3),
    ):
        layer.weight.grad = None
        model = DistributedDataParallel(layer)
        model.register_comm_hook(None, hook)
        model(flow.tensor(x * (RANK + 1))).sum().backward()
        expected = np.stack([x * everyone] * 2)
        np.testing.assert_allclose(layer.weight.grad.numpy(), expected, rtol=rtol)
    seen: list[object] = []

    def doubles(state: list[object], bucket: Any) -> Any:
        state.append((bucket.index(), bucket.is_last(), bucket.gradients()[0].tolist()))
        found: Any = Future()
        found.set_result(bucket.buffer() * 2)
        return found

    layer.weight.grad = None
    model = DistributedDataParallel(layer)
    model.register_comm_hook(seen, doubles)
    model(flow.tensor(x)).sum().backward()
    assert seen == [(0, True, [x.tolist()] * 2)]
    assert layer.weight.grad.tolist() == [(2 * x).tolist()] * 2


if __name__ == "__main__":
    play([globals()[name] for name in sys.argv[1:]])
