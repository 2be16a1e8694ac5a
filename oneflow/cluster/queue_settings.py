"""The tables of [scheduler.queues] as operators write them, and the queues they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oneflow.cluster.toml import check_keys
from oneflow.core.errors import ConfigError, JobSpecError
from oneflow.scheduler.jobs.limits import MAX_DEVICES, check_queue_name
from oneflow.scheduler.jobs.quotas import MAX_PRIORITY, Queue
from oneflow.services.quantities import parse_duration

RANGES = {
    "devices": (0, MAX_DEVICES),
    "user_devices": (0, MAX_DEVICES),
    "max_priority": (-MAX_PRIORITY, MAX_PRIORITY),
}
"""The least and the most of whole numbers."""
KEYS = (*RANGES, "max_time_limit", "users", "share", "user_shares", "preemptible")


def make_queues(tables: Mapping[str, Mapping[str, Any]], where: str) -> dict[str, Queue]:
    """Return the queues of tables by name. Raises ConfigError, with `where` they come from."""
    for name, table in tables.items():
        _check(name, table, f"{where}: scheduler.queues.{name}")
    return {name: _queue(table) for name, table in tables.items()}


def _check(name: str, table: Mapping[str, Any], where: str) -> None:
    try:
        check_queue_name(name)
    except JobSpecError as error:
        raise ConfigError(f"{where}: {error}") from None
    check_keys(table, KEYS, where)
    for key, (low, high) in RANGES.items():
        value = table.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ConfigError(f"{where}.{key}: {value!r} is no whole number from {low} to {high}")
    parse_duration(table.get("max_time_limit", 0), f"{where}.max_time_limit")
    shares = table.get("user_shares", {})
    if not isinstance(shares, dict):
        raise ConfigError(f"{where}.user_shares: {shares!r} is not a table of users")
    for key, share in {"share": table.get("share", 1), **shares}.items():
        if (
            isinstance(share, bool)
            or not isinstance(share, (int, float))
            or not 1e-6 <= share <= 1e6
        ):
            raise ConfigError(f"{where}: the share of {key}, {share!r}, is not a number above 0")
    if not isinstance(table.get("preemptible", False), bool):
        raise ConfigError(f"{where}.preemptible: {table['preemptible']!r} is not true or false")
    users = table.get("users", [])
    if not isinstance(users, list) or not all(isinstance(user, str) for user in users):
        raise ConfigError(f"{where}.users: {users!r} is not a list of names of tokens")


def _queue(table: Mapping[str, Any]) -> Queue:
    given = dict(table)
    longest_s = parse_duration(given.pop("max_time_limit", 0), "max_time_limit")
    if "users" in given:
        given["users"] = tuple(given["users"])
    return Queue(max_time_limit_s=longest_s, **given)
