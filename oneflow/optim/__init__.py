"""Optimizers and learning-rate schedules."""

from typing import Any

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


def __getattr__(name: str) -> Any:
    """`swa_utils`, found when first used: it needs layers, which optimizers do without."""
    if name == "swa_utils":
        import importlib

        return importlib.import_module("oneflow.optim.swa_utils")
    raise AttributeError(f"module 'oneflow.optim' has no attribute {name!r}")
