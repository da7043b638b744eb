"""Feed-forward parts of decoder layers: SwiGLU, and mixtures of experts beside a shared one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from typing_extensions import Self


class HeadMlp(nn.Module):
    """SwiGLU of `width` numbers over `inner` hidden ones."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


@dataclass(frozen=True)
class ExpertSizes:
    """Sizes and routing of a mixture of experts.

    Attributes:
        count: experts E.
        chosen: experts that a token goes through.
        inner: hidden numbers of an expert I.
        shared: hidden numbers of the expert that every token goes through; 0: there is none.
        sigmoid: DeepSeek-V3's and GLM-4's routing: every expert has a score of its own, a stored
            bias takes part in the choice alone. Otherwise Qwen's: a softmax over all experts, and a
            gate of the shared one.
        normed: the chosen weights add up to one.
        scale: of the chosen weights, with `sigmoid`.
        groups, groups_chosen: experts are chosen from the groups with the two best, with `sigmoid`.
    """

    count: int
    chosen: int
    inner: int
    shared: int = 0
    sigmoid: bool = False
    normed: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_chosen: int = 1


class Experts(nn.Module):
    """Experts' weights: gates above ups `[E, 2 I, H]`, downs `[E, H, I]`."""

    def __init__(self, sizes: ExpertSizes, width: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(sizes.count, 2 * sizes.inner, width))
        self.down_proj = nn.Parameter(torch.empty(sizes.count, width, sizes.inner))


class Router(nn.Module):
    """Weights `[E, H]` of the scores, and the bias `[E]` of the choice.

    Both stay in float32 or wider, as in transformers: by less, other experts would be chosen.
    """

    def __init__(self, sizes: ExpertSizes, width: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.weight = nn.Parameter(torch.empty(sizes.count, width))
        if sizes.sigmoid:
            self.e_score_correction_bias = nn.Parameter(torch.empty(sizes.count))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def kept(weight: Tensor) -> Tensor:
            moved = fn(weight)
            wide = torch.promote_types(moved.dtype, torch.float32)
            return moved if moved.dtype == wide else weight.to(moved.device, wide)

        moved: Self = super()._apply(kept, recurse)  # type: ignore[no-untyped-call]
        return moved

    def forward(self, x: Tensor) -> Tensor:
        """Weights `[…, E]` of the experts, 0 where not chosen."""
        sizes, wide = self.sizes, torch.promote_types(x.dtype, torch.float32)
        logits = F.linear(x.to(wide), self.weight.to(wide))
        scores = logits.sigmoid() if sizes.sigmoid else logits.softmax(dim=-1)
        ranked = scores
        if sizes.sigmoid:
            ranked = scores + self.e_score_correction_bias.to(scores.dtype)
        if sizes.groups > 1:
            parts = ranked.unflatten(-1, (sizes.groups, -1))
            best = parts.topk(2, dim=-1).values.sum(-1).topk(sizes.groups_chosen, dim=-1).indices
            open_ = torch.zeros(parts.shape[:-1], dtype=torch.bool, device=x.device)
            open_ = open_.scatter(-1, best, True)
            ranked = parts.masked_fill(~open_[..., None], -torch.inf).flatten(-2)
        index = ranked.topk(sizes.chosen, dim=-1).indices
        weights = scores.gather(-1, index)
        if sizes.normed:
            weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-20)
        if sizes.sigmoid:
            weights = weights * sizes.scale
        return torch.zeros_like(scores).scatter(-1, index, weights).to(x.dtype)


class MixtureOfExperts(nn.Module):
    """Chosen experts' outputs by weight, and the shared expert's; names as in the files."""

    def __init__(self, sizes: ExpertSizes, width: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.gate = Router(sizes, width)
        self.experts = Experts(sizes, width)
        if sizes.shared and sizes.sigmoid:
            self.shared_experts = HeadMlp(width, sizes.shared)
        elif sizes.shared:
            self.shared_expert = HeadMlp(width, sizes.shared)
            self.shared_expert_gate = nn.Linear(width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        weights, out = self.gate(rows), torch.zeros_like(rows)
        for expert in weights.any(dim=0).nonzero()[:, 0].tolist():
            own = weights[:, expert].nonzero()[:, 0]
            both = F.linear(rows[own], self.experts.gate_up_proj[expert])
            gate, up = both.chunk(2, dim=-1)
            said = F.linear(F.silu(gate) * up, self.experts.down_proj[expert])
            out[own] += weights[own, expert, None] * said
        if hasattr(self, "shared_experts"):
            out = out + self.shared_experts(rows)
        elif hasattr(self, "shared_expert"):
            out = out + torch.sigmoid(self.shared_expert_gate(rows)) * self.shared_expert(rows)
        return out.view_as(x)
