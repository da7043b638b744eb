"""The matrix says what the pipelines really take, and claims no evidence that is not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import answering
import mars
import pytest
import torch
import wans
from transformers import LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec import ImagePipeline, SpecConfig, VlmPipeline
from mmspec.errors import InputError
from mmspec.eval.report import matrix
from mmspec.eval.schema import MethodResult, Report
from mmspec.methods import PIPELINES, presets, serving
from mmspec.methods.parts.routing import ROUTERS
from mmspec.models.heads.formats.registry import FORMATS
from mmspec.models.heads.judge import JudgeHead
from mmspec.models.heads.step_router import StepRouter
from mmspec.models.packaged import PACKAGED

KINDS = {
    name: (of, loader) for of in PIPELINES for name, loader in PIPELINES[of].checkpoints.items()
}
MODELS = Path(__file__).resolve().parents[2] / "models"
TESTS = {  # of the loader of each kind of published checkpoint
    "LlamaGen": ("test_checkpoints", "llamagen/test_published"),
    "Janus, Emu3, Chameleon": (
        *("transformers/test_janus", "transformers/test_emu3"),
        "transformers/test_chameleon",
    ),
    "GLM-Image": ("transformers/test_glm_image",),
    "LLaVA, Qwen-VL, InternVL, …": ("transformers/test_vlm", "transformers/test_qwen_vl"),
    "Llama, Qwen, …": ("transformers/test_causal",),
    "MAR": ("mar/test_published",),
    "Wan": ("wan/test_published",),
}


def test_every_loader_of_published_checkpoints_has_its_tests():
    assert set(TESTS) == set(KINDS)
    assert all((MODELS / f"{name}.py").is_file() for names in TESTS.values() for name in names)


def allowed(check, config) -> bool:
    try:
        check(config)
    except InputError:
        return False
    return True


def headless(modality) -> dict[str, SpecConfig]:
    configs = {name: SpecConfig(name) for name in serving(modality)}
    return {n: c for n, c in configs.items() if c.resolve(modality).head is None}


def test_what_pipelines_take(tiny_folder):
    model, small = answering.model(3, 0), answering.model(1, 1)
    small.config.get_text_config().mask_token_id = 2
    judge = JudgeHead(model.config.get_text_config().hidden_size)
    size = small.config.get_text_config().hidden_size
    routers = {name: StepRouter(size).eval() for name in ROUTERS}
    of_text = VlmPipeline(model, answering.processor(), small, judge=judge, **routers)
    of_text.reward = scored
    pipes = {
        "LlamaGen": ImagePipeline.from_pretrained(tiny_folder),
        "LLaVA, Qwen-VL, InternVL, …": of_text,
        "MAR": mars.captioned_pipeline(),
        "Wan": wans.tiny_pipeline(),
    }
    for names, pipe in pipes.items():
        modality, loader = KINDS[names]
        for name, config in headless(modality).items():
            if name != "verdict":  # asks several models: `SpeculativeVerdict`
                takes = matrix.takes(loader, config.resolve(modality))
                assert takes == allowed(pipe.check_speculation, config), name


def scored(steps):
    return [0.0] * len(steps)


def test_what_enable_speculation_takes():
    sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=16, num_attention_heads=2)
    with torch.random.fork_rng():
        big, small = (LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=n)) for n in (2, 1))
    small.config.mask_token_id = 2

    def enable(config: SpecConfig) -> None:
        needs = config.resolve("vlm").needs
        drafter = small.eval() if "drafter" in needs else None
        judge = JudgeHead(16) if "judge" in needs else None
        router = StepRouter(16).eval() if set(ROUTERS) & set(needs) else None
        big.config.mask_token_id = 2 if "masked-target" in needs else None
        beside = dict(judge=judge, router=router, reward=scored if "reward" in needs else None)
        if config.resolve("vlm").rule.routes:
            beside["tokenizer"] = answering.processor().tokenizer
        mmspec.enable_speculation(big.eval(), config, drafter=drafter, **beside)

    for name, config in headless("vlm").items():
        assert matrix.takes(None, config.resolve("vlm")) == allowed(enable, config), name


@pytest.fixture
def report() -> Report:
    row = MethodResult("exact", 1, 1.0, 1.0, 1.0, [], {})
    names = ("plain", "scd[window=32]", "lantern", "transformers:assisted@greedy")
    rows = {name: replace(row) for name in names}
    return Report("s", "image", "embedded", "c", {}, {}, None, {}, rows)


def table(text: str, modality: str) -> list[list[str]]:
    section = text.split(f"### {modality}\n\n")[1].split("\n\n")[0]
    return [line.strip("|").split("|") for line in section.splitlines()]


def mark(text: str, method: str, column: str) -> str:
    """In a column such as "vlm: embedded" of a modality's table."""
    modality, _, column = column.partition(": ")
    head, _, *rows = table(text, modality)
    (row,) = [row for row in rows if row[0].strip() == method]
    return row[[cell.strip() for cell in head].index(column)].strip()


