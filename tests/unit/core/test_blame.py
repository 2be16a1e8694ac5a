"""Rules of the first failure, which launcher and schedulers share."""

from __future__ import annotations

import itertools

from oneflow.core.blame import FOLLOWER_CODE, SETTLE_S, Blame
from oneflow.core.errors import PeerLostError
from oneflow.distributed import worker


def test_the_first_real_cause_stays_and_a_follower_gives_way() -> None:
    """Names the same one in any order of hearing, and with others heard besides."""
    heard = [("follows", True), ("fails", False), ("falls", False), ("too", True)]
    for order in itertools.permutations(heard):
        blame: Blame[str] = Blame()
        for now, (who, is_weak) in enumerate(order):
            blame.hear(who, is_weak, float(now))
        assert blame.cause == next(who for who, is_weak in order if not is_weak)
        assert not blame.is_weak


def test_a_follower_counts_after_a_while() -> None:
    blame: Blame[str] = Blame()
    assert not blame.is_settled(10.0)
    assert blame.hear("follows", True, 10.0)
    assert not blame.hear("too", True, 10.5)
    assert not blame.is_settled(10.0 + SETTLE_S / 2)
    assert blame.is_settled(10.0 + SETTLE_S)
    assert blame.hear("fails", False, 10.0 + SETTLE_S)
    assert blame.is_settled(10.0 + SETTLE_S)


def test_followers_have_the_code_that_is_documented() -> None:
    assert FOLLOWER_CODE == 85


def test_the_code_of_a_follower_is_one_for_all() -> None:
    """The program that runs a rank's script imports nothing of ours, so it has its own copy."""
    assert worker.FOLLOWS == PeerLostError.exit_code == FOLLOWER_CODE == 85
