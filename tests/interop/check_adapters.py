"""Adapters that attnres trained, in PEFT: beside the same model, merged by attnres, and merged by PEFT.

usage: python check_adapters.py        (ATTNRES=PROGRAM; build/attnres if not set)
"""

import json

import torch
from architectures import make, save
from interop import Report, attnres, log_probabilities, score, token_ids
from peft import PeftModel
from transformers import AutoModelForCausalLM

BOUND = 1e-5  # or twice the difference of the models alone, which are sharp
TRAINING = "train.steps=12", "train.learning_rate=0.01", "train.warmup=1", "train.context=64"


def scores(model, ids):
    with torch.no_grad():
        logits = model(torch.from_numpy(ids), use_cache=False).logits.numpy()
    return log_probabilities(logits, ids)


def check(report, name, targets):
    base, run, merged = (report.folder / f"{name}, {what}" for what in ("base", "run", "merged"))
    save(make(name, vocabulary=256), base)
    lora = "model.lora.rank=4", "model.lora.alpha=6", f"model.lora.targets={targets}"
    (tokens := report.folder / f"{name}.bin").write_bytes(
        token_ids(256, 200_000).astype("uint16").tobytes()
    )
    attnres("train", "--from", base, "--data", tokens, "--out", run, "--set", *TRAINING, *lora)
    attnres("export", "--model", run, "--out", merged)

    ids = token_ids(256)
    # In float64: float32 in transformers may be half of the bound away from it.
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64).eval()
    plain.set_experts_implementation("eager")  # grouped products are of float32 at most
    before = scores(plain, ids)
    model = PeftModel.from_pretrained(plain, run / "checkpoints" / "best").eval()
    adapted = scores(model, ids)
    report.line(abs(adapted - before).max() > 0.01, f"{name}: the adapter matters")
    bound = max(BOUND, 2 * abs(score(base, ids) - before).max())
    report.compare(f"{name}, adapter in attnres", score(run, ids), adapted, bound)
    report.compare(f"{name}, adapter named", score(base, ids, "--adapter", run), adapted, bound)
    report.compare(f"{name}, merged by attnres", score(merged, ids), adapted, bound)
    report.compare(f"{name}, merged by PEFT", scores(model.merge_and_unload(), ids), adapted, bound)


def main():
    report = Report()
    check(report, "llama3", '["all-linear"]')
    check(report, "qwen3", '["q_proj","v_proj"]')
    # In models with routed experts PEFT takes the maps of feed-forwards for theirs.
    maps = "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"
    check(report, "deepseek_v3", json.dumps(maps))
    report.finish()


if __name__ == "__main__":
    main()
