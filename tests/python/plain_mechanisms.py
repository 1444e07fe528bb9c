"""Every mechanism in loops over plain numbers, a token at a time, written from what the test vectors
say of themselves: formula, details, roles and notation of each entry. A mechanism yields the names
and numbers of all that its sites read.
"""

from itertools import permutations
from math import erf, exp, sqrt


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def times(a, b):
    return [x * y for x, y in zip(a, b)]


def scaled(factor, v):
    return [factor * x for x in v]


def total(vectors):
    return [sum(numbers) for numbers in zip(*vectors)]


def weighted(weights, vectors):
    return total([scaled(w, v) for w, v in zip(weights, vectors)])


def apply(matrix, v):
    return [dot(row, v) for row in matrix]


def sigmoid(x):
    return 1 / (1 + exp(-x))


def softmax(scores):
    weights = [exp(s - max(scores)) for s in scores]
    return [w / sum(weights) for w in weights]


def tanh(x):
    return 2 * sigmoid(2 * x) - 1


class Entry:
    """An entry, of which one token after another is looked at."""

    def __init__(self, name, about, tensors):
        self.name, self.tensors = name, tensors
        self.settings, self.eps = about.get("depth_mixing", {"type": name}), about.get("norm_eps")
        self.L, self.d = about.get("sublayers", 0), about["width"]
        self.H, self.Hkv = about["heads"], about.get("kv_heads")
        self.J, self.roles = self.L // 2, about["roles"]
        self.batch, self.tokens = about["batch"], about["tokens"]
        self.token = (0, 0)

    def parameter(self, role, site=None):
        return self.tensors[f"parameter.{role}" + ("" if site is None else f".{site}")]

    def at(self, name, token=None):
        b, t = token or self.token
        return self.tensors[name][b][t]

    def y(self, l):
        return self.at(f"output.{l}")

    def sources(self, l, token=None):
        """v_0 .. v_l"""
        names = ["embedding"] + [f"output.{i}" for i in range(l)]
        return [self.at(name, token) for name in names]

    def rms(self, v, eps=None):
        return scaled(1 / sqrt(dot(v, v) / len(v) + (self.eps if eps is None else eps)), v)

    def norm(self, role, site, v, eps=None):
        return times(self.parameter(role, site), self.rms(v, eps))

    def site(self, l, h):
        """h, and its norm as the input."""
        return [(f"mixed.{l}", h), (f"input.{l}", self.norm("input_norm", l, h))]


def stream(e, l, h, name):
    """What an attention reads beside its queries."""
    return [
        (f"mixed.{name}.{l}", h),
        (f"input.{name}.{l}", e.norm(f"{name}_input_norm", l, h)),
    ]


def same(l, h):
    return [(f"mixed.{l}", h), (f"input.{l}", h)]


def pre_norm(e, update):
    """h_{l+1} = update(l, h_l), read by a norm."""
    h = e.at("embedding")
    for l in range(e.L + 1):
        yield from e.site(l, h)
        if l < e.L:
            h = update(l, h)


def attention_residuals(e):
    s, previous = e.settings, None
    S = s.get("block_size", 1)

    def weigh(scores):
        if s["weights"] == "factorised":
            return [x / sum(scores) for x in scores]
        return [sigmoid(x) for x in scores] if s["weights"] == "sigmoid" else softmax(scores)

    def features(v):
        return [x + 1 if x > 0 else exp(x) for x in v]

    def block(outputs):
        finished = len(outputs) == S
        normed = finished and s.get("block_summary") == "rms"
        return total([e.rms(y) for y in outputs] if normed else outputs)

    def score_scale(l):
        if s["score_scale"] == "learned":
            return exp(e.parameter("log_score_scale", l)[0])
        return 1 / sqrt(e.d) if s["score_scale"] == "1/sqrt(d)" else s["score_scale"]

    def attend(l, query, sources):
        query = scaled(score_scale(l), query)
        keys = [e.norm("key_norm", l, v) if s["key_norm"] else v for v in sources]
        if s["weights"] == "factorised":
            query, keys = features(query), [features(key) for key in keys]
        h, size = [], e.d // s["heads"]
        for begin in range(0, e.d, size):
            group = slice(begin, begin + size)
            weights = weigh([dot(query[group], key[group]) for key in keys])
            h += weighted(weights, [v[group] for v in sources])
        return h

    for l in range(e.L + 1):
        v = e.sources(l)
        sources = [v[0]] + [block(v[1 + i : 1 + min(i + S, l)]) for i in range(0, l, S)]
        sources = sources[:1] + sources[1:][-s["window"] :]
        h = v[0]
        if l > 0 and s["query"] == "none":
            h = weighted(weigh(e.parameter("mixing_logits", l)), sources)
        elif l > 0:
            if s["query"] == "learned":
                query = e.parameter("pseudo_query", l)
            else:
                query = apply(e.parameter("query_proj", l), previous)
            h = attend(l, query, sources)
        eps = e.eps if s["norm_eps"] == "fixed" else e.eps / len(sources) ** 2
        yield f"mixed.{l}", h
        yield f"input.{l}", e.norm("input_norm", l, h, eps)
        if s["value_query"] and l % 2 == 0 and 2 <= l <= e.L - 2:
            of_values = attend(l, e.parameter("value_query", l), sources)
            yield f"mixed.value.{l}", of_values
            yield f"input.value.{l}", e.norm("input_norm", l, of_values, eps)
        previous = h


