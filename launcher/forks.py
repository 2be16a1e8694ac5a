"""The process that a node's ranks are forked from (oneflow/distributed/forked.py): it imports once
the modules that each of them would import.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
from collections.abc import Callable, Mapping, Sequence

from oneflow.launcher.processes import spawn
from oneflow.services.forking import ANSWER, READY, ask


class Forks:
    """Starts the process, in an environment like that of its ranks and with our own streams.

    argv: before the descriptor of its end of the socket, and after it.
    """

    def __init__(self, argv: tuple[Sequence[str], Sequence[str]], env: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd = theirs.fileno()
        words = [*argv[0], str(fd), *argv[1]]
        with theirs:
            process = spawn(words, env, None, None, None, pass_fds=[fd])
        process.returncode = 0  # its end is ours to see, by its pid: Popen shall not wait for it
        self.pid = process.pid

    def is_alive(self) -> bool:
        """Whether ranks can still be forked."""
        try:
            return self._control.recv(1, socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def wait_ready(self, wake: selectors.BaseSelector, goes_on: Callable[[], bool]) -> bool:
        """Whether ranks can be forked. wake: becomes readable with a signal, after which `goes_on`
        is asked.
        """
        wake.register(self._control, selectors.EVENT_READ)
        try:
            while goes_on():
                for key, _ in wake.select():
                    if key.fileobj is self._control:
                        return self._control.recv(len(READY)) == READY
                    os.read(key.fd, 4096)
            return False
        except ConnectionResetError:
            return False
        finally:
            wake.unregister(self._control)

    def fork(self, env: Mapping[str, str], streams: Mapping[int, int]) -> int:
        """Fork a rank; return its pid. streams: by the descriptor to replace, the new one.

        Raises OSError if it cannot be forked.
        """
        told = os.memfd_create("rank", os.MFD_CLOEXEC)
        known, knows = os.pipe2(os.O_CLOEXEC)
        try:
            words = json.dumps({"env": dict(env), "streams": list(streams)})
            with open(told, "w", closefd=False) as file:
                file.write(words)
            os.lseek(told, 0, os.SEEK_SET)  # whoever gets it reads from here
            ask(self._control, known, [told, *streams.values()])
            answer = self._control.recv(ANSWER.size)
            if not answer:
                raise ConnectionResetError("the process that ranks are forked from has ended")
            (pid,) = ANSWER.unpack(answer)
            if pid < 0:
                raise OSError(-pid, os.strerror(-pid))
            return int(pid)
        finally:
            for descriptor in (told, known, knows):
                os.close(descriptor)

    def close(self) -> None:
        """Ends the process."""
        self._control.close()
