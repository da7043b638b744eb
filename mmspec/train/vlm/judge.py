"""Recipe of a judge of drafted tokens over a frozen vision-language model.

For what is learned see `judging`; the labels are those of `statements`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ...draft.draft_model import ModelDrafter
from ...engine.warp import Warp
from ...files import atomic_folder
from ...models.heads.fit import TargetFit
from ..card import write_card
from ..judging import DRAFTED, LEFT, RECALL, JudgeLearner, Labels, LenientRule, check_kinds
from ..trainer import TrainConfig
from .pair import PICTURES, Asked, VlmPairRecipe
from .prompts import Questions
from .statements import ends_false, ends_statement, in_false

STATEMENT = 40  # tokens of a statement


class VlmJudgeRecipe(JudgeLearner, VlmPairRecipe):
    """Trains `judge` on the model and the drafter of a pipeline folder.

    The two describe pictures of the shapes world; some tokens that the target rejects are left, and
    what the world says of their statements is learned, see `statements`.

    Args:
        config: see `BaseRecipe`; a batch is of labelled tokens.
        pipeline: folder of the two, in transformers' layout.
        settings: as text: `pictures` to learn from, and `recall`: the share of the important tokens
            of held-out pictures that the threshold refuses.
        rate: learning rate.

    Raises:
        InputError: there is no drafter, a setting is wrong, or the pictures gave no tokens of both
            kinds.
    """

    name = "judge"
    adamw, cache = 0.0, "statements"
    known: ClassVar = {**PICTURES, "recall": RECALL}
    texts: ClassVar[dict[str, str]] = dict(
        title="Judge of drafted tokens",
        purpose="says of a token that the target has read and would not say whether its statement "
        "stays true",
        data="descriptions by target and drafter of pictures of the shapes world, drawn afresh",
        held_out="descriptions of pictures that training never shows",
        limits="any other target, or this one trained further; texts of another kind; what is left "
        "out of a description",
    )

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        settings: Mapping[str, str] | None = None,
        rate: float = 1e-2,
    ) -> None:
        super().__init__(config, pipeline, settings, rate)
        self.begin()

    def check_labels(self, found: Sequence[Tensor], split: str, count: int) -> None:
        check_kinds(found[1], f"{count} pictures ({split})")

    def described(self, asked: Asked, first: int) -> Labels:
        """Labelled tokens of descriptions, greedy and at temperature 1 in turn."""
        pictures, shown = asked
        numbers = range(first, first + len(pictures))
        warp = self.teacher.warp([*numbers])
        target, _ = self.teacher.prompt(shown, warp, 1 + DRAFTED)
        drafts, _ = self.drafter.prompt(shown, warp, 1 + DRAFTED)
        target.watch()
        drafts.drafts = True
        chance = torch.Generator().manual_seed((self.config.seed * 2**20 + first) % 2**63)
        rule = LenientRule(LEFT, chance, self.teacher.decoder.logits, self.teacher.ends)
        drafter = ModelDrafter(drafts)
        context, _ = self.teacher.answer(target, drafter, DRAFTED, [*numbers], rule=rule)
        left = rule.left()
        places = list(zip(left.rows.tolist(), left.places.tolist(), strict=True))
        label: dict[tuple[int, int], bool] = {}
        said = [row[:n].tolist() for row, n in zip(context.tokens, context.base, strict=True)]
        for row, (ids, picture) in enumerate(zip(said, pictures, strict=True)):
            inside = [place for one, place in places if one == row and place < len(ids)]
            told = in_false(self.words, ids, inside, picture)
            label |= {(row, place): false for place, false in told.items()}
        # no more than one a text: what follows is not told
        blamed = {row: place for (row, place), false in label.items() if false}
        again = Questions([shown.pictures[n] for n in blamed], [shown.texts[n] for n in blamed])
        own = self.ended(again, [said[row][:place] for row, place in blamed.items()])
        for row, ids in zip(blamed, own, strict=True):
            if ends_false(self.words, ids, pictures[row]):  # the error is the target's
                del label[row, blamed[row]]
        chosen = [n for n, place in enumerate(places) if place in label]
        labels = torch.tensor([label[places[n]] for n in chosen], dtype=torch.bool)
        return left.states[chosen].float().cpu(), labels, left.probs[chosen].cpu()

    def ended(self, shown: Questions, texts: list[list[int]]) -> list[list[int]]:
        """Texts as the target goes on with them, greedily, to the end of a statement."""
        if not texts:
            return []
        target, _ = self.teacher.prompt(shown, Warp(0.0), 1 + STATEMENT)
        lengths, device = [len(text) for text in texts], target.prefix.device
        ids = pad_sequence([torch.tensor(text).long() for text in texts], batch_first=True)
        whole, going = [[*text] for text in texts], [True] * len(texts)
        with self.teacher.decoder.repacked():
            target.start(len(texts))
            laws = target.extend(F.pad(ids, (1, 0)).to(device), [-1] * len(texts))
            last = laws[range(len(texts)), lengths].argmax(-1)
            for step in range(STATEMENT):
                for row, token in enumerate(last.tolist()):
                    if going[row]:
                        whole[row].append(token)
                        going[row] = not ends_statement(self.words, token)
                if not any(going):
                    break
                last = target.extend(last[:, None], [n + step for n in lengths])[:, 0].argmax(-1)
        return whole

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        judge = self.finished(model, record, vars(TargetFit.of(self.target)))
        folder = self.pipeline / self.name
        with atomic_folder(folder) as part:
            judge.save_pretrained(part)
        write_card(folder, record=record, **self.card(record))
