"""The layers, one file per kind. Their classes are found here, too (oneflow/api)."""

from oneflow.surfaces import open_module

open_module(__name__, "nn")
