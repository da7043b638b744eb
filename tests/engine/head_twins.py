"""Published heads in their layouts, and slow twins of the laws that they draft from."""

from __future__ import annotations

import folders
import naive
import torch
from toy_vlm import Passes, guided_vlm, tiny_llava
from toys import distance, whole_loop
from watched_drafts import inner, joint

from mmspec.draft.feature.feature_model import EagleDrafter
from mmspec.draft.feature.head_model import head_model
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.models.heads.formats.files import HeadFiles
from mmspec.models.heads.formats.registry import read_head
from mmspec.models.target import TokenTarget

ALL = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
LAYOUTS = {
    "eagle": lambda folder: folders.eagle1(folder),
    "eagle-bias": lambda folder: folders.eagle1(folder, qkv_bias=True, layers=2),
    "eagle-own": lambda folder: folders.eagle1(folder, embeds=True),
    "msd": lambda folder: folders.eagle1(folder),
    "vispec": lambda folder: folders.vispec(folder),
    "eagle3": lambda folder: folders.eagle3(folder, **ALL),
    "eagle3-own": lambda folder: folders.eagle3(folder, embeds=True, **ALL),
    "eagle3-fc-norm": lambda folder: folders.eagle3(folder, fc_norm=True, **ALL),
    "speculators": lambda folder: folders.speculators_eagle3(
        folder, norm_output=True, eagle_aux_hidden_state_layer_ids=[0, 1, 2]
    ),
    "peagle": lambda folder: folders.peagle(folder, **ALL),
    "eagle-attn": lambda folder: folders.eagle_attn(folder),
    "eagle-attn-unsized": lambda folder: folders.eagle_attn(folder, sized=False),
    "dflash": lambda folder: folders.dflash(
        folder, dflash_config={"mask_token_id": folders.MASK, "target_layer_ids": [0, 1]}
    ),
    "dspark": lambda folder: folders.dspark(folder, target_layer_ids=[0, 1]),
    "dspark-gated": lambda folder: folders.dspark(folder, kind="gated", target_layer_ids=[0, 1]),
    "dspark-rnn": lambda folder: folders.dspark(
        folder, kind="rnn", deepspec=True, target_layer_ids=[0, 1]
    ),
    "dflash-speculators": lambda folder: folders.speculators_blocks(folder, ids=(1, 2)),
    "dspark-speculators": lambda folder: folders.speculators_blocks(
        folder, kind="dspark", ids=(1, 2)
    ),
    "peagle-speculators": lambda folder: folders.speculators_peagle(folder, **ALL),
    "domino": lambda folder: folders.domino(folder, target_layer_ids=[0, 1]),
    "domino-fill-in": lambda folder: folders.domino(
        folder, target_layer_ids=[0, 1], shift_label=False, pure_draft_prefix_len=0
    ),
    "longspec": lambda folder: folders.longspec(folder, longspec={"window": 3}),
    "longspec-bias": lambda folder: folders.longspec(folder, qkv_bias=True),
    "falcon": lambda folder: folders.falcon(folder),
    "falcon-3": lambda folder: folders.falcon(folder, block=3, bias=False),
    "falcon-own": lambda folder: folders.falcon(folder, embeds=True),
    "medusa": lambda folder: folders.medusa(folder),
    "hydra": lambda folder: folders.hydra(folder),
    "hydra-prefix": lambda folder: folders.prefix_hydra(folder),
}


def head_of(name, folder):
    folder, config, tensors = LAYOUTS[name](folder)
    head = read_head(HeadFiles.read(folder), "msd" if name == "msd" else None).double().eval()
    return head, config, tensors


