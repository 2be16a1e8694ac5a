"""`torch.distributed`'s stores: keys and values that processes share.

A store makes one small change at a time to a table; a wait for a key looks again and again.
"""

from __future__ import annotations

import base64
import fcntl
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, TypeAlias

from oneflow.core.errors import HangError, TransportError

Table: TypeAlias = dict[str, bytes]
LOOK_S, MAX_LOOK_S = 0.001, 0.05
"""The first and the longest pause between two looks at a key that is not there."""

KEY = b"oneflow store"
"""Programs that speak something else are turned away; it keeps no secret."""


def _set(table: Table, key: str, value: bytes) -> None:
    table[key] = value


def _add(table: Table, key: str, amount: int) -> int:
    made = int(table.get(key, b"0")) + amount
    table[key] = str(made).encode()
    return made


def _append(table: Table, key: str, value: bytes) -> None:
    table[key] = table.get(key, b"") + value


def _compare_set(table: Table, key: str, expected: bytes, wanted: bytes) -> bytes:
    known = table.get(key)
    if known == expected or (known is None and not expected):
        table[key] = known = wanted
    return expected if known is None else known


def _delete(table: Table, key: str) -> bool:
    return table.pop(key, None) is not None


CHANGES: dict[str, Callable[..., Any]] = {
    "set": _set,
    "add": _add,
    "append": _append,
    "compare_set": _compare_set,
    "delete": _delete,
    "get": dict.get,
    "has": lambda table, *keys: all(key in table for key in keys),
    "size": len,
}
"""The things that can be done to a table, each at once."""


class Store(ABC):
    """Keys and values, which are bytes. A wait for a key ends after `timeout`."""

    def __init__(self, timeout: timedelta = timedelta(seconds=300)) -> None:
        self.timeout = timeout

    @abstractmethod
    def _do(self, change: str, *args: object) -> Any:
        """Make one of CHANGES."""

    def set(self, key: str, value: str | bytes) -> None:
        """Let a key have a value."""
        self._do("set", key, _bytes(value))

    def get(self, key: str) -> bytes:
        """Return the value of a key; wait for it. Raises HangError after the timeout."""
        self.wait([key])
        found: bytes = self._do("get", key)
        return found

    def add(self, key: str, amount: int) -> int:
        """Return the number under a key, 0 if there is none, increased by `amount`."""
        return int(self._do("add", key, int(amount)))

    def append(self, key: str, value: str | bytes) -> None:
        """Let the value of a key be longer by `value`."""
        self._do("append", key, _bytes(value))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Let a key have `desired` if it has `expected`; return the value it has then."""
        found: bytes = self._do("compare_set", key, _bytes(expected), _bytes(desired))
        return found

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are there."""
        return bool(self._do("has", *keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there. Raises HangError after the timeout."""
        seconds = (timeout or self.timeout).total_seconds()
        end, pause = time.monotonic() + seconds, LOOK_S
        while not self.check(keys):
            if time.monotonic() > end:
                raise HangError(f"store: no values for {list(keys)} after {seconds} s")
            time.sleep(pause)
            pause = min(2 * pause, MAX_LOOK_S)

    def delete_key(self, key: str) -> bool:
        """Forget a key; return whether it was there."""
        return bool(self._do("delete", key))

    def num_keys(self) -> int:
        """Return the number of keys."""
        return int(self._do("size"))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of some keys; wait for them."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Let keys have values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def set_timeout(self, timeout: timedelta) -> None:
        """Let waits end after so long."""
        self.timeout = timeout


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class HashStore(Store):
    """A store of the threads of one process."""

    def __init__(self, timeout: timedelta = timedelta(seconds=300)) -> None:
        super().__init__(timeout)
        self._table: Table = {}
        self._lock = threading.Lock()

    def _do(self, change: str, *args: object) -> Any:
        with self._lock:
            return CHANGES[change](self._table, *args)


class FileStore(Store):
    """A store in a file, of the processes that can lock it. world_size: accepted."""

    def __init__(self, file_name: str, world_size: int = -1) -> None:
        super().__init__()
        self.path = str(file_name)

    def _do(self, change: str, *args: object) -> Any:
        with Path(self.path).open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            table = {k: base64.b64decode(v) for k, v in json.loads(text or b"{}").items()}
            before = dict(table)
            result = CHANGES[change](table, *args)
            if table != before:
                file.truncate(0)
                kept = {k: base64.b64encode(v).decode() for k, v in table.items()}
                file.write(json.dumps(kept).encode())
                file.flush()
            return result


class TCPStore(Store):
    """A store in the process that is the master, reached by the others over TCP.

    host_name, port: where it listens; port 0 of the master: any, then `port` tells. The others wait
    for it for `timeout`. wait_for_workers: until all `world_size` processes are here.
    """

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = timedelta(seconds=300),
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        use_libuv: bool = True,
    ) -> None:
        super().__init__(timeout)
        self.host, self.port = host_name, port
        self._lock = threading.Lock()
        if is_master:
            self._listener = Listener((host_name, port), authkey=KEY)
            self.port = int(self._listener.address[1])
            serving = threading.Thread(target=self._serve, name="oneflow-store", daemon=True)
            self._table = HashStore()
            serving.start()
        self._line = self._connect()
        if world_size and wait_for_workers:
            self.add("/workers", 1)
            end = time.monotonic() + timeout.total_seconds()
            while int(self._do("get", "/workers") or b"0") < world_size:
                if time.monotonic() > end:
                    raise HangError(f"TCPStore: not all {world_size} processes came in {timeout}")
                time.sleep(MAX_LOOK_S)

    def _connect(self) -> Connection:
        end = time.monotonic() + self.timeout.total_seconds()
        while True:
            try:
                return Client((self.host, self.port), authkey=KEY)
            except OSError as error:
                if time.monotonic() > end:
                    place = f"{self.host}:{self.port}"
                    raise TransportError(f"TCPStore: nobody answers at {place}: {error}") from None
                time.sleep(MAX_LOOK_S)

    def _do(self, change: str, *args: object) -> Any:
        with self._lock:
            self._line.send_bytes(_packed([change, *args]))
            return _opened(self._line.recv_bytes())

    def _serve(self) -> None:
        while True:
            with suppress(OSError, EOFError):
                line = self._listener.accept()
                threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: Connection) -> None:
        with suppress(OSError, EOFError):
            while True:
                change, *args = _opened(line.recv_bytes())
                line.send_bytes(_packed(self._table._do(change, *args)))


def _packed(value: object) -> bytes:
    """JSON, in which bytes are lists of one text."""

    def plain(x: object) -> object:
        if isinstance(x, bytes):
            return [base64.b64encode(x).decode()]
        return {"all": [plain(y) for y in x]} if isinstance(x, list) else x

    return json.dumps(plain(value)).encode()


def _opened(data: bytes) -> Any:
    def bare(x: Any) -> Any:
        if isinstance(x, list):
            return base64.b64decode(x[0])
        return [bare(y) for y in x["all"]] if isinstance(x, dict) else x

    return bare(json.loads(data))


class PrefixStore(Store):
    """A store whose keys begin with a prefix in another one."""

    def __init__(self, prefix: str, store: Store) -> None:
        super().__init__(store.timeout)
        self._prefix, self.underlying_store = prefix, store

    def _do(self, change: str, *args: object) -> Any:
        if change == "has":
            return self.underlying_store._do(change, *(f"{self._prefix}/{key}" for key in args))
        named = (f"{self._prefix}/{args[0]}", *args[1:]) if args else ()
        return self.underlying_store._do(change, *named)
