"""A headless Chromium, spoken to over a pair of pipes; skips where there is none."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--window-size=1300,900",
    "--remote-debugging-pipe",
)
WAIT_S = 120.0


class Browser:
    """One page. Messages of the DevTools protocol are JSON with a NUL at the end."""

    def __init__(self, profile: Path) -> None:
        path = next((found for name in NAMES if (found := shutil.which(name))), None)
        if path is None:
            pytest.skip("needs Chromium")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        argv = ["bash", "-c", script, "bash", path, *FLAGS, f"--user-data-dir={profile}"]
        quiet = subprocess.DEVNULL
        fds = (theirs_in, theirs_out)
        self._process = subprocess.Popen([*argv, "about:blank"], stderr=quiet, pass_fds=fds)
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait(WAIT_S)
        os.close(self._in)
        os.close(self._out)

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        options = {"returnByValue": True, "awaitPromise": True}
        answer = self._call("Runtime.evaluate", expression=script, **options)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not self.run(script):
            assert time.monotonic() < deadline, f"never true: {script}; {self.problems()}"
            time.sleep(0.05)

    def screen(self, width: int, height: int, scheme: str) -> None:
        """Show the page at this size, for a user who prefers light or dark."""
        size: dict[str, Any] = {"width": width, "height": height, "deviceScaleFactor": 1}
        self._call("Emulation.setDeviceMetricsOverride", **size, mobile=False)
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=media)

    def press(self, key: str) -> None:
        """Press and release a key, by its name in KeyboardEvent.key."""
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path) -> bytes:
        data = base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(data)
        return data

    def problems(self) -> list[str]:
        """Complaints of the page."""
        found = [e["params"] for e in self.events if e["method"] == "Log.entryAdded"]
        thrown = [e["params"] for e in self.events if e["method"] == "Runtime.exceptionThrown"]
        return [f["entry"]["text"] for f in found] + [str(t) for t in thrown]

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found
                result: dict[str, Any] = found["result"]
                return result
            self.events.append(found)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._in, 1 << 20)
            assert data, "the browser ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message
