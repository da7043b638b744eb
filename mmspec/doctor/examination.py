"""Examination of a draft head beside its target: files, settings, then trials."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError
from ..models.heads.loading import head_folder
from ..models.heads.published.head import PublishedHead
from ..progress import say
from .conventions import STATED, Convention, neighbours
from .files import check_files
from .report import Diagnosis, State, listed
from .settings import check_settings
from .tally import ERRORS, Tally
from .target import Prompt, Target
from .trial import Run, Trial
from .vocabulary import constant, refitted

FEW = 0.3  # of the first tokens stand: trained heads do better on any target
CHAIN = 4  # tokens of a draft where the files do not say


def examine(
    target: Target,
    head: str | Path,
    prompts: Sequence[str] = (),
    images: Sequence[str | Path] = (),
    max_new_tokens: int = 48,
    kind: str | None = None,
) -> Diagnosis:
    """Find out why a head is not accepted.

    Args:
        target: what it drafts for.
        head: folder or hub id.
        prompts, images: see `Target.questions`.
        max_new_tokens: of an answer in a trial.
        kind: "msd" for a head of MSD, see `load_head`.

    Raises:
        InputError: there is no such folder, or prompts or images can't be used.
    """
    folder = Path(head_folder(head))
    if not folder.is_dir():
        raise InputError(f"no folder {folder}: name the folder of a draft head")
    asked = target.questions(prompts, images)
    ready = {n: target.prompt(texts, seen, max_new_tokens) for n, (texts, seen) in asked.items()}
    told = Diagnosis(str(target.folder), str(head))
    loaded = check_files(told, folder, target, kind)
    if loaded is None or not check_settings(told, loaded, target):
        return told
    length = min(loaded.length or CHAIN, 8)
    _Trials(told, loaded, Trial(target, length, max_new_tokens), ready).judge()
    return told


class _Trials:
    """Trials of a head under its conventions, judged against each other."""

    def __init__(
        self, told: Diagnosis, head: PublishedHead, trial: Trial, prompts: dict[str, Prompt]
    ) -> None:
        self.told, self.head, self.trial, self.prompts = told, head, trial, prompts

    def judge(self) -> None:
        """Add findings about acceptance, conventions and greedy equality."""
        say("drafting as the head's files say")
        runs = self._runs(STATED)
        stated = {name: Tally.of([run.stats]) for name, run in runs.items()}
        whole = Tally.of([run.stats for run in runs.values()])
        for name, tally in stated.items():
            self._note(STATED, name, tally)
        better = self._better(stated, whole)
        self._acceptance(stated, whole, [p for run in runs.values() for p in run.pairs], better)
        self._equality(runs)

    def _runs(self, convention: Convention) -> dict[str, Run]:
        names = [n for n in self.prompts if n == "pictures" or not convention.pictures]
        return {n: self.trial.drafted(self.prompts[n], self.head, convention) for n in names}

    def _better(self, stated: dict[str, Tally], whole: Tally) -> bool:
        """Name the convention that accepts far more; False: there is none."""
        tried: list[tuple[Convention, Tally, Tally]] = []
        near = [
            one
            for one in neighbours(self.head, self.trial.target)
            if not one.pictures or "pictures" in self.prompts
        ]
        for number, convention in enumerate(near, 1):
            say(f"drafting with {convention.name} ({number} of {len(near)})")
            try:
                runs = self._runs(convention)
            except InputError:  # such a head can't run
                continue
            tally = Tally.of([run.stats for run in runs.values()])
            tried.append((convention, tally, stated["pictures"] if convention.pictures else whole))
            for name, run in runs.items():
                self._note(convention, name, Tally.of([run.stats]))
        if not tried:
            return False
        tried.sort(key=lambda one: one[2].tokens_per_call - one[1].tokens_per_call)
        likely = [one for one in tried if one[1].far_above(one[2])]
        if not likely:
            best, tally, base = tried[0]
            self.told.add(
                "conventions",
                "fine",
                f"{len(tried)} neighbours tried, none accepts far more; the best, {best.name}: "
                f"{tally.tokens_per_call:.2f} tokens a call against {base.tokens_per_call:.2f}",
            )
            return False
        best, tally, base = likely[0]
        self.told.add(
            best.check,
            "fault",
            f"{best.advice}: with {best.name} there are {tally.described()}, against "
            f"{base.described()}; {tally.margin(base):.2f} tokens would be noise ({ERRORS:.0f} "
            f"standard errors){_ties(likely)}",
        )
        others = [f"{c.name}: {t.tokens_per_call:.2f}" for c, t, _ in tried[1:]]
        text = f"{len(tried)} neighbours tried; tokens a call of the others: {'; '.join(others)}"
        self.told.add("conventions", "note", text)
        return True

    def _acceptance(
        self,
        stated: dict[str, Tally],
        whole: Tally,
        pairs: Sequence[tuple[int, int]],
        better: bool,
    ) -> None:
        names = {"text": "without pictures", "pictures": "with pictures"}
        for name, tally in stated.items():
            state: State = "note" if better else "fine"
            self.told.add("acceptance", state, f"{names[name]}: {tally.described()}")
        if "pictures" in stated and stated["text"].far_above(stated["pictures"]):
            text = "far fewer tokens stand with pictures: was the head trained on text alone?"
            self.told.add("images", "note", text)
        if better or whole.first_at_most >= FEW:
            return
        if self.head.vocabulary is not None:
            fitted, most = refitted(pairs), constant(pairs)
            now = Tally((len(pairs),), (sum(d == said for d, said in pairs),))
            if fitted.far_above(now) and fitted.far_above(most):
                self.told.add(
                    "vocabulary map",
                    "fault",
                    "d2t is another head's: export the head with its own map; under a map made of "
                    f"half of the drafts {fitted.accepted_at[0]} of {fitted.drafts} first tokens "
                    f"of the other half would stand, and {now.accepted_at[0]} of {now.drafts} do",
                )
                return
        self.told.add(
            "acceptance",
            "fault",
            f"few drafted tokens stand, and no neighbouring convention does better: "
            f"{whole.described()}; the head was trained for another target or other prompts, or is "
            "not trained enough",
        )

    def _equality(self, runs: dict[str, Run]) -> None:
        """Compare greedy answers with and without the head."""
        say("decoding plainly")
        rows, other, ties = 0, list[str](), 0
        for name, run in runs.items():
            plain = self.trial.plain(self.prompts[name])
            for row, (drafted, own) in enumerate(zip(run.tokens, plain.tokens, strict=True)):
                rows += 1
                if drafted == own:
                    continue
                pairs = zip(drafted, own, strict=False)
                same = next((n for n, (a, b) in enumerate(pairs) if a != b), len(own))
                gap, tie = self.trial.gap(self.prompts[name], row, own[:same])
                ties += tie
                if not tie:
                    other.append(f"{name} {row + 1} at token {same + 1} (logits {gap:.3g} apart)")
        if other:
            text = f"answers differ from plain decoding: {listed(other)}; please report it"
            self.told.add("greedy", "fault", text)
            return
        text = f"{rows} answers are those of plain decoding"
        if ties:
            text += f", {ties} of them up to a tie of two logits that rounding decides"
        self.told.add("greedy", "fine", text)

    def _note(self, convention: Convention, name: str, tally: Tally) -> None:
        told = {"check": convention.check, "convention": convention.name, "prompts": name}
        self.told.trials.append({**told, **tally.as_dict()})


def _ties(likely: Sequence[tuple[Convention, Tally, Tally]]) -> str:
    """Other conventions that noise does not tell from the first."""
    best = likely[0][1]
    near = [c.name for c, tally, _ in likely[1:] if not best.far_above(tally)]
    return f"; no worse: {listed(near)}" if near else ""
