"""`flow.nn.functional`: the functions that the public table (oneflow/api) puts there."""

from oneflow.surfaces import open_module

open_module(__name__, "F")
