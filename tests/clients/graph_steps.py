"""Training steps of a model: eager on PyTorch, compiled by nn.Graph on the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .inputs import fill, is_library

STEPS = 3


def tensors_of(value: Any) -> Iterator[Any]:
    """Yield the floating-point tensors of nested outputs."""
    if hasattr(value, "detach"):
        if value.is_floating_point():
            yield value
    elif hasattr(value, "values"):
        for one in value.values():
            yield from tensors_of(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_of(one)


def trained(
    torch: Any,
    model: Any,
    *inputs: Any,
    pick: Callable[[Any], Any] = lambda out: out,
    rate: float = 1e-2,
    trains: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Return the outputs of a model in evaluation mode, and the losses of three steps of SGD.

    Args:
        torch: PyTorch, or the library, which runs both as graphs.
        model: Gets the weights of `fill`.
        inputs: Tensors that both are called with.
        pick: Takes the output that counts out of the model's results.
        rate: Learning rate.
        trains: False for models without parameters.
        options: Keyword arguments of the model that are no tensors.
    """
    fill(model).eval()
    steps = graph_steps if is_library(torch) else eager_steps
    return steps(torch, model, inputs, lambda *given: pick(model(*given, **options)), rate, trains)


def loss_of(out: Any) -> Any:
    """Mean square of all outputs."""
    return sum(one.square().mean() for one in tensors_of(out))


def eager_steps(
    torch: Any, model: Any, inputs: Any, call: Callable[..., Any], rate: float, trains: bool
) -> dict[str, Any]:
    with torch.no_grad():
        outputs = list(tensors_of(call(*inputs)))
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=rate) if trains else None
    for _ in range(STEPS if trains else 0):
        loss = loss_of(call(*inputs))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"outputs": outputs, "losses": losses}


def graph_steps(
    torch: Any, model: Any, inputs: Any, call: Callable[..., Any], rate: float, trains: bool
) -> dict[str, Any]:
    class Forward(torch.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def build(self, *given: Any) -> Any:
            return list(tensors_of(call(*given)))

    with torch.no_grad():
        outputs = list(tensors_of(Forward()(*inputs)))
    if not trains:
        return {"outputs": outputs, "losses": []}

    class Training(Forward):
        def __init__(self) -> None:
            super().__init__()
            self.add_optimizer(torch.optim.SGD(model.parameters(), lr=rate))

        def build(self, *given: Any) -> Any:
            loss = loss_of(call(*given))
            loss.backward()
            return loss

    graph = Training()
    return {"outputs": outputs, "losses": [graph(*inputs).item() for _ in range(STEPS)]}
