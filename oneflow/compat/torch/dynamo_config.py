"""`torch._dynamo.config` and `torch._inductor.config`: settings of PyTorch's compiler, which does
not run. Any can be set, and reads as it was set.
"""

from __future__ import annotations

from typing import Any

from oneflow.compat.torch.dynamo import config

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    return getattr(config, name)
