"""A server with the interface of `attnres serve` and made-up text and weights, for the page's tests.

    python tests/page/mock_server.py [--mode normal] [--port 0]

Modes: normal, residual (no depth weights), full (Full AttnRes), refuses (429), dies (in the middle of
the stream), slow (a token only when `Mock.go_on` is set), key (wants the API key "secret"), small (a
context of 40 tokens), wordless (a model without a tokenizer), silent (an answer without a token).
"""

import argparse
import json
import math
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "attnres" / "serve" / "page.html"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)
# Markup, a character of three bytes, and a line's end; a token is a byte.
TEXT = " Good <b>morrow</b> — my lords & ladies,\nwhat news <script>alert(1)</script> from the north?"
LAYERS = 6


def sites_of(mode):
    if mode == "residual":
        return []
    sites = []
    for layer in range(1, LAYERS + 1):
        for sublayer in (0, 1):
            before = 2 * (layer - 1) + sublayer  # sublayers before this site
            if mode == "full":
                names = [f"{('attention', 'feed-forward')[i % 2]} {i // 2 + 1}" for i in range(before)]
            else:  # blocks of two layers
                names = [f"block {b + 1}" for b in range(before // 4)] + ["partial sum"] * (before % 4 > 0)
            sites.append({"name": f"{('attention', 'feed-forward')[sublayer]} {layer}", "sources": ["embedding"] + names})
    if mode == "full":
        names = [site["name"] for site in sites]
    else:
        names = [f"block {b + 1}" for b in range(LAYERS // 2)]
    sites.append({"name": "output", "sources": ["embedding"] + names})
    return [{"site": i, **site} for i, site in enumerate(sites)]


def weights_of(sites, position):
    """Different for every token, site and source, and known to the test."""
    rows = []
    for l, site in enumerate(sites):
        scores = [math.exp(2.5 * math.sin(1.3 * position + 2.1 * l + 3.7 * i + 0.1)) for i in range(len(site["sources"]))]
        rows.append([score / sum(scores) for score in scores])
    return rows


def text_of(byte):
    return chr(byte) if byte < 128 else "\ufffd"


class Mock:
    def __init__(self, mode="normal", port=0):
        self.mode = mode
        self.go_on = threading.Event()
        self.hung_up = threading.Event()  # a client went away in the middle of a stream
        self.asked = []  # (path, body)
        mock = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                mock.answer(self, None)

            def do_POST(self):
                mock.answer(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def reply(self, handler, body, status=200, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(data)))
        if kind.startswith("text/html"):
            handler.send_header("Content-Security-Policy", POLICY)
        handler.end_headers()
        handler.wfile.write(data)

    def refuse(self, handler, status, message):
        self.reply(handler, {"error": {"message": message, "type": "error", "code": None}}, status)

    def answer(self, handler, body):
        self.asked.append((handler.path, body))
        if handler.path == "/":
            self.reply(handler, PAGE.read_bytes(), kind="text/html; charset=utf-8")
        elif self.mode == "key" and handler.headers["Authorization"] != "Bearer secret":
            self.refuse(handler, 401, "an API key is needed")
        elif handler.path == "/v1/models":
            self.reply(handler, {"object": "list", "data": [self.model()]})
        elif self.mode == "small" and body.get("max_tokens", 0) > 40:
            self.refuse(handler, 400, "max_tokens: expected a whole number from 0 to 40")
        elif self.mode == "refuses":
            self.refuse(handler, 429, "256 sequences wait already <i>; ask again later")
        elif handler.path == "/v1/depth":
            self.reply(handler, self.depth())
        else:
            try:
                self.stream(handler, body, "messages" in body)
            except (BrokenPipeError, ConnectionResetError):
                self.hung_up.set()
        handler.close_connection = True

    def model(self):
        sites = sites_of(self.mode)
        mechanism = {"residual": "residual", "full": "attn_res"}.get(self.mode, "block_attn_res")
        wordless = self.mode == "wordless"
        description = {"parameters": 1234567, "layers": LAYERS, "width": 128, "context": 40 if self.mode == "small" else 256,
                       "vocabulary": 256, "mechanism": mechanism, "has_depth_weights": bool(sites), "sites": sites,
                       "tokenizer": "" if wordless else "bytes", "chat_template": "" if wordless else "plain"}
        return {"id": "mock", "object": "model", "created": 1700000000, "owned_by": "attnres", "attnres": description}

    def depth(self):
        sites = sites_of(self.mode)
        return {"object": "depth", "model": "mock", "sites": sites,
                "tokens": [{"id": byte, "text": text_of(byte)} for byte in self.bytes],
                "weights": [weights_of(sites, i) for i in range(len(self.bytes))]}

    def stream(self, handler, body, chat):
        """A token is a byte; text comes as whole characters, as the server's does."""
        if chat:
            turns = [f"{m['role'].capitalize()}: {m['content']}\n" for m in body["messages"]]
            prompt = "".join(turns) + "Assistant:"
        else:
            prompt = body["prompt"]
        given, written = prompt.encode(), TEXT.encode()[: 0 if self.mode == "silent" else body["max_tokens"]]
        self.bytes = given + written
        sites = sites_of(self.mode)
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        held = b""
        for k, byte in enumerate(written):
            if self.mode == "dies" and k == 20:
                return
            if self.mode == "slow" and k == 5:
                # Nothing more until the test says so; a client that hung up is seen on writing.
                while not self.go_on.wait(0.02):
                    handler.wfile.write(b": waiting\n\n")
                    handler.wfile.flush()
            held += bytes([byte])
            try:
                text, held = held.decode(), b""
            except UnicodeDecodeError:
                text = ""
            token = chr(byte) if byte < 128 else f"bytes:\\x{byte:02x}"
            logprob = math.log(0.2 + 0.7 * ((k * 7) % 10) / 10)
            if chat:
                top = [{"token": token, "logprob": logprob, "bytes": [byte]}]
                choice = {"delta": {"role": "assistant"} if k == 0 else {}, "logprobs": {"content": [{**top[0], "top_logprobs": top}]}}
                choice["delta"]["content"] = text
            else:
                choice = {"text": text, "logprobs": {"tokens": [token], "token_logprobs": [logprob],
                                                     "top_logprobs": [{token: logprob, "<img>": -5.0}], "text_offset": [k]}}
            event = {"id": "mock-1", "object": "text_completion", "model": "mock", "choices": [
                {"index": 0, **choice, "finish_reason": "length" if k + 1 == len(written) else None}]}
            if sites and body.get("depth_weights"):
                begin, end = (0, len(given)) if k == 0 else (len(given) + k - 1, len(given) + k)
                event["depth"] = {"position": begin, "weights": [weights_of(sites, i) for i in range(begin, end)],
                                  "tokens": [{"id": b, "text": text_of(b)} for b in self.bytes[begin:end]]}
            handler.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            handler.wfile.flush()
        handler.wfile.write(b"data: [DONE]\n\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="normal")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    print(f"listening on {Mock(options.mode, options.port).url}", file=sys.stderr)
    threading.Event().wait()
