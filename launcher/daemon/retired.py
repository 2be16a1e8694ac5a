"""The folders of retired jobs: kept aside for a day, since nobody asked for their end."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

KEEP_S = 86400.0
SEEN_S = 3600.0
"""A daemon keeps a removed folder for at least this long, also when the wall clock jumps."""
LOOK_S = 300.0


class RetiredJobs:
    """Folders that were in `jobs` and lie in `removed` until they go."""

    def __init__(self, jobs: Path, removed: Path) -> None:
        self._jobs, self._removed = jobs, removed
        self._seen: dict[str, float] = {}  # name -> monotonic seconds at the first look
        self._looked_at = time.monotonic()

    def retire(self, folder: str) -> None:
        """Put a job's folder aside. It is removed at once if it cannot be moved."""
        source, target = self._jobs / folder, self._removed / f"{folder}.{time.time_ns()}"
        try:
            self._removed.mkdir(mode=0o700, exist_ok=True)
            source.rename(target)
            os.utime(target)
        except FileNotFoundError:
            return  # another daemon of this node was first
        except OSError:
            shutil.rmtree(source, ignore_errors=True)

    def is_due(self) -> bool:
        """Whether to `sweep` now, once each LOOK_S."""
        now = time.monotonic()
        is_due = now - self._looked_at >= LOOK_S
        if is_due:
            self._looked_at = now
        return is_due

    def sweep(self) -> None:
        """Remove the folders that have been kept long enough."""
        now = time.monotonic()
        found: dict[str, float] = {}
        with suppress(FileNotFoundError), os.scandir(self._removed) as entries:
            for entry in entries:
                first = found[entry.name] = self._seen.get(entry.name, now)
                is_old = time.time() - entry.stat(follow_symlinks=False).st_mtime >= KEEP_S
                if is_old and now - first >= SEEN_S:
                    shutil.rmtree(entry.path, ignore_errors=True)
        self._seen = found
