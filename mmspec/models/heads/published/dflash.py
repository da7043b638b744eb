"""DFlash (Chen et al. 2026): a whole block of masked places in one call.

A block is the last committed token and mask tokens behind it, in the target's embeddings. What its
layers know of the context are keys and values made of the target's hidden states, joined by `fc`
and normed; the context itself runs through no layer. Within the block every place sees every other.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from .attention import Attend, HeadAttention
from .correction import ConfidenceHead, Correction, DominoHead
from .layer import HeadLayer
from .sizes import HeadSizes


class DFlashNetwork(nn.Module):
    """The network; see the module.

    Args:
        sizes: see `HeadSizes`.
        fused: hidden states of the target that are joined, A.
        target_size: their width Ht.
        block_size: places of a block, its first token among them.
        mask_token_id: of the target's vocabulary.
        layers: decoder layers.
        vocab_size: V of its embeddings; None: it stores none and takes the target's.
        draft_vocab_size: Vd of its output layer; None: it has none and takes the target's.
        anchored: a place says the token behind it, so that the first one says a token, too;
            otherwise a place says the token that stands there.
        correction: corrects the logits by the tokens drafted before (DSpark, Domino).
        confidence: DSpark's estimate that a token stands.
    """

    def __init__(
        self,
        sizes: HeadSizes,
        fused: int,
        target_size: int,
        block_size: int,
        mask_token_id: int,
        layers: int = 5,
        vocab_size: int | None = None,
        draft_vocab_size: int | None = None,
        anchored: bool = False,
        correction: Correction | None = None,
        confidence: ConfidenceHead | None = None,
    ) -> None:
        super().__init__()
        width, eps = sizes.hidden_size, sizes.rms_norm_eps
        self.block_size, self.mask_token_id = block_size, mask_token_id
        if vocab_size is not None:
            self.embed_tokens = nn.Embedding(vocab_size, width)
        self.fc = nn.Linear(fused * target_size, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, eps)
        self.layers = nn.ModuleList(HeadLayer(sizes) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps)
        if draft_vocab_size is not None:
            self.lm_head = nn.Linear(width, draft_vocab_size, bias=False)
        self.anchored = anchored
        # Domino's tensors have no name in front
        if isinstance(correction, DominoHead):
            self.prefix_gru, self.embed_proj = correction.prefix_gru, correction.embed_proj
        elif correction is not None:
            self.markov_head = correction
        if confidence is not None:
            self.confidence_head = confidence
        self._correction = [correction]  # in a list, so that its tensors have one name

    @property
    def correction(self) -> Correction | None:
        """Correction of the logits; None: there is none."""
        return self._correction[0]

    @property
    def confidence(self) -> ConfidenceHead | None:
        """Estimate that a token stands; None: there is none."""
        found = self._modules.get("confidence_head")
        assert found is None or isinstance(found, ConfidenceHead)
        return found

    @property
    def most(self) -> int:
        """Tokens that a block says."""
        return self.block_size if self.anchored else self.block_size - 1

    def fuse(self, states: Tensor) -> Tensor:
        """The context `[…, H]` of the target's hidden states `[…, A · Ht]`."""
        out: Tensor = self.hidden_norm(self.fc(states))
        return out

    def context(self, fused: Tensor, turns: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Keys and values `[R, kv_heads, N, head_dim]` by layer, of what `fuse` gave."""
        attentions = (layer.get_submodule("self_attn") for layer in self.layers)
        return [cast(HeadAttention, part).keys_values(fused, turns) for part in attentions]

    def forward(self, block: Tensor, turns: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Hidden states `[R, N, H]` behind the final norm, of embedded blocks `[R, N, H]`.

        `attend` puts the context's keys and values in front of the block's.
        """
        x = block
        for number, layer in enumerate(self.layers):
            x = layer(x, turns, attend, number)
        out: Tensor = self.norm(x)
        return out
