"""Products of a GPU with the ops that follow them: bias, residual, GELU or ReLU and the gradients
of these are computed by cuBLASLt as it writes the result, instead of by kernels that read it again.

    linear, [add], [gelu or relu]        x @ w^T + bias, residual, activation; gelu keeps its input
    matmul, [scalar_mul], [add] ...      the same without a bias of its own
    matmul, gelu_grad, [sum_rows]        the gradient of a GELU, and that of the bias before it
    matmul_weight_grad, sum_rows         the gradients of a weight and of a bias

Only the tanh form of GELU is joined, because the library has no other. A chain grows as long as the
library has a way to compute it, which it is asked while ranks bind; then it runs where its last op
stood, under the rules of fusing.py. The rest of the ops go on to those kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from oneflow.actors.fusing import Fact, Line, bind_alike
from oneflow.actors.live_bytes import LiveBytes
from oneflow.core.expression import apply, scalar, symbol
from oneflow.core.graph import Node, Value
from oneflow.core.job_config import ADD_TO_OUTPUT
from oneflow.core.op import infer_types
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels import cublas_lt
from oneflow.kernels.cuda_products import find_plan
from oneflow.ops.activation import Gelu, GeluGrad
from oneflow.ops.matmul import Product, SumRows

if TYPE_CHECKING:
    from oneflow.actors.segment import BoundNode

Finds = Callable[[Sequence[TensorType], tuple[bool, bool], float, tuple[str, ...]], object]
"""Whether there is a way to compute a product: types of the output, a and b, which of a and b are
transposed, scale, epilogue."""

_DTYPES = ("float32", "float16", "bfloat16")
_WORDS = {
    symbol("a") + symbol("b"): "added",
    symbol("x") * scalar("value"): "scale",
    apply("relu", symbol("x")): "relu",
    Gelu.formula(approximate="tanh"): "gelu",
    GeluGrad.formula(approximate="tanh"): "gelu_grad",
}
"""Formulas of ops that the library computes of a product as it writes it."""
_NO_WAY = "cuBLASLt has no product with it"


@dataclass(frozen=True)
class Chain:
    """A product with its epilogue.

    members: positions of its ops.  at: where it runs.  factors: a and b, with their types.
    operands, outputs: by the words of the epilogue that need or give them; "" is the output.
    """

    members: tuple[int, ...]
    at: int
    factors: tuple[tuple[Value, TensorType], tuple[Value, TensorType]]
    turned: tuple[bool, bool]
    type: TensorType
    scale: float = 1.0
    epilogue: frozenset[str] = frozenset()
    operands: dict[str, tuple[Value, TensorType]] = field(default_factory=dict)
    outputs: dict[str, Value] = field(default_factory=dict)

    @property
    def words(self) -> tuple[str, ...]:
        """The epilogue in its order."""
        return tuple(e for e in Product.EPILOGUE if e in self.epilogue)

    @property
    def attrs(self) -> Attrs:
        left, right = self.turned
        return {
            "transpose_a": left, "transpose_b": right, "scale": self.scale, "epilogue": self.words,
        }  # fmt: skip

    def with_word(self, word: str) -> Chain:
        return replace(self, epilogue=self.epilogue | {word})

    def with_operand(self, word: str, value: Value, type_: TensorType) -> Chain:
        return replace(self.with_word(word), operands={**self.operands, word: (value, type_)})

    def with_output(self, word: str, value: Value) -> Chain:
        return replace(self.with_word(word), outputs={**self.outputs, word: value})


def product_finder(device: str) -> Finds | None:
    """The library to ask for products on a kind of device; None if there is none."""
    return find_plan if device == "cuda" and not cublas_lt.why_not() else None


def products_line() -> str:
    """The line that names the library that computes the products of a GPU."""
    reason = cublas_lt.why_not()
    if reason:
        return f"products: cuBLAS; biases and activations are kernels of their own ({reason})"
    return f"products: cuBLASLt {cublas_lt.version()} with biases and activations, else cuBLAS"


def join_products(
    nodes: list[BoundNode],
    published: frozenset[int],
    device: str,
    finds: Finds,
    unfused: Sequence[str] = (),
) -> tuple[list[BoundNode], list[Fact]]:
    """The nodes of a segment with products in place of such chains, and the facts of the joined
    ops. unfused: see BindOptions.
    """
    joining = _Products(nodes, published, device, finds, unfused)
    return joining.result(), joining.facts


class _Products(Line):
    def __init__(
        self,
        nodes: Sequence[BoundNode],
        published: frozenset[int],
        device: str,
        finds: Finds,
        unfused: Sequence[str],
    ) -> None:
        super().__init__(nodes)
        self._published, self._device = published, device
        self._finds, self._unfused = finds, unfused
        self._live = LiveBytes(nodes, published) if nodes else None
        self._taken: set[int] = set()
        self._reasons: dict[int, str] = {}
        self._chains: dict[int, Chain] = {}
        for i in range(len(nodes)):
            chain = self._begin(i)
            if chain is not None:
                self._grow(chain)
        self.facts = list(self._make_facts())

    # ---- chains ----------------------------------------------------------------------------------

    def _begin(self, i: int) -> Chain | None:
        """The product that node `i` is; None if it is none that the library could join."""
        node, call = self._nodes[i].node, self._nodes[i].call
        if call.op.factors is None:
            return None
        made = call.op.factors(*call.in_types, **call.op.defaults | call.attrs)
        out = call.out_types[0]
        if made is None or out.dtype.name not in _DTYPES or not out.numel:
            return None
        operands = list(zip(node.inputs, call.in_types, strict=True))
        a, b = (operands[k] for k in made.operands)
        if not a[1].numel or a[1].ndim < 2:
            return None
        chain = Chain((i,), i, (a, b), made.turned, out, outputs={"": node.outputs[0]})
        return chain if made.bias is None else chain.with_operand("bias", *operands[made.bias])

    def _grow(self, chain: Chain) -> None:
        """Take in the ops that follow the product, as far as they can be computed with it."""
        start = chain.members[0]
        found = chain if chain.epilogue and self._has_way(chain) else None
        if chain.epilogue and found is None:
            self._reasons[start] = _NO_WAY
        while (longer := self._next(chain)) is not None:
            last = longer.members[-1]
            if not self._may_run_at(longer.at, chain.members, last):
                break
            if not self._has_way(longer):
                self._reasons[last] = _NO_WAY
                break
            if self._live is not None and self._live.join(chain.members, longer.at):
                break
            found = chain = longer
        for longer in self._with_sums(chain):
            if self._has_way(longer):
                found = chain = longer
                break
        if found is not None:
            self._taken.update(found.members)
            self._chains[found.at] = found

    def _has_way(self, chain: Chain) -> bool:
        types = (chain.type, *(t for _, t in chain.factors))
        return bool(self._finds(types, chain.turned, chain.scale, chain.words))

    def _may_run_at(self, at: int, members: tuple[int, ...], last: int) -> bool:
        if any(self.until(m) < at for m in members):
            return False
        return not self.reader_before(at, members, (*members, last))

    def _next(self, chain: Chain) -> Chain | None:
        """The chain with the op that reads its result; None if it ends here."""
        out = chain.outputs[""]
        if out.id in self._published or {"relu", "gelu", "gelu_grad"} & chain.epilogue:
            return None
        readers = self._readers.get(out.id, [])
        at = next((r for r in readers if self._word(r) == "gelu"), None)
        if at is None:
            at = readers[0] if len(readers) == 1 else None
        if at is None or at in self._taken:
            return None
        bound = self._nodes[at]
        taken = replace(
            chain, members=(*chain.members, at), at=at,
            outputs={**chain.outputs, "": bound.node.outputs[0]},
        )  # fmt: skip
        if bound.call.out_types[0] != chain.type:
            return None
        if self._word(at) == "gelu":
            if len(readers) == 1:
                return taken.with_word("gelu")
            return taken.with_word("gelu").with_output("saved", out)
        return self._next_alone(chain, taken) if len(readers) == 1 else None

    def _word(self, at: int) -> str:
        call = self._nodes[at].call
        return _WORDS.get(call.formula, "")

    def _next_alone(self, chain: Chain, taken: Chain) -> Chain | None:
        """The same for an op that is the only one to read the result."""
        out, word, bound = chain.outputs[""], self._word(taken.at), self._nodes[taken.at]
        node, call = bound.node, bound.call
        if word == "relu":
            return taken.with_word("relu")
        if word == "scale" and not chain.epilogue and chain.scale == 1.0:
            return replace(taken, scale=float(call.attrs["value"]))
        if len(node.inputs) != 2 or node.inputs[0] is node.inputs[1]:
            return None
        k = 1 if node.inputs[0] is out else 0
        other, type_ = node.inputs[k], call.in_types[k]
        if word == "gelu_grad" and k == 1:
            return None if chain.epilogue else taken.with_operand("gelu_grad", other, type_)
        is_wanted = ADD_TO_OUTPUT not in self._unfused
        if word != "added" or type_.dtype is not chain.type.dtype or not is_wanted:
            return None
        if type_.shape == chain.type.shape and type_.ndim > 1 and "added" not in chain.epilogue:
            return taken.with_operand("added", other, type_)
        if type_.shape == chain.type.shape[-1:] and "bias" not in chain.epilogue:
            return taken.with_operand("bias", other, type_)
        return None

    def _with_sums(self, chain: Chain) -> Iterator[Chain]:
        """The chain with the sums of rows that are the gradient of a bias."""
        if chain.turned == (True, False) and not chain.epilogue and len(chain.members) == 1:
            pairs = [("sum_a", chain.factors[0][0]), ("sum_b", chain.factors[1][0])]
        elif "gelu_grad" in chain.epilogue:
            pairs = [("sum_out", chain.outputs[""])]
        else:
            return
        for word, value in pairs:
            for at in self._readers.get(value.id, ()):
                is_sum = self._nodes[at].call.op is SumRows and at not in self._taken
                if is_sum and not self.reader_before(chain.at, (at,), chain.members):
                    longer = chain.with_output(word, self._nodes[at].node.outputs[0])
                    yield replace(longer, members=(*chain.members, at))

    # ---- the nodes -------------------------------------------------------------------------------

    def result(self) -> list[BoundNode]:
        found = []
        for i, bound in enumerate(self._nodes):
            if i in self._chains:
                found.append(self._product(self._chains[i]))
            elif i not in self._taken:
                found.append(bound)
        return found

    def _product(self, chain: Chain) -> BoundNode:
        last = self._nodes[chain.at]
        needed = [chain.operands[e] for e in chain.words if e in Product.NEEDED]
        ins = [*chain.factors, *needed]
        types = tuple(t for _, t in ins)
        out_types = infer_types(Product, types, chain.attrs)
        call = bind_alike(Product.name, types, out_types, chain.attrs, self._device)
        node = Node(last.node.id, Product.name, last.node.placement, chain.attrs)
        node.inputs = [v for v, _ in ins]
        node.outputs = [chain.outputs[e] for e in ("", *chain.words) if e in chain.outputs]
        node.stand_for(last.node)
        members = tuple(self._nodes[m] for m in chain.members)
        return replace(last, node=node, call=call, view=None, members=members)

    def _make_facts(self) -> Iterator[Fact]:
        for chain in self._chains.values():
            ops = tuple(self._nodes[m].node.op for m in chain.members)
            location = self._nodes[chain.at].node.location
            yield Fact(ops, str(chain.type), location, path="cuBLASLt")
        for i, reason in self._reasons.items():
            bound = self._nodes[i]
            type_ = str(bound.call.out_types[0])
            yield Fact((bound.node.op,), type_, bound.node.location, reason)
