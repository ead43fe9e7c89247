"""Debian's Chromium, headless, spoken to over its debugging protocol: what a page asks for, says
and shows, as pictures and as paper.
"""

from __future__ import annotations

import asyncio
import base64
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

START_S = 60.0
ANSWER_S = 60.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # a container has no user namespaces to nest one in; pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


@dataclass
class Page:
    """One tab, and everything it did since it was opened."""

    socket: aiohttp.ClientWebSocketResponse
    requests: list[str] = field(default_factory=list)
    """Addresses it asked for, its own included."""
    said: list[str] = field(default_factory=list)
    """Errors and warnings on its console, and violations of its security policy."""
    _number: int = 0
    _loaded: bool = False

    async def call(self, method: str, **arguments: Any) -> Mapping[str, Any]:
        """One command of the protocol, and its answer."""
        self._number += 1
        number = self._number
        await self.socket.send_json({"id": number, "method": method, "params": arguments})
        while True:
            message = await self._next()
            if message.get("id") == number:
                assert "error" not in message, (method, message)
                found: Mapping[str, Any] = message["result"]
                return found

    async def open(self, address: str) -> None:
        """Go there and wait until it has loaded."""
        self._loaded = False
        await self.call("Page.navigate", url=address)
        while not self._loaded:
            await self._next()

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression: str, *, limit_s: float = ANSWER_S) -> None:
        """Wait until a JavaScript expression holds."""
        end = time.monotonic() + limit_s
        while not await self.evaluate(expression):
            if time.monotonic() > end:
                shown = await self.evaluate("document.body.innerText")
                raise AssertionError(f"never so: {expression}\n{str(shown)[:3000]}")
            await asyncio.sleep(0.2)

    async def picture(self, *, width: int, height: int, scale: float = 1.0) -> bytes:
        """What is seen of so much of the page from its top, as PNG, `scale` times as large."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": scale}
        found = await self.call("Page.captureScreenshot", format="png", clip=clip)
        return base64.b64decode(found["data"])

    async def paper(self) -> bytes:
        """The page printed, as PDF."""
        found = await self.call("Page.printToPDF", printBackground=True)
        return base64.b64decode(found["data"])

    async def _next(self) -> Mapping[str, Any]:
        message: Mapping[str, Any] = await self.socket.receive_json(timeout=ANSWER_S)
        told, about = message.get("method", ""), message.get("params", {})
        if told == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif told == "Page.loadEventFired":
            self._loaded = True
        elif told == "Log.entryAdded":
            self.said.append(str(about["entry"].get("text")))
        elif told == "Runtime.exceptionThrown":
            self.said.append(str(about["exceptionDetails"].get("text")))
        elif told == "Runtime.consoleAPICalled" and about.get("type") in ("error", "warning"):
            self.said.append(str([one.get("value") for one in about.get("args", ())]))
        return message


class Browser:
    """A browser of its own profile; an asynchronous context manager."""

    def __init__(
        self, command: Sequence[str], profile: Path, environment: Mapping[str, str]
    ) -> None:
        self._command = (*command, *FLAGS, f"--user-data-dir={profile}")
        self._profile = profile
        self._environment = {**environment, "HOME": str(profile)}
        self._process: subprocess.Popen[bytes] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._at = ""

    async def __aenter__(self) -> Self:
        """Start it and wait until it can be spoken to."""
        with (self._profile / "browser.log").open("wb") as log_file:
            self._process = subprocess.Popen(
                [*self._command, "about:blank"],
                env=self._environment,
                stdout=subprocess.DEVNULL,
                stderr=log_file,
            )
        told, end = self._profile / "DevToolsActivePort", time.monotonic() + START_S
        while not told.exists() or not told.read_text().strip():
            log = (self._profile / "browser.log").read_text(errors="replace")[-2000:]
            assert self._process.poll() is None, f"the browser ended: {log}"
            assert time.monotonic() < end, f"the browser does not start: {log}"
            await asyncio.sleep(0.1)
        self._at = f"http://127.0.0.1:{told.read_text().split()[0]}"
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it, by its process id."""
        if self._session is not None:
            await self._session.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)

    async def page(self, *, width: int = 1280, height: int = 900) -> Page:
        """A new tab."""
        assert self._session is not None
        async with self._session.put(f"{self._at}/json/new?about:blank") as answer:
            address = (await answer.json())["webSocketDebuggerUrl"]
        socket = await self._session.ws_connect(address, max_msg_size=0)
        found = Page(socket)
        for domain in ("Page", "Network", "Log", "Runtime"):
            await found.call(f"{domain}.enable")
        await found.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        return found
