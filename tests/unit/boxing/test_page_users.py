"""Memory is shared among processes of one user: another one who finds the socket gets nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from oneflow.boxing.transport.pages import PageServer, SharedPage, fetch_page

ASK = """
import os, socket, sys
os.setuid(12345)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
    peer.connect(b"\\0" + sys.argv[1].encode())
    try:
        peer.send(b"pages")
        print(socket.recv_fds(peer, 64, 8)[:2])
    except OSError as error:
        print("refused", error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_gets_no_memory() -> None:
    server = PageServer()
    server.publish("pages", SharedPage.create(4096))
    assert fetch_page(server.address, "pages", 5.0).nbytes == 4096
    argv = [sys.executable, "-I", "-c", ASK, server.address[1:].decode()]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout
    assert said.startswith("refused") or said == "(b'', [])\n"
