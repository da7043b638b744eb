"""A new acceptance rule in one class, compared with the exact one: typical acceptance (Medusa).

A drafted token stands if the target finds it likely for a law of its entropy (Cai et al. 2024,
section 3.3.1). `PYTHONPATH=examples mmspec eval run --suite frontier --methods
'draft,draft[rule=acceptance_rule:TypicalRule]' -o report/` measures its speed and what it costs.
"""

import torch

from mmspec import ImagePipeline, SpecConfig
from mmspec.engine.accept.chain import accepted_prefix, pick, prefix_verdict, token_probs
from mmspec.engine.laws import ContractError


class TypicalRule:
    contract = "lossy"

    def verify(self, draft, scores, coins):
        if draft.parents is not None:
            raise ContractError("typical acceptance judges chains; this draft is a tree")
        stood = draft.lengths  # [B]: of nothing drafted, all
        if draft.nodes:
            p = scores.at_nodes(draft)  # [B, N, V]: the target's law of each drafted token
            bar = (0.3 * (-torch.special.entr(p).sum(-1)).exp()).clamp(max=0.09)  # as published
            stood = accepted_prefix(token_probs(p, draft.tokens) > bar, draft)
        return prefix_verdict(draft, stood, coins.draw(pick(scores.probs, stood)))


def main() -> None:
    pipe = ImagePipeline.from_pretrained()
    own = SpecConfig("draft", rule=f"{__name__}:TypicalRule")
    for name, config in {"token": SpecConfig("draft"), "typical": own}.items():
        pipe.enable_speculation(config)
        out = pipe("a photo of a red circle", generator=torch.Generator().manual_seed(0))
        out.images[0].save(f"{name}.png")
        print(f"{name}: {out.stats.mean_acceptance_length:.2f} tokens a call")


if __name__ == "__main__":
    main()
