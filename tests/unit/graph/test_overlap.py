"""Gradients are reduced in buckets, each as soon as its last gradient is there."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.core.actor_kinds import ActorKind
from oneflow.core.dtype import float32
from oneflow.core.errors import ConfigError
from oneflow.core.graph import LogicalGraph
from oneflow.core.placement import Placement
from oneflow.core.plan import ActorSpec
from oneflow.core.sbp import BROADCAST as B
from oneflow.core.sbp import Split
from oneflow.core.tensor_type import TensorType
from oneflow.scheduler.compiler.rewrite.zero import Ahead

from .spread import Spread, placed

S0 = Split(0)
PLACE = Placement("cpu", [0])
DEPTH, WIDTH, ROWS = 6, 32, 8
LAYER = 4 * WIDTH * WIDTH
REDUCES = {ActorKind.FLAT_REDUCE, ActorKind.FLAT_REDUCE_SCATTER}


class Stack(nn.Graph):
    """bucket: layers in one; 0: all of them at the end.  stage: of ZeRO; 0: none."""

    def __init__(self, bucket: int, stage: int = 0) -> None:
        super().__init__()
        data = np.random.default_rng(2)
        shape = (DEPTH, WIDTH, WIDTH)
        arrays = data.standard_normal(shape).astype(np.float32) / 4.0
        self.weights = nn.ParameterList([nn.Parameter(placed(w, (B,))) for w in arrays])
        self.add_optimizer(flow.optim.SGD(self.weights.parameters(), lr=0.1))
        self.config.enable_overlap(bucket > 0, bucket_nbytes=max(bucket * LAYER, 1))
        self.config.enable_zero(stage > 0, stage=stage or 1, shard_min_size=1)

    def build(self, x: Any) -> Any:
        for weight in self.weights:
            x = F.linear(x, weight).tanh()
        loss = x.square().mean()
        loss.backward()
        return loss


def spread(bucket: int, seed: int | None = None, stage: int = 0) -> Spread:
    batch = placed(np.ones((ROWS, WIDTH), np.float32), (S0,))
    return Spread(Stack(bucket, stage), batch, (2,), seed)


def reduces(graph: Spread) -> list[ActorSpec]:
    return [actor for actor in graph.plan.actors if actor.kind in REDUCES]


@pytest.mark.parametrize("bucket", [0, 1, 2, 4])
def test_a_bucket_is_reduced_while_the_next_is_computed(bucket: int) -> None:
    found = reduces(spread(bucket))
    wanted = [bucket] * (DEPTH // bucket) if bucket else [DEPTH]
    wanted += [DEPTH % bucket] if bucket and DEPTH % bucket else []
    assert [len(actor.nodes) for actor in found] == wanted
    for first, second in pairwise(found):
        (source,) = [r.producer for r in second.inputs if r.values]
        assert source.kind is ActorKind.SEGMENT
        assert first.level <= source.level  # neither waits for the other
        assert not any(r.producer is first for r in source.inputs)


def segments_of_gathers(graph: Spread) -> list[tuple[int, int]]:
    """The gathers of stage 3, by when they are done: the segment that sends each and the one that
    reads it, by their number among the segments that read one; -1: before all of them.
    """
    gathers = [
        actor
        for actor in graph.plan.actors
        if actor.kind is ActorKind.BOXING and actor.nodes[0].inputs[0].node.op == "depend"
    ]
    readers = [r.id for a in gathers for out in a.outputs for r in out.consumers]
    number = {actor: i for i, actor in enumerate(readers)}
    assert len(number) == len(readers) == len(gathers)  # one each
    sources = [r.producer.id for a in gathers for r in a.inputs if r.values]
    return [(number.get(a, -1), number[b]) for a, b in zip(sources, readers, strict=True)]


@pytest.mark.parametrize("bucket", [1, 4])
def test_parameters_are_sent_two_ops_ahead(bucket: int) -> None:
    """Forward, and back to the second layer, whose input needs a gradient."""
    found = segments_of_gathers(spread(bucket, stage=3))
    assert found == [(max(i - 3, -1), i) for i in range(2 * DEPTH - 1)]


def test_small_parameters_do_not_shorten_the_way_ahead() -> None:
    """Ops of a transformer with the bytes of their parameters: each is gathered from the input of
    the op two before on, or of one before that if no more than twice its bytes lie between."""
    ops = ["up 9", "down 9", "norm 1", "qkv 7", "out 2", "norm' 1", "up' 9", "down' 9"]
    ahead, inputs, found = Ahead(), LogicalGraph("g", 1), {}
    for name, nbytes in (op.split() for op in ops):
        node = inputs.append("input", [], [TensorType((1,), float32)], PLACE, {"name": name})
        (after,) = ahead.start(node.outputs, int(nbytes))
        found[name] = after.node.attrs["name"]
    assert list(found.values()) == ["up", "up", "up", "down", "norm", "qkv", "qkv", "out"]


def test_without_overlap_each_op_asks_for_its_own() -> None:
    found = segments_of_gathers(spread(0, stage=3))
    assert found == [(i - 1, i) for i in range(2 * DEPTH - 1)]


def test_buckets_change_no_value(rng: np.random.Generator) -> None:
    x = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    whole = spread(0)
    wanted = [whole(x) for _ in range(3)]
    for bucket, seed, stage in ((1, None, 0), (1, 5, 0), (2, 6, 0), (0, 7, 3), (1, 8, 3)):
        graph = spread(bucket, seed, stage)
        np.testing.assert_allclose([graph(x) for _ in range(3)], wanted, rtol=1e-6)


@pytest.mark.parametrize("nbytes", [0, -1, 1.5])
def test_a_bucket_has_room(nbytes: Any) -> None:
    with pytest.raises(ConfigError, match=f"bucket_nbytes must be an integer >= 1, got {nbytes}"):
        Stack(1).config.enable_overlap(bucket_nbytes=nbytes)
