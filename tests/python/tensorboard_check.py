"""Reads a run's event file back with TensorBoard: python tensorboard_check.py <attnres program>

Every number of metrics.jsonl and probes.jsonl that is a scalar has to be there, at its step, as a
float32, and nothing else; also of a run that was stopped and went on.
"""

import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util import tensor_util

RECIPE = {
    "name": "tiny",
    "model": {
        "layers": 2,
        "width": 32,
        "heads": 2,
        "depth_mixing": {"type": "block_attn_res", "block_size": 2},
    },
    "train": {
        "steps": 6,
        "batch_size": 2,
        "context": 16,
        "warmup": 1,
        "eval_every": 3,
        "eval_tokens": 64,
        "checkpoint_every": 4,
        "sample_tokens": 0,
    },
}
TAGS = {
    "loss": "loss/train",
    "val_loss": "loss/validation",
    "lr": "training/learning_rate",
    "grad_norm": "training/gradient_norm",
    "tokens_per_second": "training/tokens_per_second",
}
SITES = ["00 attention 1", "01 feed-forward 1", "02 attention 2", "03 feed-forward 2", "04 output"]


def rounded(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def json_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def expected(run):
    scalars = {}
    for line in json_lines(run / "metrics.jsonl"):
        for key, tag in TAGS.items():
            if key in line:
                scalars[tag, line["step"]] = rounded(line[key])
    for line in json_lines(run / "probes.jsonl"):
        if not isinstance(line["value"], list):
            tag = f"{line['name']}/{SITES[line['site']]}"
            scalars[tag, line["step"]] = rounded(line["value"])
    return scalars


def read_back(run):
    (path,) = run.glob("events.out.tfevents.*")
    scalars = {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            assert (value.tag, event.step) not in scalars, f"{value.tag} twice at {event.step}"
            scalars[value.tag, event.step] = tensor_util.make_ndarray(value.tensor).item()
    return scalars


def train(program, folder, *options):
    text = folder / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 200)
    (folder / "recipe.json").write_text(json.dumps(RECIPE))
    run = folder / "run"
    command = [program, "train", "--recipe", folder / "recipe.json", "--data", text, "--out", run]
    subprocess.run([*command, *options], check=True, capture_output=True)
    return run


def main():
    program = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        run = train(program, Path(folder))
        scalars = read_back(run)
        assert scalars == expected(run), "the event file differs from the logs"
        assert len({step for _, step in scalars}) == RECIPE["train"]["steps"]
        longer = train(program, Path(folder), "--resume", "--set", "train.steps=8")
        assert read_back(longer) == expected(longer), "after going on they differ"
        assert len(read_back(longer)) > len(scalars)
        wrong = dict(scalars)
        wrong["loss/train", 1] += 1e-3
        assert wrong != expected(run), "the comparison cannot fail"
    print(f"tensorboard_check: {len(scalars)} scalars read back")


main()
