"""`nn.graph`: nn.Graph and the objects that it hands out for its modules."""

from __future__ import annotations

from oneflow.graph.config import GraphConfig
from oneflow.graph.functions.calls import compile_forward as compile_forward
from oneflow.graph.graph import Graph
from oneflow.graph.proxy import GraphModule, GraphTensor, Proxy, ProxyTensor
from oneflow.surfaces import accept_paths

__all__ = ["Graph", "GraphConfig", "GraphModule", "GraphTensor", "Proxy", "ProxyTensor"]


accept_paths(__name__)
