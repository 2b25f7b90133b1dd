"""A headless Chromium, driven over its DevTools protocol on loopback."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


class Tab:
    """One open page."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.numbers = itertools.count(1)
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command, return its result; console messages that arrive meanwhile are kept."""
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv())
            self._note(message)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(params["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
            ("file:", "data:", "blob:")
        ):
            self.complaints.append(f"asked the network for {params['request']['url']}")
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"a dialog opened: {params['message']}")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression (promises are awaited)."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression: str, timeout_s: float = 20) -> None:
        """Until the expression is true."""
        end = time.monotonic() + timeout_s
        while not self.run(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.05)

    def open(self, path: Path) -> None:
        """Load a file and wait until its charts are drawn."""
        self.call("Page.navigate", url=path.as_uri())
        self.wait("document.documentElement?.dataset.drawn === 'yes'")

    def key(self, key: str) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(b64decode(found["data"]))


@contextmanager
def chromium(profile: Path) -> Iterator[Tab]:
    """A tab of a fresh browser; skips the test where no Chromium is installed."""
    binary = next(filter(None, map(shutil.which, NAMES)), None)
    if binary is None:
        pytest.skip("no Chromium is installed")
    websocket = pytest.importorskip("websocket")
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0")
    origins = "--remote-allow-origins=*"
    browser = subprocess.Popen(
        [binary, *flags, origins, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port_file = profile / "DevToolsActivePort"
        end = time.monotonic() + 30
        while not port_file.exists() or not port_file.read_text().strip():
            assert time.monotonic() < end, "Chromium did not start"
            time.sleep(0.05)
        port = port_file.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            page = next(target for target in json.load(answer) if target["type"] == "page")
        socket = websocket.create_connection(page["webSocketDebuggerUrl"], timeout=30)
        yield Tab(socket)
        socket.close()
    finally:
        browser.terminate()
        browser.wait(20)
