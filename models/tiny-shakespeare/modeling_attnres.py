"""Models that attnres trained, in PyTorch.

    AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)

Decoder-only Transformers whose sublayers (self-attention or feed-forward) choose their own inputs
from everything computed before them: Attention Residuals (arXiv 2603.15031), and ways to combine
layers that are compared with it. `attnres` in config.json is the model's part of its recipe.

Written for reading and checking: every mechanism below is its formula as a loop over sublayers, and
nothing is fused or cached, so generation computes the whole sequence for each token. Weights are
read, not made: a new model has zeros where a mechanism has weights of its own.

Notation: L sublayers f_0 .. f_{L-1}; site l is the input of sublayer l, site L that of the head;
v_0 is the token embedding, v_i the output of sublayer i-1; d is the width.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

# The settings that are computed here, and those that older files leave out.
MODEL_KEYS = {
    "layers", "width", "heads", "kv_heads", "head_width", "ffn_width", "attention",
    "grouped_query", "sliding_window", "delta_attention", "latent_attention", "experts",
    "activation", "output_norm", "norm_eps", "rope_theta", "rope_scaling", "embedding_scale",
    "init_std", "tie_embeddings", "depth_mixing",
}  # fmt: skip
LAYER_KEYS = {
    "grouped_query": {"qkv_bias", "qk_norm", "output_bias", "sinks", "score_scale"},
    "sliding_window": {"window", "rope_theta"},
    "rope_scaling": {
        "type", "factor", "original_context", "low_freq_factor", "high_freq_factor", "beta_fast",
        "beta_slow", "attention_factor", "truncate",
    },
    "delta_attention": {"heads", "head_width", "conv_width", "gate_lower_bound", "output_gate"},
    "latent_attention": {
        "kv_rank", "q_rank", "key_width", "shared_key_width", "value_width", "output_gate", "rotary",
        "score_scale",
    },
    "experts": {
        "count", "chosen", "width", "shared", "dense_layers", "scaling", "renormalize",
        "latent_width", "latent_norm", "groups", "chosen_groups", "scores", "router_bias", "bias",
    },
    "activation": {"type", "beta", "linear_beta", "limit"},
}  # fmt: skip
DEFAULTS = {
    "head_width": 0,
    "attention": ["grouped_query"],
    "grouped_query": {"qkv_bias": False, "qk_norm": False, "score_scale": 0},
    "output_norm": False,
    "rope_scaling": {"type": "none"},
    "embedding_scale": 1,
    "experts": {"count": 0},
    "activation": {"type": "silu"},
}


class AttnResConfig(PretrainedConfig):
    model_type = "attnres"

    def __init__(self, attnres=None, **kwargs):
        self.attnres = attnres or {}
        kwargs.setdefault("use_cache", False)
        if attnres:
            self.hidden_size = attnres["width"]
            self.num_hidden_layers = attnres["layers"]
            self.num_attention_heads = attnres["heads"]
            self.initializer_range = attnres["init_std"]
            kwargs["tie_word_embeddings"] = attnres["tie_embeddings"]
        super().__init__(**kwargs)


def refuse_unknown(what, keys, known):
    unknown = sorted(set(keys) - set(known))
    if unknown:
        raise ValueError(f"modeling_attnres.py does not compute {what} {', '.join(unknown)}")


def rms_norm(x, gain, eps):
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * gain


# Sublayers: functions of their normalised input that return only their output.


def rope_frequencies(K, theta, scaling):
    """theta^(-2c/K) for c < K/2, scaled, and the factor of cosine and sine.

    Where a pair turns often, all its positions were seen in the context that was trained first; a
    pair that turns seldom is slowed down by the factor.
    """
    plain = theta ** (-torch.arange(0, K, 2, dtype=torch.float64) / K)
    slow, kind = plain / scaling.get("factor", 1), scaling["type"]
    if kind == "none":
        return plain, 1
    if kind == "linear":
        return slow, 1
    context = scaling["original_context"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = ((context * plain / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        return torch.lerp(slow, plain, kept), 1

    def pair_of_turns(turns):
        return K * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_of_turns(scaling["beta_fast"]), pair_of_turns(scaling["beta_slow"])
    if scaling["truncate"]:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, K - 1)
    last += 0.001 * (first == last)
    slowed = ((torch.arange(K // 2, dtype=torch.float64) - first) / (last - first)).clamp(0, 1)
    magnitude = scaling["attention_factor"] or 0.1 * math.log(scaling["factor"]) + 1
    return torch.lerp(plain, slow, slowed), magnitude


def rotate(x_BHTK, frequencies, magnitude):
    """Rotary positions: channel c is paired with c + K/2 and turned by t f_c."""
    position = torch.arange(x_BHTK.shape[-2], device=x_BHTK.device, dtype=torch.float64)
    angle = torch.outer(position, frequencies.to(x_BHTK.device))
    cos, sin = ((magnitude * wave).to(x_BHTK.dtype) for wave in (angle.cos(), angle.sin()))
    first, second = x_BHTK.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def projection(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def head_width_of(model):
    return model["head_width"] or model["width"] // model["heads"]


class Attention(nn.Module):
    """Causal attention with rotary positions; heads / kv_heads queries share a key and a value."""

    window = 0  # all earlier tokens

    def __init__(self, model):
        super().__init__()
        width, self.settings = model["width"], model["grouped_query"]
        self.head_width = head_width_of(model)
        inner, bias = model["heads"] * self.head_width, self.settings["qkv_bias"]
        shared = model["kv_heads"] * self.head_width
        self.q_proj = nn.Linear(width, inner, bias=bias)
        self.k_proj = nn.Linear(width, shared, bias=bias)
        self.v_proj = nn.Linear(width, shared, bias=bias)
        self.o_proj = nn.Linear(inner, width, bias=self.settings.get("output_bias", False))
        if self.settings["qk_norm"]:
            self.q_norm = nn.RMSNorm(self.head_width, eps=model["norm_eps"])
            self.k_norm = nn.RMSNorm(self.head_width, eps=model["norm_eps"])
        self.sinks = None
        if self.settings.get("sinks", False):
            self.sinks = nn.Parameter(torch.zeros(model["heads"]))
        self.rope_theta, self.rope_scaling = model["rope_theta"], model["rope_scaling"]

    def forward(self, x, mask, present, adapt_heads=None, values=None):
        """adapt_heads changes q, k and v [B, T, H, K] before rotary positions."""
        read = (self.q_proj, x), (self.k_proj, x), (self.v_proj, x if values is None else values)
        q, k, v = (proj(z).unflatten(-1, (-1, self.head_width)) for proj, z in read)
        if self.settings["qk_norm"]:
            q, k = self.q_norm(q), self.k_norm(k)
        if adapt_heads is not None:
            q, k, v = adapt_heads(q, k, v)
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        queries_per_key = q.shape[1] // k.shape[1]
        if self.rope_theta is not None:
            positions = rope_frequencies(self.head_width, self.rope_theta, self.rope_scaling)
            q, k = (rotate(heads, *positions) for heads in (q, k))
        k, v = (heads.repeat_interleave(queries_per_key, 1) for heads in (k, v))
        if self.window > 0:
            mask = mask & torch.ones_like(mask).triu(1 - self.window)
        scale = self.settings["score_scale"] or None
        if self.sinks is None:
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        else:
            o = self.attend_with_sinks(q, k, v, mask, scale or self.head_width**-0.5)
        return self.o_proj(o.transpose(1, 2).flatten(-2))

    def attend_with_sinks(self, q, k, v, mask, scale):
        """A sink is one more score of its head, of which nothing is read."""
        scores = (scale * q @ k.transpose(-1, -2)).masked_fill(~mask, -math.inf)
        sinks = self.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ v


class WindowAttention(Attention):
    """The same over the last tokens, which may have positions of their own."""

    def __init__(self, model):
        super().__init__(model)
        self.window, theta = (model["sliding_window"][key] for key in ("window", "rope_theta"))
        if theta > 0:
            self.rope_theta, self.rope_scaling = theta, {"type": "none"}


class NopeAttention(Attention):
    """The same without positions."""

    def __init__(self, model):
        super().__init__(model)
        self.rope_theta = None


class LatentAttention(nn.Module):
    """Multi-head latent attention (arXiv 2405.04434).

    Keys and values are linear in a latent; every head's key has the same further channels, which
    alone may have rotary positions.
    """

    def __init__(self, model):
        super().__init__()
        self.settings = s = model["latent_attention"]
        self.rope_theta, self.rope_scaling = model["rope_theta"], model["rope_scaling"]
        width, self.heads = model["width"], model["heads"]
        queries = self.heads * (s["key_width"] + s["shared_key_width"])
        values = self.heads * s["value_width"]
        if s["q_rank"] > 0:
            self.q_a_proj = projection(width, s["q_rank"])
            self.q_a_layernorm = nn.RMSNorm(s["q_rank"], eps=1e-6)
            self.q_b_proj = projection(s["q_rank"], queries)
        else:
            self.q_proj = projection(width, queries)
        self.kv_a_proj_with_mqa = projection(width, s["kv_rank"] + s["shared_key_width"])
        self.kv_a_layernorm = nn.RMSNorm(s["kv_rank"], eps=1e-6)
        self.kv_b_proj = projection(s["kv_rank"], self.heads * s["key_width"] + values)
        if s["output_gate"]:
            self.g_proj = projection(width, values)
        self.o_proj = projection(values, width)

    def forward(self, x, mask, present):
        s = self.settings
        if s["q_rank"] > 0:
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        else:
            q = self.q_proj(x)
        q = q.unflatten(-1, (self.heads, -1))
        latent, shared = self.kv_a_proj_with_mqa(x).split([s["kv_rank"], s["shared_key_width"]], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (self.heads, -1))
        k, v = kv.split([s["key_width"], s["value_width"]], -1)
        k = torch.cat([k, shared[:, :, None].expand(-1, -1, self.heads, -1)], -1)
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        if s.get("rotary"):
            q, k = self.turned(q), self.turned(k)
        scale = s.get("score_scale") or None
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        o = o.transpose(1, 2).flatten(-2)
        if s["output_gate"]:
            o = o * self.g_proj(x).sigmoid()
        return self.o_proj(o)


    def turned(self, x_BHTK):
        own, shared = self.settings["key_width"], self.settings["shared_key_width"]
        positions = rope_frequencies(shared, self.rope_theta, self.rope_scaling)
        own, shared = x_BHTK.split([own, shared], -1)
        return torch.cat([own, rotate(shared, *positions)], -1)


class DeltaAttention(nn.Module):
    """Kimi Delta Attention (arXiv 2510.26692): for every head and token,

    S = diag(e^g) S,  S = S + beta k (v - S^T k)^T,  o = S^T q
    """

    def __init__(self, model):
        super().__init__()
        self.settings = s = model["delta_attention"]
        width, heads, head_width = model["width"], s["heads"], s["head_width"]
        inner = heads * head_width
        for name in "qkv":
            convolution = nn.Conv1d(inner, inner, s["conv_width"], groups=inner, bias=False)
            self.add_module(f"{name}_proj", projection(width, inner))
            self.add_module(f"{name}_conv1d", convolution)
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.dt_bias = nn.Parameter(torch.zeros(inner))
        self.f_a_proj = projection(width, head_width)
        self.f_b_proj = projection(head_width, inner)
        self.b_proj = projection(width, heads)
        if s["output_gate"] == "low_rank":
            self.g_a_proj = projection(width, head_width)
            self.g_b_proj = projection(head_width, inner)
        else:
            self.g_proj = projection(width, inner)
        self.o_norm = nn.RMSNorm(head_width, eps=model["norm_eps"])
        self.o_proj = projection(inner, width)

    def by_head(self, x):
        return x.unflatten(-1, (self.settings["heads"], -1))

    def convolved(self, name, x):
        """The last conv_width tokens' projections, float32 [B, T, H, K]."""
        z = self.get_submodule(f"{name}_proj")(x).transpose(1, 2)
        z = F.pad(z, (self.settings["conv_width"] - 1, 0))
        z = F.silu(self.get_submodule(f"{name}_conv1d")(z))
        return self.by_head(z.transpose(1, 2)).float()

    def log_decay(self, x):
        z = self.by_head(self.f_b_proj(self.f_a_proj(x)).float() + self.dt_bias.float())
        rate, bound = self.A_log.float().exp()[:, None], self.settings["gate_lower_bound"]
        return bound * (rate * z).sigmoid() if bound < 0 else -rate * F.softplus(z)

    def forward(self, x, mask, present, values=None):
        values = x if values is None else values
        if present is not None:  # a token left out changes neither the state nor the convolutions
            x, values = (z * present[..., None].to(z.dtype) for z in (x, values))
        q, k, v = (self.convolved(name, z) for name, z in zip("qkv", (x, x, values)))
        q, k = (z * torch.rsqrt(z.square().sum(-1, keepdim=True) + 1e-6) for z in (q, k))
        q = q / math.sqrt(q.shape[-1])
        decay, beta = self.log_decay(x).exp(), self.b_proj(x).float().sigmoid()

        B, T, H, K = q.shape
        S, outputs = q.new_zeros(B, H, K, K), []
        for t in range(T):
            S = decay[:, t, :, :, None] * S
            error = v[:, t] - torch.einsum("bhkv,bhk->bhv", S, k[:, t])
            S = S + torch.einsum("bh,bhk,bhv->bhkv", beta[:, t], k[:, t], error)
            outputs.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]))

        low_rank = self.settings["output_gate"] == "low_rank"
        gate = self.g_b_proj(self.g_a_proj(x)) if low_rank else self.g_proj(x)
        o = self.o_norm(torch.stack(outputs, 1).to(x.dtype)) * self.by_head(gate).sigmoid()
        return self.o_proj(o.flatten(-2))


