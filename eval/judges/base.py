"""Interface of judges, and their declarations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...declarations import Declarations
from ...registry import resolve
from ...rewards.registry import GROUP

if TYPE_CHECKING:
    from PIL import Image

Metadata = Mapping[str, Any]  # a line of GenEval's `evaluation_metadata.jsonl`


class Judge(Protocol):
    """Says which pictures show what their prompts ask for.

    Attributes:
        name: the detector and what else the answers hang on, as reports spell it.
    """

    name: str

    def judge(
        self, prompts: Sequence[Metadata], images: Sequence[Image.Image]
    ) -> list[tuple[bool, str]]:
        """Verdict on each picture: is it correct, and if not, why; `prompts[i]` for `images[i]`."""


@dataclass(frozen=True)
class JudgePart:
    """A judge of GenEval's question, declared in the file of its class.

    Attributes:
        name: as suites call it.
        cls: `"module:Class"`; its `from_pretrained(*paths, device=…)` loads it.
        vocabulary: `"module:NAME"`: classes of objects that prompts may name.
        weights: what the paths of its networks lead to, by name and in order.
    """

    name: str
    cls: str
    vocabulary: str
    weights: Mapping[str, str] = field(default_factory=dict)

    @property
    def classes(self) -> Collection[str]:
        """The names of the objects that it can find."""
        return resolve(self.vocabulary)

    def load(self, file: Callable[[str, str], Path], device: str) -> Judge:
        """The judge.

        Args:
            file: the path of a network, by its name and what it should lead to.

        Raises:
            InputError: weights are missing or don't fit.
        """
        paths = [file(name, what) for name, what in self.weights.items()]
        return resolve(self.cls).from_pretrained(*paths, device=device)


JUDGES = Declarations(JudgePart, "judge", (__package__,), GROUP)
