"""attnres.retrofit on models of transformers: the same function, generation, gradients, and checkpoints
that attnres wrote of the same model.

usage: python check_retrofit.py        (ATTNRES=PROGRAM; build/attnres if not set)
"""

import copy

import numpy as np
import torch
from architectures import MODELS, make, save
from interop import REPOSITORY, Report, attnres as program, log_probabilities, score, token_ids

import attnres

BOUND = 1e-4
BLOCK_SIZE = 3


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.from_numpy(ids), use_cache=False).logits.numpy()


def generated(model):
    prompt = torch.arange(5)[None]
    return model.generate(prompt, max_new_tokens=30, do_sample=False, pad_token_id=0).tolist()


def check_function(report, name):
    model, ids = make(name, vocabulary=256), token_ids(256)
    before, text = log_probabilities(logits_of(model, ids), ids), generated(model)
    mix = attnres.retrofit(model, BLOCK_SIZE)
    after = log_probabilities(logits_of(model, ids), ids)
    report.compare(f"{name}, retrofitted", after, before, BOUND)
    report.equal(f"{name}: 30 tokens generated with a cache", generated(model), text)

    for query in mix.pseudo_query:
        torch.nn.init.normal_(query, std=0.5)
    difference = np.abs(log_probabilities(logits_of(model, ids), ids) - before).max()
    report.line(difference > 0.01, f"{name}: pseudo-queries change it by {difference:.2f}")
    check_gradients(report, name, model, mix, torch.from_numpy(ids))


def check_gradients(report, name, model, mix, ids):
    plain = gradients(model, ids)
    model.activation_checkpointing_enable()
    model.train()
    checkpointed = gradients(model, ids)
    all_there = all(g.abs().max() > 0 for g in plain[1 : mix.num_sublayers + 1])
    report.line(all_there, f"{name}: every pseudo-query has a gradient")
    worst = max((a - b).abs().max().item() for a, b in zip(plain, checkpointed, strict=True))
    scale = max(a.abs().max().item() for a in plain)
    report.line(worst < 1e-4 * scale, f"{name}: checkpointed gradients differ by {worst:.1e}")


def gradients(model, ids):
    mix = model.model.depth_attention
    leaves = [*mix.pseudo_query, *model.model.layers.parameters()]
    loss = model(ids, labels=ids, use_cache=False).loss
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(leaves, found, strict=True)]


def check_checkpoint(report, name):
    made, kept = report.folder / f"{name}, made", report.folder / name
    mixed, run = report.folder / f"{name}, mixed", report.folder / f"{name}, run"
    model = make(name, vocabulary=256)
    save(model, made)
    program("import", "--from", made, "--bytes", "--out", kept)
    program("retrofit", "--model", kept, "--out", mixed, "--block-size", BLOCK_SIZE)
    program("train", "--from", mixed, "--data", REPOSITORY / "LICENSE", "--out", run, "--set",
            "train.steps=8", "train.learning_rate=0.02", "train.warmup=1", "train.context=64")  # fmt: skip
    folder, ids = run / "checkpoints" / "last", token_ids(256, 60)
    loaded = copy.deepcopy(model)
    attnres.retrofit(loaded, checkpoint=folder)
    theirs = log_probabilities(logits_of(loaded, ids), ids)
    report.compare(f"{name}, trained in attnres", score(folder, ids), theirs, BOUND)
    difference = np.abs(theirs - log_probabilities(logits_of(model, ids), ids)).max()
    report.line(difference > 0.01, f"{name}: training changed it by {difference:.2f}")


def main():
    report = Report()
    for name in MODELS:
        check_function(report, name)
    for name in ("llama3", "qwen2", "qwen3"):
        check_checkpoint(report, name)
    report.finish()


if __name__ == "__main__":
    main()
