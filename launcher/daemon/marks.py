"""The last mark of the scheduler's journal that this node was told (see scheduler/jobs/journal.py).

All daemons of a node share it, as they share the folders of jobs: whichever joins first tells it.
"""

from __future__ import annotations

import fcntl
from pathlib import Path

from google.protobuf.message import DecodeError

from oneflow.core.errors import ConfigError
from oneflow.core.folders import write_private
from oneflow.core.log import get_logger
from oneflow.protos import cluster_pb2 as pb

FILE, LOCK = "journal.mark", ".journal.lock"

log = get_logger(__name__)


def read_mark(folder: Path) -> pb.JournalMark | None:
    """Return the mark that is kept in a state folder; None if there is none, or it is damaged."""
    try:
        mark = pb.JournalMark()
        mark.ParseFromString((folder / FILE).read_bytes())
        return mark
    except FileNotFoundError:
        return None
    except (OSError, DecodeError) as error:
        log.warning("cannot read %s: %s", folder / FILE, error)
        return None


def keep_mark(folder: Path, mark: pb.JournalMark) -> None:
    """Make a mark durable, before anything of its attempt is written. Raises OSError."""
    if not mark.start:
        return  # of an older scheduler
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(folder / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = read_mark(folder)
        is_known = known is not None and (known.journal, known.start) == (mark.journal, mark.start)
        if known is None or not is_known or known.attempts < mark.attempts:
            try:
                write_private(folder / FILE, mark.SerializeToString())
            except ConfigError as error:  # a full disk is told from other troubles
                raise error.__cause__ or error from None
