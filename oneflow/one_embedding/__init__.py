"""`flow.one_embedding`: embedding tables larger than memory; see oneflow/api."""

from oneflow.surfaces import open_module

open_module(__name__, "one_embedding")
