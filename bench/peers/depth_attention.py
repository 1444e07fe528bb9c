"""Depth attention in PyTorch, as one would write it today, in three variants.

stack     eager, as Fig. 2 of the report (arXiv 2603.15031): stack the sources, einsum twice
loop      eager, source by source: nothing larger than [N, T] is stacked
compiled  the loop under torch.compile

h = sum_i alpha_i v_i, alpha = softmax_i(query . (key_gain * RMS(v_i))); sources are [..., D].

Run as a program it answers the requests of bench/compare_depth_attention, which README.md lists.
"""

import array
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from line_protocol import serve

EPS = 1e-6


def attend_stacked(sources, query, key_gain, eps=EPS):
    values = torch.stack(sources)  # [N, ..., D]
    keys = F.rms_norm(values, key_gain.shape, key_gain, eps)
    scores = torch.einsum("d,n...d->n...", query, keys)
    return torch.einsum("n...,n...d->...d", scores.softmax(0), values)


def attend_in_loop(sources, query, key_gain, eps=EPS):
    scaled_query = query * key_gain
    if torch.compiler.is_compiling():  # one fused pass over a source
        scores = [(v * scaled_query).sum(-1) * torch.rsqrt((v * v).mean(-1) + eps) for v in sources]
    else:  # reductions that write nothing of size D
        scores = [
            (v @ scaled_query)
            * torch.rsqrt(torch.linalg.vector_norm(v, dim=-1).square() / v.shape[-1] + eps)
            for v in sources
        ]
    weights = torch.stack(scores).softmax(0).unsqueeze(-1).unbind(0)
    h = weights[0] * sources[0]
    for weight, v in zip(weights[1:], sources[1:], strict=True):
        h = h.addcmul_(weight, v)
    return h


def make_variant(name):
    if name == "compiled":
        torch._dynamo.reset()  # each shape compiles anew, and none is held back by those before
        return torch.compile(attend_in_loop, fullgraph=True, dynamic=False)
    return {"stack": attend_stacked, "loop": attend_in_loop}[name]


class Benchmark:
    """Calls of one shape, whose operands and results rotate over more than `rotation` bytes."""

    def __init__(self, tokens, width, sources, rotation):
        self.shape = (tokens, width, sources)
        self.query = torch.randn(width).mul_(0.1).requires_grad_()
        self.key_gain = torch.ones(width, requires_grad=True)
        copies = rotation // (4 * sources * tokens * width) + 1
        self.sources = [
            [torch.randn(tokens, width, requires_grad=True) for _ in range(sources)]
            for _ in range(copies)
        ]
        self.output_gradients = [torch.randn(tokens, width) for _ in range(copies)]
        self.outputs = [None] * copies
        self.next = 0
        self.variants = {}

    def warm_up(self, name):
        self.variants[name] = make_variant(name)
        for backward in (True, False):
            for _ in self.outputs:
                self.run(name, backward)

    def run(self, name, backward):
        """Milliseconds of one pass."""
        attend = self.variants[name]
        i = self.next
        self.next = (i + 1) % len(self.outputs)
        self.outputs[i] = None
        for tensor in [*self.sources[i], self.query, self.key_gain]:
            tensor.grad = None
        with torch.set_grad_enabled(backward):
            start = time.perf_counter()
            self.outputs[i] = attend(self.sources[i], self.query, self.key_gain)
            if backward:
                self.outputs[i].backward(self.output_gradients[i])
            return 1e3 * (time.perf_counter() - start)


def compute_file(attend, tokens, width, sources, inputs, results):
    """Reads sources, query, key gain and output gradient; writes the output and the gradients of
    sources, query and key gain: all float32, one after the other."""
    sizes = [[tokens, width]] * sources + [[width], [width], [tokens, width]]
    numbers = torch.tensor(array.array("f", Path(inputs).read_bytes()))
    parts = numbers.split([torch.Size(size).numel() for size in sizes])
    tensors = [part.clone().view(size) for part, size in zip(parts, sizes, strict=True)]
    leaves = [tensor.requires_grad_() for tensor in tensors[:-1]]
    output = attend(leaves[:-2], leaves[-2], leaves[-1])
    output.backward(tensors[-1])
    answers = [output.detach(), *(leaf.grad for leaf in leaves)]
    numbers = torch.cat([x.flatten() for x in answers]).tolist()
    Path(results).write_bytes(array.array("f", numbers).tobytes())


def main():
    benchmark = None

    def answer(request):
        nonlocal benchmark
        shape = (request["tokens"], request["width"], request["sources"])
        variant = request["variant"]
        if "inputs" in request:
            compute_file(make_variant(variant), *shape, request["inputs"], request["results"])
            return {"done": True}
        if benchmark is None or benchmark.shape != shape:
            benchmark = None
            benchmark = Benchmark(*shape, request["rotation"])
        if variant not in benchmark.variants:
            benchmark.warm_up(variant)
        backward = request["pass"] == "both"
        return {"ms": [benchmark.run(variant, backward) for _ in range(request["repeats"])]}

    serve(answer)


if __name__ == "__main__":
    main()
