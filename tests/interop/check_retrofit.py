"""attnres.retrofit on models of transformers: the same function, generation, gradients, copies,
what save_pretrained writes, in transformers and in attnres, and checkpoints that attnres wrote of
the same model.

usage: python check_retrofit.py        (ATTNRES=PROGRAM; build/attnres if not set)
"""

import copy
import pickle

import numpy as np
import torch
from architectures import MODELS, READ_MODELS, make, save
from interop import (
    FIXTURES, REPOSITORY, Report, attnres as program, log_probabilities, score, token_ids,
)  # fmt: skip
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import attnres

BOUND = 1e-4
BLOCK_SIZE = 3
TRAINING = "train.steps=8", "train.learning_rate=0.02", "train.warmup=1", "train.context=64"


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
    runs = []
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(lambda *_: runs.append(1))
    plain = gradients(model, ids)
    once = len(runs)
    model.activation_checkpointing_enable()
    model.train()
    checkpointed = gradients(model, ids)
    report.equal(f"{name}: runs of attentions, checkpointed", len(runs) - once, 2 * once)
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


def retrofitted(name, block_size=BLOCK_SIZE, mechanism=None):
    """With pseudo-queries, key gains and gates that matter."""
    model = make(name, vocabulary=256)
    mix = attnres.retrofit(model, block_size, mechanism=mechanism)
    for parameter, drawn in mix.named_parameters():
        is_gain = parameter.startswith("key_gain")
        torch.nn.init.normal_(drawn, mean=is_gain, std=0.3 if is_gain else 0.5)
    return model


def check_copies(report, name):
    model, ids = retrofitted(name), token_ids(256, 20)
    before = logits_of(model, ids)
    pickled = pickle.loads(pickle.dumps(model))
    for how, other in (("deep", copy.deepcopy(model)), ("pickled", pickled)):
        report.equal(f"{name}: a {how} copy", np.abs(logits_of(other, ids) - before).max(), 0)
        with torch.no_grad():
            for parameter in other.model.layers.parameters():
                parameter.zero_()
        alone = np.abs(logits_of(model, ids) - before).max() == 0
        report.line(alone and np.abs(logits_of(other, ids) - before).max() > 0.01,
                    f"{name}: a {how} copy has layers of its own")  # fmt: skip


def check_saved(report, name, mechanism=None):
    """What save_pretrained writes: in transformers, here, and in attnres."""
    model, ids = retrofitted(name, mechanism=mechanism), token_ids(256)
    name = f"{name}, {mechanism}" if mechanism else name
    folder = report.folder / f"{name}, saved"
    ours, text = log_probabilities(logits_of(model, ids), ids), generated(model)
    # Where a model is as sharp, float32 in transformers is half of the bound away from it.
    double = copy.deepcopy(model).double()
    double.set_experts_implementation("eager")  # grouped products are of float32 at most
    exact = log_probabilities(logits_of(double, ids), ids)
    model.save_pretrained(folder)
    report.compare(f"{name}, saved, in attnres", score(folder, ids), exact, BOUND)

    for shards in ({}, {"max_shard_size": "5KB"}):
        model.save_pretrained(folder, **shards)
        loaded = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
        what = f"{name}, saved{' in shards' if shards else ''} and loaded"
        report.compare(what, log_probabilities(logits_of(loaded, ids), ids), ours, 0)
        report.equal(f"{what}: its class", type(loaded), type(model))
        report.equal(f"{what}: 30 tokens generated", generated(loaded), text)
        again = report.folder / f"{name}, again"
        loaded.save_pretrained(again)
        report.compare(f"{what}, saved again, in attnres", score(again, ids), exact, BOUND)

    bfloat16 = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, dtype=torch.bfloat16, attn_implementation="eager"
    )
    report.equal(f"{name}, loaded in bfloat16", bfloat16.dtype, torch.bfloat16)
    report.equal(f"{name}: attention", bfloat16.config._attn_implementation, "eager")

    def without_code():
        AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)

    refuses(report, f"{name}, saved, without its code", "trust_remote_code", without_code)
    refuses(report, f"{name}, saved, as the residual model", "hidden_size",
            lambda: type(model).from_pretrained(folder))  # fmt: skip


def refuses(report, what, word, action):
    try:
        action()
    except Exception as error:
        report.line(word in str(error), f"{what}: refused: {str(error).splitlines()[0][:100]}")
    else:
        report.line(False, f"{what}: is not refused")


