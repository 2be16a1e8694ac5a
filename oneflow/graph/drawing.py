"""Pictures of a compiled graph: actors and registers, or ops, as dot text; actors as SVG."""

from __future__ import annotations

import json
from collections import defaultdict
from html import escape
from itertools import pairwise

from oneflow.core.graph import LogicalGraph, Value
from oneflow.core.placement import Placement
from oneflow.core.plan import ActorSpec, Plan, RegisterSpec

BOX = (190, 44)
"""Width and height of an actor in an SVG."""
APART = (70, 16)
"""Room between columns, which registers cross, and between rows."""
TITLE = 24
MAX_CHARS = 28
COLORS = {"segment": "#dbe9ff", "input": "#e3f5e1", "output": "#e3f5e1"}
BOXING_COLOR = "#ffe9cf"


def plan_dot(name: str, plan: Plan) -> str:
    """Actors as nodes, in a cluster for each placement, and registers as edges to each reader."""
    lines = [f"digraph {_quoted(name)} {{", "  rankdir=LR;", "  node [shape=box];"]
    for i, (where, actors) in enumerate(_by_placement(plan).items()):
        lines += [f"  subgraph cluster_{i} {{", f"    label={_quoted(where)};"]
        lines += [
            f"    actor{a.id} [label={_quoted(chr(10).join((a.name, _size_of(a))))}];"
            for a in actors
        ]
        lines.append("  }")
    lines += [
        f"  actor{register.producer.id} -> actor{reader.id} [label={label}];"
        for register in plan.registers
        for label in [_quoted(_register_text(register))]
        for reader in register.consumers
    ]
    return "\n".join([*lines, "}", ""])


def graph_dot(name: str, graph: LogicalGraph) -> str:
    """Ops as nodes, in nested clusters by module, and values as edges."""
    lines = [f"digraph {_quoted(name)} {{", "  node [shape=box];"]
    numbers: dict[int, int] = {}
    by_module: dict[str, list[str]] = defaultdict(list)
    for i, node in enumerate(graph):
        numbers |= {value.id: i for value in node.outputs}
        label = str(node.attrs["name"]) if "name" in node.attrs else node.op
        where = f"\n{node.location}" if node.location else ""
        by_module[node.module].append(f"  op{i} [label={_quoted(f'{label}{where}')}];")
    for k, (module, nodes) in enumerate(by_module.items()):
        if module:
            lines += [f"  subgraph cluster_{k} {{", f"  label={_quoted(module)};", *nodes, "  }"]
        else:
            lines += nodes
    lines += [
        f"  op{numbers[value.id]} -> op{i} [label={_quoted(_value_text(value))}];"
        for i, node in enumerate(graph)
        for value in node.inputs
    ]
    return "\n".join([*lines, "}", ""])


def plan_svg(name: str, plan: Plan) -> str:
    """A lane for each placement, a column for each level: actors as boxes, registers as curves.

    A box or curve names its actor or register when the pointer rests on it.
    """
    lanes = _by_placement(plan)
    places: dict[int, tuple[int, int]] = {}
    bottoms = [TITLE]
    parts: list[str] = []
    for where, actors in lanes.items():
        top, filled = bottoms[-1], defaultdict[int, int](int)
        for actor in actors:
            row = filled[actor.level]
            filled[actor.level] += 1
            x = APART[1] + actor.level * (BOX[0] + APART[0])
            places[actor.id] = x, top + TITLE + row * (BOX[1] + APART[1])
        bottoms.append(top + TITLE + max(filled.values()) * (BOX[1] + APART[1]))
        parts.append(_text(APART[1], top + TITLE - 8, where, bold=True))
    width = max((x for x, _ in places.values()), default=0) + BOX[0] + APART[1]
    bands = [
        f'<rect x="0" y="{top}" width="{width}" height="{bottom - top}" '
        f'fill="{("#fafafa", "#f0f0f0")[i % 2]}"/>'
        for i, (top, bottom) in enumerate(pairwise(bottoms))
    ]
    curves = [
        _curve(places[register.producer.id], places[reader.id], _register_text(register))
        for register in plan.registers
        for reader in register.consumers
    ]
    boxes = [_box(actor, *places[actor.id]) for actor in plan.actors]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottoms[-1]}" '
        'font-family="sans-serif" font-size="11">'
    )
    title = _text(APART[1], TITLE - 8, name, bold=True)
    return "\n".join([head, title, *bands, *parts, *curves, *boxes, "</svg>", ""])


def _by_placement(plan: Plan) -> dict[str, list[ActorSpec]]:
    lanes: dict[str, list[ActorSpec]] = defaultdict(list)
    for actor in plan.actors:
        lanes[_where(actor.placement)].append(actor)
    return lanes


def _where(placement: Placement) -> str:
    ranks = placement.rank_ids
    shape = "x".join(map(str, placement.hierarchy))
    return f"{placement.type} ranks {', '.join(map(str, ranks))} ({shape})"


def _size_of(actor: ActorSpec) -> str:
    acts = f", {actor.acts} acts a step" if actor.acts > 1 else ""
    ops = len(actor.nodes)
    return f"{ops} op{'s' * (ops != 1)}{acts}"


def _value_text(value: Value) -> str:
    sbp = f" {value.sbp}" if value.sbp is not None else ""
    return f"{value.type.shape} {value.type.dtype.name}{sbp}"


def _register_text(register: RegisterSpec) -> str:
    values = ", ".join(_value_text(v) for v in register.values[:3])
    more = f" and {len(register.values) - 3} more" if len(register.values) > 3 else ""
    slots = f", {register.num_slots} slots" if register.num_slots > 1 else ""
    return f"r{register.id}: {values}{more}{slots}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _text(x: int, y: int, text: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}"{weight}>{escape(text)}</text>'


def _box(actor: ActorSpec, x: int, y: int) -> str:
    kind = actor.kind.name.lower()
    name = f"{kind}.{actor.id}"
    module = actor.nodes[0].module or actor.nodes[0].op
    short = module if len(module) <= MAX_CHARS else f"...{module[3 - MAX_CHARS :]}"
    ops = "\n".join(node.op for node in actor.nodes[:40])
    return (
        f"<g><title>{escape(actor.name)}\n{escape(ops)}</title>"
        f'<rect x="{x}" y="{y}" width="{BOX[0]}" height="{BOX[1]}" rx="4" '
        f'fill="{COLORS.get(kind, BOXING_COLOR)}" stroke="#555"/>'
        f"{_text(x + 6, y + 16, f'{name}: {_size_of(actor)}')}{_text(x + 6, y + 33, short)}</g>"
    )


def _curve(start: tuple[int, int], end: tuple[int, int], text: str) -> str:
    x0, y0 = start[0] + BOX[0], start[1] + BOX[1] // 2
    x1, y1 = end[0], end[1] + BOX[1] // 2
    bend = max((x1 - x0) // 2, APART[0] // 2)
    path = f"M{x0} {y0} C{x0 + bend} {y0} {x1 - bend} {y1} {x1} {y1}"
    return f'<path d="{path}" fill="none" stroke="#888"><title>{escape(text)}</title></path>'
