"""Orders of pipelines can be run by ranks that wait for their inputs, and lose nothing."""

from __future__ import annotations

import pytest

from oneflow.compat.torch.pipeline_orders import (
    Pass,
    all_forward_first,
    as_soon_as_possible,
    folded,
    interleaved,
    looped,
    one_forward_one_backward,
)


def needed(one: Pass, last: int) -> list[Pass]:
    """The passes that must have been before one."""
    kind, stage, at = one
    if kind:
        return [Pass(True, stage - 1, at)] if stage else []
    return [Pass(True, stage, at)] + ([Pass(False, stage + 1, at)] if stage < last else [])


def check(orders: list[list[Pass]], num_stages: int, num_micro_batches: int) -> None:
    everything = [one for order in orders for one in order]
    assert len(everything) == len(set(everything)) == 2 * num_stages * num_micro_batches
    for order in orders:
        for stage in range(num_stages):
            for kind in (True, False):
                batches = [at for k, s, at in order if (k, s) == (kind, stage)]
                assert batches == sorted(batches)
    done: set[Pass] = set()
    at = [0] * len(orders)
    while len(done) < len(everything):
        before = len(done)
        for rank, order in enumerate(orders):
            while at[rank] < len(order) and done.issuperset(
                needed(order[at[rank]], num_stages - 1)
            ):
                done.add(order[at[rank]])
                at[rank] += 1
        assert len(done) > before, "all ranks wait"


@pytest.mark.parametrize("num_micro_batches", [1, 3, 4, 8])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_all_passes_can_be_run(num_ranks: int, num_micro_batches: int) -> None:
    n, ranks = num_micro_batches, range(num_ranks)
    check([one_forward_one_backward(r, num_ranks, n) for r in ranks], num_ranks, n)
    for per_rank in (1, 2, 3):
        count = per_rank * num_ranks
        places = looped(count, num_ranks)
        own = [[s for s in range(count) if places[s] == r] for r in ranks]
        check([all_forward_first(stages, n) for stages in own], count, n)
        check([interleaved(own[r], r, num_ranks, n) for r in ranks], count, n)
    check(as_soon_as_possible(folded(2 * num_ranks, num_ranks), n), 2 * num_ranks, n)


def test_stages_fold_back_at_the_last_rank() -> None:
    assert folded(6, 3) == [0, 1, 2, 2, 1, 0]
    assert looped(6, 3) == [0, 1, 2, 0, 1, 2]


def test_a_rank_holds_few_micro_batches() -> None:
    for order in as_soon_as_possible(folded(8, 4), 32):
        held = most = 0
        for one in order:
            held += 1 if one.is_forward else -1
            most = max(most, held)
        assert most <= 9


def test_rounds_are_whole() -> None:
    with pytest.raises(ValueError, match="no 2 equal rounds"):
        interleaved([0, 2], 0, 2, 5)
