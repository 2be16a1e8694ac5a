"""`nn.qat`: layers that learn while their inputs and weights are rounded as integers would be.

    model = nn.Sequential(nn.QatConv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.QatLinear(800, 10))
    ...                                  # train it, in a graph or without
    model = flow.nn.qat.convert(model.eval())
    logits = model(images)               # products of integers of 8 bits

`convert` makes layers of `nn.quantized` of them, which compute with the integers themselves.
"""

from oneflow.compat.upstream.qat.conv import QatConv1d, QatConv2d, QatConv3d
from oneflow.compat.upstream.qat.converting import convert
from oneflow.compat.upstream.qat.linear import QatLinear

__all__ = ["QatConv1d", "QatConv2d", "QatConv3d", "QatLinear", "convert"]
