"""Imports of clients from upstream's inner modules."""

from __future__ import annotations

import importlib
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

import oneflow as flow
from oneflow.compat.upstream import args_tree, inner, internal
from oneflow.compat.upstream.args_tree import ArgsTree

Point = namedtuple("Point", "x y")


def test_a_tree_is_mapped_leaf_by_leaf() -> None:
    tree = ([1, {"a": 2}], Point(3, None), {"b": (4,)})
    mapped = ArgsTree(tree).map_leaf(lambda leaf: None if leaf is None else leaf * 10)
    assert mapped == ([10, {"a": 20}], Point(30, None), {"b": (40,)})
    assert type(mapped[1]) is Point


@dataclass
class Output(OrderedDict[str, Any]):
    """Made as the outputs of diffusers are: a dict of its fields, too."""

    sample: Any
    rest: Any = None

    def __post_init__(self) -> None:
        self["sample"] = self.sample


def test_a_dataclass_is_a_container() -> None:
    mapped = ArgsTree((Output(3, [4]), None)).map_leaf(lambda leaf: leaf and leaf * 10)
    assert type(mapped[0]) is Output
    assert (mapped[0].sample, mapped[0].rest, mapped[0]["sample"]) == (30, [40], 30)
    assert list(ArgsTree(Output(3)).iter_nodes())[1:] == [3, None]


def test_nodes_have_names() -> None:
    tree = ArgsTree(([7], {"k": 8}), True, "g", "in")
    named = [(name, node.value()) for name, node in tree.iter_named_nodes() if node.is_leaf()]
    assert named == [("g.0.0_2", 7), ("g.1.0_k", 8)]
    assert tree.map_leaf(lambda node: node.value() + 1) == ([8], {"k": 9})
    with pytest.raises(ValueError, match="gen_name"):
        next(ArgsTree([1]).iter_named_nodes())


def test_nodes_come_before_their_members() -> None:
    assert list(ArgsTree([1, (2, 3)]).iter_nodes()) == [[1, (2, 3)], 1, (2, 3), 2, 3]
    assert ArgsTree((1, 2)).map_tuple_leaf(str) == ("1", "2")


def test_parts_differ_by_one_at_most() -> None:
    assert inner.BalancedPartNums(10, 4) == [3, 3, 2, 2]
    assert inner.BalancedRanges(10, 4) == [(0, 3), (3, 6), (6, 8), (8, 10)]


def test_orders_of_dims() -> None:
    perm = inner.get_perm_when_transpose_axis_to_last_dim(4, 1)
    assert perm == (0, 2, 3, 1)
    assert inner.get_inversed_perm(perm) == (0, 3, 1, 2)


def test_sizes_with_defaults() -> None:
    assert inner._list_with_default([None, 3], [9, 8, 7]) == [8, 3]
    assert inner._list_with_default(2, [8, 7]) == [2, 2]


def test_variables_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SWITCH", "Yes")
    assert inner.parse_boolean_from_env("SOME_SWITCH", False) is True
    monkeypatch.delenv("SOME_SWITCH")
    assert inner.parse_boolean_from_env("SOME_SWITCH", defalut_value=True) is True


def test_the_compiled_module_of_one_process() -> None:
    assert internal.cpu_broadcast(b"abc", 0) == b"abc"
    assert internal.GetCPUMemoryUsed() > 1
    assert internal.lazy_mode.is_enabled() is False
    internal.eager.Sync()
    internal.eager.multi_client.Sync()


def test_tests_that_begin_with_upstreams_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from oneflow.compat.upstream import testing

    @testing.skip_unless_1n2d()
    class NeedsTwo(testing.TestCase):
        pass

    @testing.skip_unless_1n1d()
    @testing.num_nodes_required(1)
    class NeedsOne(testing.TestCase):
        pass

    assert getattr(NeedsTwo, "__unittest_skip__", False)
    assert not getattr(NeedsOne, "__unittest_skip__", False)
    assert testing.world_size() == 1 and testing.node_size() == 1
    monkeypatch.setenv("ONEFLOW_TEST_DEVICE_NUM", "2")
    assert testing.device_num() == 2
    assert testing.env.eager_execution_enabled()
    assert testing.dataset_dir("imagenet") == "/dataset/imagenet"
    monkeypatch.setenv("ONEFLOW_TEST_DATASET_DIR", "/data")
    assert testing.dataset_dir("imagenet") == "/data/imagenet"


def test_probabilities_and_their_logarithms() -> None:
    from oneflow.distributions.utils import logits_to_probs, probs_to_logits

    p = flow.tensor([0.25, 0.75], dtype=flow.float64)
    assert logits_to_probs(probs_to_logits(p)).tolist() == pytest.approx([0.25, 0.75])
    assert probs_to_logits(p, is_binary=True).tolist() == pytest.approx([-1.0986123, 1.0986123])
    assert logits_to_probs(probs_to_logits(p, True), True).tolist() == pytest.approx([0.25, 0.75])


def test_proxies_of_containers_are_told_by_their_classes() -> None:
    proxies = importlib.import_module("oneflow.nn.graph.proxy")
    blocks = importlib.import_module("oneflow.nn.graph.graph_block")

    class Net(flow.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.row = flow.nn.Sequential(flow.nn.Linear(2, 2))
            self.modules_ = flow.nn.ModuleList([flow.nn.Linear(2, 2)])
            self.named = flow.nn.ModuleDict({"a": flow.nn.Linear(2, 2)})
            self.numbers = flow.nn.ParameterList([flow.nn.Parameter(flow.ones(2))])
            self.pairs = flow.nn.ParameterDict({"a": flow.nn.Parameter(flow.ones(2))})

    class Graph(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

    net: Any = Graph().net
    names = ("Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict")
    kinds = tuple([getattr(proxies, f"Proxy{name}") for name in names])
    parts = (net.row, net.modules_, net.named, net.numbers, net.pairs)
    for i, part in enumerate(parts):
        assert isinstance(part, proxies.ProxyModule) and isinstance(part, blocks.GraphBlock)
        assert [isinstance(part, kind) for kind in kinds] == [i == j for j in range(len(kinds))]
    assert not isinstance(net, kinds) and not isinstance(flow.nn.Sequential(), kinds)


def test_ranges_of_the_compiled_module() -> None:
    with flow.profiler.profile() as found:
        internal.profiler.RangePush("stage")
        flow.ones(2) + 1
        internal.profiler.RangePop()
    assert "stage" in found.key_averages().table()
    flow.env.init_rdma()
    assert not flow.env.rdma_is_initialized()
    flow.env.destory_rdma()


def test_clients_may_make_leaves_of_dataclasses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert args_tree._is_dataclass(Output(3)) and not args_tree._is_dataclass([3])
    monkeypatch.setattr(args_tree, "_is_dataclass", lambda value: False)
    found = args_tree.ArgsTree([Output(3), 4]).map_leaf(lambda leaf: type(leaf).__name__)
    assert found == ["Output", "int"]