ATTENTIONS = {
    "grouped_query": Attention,
    "sliding_window": WindowAttention,
    "nope": NopeAttention,
    "latent": LatentAttention,
    "delta": DeltaAttention,
}


def activate(activation, gate, up):
    """silu(gate) up, gelu(gate) up, or gpt-oss' or Kimi K3's, in which both are bounded."""
    if activation["type"] == "silu":
        return F.silu(gate) * up
    if activation["type"] == "gelu_tanh":
        return F.gelu(gate, approximate="tanh") * up
    if activation["type"] == "swiglu_oai":
        gate, up = gate.clamp(max=activation["limit"]), up.clamp(-activation["limit"], activation["limit"])
        return gate * (1.702 * gate).sigmoid() * (up + 1)
    beta, linear_beta = activation["beta"], activation["linear_beta"]
    if linear_beta > 0:
        up = linear_beta * (up / linear_beta).tanh()
    return beta * (gate / beta).tanh() * gate.sigmoid() * up


class FeedForward(nn.Module):
    def __init__(self, model, hidden):
        super().__init__()
        self.activation = model["activation"]
        self.gate_proj = projection(model["width"], hidden)
        self.up_proj = projection(model["width"], hidden)
        self.down_proj = projection(hidden, model["width"])

    def forward(self, x):
        return self.down_proj(activate(self.activation, self.gate_proj(x), self.up_proj(x)))


