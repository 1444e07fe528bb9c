"""Checks the operations from Python: python ops_check.py <libattnres_ops.so>

Gradients against finite differences (gradcheck), the rules that PyTorch asks of custom operations
(opcheck), and the same results compiled as eager.
"""

import os
import sys

# Graphs that were compiled earlier would call the operations as they were then.
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

EPS = 1e-6


def depth_inputs(num_sources, shape, dtype=torch.float64, requires_grad=True, query_dtype=None):
    width = shape[-1]
    sources = [torch.randn(shape, dtype=dtype) for _ in range(num_sources)]
    query = torch.randn(width, dtype=query_dtype or dtype) * 2
    key_gain = 1 + 0.3 * torch.randn(width, dtype=query_dtype or dtype)
    for tensor in [*sources, query, key_gain]:
        tensor.requires_grad_(requires_grad)
    return sources, query, key_gain


def composed(sources, query, key_gain, eps):
    values = torch.stack(sources)
    keys = key_gain * values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
    weights = torch.softmax(keys @ query, 0)
    return (weights.unsqueeze(-1) * values).sum(0), weights


def loss_inputs(tokens, width, vocabulary, dtype=torch.float64):
    hidden = torch.randn(tokens, width, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocabulary, width, dtype=dtype, requires_grad=True)
    targets = torch.randint(vocabulary, (tokens,))
    targets[::3] = -100
    return hidden, weight, targets


def norm_inputs(dtype=torch.float64, gain_dtype=None):
    state, pending = (torch.randn(2, 3, 5, dtype=dtype) for _ in range(2))
    gain = 1 + 0.3 * torch.randn(5, dtype=gain_dtype or dtype)
    return [tensor.requires_grad_() for tensor in (state, pending, gain)]


def swiglu_inputs(dtype=torch.float64):
    return [(2 * torch.randn(3, 7, dtype=dtype)).requires_grad_() for _ in range(2)]


def bounded(x, bound):
    return bound * torch.tanh(x / bound)


def rotary_inputs(dtype=torch.float64):
    """Two sequences of 4 tokens, 3 heads of 6 channels."""
    table = torch.float64 if dtype == torch.float64 else torch.float32
    angles = torch.randn(4, 1, 3, dtype=table)
    return [torch.randn(2, 4, 3, 6, dtype=dtype).requires_grad_(), angles.cos(), angles.sin()]


def delta_inputs(tokens, dtype=torch.float64, state=True):
    """Two sequences, 3 heads, keys of 4 channels and values of 5."""
    keys = 2, tokens, 3, 4
    inputs = [
        torch.randn(keys, dtype=dtype),
        torch.nn.functional.normalize(torch.randn(keys, dtype=dtype), dim=-1),
        torch.randn(2, tokens, 3, 5, dtype=dtype),
        -torch.rand(keys, dtype=dtype),
        torch.rand(2, tokens, 3, dtype=dtype),
        torch.randn(2, 3, 4, 5, dtype=dtype) if state else None,
    ]
    return [x if x is None else x.requires_grad_() for x in inputs]


def delta_rule(q, k, v, log_decay, beta, state):
    """o and the state, token by token."""
    outputs = []
    for t in range(q.shape[1]):
        state = log_decay[:, t, :, :, None].exp() * state
        lacking = v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        correction = beta[:, t, :, None] * lacking
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], correction)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(outputs, 1), state


def stream_inputs(dtype=torch.float64):
    """Two streams of 5 channels: H, A, b and y, of 3 tokens; maps in float32 or better."""
    wide = torch.promote_types(dtype, torch.float32)
    shapes = {(3, 2, 5): dtype, (3, 2, 2): wide, (3, 2): wide, (3, 5): dtype}
    return [torch.randn(shape, dtype=d).requires_grad_() for shape, d in shapes.items()]


def gated_stream_inputs(dtype=torch.float64):
    """Two streams of 5 channels, and maps of rank 3 in float32 or better: H, g, A, U, W."""
    wide = torch.promote_types(dtype, torch.float32)
    shapes = {(3, 2, 5): dtype, (2, 5): wide, (3, 10): wide, (10, 3): wide, (2, 10): wide}
    return [torch.randn(shape, dtype=d).requires_grad_() for shape, d in shapes.items()]


