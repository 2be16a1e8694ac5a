"""OneFlow: a distributed deep-learning runtime built of actor services.

`import oneflow as flow`. Names are found where they are first used (oneflow/api), so the
import itself is quick.
"""

from __future__ import annotations

import os

from oneflow.api import MODULES
from oneflow.core import tracebacks
from oneflow.surfaces import open_module

__version__ = "0.1.0"

# gRPC reads it when it is imported: nothing of ours may be quicker. Its fork handlers cannot work
# beside a running loop: they warn at every fork (of a data loader, which uses no gRPC), and where
# TLS had imported gRPC first, every second child of a daemon died in them before it was the rank.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


tracebacks.install()
open_module(__name__, "flow", MODULES)
