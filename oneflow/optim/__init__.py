"""Optimizers and learning-rate schedules."""

from oneflow.optim import lr_scheduler
from oneflow.optim.adam import LAMB, Adam, AdamW
from oneflow.optim.adaptive import Adadelta, Adagrad, RMSprop
from oneflow.optim.optimizer import Optimizer, ParamGroup
from oneflow.optim.sgd import SGD

__all__ = [
    "LAMB",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Optimizer",
    "ParamGroup",
    "RMSprop",
    "lr_scheduler",
]
