"""The graph of a backward pass as dot text, which ONEFLOW_DEBUG_MODE=1 writes into a file."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from oneflow.core.config import current_config
from oneflow.core.whole_files import write_whole
from oneflow.tensor.tape import GradNode
from oneflow.tensor.tensor import Tensor


def pass_dot(nodes: Sequence[GradNode]) -> str:
    """Recorded calls as boxes, leaves as ellipses; an edge is the way that a gradient goes."""
    lines = ["digraph backward {", "  node [shape=box];"]
    leaves: dict[int, Tensor] = {}
    edges: list[str] = []
    for node in nodes:
        lines.append(f"  op{node.number} [label={json.dumps(node.name())}];")
        for target, index in (edge for edge in node.edges if edge is not None):
            if index < 0:
                leaves[id(target)] = target
                edges.append(f"  op{node.number} -> leaf{id(target)};")
            else:
                edges.append(f'  op{node.number} -> op{target.number} [label="{index}"];')
    lines += [
        f'  leaf{key} [shape=ellipse, label="{tuple(x.shape)} {x.dtype.name}"];'
        for key, x in leaves.items()
    ]
    return "\n".join([*lines, *edges, "}", ""])


def write_pass(nodes: Sequence[GradNode], *, is_backward: bool) -> Path:
    """Write the graph of a pass, replacing that of the last one, and return the file's path.

    Files are named as upstream's: `log/<host>/autograd_<backward or grad>_rank<N>_graph.dot`, or
    in the folder that GLOG_log_dir names instead of `log`.
    """
    logs = os.environ.get("GLOG_log_dir", "log")  # noqa: SIM112 - glog's own spelling
    folder = Path(logs, socket.gethostname())
    folder.mkdir(parents=True, exist_ok=True)
    mode = "backward" if is_backward else "grad"
    path = folder / f"autograd_{mode}_rank{current_config().rank}_graph.dot"
    write_whole(path, pass_dot(nodes).encode())
    return path
