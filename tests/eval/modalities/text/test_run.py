"""A run of the text suite on a tiny model: rows, categories, and what greedy answers are."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
import texts
import torch

import mmspec
from mmspec.cli.main import main
from mmspec.eval.modalities.base import MODALITIES
from mmspec.eval.modalities.text import modality as text_modality
from mmspec.eval.modalities.text.bench import TextBench
from mmspec.eval.modalities.text.modality import check_conversations
from mmspec.eval.run.job import Job
from mmspec.eval.schema import Report
from mmspec.eval.suite import load_suite
from mmspec.eval.sweeps import parse_methods

CONVERSATIONS = [
    {"question_id": 1, "category": "cats", "turns": ["the cat saw", "and the dog"]},
    {"question_id": 2, "category": "cats", "turns": ["the cat and the cat"]},
    {"question_id": 3, "category": "dogs", "turns": ["the dog saw the dog"]},
]
METHODS = ("draft", "prompt-lookup", "token-recycling")
PEERS = [f"transformers:{n}" for n in ("plain", "assisted", "assisted-default", "prompt-lookup")]
ARMS = ["plain", *METHODS, *PEERS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    words = texts.tokenizer()
    folder = tmp_path_factory.mktemp("text") / "model"
    target, small = (texts.model(words, seed=seed) for seed in (0, 1))
    mmspec.TextPipeline(target, words, drafter=small).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "question.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in CONVERSATIONS))
    return path


@pytest.fixture(scope="module")
def finished(folder, prompts, tmp_path_factory) -> Path:
    suite = tmp_path_factory.mktemp("suite") / "short.yaml"
    suite.write_text(
        "summary: s\nsource: prompts\npipeline: text\nspeed: 3\ncall: {max_new_tokens: 10}\n"
        "calls: {greedy: {temperature: 0.0}, sampled: {temperature: 1.0}}\npeers: true\n"
    )
    out = tmp_path_factory.mktemp("run") / "report"
    words = ["eval", "run", "--suite", suite, "--model", folder, "--prompts", prompts, "-o", out]
    assert main([*map(str, words), "--methods", ",".join(METHODS)]) == 0
    return out


def lines(folder: Path, kind: str) -> list[dict]:
    every = map(json.loads, (folder / "samples.jsonl").read_text().splitlines())
    return [line for line in every if line["kind"] == kind]


def by_hand(folder: Path, turns: list[str]) -> list[list[int]]:
    """transformers' greedy answers turn by turn."""
    pipe = mmspec.TextPipeline.from_pretrained(folder)
    told, answers = [], []
    for turn in turns:
        told.append({"role": "user", "content": turn})
        given = pipe.tokenizer.apply_chat_template(
            told, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = pipe.model.generate(**given, do_sample=False, max_new_tokens=10, pad_token_id=0)
        answers.append(out[0, given["input_ids"].shape[1] :].tolist())
        text = pipe.tokenizer.decode(answers[-1], skip_special_tokens=True)
        told.append({"role": "assistant", "content": text})
    return answers


@pytest.mark.slow
def test_every_row_says_greedily_what_transformers_says_turn_by_turn(finished, folder):
    answers = {(x["method"], x["index"]): x for x in lines(finished, "quality")}
    asked = (CONVERSATIONS[0], CONVERSATIONS[2], CONVERSATIONS[1])  # categories take turns
    for index, one in enumerate(asked):
        told = by_hand(folder, one["turns"])
        for arm in ARMS:
            assert answers[f"{arm}@greedy", index]["turns"] == told, (arm, index)
    rows = Report.read(finished).methods
    assert list(rows) == [f"{arm}@{call}" for call in ("greedy", "sampled") for arm in ARMS]
    assert all(rows[f"{arm}@greedy"].same_output == 1.0 for arm in ARMS)
    assert all(rows[f"{arm}@sampled"].same_output is None for arm in ARMS)
    assert {rows[f"{arm}@greedy"].role for arm in PEERS} == {"peer"}


def test_categories_add_up_to_the_row(finished):
    report = Report.read(finished)
    speed = lines(finished, "speed")
    for name, row in report.methods.items():
        assert {tag: c.n for tag, c in row.categories.items()} == {"cats": 2, "dogs": 1}
        own = {x["index"]: x for x in speed if x["method"] == name}
        dogs, stats = row.categories["dogs"], own[1]["stats"]
        assert len(stats["calls"]) == 1  # the turns of a conversation are one sample
        assert dogs.mean_acceptance_length == sum(stats["emitted"]) / sum(stats["calls"])
        assert dogs.tokens_per_second == pytest.approx(
            sum(stats["emitted"]) / own[1]["decode_seconds"]
        )
        plain = {x["index"]: x for x in speed if x["method"] == f"plain@{row.call}"}
        if name == f"plain@{row.call}":
            assert dogs.speedup_median is None
        else:
            each = [p["decode_seconds"] / sum(p["stats"]["emitted"]) for p in (plain[1], own[1])]
            assert dogs.speedup_median == pytest.approx(each[0] / each[1])


def test_rows_are_compared_with_transformers_and_with_bare_passes(finished):
    rows, speed = Report.read(finished).methods, lines(finished, "speed")

    def per_token(name: str) -> list[float]:
        own = {x["index"]: x for x in speed if x["method"] == name}
        return [own[n]["decode_seconds"] / sum(own[n]["stats"]["emitted"]) for n in range(3)]

    for name, row in rows.items():
        if row.role == "peer":
            assert (row.over_transformers, row.engine_efficiency) == (None, None)
            continue
        theirs = per_token(f"transformers:plain@{row.call}")
        ratios = [a / b for a, b in zip(theirs, per_token(name), strict=True)]
        assert row.over_transformers.value == pytest.approx(statistics.median(ratios))
        assert row.over_transformers.ci95 is None  # three pairs prove nothing
        assert row.ideal_speedup > 0
        assert row.engine_efficiency > 0
    for line in speed:
        if line["method"].startswith("transformers:"):
            continue
        costs = {int(n): seconds for n, seconds in line["costs"]["target"].items()}
        calls = len(line["stats"]["rounds"])
        # each call is at least one of the passes that were measured beside it
        assert line["bare_seconds"] >= min(costs.values()) * calls * (1 - 1e-9)


def test_pages_show_categories_and_texts(finished):
    page = (finished / "report.md").read_text()
    assert "By category" in page
    assert "| cats" in page
    assert "by category and position" in page
    assert "token-recycling@greedy: cats" in page
    assert "over transformers" in page
    assert "efficiency" in page
    html = (finished / "report.html").read_text()
    assert "the cat saw" in html


@pytest.mark.parametrize(
    ("tokens", "named"),
    [
        (1, "1 to 64 tokens"),
        (64, "1 to 64 tokens"),
        (65, "65 to 256 tokens"),
        (1024, "257 to 1,024 tokens"),
        (1025, "1,025 tokens and more"),
    ],
)
def test_classes_of_lengths(tokens, named):
    assert text_modality.input_length(tokens) == named


def test_short_prompts_come_first():
    found = {text_modality.input_length(tokens) for tokens in (2000, 100, 3)}
    shown = ["1 to 64 tokens", "65 to 256 tokens", "1,025 tokens and more"]
    assert text_modality.length_classes(found) == shown


@pytest.mark.parametrize(
    ("name", "temperature"),
    [
        ("plain", 0.0),
        ("plain", 1.0),
        ("prompt-lookup", 0.0),
        ("prompt-lookup", 1.0),
        ("transformers:plain", 0.0),  # at temperature 1 its rows share one generator
    ],
)
def test_a_batch_says_what_each_conversation_says_alone(folder, prompts, name, temperature):
    """Conversations of one and of two turns."""
    pipe = mmspec.TextPipeline.from_pretrained(folder)
    suite = load_suite("spec-bench")
    items = MODALITIES["text"].items(suite, prompts)
    job = Job(suite, items, parse_methods(("plain", "prompt-lookup")), {}, model=str(folder))
    variant = TextBench(job, pipe).make_variant(name)
    call, seeds = {"max_new_tokens": 10, "temperature": temperature}, [5, 6, 7]
    together = variant.prepare(items, seeds, call)()
    alone = [variant.prepare([one], [seed], call)() for one, seed in zip(items, seeds, strict=True)]
    assert [turns for one in alone for turns in one.turns] == together.turns
    assert [len(turns) for turns in together.turns] == [2, 1, 1]
    assert [text for one in alone for text in one.text] == together.text
    assert together.stats.emitted == [sum(len(ids) for ids in together.tokens)]
    assert together.stats.emitted == [sum(sum(one.stats.emitted) for one in alone)]
    assert together.stats.calls == [sum(sum(one.stats.calls) for one in alone)]


def test_batches_and_lengths_of_prompts(folder, prompts, tmp_path, monkeypatch):
    words = texts.tokenizer()
    lengths = [
        len(words.apply_chat_template([{"role": "user", "content": one["turns"][0]}])["input_ids"])
        for one in CONVERSATIONS
    ]
    assert min(lengths) < max(lengths)
    answer = len(words("<|im_start|>assistant\n")["input_ids"])  # that a prompt ends with
    most = min(lengths) + answer
    monkeypatch.setattr(text_modality, "LENGTHS", (most,))
    suite = tmp_path / "short.yaml"
    suite.write_text(
        "summary: s\nsource: prompts\npipeline: text\nspeed: 3\nbatches: [2]\npeers: true\n"
        "call: {max_new_tokens: 6}\n"
    )
    out = tmp_path / "out"
    words = ["eval", "run", "--suite", suite, "--model", folder, "--prompts", prompts, "-o", out]
    assert main([*map(str, words), "--methods", "plain,prompt-lookup"]) == 0
    rows = Report.read(out).methods
    for arm in ("plain", "prompt-lookup", "transformers:plain"):
        batch = rows[arm].throughput[2]
        assert batch.n == 3  # prompts come again
        assert (batch.speedup_median is None) == (arm == "plain")
    assert rows["transformers:prompt-lookup"].throughput == {}
    judged = {x["index"]: x for x in lines(out, "quality") if x["method"] == "plain"}
    assert len(judged) == len(lines(out, "quality")) / len(rows) == 3  # once each
    timed = [x for x in lines(out, "speed") if x["method"] == "plain"]
    assert sorted(x["batch"] for x in timed) == [1, 1, 1, 2, 2, 2]
    assert "batch 2" in (out / "report.md").read_text()
    short = [n for n, one in judged.items() if one["prompt_tokens"] == most]
    for arm, row in rows.items():
        assert {name: c.n for name, c in row.input_lengths.items()} == {
            f"1 to {most} tokens": len(short),
            f"{most + 1} tokens and more": 3 - len(short),
        }
        own = [x for x in lines(out, "speed") if x["method"] == arm and x["batch"] == 1]
        stats = [x["stats"] for x in own if x["index"] in short]
        emitted, calls = (sum(sum(one[n]) for one in stats) for n in ("emitted", "calls"))
        assert row.input_lengths[f"1 to {most} tokens"].mean_acceptance_length == emitted / calls
    assert "By length of the prompt" in (out / "report.md").read_text()


def test_rows_of_others_can_be_left_out(folder, prompts, tmp_path, capsys):
    suite, out = tmp_path / "alone.yaml", tmp_path / "out"
    text = "summary: s\nsource: prompts\npipeline: text\nspeed: 1\n{}call: {{max_new_tokens: 3}}\n"
    words = ["eval", "run", "--suite", suite, "--model", folder, "--prompts", prompts, "-o", out]
    words = [*map(str, words), "--methods", "plain", "--no-peers"]
    suite.write_text(text.format(""))
    assert main(words) == 2
    assert "suite alone has no rows of others: leave --no-peers out" in capsys.readouterr().err
    suite.write_text(text.format("peers: true\n"))
    assert main(words) == 0
    assert [*Report.read(out).methods] == ["plain"]


def test_closed_loops(folder, prompts, tmp_path):
    suite = tmp_path / "served.yaml"
    suite.write_text(
        "summary: s\nsource: prompts\npipeline: text\nspeed: 3\nbatches: [2]\n"
        "closed_loop: true\npeers: true\ncall: {max_new_tokens: 6}\n"
    )
    out = tmp_path / "out"
    words = ["eval", "run", "--suite", suite, "--model", folder, "--prompts", prompts, "-o", out]
    assert main([*map(str, words), "--methods", "plain,prompt-lookup"]) == 0
    report = Report.read(out)
    assert report.settings["closed_loop"]
    served = [x for x in lines(out, "speed") if x["closed_loop"]]
    assert {x["batch"] for x in served} == {2}
    for arm in ("plain", "prompt-lookup", "transformers:plain"):
        row = report.methods[arm].throughput[2]
        own = [x for x in served if x["method"] == arm]
        assert row.n == len(own) == 3
        rates = [sum(x["stats"]["emitted"]) / x["seconds"] for x in own]
        assert row.tokens_per_second == pytest.approx(statistics.median(rates))
        assert (row.speedup_median is None) == (arm == "plain")
        assert (row.first_token_seconds is None) == arm.startswith("transformers")
        if row.first_token_seconds is None:
            continue
        for line in own:  # of two conversations one has a second turn
            assert len(line["stats"]["latency"]) >= 6
        tokens = sum(sum(x["stats"]["emitted"]) for x in own)
        waited = sum(last for x in own for _, last in x["stats"]["latency"])
        assert row.tokens_per_second_each == pytest.approx(tokens / waited)
    # a prompt at a time is a load, too, whose whole calls are timed
    alone = [x for x in lines(out, "speed") if x["batch"] == 1 and x["method"] == "plain"]
    counts = {what: sum(sum(x["stats"][what]) for x in alone) for what in ("calls", "emitted")}
    row = report.methods["plain"]  # what is counted is of these alone, not of the load's
    assert row.nfe_per_sample == pytest.approx(counts["calls"] / len(alone))
    assert row.mean_acceptance_length == counts["emitted"] / counts["calls"]
    rates = [sum(x["stats"]["emitted"]) / x["seconds"] for x in alone]
    row = report.methods["plain"].throughput[1]
    assert (row.n, row.tokens_per_second) == (3, pytest.approx(statistics.median(rates)))
    page = (out / "report.md").read_text()
    assert "1 at a time" in page
    assert "2 at a time" in page
    assert "in a closed loop" in page


def test_entropy_is_that_of_the_targets_laws(finished, folder, prompts):
    pipe = mmspec.TextPipeline.from_pretrained(folder)
    suite = load_suite("spec-bench")
    items = MODALITIES["text"].items(suite, prompts)
    job = Job(suite, items, parse_methods(("plain",)), {"max_new_tokens": 6}, model=str(folder))
    bench = TextBench(job, pipe)
    made = bench.entropy(range(1))
    told = [{"role": "user", "content": "the cat saw"}]
    generator = torch.Generator().manual_seed(0)
    answer = pipe(told, max_new_tokens=6, temperature=1.0, generator=generator).tokens[0]
    given = pipe.tokenizer.apply_chat_template(
        told, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    nats = []
    for n in range(len(answer)):
        ids = torch.cat([given, torch.tensor([answer[:n]], dtype=torch.long)], dim=1)
        with torch.no_grad():
            law = pipe.model(ids).logits[0, -1].double().softmax(-1).tolist()
        nats.append(-sum(p * math.log(p) for p in law if p > 0))
    assert made == pytest.approx(sum(nats) / len(nats), abs=1e-5)


def test_where_answers_part_the_logits_are_told(finished, folder, prompts):
    pipe = mmspec.TextPipeline.from_pretrained(folder)
    suite = load_suite("spec-bench")
    items = MODALITIES["text"].items(suite, prompts)
    bench = TextBench(Job(suite, items, parse_methods(("plain",)), {}, model=str(folder)), pipe)
    first, second = by_hand(folder, CONVERSATIONS[0]["turns"])
    other = [*second]
    other[3] = (other[3] + 1) % 280
    told = [
        {"role": "user", "content": "the cat saw"},
        {"role": "assistant", "content": pipe.tokenizer.decode(first, skip_special_tokens=True)},
        {"role": "user", "content": "and the dog"},
    ]
    given = pipe.tokenizer.apply_chat_template(
        told, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    with torch.no_grad():
        last = pipe.model(torch.cat([given, torch.tensor([second[:3]])], dim=1)).logits[0, -1]
    gap = bench._gap(0, [first, second], [first, other])
    assert gap == pytest.approx(float(last[second[3]] - last[other[3]]), abs=1e-4)
    assert bench._gap(0, [first, second], [first, second[:3]]) is None


@pytest.mark.parametrize(
    ("gaps", "told"),
    [
        ([0.25, 1e-5, None], "1 of them where two .* (differences: 0.2, 1e-05, an end)"),
        ([None] * 9, "0 of them where two .* (differences: " + "an end, " * 8 + "an end)"),
        ([0.5, None, *[0.125] * 7], "0 of them where two .* (differences: from 0.1 to 0.5)"),
    ],
)
def test_a_note_names_differences_as_long_as_they_are_few(gaps, told):
    note = text_modality._parted("draft", [{"gap": gap} for gap in gaps] + [{}])
    start, end = told.split(".* ")
    assert note is not None
    assert note.startswith(f"draft: {len(gaps)} answers leave plain's, {start}")
    assert note.endswith(end)
    assert text_modality._parted("draft", [{}]) is None


def test_a_conversation_that_is_too_long_is_named(folder, prompts):
    pipe = mmspec.TextPipeline.from_pretrained(folder)
    suite = load_suite("spec-bench")
    items = MODALITIES["text"].items(suite, prompts)
    check_conversations(pipe, items, 100)
    with pytest.raises(mmspec.InputError, match=r"conversation 1 may take \d+ tokens"):
        check_conversations(pipe, items, 250)
    # behind these, positions would turn at another speed
    rope = {"rope_type": "dynamic", "original_max_position_embeddings": 60}
    pipe.model.config.rope_parameters = {**pipe.model.config.rope_parameters, **rope}
    with pytest.raises(mmspec.InputError, match="the model has 60 positions"):
        check_conversations(pipe, items, 100)


def test_a_turn_that_becomes_too_long_names_its_sample(capsys, folder, tmp_path, monkeypatch):
    """Answers as text may be more tokens than were generated."""
    monkeypatch.setattr("mmspec.eval.modalities.text.modality.check_conversations", lambda *_: None)
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"turns": ["the cat", "x" * 600]}) + "\n")
    given = ["eval", "run", "--suite", "spec-bench", "--model", folder, "--prompts", path]
    assert main([*map(str, given), "--methods", "plain", "-o", str(tmp_path / "out")]) == 2
    assert "sample 0: a prompt of" in capsys.readouterr().err


def test_what_the_suite_refuses(capsys, folder, prompts, tmp_path):
    given = ["eval", "run", "--suite", "spec-bench", "--model", folder, "-o", tmp_path / "out"]
    cases = {
        "--prompts FILE": [],
        "from 1 to 1024": ["--prompts", prompts, "--batch-sizes", "0"],
        "has no use for fid": ["--prompts", prompts, "--weights", "fid=x"],
    }
    for message, more in cases.items():
        assert main([*map(str, (*given, *more))]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert message in err
        assert not (tmp_path / "out" / "report.json").exists()