def gated(streams, gain, down, up, write):
    """What is read, and what is written by."""
    normed = gain * streams / (streams.square().mean(-1, keepdim=True) + EPS).sqrt()
    z = normed.flatten(-2) / streams.shape[-2]
    gates = (torch.nn.functional.silu(z @ down.T) @ up.T).sigmoid()
    return (gates.view_as(normed) * normed).mean(-2), (z @ write.T).sigmoid()


def sinkhorn_inputs(dtype=torch.float64):
    return [torch.randn(4, 3, 3, dtype=dtype).requires_grad_()]


def head_inputs(dtype=torch.float32):
    """W of 2 heads, and x of 3 tokens for the maps and for the transposed ones."""
    shapes = (2, 4, 5), (3, 2, 5), (3, 2, 4)
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


def weigh(sources, query, key_gain, factorised):
    """The scores of two heads."""
    keys = torch.stack(sources)
    if key_gain is not None:
        keys = key_gain * keys * torch.rsqrt(keys.square().mean(-1, keepdim=True) + EPS)
    if factorised:
        query, keys = F.elu(query) + 1, F.elu(keys) + 1
    return (query * keys).unflatten(-1, (2, -1)).sum(-1)


def divided(logits, rounds):
    matrices = logits.exp()
    for _ in range(rounds):
        matrices = matrices / matrices.sum(1, keepdim=True)
        matrices = matrices / matrices.sum(2, keepdim=True)
    return matrices


def projected(x, weight):
    return x @ weight.T * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def of_mixers(ops):
    """What mixers and layers compute, several of an operation: (name, operation, formula, inputs
    all of which have derivatives)."""
    sources, query, gain = depth_inputs(3, (4, 6))
    by_token = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    weights = [torch.randn(shape, dtype=torch.float64) for shape in ((3,), (3, 4, 2))]
    streams, mix, write, y = stream_inputs()
    projection = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    w, x, transposed = head_inputs()
    cases = [
        (
            "depth_scores",
            lambda q, g, *s, f=f: ops.depth_scores(list(s), q, g, EPS, 2, f),
            lambda q, g, *s, f=f: weigh(s, q, g, f),
            (q, gain, *sources),
        )
        for q in (query, by_token)
        for f in (False, True)
    ]
    cases += [
        (
            "depth_scores",
            lambda q, *s: ops.depth_scores(list(s), q, None, EPS, 2, True),
            lambda q, *s: weigh(s, q, None, True),
            (query, *sources),
        ),
        *(
            (
                "weighted_sum",
                lambda w, *s: ops.weighted_sum(list(s), w),
                lambda w, *s: sum(
                    (x.unflatten(-1, (2, -1)) * v[..., None]).flatten(-2)
                    for v, x in zip(w.reshape(3, -1, 1 if w.dim() == 1 else 2), s)
                ),
                (w.requires_grad_(), *sources),
            )
            for w in weights
        ),
        (
            "read_streams",
            ops.read_streams,
            lambda h, a: (a[..., None] * h).sum(1),
            (streams, write),
        ),
        (
            "write_streams",
            lambda h, b, y: ops.write_streams(h, None, b, y),
            lambda h, b, y: h + b[..., None] * y[:, None],
            (streams, write, y),
        ),
        (
            "write_streams",
            ops.write_streams,
            lambda h, a, b, y: a @ h + b[..., None] * y[:, None],
            (streams, mix, write, y),
        ),
        (
            "project_normalised",
            lambda x, w: ops.project_normalised(x, w, EPS),
            projected,
            (streams, projection),
        ),
        (
            "read_gated_streams",
            lambda *inputs: torch.cat(ops.read_gated_streams(*inputs, EPS), -1),
            lambda *inputs: torch.cat(gated(*inputs), -1),
            gated_stream_inputs(),
        ),
        ("sinkhorn", lambda x: ops.sinkhorn(x, 3), lambda x: divided(x, 3), sinkhorn_inputs()),
        ("head_maps", ops.head_maps, lambda x, w: torch.einsum("thk,hnk->thn", x, w), (x, w)),
        (
            "transposed_head_maps",
            ops.transposed_head_maps,
            lambda x, w: torch.einsum("thn,hnk->thk", x, w),
            (transposed, w),
        ),
    ]
    return cases


def folded(queries, key_gains):
    return torch.stack(queries) * torch.stack(key_gains)


