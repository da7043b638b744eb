"""Slow twins of the published heads: one position at a time, from the files' tensors alone.

Written from the formats' description; they share no code with `mmspec`.
"""

import math

import torch


def linear(tensors, name, x):
    out = tensors[f"{name}.weight"] @ x
    return out + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else out


def rms_norm(x, weight, eps):
    return x / math.sqrt(float((x * x).mean()) + eps) * weight


def turned(head, position, theta, sections=None, interleaved=False):
    """A head turned by its position, or by (time, row, column)."""
    half = len(head) // 2
    out = head.clone()
    for i in range(half):
        at = position
        if sections is not None:
            if interleaved:
                axis = i % 3 if i % 3 and i < 3 * sections[i % 3] else 0
            else:
                axis = 0 if i < sections[0] else 1 if i < sections[0] + sections[1] else 2
            at = position[axis]
        angle = at * theta ** (-2 * i / len(head))
        a, b = head[i], head[i + half]
        out[i] = a * math.cos(angle) - b * math.sin(angle)
        out[i + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


class Layer:
    """A decoder layer of a file: what it reads of a prefix grows position by position."""

    def __init__(self, tensors, prefix, config, sections=None, interleaved=False):
        self.t, self.p, self.c = tensors, prefix, config
        self.sections, self.interleaved = sections, interleaved
        self.keys, self.values = [], []

    def heads(self, which, x, position=None):
        dim = self.c["head_dim"]
        rows = linear(self.t, f"{self.p}self_attn.{which}_proj", x).view(-1, dim)
        out = []
        for row in rows:
            norm = f"{self.p}self_attn.{which}_norm.weight"
            if norm in self.t:
                row = rms_norm(row, self.t[norm], self.c["rms_norm_eps"])
            if position is not None:
                theta = self.c["rope_theta"]
                row = turned(row, position, theta, self.sections, self.interleaved)
            out.append(row)
        return out

    def remember(self, x, position):
        self.keys.append(self.heads("k", x, position))
        self.values.append(self.heads("v", x))

    def attend(self, x, position):
        queries = self.heads("q", x, position)
        share = len(queries) // len(self.keys[0])
        found = []
        for n, query in enumerate(queries):
            scores = [float(query @ keys[n // share]) for keys in self.keys]
            top = max(scores)
            weights = [math.exp((s - top) / math.sqrt(len(query))) for s in scores]
            total = sum(weights)
            pairs = zip(weights, self.values, strict=True)
            found.append(sum(w / total * values[n // share] for w, values in pairs))
        return linear(self.t, f"{self.p}self_attn.o_proj", torch.cat(found))

    def norm(self, name, x):
        return rms_norm(x, self.t[f"{self.p}{name}.weight"], self.c["rms_norm_eps"])

    def mlp(self, x):
        gate = linear(self.t, f"{self.p}mlp.gate_proj", x)
        up = linear(self.t, f"{self.p}mlp.up_proj", x)
        return linear(self.t, f"{self.p}mlp.down_proj", gate * torch.sigmoid(gate) * up)

    def closed(self, h):
        return h + self.mlp(self.norm("post_attention_layernorm", h))

    def plain(self, x, position):
        """A layer with one input; EAGLE-1's first one lacks its norm."""
        normed = (
            self.norm("input_layernorm", x) if f"{self.p}input_layernorm.weight" in self.t else x
        )
        self.remember(normed, position)
        return self.closed(x + self.attend(normed, position))

    def fused(self, embedded, hidden, position):
        """EAGLE-3's layer."""
        normed = self.norm("hidden_norm", hidden)
        x = torch.cat([self.norm("input_layernorm", embedded), normed])
        self.remember(x, position)
        residual = normed if self.c.get("norm_before_residual") else hidden
        return self.closed(residual + self.attend(x, position))


def eagle1(tensors, config, embedded, hidden, positions, sections=None):
    """Outputs by position: `fc([e; h])`, then the layers."""
    count = len({n.split(".")[1] for n in tensors if n.startswith("layers.")})
    layers = [Layer(tensors, f"layers.{n}.", config, sections) for n in range(count)]
    out = []
    for e, h, position in zip(embedded, hidden, positions, strict=True):
        x = linear(tensors, "fc", torch.cat([e, h]))
        for layer in layers:
            x = layer.plain(x, position)
        out.append(x)
    return out


def eagle3(tensors, config, embedded, states, positions, sections=None, interleaved=False):
    """Outputs by position before the final norm, under the names of EAGLE's own files."""
    layer = Layer(tensors, "midlayer.", config, sections, interleaved)
    eps = config["rms_norm_eps"]
    out = []
    for e, parts, position in zip(embedded, states, positions, strict=True):
        if config.get("fc_norm"):
            parts = [
                rms_norm(part, tensors[f"fc_norm.{n}.weight"], eps) for n, part in enumerate(parts)
            ]
        x = torch.cat(list(parts))
        if config.get("norm_before_fc"):
            x = rms_norm(x, tensors["input_norm.weight"], eps)
        out.append(layer.fused(e, linear(tensors, "fc", x), position))
    return out


def falcon(tensors, config, embedded, hidden):
    """Outputs of the last `k_mask` columns, of the columns' embeddings and the states in front.

    As released: torch's LSTM runs along the batch, and so a column at a time.
    """
    own = {n.removeprefix("lstm."): x for n, x in tensors.items() if n.startswith("lstm.")}
    width, size = len(embedded[0]), config["k_mask"]
    lstm = torch.nn.LSTM(2 * width, width, 2, bias="bias_ih_l0" in own).double()
    lstm.load_state_dict(own)
    pairs = [torch.cat([e, h]) for e, h in zip(embedded, hidden, strict=True)]
    columns = lstm(torch.stack(pairs)[None])[0][0]
    layer = Layer(tensors, "layers.0.", config)
    for position, x in enumerate(columns):
        layer.remember(x, position)
    first = len(columns) - size
    wanted = [max(n, 0) for n in range(first, len(columns))]
    return [layer.closed(columns[n] + layer.attend(columns[n], n)) for n in wanted]


def longspec(tensors, config, embedded, keys, values, root):
    """Output behind the last of the columns `embedded`, from the target's in front of `root`.

    `keys` and `values` of a column have a row a head.
    """
    own, last = Layer(tensors, "", config), len(embedded) - 1
    for position, x in enumerate(embedded):
        own.remember(own.norm("input_layernorm", x), position)
    reach = config["longspec"]["window"] + 1 if "longspec" in config else 513
    own.keys, own.values = own.keys[-reach:], own.values[-reach:]
    h = embedded[-1] + own.attend(own.norm("input_layernorm", embedded[-1]), last)
    if root:
        renamed = {
            n.replace("cross_attn", "self_attn"): x for n, x in tensors.items() if "cro" in n
        }
        cross = Layer(renamed, "", config)
        cross.keys, cross.values = keys[:root], values[:root]
        h = h + cross.attend(own.norm("post_self_attention_layernorm", h), last)
    return h + own.mlp(own.norm("post_cross_attention_layernorm", h))


def dflash(tensors, config, states, block, places, first):
    """Outputs behind the final norm of a block at positions from `first` on.

    `states` are the target's of the context, joined, at the positions `places`.
    """
    eps = config["rms_norm_eps"]
    count = len({n.split(".")[1] for n in tensors if n.startswith("layers.")})
    context = [
        rms_norm(linear(tensors, "fc", s), tensors["hidden_norm.weight"], eps) for s in states
    ]
    xs = list(block)
    for n in range(count):
        layer = Layer(tensors, f"layers.{n}.", config)
        for fused, place in zip(context, places, strict=True):
            layer.remember(fused, place)
        normed = [layer.norm("input_layernorm", x) for x in xs]
        for k, x in enumerate(normed):
            layer.remember(x, first + k)
        xs = [
            layer.closed(x + layer.attend(own, first + k))
            for k, (x, own) in enumerate(zip(xs, normed, strict=True))
        ]
    return [rms_norm(x, tensors["norm.weight"], eps) for x in xs]


def medusa(tensors, hidden):
    """Logits by head."""
    out = []
    for head in sorted({int(name.split(".")[0]) for name in tensors}):
        x, block = hidden, 0
        while f"{head}.{block}.linear.weight" in tensors:
            y = linear(tensors, f"{head}.{block}.linear", x)
            x, block = x + y * torch.sigmoid(y), block + 1
        out.append(tensors[f"{head}.{block}.weight"] @ x)
    return out


def hydra(tensors, head, hidden, path):
    """Logits of head `head`, which reads the hidden state and `head + 1` embeddings."""
    x, block = torch.cat([hidden, *path]), 0
    while f"hydra_mlp.{head}.{block}.linear.weight" in tensors:
        name = f"hydra_mlp.{head}.{block}."
        y = linear(tensors, f"{name}linear", x)
        residual = (
            linear(tensors, f"{name}res_connection", x)
            if f"{name}res_connection.weight" in tensors
            else x
        )
        x, block = residual + y * torch.sigmoid(y), block + 1
    return linear(tensors, f"hydra_lm_head.{head}", x)


def prefixed(tensors, config, states):
    """The states that the heads of arch "prefix-mlp" read, of the target's from position 0 on."""
    layer = Layer(tensors, "layers.0.", config)
    out = [layer.plain(state, position) for position, state in enumerate(states)]
    return [rms_norm(x, tensors["norm.weight"], config["rms_norm_eps"]) for x in out]


def adapter(tensors, picture):
    """ViSpec's outputs by query."""
    queries = tensors["imadpt.q"]
    _, heads, dim = queries.shape
    keys = [linear(tensors, "imadpt.k_proj", p).view(heads, dim) for p in picture]
    values = [linear(tensors, "imadpt.v_proj", p).view(heads, dim) for p in picture]
    out = []
    for query in queries:
        found = []
        for n in range(heads):
            scores = [float(query[n] @ key[n]) / math.sqrt(dim) for key in keys]
            weights = [math.exp(s - max(scores)) for s in scores]
            pairs = zip(weights, values, strict=True)
            found.append(sum(w / sum(weights) * value[n] for w, value in pairs))
        out.append(linear(tensors, "imadpt.o_proj", torch.cat(found)))
    return out


def markov(tensors, kind, before, slots):
    """DSpark's corrections of slots, `before` the ids in front of them."""
    state, out = torch.zeros_like(tensors["markov_head.markov_w1.weight"][0]), []
    for token, z in zip(before, slots, strict=True):
        e = tensors["markov_head.markov_w1.weight"][token]
        if kind == "gated":
            e = torch.sigmoid(linear(tensors, "markov_head.gate_proj", torch.cat([z, e]))) * e
        if kind == "rnn":
            joint = linear(tensors, "markov_head.joint_proj", torch.cat([state, e, z]))
            g, c, o = joint.view(3, -1)
            g = 1 / (1 + torch.exp(-g))
            state, e = g * state + (1 - g) * torch.tanh(c), torch.tanh(o)
        out.append(tensors["markov_head.markov_w2.weight"] @ e)
    return out


def domino(tensors, before, slots):
    """Domino's corrections of slots, `before` the embeddings in front of them."""
    state, out = torch.zeros_like(tensors["prefix_gru.weight_hh_l0"][0]), []
    for e, z in zip(before, slots, strict=True):
        ir, iz, into = (tensors["prefix_gru.weight_ih_l0"] @ e).view(3, -1)
        hr, hz, hn = (tensors["prefix_gru.weight_hh_l0"] @ state).view(3, -1)
        r, u = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
        state = (1 - u) * torch.tanh(into + r * hn) + u * state
        inner = tensors["embed_proj.0.weight"] @ torch.cat([z, state])
        out.append(tensors["embed_proj.2.weight"] @ (inner * torch.sigmoid(inner)))
    return out
