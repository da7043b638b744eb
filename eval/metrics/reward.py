"""Rewards of `mmspec.rewards` as metrics: a reward that is declared there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...rewards.registry import REWARDS, load_reward
from .base import FolderMetric, PictureMetric, PictureScorer, Verdicts

if TYPE_CHECKING:
    from PIL import Image

    from ...worlds.shapes import Prompt
    from ..measure.image_sets import FolderJob, Scored
    from ..run.job import Job


@dataclass(frozen=True, kw_only=True)
class RewardMetric(FolderMetric, PictureMetric):
    """A reward of `mmspec.rewards`, which declares itself there."""

    @classmethod
    def of(cls, name: str) -> RewardMetric:
        """The metric that a reward is."""
        part = REWARDS.get(name)
        return cls(
            name=name,
            summary="reward of a picture and its prompt",
            needs=("images", "captions"),
            weights={name: part.weights} if part.weights else {},
            bounds=part.bounds,
            network=name,
            picture_scorer=partial(_picture_scorer, name),
        )

    def check(self, job: FolderJob) -> None:
        from ..data.captions import check_captioned

        check_captioned(job.images, job.captions)

    def score(self, group: Sequence[Any], job: FolderJob) -> Scored:
        from ..measure.bootstrap import mean

        reward = load_reward(self.name, job.weights.get(self.name), job.device)
        values: dict[str, float] = {}
        for ids, pictures in job.images.batches(job.batch_size):
            texts = [job.captions.by_id[name] for name in ids]
            repeated = [p for p, own in zip(pictures, texts, strict=True) for _ in own]
            scores = reward.score([text for own in texts for text in own], repeated).split(
                [len(own) for own in texts]
            )
            values |= {name: float(own.mean()) for name, own in zip(ids, scores, strict=True)}
            job.step(len(ids))
        several = sum(len(own) > 1 for own in job.captions.by_id.values())
        notes = [f"{several} pictures have several captions and score their mean"]
        result = {**mean(values), "reward": reward.name, "notes": notes if several else []}
        return {self.name: result}, values


def _picture_scorer(name: str, job: Job) -> PictureScorer:
    path = Path(job.files[name]) if name in job.files else None
    reward = load_reward(name, path, job.device)

    def score(prompts: Sequence[Prompt], images: Sequence[Image.Image]) -> Verdicts:
        scores = reward.score([p.prompt for p in prompts], list(images))
        return [(s, "") for s in scores.tolist()]

    return score
