"""Checks the installed package: python tests/python/package_check.py

The modules against depth attention written out in float64, with every pseudo-query and key gain
drawn at random; the same under torch.compile, activation checkpointing and autocast; training; and
what is refused. Needs torch with everything that torch.compile uses.
"""

import os
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

# Graphs that were compiled earlier would call the operations as they were then.
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import attnres

EPS = 1e-6
WIDTH, SUBLAYERS = 8, 7


def attend(sources, query, key_gain):
    values = torch.stack(sources)
    keys = key_gain * values / (values.square().mean(-1, keepdim=True) + EPS).sqrt()
    weights = (keys @ query).softmax(0)
    return (weights[..., None] * values).sum(0)


def naive_inputs(embedding, sublayers, block_size, parameters, attend=attend):
    """The inputs of all sites, from all outputs afresh at every site: no state to go wrong."""
    outputs, inputs = [], []
    for site, (query, key_gain) in enumerate(parameters):
        blocks = [outputs[i : i + block_size] for i in range(0, len(outputs), block_size)]
        sources = [embedding, *(torch.stack(block).sum(0) for block in blocks)]
        inputs.append(attend(sources, query, key_gain))
        if site < len(sublayers):
            outputs.append(sublayers[site](inputs[-1]))
    return inputs


def module_inputs(mix, embedding, sublayers):
    state, inputs = mix.start(embedding), []
    for sublayer in sublayers:
        inputs.append(mix.read(state))
        state = mix.write(state, sublayer(inputs[-1]))
    return [*inputs, mix.output(state)]


def normed_inputs(mix, embedding, sublayers, norms):
    """The inputs of all sites behind their norms, of which depth attention computes each."""
    state, inputs = mix.start(embedding), []
    for sublayer, norm in zip(sublayers, norms, strict=False):
        x, state = mix.read_normed(state, norm.weight, norm.eps)
        inputs.append(x)
        state = mix.write(state, sublayer(x))
    return [*inputs, mix.output_normed(state, norms[-1].weight, norms[-1].eps)]


def normed_by_modules(inputs, sublayers, norms):
    """The same, where `inputs(sublayers)` are those before the norms."""
    behind = [lambda h, f=f, norm=norm: f(norm(h)) for f, norm in zip(sublayers, norms)]
    return [norm(h) for norm, h in zip(norms, inputs(behind), strict=True)]


def make_norms(dtype=torch.float64):
    """Of all sites: gains that matter, and an eps that matters where it stands."""
    norms = nn.ModuleList(nn.RMSNorm(WIDTH, eps=0.1, dtype=dtype) for _ in range(SUBLAYERS + 1))
    for norm in norms:
        nn.init.normal_(norm.weight, mean=1, std=0.3)
    return norms


def make_model(block_size, dtype=torch.float64):
    """A module whose weights matter, and sublayers that are not linear."""
    if block_size == 1:
        mix = attnres.AttnRes(WIDTH, SUBLAYERS, dtype=dtype)
    else:
        mix = attnres.BlockAttnRes(WIDTH, SUBLAYERS, block_size, dtype=dtype)
    for parameter in mix.pseudo_query:
        nn.init.normal_(parameter, std=2)
    for parameter in mix.key_gain:
        nn.init.normal_(parameter, mean=1, std=0.3)
    linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=dtype) for _ in range(SUBLAYERS))
    return mix, linears, [lambda h, linear=linear: linear(h).sin() for linear in linears]


def parameters_of(mix):
    return list(zip(mix.pseudo_query, mix.key_gain, strict=True))


def worst_difference(a, b):
    return max((x.detach() - y.detach()).abs().max().item() for x, y in zip(a, b, strict=True))


