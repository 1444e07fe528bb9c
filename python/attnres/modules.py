"""Attention Residuals as modules that take the place of `x = x + sublayer(norm(x))`."""

from collections.abc import Sequence
from math import isqrt
from operator import index
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .operations import (
    EarlierSources,
    depth_attention,
    depth_attention_phase_one,
    depth_attention_phase_two,
    depth_attention_phase_two_normed,
    depth_attention_weights,
    fold_queries,
)


class DepthState(NamedTuple):
    """What a batch of tokens carries from sublayer to sublayer, in place of the residual stream.

    A tuple of tensors, never changed in place: it may cross torch.utils.checkpoint, but for the
    reentrant kind, which makes a plain tuple of it and loses its gradients.
    """

    blocks: tuple[Tensor, ...]  # b_0 .. b_{n-1}, each [..., D]: the embedding, finished blocks
    partial: Tensor | None  # the sum of the current block's outputs; None: there is none yet
    site: int  # the sublayers that have written
    # What phase 1 left for the next site and those after it that share its pass, and how many of
    # the blocks it read. Derived from the blocks: it belongs to no more than these sites.
    earlier: tuple[EarlierSources, ...] = ()
    num_earlier: int = 0
    pending: Tensor | None = None  # an output that is to be added to `partial` yet
    # Whether its site was read by read_normed, whose next one adds the output: it may be pending.
    adds_later: bool = False
    stream: Tensor | None = None  # of `DeltaAttnRes`: the residual stream, which stays

    @property
    def block_sum(self) -> Tensor | None:
        """The sum of all the current block's outputs; None: there are none yet."""
        return self.partial if self.pending is None else self.partial + self.pending

    @property
    def sources(self) -> list[Tensor]:
        """What the next site attends to."""
        return [*self.blocks] if self.partial is None else [*self.blocks, self.block_sum]

    @property
    def num_sources(self) -> int:
        return len(self.blocks) + (0 if self.partial is None else 1)


