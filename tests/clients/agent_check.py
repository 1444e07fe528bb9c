"""Checks an agent: a loop of a few tools over OpenAI's client, with a model trained here to call them.

    pip install -r tests/clients/requirements.txt
    python tests/clients/agent_check.py
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import openai
from checks import Checks
from jinja2 import Environment
from server import PROGRAM, Server

# In the form of Hermes and Qwen: a thought, and calls as JSON between tags.
TEMPLATE = """\
{%- if tools %}<|tools|>{% for tool in tools %}{{ tool.function.name }} {% endfor %}{% endif %}
{%- for message in messages %}<|{{ message.role }}|>
{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>{"name": "{{ call.function.name }}", \
"arguments": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}
"""
TOWNS = ["Rome", "Oslo", "Kiel"]
RESULTS = {"weather": ["sun", "rain"], "light": ["day", "night"], "trains": ["run", "stop"]}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {
              "type": "object", "properties": {"town": {"type": "string"}}}}}
         for name in RESULTS]  # fmt: skip
RECIPE = {
    "name": "agent",
    "model": {"layers": 4, "width": 96, "heads": 4, "ffn_width": 256,
              "depth_mixing": {"type": "block_attn_res", "block_size": 2}},
    "train": {"optimizer": "muon", "steps": 250, "batch_size": 6, "context": 384,
              "learning_rate": 0.01, "warmup": 10, "eval_every": 125, "eval_tokens": 8192},
    "tokenizer": {"kind": "bytes"},
}  # fmt: skip
check = Checks("agent_check")


def question(tool, town):
    return {"role": "user", "content": f"Tell me of {tool} in {town}."}


def talks(count):
    """Conversations of one question each, as the template writes them."""
    environment = Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(TEMPLATE)
    drawn = random.Random(1)
    for _ in range(count):
        town, tool = drawn.choice(TOWNS), drawn.choice(list(RESULTS))
        result = drawn.choice(RESULTS[tool])
        call = {"function": {"name": tool, "arguments": {"town": town}}}
        yield template.render(tools=TOOLS, messages=[
            question(tool, town),
            {"role": "assistant", "reasoning_content": f"I ask {tool}.", "tool_calls": [call]},
            {"role": "tool", "content": result},
            {"role": "assistant", "content": f"{town}: {result}."},
        ])  # fmt: skip


def train(program, folder):
    """The model's folder."""
    (folder / "talks.txt").write_text("\n".join(talks(4000)))
    (folder / "recipe.json").write_text(json.dumps(RECIPE))
    subprocess.run([program, "train", "--recipe", folder / "recipe.json", "--data",
                    folder / "talks.txt", "--out", folder / "run"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    model = folder / "run" / "checkpoints" / "best"
    (model / "chat_template.jinja").write_text(TEMPLATE)
    return model


def streamed(client, **fields):
    """The message that a stream's pieces make, as a dict, and why it ended."""
    message, calls, finish = {"role": "assistant", "content": "", "reasoning_content": ""}, {}, None
    for chunk in client.chat.completions.create(stream=True, **fields):
        choice = chunk.choices[0]
        finish = choice.finish_reason or finish
        message["content"] += choice.delta.content or ""
        message["reasoning_content"] += getattr(choice.delta, "reasoning_content", None) or ""
        for part in choice.delta.tool_calls or []:
            call = calls.setdefault(part.index, {"type": "function", "function": {"name": "", "arguments": ""}})
            call["id"] = part.id or call["id"]
            call["function"]["name"] += part.function.name or ""
            call["function"]["arguments"] += part.function.arguments or ""
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message, finish


def whole(client, **fields):
    choice = client.chat.completions.create(**fields).choices[0]
    return choice.message.model_dump(exclude_none=True), choice.finish_reason


def answer(client, world, message, ask):
    """What the agent says in the end, and what it called."""
    messages, called = [message], []
    for _ in range(3):
        reply, finish = ask(client, model="best", messages=messages, tools=TOOLS, temperature=0, max_tokens=120)
        messages.append(reply)
        if finish != "tool_calls":
            return reply["content"], called
        check(reply["reasoning_content"].startswith("I ask "), "it thinks before it calls")
        for call in reply["tool_calls"]:
            town = json.loads(call["function"]["arguments"])["town"]
            called.append((call["function"]["name"], town))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": world[called[-1]]})
    return None, called


def check_agent(client):
    for turn, ask in enumerate([whole, streamed]):
        world = {(tool, town): results[(turn + len(town + tool)) % 2]
                 for tool, results in RESULTS.items() for town in TOWNS}  # fmt: skip
        for tool, town in world:
            said, called = answer(client, world, question(tool, town), ask)
            check(called == [(tool, town)], f"{tool} in {town} is asked for, not {called}")
            check(said == f"{town}: {world[tool, town]}.", f"what {tool} gave is said, not {said}")


def check_choices(client):
    fields = {"model": "best", "messages": [question("light", "Rome")], "temperature": 0, "max_tokens": 120}
    choices = client.chat.completions.create(tools=TOOLS, n=2, **fields).choices
    ids = {choice.message.tool_calls[0].id for choice in choices}
    check(len(ids) == 2, "each choice has its call, with an id of its own")
    check(choices[0].message.content is None, "and no content beside it")
    for choice in ["trains", "weather"]:
        chosen = {"type": "function", "function": {"name": choice}}
        reply, finish = whole(client, tools=TOOLS, tool_choice=chosen, **fields)
        check([call["function"]["name"] for call in reply["tool_calls"]] == [choice], f"{choice} is called")
    reply, finish = whole(client, tools=TOOLS, tool_choice="required", **fields)
    check(finish == "tool_calls", "a tool is called")
    # A form is of what is said: the model may call all the same.
    form = {"guided_regex": "[A-Z][a-z]{3}!"}
    reply, finish = whole(client, tools=TOOLS, extra_body=form, **fields)
    check(reply["tool_calls"][0]["function"]["name"] == "light", "the tool is called beside a form")
    reply, finish = whole(client, extra_body=form, **fields)
    check(re.fullmatch("[A-Z][a-z]{3}!", reply["content"]), f"without tools the form is kept to, not {reply}")
    # The model is not told of tools, and what it writes all the same is text.
    reply, finish = whole(client, tools=TOOLS, tool_choice="none", **fields)
    check("tool_calls" not in reply and finish != "tool_calls", "tool_choice none has no calls")
    check.raises(openai.BadRequestError, lambda: whole(client, tools=[{"type": "function"}], **fields),
                 "a tool without a function is refused")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default=PROGRAM)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with Server(options.program, train(options.program, Path(folder))) as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
            check_agent(client)
            check_choices(client)
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
