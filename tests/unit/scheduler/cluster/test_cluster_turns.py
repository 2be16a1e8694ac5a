"""Turns where only one can be next."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from oneflow.scheduler.cluster.plans import Turns


async def come(turns: Turns, names: Iterable[str], order: list[str]) -> list[asyncio.Task[None]]:
    """Each stands in the line, in this order; the owner is the first letter."""

    async def one(name: str) -> None:
        async with turns.turn(name[0]):
            order.append(name)
            await asyncio.sleep(0)

    tasks = []
    for name in names:
        tasks.append(asyncio.ensure_future(one(name)))
        await asyncio.sleep(0)
    return tasks


def test_owners_take_turns_and_each_keeps_its_order() -> None:
    async def scene() -> list[str]:
        turns, order = Turns(), list[str]()
        async with turns.turn("x"):
            tasks = await come(turns, ("a1", "a2", "a3", "b1", "c1", "b2"), order)
        await asyncio.gather(*tasks)
        async with turns.turn("x", 0.0):  # free again
            return order

    assert asyncio.run(scene()) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_who_waits_no_more_is_left_out() -> None:
    async def scene() -> list[str]:
        turns, order = Turns(), list[str]()
        async with turns.turn("x"):
            tasks = await come(turns, ("a1", "a2", "b1"), order)
            tasks[0].cancel()
            with pytest.raises(asyncio.TimeoutError):
                async with turns.turn("b", 0.001):
                    order.append("never")
        tasks[1].cancel()  # just when its turn has come
        await asyncio.gather(*tasks, return_exceptions=True)
        async with turns.turn("x", 0.0):
            return order

    assert asyncio.run(scene()) == ["b1"]


def test_an_error_passes_it_on() -> None:
    async def scene() -> list[str]:
        turns, order = Turns(), list[str]()
        with pytest.raises(ValueError, match="mine"):
            async with turns.turn("x"):
                tasks = await come(turns, ("a1",), order)
                raise ValueError("mine")
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(scene()) == ["a1"]
