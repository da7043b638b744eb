"""Evidence that a published system works here: reports, tests that enumerate it, or loaders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from ...engine import protocols
from ...errors import InputError
from ...methods import PIPELINES, Modality, ResolvedConfig, SpecConfig
from ...methods.part import Part
from ...methods.systems import System
from .matrix import LOADS, MEASURED, REAL, TRAINED, ships, takes

ENUMERATED, SIMULATED, STORED, NONE = "∎", "simulation", "benchmark", "–"
LEGEND = f"""\
- {REAL} the method is a row of a report on a published checkpoint.
- {MEASURED} it is a row of a report on an embedded model.
- {ENUMERATED} a test that goes through all outcomes, and compares their law with what is promised,
  names its drafter and its rule, and one the policy of its lengths.
- {TRAINED} none of these, and an embedded model has all parts that it needs.
- {LOADS} only models with random weights run it in tests.
- {STORED}: the page of that benchmark, a folder of assets/reports, has its figures.
- {SIMULATED}: what is drafted and accepted is measured, and the time of devices that are not here
  is calculated."""
_HARNESS = re.compile(r"\b(EXACT|whole_loop)\b")  # what tests enumerate with
SUITES: dict[Modality, str] = {
    "image": "speed",
    "vlm": "vlm",
    "continuous": "continuous",
    "video": "sdvg",
}
"""The suite that runs any method of a modality on the embedded model."""
_NEVER = re.compile(r"(?!)")
_SUITE = re.compile(r"--suite (\S+)")


class Evidence:
    """Facts known of systems.

    Args:
        rows: of reports: configuration, suite, and whether the model is a published checkpoint.
        tests: folder of tests that are searched for enumerations; None: they aren't.
    """

    def __init__(self, rows: Sequence[tuple[SpecConfig, str, bool]], tests: Path | None) -> None:
        self.rows, self.tests = rows, tests

    def of(self, system: System, config: SpecConfig | None) -> str:
        """The marks of a system, the strongest first."""
        marks = self._of_use(system) if config is None else self._of_method(config)
        if "simulation" in system.what:
            marks.append(SIMULATED)
        elif system.measured:
            marks.append(STORED)
        if system.use and config is None and not marks:
            marks = [LOADS]  # a test calls it
        return " ".join(marks) or NONE

    def _of_use(self, system: System) -> list[str]:
        """Marks of a command: the suite that it runs has a report."""
        suite = _SUITE.search(system.use)
        ran = {real for _, name, real in self.rows if suite is not None and name == suite[1]}
        return [mark for mark, real in ((REAL, True), (MEASURED, False)) if real in ran]

    def _of_method(self, config: SpecConfig) -> list[str]:
        ran = {real for row, _, real in self.rows if is_of(row, config)}
        marks = [mark for mark, real in ((REAL, True), (MEASURED, False)) if real in ran]
        resolved = _resolved(config)
        if any(map(self._enumerated, resolved)):
            marks.append(ENUMERATED)
        if marks:
            return marks
        if any(ships(one.modality, *one.needs) for one in resolved):
            return [TRAINED]
        loaders = [(of, r) for r in resolved for of in PIPELINES[r.modality].checkpoints.values()]
        return [LOADS] if any(takes(of, r) for of, r in loaders) else []

    def _enumerated(self, config: ResolvedConfig) -> bool:
        """True if tests that enumerate name the classes of a configuration's parts."""
        if config.other_law:
            return False
        together = [_named(config.drafter), _named(config.rule)]
        wanted = [together]
        if config.config.length is not None:
            wanted.append([_named(config.length)])
        return all(
            any(all(name.search(text) for name in names) for text in self._texts)
            for names in wanted
        )

    @cached_property
    def _texts(self) -> list[str]:
        """The tests that enumerate."""
        files = [] if self.tests is None else sorted(self.tests.rglob("test_*.py"))
        texts = (file.read_text(encoding="utf-8") for file in files)
        return [text for text in texts if _HARNESS.search(text)]


def _named(part: Part) -> re.Pattern[str]:
    """Matches the class of a part; if a function makes it, the classes that this returns."""
    if not isinstance(part.reference, str):
        return _NEVER
    made, names = part.load(), [part.reference.partition(":")[2]]
    if not isinstance(made, type):
        told = re.findall(r"\w+", made.__annotations__.get("return", ""))
        names += [name for name in told if not hasattr(protocols, name)]
    return re.compile(rf"\b({'|'.join(names)})\b")


def _resolved(config: SpecConfig) -> list[ResolvedConfig]:
    """A configuration as it is for each modality that it works for."""
    found = []
    for modality in PIPELINES:
        with suppress(InputError):
            found.append(config.resolve(modality))
    return found


def is_of(row: SpecConfig, wanted: SpecConfig) -> bool:
    """True if a row's configuration is a system's, or has further settings."""
    return wanted.to_dict().items() <= row.to_dict().items()


def suite_of(config: SpecConfig | None) -> str | None:
    """The suite that runs a method on an embedded model; None: its parts must be trained first."""
    able = [] if config is None else _resolved(config)
    able = [r for r in able if ships(r.modality, *r.needs)]
    return SUITES[able[0].modality] if able else None
