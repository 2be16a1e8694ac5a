"""`flow._C`: functions as upstream's own Python code calls them; see oneflow/api."""

from oneflow.surfaces import open_module

open_module(__name__, "_C")