def delta_attn_res(e):
    S, gate = e.settings["block_size"], [1]

    def mixture(l):
        y = e.sources(l)
        sources = y[:1] + [total(y[1:][i : min(i + S, l)]) for i in range(0, l, S)]
        w = e.parameter("pseudo_query", l)
        weights = softmax([dot(w, e.norm("key_norm", l, s)) for s in sources])
        return weighted(weights, sources)

    for l in range(e.L + 1):
        h = total(e.sources(l))
        if 0 < l < e.L:
            if e.settings["gate"] != "none":
                gate = e.parameter("mixture_gate", l)
            h = weighted([1, gate[0]], [h, mixture(l)])
        yield from e.site(l, h)


def residual(e):
    return pre_norm(e, lambda l, h: total([h, e.y(l)]))


def layer_scale(e):
    return pre_norm(e, lambda l, h: total([h, times(e.parameter("layer_scale", l), e.y(l))]))


def highway(e):
    def update(l, h):
        W, b = e.parameter("transform_gate", l), e.parameter("transform_gate_bias", l)
        gates = [sigmoid(x) for x in total([apply(W, h), b])]
        return [(1 - g) * x + g * y for g, x, y in zip(gates, h, e.y(l))]

    return pre_norm(e, update)


def laurel(e):
    states, variant = [], e.settings["variant"]

    def update(l, h):
        states.insert(0, h)
        a, b = scaled(2, softmax(e.parameter("residual_weights", l))) if "rw" in variant else (1, 1)
        terms = [h]
        for k, earlier in enumerate(states[:3] if "pa" in variant else states[:1]):
            if variant == "rw":
                break
            suffix = f"_{k}" if "pa" in variant else ""
            mapped = apply(e.parameter("low_rank_down" + suffix, l), earlier)
            mapped = apply(e.parameter("low_rank_up" + suffix, l), mapped)
            terms.append(scaled(e.parameter("gamma" + suffix, l)[0] if suffix else 1, mapped))
        return weighted([a, b], [e.y(l), total(terms)])

    return pre_norm(e, update)


def post_norm(e, alpha=1):
    h = e.at("embedding")
    for l in range(e.L + 1):
        yield from same(l, h)
        if l < e.L:
            h = e.norm("post_norm", l, weighted([alpha, 1], [h, e.y(l)]))


def deep_norm(e):
    return post_norm(e, (2 * e.J) ** 0.25)


