"""Keywords and forms of arguments of either library, and tensors without dims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
import oneflow.nn.functional as F

X = np.arange(24.0).reshape(2, 3, 4)


def same(ours: Any, theirs: Any) -> None:
    assert tuple(ours.shape) == tuple(theirs.shape)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("flip", {"dims": (0, 2)}),
        ("permute", {"dims": (2, 0, 1)}),
        ("tile", {"dims": (2, 1, 2)}),
        ("reshape", {"shape": (4, 6)}),
        ("broadcast_to", {"size": (5, 2, 3, 4)}),
        ("roll", {"shifts": 1, "dims": 1}),
        ("squeeze", {"dim": ()}),
        ("round", {"decimals": 1}),
        ("argsort", {"dim": 0, "descending": True, "stable": True}),
    ],
)
def test_functions_take_pytorchs_keywords(name: str, keywords: dict[str, Any]) -> None:
    same(
        getattr(flow, name)(flow.tensor(X), **keywords),
        getattr(torch, name)(torch.tensor(X), **keywords),
    )


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("view", {"shape": (4, 6)}),
        ("reshape", {"shape": (-1,)}),
        ("expand", {"shape": (2, 2, 3, 4)}),
        ("broadcast_to", {"shape": (2, 2, 3, 4)}),
        ("repeat", {"sizes": (2, 1, 1)}),
    ],
)
def test_methods_take_oneflows_keywords(name: str, keywords: dict[str, Any]) -> None:
    (sizes,) = keywords.values()
    x = flow.tensor(X)
    same(getattr(x, name)(**keywords), getattr(x, name)(*sizes))
    with pytest.raises(TypeError, match="more than once"):
        getattr(x, name)(1, **keywords)


@pytest.mark.parametrize("name", ["sort", "mode", "median", "topk", "kthvalue"])
def test_tensors_without_dims_are_sorted(name: str) -> None:
    args = {"topk": (1,), "kthvalue": (1,)}.get(name, ())
    if name == "median":
        args = (0,)
    ours = getattr(flow.tensor(2.5), name)(*args)
    assert ours[0].shape == ours[1].shape == () and ours[0].item() == 2.5 and ours[1].item() == 0


def test_median_of_nan_is_nan() -> None:
    x = np.array([[1.0, np.nan, 2.0], [3.0, 1.0, 2.0]])
    for dim in (None, 1):
        ours, theirs = flow.median(flow.tensor(x), dim), None
        theirs = torch.tensor(x).median() if dim is None else torch.tensor(x).median(dim)
        if dim is None:
            same(ours, theirs)
        else:
            for a, b in zip(ours, theirs, strict=True):
                same(a, b)


def test_slices_that_are_different() -> None:
    x = np.array([[1, 2], [3, 4], [1, 2], [3, 5]])
    ours = flow.unique(flow.tensor(x), return_inverse=True, return_counts=True, dim=0)
    theirs = torch.unique(torch.tensor(x), return_inverse=True, return_counts=True, dim=0)
    for a, b in zip(ours, theirs, strict=True):
        same(a, b)


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_with_side_and_sorter(side: str) -> None:
    row, values = np.array([3.0, 1.0, 2.0]), np.array([0.5, 1.0, 2.5, 3.0])
    order = row.argsort()
    same(
        flow.searchsorted(
            flow.tensor(row), flow.tensor(values), side=side, sorter=flow.tensor(order)
        ),
        torch.searchsorted(
            torch.tensor(row), torch.tensor(values), side=side, sorter=torch.tensor(order)
        ),
    )


@pytest.mark.parametrize("mode", ["replicate", "reflect", "circular"])
def test_negative_pads_cut_off_in_every_mode(mode: str) -> None:
    for pads in ((-1, 2), (2, -1), (-1, -1)):
        same(
            F.pad(flow.tensor(X), pads, mode),
            torch.nn.functional.pad(torch.tensor(X), pads, mode),
        )


def test_complex_tensors_are_padded_with_fractions() -> None:
    x = (X + 2j * X).astype(np.complex64)
    same(
        F.pad(flow.tensor(x), (1, 2), value=1.5),
        torch.nn.functional.pad(torch.tensor(x), (1, 2), value=1.5),
    )


def test_scatter_and_select_without_dims() -> None:
    x = flow.tensor(2.0)
    index = flow.tensor(0)
    assert x.index_select(0, index).shape == () and x.index_add(0, index, x).item() == 4.0
    assert x.scatter_add(0, index, flow.tensor(1.0)).item() == 3.0


@pytest.mark.parametrize("mode", ["nearest-exact", "bicubic", "area", "bilinear", "nearest"])
@pytest.mark.parametrize("size", [{"size": (5, 3)}, {"scale_factor": 1.7}, {"scale_factor": 0.6}])
def test_images_are_resized_as_pytorch_does(mode: str, size: dict[str, Any]) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 6))
    same(
        F.interpolate(flow.tensor(x), mode=mode, **size),
        torch.nn.functional.interpolate(torch.tensor(x), mode=mode, **size),
    )


def test_instance_norm_keeps_and_uses_running_averages() -> None:
    x = np.random.default_rng(0).normal(2.0, 3.0, size=(4, 3, 5))
    ours = flow.nn.InstanceNorm1d(3, affine=True, track_running_stats=True).to(flow.float64)
    theirs = torch.nn.InstanceNorm1d(3, affine=True, track_running_stats=True).double()
    for training in (True, True, False):
        ours.train(training), theirs.train(training)
        same(ours(flow.tensor(x)).detach(), theirs(torch.tensor(x)).detach())
    same(ours.running_var, theirs.running_var)


def test_integers_are_convolved_and_pooled() -> None:
    x, w = np.arange(24).reshape(1, 2, 12) - 7, np.arange(12).reshape(3, 2, 2)
    same(F.conv1d(flow.tensor(x), flow.tensor(w)), torch.conv1d(torch.tensor(x), torch.tensor(w)))
    same(F.avg_pool1d(flow.tensor(x), 3), torch.nn.functional.avg_pool1d(torch.tensor(x), 3))
    same(2 ** flow.tensor([-1, 0, 3]), torch.tensor([0, 1, 8]))


def test_empty_tensors_that_cat_leaves_out_have_gradient_zeros() -> None:
    x, empty = flow.ones(2, 3, requires_grad=True), flow.zeros(0, requires_grad=True)
    flow.cat([x, empty]).sum().backward()
    assert empty.grad is not None and empty.grad.shape == (0,)


MATRIX = np.array([[2.0, 1.0], [1.0, 3.0]])


@pytest.mark.parametrize(
    ("name", "tensors", "others"),
    [
        *((name, "input", {}) for name in ("det", "inverse", "matrix_exp", "pinverse")),
        ("cholesky_inverse", "input", {}),
        ("cholesky_solve", "input input2", {}),
        ("lerp", "input end", {"weight": 0.5}),
        ("matrix_power", "input", {"n": 3}),
        ("searchsorted", "sorted_sequence input", {}),
        ("softmax", "input", {"dim": 1}),
        ("slogdet", "input", {}),
        ("split", "tensor", {"split_size_or_sections": 1}),
        ("swapaxes", "input", {"axis0": 0, "axis1": 1}),
        ("where", "input other", {"condition": None}),
    ],
)
def test_tensors_are_named_as_in_pytorch(name: str, tensors: str, others: dict[str, Any]) -> None:
    found = []
    for library in (flow, torch):
        given = {one: library.tensor(MATRIX) + 0.1 * i for i, one in enumerate(tensors.split())}
        given |= {k: library.tensor(MATRIX) > 1.5 if v is None else v for k, v in others.items()}
        result = getattr(library, name)(**given)
        found.append(list(result) if isinstance(result, tuple) else [result])
    for ours, theirs in zip(*found, strict=True):
        same(ours, theirs)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin"])
def test_the_level_of_a_warning_changes_nothing(name: str) -> None:
    same(
        getattr(F, name)(flow.tensor(MATRIX), dim=0, _stacklevel=5),
        getattr(torch.nn.functional, name)(torch.tensor(MATRIX), dim=0, _stacklevel=5),
    )


OLD = [{"size_average": False}, {"reduce": False}, {"size_average": True, "reduce": True}]
LOSSES = {
    "mse_loss": "MSELoss",
    "l1_loss": "L1Loss",
    "smooth_l1_loss": "SmoothL1Loss",
    "kl_div": "KLDivLoss",
    "binary_cross_entropy": "BCELoss",
    "binary_cross_entropy_with_logits": "BCEWithLogitsLoss",
    "soft_margin_loss": "SoftMarginLoss",
    "cross_entropy": "CrossEntropyLoss",
    "nll_loss": "NLLLoss",
    "margin_ranking_loss": "MarginRankingLoss",
    "hinge_embedding_loss": "HingeEmbeddingLoss",
    "cosine_embedding_loss": "CosineEmbeddingLoss",
    "multi_margin_loss": "MultiMarginLoss",
    "multilabel_margin_loss": "MultiLabelMarginLoss",
    "multilabel_soft_margin_loss": "MultiLabelSoftMarginLoss",
    "triplet_margin_loss": "TripletMarginLoss",
    "poisson_nll_loss": "PoissonNLLLoss",
}


def operands(name: str, library: Any) -> list[Any]:
    x = np.linspace(0.1, 0.9, 6).reshape(2, 3)
    if name in ("cross_entropy", "nll_loss", "multi_margin_loss"):
        return [library.tensor(x), library.tensor([0, 2])]
    if name == "multilabel_margin_loss":
        return [library.tensor(x), library.tensor([[0, 2, -1], [1, -1, -1]])]
    if name in ("margin_ranking_loss", "cosine_embedding_loss", "triplet_margin_loss"):
        signs = library.tensor([1.0, -1.0])
        last = library.tensor(x * 0.5) if name.startswith("triplet") else signs
        rows = [library.tensor(x), library.tensor(x[::-1].copy())]
        return [*([r[:, 0] for r in rows] if name.startswith("margin") else rows), last]
    return [library.tensor(x), library.tensor(x[::-1].copy())]


def test_old_names_of_reductions_are_taken_by_position() -> None:
    x = np.linspace(0.1, 0.9, 6).reshape(2, 3)
    found = []
    for library in (flow, torch):
        given, labels = library.tensor(x), library.tensor([0, 2])
        loss = library.nn.functional
        with pytest.warns(UserWarning, match="reduction='sum'"):
            found.append(loss.multi_margin_loss(given, labels, 1, 1.0, None, False))
        with pytest.warns(UserWarning, match="reduction='none'"):
            found.append(
                library.nn.TripletMarginLoss(1.0, 2.0, 1e-6, False, None, False)(*[given] * 3)
            )
    same(found[0], found[2])
    same(found[1], found[3])


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss:UserWarning")
@pytest.mark.parametrize("old", OLD, ids=["sum", "none", "mean"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_take_pytorchs_old_names_of_reductions(name: str, old: dict[str, bool]) -> None:
    found = []
    for library in (flow, torch):
        with pytest.warns(UserWarning, match="please use reduction="):
            found.append(getattr(library.nn.functional, name)(*operands(name, library), **old))
        with pytest.warns(UserWarning, match="please use reduction="):
            found.append(getattr(library.nn, LOSSES[name])(**old)(*operands(name, library)))
    ours, our_layers, theirs, their_layers = found
    same(ours, theirs)
    same(our_layers, their_layers)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "huber_loss"])
def test_losses_take_weights_of_elements(name: str, reduction: str) -> None:
    weights, found = np.linspace(0.5, 2.0, 4).reshape(2, 2), []
    for library in (flow, torch):
        x = library.tensor(MATRIX)
        options = {"reduction": reduction, "weight": library.tensor(weights)}
        found.append(getattr(library.nn.functional, name)(x, x * 0.3, **options))
    same(*found)
    with pytest.raises(ValueError, match="same size"):
        F.mse_loss(flow.ones(2, 3), flow.ones(2, 3), weight=flow.ones(3))


def test_layers_and_modules_take_pytorchs_keywords() -> None:
    found = []
    for library in (flow, torch):
        shared = library.nn.Linear(1, 1)
        model = library.nn.Sequential(shared, shared)
        up = library.nn.Upsample(
            scale_factor=1.6, mode="bilinear", align_corners=False, recompute_scale_factor=True
        )
        found.append(
            [
                len(list(model.modules())),
                len(list(model.modules(remove_duplicate=False))),
                len(library.nn.ParameterList(values=[library.ones(1), library.ones(2)])),
                [tuple(part.shape) for part in library.ones(5).split(split_size=2)],
                np.round(up(library.tensor(X)[None]).numpy(), 9).tolist(),
            ]
        )
    assert found[0] == found[1]
