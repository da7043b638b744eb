"""Typical acceptance (Cai et al. 2024, section 3.3.1)."""

import torch

from mmspec.engine.accept.chain import accepted_prefix, pick, prefix_verdict, token_probs


class TypicalRule:
    """A token stands if p(x) > min(ε, δ exp(−H(p))), H the entropy of the target's law p."""

    contract = "lossy"

    def __init__(self, epsilon: float, delta: float) -> None:
        self.epsilon, self.delta = epsilon, delta

    def verify(self, draft, scores, coins):
        stood = draft.lengths  # [B]: of nothing drafted, all
        if draft.nodes:
            p = scores.at_nodes(draft)  # [B, N, V]: the target's law of each drafted token
            entropy = torch.special.entr(p).sum(-1)
            bar = torch.clamp(self.delta * torch.exp(-entropy), max=self.epsilon)
            stood = accepted_prefix(token_probs(p, draft.tokens) > bar, draft)
        return prefix_verdict(draft, stood, coins.draw(pick(scores.probs, stood)))
