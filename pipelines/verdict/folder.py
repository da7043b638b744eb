"""Folder of a model for Speculative Verdict: its experts, and the words that they know.

Experts are the model in `drafter`, if there is one, and those in `experts/NAME`. A model that was
taught how it will be asked says so in `verdict.json`:
`{"reason": template of {question}, "ask": template of {paths} and {question}}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

from ...errors import InputError
from ...files import read_object
from ...models.transformers.vlm_folder import VERDICT_WORDS
from ...registry import check_name
from ..vlm.pipeline import VlmPipeline
from .expert import REASON, TransformersExpert
from .verdict import Opinion, verdict_prompt

SIBLING = "drafter"
_HOLDS = {"reason": {"question"}, "ask": {"paths", "question"}}


@dataclass(frozen=True)
class VerdictWords:
    """Prompt templates for experts and the verdict model.

    Attributes:
        reason: template of the question for a reasoning path, with `{question}`.
        ask: template of the verdict model's question, with `{paths}`, a line each, and
            `{question}`; None: `verdict_prompt`, as published.
    """

    reason: str = REASON
    ask: str | None = None

    def prompt(self, question: str, opinions: Sequence[Opinion]) -> str:
        """The verdict model's question, of the user's and the chosen opinions."""
        if self.ask is None:
            return verdict_prompt(question, opinions)
        paths = "\n".join(str(opinion.path) for opinion in opinions)
        return self.ask.format(paths=paths, question=question)


def verdict_words(folder: Path) -> VerdictWords:
    """The words of a model's folder, or those published."""
    path = folder / VERDICT_WORDS
    if not path.exists():
        return VerdictWords()
    templates = read_object(path)
    for name, template in templates.items():
        check_name(f"{path}: template", name, _HOLDS)
        try:
            wanted = {field for _, field, _, _ in Formatter().parse(template) if field is not None}
        except (TypeError, ValueError) as error:
            raise InputError(f"{path}: {name} is no template: {error}") from error
        if wanted - _HOLDS[name]:
            known = "}, {".join(sorted(_HOLDS[name]))
            raise InputError(f"{path}: {name} may hold {{{known}}}")
    return VerdictWords(**templates)


def experts_in(folder: Path) -> dict[str, Path]:
    """The experts of a model's folder by name."""
    homes = [folder / SIBLING, *sorted((folder / "experts").glob("*"))]
    return {home.name: home for home in homes if (home / "config.json").exists()}


def load_expert(pipe: VlmPipeline, home: Path, folder: Path, **how: Any) -> TransformersExpert:
    """The expert in a folder, on the pipeline's device; `how` are arguments of its class.

    A drafter in the pipeline's own folder `home` is loaded already, and may share its processor.
    """
    if folder == home / SIBLING and pipe.drafter is not None:
        return TransformersExpert(pipe.drafter, pipe.drafter_processor or pipe.processor, **how)
    loaded: Any = VlmPipeline.from_pretrained(folder)
    return TransformersExpert.of(loaded.to(pipe.device), **how)
