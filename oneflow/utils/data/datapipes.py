"""Data pipes: data sets that are put together by chained calls, `pipe.map(f).shuffle().batch(8)`.

A class that is decorated with `functional_datapipe("name")` becomes a method `name` of all pipes of
its kind: streams (`IterDataPipe`) or maps from indices to samples (`MapDataPipe`).
"""

from __future__ import annotations

import builtins  # importing the modules `map` and `iter` below sets their names here
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

import numpy as np

from oneflow.functional.random_state import host_seed
from oneflow.surfaces import accept_paths
from oneflow.utils.data.dataset import Dataset, IterableDataset, length

C = TypeVar("C", bound=type)
Column: TypeAlias = int | str | Sequence[int | str] | None
"""The item or items of a sample that a function is given; None: the whole sample."""
Sample: TypeAlias = Sequence[object] | Mapping[object, object]
"""A sample of which a function is given some items."""

_deterministic = False


class _Chaining:
    """The methods of pipes that `functional_datapipe` adds; each kind has a table of its own."""

    functions: ClassVar[dict[str, Callable[..., Any]]]

    def __getattr__(self, name: str) -> Any:
        made = None if name.startswith("__") else type(self).functions.get(name)
        if made is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return partial(made, self)

    @classmethod
    def register_function(cls, function_name: str, function: Callable[..., Any]) -> None:
        """Lets `pipe.function_name(...)` call `function(pipe, ...)`."""
        cls.functions[function_name] = function

    @classmethod
    def register_datapipe_as_function(
        cls, function_name: str, cls_to_register: Callable[..., Any], *_: object
    ) -> None:
        """The same for a class of pipes. Raises ValueError for a name that is taken."""
        if function_name in cls.functions:
            raise ValueError(f"a data pipe called {function_name!r} has been registered already")
        cls.functions[function_name] = cls_to_register


class IterDataPipe(_Chaining, IterableDataset[Any]):
    """A stream of samples; subclasses define `__iter__`, and `reset` if they keep a state."""

    functions: ClassVar[dict[str, Callable[..., Any]]] = {}

    def reset(self) -> None:
        """Goes back to the state before the first sample."""


class MapDataPipe(_Chaining, Dataset[Any]):
    """A map from indices (or keys) to samples; subclasses define `__getitem__`."""

    functions: ClassVar[dict[str, Callable[..., Any]]] = {}


class functional_datapipe:  # upstream's name
    """Decorates a class of pipes: `@functional_datapipe("map")` adds the method `map`."""

    def __init__(self, name: str, enable_df_api_tracing: bool = False) -> None:
        self.name, self.enable_df_api_tracing = name, enable_df_api_tracing

    def __call__(self, cls: C) -> C:
        for kind in (IterDataPipe, MapDataPipe):
            if issubclass(cls, kind):
                kind.register_datapipe_as_function(self.name, cls)
                return cls
        raise TypeError("functional_datapipe can only decorate IterDataPipe or MapDataPipe")


class guaranteed_datapipes_determinism:  # upstream's name
    """Inside `with`, or after a call with True: pipes marked `non_deterministic` are refused."""

    def __init__(self, guaranteed: bool = True) -> None:
        global _deterministic
        self.before, _deterministic = _deterministic, guaranteed

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        global _deterministic
        _deterministic = self.before


def non_deterministic(arg: type | Callable[..., bool]) -> Any:
    """Marks a class of pipes whose samples may come in another order each time; or one that does so
    where the function given says True for the pipe's arguments. Making a pipe of it raises
    TypeError while determinism is guaranteed.
    """
    if isinstance(arg, type):
        return _refusing(arg, lambda *_, **__: True)
    return lambda cls: _refusing(cls, arg)


def _refusing(cls: C, applies: Callable[..., bool]) -> C:
    changed: Any = cls
    first = changed.__init__

    def __init__(self: object, *args: object, **keywords: object) -> None:
        if _deterministic and applies(*args, **keywords):
            raise TypeError(
                f"{cls.__name__} is non-deterministic, but determinism of data pipes is guaranteed"
            )
        first(self, *args, **keywords)

    changed.__init__ = __init__
    return cls


# ---- streams -------------------------------------------------------------------------------------


class IterableWrapper(IterDataPipe):
    """The items of an iterable, as a pipe. deepcopy is accepted: the items are not copied."""

    def __init__(self, iterable: Iterable[Any], deepcopy: bool = True) -> None:
        self.iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        return builtins.iter(self.iterable)

    def __len__(self) -> int:
        return length(self.iterable)


def _columns(column: Column) -> list[Any]:
    return list(column) if isinstance(column, list | tuple) else [column]


def _picked(sample: Sample, columns: list[Any]) -> list[object]:
    source: Any = sample
    return [source[c] for c in columns]


