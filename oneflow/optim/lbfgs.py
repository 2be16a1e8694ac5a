"""L-BFGS (Liu and Nocedal, Mathematical Programming 45, 1989), with the line search of Nocedal and
Wright, Numerical Optimization, algorithms 3.5 and 3.6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from oneflow.core.dtype import float64
from oneflow.core.operand import TensorLike
from oneflow.functional.concat_split import cat, narrow
from oneflow.functional.from_data import tensor
from oneflow.functional.initial import assign
from oneflow.functional.linalg.products import dot, mv
from oneflow.functional.shaping import reshape, transpose
from oneflow.ops.unary import abs as absolute
from oneflow.optim.optimizer import Optimizer
from oneflow.tensor.creation_like import filled_like, layout_of
from oneflow.tensor.grad_mode import enable_grad, no_grad
from oneflow.tensor.tensor import Tensor

Closure = Callable[[], Any]
Array = np.ndarray[Any, Any]


class LBFGS(Optimizer):
    """`step(closure)` makes up to max_iter updates along quasi-Newton directions; the closure
    clears the gradients, evaluates the model, calls backward and returns the loss.

    lr: length of a step without line search.  max_eval: calls of the closure, 1.25 max_iter by
    default.  history_size: pairs of differences that make the direction.  line_search_fn:
    "strong_wolfe" or None.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
        contiguous_params: bool = False,
    ) -> None:
        if line_search_fn not in (None, "strong_wolfe"):
            raise RuntimeError(f"only 'strong_wolfe' is supported, got {line_search_fn!r}")
        super().__init__(
            params,
            {
                "lr": lr,
                "max_iter": max_iter,
                "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
                "tolerance_grad": tolerance_grad,
                "tolerance_change": tolerance_change,
                "history_size": history_size,
                "line_search_fn": line_search_fn,
            },
        )
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")
        self._memory = _Memory()

    @property
    def _parameters(self) -> list[Tensor]:
        return self.param_groups[0].parameters

    def _gradient(self) -> Tensor:
        """All gradients as one vector; zeros where there is none."""
        grads = [filled_like(p, 0) if p.grad is None else p.grad for p in self._parameters]
        return cat([reshape(g, (-1,)) for g in grads], 0)

    def state_dict(self) -> dict[str, Any]:
        """Return that of `Optimizer`; the state of the first parameter is the history of all, in
        PyTorch's form.
        """
        if self._memory.previous is not None:
            self.state[self._parameters[0]] = self._memory.saved()
        return super().state_dict()

    def _load_states(self, param: Tensor, saved: dict[str, Any], whole: int | None) -> None:
        def vector(values: TensorLike) -> Tensor:
            made = cat([reshape(filled_like(p, 0), (-1,)) for p in self._parameters], 0)
            assign(made, values)
            return made

        self._memory = _Memory.of(saved, vector, self.param_groups[0]["history_size"])
        self.state[param] = dict(saved)

    def _move(self, length: float, direction: Tensor) -> None:
        """Add `length` times a direction to the parameters."""
        start = 0
        for p in self._parameters:
            size = p.meta.numel
            p.add_(reshape(narrow(direction, 0, start, size), tuple(p.shape)), alpha=length)
            start += size

    def step(self, closure: Closure | None = None) -> Any:
        """Up to max_iter updates; returns the loss before them. Raises TypeError without a
        closure.
        """
        if closure is None:
            raise TypeError("LBFGS.step needs a closure that evaluates the model again")
        with no_grad():
            return self._run(closure)

    def _run(self, closure: Closure) -> Any:
        options, memory = self.param_groups[0], self._memory
        first = _evaluated(closure)
        loss, gradient, calls = float(first), self._gradient(), 1
        for turn in range(options["max_iter"]):
            if _largest(gradient) <= options["tolerance_grad"]:
                break
            direction = memory.direction(gradient, options["history_size"])
            length = options["lr"]
            if memory.turns == 1:
                length *= min(1.0, 1.0 / float(absolute(gradient).sum()))
            slope = float(dot(gradient, direction))
            if slope > -options["tolerance_change"]:
                break
            before, last = loss, turn + 1 == options["max_iter"]
            if options["line_search_fn"]:
                start = [p.clone() for p in self._parameters]

                def at(
                    t: float, start: list[Tensor] = start, along: Tensor = direction
                ) -> tuple[float, Tensor]:
                    self._move(t, along)
                    found = float(_evaluated(closure)), self._gradient()
                    for p, old in zip(self._parameters, start, strict=True):
                        p.copy_(old)
                    return found

                found = _strong_wolfe(at, length, direction, loss, gradient, slope)
                loss, gradient, length, used = found
                self._move(length, direction)
                calls += used
            else:
                self._move(length, direction)
                if not last:
                    loss, gradient = float(_evaluated(closure)), self._gradient()
                    calls += 1
            memory.length = length
            tiny = options["tolerance_change"]
            still = _largest(direction) * abs(length) <= tiny or abs(loss - before) < tiny
            if calls >= options["max_eval"] or still:
                break
        memory.calls += calls
        memory.loss = loss
        self.state["step"] += 1
        return first