def check_further(report, name):
    """Saved by transformers, trained further in attnres, and read back."""
    model, ids, run = retrofitted(name), token_ids(256, 60), report.folder / f"{name}, further"
    saved, own = report.folder / f"{name}, to train", report.folder / f"{name}, own"
    model.save_pretrained(saved)
    plain = make(name, vocabulary=256)
    attnres.retrofit(plain, checkpoint=saved)
    before = log_probabilities(logits_of(model, ids), ids)
    report.compare(f"{name}, saved, by checkpoint=", log_probabilities(logits_of(plain, ids), ids),
                   before, 0)  # fmt: skip
    program("import", "--from", saved, "--bytes", "--out", own)
    program("train", "--from", own, "--data", REPOSITORY / "LICENSE", "--out", run, "--set",
            *TRAINING)  # fmt: skip
    back = make(name, vocabulary=256)
    attnres.retrofit(back, checkpoint=run / "checkpoints" / "last")
    theirs = log_probabilities(logits_of(back, ids), ids)
    report.compare(f"{name}, trained further", score(run / "checkpoints" / "last", ids), theirs,
                   BOUND)  # fmt: skip
    difference = np.abs(theirs - before).max()
    report.line(difference > 0.01, f"{name}: training further changed it by {difference:.2f}")


def check_resumed(report, name):
    """As transformers' Trainer resumes: its model's numbers from the file, whatever is missing."""
    model, other, folder = retrofitted(name), retrofitted(name), report.folder / f"{name}, resumed"
    ids = token_ids(256, 20)
    model.save_pretrained(folder)
    result = other.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    report.equal(f"{name}: nothing unexpected on resuming", result.unexpected_keys, [])
    report.equal(f"{name}: resumed", np.abs(logits_of(other, ids) - logits_of(model, ids)).max(), 0)


def check_checkpoint(report, name):
    made, kept = report.folder / f"{name}, made", report.folder / name
    mixed, run = report.folder / f"{name}, mixed", report.folder / f"{name}, run"
    model = make(name, vocabulary=256)
    save(model, made)
    program("import", "--from", made, "--bytes", "--out", kept)
    program("retrofit", "--model", kept, "--out", mixed, "--block-size", BLOCK_SIZE)
    program("train", "--from", mixed, "--data", REPOSITORY / "LICENSE", "--out", run, "--set",
            *TRAINING)  # fmt: skip
    folder, ids = run / "checkpoints" / "last", token_ids(256, 60)
    loaded = copy.deepcopy(model)
    attnres.retrofit(loaded, checkpoint=folder)
    theirs = log_probabilities(logits_of(loaded, ids), ids)
    report.compare(f"{name}, trained in attnres", score(folder, ids), theirs, BOUND)
    difference = np.abs(theirs - log_probabilities(logits_of(model, ids), ids)).max()
    report.line(difference > 0.01, f"{name}: training changed it by {difference:.2f}")


def check_kimi(report):
    """Kimi Linear, whose delta attentions return tensors and its others tuples."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(
        FIXTURES / "kimi_linear_tiny", dtype=torch.float32
    ).eval()
    ids, folder = token_ids(model.config.vocab_size, 20), report.folder / "kimi, saved"
    before = log_probabilities(logits_of(model, ids), ids)
    mix = attnres.retrofit(model, 2)
    after = log_probabilities(logits_of(model, ids), ids)
    report.compare("kimi_linear, retrofitted", after, before, BOUND)
    for query in mix.pseudo_query:
        torch.nn.init.normal_(query, std=0.5)
    theirs = log_probabilities(logits_of(model, ids), ids)
    report.line(np.abs(theirs - before).max() > 0.01, "kimi_linear: pseudo-queries matter")
    model.save_pretrained(folder)
    report.compare("kimi_linear, retrofitted, in attnres", score(folder, ids), theirs, BOUND)


def main():
    report = Report()
    check_kimi(report)
    for name in MODELS:
        check_function(report, name)
        check_copies(report, name)
        check_saved(report, name)
        check_saved(report, name, "delta_attn_res")
    for name in READ_MODELS:
        check_function(report, name)
        check_saved(report, name)
    for name in ("llama3", "qwen2", "qwen3"):
        check_checkpoint(report, name)
        check_further(report, name)
        check_resumed(report, name)
    report.finish()


if __name__ == "__main__":
    main()
