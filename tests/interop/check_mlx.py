"""Models that attnres wrote in mlx-lm, models that mlx-lm saved in attnres, and Kimi K3 with Attention
Residuals in both.

usage: python check_mlx.py        (ATTNRES=PROGRAM; build/attnres if not set)
"""

import itertools
import shutil

import mlx.core as mx
import numpy as np
from interop import (
    END_OF_DOCUMENT,
    FIXTURES,
    KIMI_K3,
    KIMI_LINEAR,
    LLAMA,
    PROMPT,
    Report,
    greedy,
    log_probabilities,
    randomize,
    score,
    token_ids,
    train,
)
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model, save_model

BOUND = 1e-4
BOUND_DEPTH_ATTENTION = 5e-4  # which amplifies rounding about tenfold on random weights


def compare(report, what, folder, vocabulary, bound):
    """Log-probabilities of one model directory in both programs."""
    model, _ = load_model(folder)
    ids = token_ids(vocabulary)
    logits = np.array(model(mx.array(ids)).astype(mx.float32))
    report.compare(what, score(folder, ids), log_probabilities(logits, ids), bound)
    return model


def compare_greedy(report, what, folder, model, count=40):
    """Continuations, with the caches of both programs."""
    steps = generate_step(mx.array(list(PROMPT)), model, max_tokens=count)
    theirs = [int(token) for token, _ in itertools.islice(steps, count)]
    # attnres stops before the end of a document; mlx-lm's steps go on.
    if END_OF_DOCUMENT in theirs:
        theirs = theirs[: theirs.index(END_OF_DOCUMENT)]
    report.equal(f"{what}: {count} tokens generated", greedy(folder, count), theirs)


def check_saved(report, what, folder, vocabulary, bound):
    """The same model as mlx-lm saves it, who joins maps and stacks experts."""
    saved = report.folder / f"{what}, saved"
    save_model(saved, load_model(folder)[0])
    shutil.copy(folder / "config.json", saved)
    compare(report, f"{what}, saved by mlx-lm", saved, vocabulary, bound)


def check_written(report, what, model, bound=BOUND):
    folder = train(report.folder / what, model)
    randomize(folder)
    compare_greedy(report, what, folder, compare(report, what, folder, 256, bound))
    check_saved(report, what, folder, 256, bound)


def main():
    mx.set_default_device(mx.cpu)
    report = Report()
    check_written(report, "Llama", LLAMA)
    check_written(report, "Kimi Linear", KIMI_LINEAR)
    check_written(report, "Kimi K3", KIMI_K3, BOUND_DEPTH_ATTENTION)
    compare(report, "kimi_k3_tiny", FIXTURES / "kimi_k3_tiny", 56, BOUND_DEPTH_ATTENTION)
    check_saved(report, "kimi_k3_tiny", FIXTURES / "kimi_k3_tiny", 56, BOUND_DEPTH_ATTENTION)
    report.finish()


if __name__ == "__main__":
    main()
