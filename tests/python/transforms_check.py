"""Checks the operations as PyTorch transforms them: python transforms_check.py <libattnres_ops.so>

Forward-mode derivatives, torch.func.grad and vmap of every operation of the dispatcher: either they
are those of its formula, or they are refused by name. A kernel would lose the tangent and return
zeros.
"""

import sys

import torch
import torch.nn.functional as F
from ops_check import (
    EPS,
    bounded,
    composed,
    delta_inputs,
    delta_rule,
    depth_inputs,
    gated_stream_inputs,
    head_inputs,
    loss_inputs,
    mixers_backwards,
    norm_inputs,
    normed_formula,
    normed_site,
    of_mixers,
    rotary_inputs,
    site,
    stream_inputs,
    swiglu_inputs,
    two_backwards,
)
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vmap


def rotated(x, cosine, sine):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


def formulas(ops):
    """What is transformed: the operation, its formula, and inputs all of which have derivatives."""
    sources, query, key_gain = depth_inputs(4, (2, 3, 5))
    depth = query, key_gain, *sources
    _, cosine, sine = rotary_inputs()
    hidden, weight, targets = loss_inputs(9, 4, 6)
    return {
        **{name: of for name, *of in of_mixers(ops)},
        "depth_attention": (
            lambda q, g, *s: ops.depth_attention(list(s), q, g, EPS),
            lambda q, g, *s: composed(list(s), q, g, EPS)[0],
            depth,
        ),
        "depth_attention_composed": (
            lambda q, g, *s: ops.depth_attention_composed(list(s), q, g, EPS),
            lambda q, g, *s: composed(list(s), q, g, EPS)[0],
            depth,
        ),
        "depth_attention_weights": (
            lambda q, g, *s: ops.depth_attention_weights(list(s), q, g, EPS),
            lambda q, g, *s: composed(list(s), q, g, EPS)[1],
            depth,
        ),
        "depth_attention_phase_one": (
            lambda q, g, *s: site(ops, list(s), 3, q * g),
            lambda q, g, *s: composed(list(s), q, g, EPS)[0],
            depth,
        ),
        "depth_attention_phase_two": (
            lambda q, g, *s: site(ops, list(s), 4, q * g),  # of no recent source
            lambda q, g, *s: composed(list(s), q, g, EPS)[0],
            depth,
        ),
        "depth_attention_phase_two_normed": (
            lambda q, g, y, *s: sum(normed_site(ops, list(s), 2, y, q, g)),
            lambda q, g, y, *s: sum(normed_formula(s, y, q, g)),
            (query, key_gain, norm_inputs()[0], *sources),
        ),
        "rms_norm": (
            lambda x, g: ops.rms_norm(x, g, EPS),
            lambda x, g: g * x / (x.square().mean(-1, keepdim=True) + EPS).sqrt(),
            norm_inputs()[1:],
        ),
        "add_rms_norm": (
            lambda x, y, g: ops.add_rms_norm(x, y, g, EPS)[1],
            lambda x, y, g: g * (x + y) / ((x + y).square().mean(-1, keepdim=True) + EPS).sqrt(),
            norm_inputs(),
        ),
        "swiglu": (ops.swiglu, lambda gate, up: gate * gate.sigmoid() * up, swiglu_inputs()),
        "situ": (
            lambda gate, up: ops.situ(gate, up, 2.0, 3.0),
            lambda gate, up: bounded(gate, 2.0) * gate.sigmoid() * bounded(up, 3.0),
            swiglu_inputs(),
        ),
        "rotary": (
            lambda x: ops.rotary(x, cosine, sine),
            lambda x: rotated(x, cosine, sine),
            rotary_inputs()[:1],
        ),
        "gated_delta_rule": (
            lambda *x: ops.gated_delta_rule(*x)[0],
            lambda *x: delta_rule(*x)[0],
            delta_inputs(5),
        ),
        "linear_cross_entropy": (
            lambda h, w: ops.linear_cross_entropy(h, w, targets, 0.5),
            lambda h, w: 0.5 * F.cross_entropy(h @ w.T, targets, reduction="sum"),
            (hidden, weight),
        ),
    }


