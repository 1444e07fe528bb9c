"""Native model directories in transformers, by the modeling_attnres.py that they carry: every
mechanism and setting that it computes, against `attnres score`, with weights that matter.

usage: python check_modeling.py        (ATTNRES=PROGRAM; build/attnres if not set)
"""

import itertools
import json

import numpy as np
import torch
from interop import (
    KIMI_K3,
    REPOSITORY,
    Report,
    attnres,
    log_probabilities,
    randomize,
    score,
    token_ids,
    train,
)
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.dynamic_module_utils import get_class_from_dynamic_module

BOUND = 1e-4
# eps large, so that it matters where it stands.
MODEL = {"layers": 3, "width": 32, "heads": 4, "kv_heads": 2, "ffn_width": 48, "norm_eps": 1e-3}
ARMS = [
    {},
    {"query": "input_dependent"},
    {"query": "none"},
    {"weights": "sigmoid"},
    {"query": "input_dependent", "weights": "sigmoid", "heads": 4},
    {"query": "none", "weights": "sigmoid"},
    {"weights": "factorised"},
    {"query": "input_dependent", "weights": "factorised", "heads": 4, "query_init": 0.5},
    {"key_norm": False},
    {"window": 2},
    {"heads": 4},
    {"norm_eps": "per_source_count"},
    {"query": "input_dependent", "key_norm": False, "window": 1, "heads": 2},
    {"score_scale": 0.3},
    {"score_scale": "1/sqrt(d)"},
    {"score_scale": "learned"},
    {"score_scale": "learned", "query": "input_dependent", "weights": "sigmoid", "heads": 4},
    {"value_query": True},
    {"value_query": True, "score_scale": 0.5, "heads": 4, "norm_eps": "per_source_count"},
]
MIXINGS = [
    *({"type": "attn_res"} | arm for arm in ARMS),
    *({"type": "block_attn_res", "block_size": 2} | arm for arm in ARMS),
    *({"type": "block_attn_res", "block_size": size} for size in (4, 6)),  # 4: a short last block
    *({"type": "block_attn_res", "block_size": size, "block_summary": "rms"} for size in (1, 2, 4)),
    {"type": "delta_attn_res"},
    {"type": "delta_attn_res", "gate": "none"},
    *({"type": "delta_attn_res", "block_size": size, "gate": 0.3} for size in (2, 4)),
    {"type": "gated_residual"},
    {"type": "gated_residual", "streams": 2, "rank": 5},
    {"type": "post_norm"},
    {"type": "hybrid_norm"},
    {"type": "hybrid_norm", "first_layer_pre_norm": True},
    {"type": "rezero"},
    {"type": "layer_scale"},
    {"type": "highway"},
    {"type": "deep_norm"},
    {"type": "keel"},
    {"type": "siamese_norm"},
    {"type": "siamese_norm", "depth_scaling": False},
    {"type": "siamese_norm", "input_norm": False},
    {"type": "dense_net"},
    {"type": "dense_former"},
    {"type": "dense_former", "form": "original"},
    {"type": "ancre", "temperature": 0.5},
    {"type": "sknet"},
    {"type": "value_residual"},
    {"type": "value_residual", "learned": False},
    *({"type": "laurel", "rank": 4, "variant": v} for v in ("rw", "lr", "pa", "rw+lr", "rw+pa")),
    {"type": "scalar_mix"},
]

SCALING = {"factor": 4, "original_context": 32}
LAYERS = {
    "delta attention": {"attention": ["delta"]},
    "delta and grouped-query attention": {"attention": ["delta", "grouped_query"]},
    "latent attention": {"attention": ["latent"]},
    "experts": {"experts": {"count": 6, "chosen": 3, "width": 12, "dense_layers": 0}},
    "experts without renormalization": {
        "experts": {"count": 6, "chosen": 3, "width": 12, "dense_layers": 0, "renormalize": False}
    },
    "SiTU": {"activation": {"type": "situ", "beta": 2, "linear_beta": 0}},
    "a sliding window": {"attention": ["sliding_window"], "sliding_window": {"window": 5}},
    "a window with positions of its own": {
        "attention": ["sliding_window", "grouped_query"],
        "sliding_window": {"window": 5, "rope_theta": 20},
    },
    "layers without positions": {"attention": ["grouped_query", "nope"]},
    "wide heads": {"head_width": 12},
    "biases": {"grouped_query": {"qkv_bias": True}},
    "norms of queries and keys": {"grouped_query": {"qk_norm": True}},
    "a scale of scores": {"grouped_query": {"score_scale": 0.5}},
    "GeGLU": {"activation": {"type": "gelu_tanh"}},
    "norms of outputs": {"output_norm": True},
    "scaled embeddings": {"embedding_scale": 3},
    **{
        f"positions scaled by {len(scaling)} settings of {scaling['type']}": {"rope_scaling": SCALING | scaling}
        for scaling in (
            {"type": "linear"},
            {"type": "llama3"},
            {"type": "yarn"},
            {"type": "yarn", "truncate": False, "attention_factor": 1.5},
        )
    },
    "delta attention with a query for values": {
        "attention": ["delta"],
        "depth_mixing": {"type": "block_attn_res", "block_size": 2, "value_query": True},
    },
    # Native, since no other file says what the window is.
    "Kimi K3 with a window": KIMI_K3
    | {"depth_mixing": {"type": "block_attn_res", "block_size": 2, "window": 2}},
}


