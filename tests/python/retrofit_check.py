"""Checks attnres.retrofit: python tests/python/retrofit_check.py

The retrofitted model against its equations in float64, and copies of it. The models stand for those
of transformers, which tests/interop/check_retrofit.py has.
"""

import copy
import pickle
from functools import partial

import torch
from package_check import EPS, WIDTH, naive_inputs, parameters_of, refused, worst_difference
from torch import nn
from torch.optim.swa_utils import AveragedModel

import attnres


class MiniAttention(nn.Module):
    """Stands for an attention of transformers: of keyword arguments, and a tuple as its result."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, hidden_states, scale):
        return self.proj(hidden_states).sin() * scale, None


class MiniLayer(nn.Module):
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


def check_retrofit():
    model, x = MiniDecoder(), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    before, names = model(x), {name for name, _ in model.named_parameters()}
    mix = attnres.retrofit(model, block_size=4)
    assert worst_difference([model(x)], [before]) < 1e-12
    assert names <= {name for name, _ in model.named_parameters()}

    for parameter in mix.parameters():
        nn.init.normal_(parameter, std=1)
    sublayers = []
    for layer in model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        sublayers.append(lambda h, f=attention, g=layer.input_layernorm: f(g(h), scale=0.7)[0])
        sublayers.append(lambda h, f=mlp, g=layer.post_attention_layernorm: f(g(h)))

    def attend_counted(sources, query, key_gain, eps=0.1, counted=True):
        values = torch.stack(sources)
        keys = key_gain * values / (values.square().mean(-1, keepdim=True) + eps).sqrt()
        h = ((keys @ query).softmax(0)[..., None] * values).sum(0)
        return len(sources) * h if counted else h

    parameters = parameters_of(mix)
    expected = model.norm.__class__.forward(
        model.norm, naive_inputs(x, sublayers, 4, parameters, attend_counted)[-1]
    )
    assert worst_difference([model(x)], [expected]) < 1e-12
    for wrong in ({"eps": EPS}, {"counted": False}):
        other = naive_inputs(x, sublayers, 4, parameters, partial(attend_counted, **wrong))[-1]
        other = model.norm.__class__.forward(model.norm, other)
        assert worst_difference([model(x)], [other]) > 1e-3, wrong

    refused(ValueError, "was retrofitted before", lambda: attnres.retrofit(model, 4))
    refused(ValueError, "Linear has no list `layers`", lambda: attnres.retrofit(nn.Linear(2, 2), 4))
    refused(ValueError, "give a block_size", lambda: attnres.retrofit(MiniDecoder()))
    other = MiniDecoder()
    del other.layers[1].mlp
    refused(ValueError, "layer 1 of MiniDecoder, a MiniLayer, has no mlp",
            lambda: attnres.retrofit(other, 4))  # fmt: skip


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


def check_compiled():
    model, x = make_retrofitted(), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend="aot_eager")
    assert worst_difference([compiled(x)], [model(x)]) < 1e-12


def main():
    torch.manual_seed(0)
    check_retrofit()
    check_copies()
    check_moving_average()
    check_exchanged_parts()
    check_compiled()
    print(f"retrofitted models correct under torch {torch.__version__}")


if __name__ == "__main__":
    main()