def check_forward_mode(name, operation, formula, inputs):
    inputs = [x.detach() for x in inputs]
    directions = [torch.randn_like(x) for x in inputs]
    for i in range(len(inputs)):  # of each input, and of all

        def of_one(f, i=i):
            return lambda x: f(*inputs[:i], x, *inputs[i + 1 :])

        ours = jvp(of_one(operation), (inputs[i],), (directions[i],))
        expected = jvp(of_one(formula), (inputs[i],), (directions[i],))
        torch.testing.assert_close(ours, expected, msg=lambda text, i=i: f"{name}, {i}: {text}")
        assert ours[1].abs().max() > 1e-4, (name, i)
    expected = jvp(formula, tuple(inputs), tuple(directions))
    torch.testing.assert_close(jvp(operation, tuple(inputs), tuple(directions)), expected)
    for requires_grad in (False, True):
        with forward_ad.dual_level():
            leaves = [x.clone().requires_grad_(requires_grad) for x in inputs]
            duals = [forward_ad.make_dual(*x) for x in zip(leaves, directions, strict=True)]
            result = forward_ad.unpack_dual(operation(*duals))
            torch.testing.assert_close((result.primal, result.tangent), expected)


def check_functions(name, operation, formula, inputs):
    """Gradients, second derivatives, batches, and gradients of samples, by torch.func."""
    inputs = [x.detach() for x in inputs]

    def summed(f):
        return lambda *x: f(*x).square().sum()

    ours, theirs = grad(summed(operation))(*inputs), grad(summed(formula))(*inputs)
    torch.testing.assert_close(ours, theirs)
    leaf = inputs[0].clone().requires_grad_()  # by the kernels
    (plain,) = torch.autograd.grad(summed(operation)(leaf, *inputs[1:]), leaf)
    torch.testing.assert_close(ours, plain)
    assert ours.abs().max() > 1e-4, name
    torch.testing.assert_close(
        hessian(summed(operation))(*inputs), hessian(summed(formula))(*inputs)
    )
    for i, x in enumerate(inputs):
        batch = torch.stack([x, 0.5 * x, 0.25 * x])
        dims = [0 if j == i else None for j in range(len(inputs))]
        given = [batch if j == i else y for j, y in enumerate(inputs)]
        for f in (operation, grad(summed(operation))):
            one_by_one = [f(*inputs[:i], y, *inputs[i + 1 :]) for y in batch]
            batched = vmap(f, tuple(dims))(*given)
            torch.testing.assert_close(batched, torch.stack(one_by_one))


def kernels_only(ops):
    """Arguments of what has no formula of tensor operations: it is refused."""
    sources, query, key_gain = depth_inputs(3, (2, 4, 6), requires_grad=False)
    queries = torch.stack([query, key_gain])
    depth = ops.depth_attention_fused(sources, query, key_gain, EPS, True, True)
    one = ops.depth_attention_phase_one_fused(sources, queries, EPS, True)
    earlier = one[0][0], torch.zeros_like(one[2][0]), one[2][0]
    plain = *earlier, sources[1:], None, query, EPS, None, 0.0, True
    two = ops.depth_attention_phase_two_fused(*plain)
    x, pending, gain = (tensor.detach() for tensor in norm_inputs())
    total, normalized, inverse_rms = ops.add_rms_norm_fused(x, pending, gain, EPS, True)
    delta = [tensor.detach() for tensor in delta_inputs(35)]
    o, state, saved = ops.gated_delta_rule_fused(*delta, True)
    gate, up = (tensor.detach() for tensor in swiglu_inputs())
    hidden, weight, targets = loss_inputs(6, 3, 5)
    streams, mix, write, y = (tensor.detach() for tensor in stream_inputs())
    w, heads, _ = (tensor.detach() for tensor in head_inputs())
    arguments = {
        **mixers_backwards(ops),
        "depth_scores_fused": (sources, query, key_gain, True, True, EPS, 2),
        "weighted_sum_fused": (sources, torch.ones(3, 2, 4, 1, dtype=torch.float64)),
        "read_streams_fused": (streams, write),
        "write_streams_fused": (streams, mix, write, y),
        "project_normalised_fused": (streams, mix[0, :, :1].expand(2, 5).contiguous(), EPS),
        "read_gated_streams_fused": (*(t.detach() for t in gated_stream_inputs()[:4]), EPS),
        "sinkhorn_fused": (torch.randn(3, 3, 4), 2),
        "head_maps_fused": (heads, w, False),
        "depth_attention_fused": (sources, query, key_gain, EPS, False, True),
        "depth_attention_fused_backward": (depth[0], None, sources, query, key_gain, *depth[1:],
                                           [True] * 3),
        "depth_attention_phase_one_fused": (sources, queries, EPS, True),
        "depth_attention_phase_one_fused_backward": (
            one[0], one[2], sources, queries, *one[3:], [True] * 3,
        ),
        "depth_attention_phase_two_fused": plain,
        "depth_attention_phase_two_fused_backward": two_backwards(
            ops, earlier, sources, query, key_gain
        )[0],
        "depth_attention_phase_one_out": (sources, one[5], 0, queries, EPS, *one[:5]),
        "depth_attention_phase_one_backward_out": (
            sources, one[5], queries, one[3], one[4], one[0], one[2], None, sources, [False] * 3,
        ),
        "depth_attention_phase_two_out": (
            one[0][0], one[1], one[2], sources[1:], two[6], 0, None, None, queries, 0, EPS, gain,
            EPS, two[0], *two[2:5], None,
        ),
        "depth_attention_phase_two_backward_out": (
            two[0], None, two[0], sources[1:], two[6], query, None, EPS, *two[2:5], None,
            sources[1:], [False] * 2,
        ),
        "add_rms_norm_fused": (x, pending, gain, EPS, True),
        "add_rms_norm_fused_backward": (normalized, None, total, gain, inverse_rms),
        "swiglu_fused": (gate, up),
        "swiglu_fused_backward": (gate + up, gate, up),
        "situ_fused": (gate, up, 2.0, 3.0),
        "situ_fused_backward": (gate + up, gate, up, 2.0, 3.0),
        "rotary_fused": tuple(tensor.detach() for tensor in rotary_inputs()),
        "gated_delta_rule_fused": (*delta, False),
        "gated_delta_rule_fused_backward": (o, state, *delta, saved),
        "linear_cross_entropy_fused": (hidden.detach(), weight.detach(), targets, 0.5, True, True),
    }  # fmt: skip
    q, k, v = (torch.randn(2, 70, 4, 8) for _ in "qkv")
    try:
        o, lse = ops.tiled_causal_attention(q, k, v)
    except RuntimeError as error:
        assert "on a CPU with AVX-512" in str(error)
        o, lse = torch.zeros_like(q), torch.zeros(2, 4, 70)  # refused before they are looked at
    arguments["tiled_causal_attention"] = q, k, v
    arguments["tiled_causal_attention_backward"] = o, q, k, v, o, lse
    return arguments


