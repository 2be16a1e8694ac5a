"""torchrun's rendezvous and variables, in the launcher's terms.

torchrun's nodes meet in a store that the node of `--rdzv-endpoint` serves. Here all ranks meet at
rank 0, so the endpoint is the address of rank 0, and its node must be node 0. With the backend
`static` every node is told its number; with `c10d` nodes find theirs, which one node of two can
without a store: it has the endpoint's address, or it has not.
"""

from __future__ import annotations

import socket
from dataclasses import replace

from oneflow.core.control_channel import resolve
from oneflow.core.errors import ConfigError
from oneflow.launcher.flags import Settings
from oneflow.scheduler.ports import claim


def with_node_rank(settings: Settings) -> Settings:
    """Find the number of this node where the backend is c10d and nobody has given it.

    Raises ConfigError where it cannot be told.
    """
    is_told = settings.num_nodes == 1 or settings.origin["node_rank"] != "default"
    if settings.rdzv_backend != "c10d" or is_told:
        return settings
    # Of two nodes on one machine the first to claim the port is node 0.
    is_first = _is_own(resolve(settings.master_addr, "--rdzv-endpoint"))
    is_first = is_first and claim(settings.master_port)
    if not is_first and settings.num_nodes > 2:
        raise ConfigError(
            f"--rdzv-backend c10d: of {settings.num_nodes} nodes only the one with the address "
            f"{settings.master_addr} knows its number; give --node-rank 1 to "
            f"{settings.num_nodes - 1} on the others"
        )
    origin = dict(settings.origin) | {"node_rank": "rdzv_endpoint"}
    return replace(settings, node_rank=0 if is_first else 1, origin=origin)


def elastic_env(settings: Settings, rank: int, restarts: int) -> dict[str, str]:
    """Variables that torchrun sets for a rank besides those that every launcher sets."""
    return {
        "LOCAL_WORLD_SIZE": str(settings.nproc_per_node),
        "GROUP_RANK": str(settings.node_rank),
        "GROUP_WORLD_SIZE": str(settings.num_nodes),
        "ROLE_NAME": settings.role,
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(settings.world_size),
        "TORCHELASTIC_RUN_ID": settings.rdzv_id or "none",
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(settings.max_restarts),
    }


def _is_own(address: str) -> bool:
    """Whether this machine has the address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
