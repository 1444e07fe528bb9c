"""Attention Residuals in models of transformers, in place."""

import sys
from pathlib import Path

from torch import Tensor, nn

from .checkpoints import carry_mixing, counts_sources, depth_mixing, load, read_mixing
from .mixed import Mixed, become
from .modules import BlockAttnRes, DepthState

# A layer's norms before its sublayers, and Gemma's after them.
LLAMA_NORMS = ("input_layernorm", "post_attention_layernorm")
GEMMA_NORMS = ("input_layernorm", "pre_feedforward_layernorm")
GEMMA_OUTPUT_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")


def retrofit(
    model: nn.Module, block_size: int | None = None, checkpoint: str | Path | None = None
) -> BlockAttnRes:
    """Replaces the residual connections of a decoder of transformers by Block Attention Residuals.

    Of Llama, Mistral, Qwen 2 and 3, SmolLM 3, Gemma 3, and other decoders with a list `layers` of
    layers that have `self_attn` and `mlp` behind norms of those names, and a `norm` at the end. The
    model computes the same as before, to rounding, until it is trained: with zero pseudo-queries a
    site reads the mean of its n sources, the residual stream over n, and its norm is given n times
    that. Training, generation with a cache, and gradient checkpointing go on as they were; the
    hidden states between layers (`output_hidden_states`) are no longer there.

        model = AutoModelForCausalLM.from_pretrained(folder)
        mix = attnres.retrofit(model, block_size=4)

    `model.save_pretrained(mixed)` then writes a folder that says what it is. The program reads it,
    and transformers, where attnres is installed:

        model = AutoModelForCausalLM.from_pretrained(mixed, trust_remote_code=True)

    Args:
        model: changed in place; its layers, their parameters and these parameters' names stay.
        block_size: S, in sublayers: attention and MLP count one each.
        checkpoint: a folder whose weights are loaded, of the same model retrofitted: one that
            attnres wrote, or `save_pretrained` after this function. The block size is then the
            folder's, and need not be given.

    Returns:
        What has the pseudo-queries and key gains, `depth_attention` in the decoder. Leave weight
        decay off for them: `no_weight_decay(model)`.

    Raises:
        ValueError: the model is no such decoder, was retrofitted before, or does not fit the
            checkpoint.
    """
    decoder = _decoder_of(model)
    if checkpoint is None:
        return place_mixing(model, _agreed(block_size, None), counts_sources=True)
    folder = Path(checkpoint)
    stored = read_mixing(folder, 2 * len(decoder.layers))
    mix = place_mixing(model, _agreed(block_size, stored["block_size"]), counts_sources(stored))
    load(model, mix, folder)
    return mix


def place_mixing(model: nn.Module, block_size: int, counts_sources: bool) -> BlockAttnRes:
    """The first half of `retrofit`: all but the weights of a checkpoint."""
    decoder = _decoder_of(model)
    norm = decoder.layers[0].input_layernorm
    mix = BlockAttnRes(
        norm.weight.numel(),
        2 * len(decoder.layers),
        block_size,
        _eps_of(norm),
        device=norm.weight.device,
        dtype=norm.weight.dtype,
    )
    reader = _Reader(mix, counts_sources)
    for layer in decoder.layers:
        become(layer, _Layer)
        layer.depth_reader = reader
    become(decoder.norm, _OutputNorm)
    decoder.norm.depth_reader = reader
    decoder.depth_attention = mix
    carry_mixing(model, decoder is model, depth_mixing(mix.block_size, counts_sources))
    return mix


class _Reader:
    """What sites read, in the size that the model's norms are used to; no module of theirs."""

    def __init__(self, mix: BlockAttnRes, counts_sources: bool) -> None:
        self.mix, self.counts_sources = mix, counts_sources

    def read(self, state: DepthState) -> Tensor:
        return self._sized(self.mix.read(state), state)

    def output(self, state: DepthState) -> Tensor:
        return self._sized(self.mix.output(state), state)

    def _sized(self, h: Tensor, state: DepthState) -> Tensor:
        return len(state.sources) * h if self.counts_sources else h


class _Layer(Mixed):
    """A decoder layer without its residual connections, from depth state to depth state."""

    def forward(self, hidden_states: Tensor | DepthState, **arguments) -> DepthState:
        read, mix = self.depth_reader.read, self.depth_reader.mix
        is_gemma = hasattr(self, GEMMA_NORMS[1])
        norms = [getattr(self, name) for name in (GEMMA_NORMS if is_gemma else LLAMA_NORMS)]
        after = [getattr(self, name) for name in GEMMA_OUTPUT_NORMS] if is_gemma else [None, None]
        state = hidden_states
        if isinstance(state, Tensor):  # the first layer's
            state = mix.start(state)
        y, *_ = self.self_attn(hidden_states=norms[0](read(state)), **arguments)
        state = mix.write(state, y if after[0] is None else after[0](y))
        y = self.mlp(norms[1](read(state)))
        return mix.write(state, y if after[1] is None else after[1](y))


class _OutputNorm(Mixed):
    """The last norm, of what the output site reads."""

    def forward(self, state: DepthState) -> Tensor:
        return super().forward(self.depth_reader.output(state))


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


def _eps_of(norm: nn.Module) -> float:
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if eps is None:
        raise ValueError(f"retrofit: {type(norm).__name__} does not say its eps")
    return eps


def _agreed(given: int | None, stored: int | None) -> int:
    if given is None and stored is None:
        raise ValueError("retrofit: give a block_size, or a checkpoint that has one")
    if None not in (given, stored) and given != stored:
        raise ValueError(f"retrofit: block_size is {given}, but the checkpoint's is {stored}")
    return stored if given is None else given
