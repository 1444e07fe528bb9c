"""Conversations by the chat templates of 71 models, which llama.cpp has in its sources: the prompts that
`attnres serve` makes of them, and those of transformers' apply_chat_template, are the same texts, and
both refuse the same.

usage: python check_chat_templates.py [--templates FOLDER] [--only TEXT]
       (ATTNRES=PROGRAM; build/attnres if not set; scripts/llama-cpp has the templates)
"""

import argparse
import copy
import json
import shutil
import sys
from pathlib import Path

from interop import PROGRAM, REPOSITORY, Report
from jinja2 import Environment
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

sys.path.insert(0, str(REPOSITORY / "tests" / "clients"))
from server import MODEL, Server  # noqa: E402

TEMPLATES = """
    Apertus-8B-Instruct Apriel-1.6-15b-Thinker-fixed Bielik-11B-v3.0-Instruct ByteDance-Seed-OSS Cohere2MoE
    CohereForAI-c4ai-command-r-plus-tool_use CohereForAI-c4ai-command-r7b-12-2024-tool_use GLM-4.6
    GLM-4.7-Flash GigaChat3-10B-A1.8B GigaChat3.1-10B-A1.8B HuggingFaceTB-SmolLM3-3B Kimi-K2-Instruct
    Kimi-K2-Thinking Kimi-K3 LFM2-8B-A1B LFM2.5-8B-A1B LFM2.5-Instruct MiMo-VL MiniMax-M1 MiniMax-M2 MiniMax-M3
    Mistral-Small-3.2-24B-Instruct-2506 NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 NVIDIA-Nemotron-Nano-v2
    NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use NousResearch-Hermes-3-Llama-3.1-8B-tool_use Qwen-QwQ-32B
    Qwen-Qwen2.5-7B-Instruct Qwen-Qwen3-0.6B Qwen3-Coder Qwen3.5-4B Reka-Edge Spark2.5 StepFun3.5-Flash
    deepseek-ai-DeepSeek-R1-Distill-Llama-8B deepseek-ai-DeepSeek-R1-Distill-Qwen-32B deepseek-ai-DeepSeek-V3.1
    deepseek-ai-DeepSeek-V3.2 deepseek-ai-DeepSeek-V4 deepseek-ai-DeepSeek-V4-Flash-0731
    fireworks-ai-llama-3-firefunction-v2 google-gemma-2-2b-it google-gemma-4-31B-it
    google-gemma-4-31B-it-interleaved ibm-granite-granite-3.3-2B-Instruct ibm-granite-granite-4.0
    ibm-granite-granite-4.1 inclusionai-ling-3.0-flash llama-cpp-deepseek-r1 llama-cpp-rwkv-world
    meetkai-functionary-medium-v3.1 meetkai-functionary-medium-v3.2 meta-llama-Llama-3.1-8B-Instruct
    meta-llama-Llama-3.2-3B-Instruct meta-llama-Llama-3.3-70B-Instruct microsoft-Phi-3.5-mini-instruct
    mistralai-Ministral-3-14B-Reasoning-2512 mistralai-Mistral-Nemo-Instruct-2407 moonshotai-Kimi-K2 muse-glimmer
    openai-gpt-oss-120b openbmb-MiniCPM5-1B poolside-Laguna-S-2.1 poolside-Laguna-XS-2.1 poolside-Laguna-XS.2
    tencent-Hy3 unsloth-Apriel-1.5 unsloth-mistral-Devstral-Small-2507 upstage-Solar-Open-100B
""".split()

# The second is the served model's own, of byte 0; other bytes are its tokens.
BEGIN, END = "<s>", "\u0100"


def say(role, content, **more):
    return {"role": role, "content": content} | more


def function(name, parameters=None, **more):
    return {
        "type": "function",
        "function": {"name": name, "parameters": parameters or {"type": "object", "properties": {}}} | more,
    }


def call(number, name, arguments):
    return {"id": f"abcdefgh{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


SYSTEM = say("system", "Be brief.\n")
USER = say("user", ' Who\'s "there"? <b> ünï 你好 😀 <|im_end|> ')
ANSWER = say("assistant", "Long live the king!\n\nBernardo? {{ bos_token }}")
WEATHER = function(
    "get_weather",
    {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "Die Stadt 城市", "enum": ["Zürich", "北京"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 1.5e3}, "minItems": 1},
        "options": {"type": "object", "description": "more", "required": ["unit"],
                    "additionalProperties": False, "properties": {
                        "unit": {"type": ["string", "null"], "default": None},
                        "deep": {"type": "object", "properties": {"x": {"type": "number", "default": 0.1}}}}},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "ref": {"$ref": "#/$defs/thing"}},
     "$defs": {"thing": {"type": "boolean", "description": "a thing"}}},
    description='Das Wetter in "Zürich" & anderswo.\nZeile 2', strict=True)  # fmt: skip
