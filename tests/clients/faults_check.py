"""Checks that `attnres serve` outlives what clients, files and machines do to it.

    python tests/clients/faults_check.py
    python tests/clients/faults_check.py --attnres build/attnres --only vanish,garbage

After every fault nothing runs or waits any more, the process has no more descriptors and threads
than before, and the same prompt has the same continuation.
"""

import argparse
import collections
import concurrent.futures
import gzip
import http.client
import json
import os
import random
import resource
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from checks import Checks
from server import MODEL, PROGRAM, ROOT, Server, until

PROMPT, OTHER = "KING HENRY:", "ROMEO:"
LONG = 240  # tokens: nearly all that the model's context holds
HANG = 60  # seconds: nothing here should take as long
FREED = 20  # seconds: for connections to end and be forgotten
START_LIMIT = 15  # seconds: of a start that finds no memory, or hangs
ROUNDS, AT_ONCE = 10, 100  # clients that vanish
HALF_SENT = 200
LARGEST_BODY, BODIES_AT_ONCE = 8 << 20, 64
BODIES_MEMORY, LEFT_OF_BODIES = 600 << 20, 64 << 20
CONNECTIONS, SLOTS, READ_TIMEOUT = 512, 32, 2
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"

check = Checks("faults_check")


# What is asked.


def completion(prompt=PROMPT, **fields):
    return {"prompt": prompt, "max_tokens": 48, "temperature": 0, **fields}


def post_bytes(body, *headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [b"Content-Type: application/json", b"Content-Length: %d" % len(data), *headers]
    return HEAD + b"\r\n".join(lines) + b"\r\n\r\n" + data


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=HANG)


def text_of(port, prompt=PROMPT):
    status, _, body = ask(port, completion(prompt))
    return json.loads(body)["choices"][0]["text"] if status == 200 else f"status {status}: {body}"


