"""Settings and inner names of PyTorch that packages take."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import _utils as utils
from oneflow.core.errors import CallError, DTypeError, ShapeError
from oneflow.distributed.elastic.multiprocessing.errors import record
from oneflow.nn import init

A = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def test_functions_make_tensors_on_the_default_device() -> None:
    assert flow.get_default_device() == flow.device("cpu")
    flow.set_default_device("meta")
    try:
        assert flow.ones(2).is_meta
        assert flow.nn.Linear(2, 3).weight.is_meta
        assert flow.get_default_device().type == "meta"
        with flow.device("cpu"):
            assert not flow.ones(2).is_meta
    finally:
        flow.set_default_device(None)
    assert not flow.ones(2).is_meta


@pytest.mark.parametrize("name", ["constant", "eye", "dirac"])
def test_old_names_of_first_values_warn(name: str) -> None:
    shape = (4, 4, 3) if name == "dirac" else (3, 4)
    args = (2.5,) if name == "constant" else ()
    x = flow.zeros(*shape)
    with pytest.warns(FutureWarning, match=f"{name}_"):
        getattr(init, name)(x, *args)
    expected = getattr(torch.nn.init, f"{name}_")(torch.zeros(shape), *args)
    assert x.tolist() == expected.tolist()


def test_sparse_first_values_have_zeros_in_each_column() -> None:
    x = init.sparse_(flow.zeros(10, 6), sparsity=0.25, std=2.0)
    counts = (x.numpy() == 0).sum(0)
    theirs = torch.nn.init.sparse_(torch.zeros(10, 6), sparsity=0.25, std=2.0)
    assert counts.tolist() == (theirs.numpy() == 0).sum(0).tolist() == [3] * 6
    with pytest.raises(ShapeError, match="takes a matrix"):
        init.sparse_(flow.zeros(3), 0.1)


def test_tensors_are_joined_and_cut_again() -> None:
    parts = [flow.tensor(A), flow.tensor(A[0])]
    flat = utils._flatten_dense_tensors(parts)
    inner = torch._utils
    theirs = inner._flatten_dense_tensors([torch.tensor(A), torch.tensor(A[0])])  # type: ignore[no-untyped-call]
    assert flat.tolist() == theirs.tolist()
    again = utils._unflatten_dense_tensors(flat, parts)
    assert [x.tolist() for x in again] == [A.tolist(), A[0].tolist()]
    assert utils._element_size(flow.float64) == 8
    assert utils._get_device_index("cpu", allow_cpu=True) == -1


def test_record_returns_the_function() -> None:
    @record
    def double(x: int) -> int:
        return 2 * x

    assert double(3) == 6


def test_policies_of_checkpoints_change_no_value() -> None:
    checkpoints = flow.utils.checkpoint

    def policy(ctx: object, op: object, *_: object) -> object:
        return checkpoints.CheckpointPolicy.MUST_SAVE

    x = flow.tensor(A, requires_grad=True)
    with pytest.warns(UserWarning, match="run again as a whole"):
        contexts = checkpoints.create_selective_checkpoint_contexts(policy)
    y = checkpoints.checkpoint(
        lambda v: v.exp().sin(), x, use_reentrant=False, context_fn=lambda: contexts
    )
    y.sum().backward()
    v = A.astype(np.float64)
    np.testing.assert_allclose(x.grad.numpy(), np.cos(np.exp(v)) * np.exp(v), rtol=1e-4)
    (cut,) = checkpoints.detach_variable((y,))
    assert cut.requires_grad and cut.is_leaf


def test_parts_are_named_and_products_of_bytes_are_whole() -> None:
    x = flow.tensor(A)
    for keyword in ("indices", "sections"):
        value = [1, 3] if keyword == "indices" else 2
        mine = flow.tensor_split(x, dim=1, **{keyword: value})
        theirs = torch.tensor_split(torch.tensor(A), dim=1, **{keyword: value})
        assert [y.tolist() for y in mine] == [y.tolist() for y in theirs]
    with pytest.raises(CallError, match="give one of"):
        flow.tensor_split(x, 2, indices=[1])
    a = np.random.default_rng(1).integers(-128, 128, (5, 300)).astype(np.int8)
    b = np.random.default_rng(2).integers(-128, 128, (300, 7)).astype(np.int8)
    found = flow._int_mm(flow.tensor(a), flow.tensor(b))
    assert found.dtype is flow.int32
    assert found.tolist() == (a.astype(np.int64) @ b.astype(np.int64)).tolist()
    with pytest.raises(DTypeError, match="int8"):
        flow._int_mm(x, x)


def test_methods_take_pytorchs_keywords() -> None:
    x = flow.zeros(3, 4)
    assert x.copy_(flow.tensor(A), non_blocking=True) is x
    assert x.copy_(flow.tensor(A), True).tolist() == A.tolist()
    assert x.cpu(memory_format=flow.preserve_format).tolist() == A.tolist()
    x.uniform_(**{"from": 2.0, "to": 3.0})
    assert (x.numpy() >= 2).all() and (x.numpy() < 3).all()
    y = flow.zeros(50, dtype=flow.int64).random_(**{"from": 4, "to": 6})
    assert set(y.tolist()) == {4, 5}
    out = flow.zeros(3, 4)
    assert flow.special.bessel_j0(flow.tensor(A), out=out) is out
    expected = torch.special.bessel_j0(torch.tensor(A, dtype=torch.float64))
    np.testing.assert_allclose(out.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_the_vector_product_of_linalg_is_along_the_last_dim() -> None:
    square = np.random.default_rng(3).standard_normal((2, 3, 3)).astype(np.float32)
    mine = flow.linalg.cross(*(flow.tensor(x) for x in square))
    theirs = torch.linalg.cross(*(torch.tensor(x) for x in square))
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-5)