class BlockAttnRes(nn.Module):
    """Block Attention Residuals (arXiv 2603.15031, section 3.2 and Fig. 2).

    Instead of one residual stream, each sublayer l reads

        h_l = sum_i alpha_i b_i,   alpha = softmax_i( w_l . (g_l * b_i / RMS(b_i)) )

    over b_0, the token embedding; b_1 .. b_{n-1}, the sums of the finished blocks' outputs; and,
    unless l is the first of its block, the sum of the current block's outputs so far. After the
    last sublayer the output site reads all of them, with a pseudo-query of its own. A Transformer

        for layer in layers:
            x = x + layer.attention(layer.attention_norm(x))
            x = x + layer.mlp(layer.mlp_norm(x))
        logits = head(norm(x))

    becomes, with `mix = BlockAttnRes(width, num_sublayers=2 * len(layers), block_size=4)`,

        state = mix.start(x)
        for layer in layers:
            state = mix.write(state, layer.attention(layer.attention_norm(mix.read(state))))
            state = mix.write(state, layer.mlp(layer.mlp_norm(mix.read(state))))
        logits = head(norm(mix.output(state)))

    or, with norms that are RMSNorms, in fewer passes over memory and with fewer tensors kept:

        state = mix.start(x)
        for layer in layers:
            x, state = mix.read_normed(state, layer.attention_norm.weight, eps)
            state = mix.write(state, layer.attention(x))
            x, state = mix.read_normed(state, layer.mlp_norm.weight, eps)
            state = mix.write(state, layer.mlp(x))
        logits = head(mix.output_normed(state, norm.weight, eps))

    Args:
        width: D, the size of the embedding.
        num_sublayers: L; attention and MLP count one each.
        block_size: S, 1 to L sublayers (not Transformer layers) in a block. The last block may be
            shorter.
        eps: of the keys' RMS.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not positive, or a block has more than L sublayers.

    It runs in two phases (Algorithm 1): the sites of a block, or of as many whole blocks as there
    are sites in sqrt(L), share one pass over the blocks that are finished when the first of them
    reads; each site then merges what came since.

    Parameters, for each of the L + 1 sites: the pseudo-query w_l [D], zero at the start, where
    every h is the mean of its sources; and the key gain g_l [D], one. Weight decay would pull the
    gains to zero: leave it off for both (`no_weight_decay`). What is saved has the block size with
    it, in the buffer `sublayers_a_block`: parameters of one are not loaded into another's module.

    Its operations are differentiable once, backward, by the fused kernels. Under torch.func (grad,
    jvp, vmap ..) and with forward-mode tangents they are composed of PyTorch's operations.
    """

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        block_size: int,
        *,
        eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Makes the parameters of all sites; the arguments are the class's."""
        super().__init__()
        self.width = self._positive("width", width)
        self.num_sublayers = self._positive("num_sublayers", num_sublayers)
        self.block_size = self._positive("block_size", block_size)
        if self.block_size > self.num_sublayers:
            raise ValueError(
                f"{type(self).__name__}: block_size must be 1 to num_sublayers={num_sublayers} "
                f"(attention and MLP count one each), but is {block_size}"
            )
        self.eps = eps
        # Sites that share phase 1, where both phases together read least.
        self._group = max(1, isqrt(self.num_sublayers) // self.block_size) * self.block_size
        self._make_parameters({"device": device, "dtype": dtype})
        self.register_buffer("sublayers_a_block", torch.tensor(self.block_size, device=device))

    def _make_parameters(self, like: dict) -> None:
        self._sites = range(self.num_sublayers + 1)
        self.pseudo_query = nn.ParameterList(torch.zeros(self.width, **like) for _ in self._sites)
        self.key_gain = nn.ParameterList(torch.ones(self.width, **like) for _ in self._sites)

    def start(self, embedding: Tensor) -> DepthState:
        """The state before the first sublayer.

        Args:
            embedding: b_0 [..., D], of a floating dtype, which the state keeps.

        Raises:
            ValueError: of another width, or of integers.
        """
        self._check_source("the embedding", embedding, (*embedding.shape[:-1], self.width))
        return DepthState((embedding,), None, 0)

    def read(self, state: DepthState) -> Tensor:
        """h [..., D], the next sublayer's input before its norm."""
        self._check_read(state)
        return self._mixed(state)

    def read_normed(
        self, state: DepthState, weight: Tensor, eps: float
    ) -> tuple[Tensor, DepthState]:
        """x = weight * h / sqrt(mean(h^2) + eps) [..., D], the next sublayer's input.

        That is `read` and an RMSNorm in one pass, to rounding: the norm's sums are float32 or
        better, and x is rounded once. The addition of the output before it is in the same pass,
        where that site was read so too. For the backward x is kept, not h, and x is what the
        sublayer keeps of its input anyway.

        Args:
            state: what start or write returned.
            weight: of the RMSNorm, [D], in the state's dtype or float32. Where a gradient is
                wanted it counts as 1e-20 more, so that x is never exactly zero.
            eps: of the RMSNorm, a number: nn.RMSNorm's default is none.

        Returns:
            x, and the state for `write`, in which the block's outputs so far are added up.
        """
        self._check_read(state)
        x, partial = self._normed(state, weight, eps)
        return x, state._replace(partial=partial, pending=None, adds_later=True)

    def output(self, state: DepthState) -> Tensor:
        """h [..., D] of the output site, which the last norm and the head read."""
        self._check_output(state)
        return self._mixed(state)

    def output_normed(self, state: DepthState, weight: Tensor, eps: float) -> Tensor:
        """`output` and an RMSNorm in one pass, as `read_normed` does it: what the head reads."""
        self._check_output(state)
        return self._normed(state, weight, eps)[0]

    def _check_read(self, state: DepthState) -> None:
        if self._site_of(state) == self.num_sublayers:
            raise RuntimeError(
                f"{type(self).__name__}: a sublayer reads after the last of "
                f"num_sublayers={self.num_sublayers}; what the head reads is output(state)"
            )

    def _check_output(self, state: DepthState) -> None:
        if self._site_of(state) != self.num_sublayers:
            raise RuntimeError(
                f"{type(self).__name__}: the output is read after {state.site} outputs of "
                f"num_sublayers={self.num_sublayers}; attention and MLP count one each"
            )

    def _normed(
        self, state: DepthState, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor | None]:
        """x, and the sum of the block's outputs."""
        if not isinstance(weight, Tensor):
            raise TypeError(
                f"{type(self).__name__}: weight must be the norm's weight, a tensor, but is a "
                f"{type(weight).__name__}"
            )
        if eps is None:
            raise TypeError(
                f"{type(self).__name__}: eps must be a number; nn.RMSNorm(.., eps=None) takes that "
                "of its input's dtype"
            )
        recent = [*state.blocks[state.num_earlier :]]
        if state.partial is not None:
            recent.append(state.partial)
        if state.earlier:
            earlier, query = state.earlier[0], state.earlier[0].query
        else:
            pseudo_query, key_gain, _ = self._parameters_at(state.site)
            earlier = None
            query = fold_queries([pseudo_query], [key_gain], state.blocks[0])[0]
        x, added = depth_attention_phase_two_normed(
            earlier, recent, state.pending, query, self.eps, weight, eps
        )
        return x, state.partial if state.pending is None else added

    def _mixed(self, state: DepthState) -> Tensor:
        if not state.earlier:  # the first group: there is no pass to share
            return depth_attention(state.sources, *self._parameters_at(state.site))
        recent = state.sources[state.num_earlier :]
        return depth_attention_phase_two(state.earlier[0], recent, self.eps)

    def weights(self, state: DepthState) -> Tensor:
        """The depth weights alpha [N, ...] of the next site, one for each of `state.sources`.

        float32, or float64 for a float64 state; over the sources they add up to 1. Differentiable.

        Raises:
            TypeError: not a state of start or write.
        """
        site = self._site_of(state)
        return depth_attention_weights(state.sources, *self._parameters_at(site))

    def write(self, state: DepthState, output: Tensor) -> DepthState:
        """The state after a sublayer that returned `output` [..., D].

        The state keeps the embedding's dtype, as adding to a residual stream would, so that
        autocast may compute sublayers in another.

        Raises:
            RuntimeError: all `num_sublayers` have written.
            TypeError: not a state of start or write, or the output is no tensor.
            ValueError: the output is not of the embedding's shape, or of integers.
        """
        if self._site_of(state) == self.num_sublayers:
            raise RuntimeError(
                f"{type(self).__name__}: an output more than num_sublayers={self.num_sublayers}; "
                "attention and MLP count one each"
            )
        if not isinstance(output, Tensor):
            first = "; give its first" if isinstance(output, (tuple, list)) else ""
            raise TypeError(
                f"{type(self).__name__}: write expects the tensor that a sublayer returned, but got "
                f"a {type(output).__name__}{first}"
            )
        self._check_source("the output", output, state.blocks[0].shape)
        output = output.to(state.blocks[0].dtype)
        site, blocks, partial, pending = state.site + 1, state.blocks, state.block_sum, None
        ends_block = site % self.block_size == 0
        if partial is None:
            partial = output
        elif state.adds_later and not ends_block:
            pending = output
        else:
            partial = partial + output
        if ends_block:
            blocks, partial = (*blocks, partial), None
        if site % self._group > 0:
            earlier = state.earlier[1:]
            return DepthState(blocks, partial, site, earlier, state.num_earlier, pending)
        sites = range(site, min(site + self._group, self._sites.stop))
        if not sites:
            return DepthState(blocks, partial, site)
        queries, key_gains, _ = zip(*map(self._parameters_at, sites), strict=True)
        earlier = depth_attention_phase_one(blocks, queries, key_gains, self.eps)
        return DepthState(blocks, partial, site, tuple(earlier), len(blocks))

    def _site_of(self, state: DepthState) -> int:
        if not isinstance(state, DepthState):
            reentrant = (
                "; under torch.utils.checkpoint give use_reentrant=False: the reentrant kind makes "
                "a tuple of the state and loses its gradients"
            )
            raise TypeError(
                f"{type(self).__name__}: expected the state that start or write returned, but got "
                f"a {type(state).__name__}{reentrant if isinstance(state, tuple) else ''}"
            )
        if state.blocks[0].shape[-1] != self.width:
            raise ValueError(
                f"{type(self).__name__}: the state is of width {state.blocks[0].shape[-1]}, the "
                f"module of {self.width}"
            )
        return state.site

    def _check_source(self, what: str, source: Tensor, shape: Sequence[int]) -> None:
        if not source.is_floating_point() or source.shape != torch.Size(shape):
            raise ValueError(
                f"{type(self).__name__}: {what} must be {list(shape)} of a floating dtype, but is "
                f"{list(source.shape)} of {source.dtype}"
            )

    def _parameters_at(self, site: int) -> tuple[Tensor, Tensor, float]:
        return self.pseudo_query[site], self.key_gain[site], self.eps

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        self.sublayers_a_block.fill_(self.block_size)  # whatever it came through: meta, averages
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unknown, errors):
        name = f"{prefix}sublayers_a_block"
        stored = state_dict.get(name)
        # Files without it are older, or another program's.
        if stored is not None and not stored.is_meta and round(stored.item()) != self.block_size:
            errors.append(
                f"{type(self).__name__}: the parameters are of "
                f"block_size={round(stored.item())}, the module is of block_size={self.block_size}"
            )
            return
        super()._load_from_state_dict(
            state_dict, prefix, metadata, strict, missing, unknown, errors
        )
        if stored is None and name in missing:
            missing.remove(name)

    def _positive(self, name: str, value: int) -> int:
        try:
            value = index(value)
        except TypeError:
            raise TypeError(
                f"{type(self).__name__}: {name} must be an integer, but is {value!r}"
            ) from None
        if value < 1:
            raise ValueError(f"{type(self).__name__}: {name} must be positive, but is {value}")
        return value

    def extra_repr(self) -> str:
        return f"{self.width}, num_sublayers={self.num_sublayers}, block_size={self.block_size}"

    def __repr__(self) -> str:
        """One line; nn.Module's would list the two vectors of every site."""
        return f"{type(self).__name__}({self.extra_repr()})"