def ask(port, body):
    """Status, headers and body of a completion."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", "/v1/completions", data, {"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def ask_or_fail(port, body):
    """The status and the body; 0 where the connection ended without an answer."""
    try:
        status, _, body = ask(port, body)
        return status, body
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException):
        return 0, b""


def streamed_text(body):
    """The text of a stream that ended as it should, or None."""
    events = [event.removeprefix("data: ") for event in body.decode().split("\n\n") if event]
    if not events or events.pop() != "[DONE]" or any('"error":{' in event for event in events):
        return None
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


def exchange(port, data, end=False):
    """All that comes back, until the server ends the connection. `end`: no more will come."""
    with connect(port) as client:
        received = b""
        try:
            client.sendall(data)
            if end:
                client.shutdown(socket.SHUT_WR)
            while piece := client.recv(1 << 16):
                received += piece
        except TimeoutError:
            raise
        except OSError:  # the server has ended it
            pass
        return received


def statuses(received):
    """Statuses of the answers in what came back, whose bodies begin no line so."""
    lines = received.split(b"\r\n")
    found = [line.split(b" ")[1] for line in b"\n".join(lines).split(b"\n")
             if line.startswith(b"HTTP/1.1 ")]  # fmt: skip
    # An answer that follows a body stands on the same line as its end.
    found += [part[:3] for line in lines if not line.startswith(b"HTTP/1.1 ")
              for part in line.split(b"HTTP/1.1 ")[1:]]  # fmt: skip
    return [int(status) for status in found]


# What has to be as before.


class Watched:
    """A server, its answer, and what its process holds."""

    def __init__(self, server):
        self.server, self.port, self.pid = server, server.port, server.process.pid
        with concurrent.futures.ThreadPoolExecutor(8) as pool:  # all of its threads come to be
            list(pool.map(lambda _: text_of(self.port), range(8)))
        self.text = text_of(self.port)
        check(text_of(self.port) == self.text, "the same prompt has the same continuation")
        check(text_of(self.port, OTHER) != self.text, "control: another prompt has another")
        self.server.is_idle()
        self.least = self.holds()
        until(lambda: self.count_sockets() == 1)  # it listens
        self.least = tuple(map(min, self.least, self.holds()))

    def holds(self):
        """Descriptors and threads."""
        return tuple(len(os.listdir(f"/proc/{self.pid}/{what}")) for what in ("fd", "task"))

    def count_sockets(self):
        count = 0
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            try:
                count += os.readlink(f"/proc/{self.pid}/fd/{name}").startswith("socket:")
            except OSError:  # closed since
                continue
        return count

    def no_more(self):
        return all(now <= before for now, before in zip(self.holds(), self.least))

    def as_before(self, fault):
        check(self.server.process.poll() is None, f"{fault}: the server still runs")
        if self.server.process.poll() is not None:
            raise RuntimeError(f"{fault}: the server ended: {''.join(self.server.log)[-2000:]}")
        check(until(self.server.is_idle), f"{fault}: nothing runs or waits: {self.server.get('/health')}")
        text = text_of(self.port)
        check(text == self.text, f"{fault}: the text is as before: {text!r}, not {self.text!r}")
        freed = until(self.no_more, FREED)
        check(freed, f"{fault}: descriptors and threads are {self.least} again: {self.holds()}")
        if not freed:  # told once
            self.least = self.holds()


def check_end(server):
    try:
        code = server.stop()
    except subprocess.TimeoutExpired:
        code = None
        server.process.kill()
        server.process.wait()
    check(code == 0, f"it ends: exit code {code}")


# Faults of clients.


def vanish(watched):
    midway = 0
    for _ in range(ROUNDS):
        midway += vanish_together(watched)
    # All slots were taken each time, and few came to their end before the others had begun.
    check(midway >= ROUNDS * SLOTS // 2, f"clients vanish in the middle of streams: {midway}")
    watched.as_before(f"{ROUNDS * AT_ONCE} clients vanish")


def vanish_together(watched):
    """How many had begun to hear and were not at the end."""
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        clients = list(pool.map(lambda _: connect(watched.port), range(AT_ONCE)))
    heard = dict.fromkeys(clients, b"")
    with selectors.DefaultSelector() as selector:
        for number, client in enumerate(clients):
            client.sendall(post_bytes(completion(max_tokens=LONG, stream=True, seed=number)))
            selector.register(client, selectors.EVENT_READ)
        while sum(b"data: " in text for text in heard.values()) < SLOTS:
            for key, _ in selector.select(HANG):
                heard[key.fileobj] += (piece := key.fileobj.recv(1 << 16))
                if not piece:
                    selector.unregister(key.fileobj)
    for number, client in enumerate(clients):
        if number % 2:  # by a reset, not by an end
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    return sum(b"data: " in text and b"[DONE]" not in text for text in heard.values())


def half_sent(watched):
    whole = post_bytes(completion())
    draw = random.Random(1)
    clients = []
    for _ in range(HALF_SENT):
        client = connect(watched.port)
        client.sendall(whole[:draw.randrange(1, len(whole))])
        clients.append(client)
    status, health = watched.server.get("/health")
    check(status == 200 and health["running"] == 0, "half of a request runs nothing")
    check(text_of(watched.port) == watched.text, "others are answered while requests are half sent")
    for client in clients[::2]:
        client.close()
    answered = b""
    for client in clients[1::2]:  # the server ends these, when their time is over
        with client:
            try:
                while piece := client.recv(1 << 16):
                    answered += piece
            except ConnectionResetError:
                pass
    check(200 not in statuses(answered), f"half of a request has no answer: {answered[:300]}")
    watched.as_before(f"{HALF_SENT} requests half sent")


def bodies(program):
    """As many of the largest bodies as come at once, which take the most memory where they are read."""
    with Server(program, MODEL, "--log", "none") as server:
        watched = Watched(server)
        before = memory_of(watched.pid, "RssAnon")
        most = LARGEST_BODY - 64
        for kind, piece in (("ids", b"1,"), ("text", b"a "), ("lists", b"[],"), ("objects", b'{"a":1},')):
            many = piece * (most // len(piece))
            body = (b'{"prompt":"' + many + b'"}' if kind == "text" else
                    b'{"prompt":[' + many + b"1]}" if kind == "ids" else
                    b'{"prompt":"a","max_tokens":1,"user":[' + many + b"1]}")  # fmt: skip
            with concurrent.futures.ThreadPoolExecutor(BODIES_AT_ONCE) as pool:
                answers = list(pool.map(lambda body: ask_or_fail(watched.port, body), [body] * BODIES_AT_ONCE))
            answered = collections.Counter(status for status, _ in answers)
            check(set(answered) <= {200, 400, 503} and answered[200] + answered[400] > 0,
                  f"{BODIES_AT_ONCE} bodies of {kind} are answered or sent away: {dict(answered)}")  # fmt: skip
            peak = memory_of(watched.pid, "VmHWM") - before
            check(peak < BODIES_MEMORY, f"bodies of {kind} take {peak >> 20} MiB at most")
            until(lambda: memory_of(watched.pid, "RssAnon") - before < LEFT_OF_BODIES)
            left = memory_of(watched.pid, "RssAnon") - before
            check(left < LEFT_OF_BODIES, f"of bodies of {kind} {left >> 20} MiB are left")
        watched.as_before("many large bodies")
        check_end(server)


def garbage(watched):
    draw = random.Random(1)
    valid = post_bytes(completion(), b"Connection: close")
    check(statuses(exchange(watched.port, valid)) == [200],
          "control: a request sent so is answered")  # fmt: skip
    for what, data in garbage_kinds(draw).items():
        received = exchange(watched.port, data, end=True)
        found = statuses(received)
        check(all(400 <= status < 500 for status in found), f"{what}: {found} {received[:200]}")
        check(watched.server.get("/health")[0] == 200, f"{what}: others are answered")
    check_packed_bodies(watched)
    check_content_lengths(watched)
    check_pipelines(watched)
    for what, begin, piece in (
        ("a request line without end", b"GET /", b"a" * 65536),
        ("a header without end", HEAD + b"X: ", b"a" * 65536),
        ("headers without end", HEAD, b"X: a\r\n" * 10000),
        ("a body in chunks without end", HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
         b"10000\r\n" + b" " * 65536 + b"\r\n"),
    ):  # fmt: skip
        sent, received = send_without_end(watched.port, begin, piece)
        check(sent < 64 << 20, f"{what}: the server does not read it all: {sent} bytes")
        check(200 not in statuses(received), f"{what}: {received[:200]}")
    watched.as_before("garbage")


def garbage_kinds(draw):
    """Nothing of this is a request that can be answered well."""
    def chunked(body):
        return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body

    bomb = gzip.compress(bytes(256 << 20), 9)
    return {
        "binary": draw.randbytes(65536),
        "binary lines": b"\r\n".join(draw.randbytes(60) for _ in range(1000)) + b"\r\n\r\n",
        "zeros": bytes(65536),
        "empty lines": b"\r\n" * 10000,
        "a TLS hello": bytes.fromhex("16030100c8010000c40303") + draw.randbytes(200),
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(40),
        "no version": b"GET /health\r\n\r\n",
        "a version that is none": b"GET /health HTTP/9.9\r\n\r\n",
        "no path": b"GET  HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a method that is none": b"BREW /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a long path": b"GET /" + b"a" * 4000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a path that leaves": b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a path of broken escapes": b"GET /%zz%\xff%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a header without a colon": b"GET /%zz HTTP/1.1\r\nHost localhost\r\n\r\n",
        "zeros in a header": b"GET /none HTTP/1.1\r\nHost: local\0host\r\nA\0: b\r\n\r\n",
        "chunks of no size": chunked(b"ZZZ\r\nabc\r\n0\r\n\r\n"),
        "a chunk of negative size": chunked(b"-1\r\nabc\r\n0\r\n\r\n"),
        "a chunk of all that can be": chunked(b"FFFFFFFFFFFFFFFF\r\nabc\r\n0\r\n\r\n"),
        "a chunk of more than can be": chunked(b"1" + b"0" * 40 + b"\r\nabc\r\n0\r\n\r\n"),
        "a chunk longer than it says": chunked(b"2\r\nabcdef\r\n0\r\n\r\n"),
        "chunks that break off": chunked(b"5\r\nab"),
        "no JSON": post_bytes(b"prompt=KING"),
        "binary for JSON": post_bytes(draw.randbytes(10000)),
        "deep JSON": post_bytes(b"[" * 1000000),
        "deep JSON in a field": post_bytes(b'{"prompt":' + b"[" * 500000 + b"]" * 500000 + b"}"),
        "broken UTF-8": post_bytes(b'{"prompt": "\xc3\x28\xff"}'),
        "a number too large": post_bytes(b'{"prompt": [1e999, 99999999999999999999]}'),
        "a body that is too large": post_bytes(b" " * (9 << 20)),
        "zipped garbage": post_bytes(draw.randbytes(1000), b"Content-Encoding: gzip"),
        "zipped zeros": post_bytes(bomb, b"Content-Encoding: gzip"),
        "an encoding that is none": post_bytes(draw.randbytes(99), b"Content-Encoding: x"),
        "a form of parts": post_bytes(b"--x\r\n" * 10000,
                                      b"Content-Type: multipart/form-data; boundary=x"),
    }  # fmt: skip


def check_content_lengths(watched):
    body = json.dumps(completion(max_tokens=1)).encode()

    def sent(*lengths, rest=b""):
        head = HEAD + b"".join(b"Content-Length: %b\r\n" % length for length in lengths)
        # Not ended by us: who has ended a connection is gone, and has no answer.
        return exchange(watched.port, head + b"\r\n" + body + rest)

    right = b"%d" % len(body)
    check(statuses(sent(right)) == [200], "control: with its length a body is read")
    for what, received in {
        "too long a length": sent(b"%d" % (len(body) + 10)),
        "too short a length": sent(b"%d" % (len(body) - 10)),
        "no number": sent(b"many"),
        "a negative length": sent(b"-1"),
        "more than can be": sent(b"9" * 40),
        "two lengths": sent(right, b"3"),
        "a length and chunks": sent(right + b"\r\nTransfer-Encoding: chunked"),
    }.items():
        found = statuses(received)
        check(all(400 <= status < 500 for status in found), f"{what}: {found} {received[:200]}")
    smuggled = sent(right, rest=b"nonsense\r\n\r\n")
    check(statuses(smuggled) in ([200], [200, 400]), f"what follows a body: {smuggled[:300]}")


def check_packed_bodies(watched):
    """Few bytes that are many when they are unpacked cost what they are."""
    bomb = gzip.compress(bytes(256 << 20), 9)
    before = memory_of(watched.pid, "VmHWM")
    received = exchange(watched.port, post_bytes(bomb, b"Content-Encoding: gzip"))
    check(statuses(received) == [415], f"a packed body is refused: {received[:200]}")
    parts = b"Range: bytes=0-" + b",0-" * 2700
    received = exchange(watched.port, b"GET / HTTP/1.1\r\nHost: localhost\r\n"
                        b"Connection: close\r\n" + parts + b"\r\n\r\n")  # fmt: skip
    check(statuses(received) == [200] and len(received) < 1 << 20,
          f"an answer is given whole and once: {len(received)} bytes")  # fmt: skip
    grown = memory_of(watched.pid, "VmHWM") - before
    check(grown < 32 << 20, f"neither takes much memory: {grown} bytes more")


def check_pipelines(watched):
    several = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3
    last = post_bytes(completion(), b"Connection: close")
    received = exchange(watched.port, several + post_bytes(completion()) + last)
    check(statuses(received) == [200] * 5, f"requests in one go have an answer each: {received}")
    spoken = json.dumps(watched.text).encode()
    check(received.count(spoken) == 2, "and the right ones, in their order")


def send_without_end(port, begin, piece):
    """The bytes sent until the server would have no more, and what it said."""
    sent, received = 0, b""
    with connect(port) as client:
        try:
            client.sendall(begin)
            while sent < 64 << 20:
                client.sendall(piece)
                sent += len(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            client.shutdown(socket.SHUT_WR)
            while more := client.recv(1 << 16):
                received += more
        except OSError:
            pass
    return sent, received


def second_server(watched, program):
    command = [program, "serve", "--model", MODEL, "--port", str(watched.port)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    check(second.returncode == 1, f"a second server of the port fails: {second.returncode}")
    said = second.stderr
    check(f"{watched.port}: cannot be listened on" in said, f"and says why: {said}")
    watched.as_before("a second server")


def full(program):
    """Queue and connections."""
    connections = 40
    with Server(program, MODEL, "--slots", "1", "--max-queue", "2", "--max-connections",
                str(connections), "--log", "none") as server:  # fmt: skip
        # Its own requests are few enough to fit.
        text = text_of(server.port)
        with concurrent.futures.ThreadPoolExecutor(connections) as pool:
            body = completion(max_tokens=LONG, n=3)
            answers = list(pool.map(lambda _: ask(server.port, body), range(connections // 2)))
        found = {status for status, _, _ in answers}
        check(found == {200, 429}, f"a full queue refuses some, and takes some: {found}")
        for status, headers, reply in answers:
            if status == 429:
                error = json.loads(reply)["error"]
                check(error["code"] == "queue_full" and headers["Retry-After"], f"429: {error}")
        check(text_of(server.port) == text, "then the queue takes requests again")

        # Who holds connections open without asking anything shuts nobody out.
        for sent in (b"", b"GET /health"):
            held = [connect(server.port) for _ in range(connections)]
            for client in held:
                client.sendall(sent)
            check(until(lambda: text_of(server.port) == text), f"{sent!r} gives way to a request")
            for client in held:
                client.close()
        check(text_of(server.port) == text, "then connections are served again")
        check_end(server)


# The end.


def end_under_load(program):
    with Server(program, MODEL, "--slots", "2", "--drain", str(HANG), "--log", "none") as server:
        whole = json.loads(ask(server.port, completion(max_tokens=LONG))[2])["choices"][0]["text"]
        bodies, code, refused = end_while_it_streams(server, streams=16)
        texts = [streamed_text(body) for body in bodies]
        check(refused, "new connections are refused while streams run")
        check(texts == [whole] * 16, f"streams come to their ends: {[t and len(t) for t in texts]}")
        check(code == 0, f"exit code {code}")
    with Server(program, MODEL, "--slots", "1", "--drain", "0", "--log", "none") as server:
        bodies, code, _ = end_while_it_streams(server, streams=16)
        texts = [streamed_text(body) for body in bodies]
        check(None in texts, "control: without --drain streams break off")
        check(all(text is not None or b'"error":{' in body for text, body in zip(texts, bodies)),
              "and say so")  # fmt: skip
        check(code == 0, f"exit code {code} without --drain")


def end_while_it_streams(server, streams):
    """The bodies, the exit code, and whether connections were refused while it ran."""
    body = completion(max_tokens=LONG, stream=True)
    connections = []
    for _ in range(streams):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANG)
        connection.request("POST", "/v1/completions", json.dumps(body))
        connections.append(connection)
    answers = [connection.getresponse() for connection in connections]
    begun = [answer.read1() for answer in answers[:1]]
    server.process.send_signal(signal.SIGTERM)
    until(lambda: is_refused(server.port))
    refused = server.process.poll() is None
    bodies = [first + answer.read() for first, answer in
              zip(begun + [b""] * (streams - 1), answers)]  # fmt: skip
    for connection in connections:
        connection.close()
    return bodies, server.process.wait(timeout=HANG), refused  # a second signal would kill it


def is_refused(port):
    try:
        connect(port).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False


# Faults of files.


def replaced(program):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model"
        shutil.copytree(MODEL, model)
        gguf = make_gguf(program, folder)
        for what, path, weights in (("a model directory", model, model / "model.safetensors"),
                                    ("a GGUF file", gguf, gguf)):  # fmt: skip
            content = weights.read_bytes()
            with Server(program, path, "--log", "none") as server:
                watched = Watched(server)
                (folder / "new").write_bytes(bytes(reversed(content)))
                os.replace(folder / "new", weights)
                watched.as_before(f"{what} is replaced by another file")
                check_end(server)
            weights.write_bytes(content)
            with Server(program, path, "--log", "none") as server:
                watched = Watched(server)
                weights.write_bytes(b"")
                if weights is gguf:
                    emptied(watched)
                else:
                    watched.as_before(f"{what} is emptied")
                    weights.write_bytes(bytes(reversed(content)))
                    watched.as_before(f"{what} is written anew")
            weights.write_bytes(content)


def emptied(watched):
    """A GGUF file's weights are read where they are mapped: without them the process cannot go
    on, and it ends with a word. It must not answer from what is no longer there."""
    status, reply = ask_or_fail(watched.port, completion())
    if status == 200:
        check(json.loads(reply)["choices"][0]["text"] == watched.text, "a GGUF file is emptied: "
              "an answer is the right one")  # fmt: skip
        return
    code = watched.server.process.wait(timeout=HANG)
    check(code == 1, f"a GGUF file is emptied: the process ends: {code}")
    print("faults_check: a GGUF file that is emptied ends the server", flush=True)


def make_gguf(program, folder):
    """Makes the file of a model that has learned nothing."""
    recipe = {"name": "little", "tokenizer": {"kind": "bytes"},
              "model": {"layers": 2, "width": 128, "heads": 4, "kv_heads": 2, "ffn_width": 352,
                        "depth_mixing": {"type": "residual"}},
              "train": {"steps": 1, "batch_size": 1, "context": 256, "eval_tokens": 512}}  # fmt: skip
    (folder / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    for command in (
        ["train", "--recipe", folder / "recipe.json", "--data", ROOT / "README.md", ROOT / "docs",
         "--out", folder / "run"],
        ["export", "--model", folder / "run", "--format", "gguf", "--type", "q8_0",
         "--out", folder / "model.gguf"],
    ):  # fmt: skip
        subprocess.run([program, *command], check=True, timeout=HANG, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)  # fmt: skip
    return folder / "model.gguf"


# Faults of the machine.


def out_of_memory(program):
    with Server(program, MODEL, "--log", "none", "--threads", "2") as server:
        needed = memory_of(server.process.pid)
        check_end(server)
    for share in (0.3, 0.6, 0.75, 0.8, 0.85, 0.9):
        code, said = start_with(program, int(share * needed))
        if code is None:
            break  # that much is enough
        # libtorch ends the process itself where it finds no memory for a tensor.
        clear = code > 0 or "bad_alloc" in said or "can't allocate memory" in said
        check(clear and said.strip(), f"at {share} of its memory it says why it does not start: "
                                         f"exit code {code}, {said[-300:]!r}")  # fmt: skip
    with Server(program, MODEL, "--log", "none", "--slots", "4", "--threads", "2") as server:
        watched = Watched(server)
        pid = server.process.pid
        limit = memory_of(pid, "VmSize") + (32 << 20)
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        large = b'{"prompt": [' + b"1," * (3 << 20) + b"1]}"
        bodies = [large] * 4 + [completion(max_tokens=LONG)] * 28
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            answers = list(pool.map(lambda body: ask_or_fail(server.port, body), bodies))
        failed = [(status, reply[:200]) for status, reply in answers if status != 200]
        check(any(status in (0, 500, 503) for status, _ in failed),
              f"control: some requests find no memory: {failed}")  # fmt: skip
        until(lambda: server.process.poll() is not None, 1)  # where it is about to end
        code = server.process.poll()
        check(code is None or code > 0, f"out of memory: no end by a signal: "
              f"{code}, {server.log[-5:]}")  # fmt: skip
        if code is None:
            watched.as_before("out of memory")
            check_end(server)


def memory_of(pid, what="VmPeak"):
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(what + ":"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"{what} is not told")


def start_with(program, memory):
    """Exit code and errors of a server with so much memory; no code where it comes to listen."""
    # Not --threads: libtorch waits for ever where it cannot make as many.
    command = [program, "serve", "--model", MODEL, "--port", "0"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
    )  # fmt: skip
    hang = threading.Timer(START_LIMIT, process.kill)
    hang.start()
    said = ""
    for line in process.stderr:
        said += line
        if "listening on" in line:
            process.kill()
            process.wait()
            hang.cancel()
            return None, said
    hang.cancel()
    return process.wait(timeout=HANG), said


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--attnres", default=PROGRAM, metavar="PROGRAM")
    groups = ("vanish", "half", "garbage", "second", "full", "end", "replaced", "bodies", "memory")
    parser.add_argument("--only", type=lambda text: text.split(","), default=groups, metavar="A,B",
                        help=f"of {', '.join(groups)}")  # fmt: skip
    options = parser.parse_args()
    if unknown := set(options.only) - set(groups):
        parser.error(f"--only: {', '.join(unknown)}")
    program = options.attnres
    own = {
        "vanish": vanish,
        "half": half_sent,
        "garbage": garbage,
        "second": lambda watched: second_server(watched, program),
    }
    if set(own) & set(options.only):
        with Server(program, MODEL, "--slots", str(SLOTS), "--max-connections", str(CONNECTIONS),
                    "--max-queue", str(CONNECTIONS), "--read-timeout", str(READ_TIMEOUT),
                    "--idle-timeout", str(READ_TIMEOUT),
                    "--log", "none") as server:  # fmt: skip
            watched = Watched(server)
            control_holds(watched)
            for name, fault in own.items():
                if name in options.only:
                    timed(name, fault, watched)
            check_end(server)
    for name, fault in {"full": full, "end": end_under_load, "replaced": replaced,
                        "bodies": bodies, "memory": out_of_memory}.items():  # fmt: skip
        if name in options.only:
            timed(name, fault, program)
    return check.end()


def control_holds(watched):
    with connect(watched.port) as client:
        client.sendall(b"GET /")
        check(until(lambda: not watched.no_more()), "control: a connection more is seen")


def timed(name, fault, subject):
    begin = time.monotonic()
    fault(subject)
    print(f"faults_check: {name}: {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
