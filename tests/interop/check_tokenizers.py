"""Tokenizers of every kind in tokenizer_kinds.py in `tokenizers`, and one of Kimi's kind in
`tiktoken`: equal ids and texts of fuzzed texts, and of every character that Unicode 14 has.
And what attnres trains: the merges of BpeTrainer.

usage: python check_tokenizers.py [TEXTS]        of each kind, 2000 if not given
                                                 (ATTNRES=PROGRAM; build/attnres if not set)
"""

import base64
import json
import subprocess
import sys

import tiktoken
from interop import PROGRAM, REPOSITORY, Report, attnres
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import tokenizer_kinds as kinds

VOCABULARY = 3000


def tokenize(folder, texts, *options):
    """What the program prints for each text."""
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    command = [PROGRAM, "tokenize", "--model", folder, "--jsonl", *options]
    done = subprocess.run(list(map(str, command)), input=lines, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nfailed: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


def compare(report, what, texts, ours, theirs):
    """Counts the texts that differ, and shows the first."""
    different = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    example = ""
    if different:
        i = different[0]
        example = f"; first {texts[i]!r}: attnres has {ours[i]!r}, they have {theirs[i]!r}"
    report.line(not different, f"{what}: {len(different)} of {len(texts)} texts differ{example}")


def check_kind(report, name, count, lines, words):
    tokenizer = kinds.train(name, lines, VOCABULARY)
    folder = report.folder / name
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    end = kinds.KINDS[name]["special"][-1]
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
    texts = list(kinds.fuzzed(count, 1, kinds.control_tokens(tokenizer), words))
    texts += kinds.every_character()
    as_text = [line["ids"] for line in tokenize(folder, texts)]
    compare(report, f"{name}: ids", texts, as_text, kinds.encode_all(tokenizer, texts, False))
    as_tokens = tokenize(folder, texts, "--special")
    ids = kinds.encode_all(tokenizer, texts, True)
    compare(report, f"{name}: ids with control tokens", texts, [a["ids"] for a in as_tokens], ids)
    decoded = tokenizer.decode_batch(ids)
    compare(report, f"{name}: texts", texts, [a["text"] for a in as_tokens], decoded)


def check_tiktoken(report, count, lines, words):
    trained = json.loads(kinds.train("kimi", lines, VOCABULARY).to_str())["model"]
    byte_of = {character: byte for byte, character in enumerate(kinds.byte_characters())}
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [bytes(byte_of[c] for c in left + right) for left, right in trained["merges"]]
    ranks = {token: rank for rank, token in enumerate(dict.fromkeys(tokens))}
    folder = report.folder / "tiktoken"
    folder.mkdir()
    (folder / "tiktoken.model").write_text("".join(
        f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))  # fmt: skip
    control = {"[BOS]": len(ranks), "[EOS]": len(ranks) + 1, "<|im_end|>": len(ranks) + 4}
    control |= {f"<|reserved_token_{rank}|>": rank for rank in range(len(ranks), len(ranks) + 258)
                if rank not in control.values()}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "TikTokenTokenizer", "eos_token": "[EOS]",
        "added_tokens_decoder": {str(control[name]): {"content": name} for name in list(control)[:3]},
    }))  # fmt: skip
    encoding = tiktoken.Encoding("kimi", pat_str=kinds.KIMI, mergeable_ranks=ranks,
                                 special_tokens=control)  # fmt: skip
    texts = list(kinds.fuzzed(count, 2, list(control)[:5], words))
    ids = [line["ids"] for line in tokenize(folder, texts)]
    compare(report, "tiktoken.model: ids", texts, ids, encoding.encode_ordinary_batch(texts))
    ids = [line["ids"] for line in tokenize(folder, texts, "--special")]
    expected = encoding.encode_batch(texts, allowed_special="all")
    compare(report, "tiktoken.model: ids with control tokens", texts, ids, expected)


def check_trained(report, count, lines, words):
    text, held_out = report.folder / "text.txt", report.folder / "held_out.txt"
    text.write_text("".join(lines), newline="")
    held_out.write_text(" ".join(words))
    recipe = report.folder / "recipe.json"
    recipe.write_text(json.dumps({
        "name": "trained", "tokenizer": {"kind": "bpe", "vocab_size": VOCABULARY},
        "model": {"layers": 1, "width": 16, "heads": 1, "ffn_width": 16}, "train": {"steps": 1},
    }))  # fmt: skip
    run = report.folder / "trained"
    attnres("train", "--recipe", recipe, "--data", text, "--validation", held_out, "--out", run)
    folder = run / "checkpoints" / "last"

    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = kinds.pieces(kinds.split(kinds.LLAMA_3), kinds.byte_level())
    theirs.train_from_iterator(["".join(lines)], trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))  # fmt: skip
    expected = json.loads(theirs.to_str())["model"]
    ours = json.loads((folder / "tokenizer.json").read_text())["model"]
    merges = len(expected["merges"])
    report.line(ours["vocab"] == expected["vocab"] and ours["merges"] == expected["merges"],
                f"trained: the {merges} merges of BpeTrainer and their ids")  # fmt: skip
    loaded = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = list(kinds.fuzzed(count, 3, ["<|endoftext|>"], words))
    ids = [line["ids"] for line in tokenize(folder, texts)]
    compare(report, "trained: ids", texts, ids, kinds.encode_all(loaded, texts, False))


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    report = Report()
    files = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "docs/architecture.md")]
    lines = [line for file in files for line in file.read_text().splitlines(True)]
    words = "".join(lines).split()
    lines += kinds.fuzzed(2000, 0, ["."], words)
    for name in kinds.KINDS:
        check_kind(report, name, count, lines, words)
    check_tiktoken(report, count, lines, words)
    check_trained(report, count, lines, words)
    report.finish()


if __name__ == "__main__":
    main()