class AttnRes(BlockAttnRes):
    """Full Attention Residuals (arXiv 2603.15031, section 3.1): every output is a source itself.

    Sublayer l reads h_l = sum_i alpha_i v_i over the embedding v_0 and the outputs v_1 .. v_l of
    all sublayers before it: `BlockAttnRes` with blocks of one sublayer, which has the use, the
    parameters and the arguments explained.
    """

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Makes the parameters of all sites; the arguments are those of `BlockAttnRes`."""
        super().__init__(width, num_sublayers, 1, eps=eps, device=device, dtype=dtype)

    def extra_repr(self) -> str:
        return f"{self.width}, num_sublayers={self.num_sublayers}"


class DeltaAttnRes(BlockAttnRes):
    """Delta Attention Residuals (arXiv 2605.18855): beside a residual stream, not in its place.

    The residual stream x stays, and sublayer l reads beside it what depth attention finds among
    what made it:

        h_l = x_l + a_l sum_i alpha_i b_i,   x_{l+1} = x_l + f_l(norm(h_l))

    with alpha and the sources b_i of `BlockAttnRes`, whose use and other arguments these are. The
    first sublayer reads the embedding, and the output x_L: there nothing is mixed.

    Args:
        block_size: S; with 1 every output is a source.
        gate: what the learned gates a_l start at. With zero the model is a residual one, whatever
            its other parameters; None: no gates, a_l is 1.

    Parameters, for each of the sites 1 .. L - 1 by its number as text: `pseudo_query` [D] and
    `key_gain` [D] as there, and `mixture_gate` [1], a_l.
    """

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        block_size: int = 1,
        *,
        gate: float | None = 0.0,
        eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Makes the parameters of all sites that mix; the arguments are the class's."""
        self._gate = gate
        super().__init__(width, num_sublayers, block_size, eps=eps, device=device, dtype=dtype)

    def _make_parameters(self, like: dict) -> None:
        self._sites = range(1, self.num_sublayers)

        def of_sites(size: int, value: float) -> nn.ParameterDict:
            return nn.ParameterDict(
                {str(site): torch.full((size,), value, **like) for site in self._sites}
            )

        self.pseudo_query, self.key_gain = of_sites(self.width, 0.0), of_sites(self.width, 1.0)
        self.mixture_gate = None if self._gate is None else of_sites(1, self._gate)

    def start(self, embedding: Tensor) -> DepthState:
        """The state before the first sublayer, as in `BlockAttnRes`; the stream is the embedding."""
        return super().start(embedding)._replace(stream=embedding)

    def write(self, state: DepthState, output: Tensor) -> DepthState:
        """The state after a sublayer that returned `output`, as in `BlockAttnRes`."""
        written = super().write(state, output)
        return written._replace(stream=state.stream + output.to(state.stream.dtype))

    def read_normed(
        self, state: DepthState, weight: Tensor, eps: float
    ) -> tuple[Tensor, DepthState]:
        """`read` and an RMSNorm, as in `BlockAttnRes`, but not in one pass."""
        self._check_read(state)
        return self._normed(state, weight, eps)[0], state

    def weights(self, state: DepthState) -> Tensor:
        """The depth weights of the next site, as in `BlockAttnRes`.

        Raises:
            RuntimeError: nothing is mixed there: before the first sublayer, and at the output.
        """
        site = self._site_of(state)
        if site not in self._sites:
            raise RuntimeError(
                f"DeltaAttnRes: site {site} mixes nothing; those from 1 to "
                f"{self.num_sublayers - 1} do"
            )
        return super().weights(state)

    def _mixed(self, state: DepthState) -> Tensor:
        if state.site not in self._sites:
            return state.stream
        mixture = super()._mixed(state)
        if self.mixture_gate is not None:
            mixture = mixture * self.mixture_gate[str(state.site)]
        return state.stream + mixture.to(state.stream.dtype)

    def _normed(
        self, state: DepthState, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor | None]:
        h = self._mixed(state)
        compute = torch.float64 if h.dtype == torch.float64 else torch.float32
        x = nn.functional.rms_norm(h.to(compute), (self.width,), weight.to(compute), eps)
        return x.to(h.dtype), None

    def _parameters_at(self, site: int) -> tuple[Tensor, Tensor, float]:
        return self.pseudo_query[str(site)], self.key_gain[str(site)], self.eps


def no_weight_decay(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of depth attention in a module, which weight decay is to leave alone.

    Each once, of every `BlockAttnRes`, `AttnRes` and `DeltaAttnRes` in it and of retrofitted models;
    an empty list where there is none.

        exempt = attnres.no_weight_decay(model)
        names = {id(parameter) for parameter in exempt}
        decayed = [p for p in model.parameters() if id(p) not in names]
        groups = [{"params": decayed}, {"params": exempt, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=3e-4, weight_decay=0.1)
    """
    parameters = {}
    for part in module.modules():
        if isinstance(part, BlockAttnRes):
            parameters |= {id(parameter): parameter for parameter in part.parameters()}
    return list(parameters.values())