def check_modules():
    for block_size in (1, 2, 3, SUBLAYERS):
        mix, linears, sublayers = make_model(block_size)
        embedding = torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
        ours = module_inputs(mix, embedding, sublayers)
        naive = naive_inputs(embedding, sublayers, block_size, parameters_of(mix))
        assert worst_difference(ours, naive) < 1e-12, block_size

        leaves = [embedding, *mix.parameters(), *linears.parameters()]
        loss = [sum(x.pow(3).sum() for x in inputs) for inputs in (ours, naive)]
        gradients = [torch.autograd.grad(x, leaves) for x in loss]
        scale = max(gradient.abs().max().item() for gradient in gradients[1])
        assert worst_difference(*gradients) < 1e-12 * scale, block_size
        # Only site 0 has nothing to choose between.
        for site, (query, gain) in enumerate(parameters_of(mix)):
            for parameter in (query, gain):
                gradient = gradients[0][[leaf is parameter for leaf in leaves].index(True)]
                assert (gradient.abs().max().item() > 1e-6) == (site > 0), (block_size, site)

        # What is often got wrong is told apart.
        def attend_scaled(sources, query, key_gain):
            return attend(sources, query / WIDTH**0.5, key_gain)

        def attend_zero_partial(sources, query, key_gain):
            return attend([*sources, torch.zeros_like(sources[0])], query, key_gain)

        for wrong in (attend_scaled, attend_zero_partial):
            naive = naive_inputs(embedding, sublayers, block_size, parameters_of(mix), wrong)
            assert worst_difference(ours, naive) > 0.1, (block_size, wrong)
    mix, _, sublayers = make_model(2)
    ours = module_inputs(mix, embedding, sublayers)
    naive = naive_inputs(embedding, sublayers, 4, parameters_of(mix))
    assert worst_difference(ours, naive) > 0.1, "block size counted in Transformer layers"


def naive_delta_inputs(embedding, sublayers, mix):
    """What every site reads and the output, afresh, by the equations of `DeltaAttnRes`."""
    outputs, inputs, stream = [], [], embedding
    for site in range(len(sublayers) + 1):
        h = stream
        if 0 < site < len(sublayers):
            size, key = mix.block_size, str(site)
            blocks = [outputs[i : i + size] for i in range(0, len(outputs), size)]
            sources = [embedding, *(torch.stack(block).sum(0) for block in blocks)]
            gate = 1 if mix.mixture_gate is None else mix.mixture_gate[key]
            h = h + gate * attend(sources, mix.pseudo_query[key], mix.key_gain[key])
        inputs.append(h)
        if site < len(sublayers):
            outputs.append(sublayers[site](h))
            stream = stream + outputs[-1]
    return inputs


def check_delta():
    for block_size in (1, 2, 3, SUBLAYERS):
        for gate in (0.0, 0.5, None):
            mix = attnres.DeltaAttnRes(WIDTH, SUBLAYERS, block_size, gate=gate, dtype=torch.float64)
            _, linears, sublayers = make_model(2)
            embedding = torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
            residual, stream = [], embedding
            for sublayer in sublayers:
                residual.append(stream)
                stream = stream + sublayer(stream)
            at_start = module_inputs(mix, embedding, sublayers)
            is_residual = worst_difference(at_start, [*residual, stream]) == 0
            assert is_residual == (gate == 0), (block_size, gate)

            for parameter in mix.parameters():
                nn.init.normal_(parameter, mean=0.5, std=1)
            ours = module_inputs(mix, embedding, sublayers)
            naive = naive_delta_inputs(embedding, sublayers, mix)
            assert worst_difference(ours, naive) < 1e-12, (block_size, gate)
            leaves = [embedding, *mix.parameters(), *linears.parameters()]
            loss = [sum(x.pow(3).sum() for x in inputs) for inputs in (ours, naive)]
            gradients = [torch.autograd.grad(x, leaves) for x in loss]
            scale = max(gradient.abs().max().item() for gradient in gradients[1])
            assert worst_difference(*gradients) < 1e-12 * scale, (block_size, gate)
            assert all(gradient.abs().max() > 1e-9 * scale for gradient in gradients[0])

            norms = make_norms()
            normed = normed_inputs(mix, embedding, sublayers, norms)
            expected = normed_by_modules(
                partial(naive_delta_inputs, embedding, mix=mix), sublayers, norms
            )
            assert worst_difference(normed, expected) < 1e-12, (block_size, gate)

    mix, _, sublayers = attnres.DeltaAttnRes(WIDTH, SUBLAYERS, 2, dtype=torch.float64), *make_model(2)[1:]
    state = mix.start(embedding)
    refused(RuntimeError, "site 0 mixes nothing", lambda: mix.weights(state))
    state = mix.write(state, sublayers[0](embedding))
    assert mix.weights(state).shape == (2, 2, 5)
    assert {id(p) for p in attnres.no_weight_decay(mix)} == {id(p) for p in mix.parameters()}
    assert len(list(attnres.DeltaAttnRes(WIDTH, 1, 1).parameters())) == 0


