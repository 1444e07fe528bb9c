"""What the checks against other programs share: models to compare on, and comparing."""

import json
import os
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

REPOSITORY = Path(__file__).resolve().parents[2]
FIXTURES = REPOSITORY / "tests" / "fixtures"
PROGRAM = os.environ.get("ATTNRES", REPOSITORY / "build" / "attnres")
BATCH, TOKENS = 2, 80  # past a chunk of KDA, which is 64 tokens
PROMPT = b"The copyright"
END_OF_DOCUMENT = 0

# Models of a recipe, small.
LLAMA = {"layers": 3, "width": 32, "heads": 4, "kv_heads": 2, "ffn_width": 48}
KIMI_LINEAR = {
    "layers": 3, "width": 32, "heads": 4, "ffn_width": 48, "norm_eps": 1e-5,
    "attention": ["delta", "delta", "latent"],
    "delta_attention": {"heads": 2, "head_width": 12},
    "latent_attention": {"kv_rank": 20, "key_width": 12, "shared_key_width": 4, "value_width": 10},
    "experts": {"count": 6, "chosen": 2, "width": 12, "shared": 2, "scaling": 2.5},
}  # fmt: skip
KIMI_K3 = KIMI_LINEAR | {
    "delta_attention": KIMI_LINEAR["delta_attention"]
    | {"gate_lower_bound": -5, "output_gate": "full_rank"},
    "latent_attention": KIMI_LINEAR["latent_attention"] | {"q_rank": 14, "output_gate": True},
    "experts": KIMI_LINEAR["experts"] | {"latent_width": 20},
    "activation": {"type": "situ", "beta": 2, "linear_beta": 3},
    "depth_mixing": {"type": "block_attn_res", "block_size": 2},
}


def attnres(*arguments):
    """What the program prints."""
    command = [PROGRAM, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nfailed: {run.stderr.strip()}")
    return run.stdout


def score(folder, ids, *options):
    """The log-probability of each token after the first, [B, T-1], as attnres computes it."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(",".join(map(str, sequence)) + "\n" for sequence in ids))
        file.flush()
        lines = attnres("score", "--model", folder, "--ids-file", file.name, *options).splitlines()
    return np.array([json.loads(line)["logprobs"] for line in lines])


def greedy(folder, count):
    """The ids of the most likely continuation of PROMPT."""
    printed = attnres("generate", "--model", folder, "--prompt", PROMPT.decode(),
                      "--max-tokens", count, "--temperature", 0, "--json")  # fmt: skip
    return json.loads(printed)["tokens"]


def log_probabilities(logits, ids):
    """The same of another program's logits [B, T, V]."""
    logits = np.asarray(logits, np.float64)[:, :-1]
    logits -= logits.max(-1, keepdims=True)
    log_sum = np.log(np.exp(logits).sum(-1))
    return np.take_along_axis(logits, ids[:, 1:, None], -1)[..., 0] - log_sum


def token_ids(vocabulary, tokens=TOKENS):
    return np.random.default_rng(0).integers(0, vocabulary, (BATCH, tokens), dtype=np.int64)


def train(folder, model, steps=1, **settings):
    """A model directory that attnres wrote, after some steps on this repository's text."""
    recipe = {"name": "interop", "model": model, "train": {"steps": steps, **settings}}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "recipe.json"
    path.write_text(json.dumps(recipe))
    text = [REPOSITORY / name for name in ("LICENSE", "CONTRIBUTING.md")]
    attnres("train", "--recipe", path, "--data", *text, "--out", folder / "run")
    return folder / "run" / "checkpoints" / "last"


def random_weight(name, shape):
    """Weights that matter: every position, head, expert and source changes the result.

    They depend on the name only, so that models have in common what has the same name.
    """
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    role = name.removesuffix(".weight").rpartition(".")[-1]
    fan_in = shape[-1]
    if role == "A_log":
        weight = np.log(rng.uniform(1, 16, shape))
    elif role == "dt_bias":
        weight = np.log(np.expm1(np.exp(rng.uniform(np.log(1e-3), np.log(0.1), shape))))
    elif role == "e_score_correction_bias":
        weight = rng.uniform(-0.2, 0.2, shape)
    elif "norm" in role:
        weight = rng.uniform(0.5, 1.5, shape)
    elif "conv1d" in role:
        weight = rng.normal(0, 0.5, shape)
    elif role == "embed_tokens":
        weight = rng.normal(0, 1, shape)
    elif role == "lm_head":
        weight = rng.normal(0, 2 / np.sqrt(fan_in), shape)
    elif role == "query_proj":
        weight = rng.normal(0, 1.5 / fan_in, shape)
    elif role.endswith("res_proj"):  # pseudo-queries: keys have an RMS of one
        weight = rng.normal(0, 1.2 / np.sqrt(fan_in), shape)
    elif role.endswith("logits"):
        weight = rng.normal(0, 1, shape)
    elif len(shape) == 1:
        weight = rng.uniform(0.1, 0.9, shape)
    else:
        weight = rng.normal(0, 1 / np.sqrt(fan_in), shape)
    return weight.astype(np.float32)


def randomize(folder):
    """Gives a model directory weights that matter."""
    path = folder / "model.safetensors"
    weights = {name: random_weight(name, tensor.shape) for name, tensor in load_file(path).items()}
    save_file(weights, path, {"format": "pt"})


class Report:
    """Prints every comparison; `finish` fails if one was over its bound."""

    def __init__(self):
        self.failures = 0
        self.directory = tempfile.TemporaryDirectory(prefix="attnres-interop-")
        self.folder = Path(self.directory.name)

    def line(self, good, text):
        print("ok  " if good else "FAIL", text, flush=True)
        self.failures += not good

    def compare(self, what, ours, theirs, bound):
        difference = np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)).max()
        text = f"{what}: log-probabilities differ by {difference:.1e} at most (bound {bound:.0e})"
        self.line(bool(difference <= bound), text)  # false for nan

    def equal(self, what, ours, theirs):
        same = ours == theirs
        self.line(same, what + ("" if same else f": attnres has {ours!r}, they have {theirs!r}"))

    def finish(self):
        name = Path(sys.argv[0]).name
        if self.failures:
            sys.exit(f"{name}: {self.failures} comparisons failed")
        print(f"{name}: ok")
