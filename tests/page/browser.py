"""Headless Chromium by the DevTools protocol: as much of it as the page's tests need."""

import json
import re
import shutil
import subprocess
import tempfile

import websocket

KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, " ": 32, "End": 35, "Home": 36,
        "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


class Browser:
    def __init__(self, program="chromium"):
        if not shutil.which(program):
            raise SystemExit(f"page_check: {program} is not installed: apt-get install chromium")
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--remote-debugging-port=0", f"--user-data-dir={self.profile.name}",
             "--remote-allow-origins=*", "about:blank"],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for line in self.process.stderr:
            if found := re.search(r"ws://\S+", line):
                break
        else:
            raise SystemExit("page_check: chromium ended before it listened")
        self.socket = websocket.create_connection(found[0], timeout=60)
        self.number = 0
        self.pages = {}

    def send(self, method, session=None, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self.socket.send(json.dumps(message))
        while True:
            came = json.loads(self.socket.recv())
            if came.get("id") == self.number:
                if "error" in came:
                    raise RuntimeError(f"{method}: {came['error']['message']}")
                return came["result"]
            if page := self.pages.get(came.get("sessionId")):
                page.hear(came["method"], came["params"])

    def open(self, url, width=1200, height=900, **media):
        return Page(self, url, width, height, media)

    def close(self):
        self.send("Browser.close")
        self.process.wait(timeout=30)
        self.socket.close()
        self.profile.cleanup()


class Page:
    def __init__(self, browser, url, width, height, media):
        self.browser = browser
        self.complaints, self.requests = [], []
        self.target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.resize(width, height)
        self.media(**media)
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'", "the page")

    def send(self, method, **parameters):
        return self.browser.send(method, self.session, **parameters)

    def hear(self, method, event):
        if method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(event["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning"):
            self.complaints.append(str(event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] == "error":
            self.complaints.append(f"{event['entry']['text']} {event['entry'].get('url', '')}")

    def resize(self, width, height=900):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def media(self, **features):
        self.send("Emulation.setEmulatedMedia",
                  features=[{"name": name.replace("_", "-"), "value": value} for name, value in features.items()])

    def see(self, expression):
        """The value of an expression, of a promise's once it is there."""
        result = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails'].get('exception', {}).get('description')}")
        return result["result"].get("value")

    def until(self, condition, what, seconds=20):
        """Whether `condition` comes true, looked at every frame."""
        came = self.see(
            f"new Promise(done => {{ const end = performance.now() + {1000 * seconds};"
            f" (function look() {{ if ({condition}) done(true); else if (performance.now() > end) done(false);"
            " else setTimeout(look, 10); })(); })")
        if not came:
            raise TimeoutError(f"waited {seconds} s for {what}: {condition}")
        return True

    def settle(self):
        """Lets the page draw what it has."""
        self.see("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def press(self, key, modifiers=0):
        code = KEYS.get(key, 0)
        text = {"Enter": "\r", " ": " "}.get(key)
        parameters = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **parameters, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **parameters)
        self.settle()

    def point(self, selector, click=False):
        """Moves the pointer to the middle of an element, and clicks it."""
        node = f"document.querySelector({json.dumps(selector)})"
        self.see(f"{node}.scrollIntoView({{block: 'center'}})")
        self.settle()
        x, y = self.see(f"(box => [box.x + box.width / 2, box.y + box.height / 2])({node}.getClientRects()[0])")
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def focus(self, selector):
        self.see(f"document.querySelector({json.dumps(selector)}).focus()")
        self.settle()

    def type(self, selector, text):
        self.see(f"(() => {{ const node = document.querySelector({json.dumps(selector)}); node.focus(); node.select?.(); }})()")
        self.send("Input.insertText", text=text)

    def picture(self):
        import base64
        size = self.see("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                         clip={"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1})
        return base64.b64decode(shot["data"])

    def close(self):
        self.browser.send("Target.closeTarget", targetId=self.target)
