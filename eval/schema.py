"""The report as code: what `report.json` holds, its version, and its validation."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_json, read_text, write_json
from .schema_parts import Category, Choice, EqualShare, Member, Quality, Ratio, Throughput
from .strict import STRICT, read_as

VERSION = 2


@dataclass
class MethodResult:
    """Row of a method.

    Attributes:
        contract: what the method promises about its output.
        role: "baseline" (plain), "method", "sceptic": the cheap alternative that a method has to
            beat, "oracle": what methods of a kind could reach at most, "peer": another library's,
            "ablation": a method that is denied something, or "again": plain with other seeds.
        n: samples behind the quality figures, or behind the speed where none was judged.
        n_speed: prompts behind the speed figures; 0: not measured.
        nfe_per_sample: verify calls of the target per sample (of the drafter where that draws
            alone); prefill is not counted. Of continuous tokens: calls of the head that a token
            took part in.
        target_tokens_per_sample: tokens the target processed in them.
        sibling_calls_per_sample: calls of a sibling of the target that drew a small picture first;
            None: there is none.
        mean_acceptance_length, mean_acceptance_length_ci95: tokens emitted per target call,
            recovered or bonus token included.
        acceptance_by_position: share of drafted tokens that stood, given those before them did.
        phase_seconds: mean seconds per sample and phase, of the speed runs where there are any; of
            video, what a clip's seconds went to: drafting, decoding, the reward and so on.
        seconds_median: wall-clock of a whole pipeline call at batch 1; None if not measured.
        decode_seconds_median: of the token loop alone, without captions, prefill and pixels; of
            video, whose blocks are seen as they are made, of all.
        seconds_p95: of the slowest twentieth of the calls, where `seconds_median` is their middle;
            None where fewer than 20 were timed.
        outputs_per_second: pictures, answers or clips of whole calls at batch 1.
        tokens_per_second: output tokens, blocks of video, of the token loop at batch 1.
        accepted_lengths: share of the drafts of which exactly 0, 1, 2 … tokens stood.
        speedup_median, speedup_ci95: paired decode-time ratio to plain, prompt by prompt, and its
            bootstrap interval; None for the baseline itself. Of video, whose blocks are seen as
            they are made, and shown, all seconds of a call are decode time.
        speedup_end_to_end_median, speedup_end_to_end_ci95: the same for whole calls.
        speedup_of_all, speedup_of_all_ci95: of video, plain's seconds for all clips over the row's.
        ideal_speedup: plain decode time over the bare forward passes that this method needed.
        engine_efficiency: measured over ideal.
        target_efficiency: seconds of a call of plain's target over those of a call that judges a
            draft (Huang et al. 2025); None for the baseline itself.
        experts_per_call, experts_per_draft: of a target with sparse experts, how many of a layer's
            a call behind the prompt touches, the mean over calls and layers, N(t) of t tokens
            (Huang et al. 2025); and the calls of a round in which its copy drafts, together; else
            None.
        cache_entries_per_sample, draft_cache_entries_per_sample: entries of a prompt that a cache
            compressor leaves in the target's cache, and in the draft model's; else None.
        lookahead_tokens_per_sample: tokens that a draft model wrote ahead for it; else None.
        peak_memory_bytes: most memory in use during its calls, by the device if it has its own,
            else by the process, with all that the run has loaded for other rows; None where the
            platform doesn't tell.
        energy_joules_per_sample: as far as the platform's meters tell, else None.
        throughput: by batch size, where asked for.
        tv_per_step: total variation between the law of the next token as the rule emits it and
            the target's, measured by enumeration on laws of real rounds (of a drafter that draws
            alone: between its laws and the target's): mean and largest; None where nothing is
            drafted.
        target_entropy: nats per token of the target's laws on its own output, after guidance and
            warpers.
        head_calls_per_sample, head_rows_per_sample, backbone_calls_per_sample: of continuous
            tokens, calls of the target's head and backbone for a picture that is drawn alone, one
            after the other, and the rows in those of the head; of the speed runs, else None.
        drafter_head_calls_per_sample, drafter_backbone_calls_per_sample: the drafter's.
        quality: by metric.
        family: the method with all settings but its knob's: equal in rows that differ in the knob
            alone; "": the row is the only one of its kind.
        knob: name of the setting that trades speed against something else; None: there is none.
        knob_value: this row's.
        call: the way to call, of a suite that has several; rows are compared within it.
        acceptance_ratios: the mean acceptance length over that of other rows: "blank", its own
            while the drafter is shown a grey picture, and "prompt-lookup".
        over_transformers: plain decoding by transformers' `generate` over the row: seconds of the
            token loop a token, the same prompts in pairs; None where that peer is not in the run.
        same_output: share of samples whose output is the baseline's; None where chance decides.
        choices: of a compressor that chooses, by branch.
        members: of a method of several models, by name.
        drafted_share: of video, share of the blocks that are the drafter's; None: of others.
        reused_share: of video, share of the target's layers that added what they added to the
            block before; None: none did.
        at_equal_share: against other ways to route blocks or to reuse layers, by family.
        categories, input_lengths: of text, by the category and the length of its prompts.
    """

    __pydantic_config__ = STRICT

    contract: str
    n: int
    nfe_per_sample: float
    target_tokens_per_sample: float
    mean_acceptance_length: float
    acceptance_by_position: list[float]
    phase_seconds: dict[str, float]
    role: str = "method"
    n_speed: int = 0
    seconds_median: float | None = None
    decode_seconds_median: float | None = None
    speedup_median: float | None = None
    speedup_ci95: tuple[float, float] | None = None
    speedup_end_to_end_median: float | None = None
    ideal_speedup: float | None = None
    engine_efficiency: float | None = None
    target_efficiency: float | None = None
    experts_per_call: float | None = None
    experts_per_draft: float | None = None
    cache_entries_per_sample: float | None = None
    draft_cache_entries_per_sample: float | None = None
    lookahead_tokens_per_sample: float | None = None
    peak_memory_bytes: int | None = None
    energy_joules_per_sample: float | None = None
    throughput: dict[int, Throughput] = field(default_factory=dict)
    tv_per_step: tuple[float, float] | None = None
    target_entropy: float | None = None
    sibling_calls_per_sample: float | None = None
    head_calls_per_sample: float | None = None
    head_rows_per_sample: float | None = None
    backbone_calls_per_sample: float | None = None
    drafter_head_calls_per_sample: float | None = None
    drafter_backbone_calls_per_sample: float | None = None
    quality: dict[str, Quality] = field(default_factory=dict)
    family: str = ""
    knob: str | None = None
    knob_value: float | None = None
    call: str = ""
    mean_acceptance_length_ci95: tuple[float, float] | None = None
    speedup_end_to_end_ci95: tuple[float, float] | None = None
    acceptance_ratios: dict[str, Ratio] = field(default_factory=dict)
    over_transformers: Ratio | None = None
    same_output: float | None = None
    choices: dict[str, Choice] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    drafted_share: float | None = None
    reused_share: float | None = None
    at_equal_share: dict[str, EqualShare] = field(default_factory=dict)
    speedup_of_all: float | None = None
    speedup_of_all_ci95: tuple[float, float] | None = None
    seconds_p95: float | None = None
    outputs_per_second: float | None = None
    tokens_per_second: float | None = None
    accepted_lengths: list[float] = field(default_factory=list)
    categories: dict[str, Category] = field(default_factory=dict)
    input_lengths: dict[str, Category] = field(default_factory=dict)

    @property
    def speedup(self) -> float | None:
        """The one to quote: of video, all clips together; else the median over prompts."""
        return self.speedup_median if self.speedup_of_all is None else self.speedup_of_all

    @property
    def speedup_interval(self) -> tuple[float, float] | None:
        """The interval of `speedup`."""
        return self.speedup_ci95 if self.speedup_of_all is None else self.speedup_of_all_ci95


@dataclass
class Report:
    """Report of an evaluation run.

    Attributes:
        suite, pipeline, model: what ran.
        command: the command line that repeats it.
        settings: call arguments, seed, numbers of prompts, batch, warm-up, margin.
        environment: versions, commit, processor, threads, device.
        target_entropy: nats per token after guidance and warpers, mean over the target's own
            output: how hard its tokens are to guess; None where nothing was generated.
        costs: mean seconds of bare forward passes by network and number of tokens a row.
        methods: the rows by method.
        notes: what a reader must know before quoting a figure: a limited run, a noisy machine, too
            few samples.
        for_reporting: False if the run was cut short by `--limit`.
        checkpoint: the packaged checkpoint whose very weights the model's folder has, with trained
            heads beside it or none; None: it is another model, or the model is named.
        date: when its last sample was made, in ISO 8601.
        seconds_total: that all of it took, over all starts; None: not known.
    """

    __pydantic_config__ = STRICT

    suite: str
    pipeline: str
    model: str
    command: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    target_entropy: float | None
    costs: dict[str, dict[int, float]]
    methods: dict[str, MethodResult]
    notes: list[str] = field(default_factory=list)
    for_reporting: bool = True
    date: str | None = None
    checkpoint: str | None = None
    seconds_total: float | None = None
    version: int = VERSION

    def write(self, folder: Path) -> Path:
        """Write `report.json`; the file appears whole or not at all."""
        return write_json(folder / "report.json", asdict(self))

    @classmethod
    def read(cls, path: Path) -> Report:
        """Read and validate a report; a folder stands for its `report.json`.

        Raises:
            InputError: no report of this version, or a field missing, unknown or of another type.
        """
        path = path / "report.json" if path.is_dir() else path
        data = read_json(path)
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise InputError(f"{path} is not a version {VERSION} report; run the suite again")
        return read_as(cls, read_text(path), f"{path} is not a report")
