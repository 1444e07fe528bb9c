"""Attention Residuals in models of transformers, in place."""

import copy
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from .checkpoints import BLOCK, DELTA, carry_mixing, counts_sources, depth_mixing, load, read_mixing
from .mixed import Mixed, become
from .modules import BlockAttnRes, DeltaAttnRes, DepthState

# A layer's norms before its sublayers, and Gemma's after them.
LLAMA_NORMS = ("input_layernorm", "post_attention_layernorm")
GEMMA_NORMS = ("input_layernorm", "pre_feedforward_layernorm")
GEMMA_OUTPUT_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")


def retrofit(
    model: nn.Module,
    block_size: int | None = None,
    checkpoint: str | Path | None = None,
    *,
    mechanism: str | None = None,
) -> BlockAttnRes:
    """Replaces the residual connections of a decoder of transformers by Block Attention Residuals.

    Or, with `mechanism="delta_attn_res"`, puts Delta Attention Residuals beside them, with gates of
    zero: bit by bit the same model, until it is trained.

    Of Llama, Mistral, Qwen 2 and 3, SmolLM 3, Gemma 3, and other decoders with a list `layers` of
    layers that have `self_attn` and `mlp` behind norms of those names, and a `norm` at the end. The
    model computes the same as before, to rounding, until it is trained: with zero pseudo-queries a
    site reads the mean of its n sources, the residual stream over n, and its norm is given n times
    that. Training, generation with a cache, and gradient checkpointing go on as they were; the
    hidden states between layers (`output_hidden_states`) are no longer there. Norms that are plain
    RMSNorms are computed in one pass with depth attention; others, and those that have hooks or
    were exchanged since, as they are.

        model = AutoModelForCausalLM.from_pretrained(folder)
        mix = attnres.retrofit(model, block_size=4)

    `model.save_pretrained(mixed)` then writes a folder that says what it is. The program reads it,
    and transformers, where attnres is installed:

        model = AutoModelForCausalLM.from_pretrained(mixed, trust_remote_code=True)

    Args:
        model: changed in place; its layers, their parameters and these parameters' names stay.
        block_size: S, in sublayers: attention and MLP count one each.
        checkpoint: a folder whose weights are loaded, of the same model retrofitted: one that
            attnres wrote, or `save_pretrained` after this function. The block size and the
            mechanism are then the folder's, and need not be given.
        mechanism: "block_attn_res", which it is where nothing else is said, or "delta_attn_res".

    Returns:
        What has the pseudo-queries and key gains, `depth_attention` in the decoder. Leave weight
        decay off for them: `no_weight_decay(model)`.

    Raises:
        ValueError: the model is no such decoder, was retrofitted before, or does not fit the
            checkpoint.
    """
    decoder = _decoder_of(model)
    if checkpoint is None:
        if block_size is None:
            raise ValueError("retrofit: give a block_size, or a checkpoint that has one")
        return place_mixing(model, depth_mixing(mechanism or BLOCK, block_size))
    folder = Path(checkpoint)
    stored = read_mixing(folder, 2 * len(decoder.layers))
    _check_agreement("mechanism", mechanism, stored["type"])
    _check_agreement("block_size", block_size, stored["block_size"])
    mix = place_mixing(model, stored)
    load(model, mix, folder)
    return mix


def place_mixing(model: nn.Module, mixing: dict) -> BlockAttnRes:
    """The first half of `retrofit`: all but the weights of a checkpoint.

    Args:
        mixing: what `depth_mixing` or `read_mixing` returned.
    """
    decoder = _decoder_of(model)
    norm = decoder.layers[0].input_layernorm
    sizes = norm.weight.numel(), 2 * len(decoder.layers), mixing["block_size"]
    like = {"device": norm.weight.device, "dtype": norm.weight.dtype}
    rms_norms = set()
    if mixing["type"] == DELTA:
        gate = None if mixing.get("gate") == "none" else 0.0
        mix = DeltaAttnRes(*sizes, gate=gate, eps=_eps_of(norm), **like)
    else:
        mix = BlockAttnRes(*sizes, eps=_eps_of(norm), **like)
        norms = [getattr(layer, name) for layer in decoder.layers for name in _norm_names(layer)]
        rms_norms = {type(norm) for norm in [*norms, decoder.norm] if _is_rms_norm(norm)}
    reader = _Reader(mix, counts_sources(mixing), rms_norms)
    for layer in decoder.layers:
        become(layer, _Layer)
        layer.depth_reader = reader
    become(decoder.norm, _OutputNorm)
    decoder.norm.depth_reader = reader
    decoder.depth_attention = mix
    carry_mixing(model, decoder is model, mixing)
    return mix


