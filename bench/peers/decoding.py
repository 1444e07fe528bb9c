"""The Transformer of training_step.py decoding one token at a time, keys and values kept.

Every site reads the whole bank of blocks, as the report's Fig. 2 does. Run as a program it answers
the requests of bench/compare_decoding, which README.md lists.
"""

import time

import torch
import torch.nn.functional as F

from line_protocol import serve
from training_step import Transformer


class Decoder(Transformer):
    """A batch of sequences of one length."""

    def __init__(self, folder, variant, batch, prompt, most):
        super().__init__(folder, variant, most)
        self.cosine, self.sine = self.rotary_table
        shape = (batch, self.weights["layers/0/self_attn/k_proj"].shape[0] // self.head_width,
                 most, self.head_width)  # fmt: skip
        self.keys = [torch.zeros(shape) for _ in range(self.layers)]
        self.values = [torch.zeros(shape) for _ in range(self.layers)]
        self.prompt = torch.tensor(prompt).expand(batch, -1)
        self.length = 0

    def rotary(self, x):
        here = slice(self.length, self.length + x.shape[1])
        self.rotary_table = self.cosine[here], self.sine[here]
        return super().rotary(x)

    def attention(self, x, layer):
        def split(projection):
            weight = self.weights[f"layers/{layer}/self_attn/{projection}"]
            return F.linear(x, weight).unflatten(-1, (-1, self.head_width))

        end = self.length + x.shape[1]
        here = slice(self.length, end)
        self.keys[layer][:, :, here] = self.rotary(split("k_proj")).transpose(1, 2)
        self.values[layer][:, :, here] = split("v_proj").transpose(1, 2)
        q = self.rotary(split("q_proj")).transpose(1, 2)
        o = F.scaled_dot_product_attention(
            q, self.keys[layer][:, :, :end], self.values[layer][:, :, :end],
            is_causal=x.shape[1] > 1, enable_gqa=self.grouped)  # fmt: skip
        weight = self.weights[f"layers/{layer}/self_attn/o_proj"]
        return F.linear(o.transpose(1, 2).flatten(-2), weight)

    def next_logits(self, ids):
        """[batch, V] of ids [batch, T], which follow what was given before."""
        h = self.hidden(ids)[:, -1]
        self.length += ids.shape[1]
        return F.linear(h, self.weights["lm_head"])

    def decode(self, tokens):
        """Greedily after the prompt: milliseconds a token, and each step's largest logit."""
        self.length = 0
        logits = self.next_logits(self.prompt)
        largest = []
        begin = time.perf_counter()
        for _ in range(tokens):
            largest.append(logits[0].max().item())
            logits = self.next_logits(logits.argmax(-1, keepdim=True))
        return 1e3 * (time.perf_counter() - begin) / tokens, largest


def main():
    decoders = {}

    @torch.inference_mode()
    def answer(request):
        if "open" in request:
            decoders[request["open"]] = Decoder(
                request["model"], request["variant"], request["batch"], request["prompt"],
                len(request["prompt"]) + request["tokens"])  # fmt: skip
            return {}
        ms, largest = decoders[request["decode"]].decode(request["tokens"])
        return {"ms": ms, "largest": largest}

    serve(answer)


if __name__ == "__main__":
    main()
