"""Checks that the texts of tests/fixtures/jinja_*.json and conversation_cases.json, which test_text holds
our chat templates to, are those of Python's Jinja as transformers sets it up:
python tests/clients/chat_template_check.py

    pip install -r tests/clients/requirements.txt

tests/interop/check_chat_templates.py compares with transformers on the templates of 71 models.
"""

import json
import sys
from datetime import datetime

import jinja2
import jinja2.ext
import jinja2.sandbox
from checks import Checks
from server import ROOT

FIXTURES = ROOT / "tests" / "fixtures"
REASONING = ("reasoning_content", "thinking", "reasoning")
GOES_ON = "CONTINUE_FINAL_MESSAGE_TAG "
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


class Namespace(jinja2.utils.Namespace):
    """Keeps no name that begins with an underscore."""

    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        for name in dict(*args, **kwargs):
            Namespace.check_name(name)
        jinja2.utils.Namespace.__init__(self, *args, **kwargs)

    def __setitem__(self, name, value):
        Namespace.check_name(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check_name(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def python_engine():
    engine = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    engine.filters["tojson"] = tojson
    engine.globals |= {
        "raise_exception": refuse,
        "strftime_now": datetime.now().strftime,
        "namespace": Namespace,
    }
    return engine


def rendered(engine, source, variables):
    """None where Python refuses it."""
    try:
        return engine.from_string(source).render(**variables)
    except Exception:  # what templates raise is of every kind
        return None


def check_constructs(engine, name):
    cases = json.loads((FIXTURES / name).read_text(encoding="utf-8"))
    for source, expected in cases["renders"]:
        got = rendered(engine, source, cases["variables"])
        check(got == expected, f"{name}: {source!r}: the fixture has {expected!r}, Python {got!r}")
    for source in cases["refuses"]:
        got = rendered(engine, source, cases["variables"])
        check(got is None, f"{name}: {source!r}: Python does not refuse it, but makes {got!r}")


def handed_over(messages):
    """As transformers 5.24 does: nothing that is null, and thoughts by the names that templates read."""
    for message in messages:
        kept = {key: value for key, value in message.items() if value is not None}
        thought = next((kept[key] for key in REASONING if key in kept), None)
        yield kept if thought is None else {"thinking": thought, **kept, "reasoning_content": thought}


def check_conversations(engine):
    cases = json.loads((FIXTURES / "conversation_cases.json").read_text(encoding="utf-8"))
    for template, name, lines in cases["renders"]:
        conversation = cases["conversations"][name]
        goes_on = conversation.get("continue_final_message", False)
        messages = list(handed_over(conversation["messages"]))
        if goes_on:
            messages[-1]["content"] += GOES_ON
        variables = cases["tokens"] | conversation.get("chat_template_kwargs", {}) | {
            "messages": messages, "tools": conversation.get("tools"), "documents": None,
            "add_generation_prompt": conversation.get("add_generation_prompt", not goes_on)}  # fmt: skip
        got = rendered(engine, "\n".join(cases["templates"][template]), variables)
        if goes_on and got is not None:
            got = got[: got.rindex(GOES_ON)]
        expected = None if lines is None else "\n".join(lines)
        check(got == expected, f"{template}, {name}: the fixture has {expected!r}, Python {got!r}")


def main():
    engine = python_engine()
    check_constructs(engine, "jinja_cases.json")
    check_constructs(engine, "jinja_constructs.json")
    check_conversations(engine)
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
