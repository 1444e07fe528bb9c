"""Models that attnres wrote in transformers, and models that transformers wrote in attnres.

usage: python check_transformers.py        (ATTNRES=PROGRAM; build/attnres if not set)
"""

import torch
from interop import (
    FIXTURES,
    Report,
    attnres,
    log_probabilities,
    score,
    token_ids,
    train,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

BOUND = 1e-4
PROMPT = "The copyright"


def compare(report, what, folder):
    """Log-probabilities of one model directory in both programs."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = token_ids(model.config.vocab_size)
    with torch.no_grad():
        logits = model(torch.from_numpy(ids), use_cache=False).logits.float().numpy()
    report.compare(what, score(folder, ids), log_probabilities(logits, ids), BOUND)
    return model


def compare_generation(report, what, folder, model):
    """Greedy continuations, with the caches of both programs."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer(PROMPT, return_tensors="pt")
    out = model.generate(**prompt, max_new_tokens=40, do_sample=False)
    theirs = tokenizer.decode(out[0, prompt.input_ids.shape[1] :], skip_special_tokens=True)
    ours = attnres("generate", "--model", folder, "--prompt", PROMPT, "--max-tokens", 40,
                   "--temperature", 0)  # fmt: skip
    report.equal(f"{what}: greedy generation", ours.rstrip("\n"), theirs.rstrip("\n"))


def check_trained_llama(report, name, **model):
    folder = train(
        report.folder / name,
        {"layers": 3, "width": 32, "heads": 4, "kv_heads": 2, "ffn_width": 48, **model},
        steps=60, learning_rate=0.02, warmup=5,
    )  # fmt: skip
    loaded = compare(report, f"{name}, trained by attnres", folder)
    compare_generation(report, name, folder, loaded)

    exported = report.folder / f"{name}-bf16"
    attnres("export", "--model", folder, "--out", exported, "--type", "bf16")
    reloaded = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval()
    ids = token_ids(256)
    with torch.no_grad():
        theirs = log_probabilities(reloaded(torch.from_numpy(ids)).logits.numpy(), ids)
    report.compare(f"{name}, exported in bfloat16", score(exported, ids), theirs, BOUND)


def main():
    report = Report()
    check_trained_llama(report, "Llama")
    check_trained_llama(report, "Llama, tied", tie_embeddings=True)
    compare(report, "llama_tiny", FIXTURES / "llama_tiny")
    compare(report, "kimi_linear_tiny", FIXTURES / "kimi_linear_tiny")
    report.finish()


if __name__ == "__main__":
    main()
