"""Trainings by two processes that take turns: what compare_pipelines and narrow_link share."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

from alternation import BENCH

PROGRAM = BENCH.parent / "build" / "attnres"
POLICIES = ("naive", "report", "owned")
CLUSTER = BENCH.parent / "recipes" / "clusters" / "rtx-4090-workstation.json"  # of two, or any
WARM_UP = 3  # steps that do not count


def add_options(parser):
    parser.add_argument("residual", type=Path)
    parser.add_argument("block", type=Path)
    parser.add_argument("--virtual", type=int, default=2, help="stages of a rank")
    parser.add_argument("--accumulate", type=int, default=4, help="parts of a step")
    parser.add_argument("--steps", type=int, default=15, help="of a run, that count")
    parser.add_argument("--rounds", type=int, default=7)


def arms_of(options):
    """The recipe and the settings of each arm, by name; the first is what others are compared with."""
    shared = [f"parallel.virtual={options.virtual}", f"train.accumulate={options.accumulate}"]
    arms = {"residual": (options.residual, shared)}
    for policy in POLICIES:
        arms[f"Block, {policy}"] = (options.block, [*shared, f"parallel.policy={policy}"])
    return arms


def train(mpirun, arm, steps, out):
    """Seconds a step, the median."""
    recipe, settings = arm
    last = WARM_UP + steps
    command = [*mpirun, PROGRAM, "train", "--recipe", recipe, "--out", out, "--threads", "1",
               "--set", "parallel.pipeline=2", f"train.steps={last}", "train.sample_tokens=0",
               "train.warmup=1", f"train.eval_every={last}", f"train.checkpoint_every={last}",
               "train.eval_tokens=4096", *settings]  # fmt: skip
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    ends = [line["seconds"] for line in lines]
    return statistics.median(b - a for a, b in zip(ends[WARM_UP:], ends[WARM_UP + 1 :]))


def planned_bytes(arm):
    """What the processes send each other in a step, by kind: as attnres plan counts it."""
    recipe, settings = arm
    command = [PROGRAM, "plan", "--recipe", recipe, "--cluster", CLUSTER, "--json",
               "--set", "parallel.pipeline=2", *settings]  # fmt: skip
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    plan = json.loads(done.stdout)
    return plan["traffic"]["policies"][plan["layout"]["policy"]]
