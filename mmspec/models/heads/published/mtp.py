"""Multi-token prediction: a target's own layer for the token after the next.

`fc([norm(e(x_{t+1})); norm(h_t)])` goes into one decoder layer, h_t the target's last hidden state
behind its final norm. The layer's output, normed, is read by the output layer, and stands for the
target's hidden state in the next step (DeepSeek-AI 2024, section 2.2; Qwen3-Next).
"""

from __future__ import annotations

from torch import Tensor, nn

from .attention import Attend
from .eagle1 import EagleNetwork
from .experts import ExpertSizes
from .sizes import HeadSizes


class MtpNetwork(EagleNetwork):
    """The network, under Qwen3-Next's names without their prefix `mtp.`.

    Args:
        sizes: see `HeadSizes`.
        experts: of the layer's mixture; None: it has a plain feed-forward part.
        vocab_size: V of its embeddings; None: it stores none and takes the target's.
        output_size: V of its output layer; None: it has none and takes the target's.

    Attributes:
        feed_normed: the next step takes the output behind the final norm. No file says otherwise;
            older runtimes of DeepSeek's and GLM's layers gave it the one in front.
    """

    feed_normed = True

    def __init__(
        self,
        sizes: HeadSizes,
        experts: ExpertSizes | None = None,
        vocab_size: int | None = None,
        output_size: int | None = None,
    ) -> None:
        super().__init__(sizes, vocab_size, bias=False, first_norm=True, experts=experts)
        width, self.zero_centred = sizes.hidden_size, sizes.zero_centred
        self.pre_fc_norm_embedding = sizes.norm(width)
        self.pre_fc_norm_hidden = sizes.norm(width)
        self.norm = sizes.norm(width)
        if output_size is not None:
            self.lm_head = nn.Linear(width, output_size, bias=False)

    def joined(self, embedded: Tensor, hidden: Tensor, context: Tensor | None = None) -> Tensor:
        return super().joined(self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden))

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], attend: Attend, skip: int = 0
    ) -> Tensor:
        """Hidden states `[R, N − skip, H]` that the next step takes."""
        out = super().forward(x, turns, attend, skip)
        return self.norm(out) if self.feed_normed else out

    def before_output(self, hidden: Tensor) -> Tensor:
        return hidden if self.feed_normed else self.norm(hidden)
