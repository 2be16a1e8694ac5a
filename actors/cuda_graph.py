"""A segment's kernels as CUDA graphs: recorded in its second act, replayed with one launch from
then on.

Some calls cannot be recorded and run between the graphs as they are: calls that wait for the GPU,
which CUDA refuses while it records, and calls that copy values of the host, which CuPy refuses,
since a graph would repeat those of today for ever. Random numbers are recorded where their kernels
read the seed on the GPU: one launch before the graph makes the seeds of the act.

ONEFLOW_CUDA_GRAPHS=0 turns all of it off. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from oneflow.actors.draws import RandomCall
from oneflow.core.log import get_logger
from oneflow.kernels.array import Array
from oneflow.kernels.draw_seeds import DrawSeeds
from oneflow.kernels.expressions.cuda_form import SPENT

Call = Callable[[], Any]
Blame = Callable[[Exception, int], None]

log = get_logger(__name__)


class Recordings:
    """The CUDA graphs of one bound plan: the memory that they allocate, and figures about them.

    Graphs of a rank run one after another, so they share the memory of their temporaries, which
    comes from a pool of its own: nobody else is given memory that a graph writes to.
    num_graphs, num_calls: recorded so far.  plain: calls that run one by one.
    """

    def __init__(self) -> None:
        import cupy

        self.cupy: Any = cupy
        self.pool = cupy.cuda.MemoryPool()
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        self.num_graphs = self.num_calls = self.plain = 0
        self._lines: list[str] = []

    def tell(self, line: str) -> None:
        """Keep a line for `debug(2)`."""
        self._lines.append(line)
        log.info("%s", line)

    def take_lines(self) -> list[str]:
        """The lines that came since the last time."""
        found, self._lines = self._lines, []
        return found


class Replayed:
    """The calls of a segment's act on arrays that stay where they are.

    name: of the actor, for messages.  draws: which of the calls are random.  blame: adds the user's
    line to an error of a call, by its number.

    The first act runs the calls as they are, which compiles their kernels; the second records them.
    Random numbers of a micro-batch whose rows lie on several ranks have a recording for each piece.
    """

    def __init__(
        self, name: str, calls: Sequence[Call], recordings: Recordings, blame: Blame | None = None
    ) -> None:
        self._name, self._calls, self._recordings, self._blame = name, calls, recordings, blame
        self._draws = {i: c for i, c in enumerate(calls) if isinstance(c, RandomCall)}
        self._differ = any(draw.differs_by_piece for draw in self._draws.values())
        self._acts: dict[int, int] = {}
        self._recorded: dict[int, _Recorded] = {}
        self._seeds: dict[int, list[Array]] = {}  # of each draw, while it is recorded

    def __call__(self) -> None:
        piece = 0
        for draw in self._draws.values():
            piece = max(piece, draw.begin_act())
        key = piece if self._differ else 0
        recorded = self._recorded.get(key)
        if recorded is None:
            acts = self._acts[key] = self._acts.get(key, 0) + 1
            if acts == 1:
                self._run_first(piece)
                return
            recorded = self._recorded[key] = self._record(piece)
        if recorded.seeds is not None:
            recorded.seeds.make(piece)
        for part in recorded.parts:
            if isinstance(part, range):
                self._run(part, piece)
            else:
                part.launch()

    def _run_first(self, piece: int) -> None:
        """The calls as they are, which compiles their kernels."""
        functions, seconds = SPENT.functions, SPENT.seconds
        self._run(range(len(self._calls)), piece)
        if SPENT.functions > functions:
            count, took = SPENT.functions - functions, SPENT.seconds - seconds
            self._tell(f"{count} kernels compiled or loaded in {took:.2f} s")

    def _run(self, numbers: range, piece: int) -> None:
        """Some calls as they are."""
        for i in numbers:
            try:
                draw = self._draws.get(i)
                if draw is not None:
                    draw.run(piece)
                else:
                    self._calls[i]()
            except Exception as error:
                if self._blame is not None:
                    self._blame(error, i)
                raise

    # ---- recording -------------------------------------------------------------------------------

    def _record(self, piece: int) -> _Recorded:
        asked = {i: c.seeds_of(piece) for i, c in self._draws.items() if c.reads_seed}
        draws = next(iter(self._draws.values()), None)
        seeds: DrawSeeds | None = None
        arrays: dict[int, list[Array]] = {}
        if asked and draws is not None:
            wanted = [seed for some in asked.values() for seed in some]
            seeds = DrawSeeds(wanted, draws.clock)
            made = iter(seeds.arrays)
            arrays = {i: [next(made) for _ in some] for i, some in asked.items()}
        self._seeds = arrays
        parts, first = [], 0
        for i in [*(i for i in self._draws if i not in asked), len(self._calls)]:
            parts += self._graphs_of(range(first, i), piece)
            if i < len(self._calls):
                self._say(i, "its random numbers are made on the host")
                parts.append(range(i, i + 1))
            first = i + 1
        graphs = [part for part in parts if not isinstance(part, range)]
        recorded = sum(part.num_calls for part in graphs)
        plain = len(self._calls) - recorded
        total = self._recordings
        total.num_graphs += len(graphs)
        total.num_calls += recorded
        total.plain += plain
        rest = f", {plain} calls run one by one" if plain else ""
        self._tell(f"{len(graphs)} CUDA graphs of {recorded} calls{rest}")
        return _Recorded(_merged(parts), seeds if graphs else None)

    def _graphs_of(self, numbers: range, piece: int) -> list[_Part]:
        """The calls as one graph, or as several around those that cannot be recorded."""
        if not numbers:
            return []
        graph, bad, reason = self._capture(numbers, piece)
        if graph is not None:
            return [_Graph(graph.launch, len(numbers))]
        if bad is None:
            self._tell(f"not recorded in a CUDA graph: {reason}")
            return [numbers]
        self._say(bad, reason)
        before, after = range(numbers.start, bad), range(bad + 1, numbers.stop)
        beside = [range(bad, bad + 1), *self._graphs_of(after, piece)]
        return [*self._graphs_of(before, piece), *beside]

    def _capture(self, numbers: range, piece: int) -> tuple[Any, int | None, str]:
        """(the graph, the call that failed, why). Nothing is executed while it is recorded, so a
        recording that fails has changed nothing.
        """
        recordings = self._recordings
        cuda, stream = recordings.cupy.cuda, recordings.stream
        with stream, cuda.using_allocator(recordings.pool.malloc):
            stream.begin_capture()
            for i in numbers:
                try:
                    draw = self._draws.get(i)
                    if draw is not None:
                        draw.run(piece, iter(self._seeds[i]))
                    else:
                        self._calls[i]()
                except Exception as error:  # of a mistake: raised again by the call that runs it
                    self._end_failed()
                    return None, i, str(error)
            try:
                return stream.end_capture(), None, ""
            except cuda.runtime.CUDARuntimeError as error:
                return None, None, str(error)

    def _end_failed(self) -> None:
        try:
            self._recordings.stream.end_capture()
        except self._recordings.cupy.cuda.runtime.CUDARuntimeError:
            return  # as CUDA ends a recording that was invalidated

    def _say(self, call: int, reason: str) -> None:
        """Tell which call runs by itself, where the user wrote it, and why."""
        error = RuntimeError(f"not recorded in a CUDA graph: {reason}")
        if self._blame is not None:
            self._blame(error, call)
        self._tell(" ".join(str(error).split()))

    def _tell(self, text: str) -> None:
        self._recordings.tell(f"{self._name}: {text}")


class _Graph(NamedTuple):
    """A recorded graph of some calls."""

    launch: Call
    num_calls: int


_Part = _Graph | range


class _Recorded(NamedTuple):
    """An act: graphs, and the calls between them.  seeds: made before."""

    parts: list[_Part]
    seeds: DrawSeeds | None


def _merged(parts: list[_Part]) -> list[_Part]:
    """Neighbours that are not recorded are one part."""
    found: list[_Part] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, range) and isinstance(last, range):
            found[-1] = range(last.start, part.stop)
        else:
            found.append(part)
    return found
