"""Limits of a server of models."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        requests: Requests of one model, running and waiting; for a language model sequences.
        body_nbytes: Bytes of a request.
        timeout_s: Seconds of an answer.
        first_token_s: Seconds to the first token of a sequence of a language model. A request that
            would wait longer is refused, one that has waited so long is ended.
        start_s: Seconds until a model is loaded.
        drain_s: Seconds that answers under way have to end when the server does.
    """

    requests: int = 256
    body_nbytes: int = 64 << 20
    timeout_s: float = 60.0
    first_token_s: float = 60.0
    start_s: float = 120.0
    drain_s: float = 30.0
