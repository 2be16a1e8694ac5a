"""`python -m oneflow.jobs.compiling`: the process in which a cluster's scheduler compiles job
files.
"""

from __future__ import annotations

import importlib

from oneflow.scheduler.cluster.compiler_process import Work, main
from oneflow.scheduler.compiler.passes import MODULES

WARM = (
    "oneflow.ops",
    "oneflow.scheduler.compiler.pipeline",
    *MODULES.values(),
)


def load() -> Work:
    """Imports the compiler, so that the first file does not wait for it."""
    from oneflow.core.config import Config
    from oneflow.core.log import set_up
    from oneflow.jobs.plans import check_fit, compile_plan

    set_up(Config.from_env(), component="compiler")
    for name in WARM:
        importlib.import_module(name)
    return Work(compile_plan, check_fit)


if __name__ == "__main__":
    main(load)
