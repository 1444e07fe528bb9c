"""Checks attnres.retrofit: python tests/python/retrofit_check.py build/attnres

The retrofitted model against its equations in float64, copies of it, and what it saves: loaded here
and scored by the program, and what the program trains from there loaded here. The models stand for
those of transformers, which tests/interop/check_retrofit.py has.
"""

import copy
import json
import math
import pickle
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from package_check import (
    EPS,
    WIDTH,
    naive_delta_inputs,
    naive_inputs,
    parameters_of,
    refused,
    worst_difference,
)
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import attnres


class MiniAttention(nn.Module):
    """Stands for an attention of transformers: of keyword arguments, and a tuple as its result."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, hidden_states, scale):
        return self.proj(hidden_states).sin() * scale, None


class CheckpointedLayer(nn.Module):
    """Stands for the base of transformers' layers, which checkpoints the forward of their class."""

    checkpointing, use_reentrant = False, False

    def __init_subclass__(cls):
        forward = cls.forward

        def checkpointed(self, *arguments, **named):
            if not (self.checkpointing and type(self).forward is checkpointed):
                return forward(self, *arguments, **named)
            run = partial(forward, self, **named)
            return checkpoint(run, *arguments, use_reentrant=self.use_reentrant)

        cls.forward = checkpointed


class MiniLayer(CheckpointedLayer):
    def __init__(self):
        super().__init__()
        norm = {"eps": 0.1, "dtype": torch.float64}  # large: it matters where it stands
        self.self_attn, self.mlp = MiniAttention(), nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.input_layernorm = nn.RMSNorm(WIDTH, **norm)
        self.post_attention_layernorm = nn.RMSNorm(WIDTH, **norm)

    def forward(self, x, scale):
        x = x + self.self_attn(self.input_layernorm(x), scale)[0]
        return x + self.mlp(self.post_attention_layernorm(x))


class MiniDecoder(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(MiniLayer() for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH, eps=0.1, dtype=torch.float64)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, scale=0.7)
        return self.norm(x)


def sublayers_of(model):
    """Behind their norms, as functions of what they read."""
    sublayers = []
    for layer in model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        sublayers.append(lambda h, f=attention, g=layer.input_layernorm: f(g(h), scale=0.7)[0])
        sublayers.append(lambda h, f=mlp, g=layer.post_attention_layernorm: f(g(h)))
    return sublayers


def check_retrofit():
    model, x = MiniDecoder(), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    before, names = model(x), {name for name, _ in model.named_parameters()}
    mix = attnres.retrofit(model, block_size=4)
    assert worst_difference([model(x)], [before]) < 1e-12
    assert names <= {name for name, _ in model.named_parameters()}

    for parameter in mix.parameters():
        nn.init.normal_(parameter, std=1)
    sublayers = sublayers_of(model)

    def attend_counted(sources, query, key_gain, eps=0.1, counted=True):
        values = torch.stack(sources)
        keys = key_gain * values / (values.square().mean(-1, keepdim=True) + eps).sqrt()
        h = ((keys @ query).softmax(0)[..., None] * values).sum(0)
        return len(sources) * h if counted else h

    parameters = parameters_of(mix)
    norm = nn.RMSNorm(WIDTH, eps=0.1, dtype=torch.float64)
    expected = norm(naive_inputs(x, sublayers, 4, parameters, attend_counted)[-1])
    assert worst_difference([model(x)], [expected]) < 1e-12
    for wrong in ({"eps": EPS}, {"counted": False}):
        other = naive_inputs(x, sublayers, 4, parameters, partial(attend_counted, **wrong))[-1]
        assert worst_difference([model(x)], [norm(other)]) > 1e-3, wrong

    refused(ValueError, "was retrofitted before", lambda: attnres.retrofit(model, 4))
    refused(ValueError, "Linear has no list `layers`", lambda: attnres.retrofit(nn.Linear(2, 2), 4))
    refused(ValueError, "give a block_size", lambda: attnres.retrofit(MiniDecoder()))
    other = MiniDecoder()
    del other.layers[1].mlp
    refused(ValueError, "layer 1 of MiniDecoder, a MiniLayer, has no mlp",
            lambda: attnres.retrofit(other, 4))  # fmt: skip


