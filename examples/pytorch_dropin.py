"""Trains a small GPT three ways: python examples/pytorch_dropin.py [TEXT]

residual   x = x + sublayer(norm(x))
naive      Block Attention Residuals as Fig. 2 of arXiv 2603.15031 writes them: stack and einsum
attnres    the same with attnres.BlockAttnRes, whose sites add, attend and norm in one pass

All begin with equal weights and see equal batches; naive and attnres differ in rounding only.
TEXT is any file, read as bytes; the default is the C headers of this machine.
"""

import sys
import time
from itertools import chain
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import nn

import attnres

LAYERS, WIDTH, HEADS, BLOCK_SIZE = 6, 192, 6, 2
BATCH, CONTEXT, STEPS, LEARNING_RATE = 4, 128, 120, 2e-3
EPS = 1e-6


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(o.transpose(1, 2).flatten(-2))


def make_mlp():
    return nn.Sequential(
        nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH, bias=False)
    )


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        # Attention and MLP in turn, each behind its norm.
        self.sublayers = nn.ModuleList(
            make() for _ in range(LAYERS) for make in (Attention, make_mlp)
        )
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH, EPS) for _ in self.sublayers)
        self.norm = nn.RMSNorm(WIDTH, EPS)
        self.head = nn.Linear(WIDTH, 256, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        return self.head(self.run(x))

    def run(self, x):
        for norm, sublayer in zip(self.norms, self.sublayers, strict=True):
            x = x + sublayer(norm(x))
        return self.norm(x)


class NaiveGPT(GPT):
    def __init__(self):
        super().__init__()
        sites = range(len(self.sublayers) + 1)
        self.pseudo_query = nn.ParameterList(torch.zeros(WIDTH) for _ in sites)
        self.key_norm = nn.ModuleList(nn.RMSNorm(WIDTH, EPS) for _ in sites)

    def block_attn_res(self, site, sources):
        values = torch.stack(sources)
        keys = self.key_norm[site](values)
        scores = torch.einsum("d,nbtd->nbt", self.pseudo_query[site], keys)
        return torch.einsum("nbt,nbtd->btd", scores.softmax(0), values)

    def run(self, x):
        blocks, partial = [x], None
        for site, (norm, sublayer) in enumerate(zip(self.norms, self.sublayers, strict=True)):
            sources = blocks if partial is None else [*blocks, partial]
            y = sublayer(norm(self.block_attn_res(site, sources)))
            partial = y if partial is None else partial + y
            if (site + 1) % BLOCK_SIZE == 0:
                blocks, partial = [*blocks, partial], None
        sources = blocks if partial is None else [*blocks, partial]
        return self.norm(self.block_attn_res(site + 1, sources))


class AttnResGPT(GPT):
    def __init__(self):
        super().__init__()
        self.mix = attnres.BlockAttnRes(WIDTH, len(self.sublayers), BLOCK_SIZE, eps=EPS)

    def run(self, x):
        state = self.mix.start(x)
        for norm, sublayer in zip(self.norms, self.sublayers, strict=True):
            x, state = self.mix.read_normed(state, norm.weight, EPS)
            state = self.mix.write(state, sublayer(x))
        return self.mix.output_normed(state, self.norm.weight, EPS)


class Training:
    def __init__(self, model):
        torch.manual_seed(0)
        self.model = model()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0, fused=True
        )
        self.losses, self.seconds = [], []

    def step(self, batch):
        start = time.perf_counter()
        logits = self.model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - start)


def read_bytes(arguments):
    if arguments:
        return Path(arguments[0]).read_bytes()
    headers = sorted(Path("/usr/include").glob("*.h"))
    return bytes(chain.from_iterable(file.read_bytes() for file in headers))


def main():
    data = torch.tensor(bytearray(read_bytes(sys.argv[1:])), dtype=torch.uint8).long()
    if len(data) <= CONTEXT + 1:
        sys.exit(f"pytorch_dropin: {len(data)} bytes of text; name a file with more")
    trainings = {
        name: Training(model)
        for name, model in [("residual", GPT), ("naive", NaiveGPT), ("attnres", AttnResGPT)]
    }
    generator = torch.Generator().manual_seed(1)
    print("loss, nats per byte\n  step" + "".join(f"{name:>10}" for name in trainings))
    for step in range(1, STEPS + 1):
        starts = torch.randint(len(data) - CONTEXT, (BATCH,), generator=generator)
        batch = data[starts[:, None] + torch.arange(CONTEXT + 1)]
        for training in trainings.values():  # in turn, so that each meets the same machine
            training.step(batch)
        if step == 1 or step % 20 == 0:
            losses = "".join(f"{training.losses[-1]:10.4f}" for training in trainings.values())
            print(f"{step:6}{losses}", flush=True)

    naive, ours = trainings["naive"], trainings["attnres"]
    apart = max(abs(a - b) for a, b in zip(naive.losses, ours.losses, strict=True))
    print(f"naive and attnres differ by {apart:.1e} at most")
    for name, training in trainings.items():
        tokens = BATCH * CONTEXT / median(training.seconds)
        print(f"{name:>10}: {tokens:7.0f} tokens/s, {median(training.seconds) * 1e3:.0f} ms a step")
    ratio = median(n / o for n, o in zip(naive.seconds, ours.seconds, strict=True))
    print(f"attnres is {ratio:.2f} times as fast as naive, steps compared pair by pair")


if __name__ == "__main__":
    main()
