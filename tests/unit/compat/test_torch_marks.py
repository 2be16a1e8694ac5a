"""Names that libraries written for PyTorch touch while they are imported and while models load."""

from __future__ import annotations

import importlib
import sys
import typing
from collections import OrderedDict, defaultdict, deque, namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.errors import OneFlowError


def test_marks_for_compilers_leave_functions_as_they_are() -> None:
    compiler, fx = (importlib.import_module(f"oneflow.{m}") for m in ("compiler", "fx"))
    annotations = importlib.import_module("oneflow.jit.annotations")

    def double(x: int) -> int:
        return 2 * x

    assert fx.wrap(double) is double
    assert compiler.disable(double) is double
    assert compiler.disable(recursive=False)(double) is double
    assert flow.jit._overload_method(double) is double
    assert not compiler.is_compiling()
    assert annotations.BroadcastingList2[int] == list[int]
    with pytest.raises(OneFlowError, match="no tracer"):
        fx.symbolic_trace(double)


def test_packages_hear_that_they_are_traced() -> None:
    """They leave out checks of values that do not exist in a graph."""

    class Checked(flow.nn.Graph):
        def build(self, x: flow.Tensor) -> flow.Tensor:
            asked.append([ask() for ask in questions])
            if not flow.compiler.is_compiling() and (x < 0).any():
                raise ValueError("negative")
            return x * 2

    asked: list[list[bool]] = []
    questions = (flow.compiler.is_compiling, flow._dynamo.is_compiling, flow.jit.is_tracing)
    assert Checked()(flow.ones(2)).tolist() == [2, 2]
    assert asked == [[True] * 3] and not any(ask() for ask in questions)


def test_trees_match_pytorchs() -> None:
    ours, theirs = (importlib.import_module(f"{m}.utils._pytree") for m in ("oneflow", "torch"))
    point = namedtuple("point", "x y")
    tree = {"a": [1, (2, None)], "b": point(3, {"c": 4}), "d": ()}
    leaves, spec = ours.tree_flatten(tree)
    assert leaves == theirs.tree_flatten(tree)[0] == ours.tree_leaves(tree)
    assert ours.tree_unflatten(leaves, spec) == tree
    expected = theirs.tree_map(lambda v: v and v + 1, tree)
    assert ours.tree_map(lambda v: v and v + 1, tree) == expected
    assert ours.tree_map_only(int, str, tree) == theirs.tree_map_only(int, str, tree)
    with pytest.raises(ValueError, match="2 leaves for 5 places"):
        ours.tree_unflatten([1, 2], spec)


def test_trees_are_flattened_up_to_a_shape() -> None:
    """Rests of tree_map may be deeper than the first tree, and their dicts in another order."""
    first = {"a": [1, 2], "b": (3,)}
    deeper = {"b": ({"c": 4},), "a": [(5, 6), None]}
    bad: list[tuple[object, object]] = [
        ([1, 2], (1, 2)), ([1, 2], [1]), ({"a": 1}, {"b": 1}), ({"a": 1}, 5),
        (deque([1]), [1]), (namedtuple("p", "x")(1), namedtuple("q", "x")(1)),
    ]  # fmt: skip
    found = []
    for name in ("oneflow", "torch"):
        pytree = importlib.import_module(f"{name}.utils._pytree")
        spec = pytree.tree_structure(first)
        made: list[object] = [
            pytree.tree_map(lambda *row: row, first, deeper),
            spec.flatten_up_to(deeper),
            pytree.tree_structure(OrderedDict(x=1)).flatten_up_to(defaultdict(int, x=[2])),
            pytree.tree_map_with_path(lambda path, *row: row, [1], [[2]]),
        ]
        for tree, rest in bad:
            with pytest.raises(ValueError, match="mismatch"):
                pytree.tree_structure(tree).flatten_up_to(rest)
        found.append(made)
    assert found[0] == found[1]


def test_registered_class_is_taken_apart() -> None:
    pytree = importlib.import_module("oneflow.utils._pytree")

    class Pair:
        def __init__(self, a: object, b: object) -> None:
            self.parts = [a, b]

    pytree.register_pytree_node(
        Pair, lambda p: (p.parts, "kept"), lambda parts, _: Pair(*parts), serialized_type_name="P"
    )
    doubled = pytree.tree_map(lambda v: 2 * v, {"p": Pair(1, [2])})
    assert doubled["p"].parts == [2, [4]]


def test_assert_raises_its_message() -> None:
    flow._assert(True, "never")
    with pytest.raises(AssertionError, match="sizes differ"):
        flow._assert(flow.tensor(1) == flow.tensor(2), "sizes differ")


def test_tensor_types_stand_in_annotations() -> None:
    assert typing.get_args(flow.LongTensor | None) == (flow.LongTensor, type(None))
    assert typing.get_args(None | flow.FloatTensor) == (type(None), flow.FloatTensor)


