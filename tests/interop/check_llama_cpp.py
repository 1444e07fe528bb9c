"""Models that attnres exported as GGUF files in llama.cpp.

usage: python check_llama_cpp.py        (ATTNRES=PROGRAM; build/attnres if not set)

scripts/llama-cpp builds libllama into build/llama.cpp (LLAMA_CPP=FOLDER).
"""

import json
from itertools import combinations

import numpy as np
from architectures import IN_LLAMA_CPP, make, save
from gguf import GGUFReader
from gguf.quants import quantize
from interop import REPOSITORY, Report, attnres, randomize, score, token_ids
from llama_cpp import ask, build, convert, score_in_llama_cpp, tokenize_in_llama_cpp, words
from sentencepiece import SentencePieceProcessor

# Log-probabilities in float32; with depth attention, which amplifies rounding.
BOUND, BOUND_ATTN_RES = 5e-5, 5e-4
BOUNDS = {"gemma3": 1e-2}  # whose GeGLU llama.cpp takes from a table of float16 numbers
# llama.cpp reads neither the attention_factor of YaRN that its converter writes, nor, but of 26 or 27
# layers, its files of DeepSeek-V3 without q_lora_rank.
NOT_CONVERTED = ("llama", "deepseek_v3_lite")
PROMPT = "The copyright"
# Spaces, line ends, bytes beyond ASCII, characters that no token has.
TEXTS = (PROMPT, " two  spaces\n\n\tand\r\n", "naïve — 日本語 🙂", "a\0b\0\0c", "</s> <0x41>", "")


def export(report, folder, kind="f32"):
    file = report.folder / f"{len(list(report.folder.glob('*.gguf')))}.gguf"
    attnres("export", "--model", folder, "--format", "gguf", "--type", kind, "--out", file)
    return file


def compare(report, what, folder, bound):
    """Log-probabilities of one model in both programs, and greedy continuations with caches.

    Returns llama.cpp's log-probabilities.
    """
    file = export(report, folder)
    scores = score_in_llama_cpp(file, ids_for(file))
    report.compare(what, score(folder, ids_for(file)), scores, bound)
    answer = json.loads(attnres("generate", "--model", folder, "--prompt", PROMPT, "--json",
                                "--max-tokens", 40, "--temperature", 0))  # fmt: skip
    count = len(answer["tokens"])
    theirs = ask(file, f"generate {count} {words(tokenizer_of(folder)(PROMPT))}")[0]
    report.equal(f"{what}: greedy generation", answer["tokens"], list(map(int, theirs)))
    report.compare(f"{what}, read from GGUF", score(file, ids_for(file)), scores, bound)
    return scores


def compare_stored(report, what, folder):
    """The means of the log-probabilities, which rounded weights change little."""
    for kind, bound in (("f16", 2e-3), ("bf16", 2e-2), ("q8_0", 2e-2), ("q4_0", 1e-1)):
        file = export(report, folder, kind)
        ours, theirs = score(folder, ids_for(file)), score_in_llama_cpp(file, ids_for(file))
        report.compare(f"{what} as {kind}, mean", ours.mean(), theirs.mean(), bound)
        read = score(file, ids_for(file))
        report.compare(f"{what} as {kind}, read from GGUF, mean", read.mean(), theirs.mean(), bound)


def check_rounding(report, what, folder):
    """Every tensor, bit by bit, as the gguf package rounds that of the float32 file."""
    exact = {tensor.name: tensor.data for tensor in GGUFReader(export(report, folder)).tensors}
    for kind in ("f16", "bf16", "q8_0", "q4_0"):
        differing = [
            tensor.name
            for tensor in GGUFReader(export(report, folder, kind)).tensors
            if not np.array_equal(
                quantize(exact[tensor.name], tensor.tensor_type).view(np.uint8),
                tensor.data.view(np.uint8),
            )
        ]
        report.equal(f"{what} as {kind}: tensors that gguf rounds otherwise", differing, [])


def compare_tokens(report, what, folder):
    tokenizer = tokenizer_of(folder)
    theirs = tokenize_in_llama_cpp(export(report, folder), TEXTS)
    for text, ids in zip(TEXTS, theirs):
        report.equal(f"{what}: tokens of {text!r}", tokenizer(text), ids)


def ids_for(file):
    return token_ids(len(GGUFReader(file).fields["tokenizer.ggml.tokens"].data))


def tokenizer_of(folder):
    """Text to ids, without attnres."""
    model = folder / "tokenizer.model"
    if model.exists():
        return SentencePieceProcessor(model_file=str(model)).encode
    return lambda text: list(text.encode())


