"""The journal's own history: how a scheduler finds out that its state was restored from a copy.

Each start of a scheduler has a random name, and counts the attempts begun since. An attempt's
Prepare tells its daemon that name and count: a mark, which the daemon's node keeps. Both are in the
journal before the daemon hears of them. A daemon that joins with a mark beyond what the journal has
is from a time that the journal does not know: it was restored from an older copy. From then on the
journal has another number, below which no life of a job lies that begins or is submitted.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.events import SaveJournal

MAX_STEP = 1 << 22
"""The most that a number is above the one before. A life has nine digits: room for 200 restores."""
MAX_MARK_CHARS = 32
MAX_STARTS = 10_000  # that the journal remembers


@dataclass
class Journal:
    """A journal as the job table knows it.

    Attributes:
        id: Random, made with the journal; "": not known.
        number: The least life of a job that begins now. 0 until the journal was restored.
        starts: Attempts begun in each start of a scheduler.
        start: Name of this start.
        next_number: The number from the moment at which this start hears of a restore.
    """

    id: str = ""
    number: int = 0
    starts: dict[str, int] = field(default_factory=dict)
    start: str = ""
    next_number: int = 0

    def mark(self) -> pb.JournalMark:
        """Return the mark of the attempt that began last."""
        attempts = self.starts.get(self.start, 0)
        return pb.JournalMark(journal=self.id, start=self.start, attempts=attempts)

    def begin(self) -> SaveJournal:
        """Count an attempt that begins now."""
        return self._note(self.start, self.starts.get(self.start, 0) + 1)

    def hear(self, mark: pb.JournalMark, is_fresh: bool) -> SaveJournal | None:
        """Compare a daemon's mark with the journal's.

        Args:
            mark: The last one that the daemon's node was told.
            is_fresh: No attempt is in the journal: it may stand for one that was lost. Otherwise
                the mark of another journal means a daemon that came from another cluster.

        Returns:
            The change that makes the new number durable; None if the journal was not restored.
        """
        is_ours = is_fresh or mark.journal == self.id
        if not (mark.start and is_ours) or mark.attempts <= self.starts.get(mark.start, 0):
            return None
        self.number = max(self.number, self.next_number)
        return self._note(mark.start, mark.attempts)

    def _note(self, start: str, attempts: int) -> SaveJournal:
        self.starts[start] = attempts
        return SaveJournal(self.number, start, attempts)


def opened(id: str, number: int, starts: dict[str, int]) -> Journal:
    """Return the journal of a scheduler that starts now."""
    next_number = number + 1 + secrets.randbelow(MAX_STEP)
    return Journal(id, number, starts, secrets.token_hex(8), next_number)
