"""chromium.py: drives a headless Chromium over its DevTools pipe (JSON messages, each ended by a 0 byte), with the standard library."""
import base64, json, os, select, shutil, subprocess, tempfile, time


def program():
    return next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)


class Browser:
    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="nebula-chromium-")
        to_r, self.to = os.pipe()
        self.fro, fro_w = os.pipe()
        # The browser reads its descriptor 3 and writes 4.
        script = f'exec 3<&{to_r} 4>&{fro_w}; exec "$0" "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", script, program(), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--mute-audio",
             "--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={self.profile}", "about:blank"],
            pass_fds=(to_r, fro_w), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(to_r), os.close(fro_w)
        self.n, self.rest, self.session = 0, b"", None
        self.errors, self.requests = [], []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def _message(self, until):
        while b"\0" not in self.rest:
            if not select.select([self.fro], [], [], max(0, until - time.time()))[0]: return None
            more = os.read(self.fro, 1 << 20)
            if not more: raise RuntimeError("the browser has ended")
            self.rest += more
        text, self.rest = self.rest.split(b"\0", 1)
        m = json.loads(text)
        kind, p = m.get("method"), m.get("params", {})
        if kind == "Runtime.exceptionThrown": self.errors.append(p["exceptionDetails"].get("exception", {}).get("description") or p["exceptionDetails"]["text"])
        if kind == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning"): self.errors.append(str([a.get("value") for a in p["args"]]))
        if kind == "Log.entryAdded" and p["entry"]["level"] == "error": self.errors.append(p["entry"]["text"] + " " + p["entry"].get("url", ""))
        if kind == "Network.requestWillBeSent": self.requests.append(p["request"]["url"])
        return m

    def call(self, method, **params):
        self.n += 1
        m = {"id": self.n, "method": method, "params": params}
        if self.session: m["sessionId"] = self.session
        os.write(self.to, json.dumps(m).encode() + b"\0")
        until = time.time() + 60
        while True:
            a = self._message(until)
            if a is None: raise RuntimeError(method + ": no answer")
            if a.get("id") == self.n:
                if "error" in a: raise RuntimeError(f"{method}: {a['error']}")
                return a["result"]

    def eval(self, code):
        r = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r: raise RuntimeError(r["exceptionDetails"].get("exception", {}).get("description", "") + " in " + code[:80])
        return r["result"].get("value")

    def wait(self, code, seconds=60):
        """Waits until the code is true; returns after how many seconds, or None."""
        since = time.time()
        while time.time() - since < seconds:
            if self.eval(code): return time.time() - since
            time.sleep(0.1)
        return None

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)

    def go(self, url):
        self.call("Page.navigate", url=url)

    def shot(self, path, whole=True):
        with open(path, "wb") as f: f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]))

    def close(self):
        try: self.call("Browser.close")
        except Exception: pass
        try: self.process.wait(10)
        except subprocess.TimeoutExpired: os.killpg(self.process.pid, 9)
        os.close(self.to), os.close(self.fro)
        shutil.rmtree(self.profile, ignore_errors=True)
