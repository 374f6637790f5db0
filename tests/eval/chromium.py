"""A real headless Chromium for tests of pages: opens a file, runs a script in it, tells what its console said.

It speaks to the browser over its DevTools pipe (file descriptors 3 and 4, messages that end in a zero byte), so that
no driver, no port and no package is needed.
"""

import json
import os
import shutil
import subprocess
import time
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium_or_skip() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium here; install the package chromium to run the tests of the page")
    return found


class Browser:
    """One tab. `said` holds console errors, uncaught exceptions, and requests for anything but the page itself."""

    def __init__(self, profile: Any, width: int = 1366, height: int = 768):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        def place() -> None:
            # dup2 leaves the copies open in the child; first out of the way of 3 and 4 themselves.
            read, write = os.dup(to_browser), os.dup(from_browser)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self._process = subprocess.Popen(
            [
                chromium_or_skip(),
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--remote-debugging-pipe",
                f"--window-size={width},{height}",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            preexec_fn=place,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._number, self._rest, self._session = 0, b"", None
        self.said: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has gone"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, what: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.said.append(f"exception: {what['exceptionDetails']}")
        elif method == "Runtime.consoleAPICalled" or (method == "Log.entryAdded" and what["entry"]["level"] == "error"):
            self.said.append(f"console: {what}")
        elif method == "Page.javascriptDialogOpening":
            self.said.append(f"dialog: {what}")
            os.write(self._out, b"")  # a dialog blocks the page: the test fails on what was said
        elif method == "Network.requestWillBeSent" and not what["request"]["url"].startswith(("file:", "about:")):
            self.said.append(f"request: {what['request']['url']}")

    def open(self, path: Any) -> None:
        self.call("Page.navigate", url=f"file://{path}")
        until = time.monotonic() + 30
        while self.run("document.readyState") != "complete":
            assert time.monotonic() < until
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")