NOW = function("now", description="The time")
ARGUMENTS = {"city": 'Zürich "x" & <y>', "days": [1, 2], "options": {"unit": None, "deep": {"x": 0.5}},
             "flag": True, "n": 3, "none": None, "text": "a\nb", "big": 1e20}  # fmt: skip
ONE_CALL = [
    SYSTEM, USER,
    say("assistant", "Let me see.", reasoning_content="Think.\nHard.",
        tool_calls=[call(1, "get_weather", ARGUMENTS)]),
    say("tool", '{"sun": true, "t": 20.5}', tool_call_id="abcdefgh1", name="get_weather"),
    say("assistant", "Sunny.", reasoning_content="It is."), say("user", "Thanks"),
]  # fmt: skip
TWO_CALLS = [
    USER, say("assistant", "", tool_calls=[call(1, "get_weather", ARGUMENTS), call(2, "now", {})]),
    say("tool", "12:00", tool_call_id="abcdefgh2", name="now"),
    say("tool", "sun", tool_call_id="abcdefgh1", name="get_weather"),
]  # fmt: skip
THINKS, THINKS_NOT = ({"enable_thinking": yes, "thinking": yes} for yes in (True, False))


def as_texts(messages):
    """With arguments of calls as OpenAI's API has them."""
    messages = copy.deepcopy(messages)
    for message in messages:
        for one in message.get("tool_calls", []):
            one["function"]["arguments"] = json.dumps(one["function"]["arguments"], ensure_ascii=False)
    return messages


def asked(*messages, **more):
    return {"messages": list(messages)} | more


CONVERSATIONS = {
    "a question": asked(USER),
    "a system's text": asked(SYSTEM, USER),
    "turns": asked(SYSTEM, USER, ANSWER, say("user", "He."),
        say("assistant", "<think>\nhm\n</think>\n\nYes"), say("user", "5")),
    "an end": asked(USER, ANSWER),
    "names": asked(say("system", "a", name="sys"), say("user", "b", name="Ann"),
        say("assistant", "c", name="Bob"), say("user", "d")),
    "thoughts": asked(USER, say("assistant", "A", reasoning_content="thought 1"), say("user", "q"),
        say("assistant", "B", reasoning="thought\n2\n")),
    "thoughts kept": asked(USER, say("assistant", "A", reasoning_content="thought"),
        say("user", "q"), chat_template_kwargs=THINKS | {"preserve_thinking": True}),
    "tools": asked(USER, tools=[WEATHER, NOW]),
    "tools and a system's text": asked(SYSTEM, USER, tools=[WEATHER]),
    "a call": asked(*ONE_CALL, tools=[WEATHER]),
    "a call of texts": asked(*as_texts(ONE_CALL), tools=[WEATHER]),
    "a call without thoughts": asked(*ONE_CALL, tools=[WEATHER], chat_template_kwargs=THINKS_NOT),
    "two calls": asked(*TWO_CALLS, tools=[WEATHER, NOW]),
    "two calls of texts": asked(*as_texts(TWO_CALLS), tools=[WEATHER, NOW]),
    "calls without tools": asked(*TWO_CALLS),
    "a call alone": asked(USER, say("assistant", None, tool_calls=[call(1, "now", {})]),
        say("tool", "12", tool_call_id="abcdefgh1"), tools=[NOW]),
    "parts": asked(say("system", parts("s1")), say("user", parts("one", "two")),
        say("assistant", parts("three")), say("user", parts("4"))),
    "parts of a tool": asked(USER, say("assistant", "", tool_calls=[call(1, "now", {})]),
        say("tool", parts("12", ":00"), tool_call_id="abcdefgh1", name="now"), tools=[NOW]),
    "documents": asked(SYSTEM, USER, documents=[
        {"title": "T", "text": "A text"}, {"title": "Ü", "text": "More", "doc_id": 3}]),
    "a low effort": asked(USER, chat_template_kwargs={"thinking_effort": "low", "reasoning_effort": "low"}),
    "a high effort": asked(SYSTEM, USER,
        chat_template_kwargs={"thinking_effort": "high", "reasoning_effort": "high", "thinking": True}),
    "an effort that there is not": asked(USER,
        chat_template_kwargs={"thinking_effort": "some", "reasoning_effort": "some"}),
    "no thoughts": asked(SYSTEM, USER, chat_template_kwargs=THINKS_NOT),
    "thoughts on": asked(SYSTEM, USER, chat_template_kwargs=THINKS),
    "a developer": asked(say("developer", "dev"), USER),
    "a role that there is not": asked(say("judge", "x"), USER),
    "an answer first": asked(ANSWER, USER),
    "two questions": asked(USER, USER),
    "a late system": asked(USER, ANSWER, SYSTEM, USER),
    "a system alone": asked(SYSTEM),
    "an answer of a tool alone": asked(USER, say("tool", "x")),
    "other variables": asked(SYSTEM, USER, tools=[WEATHER], chat_template_kwargs={
        "tools_in_user_message": False, "date_string": "1 Jan 2025", "builtin_tools": ["web"],
        "model_identity": "I am", "custom_tools": None, "response_format": {"type": "json_object"},
        "tool_choice": "required", "functions": "fn",
        "datetime": "now", "thinking_budget": 512, "xml_tools": [], "python_tools": []}),
    "an answer that goes on": asked(USER, say("assistant", "Long live "), continue_final_message=True),
}  # fmt: skip