def rezero(e):
    h = e.at("embedding")
    for l in range(e.L + 1):
        yield from same(l, h)
        if l < e.L:
            h = weighted([1, e.parameter("residual_weight", l // 2 * 2)[0]], [h, e.y(l)])


def keel(e):
    h = e.at("embedding")
    for l in range(e.L):
        yield from e.site(l, h)
        h = weighted([1 if l < 2 else e.L, 1], [h, e.y(l)])
        if l > 0:
            h = e.norm("post_norm", l, h)
    yield from same(e.L, h)


def hybrid_norm(e):
    h, starred = e.at("embedding"), e.settings["first_layer_pre_norm"]
    for l in range(e.L + 1):
        before = l == e.L or (starred and l < 2)
        if l % 2 == 1 and not before:
            h = e.norm("input_norm", l, h)
        yield from e.site(l, h) if before else same(l, h)
        if l == e.L:
            break
        if l % 2 == 0:
            for which in "qkv":
                heads = e.at(f"heads.{which}.{l}")
                yield f"adapted.{which}.{l}", [e.norm(f"{which}_norm", l, head) for head in heads]
        h = total([h, e.y(l)])


def siamese_norm(e):
    x = y = e.at("embedding")
    for l in range(e.L + 1):
        x = e.norm("x_norm", l, x)
        sum_ = total([x, e.norm("y_norm", l, y)])
        yield from e.site(l, sum_) if e.settings["input_norm"] else same(l, sum_)
        if l < e.L:
            c = sqrt(2 * (l // 2 + 1)) if e.settings["depth_scaling"] else 1
            x, y = weighted([1, 1 / c], [x, e.y(l)]), total([y, e.y(l)])


def streams(e, maps):
    """maps(l, H): a, b and A, by the new stream first."""
    H = [e.at("embedding")] * e.settings["streams"]
    single_pass, before = e.settings.get("single_pass"), None
    for l in range(e.L):
        a, b, A = maps(l, H)
        yield from e.site(l, weighted(before if single_pass else a, H) if l > 0 else H[0])
        H = [weighted([1, b[i]], [weighted(A[i], H), e.y(l)]) for i in range(len(H))]
        before = a
    yield from e.site(e.L, weighted(before, H) if single_pass else total(H))


def hyper_connections(e):
    m = e.settings["streams"]

    def maps(l, H):
        rows, static = e.parameter("dynamic_maps", l), e.parameter("mix_map", l)
        s, s_b = e.parameter("width_scale", l)[0], e.parameter("depth_scale", l)[0]
        T = [[tanh(x) for x in apply(rows, e.norm("stream_norm", l, stream))] for stream in H]
        A = [[static[i][j] + s * T[i][j] for i in range(m)] for j in range(m)]
        b = [e.parameter("write_map", l)[i] + s_b * T[i][m] for i in range(m)]
        a = None
        if l > 0:
            a = [e.parameter("read_map", l)[i] + s * T[i][m + 1] for i in range(m)]
        return a, b, A

    return streams(e, maps)


def identity(m):
    return [[float(i == j) for j in range(m)] for i in range(m)]


def sinkhorn(logits, m, rounds):
    A = [[exp(logits[i * m + j]) for j in range(m)] for i in range(m)]
    for _ in range(rounds):
        columns = total(A)
        A = [[x / sum_ for x, sum_ in zip(row, columns)] for row in A]
        A = [scaled(1 / sum(row), row) for row in A]
    return A


def mix_of_permutations(logits, m):
    A = [[0.0] * m for _ in range(m)]
    for weight, to in zip(softmax(logits), permutations(range(m))):
        for i in range(m):
            A[i][to[i]] += weight
    return A


def constrained(e, matrix, mixes):
    m = e.settings["streams"]

    def maps(l, H):
        z = e.rms(sum(H, []))
        P, c, s = (e.parameter(r, l) for r in ("dynamic_maps", "static_maps", "map_scales"))

        def logits(begin, end, which):
            return [s[which] * dot(P[r], z) + c[r] for r in range(begin, end)]

        b = [2 * sigmoid(x) for x in logits(0, m, 0)]
        has_a = l > 0 or e.settings.get("single_pass")
        a = [sigmoid(x) for x in logits(m, 2 * m, 1)] if has_a else None
        return a, b, matrix(logits(2 * m, len(c), 2)) if mixes(l) else identity(m)

    return streams(e, maps)


def mhc(e):
    m, rounds = e.settings["streams"], e.settings["sinkhorn_rounds"]
    return constrained(e, lambda logits: sinkhorn(logits, m, rounds), lambda l: l > 0)


def mhc_lite(e):
    m = e.settings["streams"]
    return constrained(e, lambda logits: mix_of_permutations(logits, m), lambda l: 0 < l < e.L - 1)


def hc_identity(e):
    return constrained(e, None, lambda l: False)


def gated_residual(e):
    n = e.settings["streams"]
    R = [e.at("embedding")] * n
    for l in range(e.L + 1):
        N = [times(gain, e.rms(r)) for gain, r in zip(e.parameter("stream_norm", l), R)]
        z = scaled(1 / n, sum(N, []))
        inner = [x * sigmoid(x) for x in apply(e.parameter("gate_down", l), z)]
        gates = [sigmoid(x) for x in apply(e.parameter("gate_up", l), inner)]
        G = [gates[i * e.d : (i + 1) * e.d] for i in range(n)]
        x = scaled(1 / n, total([times(g, v) for g, v in zip(G, N)]))
        yield from same(l, x)
        if l < e.L:
            s = [2 * sigmoid(x) for x in apply(e.parameter("write_gate", l), z)]
            R = [weighted([1, s[i]], [R[i], e.y(l)]) for i in range(n)]


def deep_delta(e):
    n = e.settings["value_channels"]
    X = [e.at("embedding")] * n
    for l in range(e.L + 1):
        x = X[0] if n == 1 else total([times(r, v) for r, v in zip(e.parameter("readout", l), X)])
        yield from e.site(l, x)
        if l == e.L:
            break
        u, y = e.norm("input_norm", l, x), e.y(l)
        k = scaled(1 / sqrt(dot(y, y) + 1e-10), y)
        gate = dot(e.parameter("gate", l)[0], u) + e.parameter("gate_bias", l)[0]
        value, beta = apply(e.parameter("value", l), u), 2 * sigmoid(gate)
        X = [weighted([1, beta * (value[t] - dot(k, X[t]))], [X[t], k]) for t in range(n)]


def dense_net(e):
    for l in range(e.L + 1):
        yield from e.site(l, apply(e.parameter("dense_proj", l), sum(e.sources(l), [])))


def layers_of(e, mix):
    """mix(j, X, Z): what layer j begins with; X of the layers before, and outputs Z with Z_0."""
    X, Z = [], [e.at("embedding")]
    for j in range(e.J):
        X.append(mix(j, X, Z))
        yield from e.site(2 * j, X[-1])
        r = total([X[-1], e.y(2 * j)])
        yield from e.site(2 * j + 1, r)
        Z.append(total([r, e.y(2 * j + 1)]))
    yield from e.site(e.L, mix(e.J, X, Z))


def dense_former(e):
    if e.settings["form"] == "original":
        yield from layers_of(
            e, lambda j, X, Z: weighted(e.parameter("depth_weights", 2 * j), Z) if j else Z[0]
        )
        return
    for l in range(e.L + 1):
        v = e.sources(l)
        yield from e.site(l, weighted(e.parameter("depth_weights", l), v) if l else v[0])


def ancre(e):
    def mix(j, X, Z):
        if j < 2:
            return total([Z[1], X[0]]) if j else Z[0]
        logits = scaled(1 / e.settings["temperature"], e.parameter("connections", 2 * j - 1))
        return total([Z[j], weighted(softmax(logits), X)])

    return layers_of(e, mix)


def mrla(e):
    b, t = e.token

    def across(taps, v):
        half = len(taps) // 2
        padded = [0.0] * half + v + [0.0] * half
        return [sigmoid(dot(taps, padded[c : c + len(taps)])) for c in range(len(v))]

    terms = []
    for l in range(e.L + 1):
        v, taps = e.sources(l)[l], e.parameter("value_conv", l)
        earlier = [(s, t - 2 + s) for s in range(3) if t - 2 + s >= 0]
        u = total([times(taps[s], e.sources(l, (b, at))[l]) for s, at in earlier])
        terms.append(times(across(e.parameter("key_conv", l), v), u))
        yield from e.site(l, times(across(e.parameter("query_conv", l), v), total(terms)))


def sknet(e):
    for l in range(e.L + 1):
        v = e.sources(l)
        h = v[0]
        if l > 0:
            fused = e.norm("fuse_norm", l, apply(e.parameter("fuse_proj", l), total(v)))
            scores = apply(e.parameter("select_proj", l), [max(x, 0) for x in fused])
            weights = [softmax(scores[c :: e.d]) for c in range(e.d)]
            h = [dot(weights[c], [x[c] for x in v]) for c in range(e.d)]
        yield from e.site(l, h)


def muddformer(e):
    Z, S, normed = e.at("embedding"), [], e.settings["pre_post_norm"]
    for j in range(e.J + 1):
        l = 2 * j
        S.append(e.norm("source_norm", max(l - 1, 0), Z) if normed else Z)
        if j == 0:
            X = [Z] * 4
        else:
            hidden = apply(e.parameter("weight_up", l), e.rms(Z))
            hidden = [x * (1 + erf(x / sqrt(2))) / 2 for x in hidden]
            A = apply(e.parameter("weight_down", l), hidden)
            A = total([A, sum(e.parameter("depth_weights", l), [])])
            X = [weighted(A[c : c + j + 1], S) for c in range(0, len(A), j + 1)]
            if normed:
                X[-1] = e.norm("sum_norm", l, X[-1])
                X = [total([Z, x]) for x in X]
        yield from e.site(l, X[0])
        if j == e.J:
            break
        if j > 0:
            yield from stream(e, l, X[1], "key")
            yield from stream(e, l, X[2], "value")
            yield f"mixed.residual.{l}", X[3]
        r = total([X[3], e.y(l)])
        yield from e.site(l + 1, r)
        Z = total([r, e.y(l + 1)])


def dca(e):
    v, recent = [e.at("embedding")], e.settings["recent_layers"]

    def g(l, prefix):
        bias, score = e.parameter(prefix + "bias", l), e.parameter(prefix + "score", l)
        middle = len(v) - 1 - recent
        sources = v
        if recent and middle > 0:
            sources = [v[0], total(v[1 : 1 + middle])] + v[1 + middle :]
        terms = []
        for b, source in zip(bias, sources):
            weight = max(dot(score, e.rms(source)), 0)
            terms.append(times([x + weight for x in b], source))
        return total(terms)

    for l in range(0, e.L, 2):
        query = g(l, "query_")
        yield from e.site(l, query)
        yield from stream(e, l, g(l, "key_"), "key")
        yield from stream(e, l, g(l, "value_"), "value")
        yield from e.site(l + 1, total([e.y(l), query]))
        v.append(total([e.y(l), e.y(l + 1)]))
    yield from e.site(e.L, g(e.L, ""))


def depth_attention(e):
    h, keys, values = e.at("embedding"), [], []
    for l in range(e.L + 1):
        if l % 2 == 0 and l < e.L:
            normed = e.norm("depth_norm", None, h)
            q, k, v = (apply(e.parameter(f"depth_{w}_proj"), normed) for w in "qkv")
            keys.append(k)
            values.append(v)
            mixed, size = [], e.d // e.H
            for begin in range(0, e.d, size):
                head = slice(begin, begin + size)
                weights = softmax([dot(q[head], key[head]) / sqrt(size) for key in keys])
                mixed += weighted(weights, [value[head] for value in values])
            h = total([h, apply(e.parameter("depth_o_proj"), mixed)])
        yield from e.site(l, h)
        if l < e.L:
            h = total([h, e.y(l)])


def adapted(e, l, changed):
    for which in "qkv":
        yield f"adapted.{which}.{l}", changed.get(which, e.at(f"heads.{which}.{l}"))


def value_residual(e):
    yield from residual(e)
    first = e.at("heads.v.0")
    for l in range(0, e.L, 2):
        weights = [0.5, 0.5]
        if e.settings["learned"] and l:
            weights = e.parameter("value_mix", l)
        own = e.at(f"heads.v.{l}")
        mixed = [weighted(weights, pair) for pair in zip(first, own)]
        yield from adapted(e, l, {"v": mixed} if l else {})


def lime(e):
    yield from residual(e)
    for l in range(0, e.L, 2):
        changed = {}
        for which in "kv" if l else "":
            heads = sum((e.at(f"heads.{which}.{i}") for i in range(0, l + 1, 2)), [])
            changed[which] = [weighted(row, heads) for row in e.parameter("router", l)]
        yield from adapted(e, l, changed)


def scalar_mix(e):
    weights, gamma = softmax(e.parameter("layer_logits", e.L)), e.parameter("gamma", e.L)[0]
    h, states = e.at("embedding"), []
    for l in range(e.L):
        yield from e.site(l, h)
        if l % 2 == 0:
            states.append(h)
        h = total([h, e.y(l)])
    mixed = weighted(weights, states + [h])
    yield f"mixed.{e.L}", mixed
    yield f"input.{e.L}", scaled(gamma, e.norm("input_norm", e.L, mixed))


def kimi_k3_decay(e):
    A_log, bias, gates = e.parameter("A_log"), e.parameter("dt_bias"), e.at("gate")
    yield "log_decay", [
        [-5 * sigmoid(exp(A_log[h]) * (g + b)) for g, b in zip(gates[h], bias[h])]
        for h in range(e.H)
    ]


def forward(e):
    """Name and numbers of every result of the token looked at."""
    kind = e.settings["type"]
    is_attn_res = kind in ("attn_res", "block_attn_res")
    return attention_residuals(e) if is_attn_res else globals()[kind](e)