def check_delta():
    """Bit by bit the residual model at first, and by its equations after."""
    model, x = MiniDecoder(), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    before = model(x)
    mix = attnres.retrofit(model, block_size=2, mechanism="delta_attn_res")
    assert worst_difference([model(x)], [before]) == 0

    for parameter in mix.parameters():
        nn.init.normal_(parameter, mean=0.5, std=1)
    sublayers = sublayers_of(model)
    mix.eps = EPS  # that of the model's norms is its own
    expected = nn.RMSNorm(WIDTH, eps=0.1, dtype=torch.float64)(
        naive_delta_inputs(x, sublayers, mix)[-1]
    )
    assert worst_difference([model(x)], [expected]) < 1e-12
    assert worst_difference([model(x)], [before]) > 0.1
    refused(ValueError, "mechanism must be block_attn_res or delta_attn_res, but is 'delta'",
            lambda: attnres.retrofit(MiniDecoder(), 2, mechanism="delta"))  # fmt: skip


def make_retrofitted():
    """With pseudo-queries and key gains that matter."""
    model = MiniDecoder()
    mix = attnres.retrofit(model, block_size=4)
    for parameter in mix.parameters():
        nn.init.normal_(parameter, mean=0.5, std=1)
    return model


def rebuilt(state):
    """A model of these numbers that was made and retrofitted anew."""
    model = MiniDecoder()
    attnres.retrofit(model, block_size=4)
    model.load_state_dict(state)
    return model


def unpickled(model):
    return pickle.loads(pickle.dumps(model))


def check_copies():
    """A copy runs its own layers, norms and depth attention, and leaves the original alone."""
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    for copied in (copy.deepcopy, unpickled, copied_twice):
        model = make_retrofitted()
        before, names = model(x), [name for name, _ in model.named_parameters()]
        other = copied(model)
        assert worst_difference([other(x)], [before]) == 0
        for part in ("layers.1.self_attn", "layers.2.input_layernorm", "norm", "depth_attention"):
            with torch.no_grad():
                for parameter in other.get_submodule(part).parameters():
                    parameter.mul_(0.5)
            assert worst_difference([model(x)], [before]) == 0, part
            changed = other(x)
            assert worst_difference([changed], [rebuilt(other.state_dict())(x)]) == 0, part
            assert worst_difference([changed], [before]) > 1e-4, part
        other(x).pow(3).sum().backward()
        assert all(parameter.grad is None for parameter in model.parameters())
        grads = dict(other.named_parameters())
        nothing = [name for name in names if grads[name].grad is None]
        # Site 0 has nothing to choose between, and is not asked.
        assert all(name.rpartition(".")[2] == "0" for name in nothing), nothing


def copied_twice(model):
    first = copy.deepcopy(model)
    del model
    return copy.deepcopy(first)


def check_moving_average():
    """AveragedModel keeps a deep copy: its outputs are those of the averaged numbers."""
    model, x = make_retrofitted(), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    average = AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.75))
    first = copy.deepcopy(model.state_dict())
    average.update_parameters(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 3)
    average.update_parameters(model)
    expected = {name: 0.75 * first[name] + 0.25 * now for name, now in model.state_dict().items()}
    assert worst_difference([average(x)], [rebuilt(expected)(x)]) < 1e-12
    assert worst_difference([average(x)], [model(x)]) > 1e-3


def check_exchanged_parts():
    """What a layer has when it runs counts, as an adapter that was put into it since."""
    model, x = make_retrofitted(), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        model.layers[0].input_layernorm = nn.RMSNorm(WIDTH, eps=0.1, dtype=torch.float64)
        model.layers[0].input_layernorm.weight.mul_(3)
    assert worst_difference([model(x)], [rebuilt(model.state_dict())(x)]) == 0


def check_checkpointing():
    """The checkpointing of the layers' class still runs them, twice, for the same gradients."""
    model = make_retrofitted()
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    runs = []
    for layer in model.layers:
        layer.self_attn.register_forward_pre_hook(lambda *_: runs.append(1))
    leaves = [x, *(p for name, p in model.named_parameters() if not name.endswith(".0"))]
    gradients = []
    for CheckpointedLayer.checkpointing in (False, True):
        runs.clear()
        gradients.append(torch.autograd.grad(model(x).pow(3).sum(), leaves, allow_unused=True))
        assert len(runs) == (2 if CheckpointedLayer.checkpointing else 1) * len(model.layers), runs
    CheckpointedLayer.checkpointing = False
    assert all((a is None) == (b is None) for a, b in zip(*gradients, strict=True))
    used = [[g for g in of if g is not None] for of in gradients]
    assert len(used[0]) > 20 and worst_difference(*used) == 0


