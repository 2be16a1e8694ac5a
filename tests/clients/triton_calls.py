"""Calls of Triton's client to a server of the Open Inference Protocol; prints one line of JSON.

Runs in an environment that has tritonclient, which refuses newer versions of protobuf, and not this
project: `python triton_calls.py HTTP GRPC`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException


def calls(library: Any, address: str) -> dict[str, Any]:
    client = library.InferenceServerClient(address)
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("rows")
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    given = library.InferInput("x", x.shape, "FP32")
    given.set_data_from_numpy(x)
    asked = library.InferRequestedOutput("twice")
    found = client.infer("rows", [given], outputs=[asked], model_version="1").as_numpy("twice")
    whole = client.infer("rows", [given]).as_numpy("twice")
    try:
        client.infer("none", [given])
        is_missing = False
    except InferenceServerException:
        is_missing = True
    index = client.get_model_repository_index()
    entries = index if isinstance(index, list) else [{"version": m.version} for m in index.models]
    client.unload_model("rows")
    is_there = client.is_model_ready("rows")
    client.load_model("rows")
    assert client.is_model_ready("rows")
    return {
        "error": float(max(np.abs(y - 2 * x).max() for y in (found, whole))),
        "rows": list(whole.shape),
        "versions": [entry["version"] for entry in entries],
        "missing": is_missing,
        "unloaded": is_there,
    }


if __name__ == "__main__":
    http, rpc = sys.argv[1:]
    print(
        json.dumps({"http": calls(tritonclient.http, http), "grpc": calls(tritonclient.grpc, rpc)})
    )
