"""Things around training, found when first used: `oneflow.utils.data`."""

from oneflow.surfaces import open_module

open_module(__name__, "utils", ("checkpoint", "data", "global_view", "tensor"))