class Expert(nn.Module):
    def __init__(self, width, hidden, activation, bias):
        super().__init__()
        self.activation = activation
        self.w1, self.w3 = (nn.Linear(width, hidden, bias=bias) for _ in range(2))
        self.w2 = nn.Linear(hidden, width, bias=bias)

    def forward(self, x):
        return self.w2(activate(self.activation, self.w1(x), self.w3(x)))


class Experts(nn.Module):
    """sum_e w_e f_e(x) + f_shared(x) over the experts with the largest s(W x) + bias,

    s sigmoid or softmax, w_e their s(W x), without the bias, scaled, and before that divided by its sum where they
    renormalize. With a latent width the routed experts work on a projection of x.
    """

    def __init__(self, model):
        super().__init__()
        self.settings = s = model["experts"]
        width, latent = model["width"], s["latent_width"]
        self.gate = nn.Linear(width, s["count"], bias=s.get("router_bias", False))
        self.gate.register_buffer("e_score_correction_bias", torch.zeros(s["count"]))
        self.experts = nn.ModuleList(
            Expert(latent or width, s["width"], model["activation"], s.get("bias", False))
            for _ in range(s["count"])
        )
        if latent > 0:
            self.routed_expert_down_proj = projection(width, latent)
            if s.get("latent_norm", True):
                self.routed_expert_norm = nn.RMSNorm(latent, eps=model["norm_eps"])
            self.routed_expert_up_proj = projection(latent, width)
        if s["shared"] > 0:
            self.shared_experts = FeedForward(model, s["shared"] * s["width"])

    def in_chosen_groups(self, biased):
        """Of the groups whose two best have the largest sums; the others' become -infinity."""
        groups, chosen = self.settings.get("groups", 1), self.settings.get("chosen_groups", 1)
        if chosen == groups:
            return biased
        by_group = biased.unflatten(-1, (groups, -1))
        best = by_group.topk(2, -1).values.sum(-1).topk(chosen, -1).indices
        left_out = torch.ones(by_group.shape[:-1], dtype=torch.bool, device=biased.device)
        left_out.scatter_(-1, best, False)
        return by_group.masked_fill(left_out[..., None], -math.inf).flatten(-2)

    def route(self, x):
        """The weight of every expert, zero for those not chosen, [..., E]."""
        bias = None if self.gate.bias is None else self.gate.bias.float()
        logits = F.linear(x.float(), self.gate.weight.float(), bias)
        is_softmax = self.settings.get("scores", "sigmoid") == "softmax"
        scores = logits.softmax(-1) if is_softmax else logits.sigmoid()
        biased = self.in_chosen_groups(scores + self.gate.e_score_correction_bias)
        chosen = biased.topk(self.settings["chosen"], -1).indices
        weights = scores.gather(-1, chosen)
        if self.settings.get("renormalize", True):
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        weights = self.settings["scaling"] * weights
        return torch.zeros_like(scores).scatter(-1, chosen, weights).to(x.dtype)

    def forward(self, x):
        weights, latent = self.route(x), self.settings["latent_width"] > 0
        z = self.routed_expert_down_proj(x) if latent else x
        y = torch.zeros_like(z)
        for e, expert in enumerate(self.experts):
            chose = weights[..., e] > 0
            y[chose] = y[chose] + weights[..., e][chose][:, None] * expert(z[chose])
        if latent:
            if self.settings.get("latent_norm", True):
                y = self.routed_expert_norm(y)
            y = self.routed_expert_up_proj(y)
        return y + self.shared_experts(x) if self.settings["shared"] > 0 else y


