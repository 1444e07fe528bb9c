"""What a retrofitted model of transformers is on disk, and what attnres wrote of one.

`save_pretrained` writes tensors under the names that they have in the model, and a config.json
whose `model_type` is attnres_retrofitted: `base` is the configuration that transformers wrote, and
`depth_mixing` the setting of a recipe. The program reads such folders; so does transformers, by the
code that lies in them (retrofitted.py).
"""

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from .mixed import Mixed, become
from .modules import BlockAttnRes, DeltaAttnRes

BLOCK, DELTA = "block_attn_res", "delta_attn_res"  # the mechanisms
MODEL_TYPE = "attnres_retrofitted"
CODE_NAME = "modeling_retrofitted"
CODE = '''"""A model of transformers with Attention Residuals (arXiv 2603.15031), of attnres.

    AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)
"""

from attnres.retrofitted import RetrofittedConfig, RetrofittedModel
'''
# What attnres calls the tensors of site 2j and 2j + 1 in the files of layer j, and of the output.
FILE_NAMES = ("self_attention", "mlp")
OUTPUT_FILE_NAME = "output_attn"
HEAD = "lm_head.weight"


def depth_mixing(mechanism: str, block_size: int) -> dict:
    """The setting `model.depth_mixing` of a recipe that equals a residual model at first."""
    if mechanism not in (BLOCK, DELTA):
        raise ValueError(f"retrofit: mechanism must be {BLOCK} or {DELTA}, but is {mechanism!r}")
    exact = {"gate": "zero"} if mechanism == DELTA else {"norm_eps": "per_source_count"}
    return {"type": mechanism, "block_size": block_size} | exact


def counts_sources(mixing: dict) -> bool:
    """Whether norms are given n times the mean of n sources, as `depth_mixing` says it."""
    return mixing.get("norm_eps", "fixed") == "per_source_count"