def check_normed():
    """Norms and additions that are computed with depth attention, and sites read either way."""
    for block_size in (1, 2, 3, SUBLAYERS):
        mix, linears, sublayers = make_model(block_size)
        norms = make_norms()
        embedding = torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
        ours = normed_inputs(mix, embedding, sublayers, norms)

        def naive(sublayers, mix=mix, embedding=embedding, block_size=block_size):
            return naive_inputs(embedding, sublayers, block_size, parameters_of(mix))

        expected = normed_by_modules(naive, sublayers, norms)
        assert worst_difference(ours, expected) < 1e-12, block_size
        other = normed_by_modules(naive, sublayers, [*norms[1:], norms[0]])
        assert worst_difference(ours, other) > 0.1, block_size
        leaves = [embedding, *mix.parameters(), *linears.parameters(), *norms.parameters()]
        loss = [sum(x.pow(3).sum() for x in inputs) for inputs in (ours, expected)]
        gradients = [torch.autograd.grad(x, leaves) for x in loss]
        scale = max(gradient.abs().max().item() for gradient in gradients[1])
        assert worst_difference(*gradients) < 1e-12 * scale, block_size

        state, inputs = mix.start(embedding), []
        for site, (sublayer, norm) in enumerate(zip(sublayers, norms, strict=False)):
            plain = attnres.DepthState(state.blocks, state.block_sum, state.site)
            assert len(state.sources) == state.num_sources
            assert worst_difference(state.sources, plain.sources) == 0
            assert worst_difference([mix.weights(state)], [mix.weights(plain)]) == 0
            if site % 3 == 1:
                x = norm(mix.read(state))
            else:
                x, state = mix.read_normed(state, norm.weight, norm.eps)
            inputs.append(x)
            state = mix.write(state, sublayer(x))
        inputs.append(norms[-1](mix.output(state)))
        assert worst_difference(inputs, expected) < 1e-12, block_size


def check_normed_schedule():
    """A site is one operation, and outputs are added in it but where a block ends."""
    mix, _, _ = make_model(3)
    embedding = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    with torch.no_grad(), torch.profiler.profile() as profile:
        normed_inputs(mix, embedding, [nn.Identity()] * SUBLAYERS, make_norms())
    count = {event.key: event.count for event in profile.key_averages()}
    assert count["attnres::depth_attention_phase_two_fused"] == SUBLAYERS + 1
    assert count["attnres::depth_attention_phase_one_fused"] == 2
    assert count["aten::add"] == SUBLAYERS // 3
    assert "aten::rms_norm" not in count and "attnres::depth_attention_fused" not in count


def rows_kept(run, rows):
    """How many tensors of as many numbers autograd keeps for a backward."""
    kept = {}

    def pack(tensor):
        if tensor.numel() == rows.numel():
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return len(kept)


def check_what_is_kept():
    """Of a site x, which the sublayer's product keeps too, and one source; nothing beside them."""
    for block_size, dtype in [(1, torch.float32), (3, torch.bfloat16), (3, torch.float64)]:
        mix, linears, _ = make_model(block_size, dtype)
        norms, embedding = make_norms(dtype), torch.randn(2, 5, WIDTH, dtype=dtype)
        embedding.requires_grad_()
        kept = rows_kept(lambda: normed_inputs(mix, embedding, linears, norms), embedding)
        assert kept == 2 * (SUBLAYERS + 1), (block_size, kept)
        by_modules = rows_kept(
            lambda: normed_by_modules(lambda f: module_inputs(mix, embedding, f), linears, norms),
            embedding,
        )
        assert by_modules >= 3 * (SUBLAYERS + 1) - 1, (block_size, by_modules)