class Layer(nn.Module):
    def __init__(self, model, index):
        super().__init__()
        kinds, experts = model["attention"], model["experts"]
        self.self_attn = ATTENTIONS[kinds[index % len(kinds)]](model)
        self.has_experts = experts["count"] > 0 and index >= experts["dense_layers"]
        if self.has_experts:
            self.block_sparse_moe = Experts(model)
        else:
            self.mlp = FeedForward(model, model["ffn_width"])
        self.self_attention_output_norm = self.mlp_output_norm = None
        if model["output_norm"]:
            width, eps = model["width"], model["norm_eps"]
            self.self_attention_output_norm = nn.RMSNorm(width, eps=eps)
            self.mlp_output_norm = nn.RMSNorm(width, eps=eps)

    def attend(self, *arguments, **values):
        y, norm = self.self_attn(*arguments, **values), self.self_attention_output_norm
        return y if norm is None else norm(y)

    def feed_forward(self, x):
        y = self.block_sparse_moe(x) if self.has_experts else self.mlp(x)
        return y if self.mlp_output_norm is None else self.mlp_output_norm(y)


# Mechanisms: everything between sublayers.


class Mechanism:
    """A way to combine layers.

    parameters(l) names the learned tensors of site l and their shapes; combine(v, f, w) goes from
    the embedding v to the input of the head, f(l, x) being sublayer l and w(l, name) a tensor.
    """

    settings = ()
    defaults = {}  # of settings that older files leave out

    def __init__(self, model, settings):
        name = settings["type"]
        refuse_unknown(f"{name} with", settings, {"type", *self.settings})
        self.L, self.d, self.eps = 2 * model["layers"], model["width"], model["norm_eps"]
        self.head_width = head_width_of(model)
        self.model = model
        for key in self.settings:
            setattr(self, key, settings[key] if key in settings else self.defaults[key])

    def norm(self, x, gain):
        return rms_norm(x, gain, self.eps)

    def parameters(self, l):
        return {"input_norm": [self.d]}


class Residual(Mechanism):
    """h_{l+1} = h_l + f_l(norm(h_l))"""

    def combine(self, v, f, w):
        h = v
        for l in range(self.L):
            h = h + f(l, self.norm(h, w(l, "input_norm")))
        return self.norm(h, w(self.L, "input_norm"))


