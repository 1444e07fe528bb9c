"""`attnres serve` on a free port, for the checks of this folder."""

import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "tiny-shakespeare"
PROGRAM = ROOT / "build" / "attnres"


def until(holds, seconds=60):
    """Whether it came to hold."""
    limit = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > limit:
            return False
        time.sleep(0.01)
    return True


class ServerError(Exception):
    """The server did not start."""


class Server:
    """with Server(program, model, "--slots", "2") as server: ... Ends it as a user would."""

    def __init__(self, program=PROGRAM, model=MODEL, *options, environment=None):
        command = [program, "serve", "--model", model, "--port", "0", *options]
        given = {name: value for name, value in os.environ.items() if name != "ATTNRES_API_KEY"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                                        env=given | (environment or {}))  # fmt: skip
        self.log = []
        self._listens = threading.Event()
        self._port = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._listens.wait()
        if self._port is None:
            self.process.wait()
            raise ServerError(f"the server did not start: {''.join(self.log).strip()}")

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)
            if self._port is None and (found := re.search(r"http://[^ ]+:(\d+)", line)):
                self._port = int(found[1])
                self._listens.set()
        self._listens.set()

    @property
    def port(self):
        return self._port

    @property
    def url(self):
        return f"http://127.0.0.1:{self._port}"

    def get(self, path):
        """The status, and the answer's JSON or text."""
        return self._ask(urllib.request.Request(self.url + path))

    def post(self, path, body):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._ask(urllib.request.Request(self.url + path, data))

    def is_idle(self):
        """Whether nothing runs or waits."""
        status, health = self.get("/health")
        return status == 200 and health["running"] == 0 and health["waiting"] == 0

    @staticmethod
    def _ask(request):
        directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with directly.open(request, timeout=120) as answer:
                status, text, kind = answer.status, answer.read(), answer.headers["Content-Type"]
        except urllib.error.HTTPError as error:
            status, text, kind = error.code, error.read(), error.headers["Content-Type"]
        return status, json.loads(text) if kind.startswith("application/json") else text.decode()

    def stop(self, within=60):
        """Its exit code after SIGTERM; an exception where it hangs."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=within)
        self._reader.join(timeout=within)
        return code

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            if self.process.poll() is None:
                self.stop()
        finally:
            self.process.kill()
            self.process.wait()
