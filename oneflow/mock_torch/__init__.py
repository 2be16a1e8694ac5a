"""`flow.mock_torch`: inside `enable()`, `import torch` means `import oneflow`, in every file.

    with flow.mock_torch.enable(lazy=True):
        from timm import create_model  # a package written for PyTorch

Without a with-block it stays so until `disable()`. For all programs of a shell: `eval
$(oneflow-mock-torch)`.
"""

from oneflow.compat.torch.mock.dummy import DummyModule
from oneflow.compat.torch.mock.importer import ModuleWrapper
from oneflow.compat.torch.mock.package import DynamicMockModule
from oneflow.compat.torch.mock.switching import disable, enable, is_enabled


class mock(enable):
    """`enable` under the name that release 0.9 of OneFlow gave it: `mock()`, `with mock.enable():`,
    `mock.disable()`."""

    enable, disable = enable, disable
    is_enabled = staticmethod(is_enabled)


__all__ = [
    "DummyModule",
    "DynamicMockModule",
    "ModuleWrapper",
    "disable",
    "enable",
    "is_enabled",
    "mock",
]
