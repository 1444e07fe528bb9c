"""Makes models in tests/fixtures: small random ones in the files of Hugging Face, and the
log-probabilities that another program computes with them.

  kimi_linear_tiny  written and computed by transformers: KDA, MLA, experts
  NAME_tiny         written and computed by transformers: each of the others that it has (architectures.py)
  kimi_k3_tiny      computed by mlx-lm, from files as Moonshot AI publishes them, in two shards:
                    Attention Residuals in blocks of two layers, a last short one among them, query
                    and expert latents, output gates, SiTU, bounded decay
  kimi_k3_mlx_tiny  saved and computed by mlx-lm: maps joined, experts stacked
  NAME_gguf_tiny    made by transformers, converted and computed by llama.cpp
  NAME_adapter_tiny adapters that PEFT made and saved, beside NAME_tiny

expected.safetensors beside each holds `ids` [B, T], T past a chunk of KDA, and `log_probabilities`
[B, T-1] of each token after the first.

usage: python make_fixtures.py [FOLDER [NAME..]]        tests/fixtures and all if not given
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from interop import FIXTURES, log_probabilities, random_weight, token_ids
from architectures import IN_LLAMA_CPP, MODELS, READ_MODELS, make, make_mxfp4, save
from safetensors.numpy import save_file

VOCABULARY = 56
ADAPTERS = {
    "llama3": {"target_modules": ["q_proj", "v_proj", "down_proj"], "use_rslora": True,
               "modules_to_save": ["norm"], "layers_to_transform": [0, 2]},
    "deepseek_v3": {"target_modules": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj",
                                       "o_proj"]},
    "kimi_linear": {"target_modules": "all-linear"},
}  # fmt: skip
IN_GGUF = ("llama3", "qwen2", "qwen3", "smollm3", "gemma3", "deepseek_v3", "mixtral",
           "qwen3_moe", "gpt_oss")  # fmt: skip
EPS = 1e-5


def write_expected(folder, ids, logits):
    spread = logits.std(-1).mean()
    assert spread > 1, f"{folder.name}: the logits' standard deviation is {spread}: too flat"
    expected = log_probabilities(logits, ids).astype(np.float32)
    save_file({"ids": ids, "log_probabilities": expected}, folder / "expected.safetensors")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder.name}: {size / 1e3:.0f} kB, logits' standard deviation {spread:.2f}")


def write_model(folder, model):
    save(model, folder)
    ids = token_ids(model.config.vocab_size)
    with torch.no_grad():
        logits = model(torch.from_numpy(ids), use_cache=False).logits.numpy()
    write_expected(folder, ids, logits)


def make_gpt_oss_mxfp4(folder):
    folder.mkdir(exist_ok=True)
    model = make_mxfp4(folder)
    ids = token_ids(model.config.vocab_size)
    with torch.no_grad():
        logits = model(torch.from_numpy(ids), use_cache=False).logits.numpy()
    write_expected(folder, ids, logits)


def make_kimi_linear(folder):
    from transformers import KimiLinearConfig, KimiLinearForCausalLM

    config = KimiLinearConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=40, moe_intermediate_size=12,
        num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=2,
        n_shared_experts=1, num_local_experts=6, num_experts_per_tok=2, routed_scaling_factor=2.446,
        kv_lora_rank=20, q_lora_rank=None, qk_rope_head_dim=4, qk_nope_head_dim=12, v_head_dim=8,
        max_position_embeddings=128, rms_norm_eps=EPS, pad_token_id=None, bos_token_id=0,
        eos_token_id=0, linear_head_dim=16, linear_num_heads=2, linear_conv_kernel_dim=4,
        layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
    )  # fmt: skip
    model = KimiLinearForCausalLM(config).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            tensor.copy_(torch.from_numpy(random_weight(name, tuple(tensor.shape))))
    write_model(folder, model)


def k3_shapes(text):
    """The tensors of a Kimi K3 text model as published, by name."""
    d, layers = text["hidden_size"], text["num_hidden_layers"]
    linear = text["linear_attn_config"]
    heads, head = linear["num_heads"], linear["head_dim"]
    inner, kernel = heads * head, linear["short_conv_kernel_size"]
    mla_heads, nope, rope = (
        text[key] for key in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim")
    )
    value, kv_rank, q_rank = text["v_head_dim"], text["kv_lora_rank"], text["q_lora_rank"]
    latent, expert = text["routed_expert_hidden_size"], text["moe_intermediate_size"]
    shapes = {"embed_tokens.weight": (text["vocab_size"], d), "norm.weight": (d,)}

    def feed_forward(prefix, width):
        shapes[prefix + "gate_proj.weight"] = (width, d)
        shapes[prefix + "up_proj.weight"] = (width, d)
        shapes[prefix + "down_proj.weight"] = (d, width)

    def depth_attention(prefix):
        shapes[prefix + "_norm.weight"] = (d,)
        shapes[prefix + "_proj.weight"] = (1, d)

    for layer in range(layers):
        prefix = f"layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (d,)
        shapes[prefix + "post_attention_layernorm.weight"] = (d,)
        depth_attention(prefix + "self_attention_res")
        depth_attention(prefix + "mlp_res")
        attention = prefix + "self_attn."
        if layer + 1 in linear["kda_layers"]:
            for name in "qkv":
                shapes[attention + name + "_proj.weight"] = (inner, d)
                shapes[attention + name + "_conv1d.weight"] = (inner, 1, kernel)
            shapes[attention + "f_a_proj.weight"] = (head, d)
            shapes[attention + "f_b_proj.weight"] = (inner, head)
            shapes[attention + "b_proj.weight"] = (heads, d)
            shapes[attention + "g_proj.weight"] = (inner, d)
            shapes[attention + "A_log"] = (heads,)
            shapes[attention + "dt_bias"] = (inner,)
            shapes[attention + "o_norm.weight"] = (head,)
            shapes[attention + "o_proj.weight"] = (d, inner)
        else:
            shapes[attention + "q_a_proj.weight"] = (q_rank, d)
            shapes[attention + "q_a_layernorm.weight"] = (q_rank,)
            shapes[attention + "q_b_proj.weight"] = (mla_heads * (nope + rope), q_rank)
            shapes[attention + "kv_a_proj_with_mqa.weight"] = (kv_rank + rope, d)
            shapes[attention + "kv_a_layernorm.weight"] = (kv_rank,)
            shapes[attention + "kv_b_proj.weight"] = (mla_heads * (nope + value), kv_rank)
            shapes[attention + "g_proj.weight"] = (mla_heads * value, d)
            shapes[attention + "o_proj.weight"] = (d, mla_heads * value)
        if layer < text["first_k_dense_replace"]:
            feed_forward(prefix + "mlp.", text["intermediate_size"])
            continue
        experts = prefix + "block_sparse_moe."
        shapes[experts + "gate.weight"] = (text["num_experts"], d)
        shapes[experts + "gate.e_score_correction_bias"] = (text["num_experts"],)
        shapes[experts + "routed_expert_down_proj.weight"] = (latent, d)
        shapes[experts + "routed_expert_up_proj.weight"] = (d, latent)
        shapes[experts + "routed_expert_norm.weight"] = (latent,)
        feed_forward(experts + "shared_experts.", expert * text["num_shared_experts"])
        for i in range(text["num_experts"]):
            shapes[experts + f"experts.{i}.w1.weight"] = (expert, latent)
            shapes[experts + f"experts.{i}.w2.weight"] = (latent, expert)
            shapes[experts + f"experts.{i}.w3.weight"] = (expert, latent)
    depth_attention("output_attn_res")
    shapes = {"language_model.model." + name: shape for name, shape in shapes.items()}
    shapes["language_model.lm_head.weight"] = (text["vocab_size"], d)
    return shapes


def k3_config(**other):
    text = {
        "model_type": "kimi_linear", "vocab_size": VOCABULARY, "hidden_size": 32,
        "intermediate_size": 40, "num_hidden_layers": 5, "num_attention_heads": 2,
        "num_key_value_heads": 2, "rms_norm_eps": EPS, "max_position_embeddings": 128,
        "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0,
        "hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0,
        "attn_res_block_size": 2,
        "linear_attn_config": {
            "num_heads": 2, "head_dim": 16, "short_conv_kernel_size": 4,
            "kda_layers": [1, 2, 4], "full_attn_layers": [3, 5],
            "gate_lower_bound": -5.0, "use_full_rank_gate": True,
        },
        "q_lora_rank": 14, "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4,
        "v_head_dim": 8, "mla_use_nope": True, "mla_use_output_gate": True,
        "num_experts": 6, "num_experts_per_token": 2, "num_shared_experts": 1,
        "moe_intermediate_size": 8, "moe_router_activation_func": "sigmoid",
        "moe_renormalize": True, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "use_grouped_topk": True, "num_expert_group": 1, "topk_group": 1,
        "routed_expert_hidden_size": 20, "latent_moe_use_norm": True,
    }  # fmt: skip
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "text_config": text | other,
        "dtype": "float32",
    }


def write_k3(folder, config, shards):
    shapes = k3_shapes(config["text_config"])
    weights = {name: random_weight(name, shape) for name, shape in shapes.items()}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_shards(folder, weights, shards)


def make_kimi_k3(folder):
    import mlx.core as mx
    from mlx_lm.utils import load_model

    write_k3(folder, k3_config(), 2)
    model, _ = load_model(folder)  # strict: every tensor is known and none is missing
    ids = token_ids(VOCABULARY)
    write_expected(folder, ids, np.array(model(mx.array(ids))))


def make_kimi_k3_mlx(folder):
    import mlx.core as mx
    from mlx_lm.utils import load_model, save_model

    layers = {"kda_layers": [1], "full_attn_layers": [2]}
    config = k3_config(num_hidden_layers=2, attn_res_block_size=1)
    config["text_config"]["linear_attn_config"] |= layers
    write_k3(folder, config, 1)
    model, _ = load_model(folder)
    for file in folder.glob("model*"):
        file.unlink()
    save_model(folder, model)
    ids = token_ids(VOCABULARY)
    write_expected(folder, ids, np.array(model(mx.array(ids))))


def make_adapter(name, folder):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(FIXTURES / f"{name}_tiny", dtype=torch.float32)
    lora = LoraConfig(r=3, lora_alpha=7, task_type="CAUSAL_LM", **ADAPTERS[name])
    model = get_peft_model(base, lora).eval()
    with torch.no_grad():
        for parameter, tensor in model.named_parameters():
            if tensor.requires_grad:
                tensor.add_(0.4 * torch.from_numpy(random_weight(parameter, tuple(tensor.shape))))
    model.peft_config["default"].base_model_name_or_path = f"../{name}_tiny"
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    ids = token_ids(base.config.vocab_size)
    with torch.no_grad():
        logits = model(torch.from_numpy(ids), use_cache=False).logits.numpy()
    write_expected(folder, ids, logits)


def make_gguf(name, folder):
    from llama_cpp import build, convert, score_in_llama_cpp

    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        model = make(name, models=IN_LLAMA_CPP)
        save(model, Path(made))
        convert(build(), Path(made), folder / "model.gguf")
    ids = token_ids(model.config.vocab_size)
    expected = score_in_llama_cpp(folder / "model.gguf", ids).astype(np.float32)
    save_file({"ids": ids, "log_probabilities": expected}, folder / "expected.safetensors")


def write_shards(folder, weights, count):
    names = list(weights)
    shards = [names[i * len(names) // count : (i + 1) * len(names) // count] for i in range(count)]
    weight_map = {}
    for i, shard in enumerate(shards, start=1):
        file = f"model-{i:05}-of-{count:05}.safetensors"
        save_file({name: weights[name] for name in shard}, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    total = sum(weight.nbytes for weight in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else FIXTURES)
    makers = {"kimi_linear": make_kimi_linear, "kimi_k3": make_kimi_k3,
              "kimi_k3_mlx": make_kimi_k3_mlx, "gpt_oss_mxfp4": make_gpt_oss_mxfp4}  # fmt: skip
    for name in MODELS | READ_MODELS:
        makers[name] = lambda path, name=name: write_model(path, make(name))
    for name in IN_GGUF:
        makers[f"{name}_gguf"] = lambda path, name=name: make_gguf(name, path)
    for name in ADAPTERS:
        makers[f"{name}_adapter"] = lambda path, name=name: make_adapter(name, path)
    for name in sys.argv[2:] or makers:
        makers[name](folder / f"{name}_tiny")


if __name__ == "__main__":
    main()
