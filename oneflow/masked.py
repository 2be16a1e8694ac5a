"""`flow.masked`: reductions of the elements that a mask selects; see oneflow/api."""

from oneflow.surfaces import open_module

open_module(__name__, "masked")
