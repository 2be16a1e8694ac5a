"""The part of PromQL that the alert rules use, over samples in memory.

increase() and rate() add up the growth of a counter in the window; they do not extrapolate to
its edges as Prometheus does, so they are never more than its numbers.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import promql_parser as p

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Series = dict[Labels, list[tuple[float, float]]]
LOOK_BACK_S = 300.0
COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


def _divided(a: float, b: float) -> float:
    return a / b if b else math.nan if not a or math.isnan(a) else math.copysign(math.inf, a)


COMPUTE: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divided,
}


class Samples:
    """Samples that were scraped. names: the only metrics that are kept."""

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._series: dict[str, Series] = {name: {} for name in names}

    def scrape(self, registry: Any, instance: str, now: float) -> None:
        for family in registry.collect():
            for sample in family.samples:
                if sample.name in self._names:
                    labels = frozenset({**sample.labels, "instance": instance}.items())
                    kept = self._series[sample.name].setdefault(labels, [])
                    kept.append((now, float(sample.value)))

    def find(self, selector: Any) -> Series:
        matchers = selector.matchers.matchers
        found = self._series[selector.name]
        return {k: v for k, v in found.items() if all(_fits(m, dict(k)) for m in matchers)}


def _fits(matcher: Any, labels: Mapping[str, str]) -> bool:
    value = labels.get(matcher.name, "")
    if matcher.op == p.MatchOp.Equal:
        return bool(value == matcher.value)
    if matcher.op == p.MatchOp.NotEqual:
        return bool(value != matcher.value)
    matches = re.fullmatch(matcher.value, value) is not None
    return matches if matcher.op == p.MatchOp.Re else not matches


class Evaluator:
    """Gives expressions their value at one moment."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def value(self, text: str, now: float) -> Vector:
        """A vector: empty if an alert is silent."""
        found = self._of(p.parse(text), now)
        assert isinstance(found, dict), text
        return found

    def _of(self, e: Any, now: float) -> float | Vector:
        match e:
            case p.NumberLiteral():
                return float(e.val)
            case p.ParenExpr():
                return self._of(e.expr, now)
            case p.VectorSelector():
                return self._instant(e, now)
            case p.AggregateExpr():
                return self._aggregate(e, now)
            case p.Call():
                return self._call(e, now)
            case p.BinaryExpr():
                return self._binary(e, now)
        raise AssertionError(f"{type(e).__name__} is not known here")

    def _instant(self, selector: Any, now: float) -> Vector:
        now -= selector.offset.total_seconds() if selector.offset else 0.0
        found = {}
        for labels, points in self._samples.find(selector).items():
            last = next((x for x in reversed(points) if x[0] <= now), None)
            if last is not None and last[0] > now - LOOK_BACK_S:
                found[labels] = last[1]
        return found

    def _vector(self, e: Any, now: float) -> Vector:
        found = self._of(e, now)
        assert isinstance(found, dict)
        return found

    # -- functions ---------------------------------------------------------------------------------

    def _call(self, call: Any, now: float) -> float | Vector:
        args = call.args
        match call.func.name:
            case "time":
                return now
            case "rate" | "increase" as name:
                return self._growth(args[0], now, name == "rate")
            case "absent":
                return {} if self._vector(args[0], now) else {frozenset(): 1.0}
            case "clamp_min" | "clamp_max" as name:
                limit, choose = float(args[1].val), max if name == "clamp_min" else min
                return {k: choose(v, limit) for k, v in self._vector(args[0], now).items()}
            case "max_over_time":
                return self._max_over_time(args[0], now)
            case "histogram_quantile":
                return _quantiles(float(args[0].val), self._vector(args[1], now))
        raise AssertionError(f"{call.func.name}() is not known here")

    def _growth(self, matrix: Any, now: float, is_rate: bool) -> Vector:
        assert not matrix.vector_selector.offset
        window_s = matrix.range.total_seconds()
        found = {}
        for labels, points in self._samples.find(matrix.vector_selector).items():
            inside = [v for at, v in points if now - window_s < at <= now]
            if len(inside) >= 2:
                grown = sum(b - a if b >= a else b for a, b in pairwise(inside))
                found[labels] = grown / window_s if is_rate else grown
        return found

    def _max_over_time(self, subquery: Any, now: float) -> Vector:
        offset_s = subquery.offset.total_seconds() if subquery.offset else 0.0
        step_s, end = subquery.step.total_seconds(), now - offset_s
        found: Vector = {}
        for i in range(int(subquery.range.total_seconds() / step_s)):
            for labels, v in self._vector(subquery.expr, end - i * step_s).items():
                found[labels] = max(v, found.get(labels, -math.inf))
        return found

    # -- operators ---------------------------------------------------------------------------------

    def _aggregate(self, e: Any, now: float) -> Vector:
        assert e.modifier is None or e.modifier.type == p.AggModifierType.By
        kept = set(e.modifier.labels) if e.modifier else set()
        groups: dict[Labels, list[float]] = {}
        for labels, v in self._vector(e.expr, now).items():
            groups.setdefault(frozenset(x for x in labels if x[0] in kept), []).append(v)
        combine = {"sum": sum, "max": max, "min": min}[str(e.op)]
        return {labels: combine(values) for labels, values in groups.items()}

    def _binary(self, e: Any, now: float) -> float | Vector:
        left, right, op = self._of(e.lhs, now), self._of(e.rhs, now), str(e.op)
        if isinstance(left, float) and isinstance(right, float):
            return COMPUTE[op](left, right)
        key = _matching(e)
        if op in ("and", "or", "unless"):
            assert isinstance(left, dict)
            assert isinstance(right, dict)
            return _of_both(left, right, key, op)
        found: Vector = {}
        for labels, a, b in _pairs(left, right, key):
            if op in COMPARE:
                if COMPARE[op](a, b):
                    found[labels] = a if isinstance(left, dict) else b
            else:
                found[frozenset(x for x in labels if x[0] != "__name__")] = COMPUTE[op](a, b)
        return found


