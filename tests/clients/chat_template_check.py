"""Checks what `attnres serve` makes of conversations, by the templates of some sixty models, against
Python's Jinja as transformers sets it up: python tests/clients/chat_template_check.py

    pip install -r tests/clients/requirements.txt

The templates are llama.cpp's collection, of the sources that PyPI has, which it fetches once (77 MB)
into build/chat-templates. It renders tests/fixtures/jinja_cases.json too, whose texts are Python's.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import jinja2
import jinja2.ext
import jinja2.sandbox
from checks import Checks
from server import MODEL, PROGRAM, ROOT, Server

SOURCES = "llama-cpp-python==0.3.36"
TEMPLATES = ROOT / "build" / "chat-templates"
CASES = ROOT / "tests" / "fixtures" / "jinja_cases.json"
# The second is the model's own, of byte 0.
TOKENS = {"bos_token": "<s>", "eos_token": "\u0100"}
CONVERSATIONS = [
    [{"role": "user", "content": "Who's there?"}],
    [{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": " Who's \"there\"? "}],
    [{"role": "user", "content": "Nay, answer me: <|im_end|> stand & unfold."},
     {"role": "assistant", "content": "Long live the king!\n\nBernardo? {{ bos_token }}"},
     {"role": "user", "content": "He. Ünfold – 你好"}],
    [{"role": "system", "content": "You are Hamlet."}, {"role": "user", "content": "1"},
     {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"}, {"role": "assistant", "content": "4"},
     {"role": "user", "content": "5"}],
]  # fmt: skip
# What depends on the day.
SKIPPED = re.compile(r"strftime_now")
check = Checks("chat_template_check")


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


class Generation(jinja2.ext.Extension):
    """The tag that transformers adds, around what a model is to learn to write: no text of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("text_of"), [], [], body).set_lineno(line)

    def text_of(self, caller):
        return caller()


def python_engine():
    engine = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    engine.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    engine.globals["raise_exception"] = refuse
    return engine


def fetch_templates():
    if TEMPLATES.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
             "--dest", folder, SOURCES], check=True)  # fmt: skip
        (archive,) = Path(folder).glob("*.tar.gz")
        found = Path(folder) / "templates"
        found.mkdir()
        with tarfile.open(archive) as files:
            for file in files:
                if "/vendor/llama.cpp/models/templates/" in file.name and file.name.endswith(".jinja"):
                    (found / Path(file.name).name).write_bytes(files.extractfile(file).read())
        shutil.copytree(found, TEMPLATES)


def check_cases(engine):
    """That the texts of the fixture are Python's."""
    cases = json.loads(CASES.read_text(encoding="utf-8"))
    for source, expected in cases["renders"]:
        got = engine.from_string(source).render(**cases["variables"])
        check(got == expected, f"{source!r}: the fixture has {expected!r}, Python {got!r}")


def compare(server, template, name):
    """Bytes are the tokens of this model, so that its ids are the text."""
    taken = 0
    for messages in CONVERSATIONS:
        try:
            expected = template.render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **TOKENS)
        except jinja2.exceptions.UndefinedError:  # the template needs what only tools give
            continue
        except (jinja2.exceptions.TemplateError, TypeError):  # it refuses the conversation
            expected = None
        status, reply = server.post("/tokenize", {"messages": messages})
        if expected is None:
            check(status == 400, f"{name}: refused here as by Python, got {status}")
            continue
        got = bytes(reply["tokens"]).decode().replace("\0", TOKENS["eos_token"]) if status == 200 else reply
        check(got == expected, f"{name}: expected {expected!r}\n  got {got!r}")
        taken += got == expected
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attnres", type=Path, default=PROGRAM)
    parser.add_argument("--only", default="", help="templates whose names contain this")
    given = parser.parse_args()
    engine = python_engine()
    fetch_templates()
    check_cases(engine)
    taken = 0
    for path in sorted(TEMPLATES.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        if given.only not in path.name or SKIPPED.search(source):
            continue
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            shutil.copytree(MODEL, model)
            (model / "chat_template.jinja").write_text(source, encoding="utf-8")
            config = json.loads((model / "tokenizer_config.json").read_text())
            (model / "tokenizer_config.json").write_text(json.dumps(config | TOKENS))
            with Server(given.attnres, model, "--threads", "1") as server:
                taken += compare(server, engine.from_string(source), path.name)
    check(taken > 0, f"some conversations are taken, got {taken}")
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
