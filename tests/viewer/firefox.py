"""Firefox by WebDriver BiDi, which the browser speaks itself: neither Playwright's own Firefox nor geckodriver is needed.

Each call opens the loop of a thread of its own, because Playwright holds the loop of the tests' thread.
"""

import asyncio
import re
import subprocess
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

START_S = 60.0
STEP_S = 60.0
_READY = re.compile(r"WebDriver BiDi listening on (ws://\S+)")
# No request to anybody but the page's server.
_PREFERENCES = {
    "app.update.auto": "false",
    "datareporting.policy.dataSubmissionEnabled": "false",
    "network.captive-portal-service.enabled": "false",
    "network.connectivity-service.enabled": "false",
    "remote.active-protocols": "1",
}


class Firefox:
    """One tab. ``wrong``: errors of the page, its console's among them."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, loop: asyncio.AbstractEventLoop) -> None:
        self.wrong: list[str] = []
        self._socket = socket
        self._loop = loop
        self._ids = count(1)
        self._tab = ""

    def open(self, url: str, width: int, height: int) -> None:
        """Load a page at a size in CSS pixels."""
        if not self._tab:
            self._call("session.new", capabilities={})
            self._tab = self._call("browsingContext.getTree")["contexts"][0]["context"]
            self._call("session.subscribe", events=["log.entryAdded"])
        self._call("browsingContext.setViewport", context=self._tab, viewport={"width": width, "height": height})
        self._call("browsingContext.navigate", context=self._tab, url=url, wait="complete")

    def evaluate(self, expression: str) -> Any:  # JSON's values are of many kinds
        """The value of an expression, a string, number, boolean or null; waits for a promise."""
        found = self._call("script.evaluate", expression=expression, target={"context": self._tab}, awaitPromise=True)
        assert found["type"] == "success", found.get("exceptionDetails", {}).get("text")
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        seen = f"""new Promise((done) => {{
          const begun = performance.now();
          const look = () => {{
            const met = Boolean({condition});
            return met || performance.now() - begun > {1000 * STEP_S} ? done(met) : setTimeout(look, 50);
          }};
          look();
        }})"""
        assert self.evaluate(seen), f"never: {condition}"

    def type(self, selector: str, keys: str) -> None:
        """Focus an element and type; "\\ue006" is Enter, "\\ue009" Control until the end."""
        self.evaluate(f"document.querySelector({selector!r}).focus()")
        downs = [{"type": "keyDown", "value": key} for key in keys]
        actions = [step for down in downs for step in ([down] if down["value"] == "\ue009" else [down, {**down, "type": "keyUp"}])]
        actions += [{"type": "keyUp", "value": "\ue009"}] * ("\ue009" in keys)
        self._call("input.performActions", context=self._tab, actions=[{"type": "key", "id": "keys", "actions": actions}])

    def choose_file(self, selector: str, path: Path) -> None:
        """Choose a file in an input."""
        tab = {"context": self._tab}
        (node,) = self._call("browsingContext.locateNodes", **tab, locator={"type": "css", "value": selector})["nodes"]
        self._call("input.setFiles", **tab, element={"sharedId": node["sharedId"]}, files=[str(path)])

    def _call(self, method: str, **parameters: object) -> Any:  # as above
        return asyncio.run_coroutine_threadsafe(self._answer(method, parameters), self._loop).result(2 * STEP_S)

    async def _answer(self, method: str, parameters: dict[str, object]) -> Any:  # as above
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") == number:
                assert message["type"] == "success", message
                return message["result"]
            if message.get("method") == "log.entryAdded" and message["params"]["level"] in ("error", "warn"):
                self.wrong.append(message["params"]["text"])


@contextmanager
def firefox(command: str, profile: Path) -> Iterator[Firefox]:
    """Start Firefox without a window; ended with the block."""
    lines = [f'user_pref("{name}", {value});\n' for name, value in _PREFERENCES.items()]
    (profile / "user.js").write_text("".join(lines))
    arguments = ["--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"]
    process = subprocess.Popen([command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Coroutine[Any, Any, Any]) -> Any:  # as above
        return asyncio.run_coroutine_threadsafe(work, loop).result(START_S)

    try:
        session = run(_session())
        socket = run(session.ws_connect(f"{_address(process)}/session", max_msg_size=0))
        yield Firefox(socket, loop)
        run(session.close())
    finally:
        process.terminate()
        process.wait(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


async def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession()


def _address(process: subprocess.Popen[str]) -> str:
    timer = threading.Timer(START_S, process.kill)
    timer.start()
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := _READY.search(line):
                # Read on, so that the browser never waits for a reader.
                threading.Thread(target=process.stderr.read, daemon=True).start()
                return found[1]
    finally:
        timer.cancel()
    raise AssertionError("Firefox ended before it listened")