def site(ops, sources, num_earlier, query):
    """h of one site in two phases."""
    (o,), (m,), (l,) = ops.depth_attention_phase_one(sources[:num_earlier], query[None], EPS)
    return ops.depth_attention_phase_two(o, m, l, sources[num_earlier:], query, EPS)


NORM_EPS = 0.1  # large: it matters where it stands


def normed_site(ops, sources, num_earlier, pending, query, gain):
    """x of one site in two phases, and the last source with what is pending."""
    earlier = [None, None, None]
    if num_earlier > 0:
        earlier = ops.depth_attention_phase_one(sources[:num_earlier], query[None], EPS)
        earlier = [of[0] for of in earlier]
    recent = sources[num_earlier:]
    return ops.depth_attention_phase_two_normed(
        *earlier, recent, pending, query, EPS, gain, NORM_EPS
    )


def normed_formula(sources, pending, query, gain):
    total = sources[-1] + pending
    h, _ = composed([*sources[:-1], total], query, torch.ones_like(query), EPS)
    return gain * h / (h.square().mean(-1, keepdim=True) + NORM_EPS).sqrt(), total


def check_values(ops):
    state, pending, gain = norm_inputs()
    h, normalized = ops.add_rms_norm(state, pending, gain, EPS)
    expected = torch.nn.functional.rms_norm(state + pending, (5,), gain, EPS)
    torch.testing.assert_close((h, normalized), (state + pending, expected))
    torch.testing.assert_close(ops.rms_norm(h, gain, EPS), expected)
    assert not torch.allclose(ops.rms_norm(state, gain, EPS), expected)

    gate, up = swiglu_inputs()
    torch.testing.assert_close(ops.swiglu(gate, up), torch.nn.functional.silu(gate) * up)
    assert not torch.allclose(ops.swiglu(up, gate), ops.swiglu(gate, up))

    gated = bounded(gate, 2.0) * gate.sigmoid()
    torch.testing.assert_close(ops.situ(gate, up, 2.0, 3.0), gated * bounded(up, 3.0))
    torch.testing.assert_close(ops.situ(gate, up, 2.0, 0.0), gated * up)
    assert not torch.allclose(ops.situ(up, gate, 2.0, 3.0), ops.situ(gate, up, 2.0, 3.0))

    x, cosine, sine = rotary_inputs()
    a, b = x.chunk(2, -1)
    turned = torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)
    torch.testing.assert_close(ops.rotary(x, cosine, sine), turned)
    assert not torch.allclose(ops.rotary(x, cosine, -sine), turned)

    for tokens in (1, 40):
        inputs = delta_inputs(tokens)
        expected = delta_rule(*inputs)
        torch.testing.assert_close(ops.gated_delta_rule(*inputs), expected)
        with torch.no_grad():  # another kernel
            torch.testing.assert_close(ops.gated_delta_rule(*inputs), expected)
        assert not torch.allclose(ops.gated_delta_rule(*inputs[:5], None)[0], expected[0])

    for _, operation, formula, inputs in of_mixers(ops):
        expected = formula(*inputs)
        torch.testing.assert_close(operation(*inputs), expected)
        with torch.no_grad():  # past the dispatcher
            torch.testing.assert_close(operation(*inputs), expected)
            assert not torch.allclose(operation(inputs[0].flip(-1), *inputs[1:]), expected)

    sources, query, key_gain = depth_inputs(5, (3, 2, 7))
    output, weights = composed(sources, query, key_gain, EPS)
    torch.testing.assert_close(ops.depth_attention(sources, query, key_gain, EPS), output)
    torch.testing.assert_close(ops.depth_attention_weights(sources, query, key_gain, EPS), weights)
    assert weights.max() > 3 * weights.min()
    swapped = [sources[1], sources[0], *sources[2:]]
    assert not torch.allclose(ops.depth_attention(swapped, query, key_gain, EPS)[0], sources[0][0])
    assert not torch.allclose(
        ops.depth_attention_weights(swapped, query, key_gain, EPS), weights, atol=1e-3
    )

    for num_earlier in (1, 3, 5):
        h = site(ops, sources, num_earlier, query * key_gain)
        torch.testing.assert_close(h, output)
    assert not torch.allclose(site(ops, sources, 3, query), output)

    pending = torch.randn_like(sources[0])
    expected = normed_formula(sources, pending, query, key_gain)
    for num_earlier in (0, 1, 4):
        normed = normed_site(ops, sources, num_earlier, pending, query, key_gain)
        torch.testing.assert_close(normed, expected)
    other, _ = normed_site(ops, sources, 4, pending + 1, query, key_gain)
    assert not torch.allclose(other, expected[0])
    alone, nothing = normed_site(ops, [*sources[:-1], expected[1]], 4, None, query, key_gain)
    torch.testing.assert_close(alone, expected[0])
    assert nothing.numel() == 0

    hidden, weight, targets = loss_inputs(9, 4, 6)
    expected = torch.nn.functional.cross_entropy(
        hidden @ weight.T, targets, ignore_index=-100, reduction="sum"
    )
    torch.testing.assert_close(
        ops.linear_cross_entropy(hidden, weight, targets, 0.5), expected * 0.5
    )


