"""Slow twin of multi-token prediction layers: position by position, from the files' tensors."""

import math

import naive
import torch
from naive import linear, rms_norm

NAMES = {
    "qwen": ("mtp.", "fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "layers.0."),
    "speculators": (
        *("mtp_layers.0.", "input_proj", "token_layernorm", "hidden_layernorm"),
        *("final_layernorm", ""),
    ),
    "glm": ("model.layers.4.", "eh_proj", "enorm", "hnorm", "shared_head.norm", ""),
}
NAMES["deepseek"] = NAMES["glm"]


class Mtp:
    """A layer; `step` takes one position after the other."""

    def __init__(self, kind, tensors, config):
        self.t, self.c = tensors, config
        prefix, *names, layer = NAMES[kind]
        self.fc, self.e, self.h, self.end = (prefix + name for name in names)
        self.p = prefix + layer
        self.shift = 1.0 if config["model_type"].startswith("qwen3_next") else 0.0
        self.keys, self.values = [], []

    def norm(self, name, x):
        return rms_norm(x, self.t[f"{name}.weight"] + self.shift, self.c["rms_norm_eps"])

    def turned(self, head, position):
        n = int(len(head) * self.c["partial_rotary_factor"])
        front = naive.turned(head[:n], position, self.c["rope_theta"])
        return torch.cat([front, head[n:]])

    def head(self, which, row, position):
        name = f"{self.p}self_attn.{which}_norm"
        row = self.norm(name, row) if f"{name}.weight" in self.t else row
        return self.turned(row, position)

    def pairs(self, row, position):
        """Neighbours turned by one angle a pair."""
        out, count = row.clone(), len(row)
        for n in range(0, count, 2):
            angle = position / self.c["rope_theta"] ** (n / count)
            a, b, cos, sin = row[n], row[n + 1], math.cos(angle), math.sin(angle)
            out[n], out[n + 1] = a * cos - b * sin, b * cos + a * sin
        return out

    def latent(self, x, position):
        """Latent attention: keys and values of all heads from one short vector."""
        c, name, heads = self.c, f"{self.p}self_attn.", self.c["num_attention_heads"]
        plain, values = c["qk_nope_head_dim"], c["v_head_dim"]
        short = linear(self.t, f"{name}kv_a_proj_with_mqa", x)
        rank = c["kv_lora_rank"]
        shared = self.pairs(short[rank:], position)
        front = rms_norm(short[:rank], self.t[f"{name}kv_a_layernorm.weight"], 1e-6)
        both = linear(self.t, f"{name}kv_b_proj", front).view(heads, plain + values)
        self.keys.append([torch.cat([row[:plain], shared]) for row in both])
        self.values.append([row[plain:] for row in both])
        if c.get("q_lora_rank"):
            q = linear(self.t, f"{name}q_a_proj", x)
            q = rms_norm(q, self.t[f"{name}q_a_layernorm.weight"], 1e-6)
            q = linear(self.t, f"{name}q_b_proj", q)
        else:
            q = linear(self.t, f"{name}q_proj", x)
        found = []
        for n, row in enumerate(q.view(heads, -1)):
            query = torch.cat([row[:plain], self.pairs(row[plain:], position)])
            scores = [float(query @ keys[n]) / math.sqrt(len(query)) for keys in self.keys]
            weights = [math.exp(s - max(scores)) for s in scores]
            pairs = zip(weights, self.values, strict=True)
            found.append(sum(w / sum(weights) * value[n] for w, value in pairs))
        return linear(self.t, f"{name}o_proj", torch.cat(found))

    def attention(self, x, position):
        if f"{self.p}self_attn.kv_a_proj_with_mqa.weight" in self.t:
            return self.latent(x, position)
        heads = self.c["num_attention_heads"]
        dim, kv = self.c["head_dim"], self.c["num_key_value_heads"]
        q, k, v = (linear(self.t, f"{self.p}self_attn.{w}_proj", x) for w in "qkv")
        q = q.view(heads, -1)
        self.keys.append([self.head("k", row, position) for row in k.view(kv, dim)])
        self.values.append(v.view(kv, dim))
        found = []
        for n in range(heads):
            query, group = self.head("q", q[n, :dim], position), n * kv // heads
            scores = [float(query @ keys[group]) / math.sqrt(dim) for keys in self.keys]
            weights = [math.exp(s - max(scores)) for s in scores]
            pairs = zip(weights, self.values, strict=True)
            out = sum(w / sum(weights) * value[group] for w, value in pairs)
            found.append(out / (1 + torch.exp(-q[n, dim:])) if q.shape[1] > dim else out)
        return linear(self.t, f"{self.p}self_attn.o_proj", torch.cat(found))

    def swiglu(self, name, x):
        gate = linear(self.t, f"{name}.gate_proj", x)
        up = linear(self.t, f"{name}.up_proj", x)
        return linear(self.t, f"{name}.down_proj", gate / (1 + torch.exp(-gate)) * up)

    def mlp(self, x):
        mlp = f"{self.p}mlp"
        if f"{mlp}.gate.weight" not in self.t:
            return self.swiglu(mlp, x)
        logits, k = (self.t[f"{mlp}.gate.weight"] @ x).tolist(), self.c["num_experts_per_tok"]
        bias = self.t.get(f"{mlp}.gate.e_score_correction_bias")
        if bias is None:
            total = sum(math.exp(n) for n in logits)
            scores = ranks = [math.exp(n) / total for n in logits]
            factor = 1.0
        else:
            scores = [1 / (1 + math.exp(-n)) for n in logits]
            ranks = [s + float(b) for s, b in zip(scores, bias, strict=True)]
            factor, size = self.c["routed_scaling_factor"], len(ranks) // self.c["n_group"]
            groups = [range(n, n + size) for n in range(0, len(ranks), size)]
            best = max(groups, key=lambda g: sum(sorted(ranks[e] for e in g)[-2:]))
            ranks = [r if e in best else -math.inf for e, r in enumerate(ranks)]
        chosen = sorted(range(len(ranks)), key=lambda e: -ranks[e])[:k]
        whole = sum(scores[e] for e in chosen)
        out = sum(factor * scores[e] / whole * self.swiglu(f"{mlp}.experts.{e}", x) for e in chosen)
        if bias is not None:
            return out + self.swiglu(f"{mlp}.shared_experts", x)
        gate = linear(self.t, f"{mlp}.shared_expert_gate", x)
        return out + self.swiglu(f"{mlp}.shared_expert", x) / (1 + torch.exp(-gate))

    def step(self, embedded, hidden, position):
        """The state that the output layer reads and the next step takes; `raw` is not normed."""
        pair = torch.cat([self.norm(self.e, embedded), self.norm(self.h, hidden)])
        x = linear(self.t, self.fc, pair)
        x = x + self.attention(self.norm(f"{self.p}input_layernorm", x), position)
        x = self.raw = x + self.mlp(self.norm(f"{self.p}post_attention_layernorm", x))
        return self.norm(self.end, x)
