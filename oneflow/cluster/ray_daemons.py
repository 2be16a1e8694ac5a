"""Daemons on the nodes of a Ray cluster: `oneflow cluster up --on ray://host:10001`, or auto.

A placement group reserves a bundle for each device; in each bundle an actor keeps one daemon, a
process of its own, and starts it again if it dies. Ray places and ends them, and nothing else:
jobs, tensors and heartbeats do not pass through it. Clusters of several users may be on one Ray
cluster: names of groups and actors carry the identity of the cluster's state folder.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from oneflow.cluster.settings import state_dir
from oneflow.core.errors import ConfigError

NAMESPACE = "oneflow"
PLACE_S = 60.0
END_S = 30.0
ASK_S = 60.0
AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Pauses before a daemon that died is started again; a minute of life counts as well."""


@dataclass(frozen=True)
class Order:
    """Everything that the daemons need.

    Attributes:
        address: Address of the Ray cluster.
        group: Name of the cluster there, its own.
        count: Number of daemons.
        tls: Contents of ca.crt, daemon.crt and daemon.key by name, or {}.
        folder: Folder where they keep jobs, shared by those of one node and left behind when they
            end; if it is relative, in the state folder of Ray's user there.
        flags: More of their command lines.
    """

    address: str
    group: str
    count: int
    device_type: str
    token: str
    scheduler: str
    tls: dict[str, bytes]
    folder: str
    flags: tuple[str, ...] = ()


class DaemonHost:
    """An actor: keeps one daemon on the node where Ray has placed it. Its token and certificates
    lie in a folder of its own, which goes with it.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="oneflow-ray-")
        self._device, self._argv, self._env = "", list[str](), dict[str, str]()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = threading.Event()
        self._watcher: threading.Thread | None = None

    def place(self) -> tuple[str, list[int], str]:
        """The node's name, the GPUs that are reserved here, and the daemon's device if it runs."""
        import ray

        is_kept = self._watcher is not None and self._watcher.is_alive()
        device = self._device if is_kept else ""
        return socket.gethostname(), [int(index) for index in ray.get_gpu_ids()], device

    def start(
        self,
        device: str,
        scheduler: str,
        token: str,
        tls: dict[str, bytes],
        jobs_folder: str,
        flags: tuple[str, ...] = (),
    ) -> int:
        """Start the daemon, and keep it. Returns its pid."""
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
        self._device, self._argv, self._env = device, argv, env
        process = self._process = self._launch()
        self._watcher = threading.Thread(target=self._keep, daemon=True)
        self._watcher.start()
        return process.pid

    def _launch(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._argv, env=self._env, stdin=subprocess.DEVNULL)

    def _keep(self) -> None:
        """Start the daemon again when it dies. One that left in order stays away."""
        deaths = 0
        while (process := self._process) is not None:
            begun = time.monotonic()
            if process.wait() == 0 or self._is_ending.is_set():
                return
            deaths = 0 if time.monotonic() - begun > 60.0 else deaths
            if self._is_ending.wait(AGAIN_S[min(deaths, len(AGAIN_S) - 1)]):
                return
            deaths += 1
            self._process = self._launch()

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)

    def stop(self) -> None:
        """Stop the daemons, in order if it can be."""
        self._is_ending.set()
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


def start_daemons(order: Order) -> tuple[str, ...]:
    """Start the daemons that do not run. Returns node/device of each that was started.

    Raises ConfigError if Ray cannot place them; then no actor of this call is left.
    """
    with _connected(order.address) as ray:
        from ray.exceptions import RayError

        group = _find_group(order.group)
        is_new = group is None
        try:
            return _fill(ray, order, group or _make_group(order))
        except BaseException as error:
            if is_new:
                _remove(ray, order.group)
            if isinstance(error, RayError):
                said = str(error).strip().splitlines()[-1:] or [type(error).__name__]
                raise ConfigError(f"--on {order.address}: {said[0]}") from None
            raise


def _find_group(name: str) -> Any:
    from ray.util.placement_group import get_placement_group

    try:
        return get_placement_group(name)
    except ValueError:
        return None


def _make_group(order: Order) -> Any:
    from ray.util.placement_group import placement_group

    bundle = _bundle(order)
    group = placement_group([bundle] * order.count, name=order.group, lifetime="detached")
    if not group.wait(PLACE_S):
        raise ConfigError(
            f"--on {order.address}: Ray has no room for {order.count} times {bundle} after "
            f"{PLACE_S:g} s; ask for fewer --daemons"
        )
    return group


def _bundle(order: Order) -> dict[str, float]:
    return {"CPU": 1.0, "GPU": 1.0} if order.device_type == "cuda" else {"CPU": 1.0}


def _fill(ray: ModuleType, order: Order, group: object) -> tuple[str, ...]:
    hosts = [_host(ray, order, group, index) for index in range(order.count)]
    places = ray.get([host.place.remote() for host in hosts], timeout=ASK_S)
    devices = _devices(places, order.device_type)
    new = [n for n, (_, _, device) in enumerate(places) if not device]
    ray.get(
        [
            hosts[n].start.remote(
                devices[n], order.scheduler, order.token, order.tls, order.folder, order.flags
            )
            for n in new
        ],
        timeout=ASK_S,
    )
    return tuple(f"{places[n][0]}/{devices[n]}" for n in new)


def _host(ray: ModuleType, order: Order, group: object, index: int) -> Any:
    """The actor of a bundle: the one that is there, or a new one."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    name = f"{order.group}-{index}"
    try:
        return ray.get_actor(name)
    except ValueError:  # there is none, or not any more
        remote = ray.remote(DaemonHost)
    bundle = _bundle(order)
    placed = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    made = remote.options(
        name=name,
        lifetime="detached",
        num_cpus=bundle["CPU"],
        num_gpus=bundle.get("GPU", 0),
        scheduling_strategy=placed,
    )
    return made.remote()


def _devices(places: Sequence[tuple[str, list[int], str]], device_type: str) -> list[str]:
    """A device for each daemon: its own, if it runs; the GPU that Ray gave it; or CPUs counted on
    each node.
    """
    if device_type == "cuda":
        return [f"cuda:{gpus[0]}" for _, gpus, _ in places]
    taken = {(node, device) for node, _, device in places}
    found = []
    for node, _, device in places:
        free = (f"cpu:{n}" for n in range(len(places)) if (node, f"cpu:{n}") not in taken)
        found.append(device or next(free))
        taken.add((node, found[-1]))
    return found


def stop_daemons(address: str, group: str) -> int:
    """Ends the daemons of a cluster in order. Returns how many there were."""
    with _connected(address) as ray:
        return _remove(ray, group)


def _actors(ray: ModuleType, group: str) -> list[Any]:
    from ray.util import list_named_actors

    names = [name for name in list_named_actors() if name.startswith(f"{group}-")]
    return [ray.get_actor(name) for name in sorted(names)]


def _remove(ray: ModuleType, group: str) -> int:
    from ray.exceptions import RayError
    from ray.util.placement_group import remove_placement_group

    actors = _actors(ray, group)
    try:
        ray.get([actor.stop.remote() for actor in actors], timeout=2 * END_S)
    except RayError:
        pass  # of a node that has gone: the others are killed all the same
    finally:
        for actor in actors:
            ray.kill(actor)
    found = _find_group(group)
    if found is not None:
        remove_placement_group(found)
    return len(actors)