def check_gradients(ops):
    for num_sources, shape in [(1, (3, 4)), (4, (2, 3, 5)), (3, (7,))]:
        sources, query, key_gain = depth_inputs(num_sources, shape)
        for operation in (ops.depth_attention, ops.depth_attention_weights):
            assert gradcheck(
                lambda query, key_gain, *sources: operation(list(sources), query, key_gain, EPS),
                (query, key_gain, *sources),
            )
    sources, query, key_gain = depth_inputs(3, (4, 5))
    sources[1].requires_grad_(False)
    query.requires_grad_(False)
    assert gradcheck(
        lambda key_gain, a, b: ops.depth_attention([a, sources[1], b], query, key_gain, EPS),
        (key_gain, sources[0], sources[2]),
    )

    # Two sites share phase 1; the second reads two sources more.
    sources, query, key_gain = depth_inputs(4, (2, 3, 5))
    other_query, other_gain = (tensor.requires_grad_() for tensor in torch.randn(2, 5).double())

    def both_sites(query, key_gain, other_query, other_gain, *sources):
        queries = folded([query, other_query], [key_gain, other_gain])
        outputs, maxima, sums = ops.depth_attention_phase_one(sources[:2], queries, EPS)
        return [
            ops.depth_attention_phase_two(o, m, l, recent, q, EPS)
            for o, m, l, recent, q in zip(outputs, maxima, sums, ([], sources[2:]), queries)
        ]

    assert gradcheck(both_sites, (query, key_gain, other_query, other_gain, *sources))
    sources[0].requires_grad_(False)
    sources[3].requires_grad_(False)
    assert gradcheck(both_sites, (query, key_gain, other_query, other_gain, *sources))

    pending, gain = (torch.randn(shape).double().requires_grad_() for shape in ((2, 3, 5), 5))
    for num_earlier in (0, 2):
        assert gradcheck(
            lambda pending, query, gain, *sources, n=num_earlier: normed_site(
                ops, sources, n, pending, query, gain
            ),
            (pending, query, gain, *sources),
        )

    assert gradcheck(lambda *inputs: ops.add_rms_norm(*inputs, EPS), norm_inputs())
    assert gradcheck(lambda x, gain: ops.rms_norm(x, gain, EPS), norm_inputs()[1:])
    assert gradcheck(ops.gated_delta_rule, delta_inputs(3))
    assert gradcheck(lambda *inputs: ops.gated_delta_rule(*inputs, None), delta_inputs(2)[:5])
    assert gradcheck(ops.swiglu, swiglu_inputs())
    for linear_beta in (3.0, 0.0):
        assert gradcheck(ops.situ, (*swiglu_inputs(), 2.0, linear_beta))
    for _, operation, _, inputs in of_mixers(ops):
        if inputs[0].dtype == torch.float64:
            assert gradcheck(operation, inputs)
    assert gradcheck(ops.rotary, rotary_inputs())
    assert gradgradcheck(ops.rotary, rotary_inputs())

    hidden, weight, targets = loss_inputs(5, 3, 7)
    assert gradcheck(
        lambda hidden, weight: ops.linear_cross_entropy(hidden, weight, targets, 0.25),
        (hidden, weight),
    )