class BlockAttnRes(Mechanism):
    """h_l = sum_i alpha_{i->l} b_i, alpha = softmax_i(c w_l . (g_l * RMS(b_i)))

    over the sums b_i of blocks of sublayers, b_0 the embedding, the last the block's sum so far. A
    finished block may be the sum of its outputs' RMS in its place. An attention's values may read
    the same with a second pseudo-query w'_l.
    """

    settings = (
        "block_size", "query", "weights", "key_norm", "window", "heads", "norm_eps", "query_init",
        "score_scale", "value_query", "block_summary",
    )  # fmt: skip
    defaults = {"score_scale": 1, "value_query": False, "block_summary": "sum"}

    def num_sources(self, l):
        return 1 + min(math.ceil(l / self.block_size), self.window)

    def reads_values(self, l):
        return self.value_query and l % 2 == 0 and 0 < l < self.L

    def parameters(self, l):
        names = {"input_norm": [self.d]}
        if l == 0:
            return names
        if self.reads_values(l):
            names["value_query"] = [1, self.d]
        if self.query == "none":
            return names | {"mixing_logits": [self.num_sources(l)]}
        if self.query == "learned":
            names["pseudo_query"] = [1, self.d]
        else:
            names["query_proj"] = [self.d, self.d]
        if self.key_norm:
            names["key_norm"] = [self.d]
        if self.score_scale == "learned":
            names["log_score_scale"] = [1]
        return names

    def combine(self, v, f, w):
        blocks, outputs, h = [v], [], v
        for l in range(self.L + 1):
            if l > 0 and l % self.block_size == 0:
                blocks, outputs = blocks + [self.summary(outputs)], []
            sources = blocks + [sum(outputs)] if outputs else blocks
            sources = [sources[0]] + sources[1:][-self.window :]
            per_source_count = self.norm_eps == "per_source_count"
            eps = self.eps / len(sources) ** 2 if per_source_count else self.eps
            if l > 0:
                h = self.mix(l, torch.stack(sources), self.query_of(l, h, w), w)
            x, values = rms_norm(h, w(l, "input_norm"), eps), {}
            if self.reads_values(l):
                other = self.mix(l, torch.stack(sources), w(l, "value_query")[0], w)
                values["values"] = rms_norm(other, w(l, "input_norm"), eps)
            if l < self.L:
                outputs = outputs + [f(l, x, **values)]
        return x

    def summary(self, outputs):
        normed = self.block_summary == "rms"
        return sum(rms_norm(y, 1, self.eps) if normed else y for y in outputs)

    def query_of(self, l, h_before, w):
        if self.query == "input_dependent":
            return F.linear(h_before, w(l, "query_proj"))
        return w(l, "pseudo_query")[0] if self.query == "learned" else None

    def mix(self, l, v_NBTD, query, w):
        values = v_NBTD.unflatten(-1, (self.heads, -1))
        weights = self.weigh(self.scores(l, v_NBTD.float(), query, w))
        return (weights.to(values.dtype)[..., None] * values).sum(0).flatten(-2)

    def weigh(self, scores):
        if self.weights == "factorised":
            return scores / scores.sum(0)
        return scores.softmax(0) if self.weights == "softmax" else scores.sigmoid()

    def scale(self, l, w):
        if self.score_scale == "learned":
            return w(l, "log_score_scale").float().exp()
        return self.d**-0.5 if self.score_scale == "1/sqrt(d)" else self.score_scale

    def scores(self, l, v_NBTD, query, w):
        """[N, B, T, heads]"""
        if self.query == "none":
            return w(l, "mixing_logits").float()[:, None, None, None]
        keys = v_NBTD
        if self.key_norm:
            keys = rms_norm(v_NBTD, w(l, "key_norm").float(), self.eps)
        query = self.scale(l, w) * query.float()
        if self.weights == "factorised":
            query, keys = (x.clamp(max=0).exp() + x.relu() for x in (query, keys))
        return (query * keys).unflatten(-1, (self.heads, -1)).sum(-1)


class AttnRes(BlockAttnRes):
    """Blocks of one sublayer."""

    settings = BlockAttnRes.settings[1:-1]
    block_size, block_summary = 1, "sum"


class DeltaAttnRes(Mechanism):
    """h_l = r_l + a_l sum_i softmax_i(w_l . (g_l * RMS(b_i))) b_i, r_{l+1} = r_l + f_l(norm(h_l))

    over the embedding b_0, what finished blocks added to r, and what the open block has so far.
    """

    settings = "block_size", "gate"

    def parameters(self, l):
        names = {"input_norm": [self.d]}
        if 0 < l < self.L:
            names |= {"pseudo_query": [1, self.d], "key_norm": [self.d]}
            names |= {} if self.gate == "none" else {"mixture_gate": [1]}
        return names

    def combine(self, v, f, w):
        r, blocks, partial = v, [v], None
        for l in range(self.L + 1):
            h = r
            if 0 < l < self.L:
                if l % self.block_size == 0:
                    blocks, partial = blocks + [partial], None
                mixture = self.mix(l, blocks if partial is None else blocks + [partial], w)
                h = r + (mixture if self.gate == "none" else w(l, "mixture_gate") * mixture)
            x = self.norm(h, w(l, "input_norm"))
            if l < self.L:
                y = f(l, x)
                r, partial = r + y, y if partial is None else partial + y
        return x

    def mix(self, l, sources, w):
        v_NBTD = torch.stack(sources)
        keys = rms_norm(v_NBTD.float(), w(l, "key_norm").float(), self.eps)
        weights = (w(l, "pseudo_query")[0].float() * keys).sum(-1, keepdim=True).softmax(0)
        return (weights.to(v_NBTD.dtype) * v_NBTD).sum(0)


class GatedResidual(Mechanism):
    """R_i <- R_i + s_i f_l(mean_i(G_i * N_i)), N_i = g_i * RMS(R_i) over n streams

    G = sigmoid(U silu(D N / n)), s = 2 sigmoid(W N / n), of all N side by side.
    """

    settings = "streams", "rank"

    def parameters(self, l):
        n, all_streams = self.streams, self.streams * self.d
        names = {"stream_norm": [n, self.d], "gate_down": [self.rank, all_streams]}
        names["gate_up"] = [all_streams, self.rank]
        return names | ({"write_gate": [n, all_streams]} if l < self.L else {})

    def combine(self, v, f, w):
        n = self.streams
        R = v.unsqueeze(-2).repeat_interleave(n, -2)
        for l in range(self.L + 1):
            N = self.norm(R, w(l, "stream_norm"))
            flat = N.flatten(-2)
            inner = F.silu(F.linear(flat, w(l, "gate_down")) / n)
            gates = F.linear(inner, w(l, "gate_up")).sigmoid()
            x = (gates.view_as(N) * N).mean(-2)
            if l < self.L:
                s = 2 * (F.linear(flat, w(l, "write_gate")) / n).sigmoid()
                R = R + s.unsqueeze(-1) * f(l, x).unsqueeze(-2)
        return x


