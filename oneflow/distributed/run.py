"""`python -m oneflow.distributed.run [flags] script args`: the launcher by torchrun's name.

Under the mock, `python -m torch.distributed.run` is this.
"""

from __future__ import annotations

import sys

from oneflow.launcher.launch import main

if __name__ == "__main__":
    sys.exit(main())
