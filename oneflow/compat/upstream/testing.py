"""Names of `oneflow.unittest`, with which the tests of clients begin."""

from __future__ import annotations

import os
import unittest
from collections.abc import Callable
from typing import TypeVar

from oneflow.env import get_node_size, get_world_size

F = TypeVar("F", bound=Callable[..., object])


class TestCase(unittest.TestCase):
    """Base class of test cases; upstream's resets its session now and then, here there is none."""


def world_size() -> int:
    """Return the number of ranks of the job."""
    return get_world_size()


def device_num() -> int:
    """Return the number of ranks of a host, or ONEFLOW_TEST_DEVICE_NUM."""
    given = os.environ.get("ONEFLOW_TEST_DEVICE_NUM")
    return int(given or get_world_size() // get_node_size())


def node_size() -> int:
    """Return the number of hosts of the job, or ONEFLOW_TEST_NODE_NUM."""
    given = os.environ.get("ONEFLOW_TEST_NODE_NUM")
    return int(given or get_node_size())


def num_nodes_required(num_nodes: int) -> Callable[[F], F]:
    """Mark a test with the number of hosts that it needs."""

    def mark(test: F) -> F:
        setattr(test, "__oneflow_test_case_num_nodes_required__", num_nodes)  # noqa: B010
        return test

    return mark


class env:
    """The facts of a run that tests ask for."""

    @staticmethod
    def eager_execution_enabled() -> bool:
        """True: ops run at once."""
        return True


def dataset_dir(sub_dir: str | None = None) -> str:
    """Return the folder of data for tests: ONEFLOW_TEST_DATASET_DIR, or /dataset."""
    return os.path.join(os.environ.get("ONEFLOW_TEST_DATASET_DIR", "/dataset"), sub_dir or "")


def skip_unless(n: int, d: int) -> Callable[[F], F]:
    """Skip a test or test case unless the job has `n` hosts of `d` ranks."""
    found = node_size(), device_num()
    return unittest.skipUnless(
        found == (n, d), f"needs {n} hosts of {d} ranks, has {found[0]} of {found[1]}"
    )


def skip_unless_1n1d() -> Callable[[F], F]:
    return skip_unless(1, 1)


def skip_unless_1n2d() -> Callable[[F], F]:
    return skip_unless(1, 2)


def skip_unless_1n4d() -> Callable[[F], F]:
    return skip_unless(1, 4)


def skip_unless_2n1d() -> Callable[[F], F]:
    return skip_unless(2, 1)


def skip_unless_2n2d() -> Callable[[F], F]:
    return skip_unless(2, 2)


def skip_unless_2n4d() -> Callable[[F], F]:
    return skip_unless(2, 4)
