"""Things around training, found when first used: `oneflow.utils.data`."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "load_library":
        return importlib.import_module("oneflow.upstream.libraries").load_library
    if not name.startswith("_") and importlib.util.find_spec(f"oneflow.utils.{name}") is not None:
        return importlib.import_module(f"oneflow.utils.{name}")
    raise AttributeError(f"module 'oneflow.utils' has no attribute {name!r}")
