"""The same Transformer and training step in PyTorch: residual and Block Attention Residuals.

Models are read from folders that attnres wrote (config.json, model.safetensors), so both sides
begin with the same weights. Linear maps, RMSNorm, attention, cross-entropy and AdamW (fused) are
PyTorch's own; depth attention is one of depth_attention.py's variants.

Run as a program it answers the requests of bench/compare_training_step, which README.md lists.
"""

import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from depth_attention import attend_in_loop, attend_stacked
from line_protocol import serve

ATTEND = {"stack": attend_stacked, "loop": attend_in_loop}


def read_safetensors(path):
    """{name: float32 tensor}: eight bytes of header size, a JSON header, then the numbers."""
    data = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:begin]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32", f"{path}: {name} is {entry['dtype']}, expected F32"
        first, last = entry["data_offsets"]
        numbers = torch.frombuffer(data, dtype=torch.float32, count=(last - first) // 4,
                                   offset=begin + first)  # fmt: skip
        tensors[name] = numbers.view(entry["shape"]).clone()
    return tensors


def read_config(path):
    """The keys of a recipe's `model`."""
    config = json.loads(path.read_text())
    if config["model_type"] == "attnres":
        model = config["attnres"]
        assert model["depth_mixing"]["norm_eps"] == "fixed"
        assert not model["tie_embeddings"]
        return model
    return {
        "layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "kv_heads": config["num_key_value_heads"],
        "norm_eps": config["rms_norm_eps"],
        "rope_theta": config["rope_theta"],
        "depth_mixing": {"type": "residual"},
    }


def make_rotary_table(context, head_width, theta):
    """Cosines and sines [T, 1, K / 2]."""
    exponents = torch.arange(0, head_width, 2, dtype=torch.float64) / head_width
    positions = torch.arange(context, dtype=torch.float64)
    angles = torch.outer(positions, theta**-exponents).unsqueeze(1)
    return angles.cos().float(), angles.sin().float()


class Transformer(nn.Module):
    def __init__(self, folder, variant, context):
        super().__init__()
        folder = Path(folder)
        config = read_config(folder / "config.json")
        self.layers, self.heads = config["layers"], config["heads"]
        self.grouped = config["heads"] != config["kv_heads"]
        self.head_width = config["width"] // config["heads"]
        self.eps = config["norm_eps"]
        self.rotary_table = make_rotary_table(context, self.head_width, config["rope_theta"])
        self.block_size = config["depth_mixing"].get("block_size")  # None: residual
        self.attend = ATTEND.get(variant)
        self.weights = nn.ParameterDict(
            {
                name.removeprefix("model.").removesuffix(".weight").replace(".", "/"): tensor
                for name, tensor in read_safetensors(folder / "model.safetensors").items()
            }
        )

    def decays(self, name):
        return name.endswith("_proj") and "_res_" not in name or name == "lm_head"

    def norm(self, x, name):
        gain = self.weights[name]
        return F.rms_norm(x, gain.shape, gain, self.eps)

    def rotary(self, x):
        """x [B, T, H, K]: channel c of the first half turns with channel c of the second."""
        cosine, sine = (table.to(x.dtype) for table in self.rotary_table)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)

    def attention(self, x, layer):
        def split(projection):
            weight = self.weights[f"layers/{layer}/self_attn/{projection}"]
            return F.linear(x, weight).unflatten(-1, (-1, self.head_width))

        q = self.rotary(split("q_proj")).transpose(1, 2)
        k = self.rotary(split("k_proj")).transpose(1, 2)
        v = split("v_proj").transpose(1, 2)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        weight = self.weights[f"layers/{layer}/self_attn/o_proj"]
        return F.linear(o.transpose(1, 2).flatten(-2), weight)

    def feed_forward(self, x, layer):
        gate, up, down = (
            self.weights[f"layers/{layer}/mlp/{name}_proj"] for name in ("gate", "up", "down")
        )
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    def sublayer(self, site, x):
        return (self.feed_forward if site % 2 else self.attention)(x, site // 2)

    def names(self, site):
        """Names of the input norm, pseudo-query and key norm of a site."""
        if site == 2 * self.layers:
            return "norm", "output_attn_res_proj", "output_attn_res_norm"
        layer = f"layers/{site // 2}/"
        norm = "post_attention_layernorm" if site % 2 else "input_layernorm"
        mixing = "mlp_res" if site % 2 else "self_attention_res"
        return layer + norm, f"{layer}{mixing}_proj", f"{layer}{mixing}_norm"

    def read(self, site, sources):
        norm, query, key_gain = self.names(site)
        if len(sources) == 1:
            return self.norm(sources[0], norm)
        h = self.attend(sources, self.weights[query].flatten(), self.weights[key_gain], self.eps)
        return self.norm(h, norm)

    def hidden(self, ids):
        h = F.embedding(ids, self.weights["embed_tokens"])
        sites = range(2 * self.layers)
        if self.block_size is None:
            for site in sites:
                h = h + self.sublayer(site, self.read(site, [h]))
            return self.read(2 * self.layers, [h])
        blocks, partial = [h], None
        for site in sites:
            sources = blocks if partial is None else [*blocks, partial]
            y = self.sublayer(site, self.read(site, sources))
            partial = y if partial is None else partial + y
            if (site + 1) % self.block_size == 0:
                blocks, partial = [*blocks, partial], None
        return self.read(2 * self.layers, blocks if partial is None else [*blocks, partial])

    def forward(self, ids, targets):
        logits = F.linear(self.hidden(ids), self.weights["lm_head"])
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Training:
    """A model in training on one batch that is always the same."""

    def __init__(self, folder, variant, compiled, precision, ids, learning_rate):
        self.model = Transformer(folder, variant, context=ids.shape[1] - 1)
        self.loss = self.model
        if compiled:
            self.loss = torch.compile(self.model, fullgraph=True, dynamic=False)
        named = list(self.model.weights.items())
        groups = [
            {"params": [p for name, p in named if self.model.decays(name)], "weight_decay": 0.1},
            {"params": [p for name, p in named if not self.model.decays(name)],
             "weight_decay": 0.0},
        ]  # fmt: skip
        self.optimizer = torch.optim.AdamW(
            groups, lr=learning_rate, betas=(0.9, 0.95), eps=1e-8, fused=True
        )
        self.autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16")
        self.inputs, self.targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def step(self):
        """(milliseconds, loss, gradient norm) of one step."""
        start = time.perf_counter()
        with self.autocast:
            loss = self.loss(self.inputs, self.targets)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        numbers = loss.item(), norm.item()
        return 1e3 * (time.perf_counter() - start), *numbers


def main():
    trainings = {}

    def answer(request):
        if "open" in request:
            ids = torch.tensor(request["ids"]).view(request["batch"], -1)
            trainings[request["open"]] = Training(
                request["model"], request["variant"], request["compiled"],
                request["precision"], ids, request["learning_rate"],
            )  # fmt: skip
            return {"done": True}
        training = trainings[request["step"]]
        ms, loss, norm = zip(*(training.step() for _ in range(request["repeats"])), strict=True)
        return {"ms": ms, "loss": loss, "gradient_norm": norm}

    serve(answer)


if __name__ == "__main__":
    main()
