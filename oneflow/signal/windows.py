"""`flow.signal.windows`: windows by which signals are faded in and out; see oneflow/api."""

from oneflow.surfaces import open_module

open_module(__name__, "signal.windows")