def with_tangents(argument):
    if isinstance(argument, (list, tuple)) and argument and torch.is_tensor(argument[0]):
        return [with_tangents(tensor) for tensor in argument]
    if not torch.is_tensor(argument) or not argument.is_floating_point():
        return argument
    return forward_ad.make_dual(argument.clone(), torch.ones_like(argument))


def check_refused(ops, name, arguments):
    """With a tangent on every input, on the first alone, and under torch.func."""
    operation = getattr(ops, name)
    public = name.removesuffix("_backward").removesuffix("_fused")
    tensor = next(i for i, x in enumerate(arguments) if isinstance(x, (torch.Tensor, list)))
    with forward_ad.dual_level():
        first = [*arguments]
        first[tensor] = with_tangents(first[tensor])
        for given in (first, [with_tangents(argument) for argument in arguments]):
            refused(public, lambda given=given: operation(*given))

    def of_first(x):
        given = [*arguments]
        given[tensor] = [x, *arguments[tensor][1:]] if isinstance(arguments[tensor], list) else x
        result = operation(*given)
        while not torch.is_tensor(result):
            result = result[0]
        return result.sum()

    x = arguments[tensor][0] if isinstance(arguments[tensor], list) else arguments[tensor]
    refused(public, lambda: grad(of_first)(x))
    refused(public, lambda: jvp(of_first, (x,), (torch.ones_like(x),)))


def refused(name, action):
    try:
        action()
    except RuntimeError as error:
        assert f"{name}" in str(error), (name, error)
        assert "torch.func" in str(error) or "differentiated again" in str(error), (name, error)
    else:
        raise AssertionError(f"{name}: a transformation passed without an error")


def main():
    torch.manual_seed(0)
    torch.ops.load_library(sys.argv[1])
    ops = torch.ops.attnres
    transformed, kernels = formulas(ops), kernels_only(ops)
    known = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("attnres::")}
    assert known == {f"attnres::{name}" for name in [*transformed, *kernels]}, known
    for name, (operation, formula, inputs) in transformed.items():
        check_forward_mode(name, operation, formula, inputs)
        check_functions(name, operation, formula, inputs)
    for name, arguments in kernels.items():
        check_refused(ops, name, arguments)
    print(f"{len(known)} operations transformed, or refused, under torch {torch.__version__}")


if __name__ == "__main__":
    main()
