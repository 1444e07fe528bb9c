"""Tokenizers of every kind in tokenizer_kinds.py in `tokenizers`, and one of Kimi's kind in
`tiktoken`: equal ids and texts of fuzzed texts, and of every character that Unicode 14 has.
And what attnres trains: the merges of BpeTrainer. In llama.cpp, which scripts/llama-cpp builds: these
kinds in GGUF files that attnres wrote, and the published vocabularies that lie in its sources.

usage: python check_tokenizers.py [TEXTS]        of each kind, 2000 if not given
                                                 (ATTNRES=PROGRAM; build/attnres if not set)
"""

import base64
import json
import subprocess
import sys
import unicodedata

import numpy as np
import tiktoken
from interop import PROGRAM, REPOSITORY, Report, attnres
from llama_cpp import build, tokenize_in_llama_cpp
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import tokenizer_kinds as kinds

VOCABULARY = 3000
EMBEDDED = VOCABULARY + 512  # of the models around tokenizers
# Kinds whose way to split text has a name in GGUF files.
IN_GGUF = ("gpt2", "llama3", "qwen2", "smollm", "deepseek3")
PUBLISHED = ("gpt-2", "mpt", "llama-bpe", "qwen2", "starcoder", "refact", "command-r", "llama-spm",
             "phi-3", "baichuan")  # fmt: skip


def tokenize(folder, texts, *options):
    """What the program prints for each text."""
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    command = [PROGRAM, "tokenize", "--model", folder, "--jsonl", *options]
    done = subprocess.run(list(map(str, command)), input=lines, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nfailed: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


def compare(report, what, texts, ours, theirs, most=0):
    """Counts the texts that differ, of which so many may, and shows the first."""
    different = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    example = ""
    if different:
        i = different[0]
        example = f"; first {texts[i]!r}: attnres has {ours[i]!r}, they have {theirs[i]!r}"
    report.line(len(different) <= most, f"{what}: {len(different)} of {len(texts)} texts differ{example}")


def unbegun(texts):
    """Without those that begin with the name of what is put before them, which then has it once."""
    return [text for text in texts if not text.startswith("<|begin_of_text|>")]


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
    framed = [line["ids"] for line in tokenize(folder, unbegun(texts), "--add-special-tokens")]
    theirs = kinds.encode_all(tokenizer, unbegun(texts), False, around=True)
    compare(report, f"{name}: ids with those around a text", unbegun(texts), framed, theirs)
    if name in IN_GGUF:
        check_gguf(report, name, texts[:count])


def for_llama_cpp(texts):
    """It makes no normal forms, and takes SentencePiece's sign for a space for one."""
    return [t for t in texts if unicodedata.normalize("NFC", t) == t and "\u2581" not in t]


def write_model(folder):
    """Around a tokenizer the smallest Llama that there is, with zeros for weights."""
    size = {"hidden_size": 4, "intermediate_size": 4, "num_attention_heads": 1,
            "num_key_value_heads": 1, "num_hidden_layers": 1, "vocab_size": EMBEDDED,
            "max_position_embeddings": 64}  # fmt: skip
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **size}))
    maps = [f"self_attn.{m}_proj" for m in "qkvo"] + [f"mlp.{m}_proj" for m in ("gate", "up", "down")]
    norms = ["input_layernorm", "post_attention_layernorm"]
    weights = {f"model.layers.0.{name}.weight": np.zeros((4, 4), np.float32) for name in maps}
    weights |= {f"model.layers.0.{name}.weight": np.ones(4, np.float32) for name in norms}
    weights["model.norm.weight"] = np.ones(4, np.float32)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = np.zeros((EMBEDDED, 4), np.float32)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def check_gguf(report, name, texts, most=0):
    folder, file = report.folder / name, report.folder / f"{name}.gguf"
    write_model(folder)
    attnres("export", "--model", folder, "--format", "gguf", "--out", file)
    texts = for_llama_cpp(texts)
    for what, model in (("", folder), (" read from GGUF", file)):
        ours = [line["ids"] for line in tokenize(model, texts)]
        compare(report, f"{name} in llama.cpp:{what} ids", texts, ours,
                tokenize_in_llama_cpp(file, texts, adds=False), most)  # fmt: skip
        plain = unbegun(texts)
        framed = [line["ids"] for line in tokenize(model, plain, "--add-special-tokens")]
        compare(report, f"{name} in llama.cpp:{what} ids with those around a text", plain, framed,
                tokenize_in_llama_cpp(file, plain), most)  # fmt: skip


def check_published(report, sources, name, count, words):
    """What its own tests have, and fuzzed texts."""
    file = sources / "models" / f"ggml-vocab-{name}.gguf"
    inputs = file.with_name(file.name + ".inp")
    if inputs.exists():
        texts = inputs.read_text().split("\n__ggml_vocab_test__\n")
        lines = file.with_name(file.name + ".out").read_text().split("\n")[: len(texts)]
        expected = [list(map(int, line.split())) for line in lines]
        ours = [line["ids"] for line in tokenize(file, texts)]
        compare(report, f"published {name}: ids", texts, ours, expected)
    # It makes a control token of what is called </s>, and does not look for it in a text.
    texts = [t for t in for_llama_cpp(kinds.fuzzed(count, 4, ["."], words)) if "</s>" not in t]
    ours = [line["ids"] for line in tokenize(file, texts)]
    compare(report, f"published {name} in llama.cpp: ids", texts, ours,
            tokenize_in_llama_cpp(file, texts, adds=False))  # fmt: skip


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
    # Its code for Kimi K2's pattern takes some letters and marks apart from words, and 'ſ not for 's.
    check_gguf(report, "tiktoken", texts, most=count // 200)


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
    sources = build()
    report = Report()
    files = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "docs/architecture.md")]
    lines = [line for file in files for line in file.read_text().splitlines(True)]
    words = "".join(lines).split()
    lines += kinds.fuzzed(2000, 0, ["."], words)
    for name in kinds.KINDS:
        check_kind(report, name, count, lines, words)
    for name in PUBLISHED:
        check_published(report, sources, name, count, words)
    check_tiktoken(report, count, lines, words)
    check_trained(report, count, lines, words)
    report.finish()


if __name__ == "__main__":
    main()
