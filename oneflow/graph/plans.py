"""The plans of a graph: for inputs of several shapes, and for its modules in several modes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from oneflow.core.errors import ConfigError
from oneflow.functional.promotion import get_default_dtype
from oneflow.tensor.grad_mode import switches

if TYPE_CHECKING:
    from oneflow.graph.compiling import Built, Compiled
    from oneflow.nn.module import Module
    from oneflow.tensor.tensor import Tensor


def check_shared(mode: bool) -> None:
    """Raises ConfigError for plans that are not to share their variables."""
    if not mode:
        raise ConfigError(
            "enable_shared: the plans of a graph always work on the same variables; make a graph "
            "of its own, with modules of its own, for what is not to be shared"
        )


class Modes:
    """The modes in which modules were traced: `training`, their parts, `requires_grad` and the
    memory of their tensors, and the default dtype."""

    def __init__(self, modules: Iterable[Module], tensors: Iterable[Tensor]) -> None:
        self._modules = [(module, module.training, _parts_of(module)) for module in modules]
        self._tensors = [(x, x._requires_grad, x._array) for x in tensors]
        self._default_dtype = get_default_dtype()

    def settle(self) -> None:
        """The graph was bound to the memory that tensors have now."""
        self._tensors = [(x, was, x._array) for x, was, _ in self._tensors]

    def hold(self) -> bool:
        """True if all are in these modes now."""
        return (
            self._default_dtype is get_default_dtype()
            and all(m.training == was and _parts_of(m) == parts for m, was, parts in self._modules)
            and all(
                x._requires_grad == was and x._array is array for x, was, array in self._tensors
            )
        )


def _parts_of(module: Module) -> list[int]:
    """The identities of a module's own tensors and modules, which the graph keeps alive."""
    tables = module._parameters, module._buffers, module._modules
    return [id(part) for table in tables for part in table.values()]


class Plans:
    """Compiled graphs, each for the arguments of a key and for modes of modules; the least recently
    used one goes.

    size: the number of plans that are kept; the first one stays in any case.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._first: Compiled | None = None
        self._kept: list[tuple[Hashable, Compiled]] = []
        """The oldest use first, the newest last."""
        self._current: Hashable = None
        """The key of the last call."""
        self.now: Compiled | None = None
        """The plan of the last call."""
        self.built: Built | None = None
        """A graph that was traced, but not compiled."""
        self.takes_shapes = False
        """Whether there is a plan for each shape of inputs."""
        self.first_step = 0
        """The number of the first step."""
        self.switches = -1
        """The count of switches of modes when those of the plan were last compared."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def steps_done(self) -> int:
        return self.first_step if self.now is None else self.now.job.step

    @property
    def kept(self) -> list[Compiled]:
        """The plans for the modes of now, the first one first, then from the oldest use to the
        newest.
        """
        found = [compiled for _, compiled in self._kept if compiled.modes.hold()]
        return sorted(found, key=lambda compiled: compiled is not self._first)

    def set_cache_size(self, size: int) -> None:
        """Keep so many plans from the next one on. Raises ValueError for less than one."""
        if size < 1:
            raise ValueError(f"set_cache_size: size must be at least 1, got {size}")
        self._size = size

    def enable_shared(self, mode: bool = True) -> None:
        """Says that plans share their variables, as they always do; False raises ConfigError."""
        check_shared(mode)

    def get(self, key: Hashable) -> Compiled | None:
        """The plan for a key and the modes of now, which is then the newest; None if none is."""
        for place, (known, compiled) in enumerate(self._kept):
            if known == key and compiled.modes.hold():
                self._kept.append(self._kept.pop(place))
                self._current = key
                return compiled
        return None

    def fits(self, key: Hashable) -> bool:
        """Whether the plan of the last call is for a key and the modes of now."""
        if self.now is None or key != self._current:
            return False
        return self.switches == switches.count or self.now.modes.hold()

    def keep(self, compiled: Compiled) -> None:
        """Take a plan as that of the next calls like those that it is for, and give up another one
        if there are too many.
        """
        key = compiled.arguments.key if self.takes_shapes else None
        self._first = self._first or compiled
        others = [place for place, (_, c) in enumerate(self._kept) if c is not self._first]
        self._kept.append((key, compiled))
        self._current, self.now = key, compiled
        if len(self._kept) > self._size and others:
            self._kept.pop(others[0])[1].job.close()


class CompiledNames:
    """The part of upstream's `graph._c_nn_graph` that says which variables a compiled graph has."""

    def __init__(self, plans: Plans) -> None:
        self._plans = plans

    def get_runtime_var_states(self) -> tuple[list[str], list[Tensor]]:
        """Names and tensors of the variables. No constants are among them: none are folded."""
        compiled = self._plans.now
        variables = {} if compiled is None else compiled.variables
        return list(variables), list(variables.values())