def check_no_second_derivative(ops):
    sources, query, key_gain = depth_inputs(3, (4, 5))
    hidden, weight, targets = loss_inputs(5, 3, 7)
    of_one = {
        name: (operation(*inputs).sum(), inputs[-1])
        for name, operation, _, inputs in of_mixers(ops)
        if not name.endswith("head_maps")  # have no backward of their own
    }
    for name, result, leaf in [
        *((name, *of) for name, of in of_one.items()),
        ("depth_attention", ops.depth_attention(sources, query, key_gain, EPS).sum(), query),
        ("linear_cross_entropy", ops.linear_cross_entropy(hidden, weight, targets, 1.0), weight),
        ("depth_attention_phase_two", site(ops, sources, 2, query * key_gain).sum(), sources[2]),
        ("depth_attention_phase_one", site(ops, sources, 3, query * key_gain).sum(), sources[0]),
        ("depth_attention_phase_two", normed_site(ops, sources, 2, sources[0], query, key_gain)[0]
         .sum(), key_gain),
        ("add_rms_norm", ops.rms_norm(hidden, weight[0], EPS).sum(), hidden),
        ("swiglu", ops.swiglu(hidden, hidden).sum(), hidden),
        ("situ", ops.situ(hidden, hidden, 2.0, 3.0).sum(), hidden),
        ("gated_delta_rule", ops.gated_delta_rule(*(delta := delta_inputs(3)))[0].sum(), delta[0]),
    ]:
        (gradient,) = torch.autograd.grad(result, leaf, create_graph=True)
        try:
            gradient.square().sum().backward()
        except RuntimeError as error:
            assert name in str(error) and "differentiated again" in str(error), error
        else:
            raise AssertionError(f"{name}: a second derivative passed without an error")


