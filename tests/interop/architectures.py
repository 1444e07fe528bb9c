"""Small random models of several architectures, made by transformers, with all that each may have."""

import json

import torch
from interop import random_weight
from safetensors.torch import save_file
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

FULL, WINDOW = "full_attention", "sliding_attention"
SIZES = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-3, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
ORIGINAL = {"original_max_position_embeddings": 32}


def rope(kind="default", **settings):
    return {"rope_type": kind, "rope_theta": 500.0, **settings}


MODELS = {
    "llama3": lambda sizes: LlamaForCausalLM(LlamaConfig(
        **sizes, head_dim=6, tie_word_embeddings=True,
        rope_parameters=rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             **ORIGINAL))),
    "mistral": lambda sizes: MistralForCausalLM(MistralConfig(
        **sizes, head_dim=8, sliding_window=7, rope_parameters=rope())),
    "qwen2": lambda sizes: Qwen2ForCausalLM(Qwen2Config(
        **sizes, use_sliding_window=True, sliding_window=9, layer_types=[FULL, FULL, WINDOW, WINDOW],
        rope_parameters=rope())),
    "qwen3": lambda sizes: Qwen3ForCausalLM(Qwen3Config(
        **sizes, head_dim=10, tie_word_embeddings=True,
        rope_parameters=rope("yarn", factor=4.0, **ORIGINAL))),
    "smollm3": lambda sizes: SmolLM3ForCausalLM(SmolLM3Config(
        **sizes, no_rope_layers=[1, 0, 1, 0], rope_parameters=rope("linear", factor=2.0))),
    "gemma3": lambda sizes: Gemma3ForCausalLM(Gemma3TextConfig(
        **sizes, head_dim=6, query_pre_attn_scalar=10, sliding_window=5,
        layer_types=[WINDOW, WINDOW, FULL, WINDOW],
        rope_parameters={FULL: rope("linear", factor=8.0), WINDOW: rope() | {"rope_theta": 20.0}})),
    "deepseek_v3": lambda sizes: DeepseekV3ForCausalLM(DeepseekV3Config(
        **sizes | {"num_key_value_heads": 4}, q_lora_rank=10, kv_lora_rank=12, qk_nope_head_dim=6,
        qk_rope_head_dim=4, v_head_dim=5, n_routed_experts=8, num_experts_per_tok=2,
        n_shared_experts=1, moe_intermediate_size=12, first_k_dense_replace=1, n_group=4,
        topk_group=2, routed_scaling_factor=1.7, scoring_func="sigmoid",
        rope_parameters=rope("yarn", factor=4.0, mscale=0.8, mscale_all_dim=0.5, **ORIGINAL))),
}  # fmt: skip

# attnres reads these, and writes them as models of its own.
READ_MODELS = {
    "gpt_oss": lambda sizes: GptOssForCausalLM(GptOssConfig(
        **sizes, head_dim=6, num_local_experts=6, num_experts_per_tok=3, sliding_window=5,
        layer_types=[WINDOW, FULL, WINDOW, FULL][: sizes["num_hidden_layers"]], swiglu_limit=1.5,
        rope_parameters=rope("yarn", factor=4.0, truncate=False, **ORIGINAL))),
    "mixtral": lambda sizes: MixtralForCausalLM(MixtralConfig(
        **sizes, head_dim=8, num_local_experts=5, num_experts_per_tok=2, sliding_window=7,
        rope_parameters=rope())),
    "qwen3_moe": lambda sizes: Qwen3MoeForCausalLM(Qwen3MoeConfig(
        **sizes, head_dim=10, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=12,
        norm_topk_prob=False, use_sliding_window=True, sliding_window=7,
        rope_parameters=rope())),
}  # fmt: skip

# Widths are of blocks of 128 numbers.
IN_FP8 = {
    "qwen3_fp8": lambda sizes: Qwen3ForCausalLM(Qwen3Config(
        **sizes | {"hidden_size": 128, "intermediate_size": 256}, head_dim=64,
        rope_parameters=rope())),
}  # fmt: skip
# Widths are of blocks of 32 numbers.
IN_MXFP4 = {
    "gpt_oss_mxfp4": lambda sizes: READ_MODELS["gpt_oss"](
        sizes | {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}),
}  # fmt: skip


