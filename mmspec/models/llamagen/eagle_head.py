"""EAGLE's draft head (Li et al. 2024, section 4): one decoder layer over the target's features.

Its input at a token is the token's embedding and the target's hidden state that predicted it, its
output what the target's hidden state behind the token will be; the target's own embeddings and
output layer do the rest, so that the head holds neither. As it drafts, its own outputs take the
place of hidden states that the target has not computed yet.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from ...errors import InputError
from ..heads.columns import Images
from ..linear import RowLinear
from ..placement import Placement
from .decoder import LlamaGenDecoder
from .transformer import LlamaGenBlock, LlamaGenTransformer, attend


class EagleHead(ModelMixin, ConfigMixin):
    """Head of one layer, as wide as the target. Hidden states have the last norm, without weights.

    Args:
        dim, n_head, n_kv_head, norm_eps: as in the target.
        hidden_dim: width of the SwiGLU layer.
    """

    @register_to_config
    def __init__(
        self,
        dim: int = 1280,
        n_head: int = 20,
        n_kv_head: int | None = None,
        hidden_dim: int = 3584,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * dim, dim, bias=False)
        self.layer = LlamaGenBlock(dim, n_head, n_kv_head or n_head, hidden_dim, norm_eps)

    def init_weights(self, std: float = 0.02) -> None:
        """Normal weights, and the hidden state that comes in goes out again for a start."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=std)
        with torch.no_grad():
            self.fc.weight[:, self.config.dim :] += torch.eye(self.config.dim)

    def check(self, target: LlamaGenTransformer) -> None:
        """Raise an `InputError` unless it is for a target of such sizes."""
        for name in ("dim", "n_head"):
            own, wanted = self.config[name], target.config[name]
            if own != wanted:
                raise InputError(
                    f"the EAGLE head's {name} ({own}) is not the target's ({wanted}); train a head "
                    "for this target"
                )

    def normed(self, x: Tensor) -> Tensor:
        """`x [..., D]` with a mean square of 1."""
        return F.rms_norm(x, (self.config.dim,), eps=self.config.norm_eps)

    def forward(
        self, embedded: Tensor, features: Tensor, rotary: Tensor, mask: Tensor, depth: int = 1
    ) -> list[Tensor]:
        """Hidden states `[R, S, D]` behind every input, as 1, 2, … `depth` levels of a draft say.

        At level k the last k − 1 inputs up to each stand on the head's own outputs of the levels
        above, as in a draft; whatever is before them stands on the target's hidden states
        (HASS, Zhang et al. 2024, section 3.2; EAGLE-3, Li et al. 2025, section 3.2).

        Args:
            embedded: the target's inputs `[R, S, D]`, prefix and tokens.
            features: the target's hidden states in front of them, zero where there is none.
            rotary: the target's factors `[S, head_dim / 2]`.
            mask: `[R, 1, S, S]`, added to the scores; nothing later is read.
        """
        embedded = self.normed(embedded)

        def inputs(features: Tensor) -> Tensor:
            return self.fc(torch.cat([embedded, features], dim=-1))

        return draft_levels(self.layer, inputs(features), inputs, self.normed, rotary, mask, depth)


def draft_levels(
    layer: LlamaGenBlock,
    first: Tensor,
    inputs: Callable[[Tensor], Tensor],
    closing: Callable[[Tensor], Tensor],
    rotary: Tensor,
    mask: Tensor,
    depth: int,
) -> list[Tensor]:
    """Outputs of a layer over features at 1, 2, … `depth` levels of a draft, `[R, S, D]` each.

    Args:
        layer: reads one level's inputs, and keys and values of the levels above.
        first: the inputs `[R, S, D]` of the first level, which stands on the target's features.
        inputs: those of a deeper one, of the features `[R, S, D]` in front of them.
        closing: makes features of what the layer says.
        rotary: `[S, head_dim / 2]` or `[R, S, head_dim / 2]`.
        mask: `[R, 1, S, S]`, added to the scores; nothing later is read.
    """
    memory: list[tuple[Tensor, Tensor]] = []
    levels: list[Tensor] = []
    h = first
    for level in range(depth):
        if level:
            h = inputs(F.pad(levels[-1][:, :-1], (0, 0, 1, 0)))
        query, key, value = layer.attention.heads(layer.attention_norm(h), rotary)
        memory.append((key, value))
        h = h + layer.attention.joined(attend_levels(query, memory, mask))
        levels.append(closing(h + layer.feed_forward(layer.ffn_norm(h))))
    return levels


