"""Checks `attnres serve` with OpenAI's own client: python tests/clients/openai_check.py

    pip install -r tests/clients/requirements.txt
"""

import argparse
import asyncio
import base64
import json
import math
import struct
import sys
import threading

import jsonschema_rs
import openai
from checks import Checks
from server import MODEL, PROGRAM, Server, until

PROMPT = "KING HENRY:"
check = Checks("openai_check")


def text_of(reply):
    return reply.choices[0].text


def close(a, b, tolerance=1e-4):
    return len(a) == len(b) and all(abs(x - y) <= tolerance for x, y in zip(a, b))


def check_completions(client):
    def complete(**fields):
        return client.completions.create(**({"model": MODEL.name, "prompt": PROMPT, "max_tokens": 12, "temperature": 0} | fields))

    whole = complete()
    check(len(text_of(whole)) == 12 and whole.choices[0].finish_reason == "length", "twelve bytes")
    check(whole.usage.completion_tokens == 12 and whole.usage.prompt_tokens >= len(PROMPT), "usage")
    ids = list(PROMPT.encode())
    check(text_of(complete(prompt=ids)).startswith(text_of(whole)[:4]), "ids as the prompt")
    many = complete(prompt=[PROMPT, "ROMEO:"])
    check([c.index for c in many.choices] == [0, 1], "two prompts, two choices")
    check(many.choices[0].text == text_of(whole), "the first is as alone")
    check(many.choices[1].text == text_of(complete(prompt="ROMEO:")), "and the second")
    check(complete(prompt=[ids, ids]).choices[1].index == 1, "lists of ids")
    check(text_of(complete(echo=True)) == PROMPT + text_of(whole), "echo")

    drawn = complete(temperature=1, seed=5)
    check(text_of(drawn) == text_of(complete(temperature=1, seed=5)), "a seed gives the same again")
    check(text_of(drawn) != text_of(complete(temperature=1, seed=6)), "another seed does not")
    check(text_of(complete(temperature=1, seed=2**63)) != text_of(drawn), "a seed of 64 bits")
    check(text_of(complete(temperature=1, top_p=0)) == text_of(whole), "top_p 0 is the likeliest")
    three = complete(temperature=1, seed=5, n=3)
    check(len({c.text for c in three.choices}) == 3, "n gives different ones")
    check(three.choices[0].text == text_of(drawn), "of which the first has the seed")

    letter = text_of(whole)[5]
    stopped = complete(stop=[letter])
    check(text_of(stopped) == text_of(whole).split(letter)[0], "the text ends before a stop")
    check(stopped.choices[0].finish_reason == "stop", "and says so")
    first = text_of(whole)[0]
    biased = complete(logit_bias={str(ord(first)): -100})
    check(first not in text_of(biased), "a token that is forbidden does not come")
    check(set(text_of(complete(logit_bias={str(ord("x")): 100}))) == {"x"}, "one that is pushed does")

    told = complete(logprobs=3)
    logprobs = told.choices[0].logprobs
    check("".join(logprobs.tokens) == text_of(whole), "log-probabilities are of the tokens")
    check(all(len(top) in (3, 4) for top in logprobs.top_logprobs), "three likeliest")
    check(all(p == max(top.values()) for p, top in zip(logprobs.token_logprobs, logprobs.top_logprobs)),
          "without temperature each is the likeliest")  # fmt: skip
    again = complete(prompt=PROMPT + text_of(whole), echo=True, max_tokens=0, logprobs=1)
    echoed = again.choices[0].logprobs
    check(echoed.token_logprobs[0] is None, "the first token has no log-probability")
    check(close(echoed.token_logprobs[-12:], logprobs.token_logprobs), "echo's are generation's")
    check(not close(echoed.token_logprobs[-12:], logprobs.token_logprobs[1:] + [0]), "and no others")

    events = list(complete(stream=True, stream_options={"include_usage": True}))
    check(events[-1].usage.completion_tokens == 12 and not events[-1].choices, "usage ends a stream")
    pieces = [choice.text for event in events for choice in event.choices]
    check("".join(pieces) == text_of(whole) and len(pieces) >= 12, "streamed, the text is the same")
    check(events[-2].choices[0].finish_reason == "length", "and why it ended")
    streamed = [p for event in complete(stream=True, logprobs=1) for c in event.choices
                if c.logprobs for p in c.logprobs.token_logprobs]  # fmt: skip
    check(close(streamed, logprobs.token_logprobs), "streamed log-probabilities are the same")


