"""Attention Residuals in models of transformers, in place."""

import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from .modules import BlockAttnRes, DepthState

# Of a layer: the norms before its sublayers, and Gemma's after them.
LLAMA_NORMS = ("input_layernorm", "post_attention_layernorm")
GEMMA_NORMS = ("input_layernorm", "pre_feedforward_layernorm")
GEMMA_OUTPUT_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
# What attnres calls the tensors of site 2j and 2j + 1 in the files of layer j, and of the output.
FILE_NAMES = ("self_attention_res", "mlp_res")
OUTPUT_FILE_NAME = "output_attn_res"


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

    Args:
        model: changed in place; its layers, their parameters and these parameters' names stay.
        block_size: S, in sublayers: attention and MLP count one each.
        checkpoint: a folder that attnres wrote, of the same model retrofitted there, whose weights
            are loaded; the block size is then the folder's, and need not be given.

    Returns:
        What has the pseudo-queries and key gains, `depth_attention` in the decoder. Leave weight
        decay off for them.

    Raises:
        ValueError: the model is no such decoder, was retrofitted before, or does not fit the
            checkpoint.
    """
    decoder = _decoder_of(model)
    mixing = {} if checkpoint is None else _mixing_of(Path(checkpoint))
    block_size = _agreed(block_size, mixing.get("block_size"))
    norm = decoder.layers[0].input_layernorm
    weight = norm.weight
    mix = BlockAttnRes(
        weight.numel(),
        2 * len(decoder.layers),
        block_size,
        _eps_of(norm),
        device=weight.device,
        dtype=weight.dtype,
    )
    reader = _Reader(mix, mixing.get("norm_eps", "per_source_count") == "per_source_count")
    for layer in decoder.layers:
        layer.forward = _LayerForward(layer, reader)
    decoder.norm.forward = _NormForward(decoder.norm, reader)
    decoder.depth_attention = mix
    if checkpoint is not None:
        _load(model, decoder, mix, Path(checkpoint))
    return mix


class _Reader:
    """What a site reads, in the size that the model's norms are used to."""

    def __init__(self, mix: BlockAttnRes, counts_sources: bool) -> None:
        self.mix, self.counts_sources = mix, counts_sources

    def __call__(self, state: DepthState) -> Tensor:
        h = self.mix.read(state)
        return len(state.sources) * h if self.counts_sources else h


# What takes the place of a module's `forward` is an object that has the module: a copy of the model,
# and a pickled one, have their own.
class _LayerForward:
    """A decoder layer without its residual connections, from depth state to depth state."""

    def __init__(self, layer: nn.Module, reader: _Reader) -> None:
        self.layer, self.reader = layer, reader

    def __call__(self, hidden_states: Tensor | DepthState, **arguments) -> DepthState:
        layer, read, mix = self.layer, self.reader, self.reader.mix
        is_gemma = hasattr(layer, GEMMA_NORMS[1])
        norms = [getattr(layer, name) for name in (GEMMA_NORMS if is_gemma else LLAMA_NORMS)]
        after = [getattr(layer, name) for name in GEMMA_OUTPUT_NORMS] if is_gemma else [None, None]
        state = hidden_states
        if isinstance(state, Tensor):  # the first layer's
            state = mix.start(state)
        y, *_ = layer.self_attn(hidden_states=norms[0](read(state)), **arguments)
        state = mix.write(state, y if after[0] is None else after[0](y))
        y = layer.mlp(norms[1](read(state)))
        return mix.write(state, y if after[1] is None else after[1](y))


class _NormForward:
    """The last norm, of what the output site reads."""

    def __init__(self, norm: nn.Module, reader: _Reader) -> None:
        self.of_tensor, self.reader = norm.forward, reader

    def __call__(self, state: DepthState) -> Tensor:
        return self.of_tensor(self.reader(state))


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


def _mixing_of(folder: Path) -> dict:
    config = json.loads((folder / "config.json").read_text())
    mixing = config.get("attnres", {}).get("depth_mixing", {})
    if mixing.get("type") != "block_attn_res":
        raise ValueError(
            f"retrofit: {folder} has no block_attn_res: its model_type is "
            f"{config.get('model_type')}, its depth mixing {mixing.get('type')}"
        )
    plain = {"query": "learned", "weights": "softmax", "key_norm": True, "heads": 1}
    for key, value in plain.items():
        if mixing.get(key, value) != value:
            raise ValueError(f"retrofit: {folder} has {key} {mixing[key]!r}, not {value!r}")
    return mixing


def _load(model: nn.Module, decoder: nn.Module, mix: BlockAttnRes, folder: Path) -> None:
    from safetensors.torch import load_file  # which transformers brings

    if hasattr(decoder.layers[0], GEMMA_NORMS[1]):
        raise ValueError("retrofit: checkpoints are not loaded into Gemma, whose files differ")
    stored = {}
    for file in sorted(folder.glob("model*.safetensors")):
        stored |= load_file(file)
    with torch.no_grad():
        for site in range(1, mix.num_sublayers + 1):
            name = _file_name(mix, site)
            mix.pseudo_query[site].copy_(stored.pop(f"{name}_proj.weight").flatten())
            mix.key_gain[site].copy_(stored.pop(f"{name}_norm.weight"))
    missing, unknown = model.load_state_dict(stored, strict=False)
    missing = [n for n in missing if ".depth_attention." not in n and n != "lm_head.weight"]
    if missing or unknown:
        raise ValueError(
            f"retrofit: {folder} does not fit: {', '.join([*missing, *unknown][:4])} "
            "are missing or unknown"
        )


def _file_name(mix: BlockAttnRes, site: int) -> str:
    if site == mix.num_sublayers:
        return f"model.{OUTPUT_FILE_NAME}"
    return f"model.layers.{site // 2}.{FILE_NAMES[site % 2]}"
