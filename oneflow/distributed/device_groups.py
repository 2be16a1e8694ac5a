"""Opens the collectives of a set of ranks for arrays on their GPUs: NCCL where all of them can use
it, else through host memory. Not run on a GPU yet (docs/GPU.md).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from oneflow.boxing import settings
from oneflow.core.config import Config
from oneflow.core.log import get_logger
from oneflow.kernels.hardware import hardware_for

if TYPE_CHECKING:
    from oneflow.boxing.collectives.base import Collectives
    from oneflow.boxing.collectives.device import DeviceCollectives
    from oneflow.distributed.world import World

log = get_logger(__name__)

SHARING_VERSION = 23000  # NCCL 2.30
"""The first version of NCCL that can put several ranks on one GPU, if told so."""


class Ability(NamedTuple):
    """The means that one rank brings along for collectives on GPUs. version: of NCCL, 0 without;
    hindrance: why it cannot use it; gpu: the GPU's own number in the world; shares: whether NCCL is
    told to share it.
    """

    version: int
    hindrance: str
    gpu: str
    shares: bool


def open_device_collectives(
    world: World, ranks: tuple[int, ...], kind: str = "cuda"
) -> DeviceCollectives:
    """Open this rank's end of `ranks` (ascending) for arrays on its device of a kind; all of them
    must call it. Arrays of a registered kind go through host memory. Where one of the ranks cannot
    use NCCL, or NCCL fails to join them, none does, and a warning says why.

    Raises DeviceError without such a device.
    """
    from oneflow.boxing.collectives.device import StagedCollectives

    hardware, host = hardware_for(kind), world.collectives(ranks)
    if len(ranks) == 1 or kind != "cuda":
        return StagedCollectives(host, hardware)  # with one rank it moves nothing
    cupy = hardware.use()
    mine = json.dumps(own_ability(cupy, world.config)).encode()
    said = host.gather_bytes(mine, "opening of GPU collectives")
    found = [Ability(*json.loads(text)) for text in said]
    reason = hindrance(ranks, found)
    opened = None
    if not reason:
        opened, reason = _join(world, ranks, host)
    if opened is not None:
        return opened
    level = logging.WARNING if world.rank == ranks[0] else logging.INFO
    log.log(level, "GPU tensors of ranks %s move through host memory: %s", list(ranks), reason)
    return StagedCollectives(host, hardware)


def _join(
    world: World, ranks: tuple[int, ...], host: Collectives
) -> tuple[DeviceCollectives | None, str]:
    """NCCL's communicator of some ranks; None, and why, if NCCL failed on any of them."""
    from oneflow.boxing.collectives.nccl import NcclCollectives, NcclRefused

    opened, reason = None, ""
    try:
        opened = NcclCollectives(
            f"eager/{'-'.join(map(str, ranks))}",
            world.rank,
            ranks,
            world.client,
            host,
            world.client.check,
            world.timeout_s,
            own_stream=not settings.current().use_compute_stream,
        )
    except NcclRefused as error:
        reason = f"NCCL fails {error.why}"
    said = host.gather_bytes(reason.encode(), "end of the opening of GPU collectives")
    reason = next((text.decode() for text in said if text), "")
    if reason and opened is not None:
        opened.close()
        opened = None
    return opened, reason


def own_ability(cupy: Any, config: Config) -> Ability:
    """Return the ability of this rank, with its GPU current."""
    runtime = cupy.cuda.runtime
    device = runtime.getDevice()
    uuid = bytes(runtime.getDeviceProperties(device)["uuid"]).hex()
    gpu = f"{uuid} {runtime.deviceGetPCIBusId(device)}"  # CuPy ends the first at a byte of zero
    try:
        from cupy.cuda import nccl

        if not nccl.available:
            package = f"nvidia-nccl-cu{runtime.runtimeGetVersion() // 1000}"
            return Ability(0, f"CuPy finds no NCCL (pip install {package})", gpu, False)
        version = int(nccl.get_version())
    except (ImportError, RuntimeError, AttributeError) as error:
        return Ability(0, f"CuPy cannot use NCCL: {error}", gpu, False)
    return Ability(version, "", gpu, config.nccl_shares_gpu)


def hindrance(ranks: Sequence[int], found: Sequence[Ability]) -> str:
    """Say why these ranks cannot use NCCL together; empty if they can. All ranks find the same."""
    for rank, one in zip(ranks, found, strict=True):
        if one.hindrance:
            return f"rank {rank}: {one.hindrance}"
    versions = {one.version: rank for rank, one in zip(ranks, found, strict=True)}
    if len(versions) > 1:
        (a, i), (b, j) = sorted(versions.items())[:2]
        return f"rank {i} has NCCL {_text(a)}, rank {j} {_text(b)}"
    first_on: dict[str, int] = {}
    for rank, one in zip(ranks, found, strict=True):
        other = first_on.setdefault(one.gpu, rank)
        if other != rank and not (one.shares and one.version >= SHARING_VERSION):
            return (
                f"ranks {other} and {rank} share a GPU, which needs NCCL 2.30 and "
                f"NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL is {_text(one.version)}, the variable is "
                f"{'1' if one.shares else 'not set'})"
            )
    return ""


def _text(version: int) -> str:
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
