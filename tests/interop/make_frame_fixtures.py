"""Makes tests/fixtures/tokenizers/frames.json: what transformers puts around texts, by tokenizers of
the folders beside it with other post-processors and other words of tokenizer_config.json.

A list of
  tokenizer       the folder whose tokenizer.json it is, but for
  post_processor  this
  config          tokenizer_config.json
  texts           each with its `ids`, as transformers' tokenizer gives them

usage: python make_frame_fixtures.py
"""

import json
import os
import tempfile
from pathlib import Path

from transformers import AutoTokenizer

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "tokenizers"
TEXTS = ("", "word", " the build 123\n")
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}


def template(before, after=()):
    """TemplateProcessing with these tokens, name to id, before a text and after it."""
    tokens = dict(before) | dict(after)
    special = {name: {"id": name, "ids": [id], "tokens": [name]} for name, id in tokens.items()}
    around = lambda names: [{"SpecialToken": {"id": name, "type_id": 0}} for name in names]
    text = [{"Sequence": {"id": "A", "type_id": 0}}]
    single = [*around(dict(before)), *text, *around(dict(after))]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


def in_turn(*steps):
    return {"type": "Sequence", "processors": list(steps)}


LLAMA_2 = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
LLAMA_3 = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
CASES = [
    ("llama2", template({"<s>": 1}), FAST | LLAMA_2 | {"add_bos_token": True}),
    ("llama2", template({"<s>": 1}), FAST | LLAMA_2 | {"add_bos_token": False}),
    ("llama2", template({"<s>": 1}, {"</s>": 2}), FAST | LLAMA_2),
    ("llama2", template({}, {"</s>": 2}), FAST | LLAMA_2),
    ("llama2", template({"<s>": 1, "<unk>": 0}), FAST | LLAMA_2),
    ("llama2", template({}), FAST | LLAMA_2),
    ("llama2", None, FAST | LLAMA_2),
    ("llama3", in_turn(BYTES, template({"<|begin_of_text|>": 0})), FAST | LLAMA_3),
    ("llama3", in_turn(template({}), template({"<|begin_of_text|>": 0})), FAST | LLAMA_3),
    ("llama3", template({"<|begin_of_text|>": 0}), FAST | {"eos_token": "<|end_of_text|>"}),
    ("gpt2", BYTES, FAST | {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}),
    ("gemma", template({"<bos>": 1}), FAST | {"bos_token": "<bos>", "eos_token": "<eos>"}),
]  # fmt: skip


def case(name, post_processor, config):
    tokenizer = json.loads((FOLDER / name / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["post_processor"] = post_processor
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.json").write_text(json.dumps(tokenizer))
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
        theirs = AutoTokenizer.from_pretrained(folder)
    texts = [{"text": text, "ids": theirs(text).input_ids} for text in TEXTS]
    return {"tokenizer": name, "post_processor": post_processor, "config": config, "texts": texts}


def main():
    os.environ["HF_HUB_OFFLINE"] = "1"
    cases = [case(*given) for given in CASES]
    lines = ",\n".join(json.dumps(made, ensure_ascii=False) for made in cases)
    (FOLDER / "frames.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
