"""Layers find all they need in the attributes that PyTorch's layers have.

onediff gives our classes the attributes of a PyTorch layer, without our `__init__`.
"""

from __future__ import annotations

import typing
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from oneflow import nn
from oneflow.nn.parameter import Parameter
from oneflow.tensor.tensor import wrap

IMAGES, SERIES = (2, 4, 6, 6), (2, 4, 9)
LAYERS = {
    "Linear(4, 3)": (5, 4),
    "Bilinear(4, 4, 3)": (5, 4),
    "Conv1d(4, 6, 3, padding='same')": SERIES,
    "Conv2d(4, 6, 3, 2, 1, groups=2)": IMAGES,
    "Conv2d(4, 6, 3, padding=1, padding_mode='reflect')": IMAGES,
    "ConvTranspose2d(4, 6, 3, 2, output_padding=1)": IMAGES,
    "BatchNorm1d(4)": SERIES,
    "BatchNorm2d(4)": IMAGES,
    "InstanceNorm2d(4, affine=True)": IMAGES,
    "GroupNorm(2, 4)": IMAGES,
    "LayerNorm(6)": IMAGES,
    "RMSNorm(6, 1e-5)": IMAGES,
    "MaxPool2d(2, ceil_mode=True)": IMAGES,
    "AvgPool2d(3, 2, 1)": IMAGES,
    "AdaptiveAvgPool2d(3)": IMAGES,
    "Upsample(scale_factor=2, mode='nearest')": IMAGES,
    "PixelShuffle(2)": IMAGES,
    "ZeroPad2d(1)": IMAGES,
    "ReflectionPad2d(2)": IMAGES,
    "Flatten()": IMAGES,
    "Dropout(0.5)": IMAGES,
    "Identity()": IMAGES,
    "PReLU(4)": IMAGES,
    "Embedding(9, 5, padding_idx=2)": (3, 4),
    **dict.fromkeys(
        [
            *("ReLU()", "ReLU6()", "LeakyReLU(0.2)", "ELU(0.7)", "CELU(1.3)", "SELU()", "GELU()"),
            *("GELU('tanh')", "SiLU()", "Mish()", "Tanh()", "Sigmoid()", "LogSigmoid()"),
            *("Softplus(2.0)", "Softsign()", "Hardswish()", "Hardsigmoid()", "Hardtanh(-0.5, 0.7)"),
            *("Hardshrink(0.3)", "Softshrink(0.3)", "Threshold(0.1, 2.0)", "Softmax(-1)"),
            *("LogSoftmax(1)", "GLU(1)"),
        ],
        IMAGES,
    ),
}


def with_attributes_of(theirs: Any) -> Any:
    """Our layer of the same name with a PyTorch layer's attributes, as onediff makes it."""
    kind = getattr(nn, type(theirs).__name__)
    ours = kind.__new__(kind)
    nn.Module.__init__(ours)
    parameters, buffers = theirs._parameters.items(), theirs._buffers.items()
    ours._parameters = OrderedDict(
        (name, None if p is None else Parameter(wrap(p.detach().numpy()))) for name, p in parameters
    )
    ours._buffers = OrderedDict(
        (name, None if b is None else wrap(b.numpy())) for name, b in buffers
    )
    given = {k: v for k, v in vars(theirs).items() if k not in vars(ours)}
    ours.__dict__.update(given, training=False)
    return ours


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_works_with_the_attributes_of_pytorchs(
    layer: str, rng: np.random.Generator
) -> None:
    torch.manual_seed(0)
    theirs: Any = eval(f"torch.nn.{layer}").eval()
    x: Any = rng.standard_normal(LAYERS[layer]).astype(np.float32)
    if layer.startswith("Embedding"):
        x = rng.integers(0, 9, LAYERS[layer])
    inputs = [x, x] if layer.startswith("Bilinear") else [x]
    with torch.no_grad():
        wanted = theirs(*(torch.from_numpy(a) for a in inputs)).numpy()
    found = with_attributes_of(theirs)(*(wrap(a) for a in inputs)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


LOSSES = [name for name in dir(nn) if name.endswith("Loss") and hasattr(torch.nn, name)]


@pytest.mark.parametrize("name", LOSSES)
def test_hints_of_losses_need_no_names_of_ours(name: str) -> None:
    """Libraries ask an instance for its hints, among names of their own."""
    made = object.__new__(getattr(nn, name))
    # The table of Module, or an empty one: Python makes that for a class whose hints were read.
    assert typing.get_type_hints(made, {}).get("training", bool) is bool