def name_of(mixing):
    settings = (f"{key}={value}" for key, value in mixing.items() if key != "type")
    return " ".join([mixing["type"], *settings])


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.from_numpy(ids)).logits.numpy()


def check(report, name, model, ids):
    folder = train(report.folder / name, MODEL | model)
    randomize(folder)
    theirs = log_probabilities(logits_of(load(folder), ids), ids)
    report.compare(name, score(folder, ids), theirs, BOUND)
    return theirs


def check_all_differ(report, results):
    """The comparisons see every mechanism, layer and setting: no two agree."""
    closest = min(
        itertools.combinations(results, 2),
        key=lambda pair: np.abs(results[pair[0]] - results[pair[1]]).max(),
    )
    difference = np.abs(results[closest[0]] - results[closest[1]]).max()
    report.line(
        difference > 100 * BOUND,
        f"the two most alike, {closest[0]} and {closest[1]}, differ by {difference:.1e}",
    )


def check_use(report):
    """Generation, batches with padding, the loss, a tied head."""
    mixing = {"type": "block_attn_res", "block_size": 2}
    model = MODEL | {"depth_mixing": mixing, "tie_embeddings": True}
    folder = train(report.folder / "tied", model, steps=60, learning_rate=0.02, warmup=5)
    loaded = load(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    ids = token_ids(256)
    ours = score(folder, ids)
    theirs = log_probabilities(logits_of(loaded, ids), ids)
    report.compare("tied head, trained", ours, theirs, BOUND)
    with torch.no_grad():
        loss = loaded(torch.from_numpy(ids), labels=torch.from_numpy(ids)).loss.item()
    report.compare("loss", -ours.mean(), loss, BOUND)

    prompts = ["The copyright", "A new mechanism is"]
    expected = [
        attnres("generate", "--model", folder, "--prompt", prompt, "--max-tokens", 30,
                "--temperature", 0).rstrip("\n")
        for prompt in prompts
    ]  # fmt: skip
    tokenizer.pad_token_id, tokenizer.padding_side = 0, "left"
    batch = tokenizer(prompts, return_tensors="pt", padding=True)
    out = loaded.generate(**batch, max_new_tokens=30, do_sample=False, pad_token_id=0)
    text = tokenizer.batch_decode(out[:, batch.input_ids.shape[1] :], skip_special_tokens=True)
    report.equal("greedy generation in a padded batch", expected, [t.rstrip("\n") for t in text])


def check_shipped(report):
    """The model in models/, as its users load it."""
    folder = REPOSITORY / "models" / "tiny-shakespeare"
    model = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, dtype=torch.float32
    )
    ids = token_ids(256)
    theirs = log_probabilities(logits_of(model.eval(), ids), ids)
    report.compare("models/tiny-shakespeare", score(folder, ids), theirs, BOUND)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    report.equal("its tokenizer", "KING", tokenizer.decode([75, 73, 78, 71]))


def check_refusals(report):
    """What the file does not compute, it names."""
    folder = train(report.folder / "refused", MODEL | {"depth_mixing": {"type": "deep_delta"}})
    refuses(report, folder, "deep_delta")
    folder = report.folder / "tied" / "run" / "checkpoints" / "last"
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["attnres"]["depth_mixing"]["new_setting"] = 1
    path.write_text(json.dumps(config))
    refuses(report, folder, "new_setting")


def refuses(report, folder, word):
    try:
        load(folder)
        report.line(False, f"{word} is not refused")
    except ValueError as error:
        report.line(word in str(error), f"refuses {word}: {error}")


def check_covers_all(report):
    """Every mechanism of the file is among those compared; residual is written as Llama."""
    folder = report.folder / name_of(MIXINGS[0]) / "run" / "checkpoints" / "last"
    name = "modeling_attnres.AttnResForCausalLM"
    module = get_class_from_dynamic_module(name, folder).__module__
    known = set(__import__(module, fromlist=["MECHANISMS"]).MECHANISMS) - {"residual"}
    report.equal("every mechanism is compared", sorted({m["type"] for m in MIXINGS}), sorted(known))


def main():
    report = Report()
    ids = token_ids(256)
    models = {name_of(mixing): {"depth_mixing": mixing} for mixing in MIXINGS}
    plain = {"depth_mixing": {"type": "block_attn_res", "block_size": 2}}
    models |= {name: plain | layers for name, layers in LAYERS.items()}
    results = {name: check(report, name, model, ids) for name, model in models.items()}
    check_all_differ(report, results)
    check_covers_all(report)
    check_use(report)
    check_shipped(report)
    check_refusals(report)
    report.finish()


if __name__ == "__main__":
    main()
