"""Checks that `attnres serve` is as its OpenAPI document says, with schemathesis:

    pip install -r tests/clients/requirements.txt
    python tests/clients/openapi_check.py                        # 2000 requests
    python tests/clients/openapi_check.py --cases 20000 --seed 1
    python tests/clients/openapi_check.py --document attnres/serve/openapi.json  # as it is edited

What the document allows is answered as it says, what it forbids is refused, and nothing fails or
hangs. Bodies are drawn from the document; fitted, half of them, to what the model has, so that they
have to be answered by 200; and spoilt, a field at a time. Documents that are wrong on purpose are
found to be.
"""

import argparse
import copy
import json
import sys
from collections import Counter
from pathlib import Path

import jsonschema_rs
import requests
import schemathesis
from checks import Checks
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from server import MODEL, PROGRAM, Server

HANGS = 60  # seconds that no request of these takes
NEW_TOKENS, SEQUENCES = 4, 8
VOCABULARY, WIDTH = 256, 128  # the model's
WHOLE = ["max_tokens", "max_completion_tokens", "n", "best_of", "seed", "top_k", "logprobs",
         "top_logprobs", "prompt_logprobs", "dimensions", "min_tokens"]  # fmt: skip
# Of an answer: a request may have one at most.
FORMS = {
    "response_format": [{"type": "text"}, {"type": "json_object"},
                        {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}}],
    "structured_outputs": [{"json": {}}, {"regex": "[a-c]*"}, {"choice": ["a", "b"]}],
    "guided_json": [True, {"type": "string", "maxLength": 2}, '{"enum": [1, 2]}'],
    "guided_regex": ["a|bc", "[^a]+"],
    "guided_choice": [["a"], ["to be", "not to be"]],
    "guided_grammar": ['root ::= "a"+'],
    "grammar": ["root ::= a | b\na ::= [x-z] a?\nb ::= [0-9]"],
    "json_schema": [{"type": "array", "items": {"type": "null"}}],
}  # fmt: skip
FORM = st.one_of(
    st.just({}), *(st.fixed_dictionaries({k: st.sampled_from(v)}) for k, v in FORMS.items())
)
# What makes answers differ, and is seldom among the fields that are drawn.
KINDS = {
    "/v1/completions": st.fixed_dictionaries({
        "stream": st.booleans(), "echo": st.booleans(), "depth_weights": st.booleans(),
        "logprobs": st.sampled_from([None, 0, 1, 20]), "n": st.sampled_from([1, 2]), "form": FORM,
    }),
    "/v1/chat/completions": st.fixed_dictionaries({
        "stream": st.booleans(), "depth_weights": st.booleans(), "logprobs": st.booleans(),
        "top_logprobs": st.sampled_from([None, 0, 1, 20]), "n": st.sampled_from([1, 2]),
        "form": FORM,
    }),
    "/v1/embeddings": st.fixed_dictionaries({
        "encoding_format": st.sampled_from(["float", "base64"]),
    }),
}  # fmt: skip
# A right body of each path; each of its fields is given each of the values.
BODIES = {
    "/v1/completions": {"prompt": "A"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "A"}], "logprobs": True},
    "/v1/embeddings": {"input": "A"},
    "/v1/depth": {"prompt": "A"},
    "/tokenize": {"prompt": "A"},
    "/detokenize": {"tokens": [65]},
}
VALUES = [
    None, True, "", "x", "float", -101, -3, -2, -1, -0.5, 0, 0.5, 1, 1.5, 2.5, 20, 21, 101,
    2**31, 2**63, -(2**63) - 1, [], [""], ["x"], [1], [-1], [1.5], [2**31], [[]], [[1]], [["x"]],
    [None], [1, "x"], [[1], "x"], ["x", 1], {}, {"1": 1}, {"1": 101}, {"x": 1}, {"1": "x"},
    {"type": "text"}, {"type": "json"}, {"include_usage": True}, {"include_usage": 1},
    [{"role": "user"}], [{"role": "x"}], [{"role": 1}], [{"content": "x"}],
    [{"role": "user", "content": 1}],
    [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
    [{"role": "user", "content": [{"type": "image", "text": "x"}]}],
    [{"role": "user", "content": [{"type": "text"}]}],
]  # fmt: skip
RULES = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
# What a plain transcript has no place for, or need not have.
FOR_TEMPLATES = ("tools", "tool_choice", "documents", "chat_template_kwargs", "reasoning_effort",
                 "continue_final_message")  # fmt: skip
check = Checks("openapi_check")


def small(prompt):
    """Texts and token ids of a prompt, few enough and within what the model has."""
    if isinstance(prompt, str):
        return prompt[:8]
    if isinstance(prompt, list):
        return [small(item) for item in prompt[:4]]
    return int(prompt) % VOCABULARY if isinstance(prompt, (int, float)) else prompt


def small_message(message):
    content = message.get("content")
    if isinstance(content, list):
        content = [part | {"text": small(part["text"])} for part in content[:4]]
    fields = {"content": small(content) if isinstance(content, str) else content}
    if message["role"] not in ("system", "developer", "user", "assistant"):
        fields["role"] = "user"  # this model has no template that would know others
    return message | fields | {"tool_calls": None}


def fitted(body, kind, finished):
    """A body that the document allows, within what this server and this model have."""
    form = kind.pop("form", {})
    fields = {name: value for name, value in body.items() if name not in FORMS} | kind | form
    for name in WHOLE:  # 2.0 is a whole number to JSON Schema, and none to this server
        if isinstance(fields.get(name), float):
            fields[name] = int(fields[name])
    for name in ("max_tokens", "max_completion_tokens"):
        if isinstance(fields.get(name), int):
            fields[name] %= NEW_TOKENS + 1
    if isinstance(fields.get("min_tokens"), int):
        most = [fields.get(name) for name in ("max_tokens", "max_completion_tokens")]
        fields["min_tokens"] %= 1 + min([n for n in most if isinstance(n, int)], default=NEW_TOKENS)
    for name in ("prompt", "input", "ids", "tokens"):
        if name in fields:
            fields[name] = small(fields[name])
    if isinstance(fields.get("messages"), list):
        fields["messages"] = [small_message(message) for message in fields["messages"][:4]]
    for name in FOR_TEMPLATES:
        fields.pop(name, None)
    if isinstance(fields.get("n"), int):
        fields["n"] = 1 + fields["n"] % 2
    if fields.get("best_of"):
        fields["best_of"] = fields.get("n") or 1
    if fields.get("dimensions"):
        fields["dimensions"] = WIDTH
    if isinstance(fields.get("logit_bias"), dict):
        biases = fields["logit_bias"].items()
        fields["logit_bias"] = {str(int(id) % VOCABULARY): bias for id, bias in biases}
    if isinstance(fields.get("stop_token_ids"), list):
        fields["stop_token_ids"] = [int(id) % VOCABULARY for id in fields["stop_token_ids"][:16]]
    if isinstance(fields.get("prompt_logprobs"), int) and (fields.get("stream") or fields.get("echo")):
        del fields["prompt_logprobs"]
    if isinstance(fields.get("stop"), list):
        fields["stop"] = fields["stop"][:16]
    if fields.get("model"):
        fields["model"] = MODEL.name
    if fields.get("request"):
        fields["request"] = finished()
    return fields


class Examination:
    """Requests to a server, held against a document."""

    def __init__(self, server, document, seed_of_all):
        self.server, self.document, self.seed = server, document, seed_of_all
        self.schema = schemathesis.openapi.from_dict(document)
        self.schema.config.max_stream_events = 1000  # it reads 20 otherwise
        self.cases, self.failures, self.statuses = 0, {}, Counter()

    def finished(self):
        """The id of a finished request."""
        return self.server.post("/v1/completions", {"prompt": "A", "max_tokens": 0})[1]["id"]

    def fail(self, operation, kind, what):
        self.failures.setdefault((operation.label, kind), what)

    def events(self, operation, text):
        """The events of a stream are what the document says, and [DONE] ends it."""
        content = operation.definition.raw["responses"]["200"]["content"]["text/event-stream"]
        schema = {**content["x-event"], "components": self.document["components"]}
        *events, done, rest = text.split("\n\n")
        if (done, rest) != ("data: [DONE]", ""):
            self.fail(operation, "the stream's end", repr(text[-300:]))
        validator = jsonschema_rs.validator_for(schema)
        for event in events:
            for error in validator.iter_errors(json.loads(event.removeprefix("data: "))):
                self.fail(operation, "an event of a stream", f"{error.message}: {event[:300]}")

    def ask(self, operation, case, fits):
        asked = json.dumps(case.body, default=repr)[:500]
        self.cases += 1
        try:
            response = case.call(base_url=self.server.url, timeout=HANGS)
        except requests.RequestException as error:
            return self.fail(operation, "no answer", f"{asked}: {error}")
        kind = "fitted" if fits else "drawn"
        self.statuses[operation.label, response.status_code, kind] += 1
        try:
            case.validate_response(response, checks=RULES)
        except BaseExceptionGroup as group:
            for error in group.exceptions:
                what = f"{asked}: {error.message}: {response.text[:300]}"
                self.fail(operation, error.title, what)
        if fits and response.status_code != 200:
            self.fail(operation, "refuses what it may have", f"{asked}: {response.text[:300]}")
        if response.headers["content-type"][0].startswith("text/event-stream"):
            self.events(operation, response.text)

    def resolved(self, schema):
        name = schema.get("$ref", "").removeprefix("#/components/schemas/")
        return self.document["components"]["schemas"][name] if name else schema

    def fields_of(self, schema):
        schema = self.resolved(schema)
        parts = (self.fields_of(part) for part in schema.get("allOf", []))
        return set(schema.get("properties", {})).union(*parts)

    def spoil(self, operation):
        """Each field with each value: what the document forbids is refused."""
        content = operation.definition.raw["requestBody"]["content"]["application/json"]
        schema = content["schema"]
        allowed = jsonschema_rs.validator_for({**schema, "components": self.document["components"]})
        for field in sorted(self.fields_of(schema)):
            for value in VALUES:
                body = BODIES[operation.path] | {field: value}
                if allowed.is_valid(body):
                    continue
                self.cases += 1
                status, answer = self.server.post(operation.path, body)
                self.statuses[operation.label, status, "spoilt"] += 1
                if status != 400:
                    what = f"{json.dumps(body)}: {status}, {str(answer)[:200]}"
                    self.fail(operation, f"{field}: {json.dumps(value)} is accepted", what)

    def run(self, operation, mode, cases):
        """`cases` requests; all that are right half of the time as they are, half fitted."""

        @seed(self.seed)
        @settings(max_examples=cases, database=None, deadline=None, phases=[Phase.generate],
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode), fits=st.booleans(),
               kind=KINDS.get(operation.path, st.just({})))  # fmt: skip
        def requests_of(case, fits, kind):
            fits = fits and mode == GenerationMode.POSITIVE
            if fits and "model" in (case.path_parameters or {}):
                case.path_parameters["model"] = MODEL.name
            if fits and isinstance(case.body, dict):
                case.body = fitted(case.body, kind, self.finished)
            self.ask(operation, case, fits)

        requests_of()

    def run_all(self, cases, paths=None):
        operations = [found.ok() for found in self.schema.get_all_operations()]
        operations = [found for found in operations if paths is None or found.path in paths]
        with_body = [operation for operation in operations if operation.body]
        for operation in operations:
            if operation not in with_body:
                self.run(operation, GenerationMode.POSITIVE, 5)
        for operation in with_body:
            share = max(1, cases // len(with_body))
            self.run(operation, GenerationMode.POSITIVE, share - share // 4)
            self.run(operation, GenerationMode.NEGATIVE, share // 4)
            self.spoil(operation)


def wrong_documents(document):
    """Each with what is wrong of it, and the path where that shows."""

    def wrong(what, path, change):
        changed = copy.deepcopy(document)
        change(changed["paths"][path], changed["components"]["schemas"])
        return what, path, changed

    def answer(method):
        content = method["responses"]["200"]["content"]["application/json"]
        return content["schema"]["properties"]

    def prompt(path):
        content = path["post"]["requestBody"]["content"]["application/json"]
        return content["schema"]["properties"]["prompt"]

    yield wrong("running is a text", "/health",
                lambda path, _: answer(path["get"])["running"].update(type="string"))  # fmt: skip
    yield wrong("count is a text", "/tokenize",
                lambda path, _: answer(path["post"])["count"].update(type="string"))  # fmt: skip
    yield wrong("nothing is refused", "/tokenize",
                lambda path, _: path["post"]["responses"].pop("400"))  # fmt: skip
    yield wrong("texts are refused", "/tokenize",
                lambda path, _: prompt(path).update(type="null"))  # fmt: skip
    yield wrong("numbers are accepted", "/tokenize",
                lambda path, _: prompt(path).update(type="number"))  # fmt: skip
    yield wrong("events have more", "/v1/completions",
                lambda _, all: all["CompletionChunk"]["required"].append("nothing"))  # fmt: skip
    yield wrong("tokens are numbers", "/v1/chat/completions",
                lambda _, all: all["LikelyToken"]["properties"]["token"].update(type="number"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--attnres", default=PROGRAM, metavar="PATH", help="the program")
    parser.add_argument("--cases", type=int, default=2000, metavar="N", help="requests, about")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of other requests")
    parser.add_argument("--document", type=Path, metavar="FILE", help="instead of the server's")
    args = parser.parse_args()
    limits = ["--max-new-tokens", str(NEW_TOKENS), "--max-sequences", str(SEQUENCES)]
    with Server(args.attnres, MODEL, *limits, "--log", "none") as server:
        status, document = server.get("/openapi.json")
        check(status == 200, "the server gives its document")
        if args.document:
            document = json.loads(args.document.read_text())

        examined = Examination(server, document, args.seed)
        examined.run_all(args.cases)
        check.count += examined.cases
        for (operation, kind), what in examined.failures.items():
            check(False, f"{operation}: {kind}: {what}")
        for (operation, status, kind), count in sorted(examined.statuses.items()):
            print(f"{operation}: {status}, {kind}: {count}")

        for what, path, wrong in wrong_documents(document):
            control = Examination(server, wrong, args.seed)
            control.run_all(60, [path])
            new = control.failures.keys() - examined.failures.keys()
            check(new, f"a wrong document is noticed: {what} at {path}")

        check(server.is_idle(), "it is idle in the end")
        check(server.stop() == 0, "and ends on SIGTERM")
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