def _evaluated(closure: Closure) -> Any:
    with enable_grad():
        return closure()


def _largest(x: Tensor) -> float:
    return float(absolute(x).max()) if x.meta.numel else 0.0


class _Memory:
    """Differences of parameters and gradients between updates, and the direction they give."""

    def __init__(self) -> None:
        self.turns = 0
        self.calls = 0
        self.length = 0.0
        self.loss = 0.0
        # One row for each update, the newest last.
        self.steps: Tensor | None = None
        self.changes: Tensor | None = None
        # steps[i] @ changes[j] for i <= j, zeros elsewhere; changes[i] @ changes[j] for all.
        self.crossed: Array = np.zeros((0, 0))
        self.squares: Array = np.zeros((0, 0))
        self.previous: tuple[Tensor, Tensor] | None = None

    def saved(self) -> dict[str, Any]:
        """The history as PyTorch's state dicts have it."""
        gradient, direction = self.previous or (None, None)
        products = self.crossed.diagonal()
        found: dict[str, Any] = {
            "func_evals": self.calls,
            "n_iter": self.turns,
            "d": direction,
            "t": self.length,
            "old_dirs": [] if self.changes is None else list(self.changes),
            "old_stps": [] if self.steps is None else list(self.steps),
            "ro": [tensor(1 / x) for x in products],
            "H_diag": tensor(products[-1] / self.squares[-1, -1]) if products.size else 1,
            "prev_flat_grad": gradient,
            "prev_loss": self.loss,
        }
        return found

    @classmethod
    def of(
        cls, saved: dict[str, Any], vector: Callable[[TensorLike], Tensor], limit: int
    ) -> _Memory:
        """Inverse of `saved`. vector: lays values out as a gradient of all parameters."""
        memory = cls()
        memory.turns, memory.calls = int(saved["n_iter"]), int(saved["func_evals"])
        if not memory.turns:
            return memory
        memory.length, memory.loss = float(saved["t"]), float(saved["prev_loss"])
        memory.previous = vector(saved["prev_flat_grad"]), vector(saved["d"])
        for s, y in zip(saved["old_stps"], saved["old_dirs"], strict=True):
            memory._append(vector(s), vector(y), limit)
        return memory

    def direction(self, gradient: Tensor, limit: int) -> Tensor:
        """The two-loop recursion of Nocedal and Wright, algorithm 7.4.

        Each loop is a substitution in a triangular system of inner products (Byrd, Nocedal and
        Schnabel, Mathematical Programming 63, 1994). Four products with a matrix read and combine
        the vectors, however long the history is.
        """
        self.turns += 1
        if self.previous is not None:
            self._remember(gradient, limit)
        found: Tensor = -gradient
        if self.steps is not None and self.changes is not None:
            along_s, along_y = _read(mv(self.steps, found)), _read(mv(self.changes, found))
            diagonal = self.crossed.diagonal()
            scale = diagonal[-1] / self.squares[-1, -1]
            first = _substituted(self.crossed[::-1, ::-1], along_s[::-1])[::-1]
            rest = along_y - (self.squares * first).sum(1)
            second = _substituted(self.crossed.T, diagonal * first - scale * rest)
            found = (found - _combined(first, self.changes)) * float(scale)
            found = found + _combined(second, self.steps)
        self.previous = (gradient, found)
        return found

    def _remember(self, gradient: Tensor, limit: int) -> None:
        """Add the last update to the history, unless the function curves down along it."""
        old, direction = self.previous or (gradient, gradient)
        y: Tensor = gradient - old
        s: Tensor = direction * self.length
        if float(dot(y, s)) > 1e-10:
            self._append(s, y, limit)

    def _append(self, s: Tensor, y: Tensor, limit: int) -> None:
        self.steps = steps = _appended(self.steps, s, limit)
        self.changes = changes = _appended(self.changes, y, limit)
        self.crossed = _grown(self.crossed, _read(mv(steps, y)))
        self.squares = _grown(self.squares, _read(mv(changes, y)))
        self.squares[-1] = self.squares[:, -1]


