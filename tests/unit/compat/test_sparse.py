"""Sparse tensors beside PyTorch's."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import surfaces
from oneflow.compat.torch import subclasses
from oneflow.core.errors import OneFlowError, ShapeError

pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")

RNG = np.random.default_rng(0)
DENSE = RNG.standard_normal((4, 5)).astype("f") * (RNG.random((4, 5)) < 0.5)
RIGHT = RNG.standard_normal((5, 3)).astype("f")
PLACES = np.array([[0, 1, 1, 3, 1], [2, 0, 0, 4, 0]])
VALUES = RNG.standard_normal(5).astype("f")


@pytest.fixture(scope="module", autouse=True)
def _a_process_that_knew_no_subclass() -> Iterator[None]:
    """Takes back the changes of the first sparse tensor for all calls of the process."""
    modules = [sys.modules[name] for name in subclasses.SPACES.values() if name in sys.modules]
    before = [dict(vars(m)) for m in modules]
    yield
    subclasses._begun.clear()
    subclasses.answering.clear()
    surfaces.asking = None
    for module, names in zip(modules, before, strict=True):
        vars(module).update({k: v for k, v in names.items() if vars(module).get(k) is not v})
    for module in modules:
        for name in set(vars(module)) - set(before[modules.index(module)]):
            if hasattr(vars(module)[name], "__wrapped__"):
                del vars(module)[name]


def plain(x: Any) -> Any:
    """A value as arrays: of a sparse one its layout, size, and its dense form."""
    if isinstance(x, (list, tuple)):
        return [plain(one) for one in x]
    if isinstance(x, (flow.Tensor, torch.Tensor)):
        if x.layout not in (flow.strided, torch.strided):
            return [str(x.layout).rpartition(".")[2], tuple(x.shape), plain(x.to_dense())]
        return x.detach().numpy()
    return x


def same(a: Any, b: Any) -> None:
    if isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
    else:
        assert a == b


def coo(m: Any, **kwargs: Any) -> Any:
    return m.sparse_coo_tensor(m.tensor(PLACES), m.tensor(VALUES), (4, 5), **kwargs)


def other(m: Any) -> Any:
    return m.tensor(DENSE).to_sparse()


def csr(m: Any) -> Any:
    return other(m).to_sparse_csr()


def csc(m: Any) -> Any:
    return other(m).to_sparse_csc()


CASES: dict[str, Any] = {
    "dense": lambda m: coo(m).to_dense(),
    "coalesced": lambda m: [coo(m).coalesce().indices(), coo(m).coalesce().values()],
    "raw": lambda m: [coo(m)._indices(), coo(m)._values(), coo(m)._nnz(), coo(m).is_coalesced()],
    "from dense": lambda m: [other(m).indices(), other(m).values(), other(m).is_coalesced()],
    "hybrid": lambda m: [m.tensor(DENSE).to_sparse(1), m.tensor(DENSE).to_sparse(1).dense_dim()],
    "hybrid sum": lambda m: m.sparse.sum(m.tensor(DENSE).to_sparse(1), 1),
    "bool": lambda m: [m.tensor(DENSE > 0).to_sparse().indices(), m.tensor(DENSE > 0).to_sparse()],
    "csr": lambda m: [csr(m).crow_indices(), csr(m).col_indices()],
    "csc": lambda m: [csc(m).ccol_indices(), csc(m).row_indices()],
    "csr made": lambda m: m.sparse_csr_tensor([0, 1, 3], [1, 0, 2], [1.0, 2.0, 3.0], (2, 3)),
    "csc made": lambda m: m.sparse_csc_tensor([0, 1, 3], [1, 0, 2], [1.0, 2.0, 3.0], (3, 2)),
    "without size": lambda m: m.sparse_coo_tensor(m.tensor(PLACES), m.tensor(VALUES)),
    "from lists": lambda m: m.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, 4.0], (2, 3)),
    "empty": lambda m: m.sparse_coo_tensor(m.zeros(2, 0).long(), m.zeros(0), (2, 3)),
    "csr again": lambda m: csr(m).to_sparse(),
    "csc again": lambda m: csc(m).to_sparse_coo(),
    "csr to csc": lambda m: csr(m).to_sparse_csc(),
    "mm": lambda m: [m.mm(coo(m), m.tensor(RIGHT)), m.sparse.mm(other(m), m.tensor(RIGHT))],
    "operator": lambda m: [coo(m) @ m.tensor(RIGHT), csr(m) @ m.tensor(RIGHT)],
    "method": lambda m: [coo(m).mm(m.tensor(RIGHT)), coo(m).matmul(m.tensor(RIGHT))],
    "vector": lambda m: [coo(m) @ m.tensor(RIGHT[:, 0]), coo(m).mv(m.tensor(RIGHT[:, 0]))],
    "from the left": lambda m: m.tensor(RIGHT.T.copy()) @ coo(m).t(),
    "addmm": lambda m: m.sparse.addmm(m.ones(4, 3), coo(m), m.tensor(RIGHT), beta=0.5, alpha=2.0),
    "both sparse": lambda m: [coo(m) @ other(m).t(), m.sparse.mm(other(m), other(m).t())],
    "reduced": lambda m: [
        m.sparse.mm(csr(m), m.tensor(RIGHT), how) for how in ("mean", "amax", "amin")
    ],
    "transposed": lambda m: [coo(m).t(), coo(m).transpose(0, 1), csr(m).t()],
    "sum": lambda m: [coo(m).sum(), *(m.sparse.sum(coo(m), d) for d in (0, (1,), (0, 1)))],
    "scaled": lambda m: [coo(m) * 2, 3.0 * coo(m), coo(m) / 2, -coo(m), m.mul(coo(m), 2)],
    "csr scaled": lambda m: coo(m).to_sparse_csr() * 2,
    "added": lambda m: [coo(m) + other(m), coo(m) - other(m), m.add(coo(m), other(m), alpha=2.0)],
    "added to dense": lambda m: [m.ones(4, 5) + coo(m), m.add(m.ones(4, 5), coo(m))],
    "times": lambda m: [coo(m) * other(m), coo(m) * m.tensor(DENSE)],
    "functions": lambda m: [m.sqrt(coo(m).abs()), coo(m).sin(), coo(m).pow(2), m.relu(coo(m))],
    "softmax": lambda m: [m.sparse.softmax(coo(m), 1), m.sparse.log_softmax(coo(m), 0)],
    "picked": lambda m: coo(m).index_select(0, m.tensor([1, 3, 1])),
    "mask": lambda m: m.tensor(DENSE).sparse_mask(coo(m).coalesce()),
    "sampled": lambda m: m.sparse.sampled_addmm(
        csr(m), m.ones(4, 3), m.tensor(RIGHT.T.copy()), beta=0.5
    ),
    "diagonals": lambda m: m.sparse.spdiags(
        m.arange(9).reshape(3, 3), m.tensor([0, -1, 1]), (3, 3)
    ),
    "dtypes": lambda m: [coo(m).double(), coo(m).to(m.float64), coo(m).half().dtype == m.float16],
    "what it is": lambda m: [
        *(coo(m).is_sparse, coo(m).is_sparse_csr, csr(m).is_sparse_csr),
        *(tuple(coo(m).shape), coo(m).size(1), coo(m).dim(), coo(m).ndim, coo(m).numel()),
        *(coo(m).sparse_dim(), str(coo(m).device), isinstance(coo(m), m.Tensor), len(coo(m))),
        *(coo(m).layout == m.sparse_coo, coo(m).t().layout == m.sparse_coo, coo(m).is_cuda),
        *(m.is_tensor(coo(m)), m.ones(2).is_sparse, m.numel(coo(m)) if m is flow else 20),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_sparse_tensors_do_what_pytorchs_do(name: str) -> None:
    same(plain(CASES[name](torch)), plain(CASES[name](flow)))


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])  # PyTorch has no gradient of csc
def test_gradients_reach_values_and_dense_operands(layout: str) -> None:
    found = []
    for m in (torch, flow):
        values = m.tensor(VALUES, requires_grad=True)
        right = m.tensor(RIGHT, requires_grad=True)
        matrix = m.sparse_coo_tensor(m.tensor(PLACES), values, (4, 5))
        if layout != "coo" and (layout, m) != ("csc", torch):
            matrix = getattr(matrix.coalesce(), f"to_sparse_{layout}")()
        product = m.sparse.mm(matrix, right)
        (product * m.arange(12).reshape(4, 3)).sum().backward()
        found.append([right.grad, values.grad])
    same(plain(found[0]), plain(found[1]))


def test_leaves_keep_sparse_gradients() -> None:
    leaf = coo(flow, requires_grad=True)
    assert leaf.is_leaf and leaf.requires_grad and not leaf.detach().requires_grad
    (leaf @ flow.tensor(RIGHT)).sum().backward()
    assert leaf.grad.is_sparse
    np.testing.assert_allclose(leaf.grad._values().numpy(), RIGHT.sum(1)[PLACES[1]], rtol=1e-5)
    made = flow.tensor(DENSE, requires_grad=True)
    (made.to_sparse() * 3).to_dense().sum().backward()
    np.testing.assert_array_equal(made.grad.numpy(), 3.0 * (DENSE != 0))


def test_text_says_the_parts() -> None:
    for x in (flow.tensor([[0.0, 1.0], [2.0, 0.0]]).to_sparse(), flow.eye(2).to_sparse_csr()):
        text = repr(x)
        assert "size=(2, 2), nnz=2, layout=torch.sparse_c" in text and "values=tensor([" in text
    assert "crow_indices=" in text and "col_indices=" in text


def test_modules_keep_and_move_sparse_buffers() -> None:
    net = flow.nn.Linear(2, 2)
    net.register_buffer("adj", flow.eye(2).to_sparse(), persistent=False)
    buffer = net.adj
    net.double()
    assert net.adj is buffer and net.adj.dtype == flow.float64
    assert net.adj.to_dense().tolist() == [[1.0, 0.0], [0.0, 1.0]]
    twin = copy.deepcopy(net)
    assert twin.adj is not net.adj and twin.adj.is_sparse
    assert list(net.state_dict()) == ["weight", "bias"]


def test_checkpoints_hold_sparse_buffers(tmp_path: Path) -> None:
    nets = [flow.nn.Linear(2, 2) for _ in range(2)]
    for net, matrix in zip(nets, (flow.tensor([[0.0, 3.0], [4.0, 0.0]]), flow.eye(2)), strict=True):
        net.register_buffer("adj", matrix.to_sparse())
        net.register_buffer("rows", matrix.to_sparse_csr())
    flow.save(nets[0].state_dict(), tmp_path / "state")
    state = flow.load(tmp_path / "state")
    assert state["rows"].layout is flow.sparse_csr and state["adj"].is_coalesced()
    nets[1].load_state_dict(state)
    for name in ("adj", "rows"):
        assert getattr(nets[1], name).to_dense().tolist() == [[0.0, 3.0], [4.0, 0.0]]


def test_one_row_of_a_sparse_tensor() -> None:
    found = [m.tensor(DENSE).to_sparse()[-1] for m in (torch, flow)]
    same(plain(found[0]), plain(found[1]))
    with pytest.raises(IndexError, match="out of range"):
        coo(flow)[4]


def test_what_has_no_sparse_form_says_so() -> None:
    x = coo(flow)
    with pytest.raises(OneFlowError, match="to_dense"):
        flow.cumsum(x, 0)
    with pytest.raises(OneFlowError, match="to_dense"):
        x.sort()
    with pytest.raises(OneFlowError, match="to_dense"):
        x.numpy()
    with pytest.raises(OneFlowError, match="coalesce"):
        x.indices()
    with pytest.raises(OneFlowError, match="layout"):
        x.crow_indices()
    with pytest.raises(OneFlowError, match="dense one"):
        flow.ones(2).coalesce()
    with pytest.raises(ShapeError, match="outside of the size"):
        flow.sparse_coo_tensor([[0, 9]], [1.0, 2.0], (3,))
    with pytest.raises(ShapeError, match="columns"):
        x @ flow.ones(4, 2)
