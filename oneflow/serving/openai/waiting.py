"""The wait for a first token, foretold from the pace at which first tokens came."""

from __future__ import annotations

KEPT = 0.98
"""Weight of the past at each first token: some fifty of the last ones count."""

LEAST = 4.0
"""First tokens, by weight, without which nothing is foretold."""


class FirstTokens:
    """Sequences without a first token, and the mean time between first tokens while there were any.

    By Little's law a sequence that comes now gets its first token when those before it have theirs:
    their number times that mean. Times are in seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self._since = 0.0  # of the last first token, or since somebody waits
        self._seconds = self._count = 0.0

    def arrive(self, now: float) -> None:
        """Count a sequence that waits from now on."""
        if not self.waiting:
            self._since = now
        self.waiting += 1

    def serve(self, now: float) -> None:
        """Count the first token of a sequence that waited."""
        self._seconds = KEPT * self._seconds + now - self._since
        self._count = KEPT * self._count + 1.0
        self._since = now
        self.waiting -= 1

    def leave(self) -> None:
        """Forget a sequence that ended without a first token."""
        self.waiting -= 1

    @property
    def expected_s(self) -> float:
        """The wait of a sequence that comes now; 0 if too little is known."""
        return self.waiting * self._seconds / self._count if self._count >= LEAST else 0.0