def read_mixing(folder: Path, num_sublayers: int) -> dict:
    """The depth mixing of a folder that attnres or a retrofitted model's save_pretrained wrote."""
    config = _read_config(folder)
    mixing = config.get("attnres", config).get("depth_mixing", {})
    if mixing.get("type") == DELTA:
        return {"block_size": 1} | mixing
    if mixing.get("type") != BLOCK:
        raise ValueError(
            f"retrofit: {folder} has no {BLOCK} or {DELTA}: its model_type is "
            f"{config.get('model_type')}, its depth mixing {mixing.get('type')}"
        )
    plain = {
        "query": "learned",
        "weights": "softmax",
        "key_norm": True,
        "heads": 1,
        "score_scale": 1,
        "value_query": False,
        "block_summary": "sum",
    }
    for key, value in plain.items():
        if mixing.get(key, value) != value:
            raise ValueError(f"retrofit: {folder} has {key} {mixing[key]!r}, not {value!r}")
    sources = -(-num_sublayers // mixing["block_size"])
    if mixing.get("window", sources) < sources:
        raise ValueError(
            f"retrofit: {folder} has a window of {mixing['window']} sources, "
            f"but there are {sources}"
        )
    return mixing


def load(model: nn.Module, mix: BlockAttnRes, folder: Path) -> None:
    """The folder's weights into the model that was retrofitted with `mix`."""
    from safetensors.torch import load_file  # which transformers brings

    config = _read_config(folder)
    stored = {}
    for file in sorted(folder.glob("model*.safetensors")):
        stored |= load_file(file)
    if config.get("model_type") == MODEL_TYPE:
        _check_base(model, config["base_model_type"], folder)
        missing = set()
    else:
        _check_names(model, folder)
        missing = _load_mixing(model, mix, stored, folder)
    _load_rest(model, stored, missing, folder)


def carry_mixing(model: nn.Module, is_decoder: bool, mixing: dict) -> None:
    """Lets the model's configuration say, where it is saved, that the model is retrofitted.

    The configuration becomes the model's own, since other models that share it are as they were;
    but not a decoder's, which shares it with the model around it.
    """
    config = getattr(model, "config", None)
    if not hasattr(config, "to_json_file"):
        return
    own = config if is_decoder else copy.deepcopy(config)
    become(own, _RetrofittedConfig)
    own.depth_mixing = mixing
    for module in model.modules():
        if getattr(module, "config", None) is config:
            module.config = own


class _RetrofittedConfig(Mixed):
    """A configuration that says, where it is written, what became of the model's connections."""

    _prefix = "Retrofitted"

    def to_json_file(self, json_file_path, use_diff=True):
        super().to_json_file(json_file_path, use_diff)
        _rewrite(Path(json_file_path))


def _rewrite(path: Path) -> None:
    base = json.loads(path.read_text())
    of_auto_class = {"AutoConfig": f"{CODE_NAME}.RetrofittedConfig"}
    for name in base.get("architectures") or []:
        _, is_for, task = name.rpartition("For")
        auto_class = f"AutoModelFor{task}" if is_for else "AutoModel"
        of_auto_class[auto_class] = f"{CODE_NAME}.RetrofittedModel"
    config = {
        "model_type": MODEL_TYPE,
        "architectures": ["RetrofittedModel"],
        "auto_map": of_auto_class,
        "depth_mixing": base.pop("depth_mixing"),
        # Apart from `base`, which a class of this type would else take for its own configuration,
        # and read a model without the mixing; at hidden_size it stops.
        "base_model_type": base.pop("model_type"),
        "base": base,
        "hidden_size": "in base: load with AutoModelForCausalLM and trust_remote_code=True",
    }
    for key in ("dtype", "transformers_version"):
        if key in base:
            config[key] = base[key]
    path.write_text(json.dumps(config, indent=2) + "\n")
    path.with_name(f"{CODE_NAME}.py").write_text(CODE)


def _read_config(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


def _check_base(model: nn.Module, base_model_type: str, folder: Path) -> None:
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    if model_type != base_model_type:
        raise ValueError(
            f"retrofit: {folder} is a retrofitted {base_model_type}, the model a {model_type}"
        )


def _check_names(model: nn.Module, folder: Path) -> None:
    """That the model's names are those in a file of attnres, as Llama's are and Gemma's are not."""
    if not hasattr(model, "model") or hasattr(model.model.layers[0], "pre_feedforward_layernorm"):
        raise ValueError(
            f"retrofit: {folder} was written by attnres, and its weights are loaded into models "
            f"whose files are alike (Llama, Mistral, Qwen 2 and 3, SmolLM 3, with their heads), "
            f"not into {type(model).__name__}; AutoModelForCausalLM.from_pretrained loads it, with "
            "trust_remote_code=True"
        )


def _load_mixing(model: nn.Module, mix: BlockAttnRes, stored: dict, folder: Path) -> set[str]:
    """Takes the mixing's parameters out of what is stored; their names in the model."""
    with torch.no_grad():
        for name, parameter in _stored_parameters(mix):
            tensor = stored.pop(name, None)
            if tensor is None or tensor.numel() != parameter.numel():
                raise ValueError(
                    f"retrofit: {folder} does not fit: it has no {name} of {parameter.numel()} "
                    "numbers"
                )
            parameter.copy_(tensor.flatten())
    return {name for name, _ in model.named_parameters() if ".depth_attention." in name}


def _load_rest(model: nn.Module, stored: dict, loaded: set[str], folder: Path) -> None:
    missing, unknown = model.load_state_dict(stored, strict=False)
    own = {name for name, _ in model.named_parameters()}  # a tied head is not among them
    missing = [name for name in missing if name not in loaded and (name != HEAD or name in own)]
    if missing or unknown:
        raise ValueError(
            f"retrofit: {folder} does not fit: {', '.join([*missing, *unknown][:4])} "
            "are missing or unknown"
        )


def _stored_parameters(mix: BlockAttnRes) -> Iterator[tuple[str, nn.Parameter]]:
    """Those of every site that mixes, with their names in a file of attnres."""
    is_delta = isinstance(mix, DeltaAttnRes)
    for site in range(1, mix.num_sublayers + (0 if is_delta else 1)):
        key = str(site) if is_delta else site
        name = f"model.layers.{site // 2}.{FILE_NAMES[site % 2]}"
        if site == mix.num_sublayers:
            name = f"model.{OUTPUT_FILE_NAME}"
        yield f"{name}_res_proj.weight", mix.pseudo_query[key]
        yield f"{name}_res_norm.weight", mix.key_gain[key]
        if is_delta and mix.mixture_gate is not None:
            yield f"{name}_depth_mixing.mixture_gate", mix.mixture_gate[key]