def test_evidence_is_what_is_in_the_reports(report, tmp_path, monkeypatch):
    report.write(tmp_path)
    rows = report.methods
    text = matrix.matrix([tmp_path])
    told = {modality: table(text, modality)[2:] for modality in PIPELINES}
    assert {name.strip() for rows in told.values() for name, *_ in rows} == set(presets())
    assert all(len(rows) == len(serving(modality)) for modality, rows in told.items())
    assert mark(text, "scd", "image: embedded") == matrix.MEASURED
    assert mark(text, "sjd", "image: embedded") == matrix.TRAINED
    assert mark(text, "scd", "vlm: embedded") == matrix.TRAINED
    assert mark(text, "medusa", "vlm: embedded") == matrix.OPEN  # no such head ships
    assert mark(text, "eagle", "image: Janus, Emu3, Chameleon") == matrix.OPEN
    assert mark(text, "cool-sd", "image: contract") == "bounded"
    # a model that does not ship, a run that was cut short: no evidence
    monkeypatch.setattr(matrix, "MODELS", tmp_path)
    assert mark(matrix.matrix([tmp_path]), "scd", "image: embedded") == matrix.OPEN
    # a model's folder has a name of its own
    (tmp_path / "mar" / "drafter").mkdir(parents=True)
    text = matrix.matrix([tmp_path])
    assert mark(text, "reflection", "continuous: embedded") == matrix.TRAINED
    assert mark(text, "gamma-maximal", "continuous: embedded") == matrix.TRAINED
    report.pipeline, report.methods = "continuous", {"plain": report.methods["plain"]}
    report.write(tmp_path)
    assert mark(matrix.matrix([tmp_path]), "plain", "continuous: embedded") == matrix.MEASURED
    monkeypatch.undo()
    report.pipeline, report.methods = "image", rows
    report.for_reporting = False
    report.write(tmp_path)
    assert mark(matrix.matrix([tmp_path]), "scd", "image: embedded") == matrix.TRAINED


def test_a_published_checkpoint_is_evidence_of_its_layout(report, tmp_path):
    report.pipeline, report.model = "text", "smollm2"
    report.methods["transformers:generate@greedy"] = report.methods.pop("lantern")
    report.write(tmp_path)
    text = matrix.matrix([tmp_path])
    assert f"{matrix.REAL} a published checkpoint in this layout is measured: SmolLM2" in text
    assert mark(text, "scd", "vlm: Llama, Qwen, …") == matrix.REAL
    assert mark(text, "sjd", "vlm: Llama, Qwen, …") == matrix.LOADS
    assert mark(text, "scd", "vlm: LLaVA, Qwen-VL, InternVL, …") == matrix.LOADS
    assert mark(text, "scd", "vlm: embedded") == matrix.TRAINED
    report.model = "runs/mine"  # nobody else can repeat it
    report.write(tmp_path)
    text = matrix.matrix([tmp_path])
    assert mark(text, "scd", "vlm: Llama, Qwen, …") == matrix.LOADS
    assert matrix.REAL not in text
    report.pipeline = "vlm"
    report.write(tmp_path)
    assert mark(matrix.matrix([tmp_path]), "scd", "vlm: embedded") == matrix.TRAINED
    assert {model.layout for model in PACKAGED.values()} <= {*PIPELINES["vlm"].checkpoints}


def test_every_format_of_draft_heads_has_a_row(report, tmp_path):
    report.pipeline, report.methods = "vlm", {"eagle@greedy": report.methods["scd[window=32]"]}
    report.write(tmp_path)
    text = matrix.matrix([tmp_path])
    rows = table(text, "draft heads from files")[2:]
    assert [row[0].strip() for row in rows] == [form.name for form in FORMATS]
    assert {name for form in FORMATS for name in form.methods} <= set(presets())
    measured = [row[0].strip() for row in rows if row[2].strip() == matrix.MEASURED]
    assert measured == ["EAGLE"]
