"""`flow.nn.functional`."""

from oneflow.functional import nn_activation, nn_attention, nn_layers, nn_loss
from oneflow.functional.nn_activation import *  # noqa: F403
from oneflow.functional.nn_attention import *  # noqa: F403
from oneflow.functional.nn_layers import *  # noqa: F403
from oneflow.functional.nn_loss import *  # noqa: F403

__all__ = [*nn_activation.__all__, *nn_attention.__all__, *nn_layers.__all__, *nn_loss.__all__]
