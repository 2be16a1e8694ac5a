"""The base class of a server's interceptors, with the types that gRPC does not declare."""

from __future__ import annotations

from grpc import aio

from oneflow.core.rpc import CallDetails, Find, Handler


class Interceptor(aio.ServerInterceptor):  # type: ignore[misc]  # gRPC declares no types
    """Stands before every method of a server."""

    async def intercept_service(self, continuation: Find, details: CallDetails) -> Handler | None:
        """The handler that answers a call. continuation: finds the one that stands behind."""
        return await continuation(details)
