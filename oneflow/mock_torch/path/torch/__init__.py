"""The package `torch` of a shell in which `eval $(oneflow-mock-torch)` was run: puts the mock in
force and gives way to it, or to PyTorch if ONEFLOW_DISABLE_MOCK_TORCH is set.
"""

import importlib
import sys
from pathlib import Path

_folder = str(Path(__file__).parent.parent)
sys.path[:] = [entry for entry in sys.path if entry != _folder]
sys.modules.pop("torch", None)
importlib.import_module("oneflow.mock_torch").enable()
importlib.import_module("torch")
