"""Optimizers of rows, and those that only rows are made for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from oneflow.one_embedding.embedding import Embedding
from oneflow.ops.update import FtrlUpdate
from oneflow.optim.adam import Adam
from oneflow.optim.optimizer import Optimizer as Base
from oneflow.optim.optimizer import ParamGroup, Params, Rule


class Optimizer:
    """An optimizer that also updates the rows of embeddings, whether its parameters name them or
    not: shadows that it lacks join its first group.

    Everything else is the optimizer's own.
    """

    def __init__(self, optimizer: Base, embeddings: Embedding | Sequence[Embedding]) -> None:
        self.optimizer = optimizer
        self.embeddings = [embeddings] if isinstance(embeddings, Embedding) else list(embeddings)
        known = {id(p) for group in optimizer.param_groups for p in group.parameters}
        for embedding in self.embeddings:
            if id(embedding.shadow) not in known:
                optimizer.param_groups[0]["params"].append(embedding.shadow)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of parameters and rows: `Optimizer.step` of the optimizer."""
        return self.optimizer.step(closure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optimizer"], name)


class Ftrl(Base):
    """Follow the regularised leader (McMahan and others, KDD 2013), of rows and of parameters.

    lambda1, lambda2: factors of the L1 and L2 terms.  beta: added to the root of the accumulator.
    initial_accumulator_value: the accumulator's first value.  lr_power: the power of
    the accumulator; its sign is upstream's, so that 0.5 is the paper's root.
    """

    state_names = ("accumulate", "z")

    def __init__(
        self,
        params: Params,
        lr: float = 0.001,
        weight_decay: float = 0.0,
        lr_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        lambda1: float = 0.0,
        lambda2: float = 0.0,
        beta: float = 0.0,
    ) -> None:
        options = {
            "lr": lr,
            "weight_decay": weight_decay,
            "lr_power": lr_power,
            "initial_accumulator_value": initial_accumulator_value,
            "lambda1": lambda1,
            "lambda2": lambda2,
            "beta": beta,
        }
        super().__init__(params, options)

    def check_options(self, group: ParamGroup) -> None:
        super().check_options(group)
        for name in ("initial_accumulator_value", "lambda1", "lambda2"):
            if not group[name] >= 0.0:
                raise ValueError(f"Invalid {name}: {group[name]}; it must be at least 0")

    def initial_value(self, group: ParamGroup, name: str) -> float:
        value: float = group["initial_accumulator_value"] if name == "accumulate" else 0.0
        return value

    def rule(self, group: ParamGroup) -> Rule:
        return FtrlUpdate, {
            "lr_power": group["lr_power"],
            "l1": group["lambda1"],
            "l2": group["lambda2"],
            "beta": group["beta"],
            "weight_decay": group["weight_decay"],
        }


class SmartDecayAdam(Adam):
    """Adam for rows that get no gradient in most steps.

    When a row gets one again, its running means are decayed for the steps that it missed, as zero
    gradients would have done, and it moves as far as its momentum would have moved it, with the
    root of the second mean held at its last value. Dense parameters are updated as by Adam.
    """

    catches_up = True
