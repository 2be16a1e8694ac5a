"""Builds plans of cuDNN for a device of the compute capability that it is given, 900 for 9.0, and
prints a line of JSON: for each case the bytes of its workspace, or why there is no plan.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import cudnn as front_end

from oneflow.kernels import cudnn
from oneflow.kernels.cudnn import Layout, Plan, packed

SHARED_NBYTES = {800: (166912, 167936), 900: (232448, 233472), 1000: (232448, 233472)}


def device(compute: int) -> Any:
    """The description of a data centre's GPU."""
    block, processor = SHARED_NBYTES[compute]
    described: dict[str, Any] = {
        "cudaDeviceId": 0, "deviceVer": compute, "driverVer": 12090, "deviceName": "described",
        "multiProcessorCount": 132, "smCountOrigin": 0, "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": block,
        "maxSharedMemoryPerSM": processor, "reservedSharedMemoryPerBlock": 1024,
        "oversizedSharedMemoryPerBlock": 0, "regsPerBlock": 65536, "maxRegistersPerSM": 65536,
        "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
        "maxGridSize": [2**31 - 1, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
        "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1, "cooperativeLaunch": 1,
        "totalGlobalMem": 80 << 30, "smClockRateKHz": 1980000, "memClockRateKHz": 2619000,
        "memoryBusWidth": 5120, "l2CacheSize": 50 << 20,
    }  # fmt: skip
    return front_end.create_device_properties(json.dumps(described))


def beside(batch: int, heads: int, rows: int, size: int) -> Layout:
    """Heads of q, k and v that lie beside each other, as one product makes them."""
    return Layout((batch, heads, rows, size), (rows * 3 * heads * size, size, 3 * heads * size, 1))


def channels_last(samples: int, channels: int, *spatial: int) -> Layout:
    strides = packed((samples, *spatial, channels)).strides
    return Layout((samples, channels, *spatial), (strides[0], 1, *strides[1:-1]))


def attentions(target: dict[str, Any]) -> dict[str, Any]:
    made = {}
    q, k, mine = beside(4, 8, 200, 64), beside(4, 2, 200, 64), packed((4, 8, 200, 64))
    for dtype in ("bfloat16", "float16", "float32"):
        for causal in (False, True):
            name = f"{dtype} causal={causal}"
            made[f"attention {name}"] = cudnn.attention(dtype, q, k, k, 0.1, causal, target=target)
            made[f"attention_grad {name}"] = cudnn.attention_grad(
                dtype, mine, q, k, k, mine, 0.1, causal, target=target
            )
    odd = packed((2, 2, 30, 12))
    made["attention of heads of 12"] = cudnn.attention(
        "float16", odd, odd, odd, 0.1, False, target=target
    )
    return made


def convolutions(target: dict[str, Any]) -> dict[str, Any]:
    made = {}
    for dtype in ("bfloat16", "float32"):
        for order, lay in (("first", lambda *shape: packed(shape)), ("last", channels_last)):
            for groups in (1, 4):
                for which in ("forward", "data", "filter"):
                    layouts = lay(8, 32, 28, 28), lay(64, 32 // groups, 3, 3), lay(8, 64, 14, 14)
                    made[f"{which} {dtype} channels {order} groups={groups}"] = cudnn.conv(
                        which, dtype, *layouts, (2, 2), (1, 1), (1, 1), target=target
                    )
    return made


def main(compute: int) -> None:
    target = {"device_property": device(compute)}
    plans = attentions(target) | convolutions(target)
    print(json.dumps({k: p.nbytes if isinstance(p, Plan) else p for k, p in plans.items()}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
