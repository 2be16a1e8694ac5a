"""Channels of gRPC to a scheduler over which a test has proven a token, as clients do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from oneflow.core.config import split_address
from oneflow.services.pinned_channel import PinnedChannel, dial, line_options, prove, prove_async
from oneflow.services.proof import Claim

PROVE_S = 30.0

Metadata = tuple[tuple[str, str], ...]


@dataclass
class ProvenChannel:
    """A channel of grpc.aio. metadata: of each call over it, which names the proven session."""

    channel: Any
    metadata: Metadata
    line: PinnedChannel | None = None

    async def close(self) -> None:
        await self.channel.close(0)
        if self.line is not None:
            self.line.close()


async def open_proven(address: str, token: str, options: Any = None) -> ProvenChannel:
    """Dial and prove. Raises grpc.RpcError if the token is refused."""
    from grpc import aio

    line = dial(*split_address(address), PROVE_S)
    channel = aio.insecure_channel(line.target, options=options or line_options())
    try:
        session = await prove_async(channel, Claim(token, line.near, line.far), PROVE_S)
    except BaseException:
        line.close()
        await channel.close(0)
        raise
    return ProvenChannel(channel, session.metadata, line)


@contextmanager
def proven(address: str, token: str, options: Any = None) -> Iterator[tuple[Any, Metadata]]:
    """A channel of grpc and the metadata of calls over it."""
    import grpc

    line = dial(*split_address(address), PROVE_S)
    try:
        with grpc.insecure_channel(line.target, options=options or line_options()) as channel:
            session = prove(channel, Claim(token, line.near, line.far), PROVE_S)
            yield channel, session.metadata
    finally:
        line.close()
