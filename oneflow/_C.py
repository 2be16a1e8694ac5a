"""`flow._C`: functions as upstream's own Python code calls them; see oneflow/api."""

from typing import TYPE_CHECKING, Any

from oneflow.surfaces import open_module

open_module(__name__, "_C")

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
