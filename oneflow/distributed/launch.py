"""`python -m oneflow.distributed.launch [flags] script args`: see `oneflow.launcher.launch`."""

from __future__ import annotations

import sys

from oneflow.launcher.launch import main

if __name__ == "__main__":
    sys.exit(main())
