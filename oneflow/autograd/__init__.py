"""Automatic differentiation: a tape over ops, and the backward pass over it.

The public table (oneflow/api) lists the names that users find here.
"""

import oneflow.functional  # noqa: F401  (gives Tensor its methods, of which backward is one)
from oneflow.api import AUTOGRAD_MODULES
from oneflow.surfaces import open_module

open_module(__name__, "autograd", AUTOGRAD_MODULES)