def check_misuse():
    """What would train or read something else than it seems."""
    model, x = make_retrofitted(), torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    CheckpointedLayer.checkpointing = CheckpointedLayer.use_reentrant = True
    refused(TypeError, "give use_reentrant=False", lambda: model(x))
    CheckpointedLayer.checkpointing = CheckpointedLayer.use_reentrant = False
    other = MiniDecoder()
    attnres.retrofit(other, block_size=2)
    refused(RuntimeError, "of block_size=4, the module is of block_size=2",
            lambda: other.load_state_dict(model.state_dict()))  # fmt: skip
    exempt = {id(parameter) for parameter in attnres.no_weight_decay(model)}
    assert exempt == {id(parameter) for parameter in model.depth_attention.parameters()}
    model.layers = model.layers[:2]
    refused(RuntimeError, "after 4 outputs of num_sublayers=6", lambda: model(x))


def check_exchanged_forward():
    """A forward that was exchanged before would run in the place of ours."""
    model = MiniDecoder()
    model.layers[1].forward = lambda x, scale: x
    refused(ValueError, "the forward of a MiniLayer was exchanged",
            lambda: attnres.retrofit(model, 4))  # fmt: skip


class HandWrittenNorm(nn.Module):
    """As LlamaRMSNorm of transformers."""

    def __init__(self, start=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((WIDTH,), start, dtype=torch.float64))
        self.variance_epsilon = 0.1

    def forward(self, x):
        wide = x.to(torch.float32)
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.gain() * (wide * scale).to(x.dtype)

    def gain(self):
        return self.weight


class CentredNorm(HandWrittenNorm):
    """As Gemma's, whose gain is 1 + weight."""

    def __init__(self):
        super().__init__(0.0)

    def gain(self):
        return 1 + self.weight


def normed_sites(model, x):
    """How many sites' norms are computed with depth attention."""
    with torch.profiler.profile() as profile:
        model(x)
    count = {event.key: event.count for event in profile.key_averages()}
    return count.get("attnres::depth_attention_phase_two_normed", 0)


def with_norms(kind):
    model = MiniDecoder()
    for layer in model.layers:
        layer.input_layernorm, layer.post_attention_layernorm = kind(), kind()
    model.norm = kind()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.3)
    return model


def check_fused_norms():
    """Plain RMSNorms are computed with depth attention; everything else as it is."""
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)

    def norm():
        return nn.RMSNorm(WIDTH, eps=0.1, dtype=torch.float64)

    for kind, fused in [(norm, 7), (HandWrittenNorm, 7), (CentredNorm, 0)]:
        for make in (lambda model: model, copy.deepcopy, unpickled):
            model = with_norms(kind)
            before = model(x)
            attnres.retrofit(model, block_size=4)
            model = make(model)
            assert normed_sites(model, x) == fused, kind
            assert worst_difference([model(x)], [before]) < 1e-6, kind

    model = with_norms(norm)
    before, seen = model(x), []
    attnres.retrofit(model, block_size=4)
    handle = model.layers[1].input_layernorm.register_forward_hook(lambda *_: seen.append(1))
    assert normed_sites(model, x) == 6 and seen == [1], "a hook"
    assert worst_difference([model(x)], [before]) < 1e-12
    handle.remove()
    other = copy.deepcopy(model.layers[1].input_layernorm).float()
    reader = model.layers[1].depth_reader
    assert not reader.fuses(other, nn.RMSNorm, reader.mix.start(x)), "weights of another dtype"
    assert reader.fuses(other.double(), nn.RMSNorm, reader.mix.start(x))
    model = with_norms(norm)
    attnres.retrofit(model, block_size=4)
    model.layers[0].input_layernorm = HandWrittenNorm()
    assert normed_sites(model, x) == 6, "a class that came later"
    model.layers[0].input_layernorm = nn.RMSNorm(WIDTH, elementwise_affine=False)
    assert normed_sites(model, x) == 6, "without a weight"
    with torch.device("meta"):  # as from_pretrained makes models
        model = MiniDecoder()
        attnres.retrofit(model, block_size=4)
    assert normed_sites(model.to_empty(device="cpu"), x) == 7, "made without numbers"


def check_compiled():
    model, x = make_retrofitted(), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend="aot_eager")
    assert worst_difference([compiled(x)], [model(x)]) < 1e-12


# A Llama as transformers has it: its names, its files, and the configuration that it saves.


class LlamaConfig:
    model_type = "llama"

    def __init__(self):
        self.architectures = ["LlamaForCausalLM"]
        self.hidden_size, self.intermediate_size, self.vocab_size = 16, 24, 256
        self.num_hidden_layers, self.num_attention_heads, self.head_dim = 4, 2, 8
        self.max_position_embeddings, self.rms_norm_eps = 128, 1e-3
        self.rope_parameters = {"rope_type": "default", "rope_theta": 500.0}
        self.tie_word_embeddings, self.bos_token_id, self.eos_token_id = False, 0, 0

    def to_json_file(self, json_file_path, use_diff=True):
        config = vars(self) | {"model_type": self.model_type, "dtype": "float32"}
        Path(json_file_path).write_text(json.dumps(config))


