"""Tokenizers set up as published models have theirs, and texts to compare on; trained here, since no
model's own is at hand. Needs `tokenizers` (made and compared with 0.23.3)."""

import json
import random
import unicodedata

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)  # fmt: skip

LLAMA_3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
           r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")  # fmt: skip
QWEN_2 = LLAMA_3.replace("{1,3}", "")
CAPITALS, SMALL = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
ENDINGS, NOT_HAN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"&&[^\p{Han}]"
KIMI = "|".join([
    r"[\p{Han}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?[{CAPITALS}{NOT_HAN}]*[{SMALL}{NOT_HAN}]+{ENDINGS}",
    rf"[^\r\n\p{{L}}\p{{N}}]?[{CAPITALS}{NOT_HAN}]+[{SMALL}{NOT_HAN}]*{ENDINGS}",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])  # fmt: skip
DEEPSEEK_3 = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
]


def byte_level(use_regex=False, add_prefix_space=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def pieces(*steps):
    return pre_tokenizers.Sequence(list(steps))


def spaces_back(*more):
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *more]
    return decoders.Sequence(steps)


def added(content, **settings):
    return AddedToken(content, **settings)


# By name: what is not said here is as most have it. The last special token ends documents.
KINDS = {
    "gpt2": {"pre": byte_level(True), "special": ["<|endoftext|>"]},
    "llama3": {
        "pre": pieces(split(LLAMA_3), byte_level()), "ignore_merges": True,
        "special": ["<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>"],
        "post": processors.TemplateProcessing(
            single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]),
    },
    "qwen2": {
        "pre": pieces(split(QWEN_2), byte_level()), "normalizer": normalizers.NFC(),
        "special": ["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
        "added": [added("<tool_call>", normalized=False), added("<think>", normalized=False)],
    },
    "smollm": {"pre": pieces(pre_tokenizers.Digits(True), byte_level(True)),
               "special": ["<repo_name>", "<|endoftext|>"]},
    "deepseek3": {
        "pre": pieces(*map(split, DEEPSEEK_3), byte_level()),
        "normalizer": normalizers.Sequence([]),
        "special": ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"],
        "added": [added("<think>", normalized=True), added("<｜User｜>", normalized=False)],
    },
    "kimi": {"pre": pieces(split(KIMI), byte_level()), "special": ["[BOS]", "<|im_end|>", "[EOS]"]},
    "llama2": {
        "normalizer": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        "decoder": spaces_back(decoders.Strip(" ", 1, 0)), "fallback": True, "alphabet": 250,
        "special": ["<unk>", "<s>", "</s>"],
        "added": [added("<pad>", normalized=True), added("word", single_word=True)],
    },
    "gemma": {
        "pre": pre_tokenizers.Split(" ", "merged_with_previous"),
        "normalizer": normalizers.Replace(" ", "▁"), "decoder": spaces_back(),
        "fallback": True, "alphabet": 300, "special": ["<unk>", "<bos>", "<eos>"],
        "added": [added("\n\n", normalized=False), added("▁▁", normalized=False),
                  added("<start_of_turn>", special=True)],
    },
    "mistral": {
        "pre": pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False),
        "decoder": spaces_back(decoders.Strip(" ", 1, 0)), "fallback": True, "alphabet": 200,
        "special": ["<unk>", "<s>", "</s>"],
    },
    "accents": {
        "pre": pieces(pre_tokenizers.Whitespace(), split("[aeiou]", "merged_with_next"),
                      pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(False)),
        "normalizer": normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(),
                                            normalizers.Lowercase(), normalizers.Strip()]),
        "decoder": decoders.Metaspace(), "unknown": True, "alphabet": 300,
        "special": ["<unk>", "</s>"],
        "added": [added("[MASK]", special=True, lstrip=True, rstrip=True),
                  added("Straße", normalized=True),
                  added("cat", single_word=True, normalized=False)],
    },
    "splits": {
        "pre": pieces(pre_tokenizers.WhitespaceSplit(), split("[0-9]+", "removed"),
                      split("[A-Z]", "merged_with_previous"), split("th", "contiguous"),
                      split(r"\w+", "isolated", True),
                      pre_tokenizers.Metaspace("_", prepend_scheme="always")),
        "normalizer": normalizers.Sequence([normalizers.NFKC(),
                                            normalizers.Replace(Regex("[xyz]+"), "$1q")]),
        "decoder": decoders.Metaspace("_"), "unknown": True, "alphabet": 300,
        "special": ["<unk>", "</s>"],
    },
    "prefix": {"pre": byte_level(True, True), "normalizer": normalizers.NFD(),
               "special": ["</s>"]},
}  # fmt: skip


