"""Inner names of `torch.optim.optimizer`, which optimizers outside of PyTorch import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from oneflow import optim
from oneflow.optim.optimizer import Params
from oneflow.tensor.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])

ParamsT: TypeAlias = "Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]"
Args: TypeAlias = "tuple[Any, ...]"
Kwargs: TypeAlias = "dict[str, Any]"
StateDict: TypeAlias = "dict[str, Any]"


class _Required:
    """A value that stands for an option which must be given."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()
_params_doc = _foreach_doc = _fused_doc = _maximize_doc = _capturable_doc = _differentiable_doc = ""


def _default_to_fused_or_foreach(
    params: Sequence[Tensor], differentiable: bool, use_fused: bool = False
) -> tuple[bool, bool]:
    """Return (False, False): an optimizer's own loop over tensors is as quick."""
    return False, False


def _use_grad_for_differentiable(func: F) -> F:
    """Return the function as it is: a program that differentiates a step leaves gradients on."""
    return func


def _get_capturable_supported_devices(supports_xla: bool = True) -> list[str]:
    """Return the kinds of devices on which a step can be part of a graph."""
    return ["cuda", "cpu"]


def _get_value(x: object) -> Any:
    """Return a tensor's number, or the number itself."""
    return x.item() if isinstance(x, Tensor) else x


def _stack_if_compiling(x: object) -> Any:
    """Return the numbers as they are: nothing is compiled."""
    return x


def _dispatch_sqrt(x: Tensor | float) -> Any:
    """Return the square root of a tensor or a number."""
    return x.sqrt() if isinstance(x, Tensor) else x**0.5


def _view_as_real(params: Sequence[Tensor], *state_and_grads: list[Tensor]) -> None:
    """Change nothing: complex parameters stay complex."""


# ---- optimizers whose defaults differ, as a mocked `torch.optim` has them ------------------------


class AdamW(optim.AdamW):
    """AdamW with PyTorch's decay where none is given: 0.01."""

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        **options: object,
    ) -> None:
        given: Any = options
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **given)


class Adagrad(optim.Adagrad):
    """Adagrad with PyTorch's rate where none is given: 0.01."""

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.01,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        **options: object,
    ) -> None:
        given: Any = options
        super().__init__(params, lr, lr_decay, weight_decay, **given)


class RMSprop(optim.RMSprop):
    """RMSprop with PyTorch's rate where none is given: 0.01."""

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.01,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        **options: object,
    ) -> None:
        given: Any = options
        super().__init__(params, lr, alpha, eps, weight_decay, momentum, **given)


class PolynomialLR(optim.lr_scheduler.PolynomialLR):
    """PolynomialLR with PyTorch's arguments: it ends at 0."""

    def __init__(
        self,
        optimizer: optim.Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, total_iters=total_iters, power=power, last_epoch=last_epoch)
