"""Models that attnres wrote in mlx-lm, and Kimi K3 with Attention Residuals in both.

usage: python check_mlx.py        (ATTNRES=PROGRAM; build/attnres if not set)
"""

import mlx.core as mx
import numpy as np
from interop import FIXTURES, Report, attnres, log_probabilities, score, token_ids, train
from mlx_lm import generate, load
from mlx_lm.utils import load_model

BOUND = 1e-4
BOUND_DEPTH_ATTENTION = 5e-4  # which amplifies rounding about tenfold on random weights
PROMPT = "The copyright"


def compare(report, what, folder, vocabulary, bound):
    """Log-probabilities of one model directory in both programs."""
    model, _ = load_model(folder)
    ids = token_ids(vocabulary)
    logits = np.array(model(mx.array(ids)).astype(mx.float32))
    report.compare(what, score(folder, ids), log_probabilities(logits, ids), bound)


def check_trained_llama(report):
    model = {"layers": 3, "width": 32, "heads": 4, "kv_heads": 2, "ffn_width": 48}
    folder = train(report.folder / "llama", model, steps=60, learning_rate=0.02, warmup=5)
    compare(report, "Llama, trained by attnres", folder, 256, BOUND)

    # Greedy, with the caches of both programs.
    loaded, tokenizer = load(str(folder))
    theirs = generate(loaded, tokenizer, PROMPT, max_tokens=40)
    ours = attnres("generate", "--model", folder, "--prompt", PROMPT, "--max-tokens", 40,
                   "--temperature", 0)  # fmt: skip
    report.equal("Llama: greedy generation", ours.rstrip("\n"), theirs.rstrip("\n"))


def main():
    mx.set_default_device(mx.cpu)
    report = Report()
    check_trained_llama(report)
    compare(report, "kimi_k3_tiny", FIXTURES / "kimi_k3_tiny", 56, BOUND_DEPTH_ATTENTION)
    report.finish()


if __name__ == "__main__":
    main()