@functional_datapipe("map")
class Mapper(IterDataPipe):
    """fn of each sample. input_col: the item, key or tuple of them that fn is given; its result is
    put at output_col, by default in their place (-1: at the end).
    """

    def __init__(
        self,
        datapipe: Iterable[Any],
        fn: Callable[..., Any],
        input_col: Column = None,
        output_col: int | str | None = None,
    ) -> None:
        if input_col is None and output_col is not None:
            raise ValueError("map: output_col needs input_col")
        self.datapipe, self.fn = datapipe, fn
        self.input_col, self.output_col = input_col, output_col

    def _applied(self, sample: Sample) -> Any:
        if self.input_col is None:
            return self.fn(sample)
        columns = _columns(self.input_col)
        result = self.fn(*_picked(sample, columns))
        kind: Any = type(sample)
        items: Any = dict(sample) if isinstance(sample, Mapping) else list(sample)
        if self.output_col == -1:
            items.append(result)
        elif self.output_col is not None:
            items[self.output_col] = result
        else:
            items[columns[0]] = result
            for c in sorted(columns[1:], reverse=True):
                del items[c]
        return items if isinstance(sample, dict | list) else kind(items)

    def __iter__(self) -> Iterator[Any]:
        return builtins.map(self._applied, self.datapipe)

    def __len__(self) -> int:
        return length(self.datapipe)


@functional_datapipe("filter")
class Filter(IterDataPipe):
    """The samples for which filter_fn says True; it is given the items at input_col, if any."""

    def __init__(
        self, datapipe: Iterable[Any], filter_fn: Callable[..., bool], input_col: Column = None
    ) -> None:
        self.datapipe, self.filter_fn, self.input_col = datapipe, filter_fn, input_col

    def _passes(self, sample: Sample) -> bool:
        if self.input_col is None:
            return bool(self.filter_fn(sample))
        return bool(self.filter_fn(*_picked(sample, _columns(self.input_col))))

    def __iter__(self) -> Iterator[Any]:
        return filter(self._passes, self.datapipe)


@functional_datapipe("batch")
class Batcher(IterDataPipe):
    """Lists of batch_size samples. drop_last: without a last list that is shorter."""

    def __init__(
        self,
        datapipe: Iterable[Any],
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: Callable[[list[Any]], Any] = list,
    ) -> None:
        if batch_size <= 0:
            raise ValueError(f"batch: batch_size must be at least 1, got {batch_size}")
        self.datapipe, self.batch_size, self.drop_last = datapipe, batch_size, drop_last
        self.wrapper_class = wrapper_class

    def __iter__(self) -> Iterator[Any]:
        source = builtins.iter(self.datapipe)
        while batch := list(islice(source, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield self.wrapper_class(batch)

    def __len__(self) -> int:
        size = length(self.datapipe)
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)


@functional_datapipe("unbatch")
class UnBatcher(IterDataPipe):
    """The samples of lists, unbatch_level levels deep; -1: of all lists in them."""

    def __init__(self, datapipe: Iterable[Any], unbatch_level: int = 1) -> None:
        if unbatch_level < -1:
            raise ValueError(f"unbatch: unbatch_level must be at least -1, got {unbatch_level}")
        self.datapipe, self.unbatch_level = datapipe, unbatch_level

    def __iter__(self) -> Iterator[Any]:
        for sample in self.datapipe:
            yield from self._items(sample, self.unbatch_level)

    def _items(self, sample: object, level: int) -> Iterator[Any]:
        if level == 0 or (level == -1 and not isinstance(sample, list)):
            yield sample
            return
        items: Iterable[object] = cast("Iterable[object]", sample)
        for item in items:
            yield from self._items(item, level if level == -1 else level - 1)


@functional_datapipe("shuffle")
class Shuffler(IterDataPipe):
    """The samples in a random order: each is drawn from the buffer_size ones that come next."""

    def __init__(
        self, datapipe: Iterable[Any], *, buffer_size: int = 10000, unbatch_level: int = 0
    ) -> None:
        if buffer_size <= 0:
            raise ValueError(f"shuffle: buffer_size must be at least 1, got {buffer_size}")
        self.datapipe = UnBatcher(datapipe, unbatch_level) if unbatch_level else datapipe
        self.buffer_size, self.enabled = buffer_size, True
        self._seed: int | None = None

    def set_shuffle(self, shuffle: bool = True) -> Shuffler:
        """Whether samples are shuffled at all; returns the pipe."""
        self.enabled = shuffle
        return self

    def set_seed(self, seed: int) -> Shuffler:
        """Fixes the next order; without it the default generator does. Returns the pipe."""
        self._seed = seed
        return self

    def __iter__(self) -> Iterator[Any]:
        if not self.enabled:
            yield from self.datapipe
            return
        rng = np.random.default_rng(host_seed() if self._seed is None else self._seed)
        self._seed = None
        buffer: list[Any] = []
        for sample in self.datapipe:
            buffer.append(sample)
            if len(buffer) == self.buffer_size:
                yield _drawn(buffer, rng)
        while buffer:
            yield _drawn(buffer, rng)

    def __len__(self) -> int:
        return length(self.datapipe)


def _drawn(buffer: list[Any], rng: np.random.Generator) -> Any:
    at = int(rng.integers(len(buffer)))
    buffer[at], buffer[-1] = buffer[-1], buffer[at]
    return buffer.pop()


# ---- maps ----------------------------------------------------------------------------------------


class SequenceWrapper(MapDataPipe):
    """The items of a sequence or mapping, as a pipe. deepcopy is accepted: they are not copied."""

    def __init__(self, sequence: Sequence[Any] | Mapping[Any, Any], deepcopy: bool = True) -> None:
        self.sequence = sequence

    def __getitem__(self, index: int) -> Any:
        return self.sequence[index]

    def __len__(self) -> int:
        return len(self.sequence)


accept_paths(__name__)
