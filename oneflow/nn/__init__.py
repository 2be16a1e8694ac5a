"""Layers, parameters, graphs: the names that the public table (oneflow/api) puts there."""

from oneflow.api import NN_MODULES
from oneflow.surfaces import open_module

open_module(__name__, "nn", NN_MODULES)
