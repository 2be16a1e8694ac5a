"""`nn.quantized`: layers whose weights are kept as integers of 8 or 4 bits, for inference.

    model = flow.nn.Sequential(flow.nn.Linear(256, 512), flow.nn.ReLU(), flow.nn.Linear(512, 64))
    flow.nn.quantized.quantize_(model, flow.nn.quantized.Int4WeightOnlyConfig(group_size=64))
    y = model(flow.randn(1, 256))

Activations stay floats: the product unpacks the weight as it reads it, so that a few rows take the
time of reading 1 byte, or half of one, for each weight instead of 4. `load_quantized_` reads files
of AutoAWQ, GPTQ and compressed-tensors.

`IntegerLinear` and `IntegerConv2d` multiply integers by integers; `nn.qat.convert` makes them of
layers that were trained for it.
"""

from oneflow.nn.quantized.integer import IntegerConv2d, IntegerLinear
from oneflow.nn.quantized.loading import load_quantized_
from oneflow.nn.quantized.modules import Embedding, Linear
from oneflow.nn.quantized.quantize import (
    Int4WeightOnlyConfig,
    Int8WeightOnlyConfig,
    quantize_,
)

__all__ = [
    "Embedding",
    "Int4WeightOnlyConfig",
    "Int8WeightOnlyConfig",
    "IntegerConv2d",
    "IntegerLinear",
    "Linear",
    "load_quantized_",
    "quantize_",
]
