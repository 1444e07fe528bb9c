"""Tokenizers of every kind in tokenizer_kinds.py in `tokenizers`: equal ids and texts of fuzzed texts.

usage: python check_tokenizers.py [TEXTS]        of each kind, 2000 if not given
                                                 (ATTNRES=PROGRAM; build/attnres if not set)
"""

import json
import subprocess
import sys

from interop import PROGRAM, REPOSITORY, Report

import tokenizer_kinds as kinds

VOCABULARY = 3000


def tokenize(folder, texts, *options):
    """What the program prints for each text."""
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    command = [PROGRAM, "tokenize", "--model", folder, "--jsonl", *options]
    done = subprocess.run(list(map(str, command)), input=lines, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nfailed: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines()]


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
    as_text = [line["ids"] for line in tokenize(folder, texts)]
    compare(report, f"{name}: ids", texts, as_text, kinds.encode_all(tokenizer, texts, False))
    as_tokens = tokenize(folder, texts, "--special")
    ids = kinds.encode_all(tokenizer, texts, True)
    compare(report, f"{name}: ids with control tokens", texts, [a["ids"] for a in as_tokens], ids)
    decoded = tokenizer.decode_batch(ids)
    compare(report, f"{name}: texts", texts, [a["text"] for a in as_tokens], decoded)


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    report = Report()
    files = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "docs/architecture.md")]
    lines = [line for file in files for line in file.read_text().splitlines(True)]
    words = "".join(lines).split()
    lines += kinds.fuzzed(2000, 0, ["."], words)
    for name in kinds.KINDS:
        check_kind(report, name, count, lines, words)
    report.finish()


if __name__ == "__main__":
    main()