def check_chat(client):
    def chat(**fields):
        messages = [{"role": "system", "content": "Speak as a king."}, {"role": "user", "content": "Who is there?"}]
        return client.chat.completions.create(**({"model": MODEL.name, "messages": messages, "max_tokens": 16, "temperature": 0} | fields))

    whole = chat().choices[0]
    check(whole.message.role == "assistant" and whole.message.content, "an answer")
    events = list(chat(stream=True, stream_options={"include_usage": True}))
    check(events[0].choices[0].delta.role == "assistant", "the first event has the role")
    pieces = [c.delta.content or "" for event in events for c in event.choices]
    check("".join(pieces) == whole.message.content, "streamed, the answer is the same")
    check(events[-1].usage.completion_tokens > 0, "usage ends it")
    logprobs = chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    check(all(len(token.top_logprobs) == 2 for token in logprobs), "two likeliest of each")
    check(all(token.logprob == token.top_logprobs[0].logprob for token in logprobs), "the likeliest was taken")
    text = b"".join(bytes(token.bytes) for token in logprobs).decode(errors="replace")
    check(text.startswith(whole.message.content), "their bytes are the answer")
    two = chat(n=2, temperature=1, seed=1).choices
    check(two[0].message.content != two[1].message.content, "two answers")
    error = check.raises(openai.BadRequestError, lambda: chat(tools=[{"type": "function", "function": {"name": "f"}}]), "tools are refused without a template")
    check(error is not None and "no chat template" in error.message, "which the message says")


SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 12},
        "acts": {"type": "integer", "minimum": 1, "maximum": 9},
        "kind": {"enum": ["tragedy", "comedy", None]},
        "cast": {"type": "array", "items": {"type": "string", "pattern": "[A-Z][a-z]{1,6}"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["title", "acts", "kind", "cast"],
    "additionalProperties": False,
}


def check_formats(client):
    valid = jsonschema_rs.validator_for(SCHEMA).is_valid
    form = {"type": "json_schema", "json_schema": {"name": "play", "strict": True, "schema": SCHEMA}}
    asked = {"model": MODEL.name, "messages": [{"role": "user", "content": "A play?"}], "max_tokens": 400}
    # This model likes them where JSON has blanks, and its context is short.
    asked["logit_bias"] = {str(ord(blank)): -100 for blank in " \n"}

    def answer(seed, **fields):
        return client.chat.completions.create(seed=seed, **(asked | fields)).choices[0]

    for seed in range(5):
        choice = answer(seed, response_format=form)
        check(choice.finish_reason == "stop" and valid(json.loads(choice.message.content)), "an answer of a schema")
    check(not any(choice.message.content.startswith("{") for choice in [answer(1)]), "and without one something else")
    events = client.chat.completions.create(seed=7, response_format=form, stream=True, **asked)
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    check(valid(json.loads(text)), "and streamed")
    choice = answer(1, extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    check(choice.message.content in ("yes", "no"), "one of a few")
    choice = answer(1, extra_body={"guided_regex": "[A-C]{3}"})
    check(len(choice.message.content) == 3 and set(choice.message.content) <= set("ABC"), "an expression")
    choice = answer(1, extra_body={"grammar": 'root ::= "(" ("be" | "go") ")"'})
    check(choice.message.content in ("(be)", "(go)"), "a grammar")
    choice = answer(1, response_format={"type": "json_object"}, logit_bias={str(ord("}")): 100})
    check(choice.finish_reason != "stop" or isinstance(json.loads(choice.message.content), dict), "any object")
    fields = {"prompt": PROMPT, "max_tokens": 400, "logit_bias": asked["logit_bias"]}
    completed = client.completions.create(model=MODEL.name, extra_body={"guided_json": SCHEMA}, **fields)
    check(valid(json.loads(text_of(completed))), "a completion")
    for name in ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "uri-reference"):
        schema = {"type": "string", "format": name}
        valid_format = jsonschema_rs.validator_for(schema, validate_formats=True).is_valid
        check(not valid_format("no"), f"a text that is no {name}") if name != "uri-reference" and name != "hostname" else None
        for seed in range(3):
            choice = answer(seed, extra_body={"guided_json": schema}, temperature=1.5)
            check(choice.finish_reason == "stop" and valid_format(json.loads(choice.message.content)), f"a {name}: {choice}")
    bad = form | {"json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}}}
    error = check.raises(openai.BadRequestError, lambda: answer(1, response_format=bad), "what cannot be kept to")
    check(error and "#/uniqueItems" in str(error), "with its place")


def check_embeddings(client):
    def embed(**fields):
        return client.embeddings.create(model=MODEL.name, input=["Speak.", "Hark! Who goes there?"], **fields)

    numbers = embed(encoding_format="float").data
    check([e.index for e in numbers] == [0, 1], "two texts, two embeddings")
    check(numbers[0].embedding != numbers[1].embedding, "which differ")
    raw = embed(encoding_format="base64").data[1].embedding
    decoded = base64.b64decode(raw)
    floats = list(struct.unpack(f"<{len(decoded) // 4}f", decoded))
    check(close(floats, numbers[1].embedding, 1e-6), "base64 has the same numbers")
    check(close(embed().data[1].embedding, floats, 1e-6), "which the client takes unless told otherwise")
    check(math.hypot(*floats) > 0, "that are not nothing")
    check.raises(openai.BadRequestError, lambda: embed(dimensions=7), "other dimensions are refused")


def check_errors(client, program):
    def complete(**fields):
        return client.completions.create(**({"model": MODEL.name, "prompt": PROMPT, "max_tokens": 1} | fields))

    error = check.raises(openai.BadRequestError, lambda: complete(temperature=-1), "temperature -1")
    check(error is not None and error.status_code == 400 and "temperature" in error.message, "is named")
    check(error is not None and error.param == "temperature", "as the parameter too")
    error = check.raises(openai.NotFoundError, lambda: complete(model="gpt-5"), "another model")
    check(error is not None and error.code == "model_not_found", "is not found")
    error = check.raises(openai.BadRequestError, lambda: complete(prompt="x" * 10_000), "a prompt beyond the context")
    check(error is not None and error.code == "context_length_exceeded", "is told so")
    error = check.raises(openai.BadRequestError, lambda: complete(extra_body={"mirostat": 2}), "mirostat")
    check(error is not None and error.param == "mirostat", "is not ignored")
    check.raises(openai.NotFoundError, lambda: client.models.retrieve("gpt-5"), "another model's name")
    check(client.models.retrieve(MODEL.name).id == MODEL.name, "and its own")
    check.raises(openai.BadRequestError, lambda: complete(prompt=[99999]), "an id beyond the vocabulary")
    with Server(program, MODEL, environment={"ATTNRES_API_KEY": "a secret"}) as server:
        def ask(key):
            return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0).models.list()

        check.raises(openai.AuthenticationError, lambda: ask("another"), "a wrong key")
        check(ask("a secret").data[0].id == MODEL.name, "the right one")


def check_full_queue(program):
    """One slot that is taken, and a queue for one."""
    forbidden = {"logit_bias": {"0": -100}, "max_tokens": 200, "prompt": PROMPT, "model": MODEL.name}
    with Server(program, MODEL, "--slots", "1", "--max-queue", "1") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        runs = client.completions.create(stream=True, **forbidden)
        next(iter(runs))
        waits = threading.Thread(target=lambda: client.completions.create(**forbidden))
        waits.start()
        check(until(lambda: server.get("/health")[1]["waiting"] > 0), "one more waits")
        error = check.raises(openai.RateLimitError, lambda: client.completions.create(**forbidden), "a full queue")
        check(error is not None and error.response.headers["retry-after"] == "1", "says when to ask again")
        runs.close()
        waits.join()
        check(text_of(client.completions.create(**forbidden | {"max_tokens": 3})), "afterwards there is room")
        check(server.stop() == 0, "it ends")


def check_cancellation(client, server):
    stream = client.completions.create(model=MODEL.name, prompt=PROMPT, max_tokens=200, stream=True, logit_bias={"0": -100})
    for count, _ in enumerate(stream):
        if count == 5:
            break
    stream.close()
    check(until(server.is_idle), "a stream that is closed frees its slot")
    ended = [line for line in server.log if "gone" in line]
    check(ended, "a client that went is logged so")
    hurried = client.with_options(timeout=0.001, max_retries=0)
    check.raises(openai.APITimeoutError, lambda: hurried.completions.create(model=MODEL.name, prompt=PROMPT, max_tokens=200), "a client that does not wait")
    check(until(server.is_idle), "frees its slot too")
    check(client.models.list().data, "and then it answers")


async def check_many(url):
    client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="none")

    async def complete(seed):
        reply = await client.completions.create(model=MODEL.name, prompt=PROMPT, max_tokens=20, seed=seed)
        return text_of(reply)

    alone = [await complete(seed) for seed in range(3)]
    together = await asyncio.gather(*(complete(seed) for seed in range(16)))
    check(len(set(together)) > 10, "sixteen at once have texts of their own")
    check(together[:3] == alone, "the same as alone")
    await client.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--attnres", default=PROGRAM, metavar="PROGRAM")
    program = parser.parse_args().attnres
    with Server(program) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        check([m.id for m in client.models.list()] == [MODEL.name], "the model's name")
        check_completions(client)
        check_chat(client)
        check_formats(client)
        check_embeddings(client)
        check_errors(client, program)
        check_cancellation(client, server)
        asyncio.run(check_many(server.url))
        client.close()
        check(server.stop() == 0, "it ends")
    check_full_queue(program)
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