class Twin:
    """A draft's laws from the head's slow twin, over the target's full passes."""

    def __init__(self, name, model, prompt, config, tensors):
        self.name, self.model, self.config, self.tensors = name, model, config, tensors
        self.rows = [Passes(model, prompt, row) for row in range(len(prompt.images))]
        ids = [prompt.text[row, p.pads :].tolist() for row, p in enumerate(self.rows)]
        self.said = dict(zip(map(id, self.rows), ids, strict=True))  # -1 at pictures
        self.pictures = {}

    def states(self, passes, text):
        """All hidden states of a text `[L + 1, S, D]`, the last behind the final norm.

        `joined_states` are what EAGLE-3 reads of them: the last one in front of it.
        """
        body, front = self.model.model.language_model, []
        hook = body.norm.register_forward_pre_hook(lambda norm, args: front.append(args[0]))
        out = body(inputs_embeds=passes.embedded(text), output_hidden_states=True)
        hook.remove()
        states = torch.cat(out.hidden_states)
        self.joined_states = torch.cat([states[:-1], front[0]])
        return states

    def law(self, row, committed, path):
        with torch.no_grad():
            logits = self.logits(self.rows[row], committed, path)
        return logits.softmax(-1)

    def logits(self, passes, committed, path):
        self.text = [*self.said[id(passes)], *committed]
        text, t = [*committed, *path], self.tensors
        embedded, states = passes.embedded(text)[0], self.states(passes, text)
        root = passes.length + len(committed) - 1  # the last committed column
        if self.name.startswith("longspec"):
            body = self.model.model.language_model
            last = body(inputs_embeds=embedded[None], use_cache=True).past_key_values.layers[-1]
            keys, values = ([*x[0].transpose(0, 1)] for x in (last.keys, last.values))
            return self.model.lm_head(naive.longspec(t, self.config, embedded, keys, values, root))
        if self.name.startswith("falcon"):
            return self.blocks(embedded, states, root, path)
        if self.name == "medusa":
            return naive.medusa(t, states[-1][root - 1])[len(path)]
        if self.name.startswith("hydra"):
            way, before = embedded[root : root + 1 + len(path)], states[-1][root - 1]
            if self.name == "hydra-prefix":
                before = naive.prefixed(t, self.config, states[-1][:root])[-1]
            return naive.hydra(t, len(path), before, way)
        if self.name.startswith(("dflash", "dspark", "domino")):
            out = self.slots(passes, committed, path)
            return self.corrected(out, committed, path, self.first(passes, committed, path))
        return self.recurrent(passes, embedded, states, root, path)

    def blocks(self, embedded, states, root, path):
        """Falcon's: block by block over its own states."""
        t, size, table = (
            self.tensors,
            self.config["k_mask"],
            self.tensors.get("embed_tokens.weight"),
        )
        embedded, text = list(embedded), [*self.text, *path]
        if table is not None:
            embedded = [e if x < 0 else table[x] for e, x in zip(embedded, text, strict=True)]
        before = list(states[-1][:root])
        for end in range(root + 1, root + len(path) + 2, size):
            out = naive.falcon(t, self.config, embedded[1:end], before)
            before += out
        return self.model.lm_head(out[len(path) % size])

    def first(self, passes, committed, path):
        """A block's first input."""
        own, last = self.tensors.get("embed_tokens.weight"), self.text[-1]
        if own is not None and last >= 0:
            return own[last]
        root = passes.length + len(committed) - 1
        return passes.embedded([*committed, *path])[0, root]

    def slots(self, passes, committed, path):
        """Hidden states of a block's places."""
        t, states = self.tensors, self.states(passes, [*committed, *path])
        root = passes.length + len(committed) - 1
        known = [torch.cat([states[1][n], states[2][n]]) for n in range(root)]
        table = t.get("embed_tokens.weight", self.model.get_input_embeddings().weight)
        block = [self.first(passes, committed, path), *table[[folders.MASK] * 3]]
        return naive.dflash(t, self.config, known, block, range(root), root)

    def corrected(self, out, committed, path, first):
        """Logits of a block's place, with what the tokens before it add."""
        t, c, n = self.tensors, self.config, len(path)
        anchored = self.name.startswith("dspark") or (self.name == "domino")
        slots = out if anchored else out[1:]
        table = t.get("lm_head.weight")
        logits = self.model.lm_head(slots[n]) if table is None else table @ slots[n]
        before = [self.text[-1], *path]
        skip = before[0] < 0  # behind a picture nothing is known
        if self.name.startswith("dspark") and n >= skip:
            known, own = before[skip:], slots[skip : n + 1]
            logits = logits + naive.markov(t, c["markov_head_type"], known, own)[n - skip]
        if self.name.startswith("domino"):
            skipped = c.get("pure_draft_prefix_len", 1) + (not anchored)
            number = n if anchored else n + 1
            words = self.model.get_input_embeddings()(torch.tensor(path, dtype=torch.long))
            if number >= skipped:
                logits = logits + naive.domino(t, [first, *words], slots[: n + 1])[n]
        return self.spread(logits) if "d2t" in t else logits

    def spread(self, logits):
        """Logits of the target's tokens, of those that the head drafts."""
        full = torch.full((folders.V,), -torch.inf, dtype=torch.float64)
        full[torch.arange(folders.VD) + self.tensors["d2t"]] = logits
        return full

    def recurrent(self, passes, embedded, states, root, path):
        """EAGLE's kind: pairs of a token and the hidden state in front, its own ones at last."""
        depth = len(path)
        t, c, eps = self.tensors, self.config, self.config["rms_norm_eps"]
        three = "eagle3" in self.name or self.name == "speculators"
        if self.name.startswith("peagle"):
            return self.parallel(embedded, states, root, depth)
        table = t.get("embed_tokens.weight")
        text = [*self.text, *path]
        if table is not None:
            known = [n for n, token in enumerate(text) if token >= 0]
            embedded = embedded.clone()
            embedded[known] = table[[text[n] for n in known]]
        own = []
        for level in range(depth + 1):
            last = root + level
            columns, keep = range(1, last + 1), []
            if three:
                layer = naive.Layer(
                    t, "midlayer." if "midlayer.hidden_norm.weight" in t else "layers.0.", c
                )
            else:
                count = len({n.split(".")[1] for n in t if n.startswith("layers.")})
                layers = [naive.Layer(t, f"layers.{n}.", c) for n in range(count)]
            for column in columns:
                hidden = own[column - root - 1] if column > root else None
                e = embedded[column]
                if three:
                    if hidden is None:
                        parts = self.joined_states[:3, column - 1]
                        if c.get("fc_norm"):
                            parts = [
                                naive.rms_norm(p, t[f"fc_norm.{n}.weight"], eps)
                                for n, p in enumerate(parts)
                            ]
                        hidden = naive.linear(t, "fc", torch.cat(list(parts)))
                    out = layer.fused(e, hidden, column - 1)
                    normed = naive.rms_norm(out, t["norm.weight"], eps)
                    keep = normed if c.get("norm_output") else out
                    continue
                x = self.joined(
                    passes, column, e, states[-1][column - 1] if hidden is None else hidden
                )
                if x is None:
                    continue
                for one in layers:
                    x = one.plain(x, column - 1)
                keep = x
            own.append(keep)
        if three:
            return self.spread(t["lm_head.weight"] @ normed)
        return self.model.lm_head(own[-1])

    def parallel(self, embedded, states, root, depth):
        """P-EAGLE's: places behind the root have a mask token and a learned state."""
        t, c, eps = self.tensors, self.config, self.config["rms_norm_eps"]
        first, second = (naive.Layer(t, f"layers.{n}.", c) for n in range(2))
        text = self.text
        for place in range(root + depth):
            if place < root:
                e, parts = (
                    t["embed_tokens.weight"][text[place + 1]],
                    self.joined_states[:3, place].flatten(),
                )
                if text[place + 1] < 0:
                    e = embedded[place + 1]
            else:
                e, parts = t["embed_tokens.weight"][folders.MASK], t["mask_hidden"].flatten()
            h = first.fused(e, naive.linear(t, "fc", parts), place)
            h = second.plain(h, place)
        return self.spread(t["lm_head.weight"] @ naive.rms_norm(h, t["norm.weight"], eps))

    def adapted(self, passes, first, end):
        """What the adapter makes of a picture, which no text changes."""
        place = id(passes), first, end
        if place not in self.pictures:
            self.pictures[place] = naive.adapter(self.tensors, passes.prompt[0, first:end])
        return self.pictures[place]

    def joined(self, passes, column, embedded, hidden):
        """A layer's input; None: the column is not read."""
        t, images = self.tensors, passes.images
        visual = spans = []
        if images is not None:
            visual = images.visual(torch.zeros(1, 999, dtype=torch.bool))[0]
            ends, sizes = images.ends.tolist(), images.sizes
            spans = [(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        if self.name == "msd" and len(visual) and visual[column]:
            return embedded
        if self.name != "vispec":
            return naive.linear(t, "fc", torch.cat([embedded, hidden]))
        g = torch.zeros_like(hidden)
        for first, end in spans:
            out = self.adapted(passes, first, end)
            if first <= column < end:
                kept = column - (end - (len(out) - 1))
                return out[kept] if kept >= 0 else None
            if end <= column:
                g = out[-1]
        return naive.linear(
            t, "fc", torch.cat([embedded, naive.linear(t, "img_fc", torch.cat([hidden, g]))])
        )


def loop_error(head, kind) -> float:
    """Distance between the law of whole outputs behind a picture and the target's own.

    Of the shipped loop; the head is for a vocabulary of two tokens.
    """
    model = tiny_llava(vocab=2)
    target, prompt, images = guided_vlm(model, [["picture", 0]], limit=3, scratch=8)
    drafts = head_model(head, target, images)

    def drafter():
        chosen = TreeDrafter(drafts, (2, 1)) if kind == "tree" else inner(kind, drafts)[0]
        return EagleDrafter(drafts, chosen)

    law = whole_loop(3, TokenTarget(target), drafter, inner(kind, drafts)[1], at_once=1)
    with torch.inference_mode():
        return distance(law, joint(3, 2, Passes(model, prompt, 0).law))
