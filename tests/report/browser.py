"""A real browser, driven over the WebDriver protocol: Debian's chromium and nothing else."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

LEFT = "\ue012"
INSTALL = "apt-get install -y chromium chromium-driver"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--force-device-scale-factor=1", "--hide-scrollbars",
]  # fmt: skip


def missing():
    """Whether the browser or its driver is not installed."""
    return shutil.which("chromium") is None or shutil.which("chromedriver") is None


class Browser:
    """One window."""

    def __init__(self, address, profile, flags=()):
        self.address = address
        options = {"args": [*FLAGS, f"--user-data-dir={profile}", *flags]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        reply = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{reply['sessionId']}"

    def _send(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(error.read().decode()[:2000]) from None

    def command(self, name, **parameters):
        """A command of the DevTools protocol."""
        body = {"cmd": name, "params": parameters}
        return self._send("POST", f"{self.session}/goog/cdp/execute", body)

    def navigate(self, path):
        """Load a file."""
        self._send("POST", f"{self.session}/url", {"url": path.absolute().as_uri()})

    def open(self, path):
        """Load a report and wait until everything is drawn."""
        self.navigate(path)
        self.settle()

    def script(self, code, *arguments):
        """What JavaScript returns."""
        body = {"script": code, "args": list(arguments)}
        return self._send("POST", f"{self.session}/execute/sync", body)

    def texts(self, selector):
        """What stands in each of the elements."""
        code = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return self.script(code, selector)

    def asynchronous(self, code, *arguments):
        """What JavaScript hands to its last argument."""
        body = {"script": code, "args": list(arguments)}
        return self._send("POST", f"{self.session}/execute/async", body)

    def settle(self, seconds=30):
        """Wait until the page has drawn what it shows: drawing waits for the next frame."""
        end = time.monotonic() + seconds
        while self.script("return document.documentElement.dataset.state") != "idle":
            assert time.monotonic() < end, "the page is still busy"
            time.sleep(0.02)

    def _element(self, selector):
        body = {"using": "css selector", "value": selector}
        (identifier,) = self._send("POST", f"{self.session}/element", body).values()
        return f"{self.session}/element/{identifier}"

    def click(self, selector):
        """Press an element as a user would."""
        self._send("POST", f"{self._element(selector)}/click", {})
        self._next_frame()

    def keys(self, selector, text):
        """Type into an element as a user would."""
        self._send("POST", f"{self._element(selector)}/value", {"text": text})
        self._next_frame()

    def _next_frame(self):
        """Events such as toggle come a frame later; then wait for what they start."""
        self.asynchronous("requestAnimationFrame(() => setTimeout(arguments[0], 0))")
        self.settle()

    def size(self, width, height):
        """Show the page on a screen of this size."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip

    def log(self):
        """What the console said since the last call."""
        return self._send("POST", f"{self.session}/se/log", {"type": "browser"})

    def picture(self, path, whole=False):
        """A screenshot."""
        options = {"captureBeyondViewport": whole}
        if whole:
            tall = self.script("return document.documentElement.scrollHeight")
            wide = self.script("return document.documentElement.clientWidth")
            options["clip"] = {"x": 0, "y": 0, "width": wide, "height": tall, "scale": 1}
        path.write_bytes(
            base64.b64decode(self.command("Page.captureScreenshot", **options)["data"])
        )

    def close(self):
        """End the browser."""
        self._send("DELETE", self.session)


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def running_browser(profile, flags=()):
    """A browser with a fresh profile; driver and browser are gone afterwards."""
    port = _free_port()
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(port)
        browser = Browser(f"http://127.0.0.1:{port}", profile, flags)
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait(timeout=10)


def _wait_for(port):
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("chromedriver did not start")
