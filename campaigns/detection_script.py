"""A script job of two ranks that faults are done to: `detection_script.py FOLDER`.

Its ranks meet, and work side by side until FOLDER has a file `<rank>.<order>`: then that rank keeps
the interpreter to itself (gil), or exits 0 (leave).
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

from oneflow.distributed.world import world

LOOK_S = 0.01
STUCK_S = 60.0


def main(folder: Path) -> None:
    here = world()
    here.client.barrier("met")
    (folder / f"{here.rank}.runs").touch()
    while True:
        if (folder / f"{here.rank}.gil").exists():
            be_stuck()
        if (folder / f"{here.rank}.leave").exists():
            return
        here.client.check(range(here.world_size))
        time.sleep(LOOK_S)


def be_stuck() -> None:
    """Keeps the interpreter's lock, as a library does that forgets to release it."""
    ctypes.PyDLL(None).usleep(int(STUCK_S * 1e6))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