def check_schedule():
    """Each group's sites share one pass over what was finished before it."""
    for block_size, groups in [(1, [2, 2, 2, 2]), (2, [2, 2, 2, 2]), (3, [3, 3, 2]), (7, [7, 1])]:
        mix, _, sublayers = make_model(block_size)
        embedding = torch.randn(2, 5, WIDTH, dtype=torch.float64)
        with torch.profiler.profile() as profile:
            module_inputs(mix, embedding, sublayers)
        count = {event.key: event.count for event in profile.key_averages()}
        name = "attnres::depth_attention"
        assert count[f"{name}_fused"] == groups[0], (block_size, count)
        assert count[f"{name}_phase_one_fused"] == len(groups) - 1, (block_size, count)
        assert count[f"{name}_phase_two_fused"] == sum(groups[1:]), (block_size, count)

        # A state without phase 1's results reads the same from the blocks alone.
        state = mix.start(embedding)
        for sublayer in sublayers:
            h = mix.read(state)
            alone = mix.read(attnres.DepthState(state.blocks, state.partial, state.site))
            assert worst_difference([h], [alone]) < 1e-12, block_size
            state = mix.write(state, sublayer(h))


def check_published_numbers():
    """The two-source example of equations 2 to 4 with w = [2, 0, 0, 0]."""
    a, b = torch.eye(4, dtype=torch.float64)[:2]
    query, gain = torch.tensor([2.0, 0, 0, 0]).double(), torch.ones(4).double()
    expected = torch.tensor([0.9820136, 0.0179864, 0, 0]).double()
    h = attnres.depth_attention([a, b], query, gain)
    torch.testing.assert_close(h, expected, atol=1e-6, rtol=0)
    weights = attnres.depth_attention_weights([a, b], query, gain)
    torch.testing.assert_close(weights, expected[:2], atol=1e-6, rtol=0)


def check_start():
    """At the start every site reads the mean of its sources."""
    mix = attnres.BlockAttnRes(WIDTH, 4, 2)
    embedding, *outputs = torch.randn(5, 3, WIDTH)
    state = mix.start(embedding)
    for output in outputs[:3]:
        state = mix.write(state, output)
    expected = (embedding + (outputs[0] + outputs[1]) + outputs[2]) / 3
    torch.testing.assert_close(mix.read(state), expected)
    torch.testing.assert_close(mix.weights(state), torch.full((3, 3), 1 / 3))


