"""Checks the operations from Python: python ops_check.py <libattnres_ops.so>

Gradients against finite differences (gradcheck), the rules that PyTorch asks of custom operations
(opcheck), and the same results compiled as eager.
"""

import os
import sys

# Graphs that were compiled earlier would call the operations as they were then.
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

import torch
from torch.autograd import gradcheck
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


def check_values(ops):
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

    hidden, weight, targets = loss_inputs(5, 3, 7)
    assert gradcheck(
        lambda hidden, weight: ops.linear_cross_entropy(hidden, weight, targets, 0.25),
        (hidden, weight),
    )


def check_no_second_derivative(ops):
    sources, query, key_gain = depth_inputs(3, (4, 5))
    hidden, weight, targets = loss_inputs(5, 3, 7)
    for name, result, leaf in [
        ("depth_attention", ops.depth_attention(sources, query, key_gain, EPS).sum(), query),
        ("linear_cross_entropy", ops.linear_cross_entropy(hidden, weight, targets, 1.0), weight),
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
        opcheck(ops.depth_attention_fused.default, arguments)

    sources, query, key_gain = depth_inputs(3, (2, 4, 6), requires_grad=False)
    output, weights, scores, inverse_rms = ops.depth_attention_fused(sources, query, key_gain, EPS)
    gradients = torch.ones_like(output), torch.randn_like(weights)
    for grad_output, grad_weights in [gradients, (None, gradients[1]), (gradients[0], None)]:
        opcheck(
            ops.depth_attention_fused_backward.default,
            (grad_output, grad_weights, sources, query, key_gain, weights, scores, inverse_rms,
             [True, False, True]),
        )

    hidden, weight, targets = loss_inputs(6, 3, 5)
    opcheck(ops.linear_cross_entropy.default, (hidden, weight, targets, 0.5))
    for needed in [(True, True), (False, True), (True, False)]:
        opcheck(
            ops.linear_cross_entropy_fused.default,
            (hidden.detach(), weight.detach(), targets, 0.5, *needed),
        )


def check_compiled(ops, backend):
    def model(sources, query, key_gain, weight, targets):
        state = ops.depth_attention(sources, query, key_gain, EPS)
        weights = ops.depth_attention_weights(sources, query, key_gain, EPS)
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
