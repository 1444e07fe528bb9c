"""Models that attnres wrote in transformers, and models that transformers wrote in attnres.

usage: python check_transformers.py        (ATTNRES=PROGRAM; build/attnres if not set)
"""

import json
import shutil

import torch
from interop import (
    FIXTURES,
    KIMI_LINEAR,
    LLAMA,
    PROMPT,
    REPOSITORY,
    Report,
    attnres,
    greedy,
    log_probabilities,
    randomize,
    score,
    token_ids,
    train,
)
from architectures import IN_FP8, MODELS, READ_MODELS, make, make_mxfp4, save, save_in_fp8
from transformers import AutoModelForCausalLM, AutoTokenizer, FineGrainedFP8Config, Mxfp4Config

BOUND = 1e-4


def compare(report, what, folder, **options):
    """Log-probabilities of one model directory in both programs."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    ids = token_ids(model.config.vocab_size, min(80, model.config.max_position_embeddings))
    with torch.no_grad():
        logits = model(torch.from_numpy(ids), use_cache=False).logits.numpy()
    report.compare(what, score(folder, ids), log_probabilities(logits, ids), BOUND)
    return model


def compare_greedy(report, what, folder, model, count=40):
    """Continuations, with the caches of both programs."""
    prompt = torch.tensor([list(PROMPT)])
    out = model.generate(prompt, max_new_tokens=count, do_sample=False, pad_token_id=0)
    theirs = out[0, len(PROMPT) :].tolist()
    report.equal(f"{what}: {count} tokens generated", greedy(folder, count), theirs)


def check_written(report, what, model):
    folder = train(report.folder / what, model)
    randomize(folder)
    compare_greedy(report, what, folder, compare(report, what, folder))
    exported = report.folder / f"{what}, bfloat16"
    attnres("export", "--model", folder, "--out", exported, "--type", "bf16")
    compare(report, f"{what}, exported in bfloat16", exported)


def check_architecture(report, name):
    """A model of transformers in attnres, written back, and retrofitted, trained and exported."""
    made, folder = report.folder / f"{name}, made", report.folder / name
    save(make(name, vocabulary=256), made)
    compare(report, f"{name}, made by transformers", made)
    attnres("import", "--from", made, "--bytes", "--out", folder)
    public, mixed = report.folder / f"{name}, written", report.folder / f"{name}, retrofitted"
    attnres("export", "--model", folder, "--format", "huggingface", "--out", public)
    compare_greedy(report, f"{name}, written", public, compare(report, f"{name}, written", public))
    attnres("retrofit", "--model", folder, "--out", mixed, "--block-size", 2)
    before = compare(report, f"{name}, retrofitted", mixed, trust_remote_code=True)
    report.line("AttnRes" in type(before).__name__, f"{name}: retrofitted, it is a model of ours")
    check_trained(report, name, mixed)


def check_read(report, name):
    """One that is written as a model of attnres."""
    made, folder = report.folder / f"{name}, made", report.folder / name
    save(make(name, vocabulary=256), made)
    model = compare(report, f"{name}, made by transformers", made)
    attnres("import", "--from", made, "--bytes", "--out", folder)
    compare_greedy(report, name, folder, model)
    compare(report, f"{name}, imported", folder, trust_remote_code=True)
    mixed = report.folder / f"{name}, retrofitted"
    attnres("retrofit", "--model", folder, "--out", mixed, "--block-size", 2)
    compare(report, f"{name}, retrofitted", mixed, trust_remote_code=True)
    check_trained(report, name, mixed)


def check_packed(report):
    """Files with packed weights, by the numbers that transformers reads in them."""
    in_mxfp4, in_fp8 = report.folder / "gpt-oss in MXFP4", report.folder / "Qwen 3 in FP8"
    make_mxfp4(in_mxfp4)
    in_fp8.mkdir()
    save_in_fp8(make("qwen3_fp8", models=IN_FP8), in_fp8)
    for folder, form, bound in (
        # Activations are rounded to 8 bits where products stay packed.
        (in_mxfp4, Mxfp4Config(dequantize=True), 0.1),
        (in_fp8, FineGrainedFP8Config(dequantize=True), BOUND),
    ):
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, quantization_config=form
        ).eval()
        ids = token_ids(model.config.vocab_size)
        with torch.no_grad():
            logits = model(torch.from_numpy(ids), use_cache=False).logits.numpy()
        exact = log_probabilities(logits, ids)
        ours = score(folder, ids, "--weights", "f32")
        report.compare(f"{folder.name}, its numbers", ours, exact, BOUND)
        report.compare(f"{folder.name}, kept so", score(folder, ids), exact, bound)


def check_trained(report, name, start):
    run = report.folder / f"{name}, trained"
    attnres("train", "--from", start, "--data", REPOSITORY / "LICENSE", "--out", run,
            "--set", "train.steps=4", "train.learning_rate=0.01", "train.context=64")  # fmt: skip
    compare(report, f"{name}, retrofitted and trained", run / "checkpoints" / "last",
            trust_remote_code=True)  # fmt: skip


def mean_loss(model, windows):
    """Nats a token of windows, of each but its first."""
    nats, count = 0.0, 0
    for window in windows:
        ids = torch.tensor([window])
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits.numpy()
        nats -= log_probabilities(logits, ids.numpy()).sum()
        count += len(window) - 1
    return nats / count


def check_begin_of_text(report):
    """Texts of a model whose tokenizer begins them with a token, as Llama 3's does."""
    folder, source = report.folder / "begun", FIXTURES / "tokenizers" / "llama3"
    save(make("llama3", vocabulary=512), folder)
    shutil.copy(source / "tokenizer.json", folder)
    special = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text = (REPOSITORY / "LICENSE").read_text()[:400]
    path = report.folder / "text.txt"
    path.write_text(text)
    ids = tokenizer(text).input_ids
    begin, ids = ids[0], [*ids[1:], tokenizer.eos_token_id]
    report.equal("begin of text: what transformers puts there", begin, tokenizer.bos_token_id)
    for context in (model.config.max_position_embeddings, 24):
        windows = [[begin, *ids[i : i + context - 1]] for i in range(0, len(ids), context - 1)]
        ours = json.loads(attnres("eval", "--model", folder, "--data", path, "--context", context,
                                  "--json"))  # fmt: skip
        report.equal(f"begin of text: tokens scored in windows of {context}", ours["tokens"], len(ids))
        report.compare(f"begin of text: mean loss in windows of {context}", ours["loss"],
                       mean_loss(model, windows), 1e-5)  # fmt: skip
        without = abs(ours["loss"] - mean_loss(model, [window[1:] for window in windows]))
        report.line(without > 1e-3, f"begin of text: without it the loss differs by {without:.1e}")
    prompt = "The copyright"
    given = torch.tensor([tokenizer(prompt).input_ids])
    out = model.generate(given, max_new_tokens=20, do_sample=False, pad_token_id=0)
    ours = json.loads(attnres("generate", "--model", folder, "--prompt", prompt, "--max-tokens", 20,
                              "--temperature", 0, "--json"))["tokens"]  # fmt: skip
    report.equal("begin of text: 20 tokens generated", ours, out[0, given.shape[1] :].tolist())


def main():
    report = Report()
    check_begin_of_text(report)
    for name in MODELS:
        check_architecture(report, name)
    for name in READ_MODELS:
        check_read(report, name)
    check_packed(report)
    check_written(report, "Llama", LLAMA)
    check_written(report, "Llama, tied", LLAMA | {"tie_embeddings": True})
    check_written(report, "Kimi Linear", KIMI_LINEAR)
    for name in ("llama_tiny", "kimi_linear_tiny"):
        compare(report, name, FIXTURES / name)
    report.finish()


if __name__ == "__main__":
    main()
