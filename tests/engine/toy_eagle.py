"""Tiny targets of pictures with EAGLE's head, and its laws by passes without a cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from watched_drafts import Watched, inner

from mmspec.draft.feature.eagle import EagleModel
from mmspec.draft.feature.feature_model import EagleDrafter
from mmspec.draft.guarded import GuardedDrafter
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.laws import OneHot
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp
from mmspec.models.llamagen.eagle_head import EagleDecoder, EagleHead
from mmspec.models.llamagen.transformer import LlamaGenTransformer, causal_mask
from mmspec.models.loading import cast
from mmspec.models.target import TokenTarget

PADS = [0, 3, 1]


def tiny_head(model: LlamaGenTransformer, seed: int = 3) -> EagleHead:
    """A head that is neither good nor useless: what it says leans on all its inputs."""
    config = model.config
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = EagleHead(config.dim, config.n_head, config.n_kv_head, 48)
        for weight in head.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.25)
        head.fc.weight.data[:, config.dim :] += torch.eye(config.dim)
    return cast(head, model.output.weight.dtype)


class Oracle:
    """A draft's laws and a committed text's hidden states from full passes without a cache."""

    def __init__(self, model, head, prefix, mask, scale, warp) -> None:
        self.model, self.head, self.scale, self.warp = model, head, scale, warp
        self.prefix, self.mask = prefix, mask

    def hidden(self, tokens: list[int], rows: list[int]) -> torch.Tensor:
        """The target's `[R, T + n, D]`; zero where the prefix is padded."""
        text = torch.tensor(tokens, dtype=torch.long).expand(len(rows), -1)
        prefix, mask = self.prefix[rows], self.mask[rows]
        states = self.model.hidden(text, prefix, mask)
        states = F.rms_norm(states, states.shape[-1:], eps=self.model.config.norm_eps)
        length = prefix.shape[1]
        states[:, :length] *= mask[..., None]
        return states

    def law(self, row: int, committed: list[int], path: list[int]) -> torch.Tensor:
        """The head's law `[V]` behind `path`, which it drafted behind `committed`."""
        samples = len(self.prefix) // (1 if self.scale is None else 2)
        rows = [row] if self.scale is None else [row, samples + row]
        states = self.hidden(committed, rows)[:, :-1]  # the last one is not known yet
        prefix, mask = self.prefix[rows], self.mask[rows]
        text = torch.tensor([*committed, *path], dtype=torch.long).expand(len(rows), -1)
        embedded = torch.cat([prefix, self.model.tok_embeddings(text)], 1)
        for _ in range(len(path) + 1):
            n = states.shape[1] + 1
            before = F.pad(states, (0, 0, 1, 0))
            (out,) = self.head(
                embedded[:, :n], before, self.model.rotary()[:n], causal_mask(mask, n)
            )
            states = torch.cat([states, out[:, -1:]], 1)
        logits = self.model.output(states[:, -1] * self.model.norm.weight)
        if self.scale is not None:
            logits = logits[1] + self.scale * (logits[0] - logits[1])
        return self.warp(logits.flatten())


class Recorded(EagleDrafter):
    """Keeps what it drafted: of every round and row, the nodes and their laws."""

    def start(self, context) -> None:
        super().start(context)
        self.drafts = []

    def propose(self, context, budget, coins):
        draft = super().propose(context, budget, coins)
        if not draft.nodes:
            return draft
        laws = draft.tokens[..., None] if isinstance(draft.law, OneHot) else draft.law.probs
        self.drafts.append([law[:n] for law, n in zip(laws, draft.lengths.tolist(), strict=True)])
        return draft


def generation(
    tiny_llamagen,
    guided_rows,
    kind,
    *,
    rows=None,
    pads=PADS,
    scale=2.0,
    warp=None,
    limit=14,
    depth=3,
    watch=True,
    sizes=None,
    guard=False,
    rule=None,
):
    """A whole generation; returns the context, the drafter that saw it and the counters."""
    rows = list(range(len(pads))) if rows is None else rows
    model = tiny_llamagen(**(sizes or {}))
    head = tiny_head(model)
    guided, prefix, mask = guided_rows(
        model, pads, rows, scale=scale, warp=warp, limit=limit, scratch=24
    )
    drafts = EagleModel(EagleDecoder(head, guided.decoder), guided)
    chosen, own_rule = inner(kind, drafts)
    drafter = watched = Recorded(drafts, chosen)
    if watch:
        oracle = Oracle(model, head, prefix, mask, scale, warp or Warp())
        drafter = watched = Watched(drafter, oracle)
    if guard:
        drafter = GuardedDrafter(drafter, model.config.vocab_size, 24)
    engine = Engine(
        TokenTarget(guided),
        drafter,
        rule or own_rule,
        ConstantLength(depth),
        ProductionCoins([10 + row for row in rows]),
    )
    stats = SpecStats()
    context = run(engine, len(rows), limit, stats)
    return context, watched, stats