def _matching(e: Any) -> Callable[[Labels], Labels]:
    matching = e.modifier.matching if e.modifier is not None else None
    if matching is None:
        return lambda labels: labels
    assert matching.type == p.LabelModifierType.Include
    kept = set(matching.labels)
    return lambda labels: frozenset(x for x in labels if x[0] in kept)


def _of_both(left: Vector, right: Vector, key: Callable[[Labels], Labels], op: str) -> Vector:
    """Combine two vectors as sets of labels."""
    if op == "or":
        mine = {key(labels) for labels in left}
        return left | {labels: v for labels, v in right.items() if key(labels) not in mine}
    others = {key(labels) for labels in right}
    return {labels: v for labels, v in left.items() if (key(labels) in others) == (op == "and")}


def _pairs(
    left: float | Vector, right: float | Vector, key: Callable[[Labels], Labels]
) -> list[tuple[Labels, float, float]]:
    if isinstance(left, float):
        assert isinstance(right, dict)
        return [(labels, left, b) for labels, b in right.items()]
    if isinstance(right, float):
        return [(labels, a, right) for labels, a in left.items()]
    others = {key(labels): b for labels, b in right.items()}
    return [(k, a, others[key(k)]) for k, a in left.items() if key(k) in others]


def _quantiles(q: float, buckets: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        bound = float(dict(labels)["le"])
        groups.setdefault(frozenset(x for x in labels if x[0] != "le"), []).append((bound, count))
    return {labels: _quantile(q, sorted(rows)) for labels, rows in groups.items()}


def _quantile(q: float, rows: list[tuple[float, float]]) -> float:
    """The upper bound of the bucket that holds it: Prometheus goes less far."""
    total = rows[-1][1]
    if not total:
        return math.nan
    finite = [bound for bound, count in rows if count >= q * total]
    return finite[0] if math.isfinite(finite[0]) else rows[-2][0]