class _Reader:
    """What sites read, in the size that the model's norms are used to; no module of theirs.

    `rms_norms` are classes of norms that the mixing computes: weight * x / sqrt(mean(x^2) + eps).
    """

    def __init__(self, mix: BlockAttnRes, counts_sources: bool, rms_norms: set[type]) -> None:
        self.mix, self.counts_sources, self.rms_norms = mix, counts_sources, rms_norms

    def read(self, state: DepthState, norm: nn.Module) -> tuple[Tensor, DepthState]:
        """A sublayer's input, normed, and the state for its output."""
        if self.fuses(norm, type(norm), state):
            return self.mix.read_normed(state, norm.weight, self._eps_for(norm, state))
        return norm(self._sized(self.mix.read(state), state)), state

    def output(self, state: DepthState) -> Tensor:
        """What the last norm is given."""
        return self._sized(self.mix.output(state), state)

    def output_normed(self, state: DepthState, norm: nn.Module) -> Tensor:
        """What the last norm returns, one that `fuses`."""
        return self.mix.output_normed(state, norm.weight, self._eps_for(norm, state))

    def fuses(self, norm: nn.Module, kind: type, state: DepthState) -> bool:
        """Whether depth attention computes this norm of this class, as it is now, by itself."""
        return (
            isinstance(state, DepthState)  # else mix.read says what is wrong
            and kind in self.rms_norms
            and _stated_eps(norm) is not None
            and norm.weight is not None
            and norm.weight.dtype == state.blocks[0].dtype
            and "forward" not in vars(norm)  # which accelerate exchanges
            and not (norm._forward_hooks or norm._forward_pre_hooks)
            and not (norm._backward_hooks or norm._backward_pre_hooks)
        )

    def _eps_for(self, norm: nn.Module, state: DepthState) -> float:
        return _eps_of(norm) / (state.num_sources**2 if self.counts_sources else 1)

    def _sized(self, h: Tensor, state: DepthState) -> Tensor:
        return state.num_sources * h if self.counts_sources else h


class _Layer(Mixed):
    """A decoder layer without its residual connections, from depth state to depth state."""

    def forward(self, hidden_states: Tensor | DepthState, **arguments) -> DepthState:
        read, mix = self.depth_reader.read, self.depth_reader.mix
        norms = [getattr(self, name) for name in _norm_names(self)]
        after = [None, None]
        if _is_gemma(self):
            after = [getattr(self, name) for name in GEMMA_OUTPUT_NORMS]
        state = hidden_states
        if isinstance(state, Tensor):  # the first layer's
            state = mix.start(state)
        x, state = read(state, norms[0])
        y = _first(self.self_attn(hidden_states=x, **arguments))
        state = mix.write(state, y if after[0] is None else after[0](y))
        x, state = read(state, norms[1])
        y = _first(self.mlp(x))
        return mix.write(state, y if after[1] is None else after[1](y))


class _OutputNorm(Mixed):
    """The last norm, of what the output site reads."""

    def forward(self, state: DepthState) -> Tensor:
        reader = self.depth_reader
        if reader.fuses(self, self._parts[1], state):
            return reader.output_normed(state, self)
        return super().forward(reader.output(state))


def _first(returned: Tensor | tuple) -> Tensor:
    """Of a sublayer that returns more beside: weights of attention, scores of a router."""
    return returned if isinstance(returned, Tensor) else returned[0]


def _is_gemma(layer: nn.Module) -> bool:
    return hasattr(layer, GEMMA_NORMS[1])


def _norm_names(layer: nn.Module) -> tuple[str, str]:
    return GEMMA_NORMS if _is_gemma(layer) else LLAMA_NORMS


def _is_rms_norm(norm: nn.Module) -> bool:
    """Whether its class computes weight * x / sqrt(mean(x^2) + eps): with numbers of ours it does."""
    names = [name for name, _ in (*norm.named_parameters(), *norm.named_buffers())]
    eps = _stated_eps(norm)
    if names != ["weight"] or norm.weight.dim() != 1 or not eps:
        return False
    size = norm.weight.numel()
    numbers = torch.arange(3 * size, dtype=torch.float64, device="cpu").sin().view(3, size)
    weight, x = numbers[0], numbers[1:] * torch.tensor([[1.0], [eps**0.5]], device="cpu")
    probe = copy.deepcopy(norm).to_empty(device="cpu").double()
    with torch.no_grad():
        probe.weight.copy_(weight)
        expected = weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        found = type(norm).forward(probe, x)
    return torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-5)


def _decoder_of(model: nn.Module) -> nn.Module:
    transformers = sys.modules.get("transformers")
    if transformers is not None and type(model).__module__.startswith("transformers."):
        if int(transformers.__version__.split(".")[0]) < 5:
            raise ValueError(
                f"retrofit: layers of transformers {transformers.__version__} return tuples; "
                "it takes models of transformers 5"
            )
    for decoder in (model, getattr(model, "model", None)):
        layers = getattr(decoder, "layers", None)
        if isinstance(layers, nn.ModuleList) and len(layers) > 0 and hasattr(decoder, "norm"):
            break
    else:
        raise ValueError(
            f"retrofit: {type(model).__name__} has no list `layers` and `norm`, of its own or of "
            "its `model`, as Llama has"
        )
    if hasattr(decoder, "depth_attention"):
        raise ValueError(f"retrofit: this {type(model).__name__} was retrofitted before")
    for index, layer in enumerate(layers):
        for name in ("self_attn", "mlp", *LLAMA_NORMS):
            if not hasattr(layer, name):
                raise ValueError(
                    f"retrofit: layer {index} of {type(model).__name__}, a {type(layer).__name__}, "
                    f"has no {name}: it is none of Llama's kind"
                )
    for part in [*layers, decoder.norm]:
        if "forward" in vars(part):
            raise ValueError(
                f"retrofit: the forward of a {type(part).__name__} was exchanged, as accelerate "
                "does for models on several devices; retrofit the model before"
            )
    return decoder


def _stated_eps(norm: nn.Module) -> float | None:
    return getattr(norm, "variance_epsilon", getattr(norm, "eps", None))


def _eps_of(norm: nn.Module) -> float:
    eps = _stated_eps(norm)
    if eps is None:
        raise ValueError(f"retrofit: {type(norm).__name__} does not say its eps")
    return eps


def _check_agreement(name: str, given: int | str | None, stored: int | str) -> None:
    if given not in (None, stored):
        raise ValueError(f"retrofit: {name} is {given}, but the checkpoint's is {stored}")
