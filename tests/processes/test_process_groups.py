"""Groups of ranks, calls that are begun, and stores of `torch.distributed`."""

from __future__ import annotations

import multiprocessing
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import oneflow as flow
from oneflow import distributed as dist
from oneflow.core.errors import HangError, OneFlowError, TransportError
from tests.support.launching import check_done, launch_once


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


SCENES = ["begins", "groups", "begun", "pairs", "bits", "store", "gradients"]


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene: str, num_ranks: int) -> None:
    check_done(launch_once(num_ranks, "process_groups_program", *SCENES), num_ranks, scene)


def test_ranks_that_only_begin_have_met(tmp_path: Path) -> None:
    script = tmp_path / "begins.py"
    script.write_text(
        "from oneflow import distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "print(dist.get_rank(), 'of', dist.get_world_size())\n"
    )
    words = ["-m", "oneflow.distributed.launch", "--standalone", "--nproc_per_node", "2"]
    ran = subprocess.run([sys.executable, *words, str(script)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "0 of 2" in ran.stdout and "1 of 2" in ran.stdout


def _join(rank: int, method: str, results: Any) -> None:
    dist.init_process_group("gloo", method, rank=rank, world_size=2)
    x = flow.ones(1) * rank
    dist.all_reduce(x)
    dist.destroy_process_group()
    results.put((rank, x.item(), dist.is_initialized(), dist.get_world_size()))


@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_processes_become_ranks_by_themselves(kind: str, tmp_path: Path) -> None:
    method = f"tcp://127.0.0.1:{free_port()}" if kind == "tcp" else f"file://{tmp_path}/meet"
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_join, args=(r, method, results)) for r in range(2)]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=180) for _ in processes)
    for process in processes:
        process.join(60)
    assert found == [(0, 1.0, False, 1), (1, 1.0, False, 1)]


def test_bad_ways_to_begin_are_refused() -> None:
    for method, error in (("udp://x", "env, tcp or file"), ("env://", "MASTER_PORT")):
        with pytest.raises((ValueError, OneFlowError), match=error):
            dist.init_process_group("gloo", method, rank=0, world_size=2)
    assert not dist.is_initialized()


def _stores(folder: Path) -> dict[str, Callable[[], Any]]:
    host = "127.0.0.1"
    return {
        "hash": dist.HashStore,
        "file": lambda: dist.FileStore(str(folder / "store"), 1),
        "tcp": lambda: dist.TCPStore(host, 0, is_master=True, wait_for_workers=False),
        "prefix": lambda: dist.PrefixStore("a", dist.HashStore()),
    }


@pytest.mark.parametrize("kind", ["hash", "file", "tcp", "prefix"])
def test_stores_keep_what_they_are_given(kind: str, tmp_path: Path) -> None:
    store = _stores(tmp_path)[kind]()
    store.set("a", "x")
    store.set("b", b"\x00\xff")
    assert (store.get("a"), store.get("b")) == (b"x", b"\x00\xff")
    assert [store.add("n", k) for k in (3, 4, -2)] == [3, 7, 5]
    store.append("a", "yz")
    assert store.get("a") == b"xyz"
    assert store.compare_set("a", "no", "new") == b"xyz"
    assert store.compare_set("a", "xyz", "new") == b"new"
    assert store.compare_set("fresh", "", "made") == b"made"
    assert store.check(["a", "b"])
    assert not store.check(["a", "missing"])
    assert store.num_keys() == 4
    assert store.delete_key("b")
    assert not store.delete_key("b")
    store.multi_set(["p", "q"], ["1", "2"])
    assert store.multi_get(["p", "q"]) == [b"1", b"2"]
    with pytest.raises(HangError, match="missing"):
        store.wait(["missing"], timedelta(seconds=0.05))


def test_a_store_is_reached_over_tcp_by_all_its_workers() -> None:
    master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    others: list[Any] = []

    def work(number: int) -> None:
        store = dist.TCPStore("127.0.0.1", master.port, 3)
        others.append(store)
        for _ in range(50):
            store.add("counted", 1)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert master.add("counted", 0) == 150
    with pytest.raises(TransportError, match="nobody answers"):
        dist.TCPStore("127.0.0.1", free_port(), timeout=timedelta(seconds=0.1))