def projection(inputs, outputs):
    linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(linear.weight, std=1.5 / math.sqrt(inputs))
    return linear


class LlamaAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        width = config.num_attention_heads * config.head_dim
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            self.add_module(name, projection(config.hidden_size, width))

    def forward(self, hidden_states, rotary):
        q, k, v = (
            linear(hidden_states).unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        o = F.scaled_dot_product_attention(rotary(q), rotary(k), v, is_causal=True)
        return self.o_proj(o.transpose(1, 2).flatten(-2)), None


class LlamaMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = projection(config.hidden_size, config.intermediate_size)
        self.up_proj = projection(config.hidden_size, config.intermediate_size)
        self.down_proj = projection(config.intermediate_size, config.hidden_size)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn, self.mlp = LlamaAttention(config), LlamaMLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x, rotary):
        x = x + self.self_attn(self.input_layernorm(x), rotary)[0]
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(LlamaLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, ids):
        head_dim, theta = self.config.head_dim, self.config.rope_parameters["rope_theta"]
        frequencies = theta ** (-torch.arange(0, head_dim, 2) / head_dim)
        angles = torch.outer(torch.arange(ids.shape[1]), frequencies).repeat(1, 2)

        def rotary(x):
            a, b = x.chunk(2, -1)
            return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()

        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, rotary=rotary)
        return self.norm(x)


class LlamaForCausalLM(nn.Module):
    def __init__(self, config=None):
        super().__init__()
        self.config = config or LlamaConfig()
        self.model = LlamaModel(self.config)
        self.lm_head = projection(self.config.hidden_size, self.config.vocab_size)

    def forward(self, ids):
        return self.lm_head(self.model(ids))

    def save_pretrained(self, folder):
        folder.mkdir()
        self.config.to_json_file(folder / "config.json")
        save_file(self.state_dict(), folder / "model.safetensors", {"format": "pt"})


def log_probabilities(model, ids):
    with torch.no_grad():
        logits = model(ids)[:, :-1].log_softmax(-1)
    return logits.gather(-1, ids[:, 1:, None])[..., 0]