class Transformers:
    def __init__(self, source):
        self.source = source
        self.names = {value for _, kind, value in Environment().lex(source) if kind == "name"}
        self.tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")),
            bos_token=BEGIN,
            eos_token=END,
        )

    def rendered(self, messages, conversation):
        """None where the template refuses it."""
        fields = {"add_generation_prompt": not conversation.get("continue_final_message"), **conversation}
        variables = fields.pop("chat_template_kwargs", {})
        del fields["messages"]
        try:
            return self.tokenizer.apply_chat_template(
                messages, chat_template=self.source, tokenize=False, **fields, **variables
            )
        except Exception:  # what templates raise is of every kind
            return None

    def expected(self, conversation):
        """What the server says it does of what templates differ in, and transformers leaves to who asks."""
        messages = copy.deepcopy(conversation["messages"])
        for message in messages:
            if message["role"] == "developer" and "developer" not in self.source:
                message["role"] = "system"
            message["content"] = message["content"] or ""  # not null
        as_given = copy.deepcopy(messages)
        for message in messages:
            for one in message.get("tool_calls", []):
                if isinstance(one["function"]["arguments"], str):
                    one["function"]["arguments"] = json.loads(one["function"]["arguments"])
        for tried in (messages, as_given):
            if (text := self.of_parts(tried, conversation)) is not None:
                return text
        return None

    def of_parts(self, messages, conversation):
        """Parts are one text where the template does not take lists."""
        if not any(isinstance(message["content"], list) for message in messages):
            return self.rendered(messages, conversation)
        texts, lists = copy.deepcopy(messages), copy.deepcopy(messages)
        for message, joined, one in zip(messages, texts, lists, strict=True):
            if isinstance(message["content"], list):
                joined["content"] = "".join(part["text"] for part in message["content"])
                one["content"] = parts(joined["content"])
        text = self.rendered(texts, conversation)
        return self.rendered(messages, conversation) if self.rendered(lists, conversation) == text else text


def prompt(server, conversation):
    """None where it is refused."""
    status, reply = server.post("/tokenize", conversation)
    return bytes(reply["tokens"]).decode().replace("\0", END) if status == 200 else None


def first_difference(ours, theirs):
    if ours is None or theirs is None:
        return "attnres refuses it" if ours is None else "transformers refuses it"
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    near = slice(max(0, at - 40), at + 40)
    return f"attnres has {ours[near]!r}, transformers {theirs[near]!r}"


def check_template(report, name, source):
    folder = report.folder / name
    shutil.copytree(MODEL, folder)
    (folder / "chat_template.jinja").write_text(source, encoding="utf-8")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": BEGIN, "eos_token": END}))
    transformers = Transformers(source)
    taken, refused, wrong = 0, 0, []
    with Server(PROGRAM, folder, "--threads", "1") as server:
        for what, conversation in CONVERSATIONS.items():
            ends = [True, False] if "continue_final_message" not in conversation else [None]
            for prompts in ends:
                given = conversation | ({} if prompts is None else {"add_generation_prompt": prompts})
                ours, theirs = prompt(server, given), transformers.expected(given)
                # What a template does not read transformers leaves out without a word.
                if any(given.get(field) and field not in transformers.names for field in ("tools", "documents")):
                    theirs = None
                if ours != theirs:
                    wrong.append(f"{what}: {first_difference(ours, theirs)}")
                taken += theirs is not None
                refused += theirs is None
    said = f"; {len(wrong)} differ, the first: {wrong[0]}" if wrong else ""
    report.line(not wrong, f"{name}: {taken} prompts, {refused} refused{said}")
    return taken


def sources():
    from llama_cpp import run

    return Path(run(REPOSITORY / "scripts" / "llama-cpp").strip()) / "models" / "templates"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--templates", type=Path, help="a folder with them")
    parser.add_argument("--only", default="", help="those whose names contain this")
    given = parser.parse_args()
    folder = given.templates or sources()
    report = Report()
    there = sorted(path.stem for path in folder.glob("*.jinja"))
    report.equal("the templates that llama.cpp has", there, sorted(TEMPLATES))
    taken = sum(check_template(report, name, (folder / f"{name}.jinja").read_text(encoding="utf-8"))
                for name in there if given.only in name)  # fmt: skip
    report.line(taken > 0, f"{taken} prompts in all")
    report.finish()


if __name__ == "__main__":
    main()
