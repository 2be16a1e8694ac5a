"""A slice of the random loaders and of the random trees, the same each time."""

from __future__ import annotations

from . import files, loader


def test_loaders_give_what_pytorchs_give() -> None:
    assert not (found := loader.run(400, seed=7, share_with_workers=0.02)), "\n".join(found)


def test_trees_come_back_and_damage_is_named() -> None:
    assert not (found := files.run(250, seed=7)), "\n".join(found)