def check_rules(ops):
    for dtype, query_dtype in [
        (torch.float32, None),
        (torch.float64, None),
        (torch.bfloat16, torch.float32),
    ]:
        arguments = (*depth_inputs(3, (2, 4, 6), dtype, query_dtype=query_dtype), EPS)
        opcheck(ops.depth_attention.default, arguments)
        opcheck(ops.depth_attention_weights.default, arguments)
        opcheck(ops.depth_attention_fused.default, (*arguments, True, True))
        sources, query, key_gain = arguments[:3]
        queries = (query * key_gain)[None].to(torch.promote_types(dtype, torch.float32)).detach()
        queries = torch.cat([queries, 0.5 * queries]).requires_grad_()
        opcheck(ops.depth_attention_phase_one.default, (sources, queries, EPS))
        opcheck(ops.depth_attention_phase_one_fused.default, (sources, queries, EPS, True))
        (o, _), (m, _), (l, _) = ops.depth_attention_phase_one(sources[:1], queries, EPS)
        earlier = [tensor.detach().requires_grad_() for tensor in (o, m, l)]
        earlier[1].requires_grad_(False)
        for recent in (sources[1:], []):
            of_site = queries.detach()[0].requires_grad_()
            opcheck(ops.depth_attention_phase_two.default, (*earlier, recent, of_site, EPS))
            plain = *earlier, recent, None, of_site, EPS, None, 0.0, True
            opcheck(ops.depth_attention_phase_two_fused.default, plain)
        pending = torch.randn_like(sources[0]).requires_grad_()
        for of_earlier, added in [(earlier, pending), ([None] * 3, pending), (earlier, None)]:
            inputs = *of_earlier, sources[1:], added, of_site, EPS, key_gain, NORM_EPS
            opcheck(ops.depth_attention_phase_two_normed.default, inputs)
            opcheck(ops.depth_attention_phase_two_fused.default, (*inputs, True))
        state, pending, gain = norm_inputs(dtype, query_dtype)
        opcheck(ops.add_rms_norm.default, (state, pending, gain, EPS))
        opcheck(ops.rms_norm.default, (state, gain, EPS))
        for added in (pending, None):
            opcheck(ops.add_rms_norm_fused.default, (state, added, gain, EPS, True))
        for state in (True, False):
            opcheck(ops.gated_delta_rule.default, delta_inputs(35, dtype, state))
        opcheck(ops.swiglu.default, swiglu_inputs(dtype))
        opcheck(ops.swiglu_fused.default, swiglu_inputs(dtype))
        opcheck(ops.situ.default, (*swiglu_inputs(dtype), 2.0, 3.0))
        opcheck(ops.situ_fused.default, (*swiglu_inputs(dtype), 2.0, 3.0))
        opcheck(ops.rotary.default, rotary_inputs(dtype))
        opcheck(ops.rotary_fused.default, rotary_inputs(dtype))
        check_mixers_rules(ops, dtype)

    # What no gradient needs is not there.
    sources, query, key_gain = depth_inputs(3, (2, 4, 6), requires_grad=False)
    queries = torch.stack([query, key_gain])
    *_, scores, weights, inverse_rms = ops.depth_attention_phase_one_fused(
        sources, queries, EPS, False
    )
    assert scores.numel() == weights.numel() == len(inverse_rms) == 0
    output, weights, scores, inverse_rms = ops.depth_attention_fused(
        sources, query, key_gain, EPS, False, False
    )
    assert weights.numel() == scores.numel() == inverse_rms.numel() == 0
    torch.testing.assert_close(output, ops.depth_attention(sources, query, key_gain, EPS))

    outputs, _, sums, scores, weights, inverse_rms = ops.depth_attention_phase_one_fused(
        sources, queries, EPS, True
    )
    saved = sources, queries, scores, weights, inverse_rms
    opcheck(
        ops.depth_attention_phase_one_fused_backward.default,
        ([o.clone() for o in outputs], torch.ones_like(sums), *saved, [True, False, True]),
    )
    o, m, l = outputs[0], torch.zeros_like(sums[0]), sums[0]
    for arguments in two_backwards(ops, (o, m, l), sources, query, key_gain):
        opcheck(ops.depth_attention_phase_two_fused_backward.default, arguments)
    state, pending, gain = (tensor.detach() for tensor in norm_inputs())
    total, normalized, inverse_rms = ops.add_rms_norm_fused(state, pending, gain, EPS, True)
    for later in (None, pending):
        opcheck(
            ops.add_rms_norm_fused_backward.default, (normalized, later, total, gain, inverse_rms)
        )
    inputs = [tensor.detach() for tensor in delta_inputs(35)]
    opcheck(ops.gated_delta_rule_fused.default, (*inputs, False))
    o, state, saved = ops.gated_delta_rule_fused(*inputs, True)
    opcheck(ops.gated_delta_rule_fused_backward.default, (o.clone(), state.clone(), *inputs, saved))
    gate, up = (tensor.detach() for tensor in swiglu_inputs())
    opcheck(ops.swiglu_fused_backward.default, (gate + up, gate, up))
    opcheck(ops.situ_fused_backward.default, (gate + up, gate, up, 2.0, 3.0))

    output, weights, scores, inverse_rms = ops.depth_attention_fused(
        sources, query, key_gain, EPS, True, True
    )
    gradients = torch.ones_like(output), torch.randn_like(weights)
    for grad_output, grad_weights in [gradients, (None, gradients[1]), (gradients[0], None)]:
        opcheck(
            ops.depth_attention_fused_backward.default,
            (grad_output, grad_weights, sources, query, key_gain, weights, scores, inverse_rms,
             [True, False, True]),
        )

    for dtype in (torch.float32, torch.bfloat16):
        q = torch.randn(2, 70, 4, 8).to(dtype).requires_grad_()
        k, v = (torch.randn(2, 70, 2, 8).to(dtype).requires_grad_() for _ in "kv")
        try:
            o, lse = (tensor.detach() for tensor in ops.tiled_causal_attention(q, k, v))
        except RuntimeError as error:
            assert "on a CPU with AVX-512" in str(error)
            continue
        opcheck(ops.tiled_causal_attention.default, (q, k, v))
        inputs = (tensor.detach() for tensor in (q, k, v))
        opcheck(ops.tiled_causal_attention_backward.default, (o.clone(), *inputs, o, lse))

    hidden, weight, targets = loss_inputs(6, 3, 5)
    opcheck(ops.linear_cross_entropy.default, (hidden, weight, targets, 0.5))
    for needed in [(True, True), (False, True), (True, False)]:
        opcheck(
            ops.linear_cross_entropy_fused.default,
            (hidden.detach(), weight.detach(), targets, 0.5, *needed),
        )


