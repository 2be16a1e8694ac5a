"""The collector of circles while a graph is made."""

from __future__ import annotations

import gc

import pytest

from oneflow.core.collector import collector_paused


class Circle:
    def __init__(self) -> None:
        self.me = self


def is_young(x: object) -> bool:
    return any(y is x for generation in (0, 1) for y in gc.get_objects(generation))


@pytest.fixture(autouse=True)
def new(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has seen nothing frozen yet."""
    monkeypatch.setattr("oneflow.core.collector._has_frozen", False)


def test_what_is_made_meanwhile_counts_as_old_and_is_collected_with_the_rest() -> None:
    with collector_paused():
        assert not gc.isenabled()
        circle = Circle()
        assert is_young(circle)
    assert gc.isenabled() and not is_young(circle) and gc.get_freeze_count() == 0
    del circle
    assert gc.collect() > 0


def test_what_a_program_has_frozen_stays_so() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        for _ in range(2):
            with collector_paused():
                circle = Circle()
            assert 0 < gc.get_freeze_count() <= count and is_young(circle)
    finally:
        gc.unfreeze()


def test_an_error_ends_the_pause_and_a_collector_that_is_off_stays_off() -> None:
    with pytest.raises(KeyError), collector_paused():
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
