"""A headless Chromium, driven over its debugging pipe: what the page's tests need of the protocol and no more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from types import TracebackType
from typing import Any

COMMAND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page of a browser process; `with Browser() as page`."""

    def __enter__(self) -> Browser:
        assert COMMAND is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()

        def pipes() -> None:  # the protocol's descriptors are 3 and 4
            ours = os.dup(reads), os.dup(writes)
            os.dup2(ours[0], 3)
            os.dup2(ours[1], 4)

        options = "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-dev-shm-usage --remote-debugging-pipe"
        self._process = subprocess.Popen(
            [COMMAND, *options.split(), f"--user-data-dir={self._profile.name}", "--window-size=1400,900", "about:blank"],
            preexec_fn=pipes,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._buffer = b""
        self._number = 0
        self._session = ""
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._to)
        os.close(self._from)
        self._process.kill()
        self._process.wait()
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> Any:
        """A command's result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                read = os.read(self._from, 1 << 20)
                if not read:
                    raise RuntimeError("the browser has ended")
                self._buffer += read
            text, _, self._buffer = self._buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def value(self, expression: str) -> Any:
        """What an expression is in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", expression))
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 60.0) -> Any:
        """The first value of an expression that is not false, 0, empty or null."""
        end = time.monotonic() + seconds
        while not (found := self.value(expression)):
            if time.monotonic() > end:
                raise TimeoutError(f"{expression} stays {found!r}")
            time.sleep(0.05)
        return found
