"""`nn.qat`: layers that learn while their inputs and weights are rounded as integers would be."""

from oneflow.nn.qat.conv import QatConv1d, QatConv2d, QatConv3d

__all__ = ["QatConv1d", "QatConv2d", "QatConv3d"]