def two_backwards(ops, earlier, sources, query, gain):
    """Arguments of phase 2's backward: with everything, and without."""
    recent, pending = sources[1:], sources[0]
    arguments = []
    for of_earlier, added, norm in [(earlier, pending, gain), (earlier, None, None),
                                    ([None] * 3, pending, gain)]:  # fmt: skip
        x, total, scores, weights, earlier_weight, rho, inverse_rms = (
            ops.depth_attention_phase_two_fused(
                *of_earlier, recent, added, query, EPS, norm, NORM_EPS, True
            )
        )
        read = recent if added is None else [*recent[:-1], total]
        arguments.append(
            (torch.ones_like(x), None if added is None else added + 1, x, read, query, norm,
             NORM_EPS, scores, weights, None if of_earlier[0] is None else earlier_weight,
             None if norm is None else rho, inverse_rms, [False, True])
        )  # fmt: skip
    return arguments


def check_mixers_rules(ops, dtype):
    wide = torch.promote_types(dtype, torch.float32)
    sources, query, gain = depth_inputs(3, (4, 6), dtype, query_dtype=wide)
    streams, mix, write, y = stream_inputs(dtype)
    projection = torch.randn(4, 5, dtype=dtype, requires_grad=True)
    weights = torch.randn(3, 4, 2, dtype=wide, requires_grad=True)
    for arguments in [(query, gain, EPS, 2, True), (query, None, EPS, 3, False)]:
        opcheck(ops.depth_scores.default, (sources, *arguments))
    for w in (weights, weights[:, 0, 0]):
        opcheck(ops.weighted_sum.default, (sources, w.detach().requires_grad_()))
    opcheck(ops.read_streams.default, (streams, write))
    for a in (mix, None):
        opcheck(ops.write_streams.default, (streams, a, write, y))
    opcheck(ops.project_normalised.default, (streams, projection, EPS))
    opcheck(ops.depth_scores_fused.default, (sources, query, gain, True, True, EPS, 2))
    opcheck(ops.depth_scores_fused.default, (sources, query, None, False, False, EPS, 3))
    opcheck(ops.weighted_sum_fused.default, (sources, weights))
    opcheck(ops.read_streams_fused.default, (streams, write))
    opcheck(ops.write_streams_fused.default, (streams, mix, write, y))
    opcheck(ops.project_normalised_fused.default, (streams, projection, EPS))
    opcheck(ops.read_gated_streams.default, (*gated_stream_inputs(dtype), EPS))
    opcheck(ops.read_gated_streams_fused.default, (*gated_stream_inputs(dtype)[:4], EPS))
    if dtype == torch.bfloat16:
        heads = [tensor.detach() for tensor in head_inputs(dtype)]
        opcheck(ops.head_maps.default, (heads[1], heads[0]))
        opcheck(ops.transposed_head_maps.default, (heads[2], heads[0]))
        opcheck(ops.head_maps_fused.default, (heads[1], heads[0], False))
    else:
        opcheck(ops.sinkhorn.default, (*sinkhorn_inputs(dtype), 2))
        by_entry = torch.randn(3, 3, 4, dtype=dtype, requires_grad=True)
        opcheck(ops.sinkhorn_fused.default, (by_entry, 2))
    for name, arguments in mixers_backwards(ops, dtype).items():
        opcheck(getattr(ops, name).default, arguments)


def mixers_backwards(ops, dtype=torch.float64):
    """Arguments of the backward operations."""
    wide = torch.promote_types(dtype, torch.float32)
    sources, query, gain = depth_inputs(3, (4, 6), dtype, requires_grad=False, query_dtype=wide)
    streams, mix, write, y = (tensor.detach() for tensor in stream_inputs(dtype))
    projection, weights = torch.randn(4, 5).to(dtype), torch.randn(3, 4, 2).to(wide)
    scores, inverse_rms = ops.depth_scores_fused(sources, query, gain, True, True, EPS, 2)
    product, rho = ops.project_normalised_fused(streams, projection, EPS)
    matrices = torch.randn(3, 3, 4, dtype=wide)
    gated_streams = [tensor.detach() for tensor in gated_stream_inputs(dtype)[:4]]
    x, projected = ops.read_gated_streams_fused(*gated_streams, EPS)

    def places():  # the first added to, the second not wanted
        return [torch.ones(shape, dtype=wide) for shape in ((4, 6), (0,), (4, 6))]

    def place():
        return torch.ones(3, 2, 5, dtype=wide)

    accumulate = [True, False, False]
    return {
        "depth_scores_fused_backward": (
            scores.clone(), sources, query, gain, inverse_rms, True, 2, places(), accumulate,
        ),
        "weighted_sum_fused_backward": (
            sources[0] + 1, sources, weights, True, places(), accumulate,
        ),
        "read_streams_fused_backward": (y + 1, streams, write, True, place(), True),
        "write_streams_fused_backward": (
            streams + 1, streams, mix, write, y, [True, False, True], place(), False,
        ),
        "read_gated_streams_fused_backward": (
            x + 1, projected + 1, *gated_streams, projected, EPS, place(), True,
        ),
        "project_normalised_fused_backward": (
            product.clone(), rho.clone(), streams, projection, rho, True, place(), True,
        ),
        "sinkhorn_fused_backward": (matrices.clone(), matrices, 2),
    }  # fmt: skip


