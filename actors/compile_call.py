"""One compile call of a rank: sends the parts that the scheduler asks for, receives the plan."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from typing import TypeAlias

from oneflow.core.control_channel import (
    MAX_GRAPH_NBYTES,
    MAX_PLAN_NBYTES,
    MAX_TEXT_CHARS,
    chunks,
    decode_error,
)
from oneflow.core.errors import GraphError, ProtocolError
from oneflow.core.rpc import Stream
from oneflow.protos import control_pb2 as pb

PlanStream: TypeAlias = "Stream[pb.CompileUp, pb.CompileDown]"


class CompileCall:
    """The knowledge of one rank about the graph it wants compiled.

    node_digests: unsigned 64-bit numbers, sent only if the ranks disagree; describe(i): text of
    node i, likewise.
    """

    def __init__(
        self,
        header: pb.CompileHeader,
        graph: bytes,
        node_digests: Sequence[int],
        describe: Callable[[int], str],
    ) -> None:
        if len(graph) > MAX_GRAPH_NBYTES:
            raise GraphError(
                f"graph {header.job_name!r} has {len(graph)} bytes, more than the limit of "
                f"{MAX_GRAPH_NBYTES}; keep large constants out of it"
            )
        header.graph_nbytes = len(graph)
        self._header = header
        self._graph = graph
        self._node_digests = node_digests
        self._describe = describe

    async def run(self, stream: PlanStream) -> bytes:
        """Return the plan. Raises the compile's error, or DesyncError if the ranks disagree."""
        await stream.write(pb.CompileUp(header=self._header))
        for chunk in chunks(self._graph):
            await stream.write(pb.CompileUp(graph_chunk=chunk))
        while True:
            message = await stream.read()
            if not message:
                raise ProtocolError("compile: the scheduler ended the call without an answer")
            match message.WhichOneof("kind"):
                case "plan":
                    return await _receive_plan(stream, message.plan.nbytes)
                case "error":
                    raise decode_error(message.error.type, message.error.text)
                case "want_node_digests":
                    await self._send_digests(stream)
                case "want_node_text":
                    await self._send_text(stream, message.want_node_text)
                case kind:
                    raise ProtocolError(f"compile: the scheduler sent {kind} instead of an answer")

    async def _send_digests(self, stream: PlanStream) -> None:
        packed = array("Q", self._node_digests)
        if sys.byteorder == "big":
            packed.byteswap()
        for chunk in chunks(packed.tobytes()):
            await stream.write(pb.CompileUp(node_digests=chunk))
        await stream.write(pb.CompileUp(node_digests=b""))

    async def _send_text(self, stream: PlanStream, index: int) -> None:
        await stream.write(pb.CompileUp(node_text=self._describe(index)[:MAX_TEXT_CHARS]))


async def _receive_plan(stream: PlanStream, nbytes: int) -> bytes:
    if nbytes > MAX_PLAN_NBYTES:
        raise ProtocolError(f"compile: a plan of {nbytes} bytes exceeds the limit")
    plan = bytearray()
    while len(plan) < nbytes:
        message = await stream.read()
        if not message or message.WhichOneof("kind") != "plan_chunk":
            raise ProtocolError(f"compile: the plan ended after {len(plan)} of {nbytes} bytes")
        plan += message.plan_chunk
    if len(plan) != nbytes:
        raise ProtocolError(f"compile: the plan has {len(plan)} bytes instead of {nbytes}")
    return bytes(plan)