def check_derivatives():
    mix, _, _ = make_model(3)
    query, key_gain = parameters_of(mix)[1]
    sources = [torch.randn(2, 3, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    for operation in (attnres.depth_attention, attnres.depth_attention_weights):
        assert gradcheck(lambda w, g, *v: operation(v, w, g, EPS), (query, key_gain, *sources))
    for name in ("depth_attention", "depth_attention_weights", "depth_attention_composed"):
        opcheck(getattr(torch.ops.attnres, name).default, (sources, query, key_gain, EPS))


def check_second_derivatives():
    """The fused operation has none, and its error names one of the package that has them."""
    mix, _, _ = make_model(3)
    query, key_gain = parameters_of(mix)[1]
    sources = [torch.randn(2, 3, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    h = attnres.depth_attention(sources, query, key_gain)
    composed = attnres.depth_attention_composed(sources, query, key_gain)
    assert worst_difference([h], [composed]) < 1e-12
    (gradient,) = torch.autograd.grad(h.sum(), query, create_graph=True)
    try:
        gradient.square().sum().backward()
    except RuntimeError as error:
        named = re.search(r"use (\w+)", str(error))
        assert named and named[1] in attnres.__all__, error
        operation = getattr(attnres, named[1])
    else:
        raise AssertionError("a second derivative passed without an error")
    assert gradgradcheck(lambda w, g, *v: operation(v, w, g, EPS), (query, key_gain, *sources))


def check_compiled():
    for backend in ("aot_eager", "inductor"):
        torch._dynamo.reset()
        mix, linears, sublayers = make_model(3, torch.float32)
        norms = make_norms(torch.float32)

        def loss_of(embedding, mix=mix, sublayers=sublayers, norms=norms):
            state = mix.start(embedding)
            for sublayer in sublayers:
                state = mix.write(state, sublayer(F.rms_norm(mix.read(state), (WIDTH,))))
            loss = mix.output(state).square().mean() + mix.weights(state).square().mean()
            return loss + normed_inputs(mix, embedding, sublayers, norms)[-1].square().mean()

        compiled = torch.compile(loss_of, fullgraph=True, backend=backend)
        leaves = [*mix.parameters(), *linears.parameters(), *norms.parameters()]
        for tokens in (4, 6):  # the second size compiles with symbolic shapes
            embedding = torch.randn(2, tokens, WIDTH)
            results = []
            for run in (loss_of, compiled):
                loss = run(embedding)
                results.append([loss, *torch.autograd.grad(loss, leaves)])
            torch.testing.assert_close(*results)


def check_checkpointed():
    mix, linears, sublayers = make_model(3)
    leaves = [*mix.parameters(), *linears.parameters()]
    embedding = torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)

    def layer(state, sublayer):
        return mix.write(state, sublayer(mix.read(state)))

    norm = make_norms()[0]

    def normed_layer(state, sublayer):
        x, state = mix.read_normed(state, norm.weight, norm.eps)
        return mix.write(state, sublayer(x))

    for layer_of in (layer, normed_layer):
        gradients = []
        for run in (layer_of, partial(checkpoint, layer_of, use_reentrant=False)):
            state = mix.start(embedding)
            for sublayer in sublayers:
                state = run(state, sublayer)
            loss = mix.output(state).pow(3).sum()
            gradients.append(torch.autograd.grad(loss, [embedding, *leaves]))
        assert worst_difference(*gradients) == 0


def check_reentrant_checkpoint():
    """It makes a tuple of the state, whose tensors have lost their gradients: refused by name."""
    mix, _, sublayers = make_model(3)
    state = mix.start(torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True))

    def layer(state, sublayer):
        return mix.write(state, sublayer(mix.read(state)))

    state = checkpoint(layer, state, sublayers[0], use_reentrant=True)
    for use in (mix.read, mix.output, mix.weights, lambda state: mix.write(state, state[0][0])):
        refused(TypeError, "give use_reentrant=False", lambda use=use: use(state))


def check_number_of_outputs():
    """More sublayers or fewer than the module is for, before a wrong query reads."""
    mix, _, sublayers = make_model(3)
    state = mix.start(torch.randn(2, WIDTH, dtype=torch.float64))
    for written in range(SUBLAYERS):
        text = f"the output is read after {written} outputs of num_sublayers={SUBLAYERS}"
        refused(RuntimeError, text, lambda state=state: mix.output(state))
        state = mix.write(state, sublayers[written](mix.read(state)))
    assert mix.output(state).shape == (2, WIDTH)
    refused(RuntimeError, "a sublayer reads after the last", lambda: mix.read(state))
    weight = torch.ones(WIDTH, dtype=torch.float64)
    refused(RuntimeError, "a sublayer reads after the last",
            lambda: mix.read_normed(state, weight, EPS))  # fmt: skip
    refused(RuntimeError, "the output is read after 0 outputs",
            lambda: mix.output_normed(mix.start(state.blocks[0]), weight, EPS))  # fmt: skip
    refused(RuntimeError, "an output more than", lambda: mix.write(state, state.blocks[0]))


def check_block_size_is_kept():
    """Parameters of one block size have the shapes of any other's."""
    mix, _, _ = make_model(2)
    whole = nn.ModuleDict({"mix": mix})
    with tempfile.NamedTemporaryFile() as file:
        torch.save(whole.state_dict(), file.name)
        stored = torch.load(file.name)
    for other in (attnres.BlockAttnRes(WIDTH, SUBLAYERS, 4), attnres.AttnRes(WIDTH, SUBLAYERS)):
        for strict in (True, False):
            load = partial(nn.ModuleDict({"mix": other}).load_state_dict, stored, strict=strict)
            text = f"of block_size=2, the module is of block_size={other.block_size}"
            refused(RuntimeError, text, load)
    same = attnres.BlockAttnRes(WIDTH, SUBLAYERS, 2)
    own = {name.removeprefix("mix."): tensor for name, tensor in stored.items()}
    assert not same.load_state_dict(own).missing_keys
    assert worst_difference(same.parameters(), mix.parameters()) < 1e-6
    # As averages make it, as older files are, and from a module that had no numbers.
    same.load_state_dict(own | {"sublayers_a_block": torch.tensor(1.9999)})
    del own["sublayers_a_block"]
    same.load_state_dict(own)
    empty = attnres.BlockAttnRes(WIDTH, SUBLAYERS, 2, device="meta").to_empty(device="cpu")
    assert empty.state_dict()["sublayers_a_block"] == 2


def check_functions():
    """torch.func on modules: samples' gradients, and derivatives forward and twice."""
    for block_size in (1, 3):
        mix, _, sublayers = make_model(block_size)
        parameters = {name: p.detach() for name, p in mix.named_parameters()}
        batch = torch.randn(3, 4, WIDTH, dtype=torch.float64)
        assert not torch.allclose(batch[0], batch[1])

        def loss_of(parameters, embedding, mix=mix, sublayers=sublayers):
            def run(embedding):
                return module_inputs(mix, embedding, sublayers)[-1].pow(3).sum()

            return torch.func.functional_call(_Calling(mix, run), parameters, (embedding,))

        samples = torch.func.vmap(torch.func.grad(loss_of), (None, 0))
        named = {f"mix.{name}": p for name, p in parameters.items()}
        of_samples = samples(named, batch)
        for i, embedding in enumerate(batch):
            loss = module_inputs(mix, embedding, sublayers)[-1].pow(3).sum()
            expected = torch.autograd.grad(loss, [*mix.parameters()], allow_unused=True)
            for (name, _), gradient in zip(mix.named_parameters(), expected, strict=True):
                found = of_samples[f"mix.{name}"][i]
                torch.testing.assert_close(
                    found, torch.zeros_like(found) if gradient is None else gradient
                )

        def output(embedding, mix=mix, sublayers=sublayers):
            return module_inputs(mix, embedding, sublayers)[-1]

        def naive(embedding, mix=mix, sublayers=sublayers, block_size=block_size):
            return naive_inputs(embedding, sublayers, block_size, parameters_of(mix))[-1]

        norms = make_norms()

        def normed(embedding, mix=mix, sublayers=sublayers, norms=norms):
            return normed_inputs(mix, embedding, sublayers, norms)[-1]

        def normed_naive(embedding, mix=mix, sublayers=sublayers, block_size=block_size,
                         norms=norms):  # fmt: skip
            def inputs(sublayers):
                return naive_inputs(embedding, sublayers, block_size, parameters_of(mix))

            return normed_by_modules(inputs, sublayers, norms)[-1]

        direction = torch.randn_like(batch[0])
        for functions in ((output, naive), (normed, normed_naive)):
            ours, theirs = (torch.func.jvp(f, (batch[0],), (direction,)) for f in functions)
            torch.testing.assert_close(ours, theirs)
            assert ours[1].abs().max() > 1e-3
            ours, theirs = (
                torch.func.hessian(lambda x, f=f: f(x).pow(3).sum())(batch[0][:1])
                for f in functions
            )
            torch.testing.assert_close(ours, theirs)
            ours = torch.func.vmap(functions[0])(batch)
            torch.testing.assert_close(ours, torch.stack([functions[1](x) for x in batch]))


class _Calling(nn.Module):
    """A function that uses a module, as a module."""

    def __init__(self, mix, function):
        super().__init__()
        self.mix, self.function = mix, function

    def forward(self, *arguments):
        return self.function(*arguments)


def check_no_weight_decay():
    """It gives each parameter of every depth attention once; they stay where others decay."""
    full, block = attnres.AttnRes(WIDTH, 2), attnres.BlockAttnRes(WIDTH, 4, 2)
    linear = nn.Linear(WIDTH, WIDTH)
    model = nn.ModuleDict({"a": nn.Sequential(full, linear), "b": block, "c": full})
    exempt = attnres.no_weight_decay(model)
    assert all(isinstance(p, nn.Parameter) for p in exempt)
    names = {id(p) for p in exempt}
    assert len(exempt) == len(names) == 2 * 3 + 2 * 5
    others = [p for p in model.parameters() if id(p) not in names]
    assert len(others) == 2, "the linear map's"
    assert attnres.no_weight_decay(nn.Linear(2, 2)) == []
    groups = [{"params": others}, {"params": exempt, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.5)
    before = [p.detach().clone() for p in (exempt[-1], others[0])]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(exempt[-1], before[0]) and exempt[-1].sum() == WIDTH  # a gain
    assert not torch.allclose(others[0], before[1])


def check_autocast():
    mix, _, sublayers = make_model(3, torch.float32)
    embedding = torch.randn(2, 5, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        inputs = module_inputs(mix, embedding, sublayers)
        normed = normed_inputs(mix, embedding, sublayers, make_norms(torch.float32))
    assert all(h.dtype == torch.float32 for h in [*inputs, *normed])
    torch.testing.assert_close(
        inputs[-1], module_inputs(mix, embedding, sublayers)[-1], atol=0.1, rtol=0.1
    )


def check_other_devices_and_dtypes():
    """float16 has no kernel and takes the composed operations, as other devices do."""
    sources = [torch.randn(3, WIDTH) for _ in range(3)]
    query, gain = torch.randn(WIDTH), torch.ones(WIDTH)
    tolerances = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
    expected = attnres.depth_attention(sources, query, gain)
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        for dtype, tolerance in tolerances.items():
            leaves = [v.detach().to(device, dtype).requires_grad_() for v in sources]
            h = attnres.depth_attention(leaves, query.to(device), gain.to(device))
            assert h.dtype == dtype and h.device.type == device
            torch.testing.assert_close(
                h.detach().cpu().float(), expected, atol=tolerance, rtol=tolerance
            )
            h.sum().backward()
            assert all(v.grad.isfinite().all() for v in leaves)


class Calls(TorchDispatchMode):
    """The names of our operations that are called inside."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if function.namespace == "attnres":
            self.names.add(function._schema.name.split("::")[1])
        return function(*arguments, **(named or {}))


def check_kernels_on_gpus():
    """What GPUs have kernels for takes them, by tensors without numbers: no GPU is needed."""
    if not Path(attnres.__file__).with_name("libattnres_cuda.so").exists():
        print("built without nvcc: the choice of kernels on GPUs is not checked")
        return

    def operations_of(dtype, width):
        with FakeTensorMode(), Calls() as calls:
            # A backward would ask for a GPU.
            mix = attnres.BlockAttnRes(width, SUBLAYERS, 2, device="cuda")
            embedding = torch.empty(3, width, device="cuda", dtype=dtype)
            sublayers = [nn.Identity()] * SUBLAYERS
            inputs = module_inputs(mix, embedding.requires_grad_(), sublayers)
            norms = [nn.RMSNorm(width, EPS, device="cuda")] * (SUBLAYERS + 1)
            inputs += normed_inputs(mix, embedding, sublayers, norms)
            assert all(h.device.type == "cuda" and h.dtype == dtype for h in inputs)
        return calls.names

    fused = {f"depth_attention_{part}fused" for part in ("", "phase_one_", "phase_two_")}
    for dtype in (torch.float32, torch.bfloat16):
        assert operations_of(dtype, WIDTH) >= fused, operations_of(dtype, WIDTH)
        assert not operations_of(dtype, WIDTH + 4)
    assert not operations_of(torch.float64, WIDTH)

    for sources, by in [(256, {"depth_attention_fused"}), (257, set())]:
        with FakeTensorMode(), Calls() as calls:
            v, w = (torch.empty(shape, device="cuda") for shape in ((3, WIDTH), WIDTH))
            attnres.depth_attention([v] * sources, w, w)
        assert calls.names == by, (sources, calls.names)


def refused(kind, text, action):
    try:
        action()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")


def check_refusals():
    refused(ValueError, "block_size must be positive", lambda: attnres.BlockAttnRes(8, 4, 0))
    refused(TypeError, "block_size must be an integer", lambda: attnres.BlockAttnRes(8, 4, 2.5))
    refused(TypeError, "width must be an integer", lambda: attnres.AttnRes("8", 4))
    refused(
        ValueError, "block_size must be 1 to num_sublayers=4",
        lambda: attnres.BlockAttnRes(8, 4, 5),
    )  # fmt: skip
    assert attnres.BlockAttnRes(8, 4, torch.tensor(4)).block_size == 4
    mix = attnres.AttnRes(WIDTH, 1)
    state = mix.write(mix.start(torch.randn(3, WIDTH)), torch.randn(3, WIDTH))
    refused(RuntimeError, "more than num_sublayers=1", lambda: mix.write(state, state.blocks[0]))
    refused(TypeError, "positional", lambda: attnres.AttnRes(WIDTH, 4, 2))
    mix = attnres.BlockAttnRes(WIDTH, 4, 4)
    refused(ValueError, "the embedding must be", lambda: mix.start(torch.randn(3, WIDTH + 1)))
    refused(ValueError, "the embedding must be", lambda: mix.start(torch.ones(3, WIDTH).long()))
    first = mix.start(torch.randn(2, 3, WIDTH))
    within = mix.write(first, torch.randn(2, 3, WIDTH))
    for state in (first, within):
        for other in ((3, WIDTH), (1, 3, WIDTH), (2, 3, 1)):
            refused(ValueError, f"must be [2, 3, {WIDTH}] of a floating dtype, but is {list(other)}",
                    lambda s=state, o=other: mix.write(s, torch.randn(o)))  # fmt: skip
        refused(ValueError, "torch.int64", lambda s=state: mix.write(s, s.blocks[0].long()))
        refused(TypeError, "a tuple; give its first", lambda s=state: mix.write(s, (s.blocks[0],)))
        refused(TypeError, "a NoneType", lambda s=state: mix.write(s, None))
    refused(TypeError, "got a Tensor", lambda: mix.write(first.blocks[0], first))
    refused(ValueError, f"the state is of width {WIDTH}, the module of 16",
            lambda: attnres.BlockAttnRes(16, 4, 4).read(first))  # fmt: skip
    mix = attnres.AttnRes(WIDTH, 1)
    state, weight = mix.start(torch.randn(3, WIDTH)), torch.ones(WIDTH)
    refused(TypeError, "the norm's weight, a tensor, but is a RMSNorm",
            lambda: mix.read_normed(state, nn.RMSNorm(WIDTH), EPS))  # fmt: skip
    refused(TypeError, "eps must be a number", lambda: mix.read_normed(state, weight, None))
    refused(RuntimeError, "norm_gain must be [D]", lambda: mix.read_normed(state, weight[1:], EPS))
    refused(RuntimeError, "norm_gain must be [D]",
            lambda: mix.read_normed(state, weight.double(), EPS))  # fmt: skip
    refused(RuntimeError, "norm_eps must not be negative",
            lambda: mix.read_normed(state, weight, -1.0))  # fmt: skip
    narrow = torch.zeros(WIDTH - 1)
    refused(
        RuntimeError, "query must be [D]",
        lambda: attnres.depth_attention([torch.zeros(2, WIDTH)], narrow, narrow),
    )  # fmt: skip


def check_descriptions():
    """What an interactive session shows: one line for a module, help of our own."""
    block = attnres.BlockAttnRes(8, num_sublayers=4, block_size=2)
    assert repr(block) == "BlockAttnRes(8, num_sublayers=4, block_size=2)"
    full = attnres.AttnRes(8, num_sublayers=4)
    assert repr(nn.ModuleList([full])).splitlines()[1].strip() == (
        "(0): AttnRes(8, num_sublayers=4)"
    )
    for name in attnres.__all__:
        documented = getattr(attnres, name)
        if isinstance(documented, type) and issubclass(documented, nn.Module):
            assert documented.__init__.__doc__, name
        assert name == "__version__" or documented.__doc__, name


def check_other_torch_is_refused():
    program = "import torch; torch.__version__ = '{}'; import attnres; print('imported')"
    major, minor = (int(number) for number in torch.__version__.split(".")[:2])
    for version, imported in [
        (f"{major}.{minor}.7+cpu", True),
        (f"{major}.{minor + 1}.0", False),
        (f"{major + 1}.{minor}.0", False),
    ]:
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run(
                [sys.executable, "-c", program.format(version)],
                capture_output=True, text=True, cwd=folder,
            )  # fmt: skip
        assert (result.returncode == 0) == imported, result.stderr
        if not imported:
            last = result.stderr.splitlines()[-1]
            assert f"ImportError: attnres was built for torch {major}.{minor} and" in last, last
            assert version in last, last


def main():
    torch.manual_seed(0)
    check_modules()
    check_delta()
    check_normed()
    check_normed_schedule()
    check_what_is_kept()
    check_schedule()
    check_published_numbers()
    check_start()
    check_derivatives()
    check_second_derivatives()
    check_compiled()
    check_checkpointed()
    check_reentrant_checkpoint()
    check_number_of_outputs()
    check_block_size_is_kept()
    check_functions()
    check_no_weight_decay()
    check_autocast()
    check_other_devices_and_dtypes()
    check_kernels_on_gpus()
    check_refusals()
    check_descriptions()
    check_other_torch_is_refused()
    print(f"{Path(attnres.__file__).parent}: correct under torch {torch.__version__}")


if __name__ == "__main__":
    main()