def run(program, *arguments):
    command = [program, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, (command, result.stderr)
    return result.stdout


def scored(program, folder, ids):
    """The program's log-probabilities of a folder."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(",".join(map(str, row)) + "\n" for row in ids.tolist()))
        file.flush()
        lines = run(program, "score", "--model", folder, "--ids-file", file.name).splitlines()
    return torch.tensor([json.loads(line)["logprobs"] for line in lines])


def train(model, ids):
    """Until its pseudo-queries matter."""
    before = log_probabilities(model, ids)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
    assert worst_difference([log_probabilities(model, ids)], [before]) > 0.1
    return model


def check_saved(program, mechanism, folder):
    """Retrofitted and trained here, saved, and read by both; trained on there, and read here."""
    ids = torch.randint(256, (2, 40))
    saved, run_folder, again = folder / "saved", folder / "run", folder / "again"
    model = LlamaForCausalLM()
    plain = copy.deepcopy(model)
    attnres.retrofit(model, block_size=3, mechanism=mechanism)
    ours = log_probabilities(train(model, ids), ids)
    model.save_pretrained(saved)
    assert worst_difference([scored(program, saved, ids)], [ours]) < 1e-4
    loaded = copy.deepcopy(plain)
    attnres.retrofit(loaded, checkpoint=saved)
    assert worst_difference([log_probabilities(loaded, ids)], [ours]) == 0

    text = folder / "text.txt"
    text.write_text("A text to train on, of a few tokens. " * 200)
    own = folder / "own"
    run(program, "import", "--from", saved, "--bytes", "--out", own)
    settings = "train.steps=4", "train.learning_rate=0.02", "train.warmup=1", "train.context=64"
    run(program, "train", "--from", own, "--data", text, "--out", run_folder, "--set", *settings)
    checkpoint = run_folder / "checkpoints" / "last"
    trained = copy.deepcopy(plain)
    attnres.retrofit(trained, checkpoint=checkpoint)
    theirs = log_probabilities(trained, ids)
    assert worst_difference([scored(program, checkpoint, ids)], [theirs]) < 1e-4
    assert worst_difference([theirs], [ours]) > 1e-3
    trained.save_pretrained(again)  # and back
    assert worst_difference([scored(program, again, ids)], [theirs]) < 1e-4


def check_what_is_saved(folder):
    """The folder says what it is, to everybody; a model that was not retrofitted says nothing."""
    config = LlamaConfig()
    model, other = LlamaForCausalLM(config), LlamaForCausalLM(config)
    attnres.retrofit(model, block_size=3)
    for i, saved in enumerate((model, copy.deepcopy(model), unpickled(model))):
        saved.save_pretrained(folder / str(i))
        written = json.loads((folder / str(i) / "config.json").read_text())
        assert written["model_type"] == "attnres_retrofitted"
        assert written["depth_mixing"] == {
            "type": "block_attn_res", "block_size": 3, "norm_eps": "per_source_count"
        }  # fmt: skip
        assert written["auto_map"] == {
            "AutoConfig": "modeling_retrofitted.RetrofittedConfig",
            "AutoModelForCausalLM": "modeling_retrofitted.RetrofittedModel",
        }
        code = (folder / str(i) / "modeling_retrofitted.py").read_text()
        assert "from attnres.retrofitted import" in code
        assert load_file(folder / str(i) / "model.safetensors").keys() == model.state_dict().keys()
    other.save_pretrained(folder / "other")  # of the same configuration
    assert json.loads((folder / "other" / "config.json").read_text())["model_type"] == "llama"

    decoder = LlamaForCausalLM()
    attnres.retrofit(decoder.model, block_size=3)
    decoder.save_pretrained(folder / "decoder")
    written = json.loads((folder / "decoder" / "config.json").read_text())
    assert written["model_type"] == "attnres_retrofitted"


def check_checkpoint_refusals(folder):
    model = LlamaForCausalLM()
    attnres.retrofit(model, block_size=3)
    model.save_pretrained(folder / "saved")

    def refused_with(text, change, model=None, **options):
        edited = folder / "edited"
        edited.mkdir(exist_ok=True)
        config = json.loads((folder / "saved" / "config.json").read_text())
        tensors = load_file(folder / "saved" / "model.safetensors")
        change(config, tensors)
        (edited / "config.json").write_text(json.dumps(config))
        save_file(tensors, edited / "model.safetensors")
        model = model or LlamaForCausalLM()
        refused(ValueError, text, lambda: attnres.retrofit(model, checkpoint=edited, **options))

    def nothing(config, tensors):
        pass

    refused_with("block_size is 2, but the checkpoint's is 3", nothing, block_size=2)
    refused_with("mechanism is delta_attn_res, but the checkpoint's is block_attn_res", nothing,
                 mechanism="delta_attn_res")  # fmt: skip
    refused_with("model.norm.weight are missing", lambda c, t: t.pop("model.norm.weight"))
    refused_with("lm_head.weight are missing", lambda c, t: t.pop("lm_head.weight"))
    refused_with("extra are missing or unknown", lambda c, t: t.update(extra=torch.zeros(1)))
    refused_with("is a retrofitted mistral, the model a llama",
                 lambda c, t: c.update(base_model_type="mistral"))  # fmt: skip
    refused_with("has a window of 1 sources, but there are 3",
                 lambda c, t: c["depth_mixing"].update(window=1))  # fmt: skip
    refused_with("has heads 2, not 1", lambda c, t: c["depth_mixing"].update(heads=2))
    refused_with("has score_scale 'learned', not 1",
                 lambda c, t: c["depth_mixing"].update(score_scale="learned"))  # fmt: skip
    mixing = {"type": "block_attn_res", "block_size": 3}
    of_program = {"model_type": "attnres", "attnres": {"depth_mixing": mixing}}
    refused_with("it has no model.layers.0.mlp_res_proj.weight of 16 numbers",
                 lambda c, t: c.update(of_program))  # fmt: skip
    refused_with("not into LlamaModel", lambda c, t: c.update(of_program),
                 model=LlamaModel(LlamaConfig()))  # fmt: skip


def main():
    torch.manual_seed(0)
    program = sys.argv[1]
    check_retrofit()
    check_delta()
    check_copies()
    check_moving_average()
    check_exchanged_parts()
    check_exchanged_forward()
    check_fused_norms()
    check_checkpointing()
    check_misuse()
    check_compiled()
    for check in (
        partial(check_saved, program, "block_attn_res"),
        partial(check_saved, program, "delta_attn_res"),
        check_what_is_saved,
        check_checkpoint_refusals,
    ):
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder))
    print(f"retrofitted models correct under torch {torch.__version__}")


if __name__ == "__main__":
    main()