# The same as far as llama.cpp computes them: windows of Gemma's only, the eps of latent norms.
PLAIN_YARN = rope("yarn", factor=4.0, attention_factor=1.3, **ORIGINAL)
IN_LLAMA_CPP = {
    "llama3": MODELS["llama3"],
    "llama": lambda sizes: LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=PLAIN_YARN)),
    "mistral": lambda sizes: MistralForCausalLM(MistralConfig(
        **sizes, head_dim=8, sliding_window=None, rope_parameters=rope())),
    "qwen2": lambda sizes: Qwen2ForCausalLM(Qwen2Config(
        **sizes, use_sliding_window=False, rope_parameters=rope("linear", factor=2.0))),
    "qwen3": MODELS["qwen3"],
    "smollm3": lambda sizes: SmolLM3ForCausalLM(SmolLM3Config(
        **sizes, no_rope_layers=[1, 1, 1, 0], rope_parameters=rope("linear", factor=2.0))),
    "gemma3": lambda sizes: Gemma3ForCausalLM(Gemma3TextConfig(
        **sizes, head_dim=6, query_pre_attn_scalar=6, sliding_window=5,
        layer_types=[WINDOW, WINDOW, FULL, WINDOW],
        rope_parameters={FULL: rope("linear", factor=8.0), WINDOW: rope() | {"rope_theta": 20.0}})),
    "mixtral": lambda sizes: MixtralForCausalLM(MixtralConfig(
        **sizes, head_dim=8, num_local_experts=5, num_experts_per_tok=2, sliding_window=None,
        rope_parameters=rope())),
    "qwen3_moe": lambda sizes: Qwen3MoeForCausalLM(Qwen3MoeConfig(
        **sizes, head_dim=10, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=12,
        norm_topk_prob=True, rope_parameters=rope("linear", factor=2.0))),
    "gpt_oss": lambda sizes: GptOssForCausalLM(GptOssConfig(
        **sizes, head_dim=6, num_local_experts=6, num_experts_per_tok=3, sliding_window=5,
        layer_types=[WINDOW, FULL, WINDOW, FULL],
        rope_parameters=rope("yarn", factor=4.0, **ORIGINAL))),
    "deepseek_v3": lambda sizes: MODELS["deepseek_v3"](
        sizes | {"num_hidden_layers": 2, "rms_norm_eps": 1e-6}),
    "deepseek_v3_lite": lambda sizes: DeepseekV3ForCausalLM(DeepseekV3Config(
        **sizes | {"num_key_value_heads": 4, "rms_norm_eps": 1e-6}, q_lora_rank=None,
        kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, n_routed_experts=6,
        num_experts_per_tok=2, n_shared_experts=2, moe_intermediate_size=12,
        first_k_dense_replace=2, n_group=1, topk_group=1, norm_topk_prob=False,
        scoring_func="sigmoid", rope_parameters=rope())),
}  # fmt: skip


def make(name, vocabulary=40, models=MODELS | READ_MODELS):
    """With weights that matter."""
    model = models[name](SIZES | {"vocab_size": vocabulary}).eval()
    with torch.no_grad():
        buffers = [(n, b) for n, b in model.named_buffers() if n.endswith("correction_bias")]
        for parameter_name, tensor in [*model.named_parameters(), *buffers]:
            weight = random_weight(parameter_name, tuple(tensor.shape))
            if name == "gemma3" and "norm" in parameter_name:
                weight -= 1  # its files hold gains less 1
            tensor.copy_(torch.from_numpy(weight))
    return model


def save_in_mxfp4(model, folder):
    """A gpt-oss whose experts' maps become numbers drawn in MXFP4, and lie in the file as such."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors, draw = {}, torch.Generator().manual_seed(0)
    for name, tensor in model.state_dict().items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            tensors[name] = tensor.contiguous()
            continue
        experts, inputs, outputs = tensor.shape
        size = experts, outputs, inputs // 32
        blocks = torch.randint(256, (*size, 16), dtype=torch.uint8, generator=draw)
        scales = torch.randint(121, 124, size, dtype=torch.uint8, generator=draw)
        numbers = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        tensor.copy_(numbers.view(tensor.shape))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    write_quantized(model, folder, tensors, {"quant_method": "mxfp4"})


def save_in_fp8(model, folder):
    """A model whose maps are rounded to FP8, with a scale for each 128 x 128 numbers."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor.contiguous()
            continue
        blocks = tensor.unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
        scales = blocks.abs().amax((1, 3)) / 448  # the largest number
        numbers = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
        tensors |= {name: numbers.view(tensor.shape), f"{name}_scale_inv": scales}
    form = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [128, 128]}  # fmt: skip
    write_quantized(model, folder, tensors, form)


def write_quantized(model, folder, tensors, form):
    save(model, folder)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = form
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def make_mxfp4(folder):
    model = make("gpt_oss_mxfp4", models=IN_MXFP4)
    save_in_mxfp4(model, folder)
    return model


def save(model, folder):
    """Without what transformers writes beside a model."""
    model.save_pretrained(folder)
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