def _read(x: Tensor) -> Array:
    """Inner products in float64."""
    return x.to(float64).numpy()


def _appended(rows: Tensor | None, row: Tensor, limit: int) -> Tensor:
    """The last rows, at most `limit` with the new one."""
    row = reshape(row, (1, -1))
    if rows is None:
        return row
    count = rows.shape[0]
    kept = min(count, limit - 1)
    return cat([narrow(rows, 0, count - kept, kept), row], 0)


def _grown(matrix: Array, column: Array) -> Array:
    """The last rows and columns, a new column beside them and a row of zeros below."""
    kept = len(column) - 1
    grown = np.zeros((kept + 1, kept + 1))
    grown[:kept, :kept] = matrix[len(matrix) - kept :, len(matrix) - kept :]
    grown[:, -1] = column
    return grown


def _substituted(lower: Array, b: Array) -> Array:
    """The solution of a lower triangular system. A call of LAPACK may wake threads, which take
    longer than this.
    """
    x = np.zeros_like(b)
    for i, row in enumerate(lower):
        x[i] = (b[i] - row[:i] @ x[:i]) / row[i]
    return x


def _combined(weights: Array, rows: Tensor) -> Tensor:
    """The sum of rows, each by its weight."""
    where = layout_of(rows, no_partial=True, ndim=0)
    found: Tensor = mv(transpose(rows, 0, 1), tensor(weights, dtype=rows.dtype, **where))
    return found


Point = tuple[float, float, Tensor, float]  # length, loss, gradient, slope


def _strong_wolfe(
    at: Callable[[float], tuple[float, Tensor]],
    length: float,
    direction: Tensor,
    loss: float,
    gradient: Tensor,
    slope: float,
    most: int = 25,
) -> tuple[float, Tensor, float, int]:
    """(loss, gradient, length, evaluations) of a length that falls enough and is flat enough."""
    biggest = _largest(direction)

    def point(t: float) -> Point:
        f, g = at(t)
        return t, f, g, float(dot(g, direction))

    def falls(p: Point) -> bool:
        return p[1] <= loss + 1e-4 * p[0] * slope

    def is_flat(p: Point) -> bool:
        return abs(p[3]) <= -0.9 * slope

    before: Point = (0.0, loss, gradient, slope)
    now, used = point(length), 1
    bracket: list[Point] = []
    for turn in range(most):
        if not falls(now) or (turn > 0 and now[1] >= before[1]):
            bracket = [before, now]
        elif is_flat(now):
            return now[1], now[2], now[0], used
        elif now[3] >= 0:
            bracket = [before, now]
        if bracket:
            break
        low, high = now[0] + 0.01 * (now[0] - before[0]), now[0] * 10
        t = _cubic(before, now, (low, high))
        before, now = now, point(t)
        used += 1
    if not bracket:
        bracket = [(0.0, loss, gradient, slope), now]
    bracket.sort(key=lambda p: p[1])  # the better end comes first
    stalled = False
    while used < most:
        best, other = bracket
        left, right = sorted((best[0], other[0]))
        if (right - left) * biggest < 1e-9:
            break
        t = _cubic(best, other, (left, right))
        margin = 0.1 * (right - left)
        if min(right - t, t - left) < margin:
            if stalled or t >= right or t <= left:
                t = right - margin if abs(t - right) < abs(t - left) else left + margin
                stalled = False
            else:
                stalled = True
        else:
            stalled = False
        new = point(t)
        used += 1
        if not falls(new) or new[1] >= best[1]:
            bracket = [best, new]
        else:
            if is_flat(new):
                bracket = [new, best]
                break
            bracket = [new, best if new[3] * (other[0] - best[0]) >= 0 else other]
    best = bracket[0]
    return best[1], best[2], best[0], used


def _cubic(a: Point, b: Point, bounds: tuple[float, float]) -> float:
    """The minimum of the cubic through two points with their slopes, within bounds."""
    if a[0] > b[0]:
        a, b = b, a
    low, high = bounds
    d1 = a[3] + b[3] - 3 * (a[1] - b[1]) / (a[0] - b[0])
    square = d1 * d1 - a[3] * b[3]
    if square < 0:
        return (low + high) / 2.0
    d2 = math.sqrt(square)
    t = b[0] - (b[0] - a[0]) * ((b[3] + d2 - d1) / (b[3] - a[3] + 2 * d2))
    return min(max(t, low), high)
