"""A headless Chromium, controlled through its DevTools protocol, for benchmarks and tests of live pages."""

import base64
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHROMIUM = Path("/usr/bin/chromium")


class Browser:
    """Chromium with one page; `profile` is an empty folder for its files. WebGL is rendered in software."""

    def __init__(self, profile: Path, width: int = 1200, height: int = 800):
        from websockets.sync.client import connect

        self._session = ""
        self._process = subprocess.Popen(
            [str(CHROMIUM), "--headless", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
             "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", "--remote-debugging-port=0", f"--user-data-dir={profile}",
             f"--window-size={width},{height}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        port_file = profile / "DevToolsActivePort"
        port, path = self.until(lambda: port_file.exists() and port_file.read_text().split(), 60.0)
        self._socket = connect(f"ws://127.0.0.1:{port}{path}", max_size=None, compression=None, ping_interval=None)
        self._count = 0
        self.said: list[str] = []
        """Errors and messages of the page's console."""
        self.on_frame: Callable[[bytes], None] = lambda _: None
        """Called with each binary message that the page's sockets, or those of its workers, have received."""
        target = next(t for t in self._call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        self._call("Runtime.enable")
        self._call("Network.enable")
        # viser's socket belongs to a worker
        self._call("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=True, flatten=True)

    def open(self, address: str, ready: str = "!!document.querySelector('canvas')") -> None:
        """Load a page and wait until `ready`, by default: until its first canvas is there."""
        self._call("Page.navigate", url=address)
        self.until(lambda: self.evaluate(f"document.readyState == 'complete' && ({ready})"), 60.0)

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def text(self) -> str:
        """Return the visible text of the page."""
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def click(self, label: str) -> None:
        """Click the button with this label."""
        found = "[...document.querySelectorAll('button')].find(b => b.innerText.trim() === " + json.dumps(label) + ")"
        self.evaluate(f"{found}.click()")

    def click_on(self, name: str) -> None:
        """Click the element of this id."""
        self.evaluate(f"document.getElementById({json.dumps(name)}).click()")

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Send a mouse event, mousePressed, mouseMoved or mouseReleased, of the left button at a place of the page."""
        buttons = 0 if kind == "mouseReleased" else 1
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=buttons, clickCount=1)

    def touch(self, kind: str, *at: float) -> None:
        """Send a touch event, touchStart or touchMove at a place of the page, or touchEnd."""
        self._call("Input.dispatchTouchEvent", type=kind, touchPoints=[dict(zip("xy", at, strict=True))] if at else [])

    def key(self, kind: str, key: str, modifiers: int = 0) -> None:
        """Send a key event, keyDown or keyUp; modifiers: 1 Alt, 2 Ctrl, 4 Meta, 8 Shift."""
        text = {"text": key} if kind == "keyDown" and len(key) == 1 else {}
        code = f"Key{key.upper()}" if len(key) == 1 else f"{key}Left"
        self._call("Input.dispatchKeyEvent", type=kind, key=key, code=code, modifiers=modifiers, **text)

    def resize(self, width: int, height: int, phone: bool = False) -> None:
        """Show the page as on a screen of this size, or on a phone."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self._call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def freeze(self, frozen: bool = True) -> None:
        """Freeze the page, as a browser does with pages in the background, or let it go on."""
        self._call("Page.setWebLifecycleState", state="frozen" if frozen else "active")

    def close_page(self) -> None:
        """Close the page; the browser stays."""
        self._call("Page.close")

    def picture(self) -> bytes:
        """Return a PNG of the page."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def until(self, holds: Any, seconds: float = 30.0) -> Any:
        """Poll until `holds()` is true and return its value. Raises TimeoutError after `seconds`."""
        end = time.monotonic() + seconds
        while not (value := holds()):
            if self._session:
                self.evaluate("0")  # a worker that has just started waits until this process has heard of it
            if time.monotonic() > end:
                raise TimeoutError(f"not within {seconds:g} s; the page says: {getattr(self, 'said', [])}")
            time.sleep(0.02)
        return value

    def close(self) -> None:
        """End the browser and all its processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        self._count += 1
        number, session = self._count, self._session if session is None else session
        message = {"id": number, "method": method, "params": parameters}
        self._socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while True:
            heard = json.loads(self._socket.recv(timeout=60.0))
            if heard.get("id") == number:
                if "error" in heard:
                    raise RuntimeError(f"{method}: {heard['error']}")
                return heard["result"]
            self._hear(heard)

    def _hear(self, event: dict[str, Any]) -> None:
        kind, details = event.get("method"), event.get("params", {})
        if kind == "Network.webSocketFrameReceived":
            if details["response"]["opcode"] == 2:
                self.on_frame(base64.b64decode(details["response"]["payloadData"]))
        elif kind == "Runtime.exceptionThrown":
            self.said.append(str(details["exceptionDetails"]))
        elif kind == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning"):
            self.said.append(str(details["args"]))
        elif kind == "Target.attachedToTarget" and (worker := details["sessionId"]) != self._session:
            for method in ("Network.enable", "Runtime.runIfWaitingForDebugger"):
                self._count += 1
                self._socket.send(json.dumps({"id": self._count, "method": method, "sessionId": worker, "params": {}}))