def mixed(ops, sources, query, key_gain):
    """What mixers compute: a weighted sum, and two streams that are read and written."""
    scores = ops.depth_scores(sources, query, key_gain, EPS, 2, True)
    mean = ops.weighted_sum(sources, scores / scores.sum(0))
    streams = torch.stack(sources[:2], 2).flatten(0, 1)
    projection = torch.linspace(-1, 1, 8 * 16).view(8, 16)
    maps = ops.project_normalised(streams, projection, EPS)
    read = ops.read_streams(streams, maps[:, :2])
    mix = ops.sinkhorn(maps[:, 2:6].unflatten(-1, (2, 2)), 3)
    return mean + ops.write_streams(streams, mix, maps[:, 6:], read).mean(1).view(mean.shape)


def check_compiled(ops, backend):
    cosine, sine = (f(torch.arange(6.0)[:, None, None] * torch.tensor([1, 0.1])) for f in
                    (torch.cos, torch.sin))  # fmt: skip

    def model(sources, query, key_gain, weight, targets):
        tokens = sources[0].shape[1]
        state = ops.depth_attention(sources, query, key_gain, EPS)
        state = state + site(ops, sources, 2, query * key_gain)
        for num_earlier in (0, 2):
            state = state + sum(
                normed_site(ops, sources, num_earlier, sources[1], query, key_gain)
            )
        weights = ops.depth_attention_weights(sources, query, key_gain, EPS)
        total, normalized = ops.add_rms_norm(state, sources[0], key_gain, EPS)
        heads = normalized.unflatten(-1, (2, 4))
        turned = ops.rotary(heads, cosine[:tokens], sine[:tokens]).flatten(-2)
        state = ops.swiglu(turned, total) + ops.rms_norm(state, key_gain, EPS)
        state = state + ops.situ(state, total, 2.0, 3.0)
        q, k, v = (torch.tanh(x).unflatten(-1, (2, 4)) for x in (state, total, normalized))
        delta, memory = ops.gated_delta_rule(q, k, v, -k.square(), q.sum(-1).sigmoid(), None)
        state = state + delta.flatten(-2) + memory.mean() + mixed(ops, sources, query, key_gain)
        loss = ops.linear_cross_entropy(torch.tanh(state).flatten(0, 1), weight, targets, 0.1)
        return loss + weights.square().sum()

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for tokens in (4, 6):  # the second size compiles with symbolic shapes
        sources, query, key_gain = depth_inputs(3, (2, tokens, 8), torch.float32)
        weight = torch.randn(11, 8, requires_grad=True)
        targets = torch.randint(11, (2 * tokens,))
        leaves = [*sources, query, key_gain, weight]
        results = []
        for run in (model, compiled):
            loss = run(sources, query, key_gain, weight, targets)
            results.append([loss, *torch.autograd.grad(loss, leaves)])
        torch.testing.assert_close(results[0], results[1])
        with torch.no_grad():
            inputs = sources, query, key_gain, weight, targets
            torch.testing.assert_close(compiled(*inputs), results[0][0].detach())


def main():
    torch.manual_seed(0)
    torch.ops.load_library(sys.argv[1])
    ops = torch.ops.attnres
    check_values(ops)
    check_gradients(ops)
    check_no_second_derivative(ops)
    check_rules(ops)
    for backend in ("aot_eager", "inductor"):
        check_compiled(ops, backend)
    print(f"operations correct under torch {torch.__version__}")


if __name__ == "__main__":
    main()
