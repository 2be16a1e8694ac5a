"""`flow.linalg`: norms and products; see oneflow/api."""

from oneflow.surfaces import open_module

open_module(__name__, "linalg")