def test_version_names_no_toolkit_that_is_not_there() -> None:
    assert flow.version.__version__ == flow.__version__
    assert flow.version.hip is None


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_rounds_as_pytorch(name: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal(64).astype(np.float32) * 20
    ours, theirs = getattr(flow, name), getattr(torch, name)
    found = flow.tensor(x).to(ours)
    expected = torch.tensor(x).to(theirs)
    np.testing.assert_array_equal(found.float().numpy(), expected.float().numpy())
    assert found.view(flow.uint8).tolist() == expected.view(torch.uint8).tolist()
    assert flow.finfo(ours).max == torch.finfo(theirs).max
    assert ours.is_floating_point


def test_view_as_another_dtype_shares_bytes(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 4)).astype(np.float32)
    ours, theirs = flow.tensor(x), torch.tensor(x)
    for dtype in ("int32", "int16", "float64", "uint8"):
        expected = theirs.view(getattr(torch, dtype)).numpy()
        np.testing.assert_array_equal(ours.view(getattr(flow, dtype)).numpy(), expected)
    ours.view(dtype=flow.int32)[0, 0] = 0
    assert ours[0, 0].item() == 0.0
    with pytest.raises(OneFlowError, match="cannot be read so"):
        flow.ones(3).view(flow.float64)


def test_storage_of_a_file_becomes_tensors(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal(6).astype(np.float32)
    (tmp_path / "bytes").write_bytes(b"head" + x.tobytes())
    storage = flow.UntypedStorage.from_file(str(tmp_path / "bytes"), shared=False, nbytes=28)
    assert (len(storage), storage[0]) == (28, ord("h"))
    found = flow.asarray(storage[4:28], dtype=flow.uint8).view(dtype=flow.float32)
    np.testing.assert_array_equal(found.numpy(), x)
    found.zero_()
    assert (tmp_path / "bytes").read_bytes()[4:] == x.tobytes()


def test_views_have_the_storage_of_their_whole() -> None:
    x = flow.arange(6).float()
    assert x[2:].untyped_storage().data_ptr() == x.untyped_storage().data_ptr() == x.data_ptr()
    assert x[2:].untyped_storage().nbytes() == 24
    large, small = (sys.getsizeof(flow.zeros(n).untyped_storage()) for n in (100, 0))
    assert large - small == 400  # the bytes are its own, as in PyTorch


def test_asarray_shares_or_copies() -> None:
    array = np.zeros(2, np.float32)
    shared, copied = flow.asarray(array), flow.asarray(array, copy=True)
    array[0] = 1
    assert (shared[0].item(), copied[0].item()) == (1.0, 0.0)
    assert flow.asarray([1, 2], dtype=flow.float32, requires_grad=True).requires_grad


@pytest.mark.parametrize("persistent", [True, False])
def test_buffer_joins_a_modules_buffers(persistent: bool) -> None:
    def module_of(library: object) -> object:
        nn = library.nn  # type: ignore[attr-defined]

        class WithBuffer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.mean = nn.Buffer(library.zeros(2), persistent=persistent)  # type: ignore

        return WithBuffer()

    ours, theirs = module_of(flow), module_of(torch)
    for module in (ours, theirs):
        assert [n for n, _ in module.named_buffers()] == ["mean"]
        assert ("mean" in module.state_dict()) is persistent
        assert not list(module.parameters())


def test_parameter_with_two_names_comes_under_both() -> None:
    def names(library: object) -> list[str]:
        nn = library.nn  # type: ignore[attr-defined]
        layer = nn.Linear(2, 2)
        layer.twin = layer.weight
        whole = nn.Sequential(layer, layer)
        return [n for n, _ in whole.named_parameters(remove_duplicate=False)]

    assert names(flow) == names(torch)


def test_attention_with_fewer_heads_of_keys(rng: np.random.Generator) -> None:
    shapes = [(2, 4, 3, 5), (2, 2, 3, 5), (2, 2, 3, 5)]
    values = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    for causal in (False, True):
        found, expected = (
            library.nn.functional.scaled_dot_product_attention(
                *(library.tensor(v) for v in values), is_causal=causal, enable_gqa=True
            )
            for library in (flow, torch)
        )
        np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-6)


@pytest.mark.parametrize("rows, columns", [(3, 5), (5, 3), (1, 6)])
def test_causal_attention_of_unequal_lengths_begins_at_one_position(
    rows: int, columns: int, rng: np.random.Generator
) -> None:
    shapes = [(2, rows, 4), (2, columns, 4), (2, columns, 3)]
    values = [rng.standard_normal(shape) for shape in shapes]
    found: list[list[np.ndarray]] = []
    for library in (flow, torch):
        given = [library.tensor(v, requires_grad=True) for v in values]
        out = library.nn.functional.scaled_dot_product_attention(*given, is_causal=True)
        out.sum().backward()
        found.append([x.detach().numpy() for x in (out, *(g.grad for g in given))])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_expand_that_repeats_nothing_can_be_written() -> None:
    x = flow.arange(3)
    row = flow.nn.Buffer(x.expand((1, -1)))
    row.copy_(flow.tensor([[5, 6, 7]]))
    assert x.tolist() == [5, 6, 7]


def test_meta_tensors_have_types_only() -> None:
    with flow.device("meta"):
        x = flow.ones(3, 4)
        layer = flow.nn.Linear(4, 5)
    assert x.device == flow.device("meta")
    assert x.device.type == "meta"
    out = layer(x).relu()[:, 1:]
    assert (out.device.type, tuple(out.shape), out.dtype) == ("meta", (3, 4), flow.float32)
    out += 1
    assert flow.ones(1).device.type == "cpu"
    assert flow.get_default_device() == flow.device("cpu")
    for use in (out.numpy, lambda: out.to("cpu"), out.sum().item):
        with pytest.raises(OneFlowError, match="no data"):
            use()
    assert "size=(3, 4)" in repr(out)
