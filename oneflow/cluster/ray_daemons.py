"""Daemons on the nodes of a Ray cluster: `oneflow cluster up --on ray://host:10001`, or auto.

A placement group reserves a bundle for each device; in each bundle an actor keeps one daemon, a
process of its own. Ray places and ends them, and nothing else: jobs, tensors and heartbeats do not
pass through it.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from oneflow.cluster.settings import state_dir
from oneflow.core.errors import ConfigError

NAMESPACE = "oneflow"
GROUP = "oneflow-daemons"
PLACE_S = 60.0
END_S = 30.0
ASK_S = 60.0


@dataclass(frozen=True)
class Order:
    """Everything that the daemons need. tls: name -> content of ca.crt, daemon.crt and daemon.key,
    or {}. flags: more of their command lines. folder: where they keep jobs, shared by those of one
    node and left behind when they end; if it is relative, in the state folder of Ray's user there.
    """

    address: str
    count: int
    device_type: str
    token: str
    scheduler: str
    tls: dict[str, bytes]
    folder: str
    flags: tuple[str, ...] = ()


class DaemonHost:
    """An actor: keeps one daemon on the node where Ray has placed it. What it joins with lies in a
    folder of its own, which goes with it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="oneflow-ray-")
        self._process: subprocess.Popen[bytes] | None = None

    def place(self) -> tuple[str, list[int]]:
        """The node's name, and the GPUs that are reserved here."""
        import ray

        return socket.gethostname(), [int(index) for index in ray.get_gpu_ids()]

    def start(
        self,
        device: str,
        scheduler: str,
        token: str,
        tls: dict[str, bytes],
        jobs_folder: str,
        flags: tuple[str, ...] = (),
    ) -> int:
        """Returns the daemon's pid."""
        folder = Path(self._folder.name)
        self._write(folder / "token", token.encode())
        argv = [sys.executable, "-m", "oneflow", "daemon", "run", "--device", device]
        argv += ["--scheduler", scheduler, "--token-file", str(folder / "token")]
        argv += ["--state-dir", str((state_dir() / jobs_folder).absolute()), *flags]
        for name, content in tls.items():
            self._write(folder / "tls" / name, content)
        argv += ["--tls-dir", str(folder / "tls")] if tls else []
        hidden = ("CUDA_VISIBLE_DEVICES", "ONEFLOW_AUTH_TOKEN", "ONEFLOW_AUTH_TOKEN_FILE")
        env = {k: v for k, v in os.environ.items() if k not in hidden and not k.startswith("RAY_")}
        self._process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL)
        return self._process.pid

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)

    def stop(self) -> None:
        """Stop the daemons, in order if it can be."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Ray, connected. Raises ConfigError if it is not installed or does not answer."""
    try:
        import ray
    except ImportError:
        raise ConfigError("--on ray: install the package ray (pip install ray)") from None
    try:
        ray.init(
            address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"--on {address}: no Ray cluster answers: {error}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def is_all_here(address: str) -> bool:
    """Whether the Ray cluster has no node but this machine."""
    with _connected(address) as ray:
        names = {node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
        return names == {socket.gethostname()}


def start_daemons(order: Order) -> list[str]:
    """Returns node/device of each. Raises ConfigError if Ray cannot place them."""
    with _connected(order.address) as ray:
        try:
            actors = _place(ray, order)
            return _start(ray, order, actors)
        except BaseException:
            _remove(ray)
            raise


def _place(ray: ModuleType, order: Order) -> list[Any]:
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    wants_gpu = order.device_type == "cuda"
    bundle = {"CPU": 1.0, "GPU": 1.0} if wants_gpu else {"CPU": 1.0}
    group = placement_group([bundle] * order.count, name=GROUP, lifetime="detached")
    if not group.wait(PLACE_S):
        raise ConfigError(
            f"--on {order.address}: Ray has no room for {order.count} times {bundle} after "
            f"{PLACE_S:g} s; ask for fewer --daemons"
        )
    remote = ray.remote(DaemonHost)
    return [
        remote.options(
            name=f"{GROUP}-{index}",
            lifetime="detached",
            num_cpus=1,
            num_gpus=1 if wants_gpu else 0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=index
            ),
        ).remote()
        for index in range(order.count)
    ]


def _start(ray: ModuleType, order: Order, actors: Sequence[Any]) -> list[str]:
    places = ray.get([actor.place.remote() for actor in actors], timeout=ASK_S)
    devices = _devices(places, order.device_type)
    scheduler, token = order.scheduler, order.token
    calls = [
        actor.start.remote(device, scheduler, token, order.tls, order.folder, order.flags)
        for actor, device in zip(actors, devices, strict=True)
    ]
    ray.get(calls, timeout=ASK_S)
    return [f"{node}/{device}" for (node, _), device in zip(places, devices, strict=True)]


def _devices(places: Sequence[tuple[str, list[int]]], device_type: str) -> list[str]:
    """A device for each daemon: the GPU that Ray gave it, or CPUs counted on each node."""
    if device_type == "cuda":
        return [f"cuda:{gpus[0]}" for _, gpus in places]
    counts: dict[str, int] = {}
    found = []
    for node, _ in places:
        found.append(f"cpu:{counts.get(node, 0)}")
        counts[node] = counts.get(node, 0) + 1
    return found


def stop_daemons(address: str) -> int:
    """Ends them in order. Returns how many there were."""
    with _connected(address) as ray:
        return _remove(ray)


def _actors(ray: ModuleType) -> list[Any]:
    from ray.util import list_named_actors

    names = [name for name in list_named_actors() if name.startswith(f"{GROUP}-")]
    return [ray.get_actor(name) for name in sorted(names)]


def _remove(ray: ModuleType) -> int:
    from ray.exceptions import RayError
    from ray.util.placement_group import get_placement_group, remove_placement_group

    actors = _actors(ray)
    try:
        ray.get([actor.stop.remote() for actor in actors], timeout=2 * END_S)
    except RayError:
        pass  # of a node that has gone: the others are killed all the same
    finally:
        for actor in actors:
            ray.kill(actor)
    try:
        remove_placement_group(get_placement_group(GROUP))
    except ValueError:
        return len(actors)  # there was none
    return len(actors)