class PostNorm(Mechanism):
    """h_{l+1} = norm(alpha h_l + f_l(h_l)), alpha = 1"""

    def alpha(self):
        return 1

    def parameters(self, l):
        return {"post_norm": [self.d]} if l < self.L else {}

    def combine(self, v, f, w):
        h = v
        for l in range(self.L):
            h = self.norm(self.alpha() * h + f(l, h), w(l, "post_norm"))
        return h


class DeepNorm(PostNorm):
    """alpha = (2J)^(1/4) with J Transformer layers"""

    def alpha(self):
        return self.L**0.25


class Keel(Mechanism):
    """h_{l+1} = norm(alpha_l h_l + f_l(norm(h_l))), alpha = L

    but 1 in the first Transformer layer, and no outer norm at site 0.
    """

    def parameters(self, l):
        if l == self.L:
            return {}
        return {"input_norm": [self.d]} | ({"post_norm": [self.d]} if l > 0 else {})

    def combine(self, v, f, w):
        h = v
        for l in range(self.L):
            alpha = 1 if l < 2 else self.L
            h = alpha * h + f(l, self.norm(h, w(l, "input_norm")))
            if l > 0:
                h = self.norm(h, w(l, "post_norm"))
        return h


class HybridNorm(Mechanism):
    """u = norm(h + attention(h)), h = u + ffn(u), with q, k and v normed per head"""

    settings = ("first_layer_pre_norm",)

    def pre_norm(self, l):
        return self.first_layer_pre_norm and l < 2

    def parameters(self, l):
        at_attention = l % 2 == 0 and l < self.L
        names = {} if at_attention and not self.pre_norm(l) else {"input_norm": [self.d]}
        if at_attention:
            names |= {role: [self.head_width] for role in ("q_norm", "k_norm", "v_norm")}
        return names

    def combine(self, v, f, w):
        h = v
        for l in range(0, self.L, 2):

            def norm_heads(q, k, v, l=l):
                return (self.norm(x, w(l, f"{name}_norm")) for name, x in zip("qkv", (q, k, v)))

            if self.pre_norm(l):
                h = h + f(l, self.norm(h, w(l, "input_norm")), norm_heads)
                h = h + f(l + 1, self.norm(h, w(l + 1, "input_norm")))
            else:
                u = self.norm(h + f(l, h, norm_heads), w(l + 1, "input_norm"))
                h = u + f(l + 1, u)
        return self.norm(h, w(self.L, "input_norm"))


