"""A simulated Kubernetes API server: `python tests/neighbours/kubernetes_server.py [KIND ...]`.

Prints its URL and serves until its input ends. KIND: of OPERATORS; others are not known.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import kmock
from kmock._internal import parsing

OPERATORS = {
    "PodMonitor": "monitoring.coreos.com/v1/podmonitors",
    "JobSet": "jobset.x-k8s.io/v1alpha2/jobsets",
}
VERBS = ["get", "list", "watch", "create", "patch", "update", "delete"]


_parse = parsing.parse_path


def parse_path(path: str) -> parsing.ParsedPath:
    """Parse a path as kmock does, which takes every `namespaces/` for the way to something else."""
    _, *words = path.strip("/").split("/")
    if len(words) in (2, 3) and words[1] == "namespaces":
        return parsing.ParsedPath("", words[0], "namespaces", None, *words[2:])
    return _parse(path)


def resource(kind: str) -> dict[str, Any]:
    """Describe an operator's kind of object for discovery."""
    nothing = {"shortnames": [], "categories": [], "subresources": []}
    named = {"kind": kind, "singular": kind.lower(), "namespaced": True}
    return {**named, **nothing, "verbs": VERBS}


def core(handler: kmock.KubernetesEmulator) -> dict[str, Any]:
    """The list of core resources, in which kmock calls their version `/v1`."""
    found = [
        resource(info.kind) | {"name": key.plural, "namespaced": info.namespaced}
        for key, info in handler.resources.items()
        if key.group == ""
    ]
    return {"kind": "APIResourceList", "groupVersion": "v1", "resources": found}


async def serve(kinds: list[str]) -> None:
    """Serve the built-in resources and those of operators."""
    parsing.parse_path = parse_path
    async with kmock.KubernetesEmulator() as handler, kmock.Server(handler) as server:
        handler.resources.load_bundled()
        for kind, key in OPERATORS.items():
            handler.resources.pop(key, None)
            if kind in kinds:
                handler.resources[key] = resource(kind)
        handler["get /api/v1"] << core(handler)
        print(str(server.url).rstrip("/"), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))
