"""Learning-rate schedules."""

from oneflow.optim.lr_scheduler.base import LRScheduler
from oneflow.optim.lr_scheduler.closed_form import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CosineDecayLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from oneflow.optim.lr_scheduler.composed import ChainedScheduler, SequentialLR, WarmUpLR, WarmupLR
from oneflow.optim.lr_scheduler.cyclic import CyclicLR, OneCycleLR
from oneflow.optim.lr_scheduler.plateau import ReduceLROnPlateau
from oneflow.optim.lr_scheduler.swa import SWALR

_LRScheduler = LRScheduler

__all__ = [
    "SWALR",
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CosineDecayLR",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
    "WarmUpLR",
    "WarmupLR",
]
