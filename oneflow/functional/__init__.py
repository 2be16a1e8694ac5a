"""The functions users call, over ops: promotion, Python numbers, defaults. Importing it gives
Tensor its methods.
"""

import oneflow.tensor.eager  # noqa: F401  (sets the default mode)
from oneflow.functional import methods

methods.install()
