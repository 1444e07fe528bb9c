"""Depth attention: a softmax over the outputs of everything before a sublayer."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


def depth_attention(
    sources: Sequence[Tensor], query: Tensor, key_gain: Tensor, eps: float = 1e-6
) -> Tensor:
    """h = sum_i alpha_i v_i (arXiv 2603.15031, equations 2 to 4), token by token, where

        alpha = softmax_i( query . (key_gain * v_i / sqrt(mean(v_i^2) + eps)) )

    Args:
        sources: N >= 1 tensors v_i [..., D] of one shape, floating dtype and device.
        query: the pseudo-query w [D], in the sources' dtype or in float32.
        key_gain: the gain g [D] of the keys' RMSNorm, likewise.
        eps: added to the mean square.

    Returns:
        h [..., D], in the sources' dtype; softmax and statistics are float32, or float64 for
        float64 sources. Differentiable in sources, query and key_gain: once where the fused
        kernels run (CPU: float32, float64, bfloat16; CUDA: float32, bfloat16), any number of times
        elsewhere and in `depth_attention_composed`, which is what computes under torch.func (grad,
        jvp, vmap ..) and with forward-mode tangents.

    Raises:
        RuntimeError: naming the argument that is not as said.
    """
    return torch.ops.attnres.depth_attention(list(sources), query, key_gain, eps)


def depth_attention_weights(
    sources: Sequence[Tensor], query: Tensor, key_gain: Tensor, eps: float = 1e-6
) -> Tensor:
    """The depth weights of `depth_attention` (arXiv 2603.15031, equations 2 to 4).

        alpha = softmax_i( query . (key_gain * v_i / sqrt(mean(v_i^2) + eps)) )

    Args:
        sources: N >= 1 tensors v_i [..., D] of one shape, floating dtype and device.
        query: the pseudo-query w [D], in the sources' dtype or in float32.
        key_gain: the gain g [D] of the keys' RMSNorm, likewise.
        eps: added to the mean square.

    Returns:
        alpha [N, ...], float32, or float64 for float64 sources; over the sources it adds up to 1.
        Differentiable in sources, query and key_gain.

    Raises:
        RuntimeError: naming the argument that is not as said.
    """
    return torch.ops.attnres.depth_attention_weights(list(sources), query, key_gain, eps)


def depth_attention_composed(
    sources: Sequence[Tensor], query: Tensor, key_gain: Tensor, eps: float = 1e-6
) -> Tensor:
    """`depth_attention` composed of PyTorch's operations on every device.

    Arguments, result and errors are those of `depth_attention`. It is differentiable any number of
    times, and slower: the sources are copied.
    """
    return torch.ops.attnres.depth_attention_composed(list(sources), query, key_gain, eps)


class EarlierSources(NamedTuple):
    """What phase 1 leaves for a site, of the sources v_i that it read, with scores s_i."""

    output: Tensor  # o = sum_i e^(s_i - m) v_i, [..., D], not divided
    max: Tensor  # m = max_i s_i, [...], without a gradient
    sum: Tensor  # l = sum_i e^(s_i - m), [...]
    query: Tensor  # q = query * key_gain of the site, [D], float32 or float64


def fold_queries(queries: Sequence[Tensor], key_gains: Sequence[Tensor], source: Tensor) -> Tensor:
    """Pseudo-queries times key gains [S, D], in the dtype in which such sources are scored."""
    compute = torch.float64 if source.dtype == torch.float64 else torch.float32
    return torch.stack(list(queries)).to(compute) * torch.stack(list(key_gains)).to(compute)

def depth_attention_phase_one(
    sources: Sequence[Tensor],
    queries: Sequence[Tensor],
    key_gains: Sequence[Tensor],
    eps: float = 1e-6,
) -> list[EarlierSources]:
    """Phase 1 of `depth_attention` for many sites at once (arXiv 2603.15031, Algorithm 1).

    The sources are read once for all sites. `depth_attention_phase_two` merges, at each site, what
    came since.

    Args:
        sources: those that are finished when the first of the sites reads.
        queries: the pseudo-query of each site, as `depth_attention` takes them.
        key_gains: the gain of each site.
        eps: added to the mean square.

    Raises:
        RuntimeError: naming the argument that is not as said.
    """
    folded = fold_queries(queries, key_gains, sources[0])
    phase_one = torch.ops.attnres.depth_attention_phase_one(list(sources), folded, eps)
    return [EarlierSources(*site) for site in zip(*phase_one, folded.unbind(), strict=True)]


def depth_attention_phase_two(
    earlier: EarlierSources, recent: Sequence[Tensor], eps: float = 1e-6
) -> Tensor:
    """h [..., D] of a site: of the sources that phase 1 read, and of the `recent` ones after them.

    It is `depth_attention` of all of them to rounding; the same holds of dtypes and derivatives.
    """
    o, m, l, query = earlier
    return torch.ops.attnres.depth_attention_phase_two(o, m, l, list(recent), query, eps)


def depth_attention_phase_two_normed(
    earlier: EarlierSources | None,
    recent: Sequence[Tensor],
    pending: Tensor | None,
    query: Tensor,
    eps: float,
    weight: Tensor,
    norm_eps: float,
) -> tuple[Tensor, Tensor]:
    """Phase 2 with what stands around it at a site, in one pass: an addition and an RMSNorm.

        x = weight * h / sqrt(mean(h^2) + norm_eps)

    with h of the sources that phase 1 read, if there were any, and of the `recent` ones. For a
    backward it keeps x, the recent sources and some numbers a token.

    Args:
        earlier: what phase 1 left for the site; None: there was none.
        recent: the sources after those, at least one without `earlier`.
        pending: is added to the last recent source, which is their sum then; None: nothing is.
        query: the site's pseudo-query times its key gain [D], float32, or float64 for such sources.
        eps: of the keys' RMS.
        weight: of the norm [D], in the sources' dtype or in float32. For a backward it counts as
            1e-20 more: a weight of zero makes x as small.
        norm_eps: of the norm, zero or more.

    Returns:
        x [..., D], and the sum [..., D] of the last recent source and `pending`, without numbers
        where that is None; in the sources' dtype, and differentiable as `depth_attention` is.

    Raises:
        RuntimeError: naming the argument that is not as said.
    """
    o, m, l = (None, None, None) if earlier is None else earlier[:3]
    return torch.ops.attnres.depth_attention_phase_two_normed(
        o, m, l, list(recent), pending, query, eps, weight, norm_eps
    )
