"""Optimizers and learning-rate schedules: the names in the public table (oneflow/api)."""

from oneflow.api import OPTIM_MODULES
from oneflow.surfaces import open_module

open_module(__name__, "optim", OPTIM_MODULES)
