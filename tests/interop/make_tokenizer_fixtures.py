"""Makes tests/fixtures/tokenizers: small tokenizers of every kind in tokenizer_kinds.py, in the files
of Hugging Face, and what `tokenizers` makes of texts with them.

expected.json beside each has a list of
  text         fuzzed
  ids          its tokens, where special tokens in it are text
  control_ids  its tokens, where they are control tokens
  decoded      the text of control_ids

and trained.json in the folder the merges that BpeTrainer learns of this file's own text, split by
Llama 3's expression.

usage: python make_tokenizer_fixtures.py [FOLDER]        tests/fixtures/tokenizers if not given
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import tokenizer_kinds as kinds

REPOSITORY = Path(__file__).resolve().parents[2]
VOCABULARY = 500
TEXTS = 50


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else REPOSITORY / "tests/fixtures/tokenizers")
    lines = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines(True)
    words = "".join(lines).split()
    scripts = list(kinds.fuzzed(200, seed=1, tokens=["."], words=words))
    for seed, (name, kind) in enumerate(kinds.KINDS.items()):
        tokenizer = kinds.train(name, lines * 3 + scripts, VOCABULARY)
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(place / "tokenizer.json"), pretty=False)
        write(place / "tokenizer_config.json", {"eos_token": kind["special"][-1]})
        texts = list(kinds.fuzzed(TEXTS, seed, kinds.control_tokens(tokenizer), words))
        ids = kinds.encode_all(tokenizer, texts, as_tokens=False)
        control_ids = kinds.encode_all(tokenizer, texts, as_tokens=True)
        decoded = tokenizer.decode_batch(control_ids)
        write(place / "expected.json", [
            {"text": t, "ids": i, "control_ids": c, "decoded": d}
            for t, i, c, d in zip(texts, ids, control_ids, decoded)])  # fmt: skip

    text = Path(__file__).read_text(encoding="utf-8")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = kinds.pieces(kinds.split(kinds.LLAMA_3), kinds.byte_level())
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=800, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))  # fmt: skip
    model = json.loads(tokenizer.to_str())["model"]
    write(folder / "trained.json", {"text": text, "vocab": model["vocab"], "merges": model["merges"]})


if __name__ == "__main__":
    main()
