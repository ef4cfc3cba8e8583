"""A headless Chromium that opens pages from files and says what a reader would see wrong with them."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from websockets.sync.client import ClientConnection, connect

CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-port=0",
)  # fmt: skip
_SECONDS = 60
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, Scheme] = ("light", "dark")
#: What a page shows wrong. Drawings without a box are those made for windows of another size.
_FAULTS = """(() => {
  const wrong = [];
  const seen = one => [...one.querySelectorAll('svg')].filter(svg => svg.getClientRects().length);
  for (const one of document.querySelectorAll('section.figure'))
    if (!seen(one).length) wrong.push('nothing is seen of ' + one.querySelector('h2').textContent);
  for (const svg of seen(document)) {
    const box = svg.getBoundingClientRect();
    if (box.width < 150 || box.height < 60) wrong.push('a drawing of ' + box.width + ' x ' + box.height);
    for (const text of svg.querySelectorAll('text')) {
      const inner = text.getBoundingClientRect();
      if (!text.textContent.trim()) continue;
      if (inner.left < box.left - 1 || inner.right > box.right + 1 || inner.top < box.top - 1 ||
          inner.bottom > box.bottom + 1) wrong.push('cut: ' + text.textContent);
      if (inner.height < 7.5) wrong.push('tiny: ' + text.textContent);
    }
  }
  for (const one of document.querySelectorAll('h1, h2, p, li, dt, dd, summary'))
    if (one.scrollWidth > one.clientWidth + 1) wrong.push('spills over: ' + one.textContent);
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (wide > 0) wrong.push(wide + ' pixels wider than the window');
  const sum = color => color.match(/[0-9.]+/g).slice(0, 3).reduce((total, part) => total + Number(part), 0);
  const paper = sum(getComputedStyle(document.querySelector('section')).backgroundColor);
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  if (dark !== paper < 380) wrong.push('the paper is not of the color scheme');
  for (const text of [...document.querySelectorAll('svg text, p, td, h2')].filter(one => one.getClientRects().length)) {
    const style = getComputedStyle(text);
    const ink = sum(text.closest('svg') ? style.fill : style.color);
    if (Math.abs(ink - paper) < 150) wrong.push('hardly seen: ' + text.textContent);
  }
  return wrong;
})()"""


class Tab:
    """A tab. `messages` are what the console and the network had to say, `requests` what pages asked for."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self._loaded = False
        self.messages: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the browser's protocol and return what it gives."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=_SECONDS))
            if message.get("id") == number:
                assert "error" not in message, message["error"]
                return dict(message["result"])
            self._note(message)

    def open(self, page: Path, width: int, scheme: Scheme = "light", height: int = 900) -> None:
        """Open a page in a window `width` pixels wide and wait until it is loaded."""
        self._page = page
        self.messages, self.requests, self._loaded = [], [], False
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not self._loaded:
            self._note(json.loads(self._connection.recv(timeout=_SECONDS)))

    def value(self, expression: str) -> Any:
        """Return what a JavaScript expression gives in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def faults(self) -> list[str]:
        """Return what is wrong with the open page: what it shows, what it complains of, what it asks for."""
        asked = [url for url in self.requests if url != self._page.resolve().as_uri() and not url.startswith("data:")]
        return [*self.value(_FAULTS), *self.messages, *(f"asked for {url}" for url in asked)]

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        height = self.value("document.documentElement.scrollHeight")
        size = self.call("Page.getLayoutMetrics")["cssLayoutViewport"]
        clip = {"x": 0, "y": 0, "width": size["clientWidth"], "height": height, "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.consoleAPICalled":
            self.messages.append(json.dumps(parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.messages.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])


@contextmanager
def browser() -> Iterator[Tab]:
    """Start Chromium with a new profile, and give a tab. Without Chromium the test is skipped."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield from _tab(process, Path(profile) / "DevToolsActivePort")
        finally:
            process.terminate()
            process.wait(_SECONDS)


def _tab(process: subprocess.Popen[bytes], told: Path) -> Iterator[Tab]:
    from urllib.request import urlopen

    until = time.monotonic() + _SECONDS
    while not (told.exists() and "\n" in told.read_text()):
        assert process.poll() is None, "Chromium ended"
        assert time.monotonic() < until, "Chromium does not tell its port"
        time.sleep(0.05)
    port = int(told.read_text().splitlines()[0])
    with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=_SECONDS) as answer:
        tabs = json.load(answer)
    address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
    with connect(address, max_size=None, open_timeout=_SECONDS) as connection:
        yield Tab(connection)