def attend_levels(query: Tensor, memory: list[tuple[Tensor, Tensor]], mask: Tensor) -> Tensor:
    """Attention of the last level, `[R, heads, T, head_dim]`.

    At level k input s reads the first level's keys up to s − k + 1, the second's at s − k + 2, …
    and its own level's at s. (What that is at the first k − 1 of the T inputs means nothing.)

    Args:
        query: of the last level, at the last T of S inputs `[R, heads, T, head_dim]`.
        memory: keys and values of all levels, `[R, kv_heads, S, head_dim]`; of the deeper ones at
            the last T.
        mask: of the first level `[R or 1, 1, S, S]`.
    """
    skip = mask.shape[-1] - query.shape[2]
    mask = mask[..., skip:, :]
    behind = len(memory) - 1
    if not behind:
        return attend(query, *memory[0], mask)
    heads, width, length = query.shape[1], query.shape[-1], mask.shape[-1]
    query = query * width**-0.5
    keys, values = [], []  # of the levels, each where its reader is
    for level, (key, value) in enumerate(memory):
        back, groups = behind - level if level else 0, heads // key.shape[1]
        keys.append(key.roll(back, 2).repeat_interleave(groups, 1))
        values.append(value.roll(back, 2).repeat_interleave(groups, 1))
    later = torch.full_like(mask[:1, :1], -torch.inf).triu(1 - behind + skip)
    first = query @ keys[0].transpose(-1, -2) + (mask + later).to(query.dtype)
    others = torch.stack([(query * key).sum(-1) for key in keys[1:]], dim=-1)
    weights = torch.cat([first, others], dim=-1).softmax(-1).to(query.dtype)
    out = weights[..., :length] @ values[0]
    for n, value in enumerate(values[1:], start=length):
        out = out + weights[..., n, None] * value
    return out


class EagleDecoder(LlamaGenDecoder):
    """The head as it runs at inference, between the target's embeddings and its output layer.

    `embeddings` are what the head's first map makes of the target's. The layer runs where the
    target's embeddings are.

    Raises:
        InputError: the head is for a target of another size.
    """

    def __init__(self, head: EagleHead, target: LlamaGenDecoder) -> None:
        head.check(target.model)
        main = target.placement.main
        placement = Placement(main, (main,), target.placement.head)
        self._arrange([head.layer], placement, head.config.norm_eps)
        self.model, self.head = target.model, target.head
        token, feature = head.fc.weight.detach().to(main).chunk(2, dim=1)
        self._token, self._feature = RowLinear(token), RowLinear(feature)
        self.embeddings = self._of_inputs(target.embeddings)

    def view(
        self, prefix: Tensor, mask: Tensor, images: Images | None, positions: int
    ) -> tuple[Tensor, Tensor]:
        return prefix, mask

    def read(self, prefix: Tensor, before: Tensor) -> tuple[Tensor, None]:
        return self.joined(self._of_inputs(prefix), before), None

    def joined(self, embedded: Tensor, features: Tensor, context: Tensor | None = None) -> Tensor:
        return embedded + self._feature(features)

    def _of_inputs(self, embedded: Tensor) -> Tensor:
        """The part of the layer's inputs that comes from the target's inputs `[…, D]`."""
        return self._token(self.layers.norm(embedded))