class SiameseNorm(Mechanism):
    """o = f(norm(norm(x) + norm(y))), x = norm(x) + o / c, y = y + o, c = sqrt(2(j+1))"""

    settings = "depth_scaling", "input_norm"

    def parameters(self, l):
        roles = ["x_norm", "y_norm"] + ["input_norm"] * self.input_norm
        return {role: [self.d] for role in roles}

    def combine(self, v, f, w):
        x = y = v
        for l in range(self.L + 1):
            x = self.norm(x, w(l, "x_norm"))
            s = x + self.norm(y, w(l, "y_norm"))
            if self.input_norm:
                s = self.norm(s, w(l, "input_norm"))
            if l < self.L:
                o = f(l, s)
                c = math.sqrt(2 * (l // 2 + 1)) if self.depth_scaling else 1
                x, y = x + o / c, y + o
        return s


class Rezero(Mechanism):
    """h_{l+1} = h_l + a_j f_l(h_l), a_j of Transformer layer j"""

    def parameters(self, l):
        return {"residual_weight": [1]} if l % 2 == 0 and l < self.L else {}

    def combine(self, v, f, w):
        h = v
        for l in range(self.L):
            h = h + w(l - l % 2, "residual_weight") * f(l, h)
        return h


class LayerScale(Mechanism):
    """h_{l+1} = h_l + lambda_l * f_l(norm(h_l))"""

    def parameters(self, l):
        return {"input_norm": [self.d]} | ({"layer_scale": [self.d]} if l < self.L else {})

    def combine(self, v, f, w):
        h = v
        for l in range(self.L):
            h = h + w(l, "layer_scale") * f(l, self.norm(h, w(l, "input_norm")))
        return self.norm(h, w(self.L, "input_norm"))


class Highway(Mechanism):
    """h_{l+1} = (1 - g) * h_l + g * f_l(norm(h_l)), g = sigmoid(W h_l + b)"""

    def parameters(self, l):
        gate = {"transform_gate": [self.d, self.d], "transform_gate_bias": [self.d]}
        return {"input_norm": [self.d]} | (gate if l < self.L else {})

    def combine(self, v, f, w):
        h = v
        for l in range(self.L):
            g = F.linear(h, w(l, "transform_gate"), w(l, "transform_gate_bias")).sigmoid()
            h = (1 - g) * h + g * f(l, self.norm(h, w(l, "input_norm")))
        return self.norm(h, w(self.L, "input_norm"))


class DenseNet(Mechanism):
    """h_l = P_l [v_0; ..; v_l]"""

    def parameters(self, l):
        return {"input_norm": [self.d], "dense_proj": [self.d, (l + 1) * self.d]}

    def combine(self, v, f, w):
        sources = [v]
        for l in range(self.L + 1):
            h = F.linear(torch.cat(sources, -1), w(l, "dense_proj"))
            x = self.norm(h, w(l, "input_norm"))
            if l < self.L:
                sources.append(f(l, x))
        return x


class DenseFormer(Mechanism):
    """form "report": h_l = sum_{i<=l} alpha_{i->l} v_i over sublayers without residuals

    form "original": X_j = sum_{i<=j} alpha_{i->j} Z_i over Transformer layers with inner residuals,
    Z_0 the embedding and Z_{i+1} = layer_i(X_i).
    """

    settings = ("form",)

    def parameters(self, l):
        step = 2 if self.form == "original" else 1
        mixes = l > 0 and l % step == 0
        return {"input_norm": [self.d]} | ({"depth_weights": [1 + l // step]} if mixes else {})

    def combine(self, v, f, w):
        sources, per_layer = [v], self.form == "original"
        for l in range(self.L + 1):
            if l == 0:
                h = v
            elif l % 2 == 0 or not per_layer:
                h = sum(alpha * source for alpha, source in zip(w(l, "depth_weights"), sources))
            x = self.norm(h, w(l, "input_norm"))
            if l == self.L:
                return x
            y = f(l, x)
            if per_layer:
                h = y = h + y
            if l % 2 == 1 or not per_layer:
                sources.append(y)


class Ancre(Mechanism):
    """X_{j+1} = layer_j(X_j) + sum_{i<=j} softmax_i(c_j / tau) X_i, layers with inner residuals"""

    settings = ("temperature",)

    def parameters(self, l):
        mixes = l % 2 == 1 and l > 1
        return {"input_norm": [self.d]} | ({"connections": [l // 2 + 1]} if mixes else {})

    def combine(self, v, f, w):
        states = [v]
        for l in range(0, self.L, 2):
            h = states[-1]
            h = h + f(l, self.norm(h, w(l, "input_norm")))
            h = h + f(l + 1, self.norm(h, w(l + 1, "input_norm")))
            p = [1.0]
            if l > 0:
                p = (w(l + 1, "connections").float() / self.temperature).softmax(0).to(v.dtype)
            states.append(h + sum(weight * state for weight, state in zip(p, states)))
        return self.norm(states[-1], w(self.L, "input_norm"))


class SkNet(Mechanism):
    """h_l = sum_i a_i * v_i, a = softmax_i(B_i z) per channel, z = relu(norm(W sum_i v_i))"""

    def parameters(self, l):
        names, m = {"input_norm": [self.d]}, max(self.d // 16, 32)
        if l > 0:
            names |= {"fuse_proj": [m, self.d], "fuse_norm": [m]}
            names |= {"select_proj": [(l + 1) * self.d, m]}
        return names

    def combine(self, v, f, w):
        sources, h = [v], v
        for l in range(self.L + 1):
            if l > 0:
                z = self.norm(F.linear(sum(sources), w(l, "fuse_proj")), w(l, "fuse_norm")).relu()
                scores = F.linear(z, w(l, "select_proj")).unflatten(-1, (l + 1, self.d))
                a = scores.float().softmax(-2).to(v.dtype)
                h = (a * torch.stack(sources, -2)).sum(-2)
            x = self.norm(h, w(l, "input_norm"))
            if l < self.L:
                sources.append(f(l, x))
        return x


class ValueResidual(Mechanism):
    """residual; in attention v <- lambda_1 v_first + lambda_2 v"""

    settings = ("learned",)

    def parameters(self, l):
        mixes = self.learned and l % 2 == 0 and 0 < l < self.L
        return {"input_norm": [self.d]} | ({"value_mix": [2]} if mixes else {})

    def combine(self, v, f, w):
        h, first = v, None
        for l in range(self.L):

            def mix_values(q, k, v, l=l):
                nonlocal first
                if l == 0:
                    first = v
                    return q, k, v
                own = w(l, "value_mix") if self.learned else (0.5, 0.5)
                return q, k, own[0] * first + own[1] * v

            x = self.norm(h, w(l, "input_norm"))
            h = h + (f(l, x, mix_values) if l % 2 == 0 else f(l, x))
        return self.norm(h, w(self.L, "input_norm"))


class Laurel(Mechanism):
    """h_{l+1} = a f_l(norm(h_l)) + b (h_l + sum_k gamma_k B_k A_k h_{l-k})

    variant rw: (a, b) = 2 softmax(s), else 1; lr: k = 0 without gamma; pa: k = 0, 1, 2.
    """

    settings = "variant", "rank"

    def maps(self, l):
        """The endings of the maps' names, by k."""
        if self.variant.endswith("pa"):
            return [f"_{k}" for k in range(min(l + 1, 3))]
        return [""] if self.variant.endswith("lr") else []

    def parameters(self, l):
        names = {"input_norm": [self.d]}
        if l == self.L:
            return names
        if self.variant.startswith("rw"):
            names["residual_weights"] = [2]
        for end in self.maps(l):
            names[f"low_rank_down{end}"] = [self.rank, self.d]
            names[f"low_rank_up{end}"] = [self.d, self.rank]
            if end:
                names[f"gamma{end}"] = [1]
        return names

    def combine(self, v, f, w):
        states = [v]  # the newest first
        for l in range(self.L):
            skip = states[0]
            for state, end in zip(states, self.maps(l)):
                mapped = F.linear(state, w(l, f"low_rank_down{end}"))
                mapped = F.linear(mapped, w(l, f"low_rank_up{end}"))
                skip = skip + (w(l, f"gamma{end}") * mapped if end else mapped)
            a = b = 1
            if self.variant.startswith("rw"):
                a, b = 2 * w(l, "residual_weights").float().softmax(0).to(v.dtype)
            y = f(l, self.norm(states[0], w(l, "input_norm")))
            states.insert(0, a * y + b * skip)
        return self.norm(states[0], w(self.L, "input_norm"))


class ScalarMix(Mechanism):
    """residual; the head reads gamma norm(sum_j softmax(s)_j X_j) over the states X_j before
    Transformer layers, and the last"""

    def parameters(self, l):
        names = {"input_norm": [self.d]}
        if l == self.L:
            names |= {"layer_logits": [self.L // 2 + 1], "gamma": [1]}
        return names

    def combine(self, v, f, w):
        h, states = v, [v]
        for l in range(self.L):
            h = h + f(l, self.norm(h, w(l, "input_norm")))
            if l % 2 == 1:
                states.append(h)
        weights = w(self.L, "layer_logits").float().softmax(0).to(v.dtype)
        mixed = sum(weight * state for weight, state in zip(weights, states))
        return w(self.L, "gamma") * self.norm(mixed, w(self.L, "input_norm"))


MECHANISMS = {
    "residual": Residual,
    "attn_res": AttnRes,
    "block_attn_res": BlockAttnRes,
    "delta_attn_res": DeltaAttnRes,
    "gated_residual": GatedResidual,
    "post_norm": PostNorm,
    "hybrid_norm": HybridNorm,
    "rezero": Rezero,
    "layer_scale": LayerScale,
    "highway": Highway,
    "deep_norm": DeepNorm,
    "keel": Keel,
    "siamese_norm": SiameseNorm,
    "dense_net": DenseNet,
    "dense_former": DenseFormer,
    "ancre": Ancre,
    "sknet": SkNet,
    "value_residual": ValueResidual,
    "laurel": Laurel,
    "scalar_mix": ScalarMix,
}

# Names in the file of what sites have, beside those in `..._depth_mixing`.
NAMES = {
    "attention": {
        "input_norm": "input_layernorm",
        "pseudo_query": "self_attention_res_proj",
        "key_norm": "self_attention_res_norm",
    },
    "feed-forward": {
        "input_norm": "post_attention_layernorm",
        "pseudo_query": "mlp_res_proj",
        "key_norm": "mlp_res_norm",
    },
    "output": {
        "input_norm": "norm",
        "pseudo_query": "output_attn_res_proj",
        "key_norm": "output_attn_res_norm",
    },
}


def tensor_name(site, role, sublayers):
    """Where a mechanism's tensor stands in the model, and in its file after `model.`."""
    at_output, at_attention = site == sublayers, site % 2 == 0
    kind = "output" if at_output else "attention" if at_attention else "feed-forward"
    layer = "" if at_output else f"layers.{site // 2}."
    if role in NAMES[kind]:
        return f"{layer}{NAMES[kind][role]}.weight"
    place = "output" if at_output else "self_attention" if at_attention else "mlp"
    return f"{layer}{place}_depth_mixing.{role}"


class AttnResModel(nn.Module):
    """From token ids to the input of the head."""

    def __init__(self, config):
        super().__init__()
        model = DEFAULTS | config.attnres
        refuse_unknown("the setting", model, MODEL_KEYS)
        for key, known in LAYER_KEYS.items():
            refuse_unknown(f"{key} with", model.get(key, {}), known)
        refuse_unknown("the attention", model["attention"], ATTENTIONS)
        mixing = model["depth_mixing"]
        refuse_unknown("the mechanism", [mixing["type"]], MECHANISMS)
        self.sublayers = 2 * model["layers"]
        self.embed_tokens = nn.Embedding(config.vocab_size, model["width"])
        self.embedding_scale = model["embedding_scale"]
        self.layers = nn.ModuleList(Layer(model, j) for j in range(model["layers"]))
        self.mechanism = MECHANISMS[mixing["type"]](model, mixing)
        for site in range(self.sublayers + 1):
            for role, shape in self.mechanism.parameters(site).items():
                self.add_parameter(tensor_name(site, role, self.sublayers), shape)

    def add_parameter(self, name, shape):
        *path, leaf = name.split(".")
        module = self
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        module.register_parameter(leaf, nn.Parameter(torch.zeros(shape)))

    def mixing_weight(self, site, role):
        return self.get_parameter(tensor_name(site, role, self.sublayers))

    def forward(self, input_ids, attention_mask=None):
        T = input_ids.shape[1]
        mask = torch.ones(T, T, dtype=torch.bool, device=input_ids.device).tril()
        if attention_mask is not None:
            padding = ~attention_mask.bool()[:, None, None, :]
            mask = mask & ~padding | torch.eye(T, dtype=torch.bool, device=input_ids.device)

        def sublayer(site, x, *adapt_heads, **values):
            layer = self.layers[site // 2]
            if site % 2 == 1:
                return layer.feed_forward(x)
            return layer.attend(x, mask, attention_mask, *adapt_heads, **values)

        embeddings = self.embedding_scale * self.embed_tokens(input_ids)
        return self.mechanism.combine(embeddings, sublayer, self.mixing_weight)


class AttnResForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = AttnResConfig
    base_model_prefix = "model"
    _no_split_modules = ["Layer"]

    def __init__(self, config):
        super().__init__(config)
        self.model = AttnResModel(config)
        # A tied head is the embedding, and has no tensor of its own.
        self.lm_head = None
        if not config.tie_word_embeddings:
            width = config.attnres["width"]
            self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def get_output_embeddings(self):
        return self.lm_head

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **_):
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def forward(self, input_ids, attention_mask=None, labels=None, **_):
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        logits = F.linear(self.model(input_ids, attention_mask), head.weight)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits)