LLAMA = {"layers": 3, "width": 64, "heads": 4, "kv_heads": 2, "ffn_width": 96}
KIMI = {
    "layers": 4, "width": 64, "heads": 4, "ffn_width": 96, "norm_eps": 1e-6,
    "attention": ["delta", "delta", "delta", "latent"],
    "delta_attention": {"head_width": 32},
    "latent_attention": {"kv_rank": 32, "key_width": 24, "shared_key_width": 8, "value_width": 16},
    "experts": {"count": 4, "chosen": 2, "width": 32, "scaling": 2.446},
}  # fmt: skip
K3 = {
    "delta_attention": {"head_width": 32, "output_gate": "full_rank", "gate_lower_bound": -5.0},
    "latent_attention": {**KIMI["latent_attention"], "q_rank": 32, "output_gate": True},
    "experts": {**KIMI["experts"], "latent_width": 32},
    "activation": {"type": "situ"},
}


def block_attn_res(block_size):
    return {"depth_mixing": {"type": "block_attn_res", "block_size": block_size}}


def train(folder, model, steps=1, tokenizer=None):
    """The model directory of a short training on this repository's text."""
    folder.mkdir()
    recipe = {"name": "interop", "model": model, "tokenizer": tokenizer or {"kind": "bytes"},
              "train": {"steps": steps, "learning_rate": 0.02, "warmup": 5}}  # fmt: skip
    (folder / "recipe.json").write_text(json.dumps(recipe))
    text = [REPOSITORY / name for name in ("LICENSE", "CONTRIBUTING.md")]
    attnres("train", "--recipe", folder / "recipe.json", "--data", *text, "--out", folder / "run")
    return folder / "run" / "checkpoints" / "last"


def check_trained(report):
    """Models that know their text: greedy continuations and rounded weights mean something."""
    for kind, size in (("bytes", 256), ("sentencepiece", 400)):
        folder = train(report.folder / kind, {**LLAMA, "tie_embeddings": kind == "bytes"}, steps=60,
                       tokenizer={"kind": kind, "vocab_size": size})  # fmt: skip
        what = f"Llama, {kind}, trained"
        compare(report, what, folder, BOUND)
        compare_tokens(report, what, folder)
        compare_stored(report, what, folder)
        check_rounding(report, what, folder)
    folder = train(report.folder / "k3", {**KIMI, **K3, **block_attn_res(4)}, steps=30)
    compare_stored(report, "Kimi K3, trained", folder)


def check_random(report, name, model, bound):
    """A model whose every weight matters."""
    folder = train(report.folder / name.replace(" ", "-"), model)
    randomize(folder)
    return compare(report, name, folder, bound)


def check_blocks(report):
    """The same weights in blocks of three sizes, whose results differ."""
    scores = []
    for block_size in (2, 4, 8):
        name = f"Kimi K3 in blocks of {block_size}"
        scores.append(
            check_random(report, name, {**KIMI, **K3, **block_attn_res(block_size)}, BOUND_ATTN_RES)
        )
    least = min(np.abs(a - b).max() for a, b in combinations(scores, 2))
    report.line(least > 100 * BOUND_ATTN_RES, f"block sizes make a difference: {least:.1e}")


def check_architecture(report, name, sources):
    """A model of transformers, in attnres's GGUF file and in that of llama.cpp's converter.

    The converter leaves out what transformers knows and llama.cpp does not (the mscale of DeepSeek's
    YaRN): attnres computes its file as llama.cpp does.
    """
    made, folder = report.folder / f"{name}-made", report.folder / name
    save(make(name, vocabulary=256, models=IN_LLAMA_CPP), made)
    attnres("import", "--from", made, "--bytes", "--out", folder)
    bound = BOUNDS.get(name, BOUND)
    scores = compare(report, name, folder, bound)
    if name not in NOT_CONVERTED:
        converted = convert(sources, made, report.folder / f"{name}-converted.gguf")
        ids = token_ids(256)
        theirs = score_in_llama_cpp(converted, ids)
        report.compare(f"{name}, of llama.cpp's converter", score(converted, ids), theirs, bound)
    return scores


def main():
    sources = build()
    report = Report()
    scores = [check_architecture(report, name, sources) for name in IN_LLAMA_CPP]
    least = min(np.abs(a - b).max() for a, b in combinations(scores, 2))
    report.line(least > 1, f"architectures make a difference: {least:.1e}")
    check_trained(report)
    check_random(report, "Llama", LLAMA, BOUND)
    check_random(report, "Kimi Linear", KIMI, BOUND)
    check_random(report, "Kimi Linear dense", {**KIMI, "experts": {"count": 0}}, BOUND)
    check_random(report, "Kimi K3 without AttnRes", {**KIMI, **K3}, BOUND)
    check_blocks(report)
    check_random(report, "Kimi Linear with AttnRes", {**KIMI, **block_attn_res(4)}, BOUND_ATTN_RES)
    report.finish()


if __name__ == "__main__":
    main()