def train(name, lines, vocab_size):
    """The tokenizer of this kind, trained on the lines; where its alphabet is of characters and not
    of bytes, it has so many tokens more."""
    kind = KINDS[name]
    fallback = kind.get("fallback", False)
    has_unknown = fallback or kind.get("unknown", False)
    tokenizer = Tokenizer(models.BPE(
        unk_token="<unk>" if has_unknown else None, fuse_unk=fallback, byte_fallback=fallback,
        ignore_merges=kind.get("ignore_merges", False)))  # fmt: skip
    if "normalizer" in kind:
        tokenizer.normalizer = kind["normalizer"]
    if "pre" in kind:
        tokenizer.pre_tokenizer = kind["pre"]
    tokenizer.decoder = kind.get("decoder", decoders.ByteLevel())
    settings = {"limit_alphabet": kind["alphabet"]} if "alphabet" in kind else {}
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)] if fallback else []
    vocab_size += len(byte_tokens) + kind.get("alphabet", 0)
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=kind["special"] + byte_tokens, show_progress=False,
        initial_alphabet=[] if has_unknown else pre_tokenizers.ByteLevel.alphabet(),
        **settings))  # fmt: skip
    # Byte tokens are of the vocabulary and not found in text.
    file = json.loads(tokenizer.to_str())
    file["added_tokens"] = [t for t in file["added_tokens"] if t["content"] not in byte_tokens]
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.add_tokens(kind.get("added", []))
    if "post" in kind:
        tokenizer.post_processor = kind["post"]
    return tokenizer


BLOCKS = [(0x20, 0x7E)] * 6 + [
    (0xA0, 0x24F), (0x250, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x58F),
    (0x590, 0x5FF), (0x600, 0x6FF), (0x700, 0x7BF), (0x900, 0xDFF), (0xE00, 0xFFF),
    (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x139F), (0x13A0, 0x167F),
    (0x1780, 0x18AF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x20CF), (0x2100, 0x2BFF),
    (0x2C00, 0x2DFF), (0x3000, 0x30FF), (0x3100, 0x33FF), (0x4E00, 0x9FFF), (0xA000, 0xABFF),
    (0xAC00, 0xD7A3), (0xF900, 0xFDFF), (0xFE00, 0xFFEF), (0x10000, 0x10FFF), (0x11000, 0x11FFF),
    (0x1D000, 0x1DFFF), (0x1F000, 0x1FAFF), (0x20000, 0x2A6DF), (0xE0000, 0xE01EF),
]  # fmt: skip
PIECES = [
    "'s", "'LL", "'ſ", " ", "  ", "\n", "\r\n", "\t", "   \n ", "0", "12", "12345", "½", "x²", "__",
    "//", "/*", "<s>", "</s>", "<0x41>", "▁", "▁▁", "\u00a0", "\u3000", "\u200d", "👩‍👩‍👧", "🇩🇪",
    "e\u0301", "ﬁ", "Å", "İ", "ß", "word", "cat", "Straße", "STRASSE", "xyz", "th", "\0", "\x7f",
    "\x85", "\uffff", "\ue000", "\u180e", "\ufeff", "😀\U0001f3fd", "ﷺ", "\u1100\u1161\u11a8", "漢字", "カタカナ",
]  # fmt: skip


def is_known(character):
    """Whether Unicode 14 has it: the tables of programs end at different versions."""
    return unicodedata.category(character) not in ("Cn", "Cs")


def fuzzed(count, seed, tokens, words):
    """Texts of words, of every script, of control characters, tokens' names and long runs."""
    rng = random.Random(seed)

    def character(block=None):
        while True:
            found = chr(rng.randint(*(block or rng.choice(BLOCKS))))
            if is_known(found):
                return found

    def some():
        kind = rng.random()
        if kind < 0.3:
            return rng.choice(PIECES)
        if kind < 0.42:
            return rng.choice(tokens)
        if kind < 0.6:
            block = rng.choice(BLOCKS)
            return "".join(character(block) for _ in range(rng.randint(1, 8)))
        if kind < 0.8:
            return rng.choice(words)
        if kind < 0.9:
            return character() * rng.randint(1, 20)
        return "".join(character() for _ in range(rng.randint(1, 10)))

    for _ in range(count):
        kind = rng.random()
        if kind < 0.35:
            yield " ".join(rng.choice(words) for _ in range(rng.randint(0, 12)))
        elif kind < 0.4:
            yield (character() if rng.random() < 0.5 else rng.choice(PIECES)) * rng.randint(1, 300)
        else:
            yield "".join(some() + " " * (rng.random() < 0.3) for _ in range(rng.randint(0, 14)))


def every_character():
    """Texts that hold each character that Unicode 14 has, in turn beside a letter and a space."""
    known = [c for c in map(chr, range(0x110000)) if is_known(c)]
    for begin in range(0, len(known), 16):
        yield " a".join(known[begin : begin + 16])


def byte_characters():
    """GPT-2's character for each byte."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (chr(code) for code in range(0x100, 0x200))
    return [chr(byte) if byte in printed else next(others) for byte in range(256)]


def control_tokens(tokenizer):
    return [token.content for token in tokenizer.get_added_tokens_decoder().values()]


def encode_all(tokenizer, texts, as_tokens, around=False):
    """The ids of texts whose special tokens are control tokens, or text; with those around a text."""
    tokenizer.encode_special_tokens = not as_tokens
    return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=around)]
