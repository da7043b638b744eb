"""A head that learns as it is used, beside the same one that does not: counts, not time."""

from __future__ import annotations

import json

import numpy as np
import pytest
import texts
import torch

import mmspec
from benchmarks.__main__ import main
from benchmarks.online import measure
from benchmarks.online.domains import of_files, of_shapes
from benchmarks.online.measure import FROZEN, LEARNING, TABLE, Domain, Lessons, Run, measure_online
from benchmarks.online.page import online_figure, online_markdown, online_table
from mmspec.errors import InputError
from mmspec.methods import SpecConfig
from mmspec.models.heads.formats.new import MAKERS
from mmspec.models.heads.formats.new_head import NewHead
from mmspec.train.heads.online import OnlineLearner
from mmspec.worlds.shapes.exchanges import LONG_KINDS

CONFIG = SpecConfig("eagle", num_draft_tokens=3)
CALL = {"max_new_tokens": 16, "temperature": 0.0}


@pytest.fixture
def pipe():
    words = texts.tokenizer()
    model = texts.model(words)
    torch.manual_seed(0)
    head = MAKERS["eagle"](NewHead(model)).double().eval()
    with torch.no_grad():
        for weight in head.parameters():  # so that there is something to learn
            weight.add_(torch.randn_like(weight), alpha=0.05)
    pipe = mmspec.TextPipeline(model, words, heads={"eagle": head})
    pipe.set_progress_bar_config(disable=True)
    return pipe


def domains(answers: int) -> list[Domain]:
    kinds = {"cats": "the cat saw the dog", "dogs": "a dog and a dog"}
    return [
        Domain(name, [{"prompt": f"{text} {n % 3}"} for n in range(answers)])
        for name, text in kinds.items()
    ]


def test_the_learner_is_better_and_the_texts_are_the_same(pipe, monkeypatch):
    taken = []
    real = OnlineLearner.learn

    def learn(self, steps, batch_size):
        taken.append((self.heard, steps, batch_size))
        return real(self, steps, batch_size)

    monkeypatch.setattr(OnlineLearner, "learn", learn)
    before = {name: x.clone() for name, x in pipe.heads["eagle"].state_dict().items()}
    pipe.enable_speculation("plain")
    how = Lessons(every=4, steps=6, rate=1e-2)
    record = measure_online(pipe, CONFIG, domains(10), CALL, lessons=how)
    assert taken == [(n, 6, 4) for n in (4, 8, 12, 16, 20)]
    assert pipe.speculation.method == "plain"
    assert pipe.listener is None
    after = pipe.heads["eagle"].state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    frozen, learning, table = (record.runs[name] for name in (FROZEN, LEARNING, TABLE))
    assert all(run.same == 20 for run in (frozen, learning, table))
    assert frozen.emitted == learning.emitted == table.emitted
    assert learning.calls[:4] == frozen.calls[:4]  # it has learned nothing yet
    gained, _ = learning.gain(frozen, slice(4, 20))
    assert gained > 0.2
    assert frozen.calls[:3] == frozen.calls[3:6]  # the same prompts again
    assert table.method == "token-recycling"
    assert sum(table.accepted) > 0
    text = online_markdown(record)
    assert online_table(record).markdown() in text
    assert "cats, answers 1–" in text
    assert "dogs, answers 11–" in text
    assert "between answers at all their tokens (OSD)" in text
    record.lessons = Lessons(fallen=True)
    assert "between answers at the tokens where its drafts fell (OSD)" in online_markdown(record)
    assert "answers: cats, then dogs" in online_figure(record)


def test_neither_drafter_of_the_head_pays_for_what_is_built_once(pipe, monkeypatch):
    runs, real = [], measure._answer

    def answer(pipe, run, *rest):
        runs.append(run)
        return real(pipe, run, *rest)

    monkeypatch.setattr(measure, "_answer", answer)
    record = measure_online(pipe, CONFIG, domains(1), {**CALL, "max_new_tokens": 2})
    first, *timed = runs
    assert first.method == "eagle"
    assert not any(first is run for run in record.runs.values())
    assert timed == [record.runs[name] for name in (FROZEN, LEARNING, TABLE) for _ in range(2)]


def test_figures_by_hand():
    one, two = Run("one"), Run("two")
    one.emitted, one.calls = [4, 6, 8, 4, 6, 8], [2] * 6
    two.emitted, two.calls = [4, 6, 8, 4, 6, 8], [1] * 6
    one.seconds, one.learning = [1.0] * 6, [0.5] * 6
    assert one.tokens_per_call(slice(0, 6))[0] == 3.0
    assert one.tokens_per_call(slice(1, 3))[0] == 3.5
    assert two.gain(one, slice(0, 6))[0] == 3.0
    low, high = two.gain(one, slice(0, 6))[1]
    assert 2 <= low <= 3 <= high <= 4
    assert one.seconds_per_token(slice(0, 3)) == 4.5 / 18


def test_parts_of_domains(pipe):
    record = measure_online(pipe, CONFIG, domains(3), {**CALL, "max_new_tokens": 2})
    assert record.parts(2) == [
        ("cats", slice(0, 2)),
        ("cats", slice(2, 3)),
        ("dogs", slice(3, 4)),
        ("dogs", slice(4, 6)),
    ]
    assert [part for _, part in record.parts(9)] == [slice(n, n + 1) for n in range(6)]


def test_pictures_of_two_kinds(monkeypatch):
    seen = []
    monkeypatch.setattr("benchmarks.online.domains.side_of", lambda model: 32)
    for name, kind in zip(("scenes", "charts"), LONG_KINDS, strict=True):
        (domain,) = (one for one in of_shapes(None, 3, 0) if one.name == name)
        assert len(domain.asked) == 3
        for asked in domain.asked:
            assert asked["image"].size == (32, 32)
            seen.append((kind, asked["prompt"], np.asarray(asked["image"]).sum()))
    assert len({total for *_, total in seen}) == 6
    again = of_shapes(None, 3, 0)
    assert [one["prompt"] for domain in again for one in domain.asked] == [p for _, p, _ in seen]


def test_from_the_command(pipe, tmp_path, capsys):
    pipe.save_pretrained(tmp_path / "model")
    files = [tmp_path / f"{name}.jsonl" for name in ("cats", "dogs")]
    for file in files:
        lines = [json.dumps({"prompt": f"the {file.stem} {n}"}) for n in range(2)]
        file.write_text("\n".join(lines))
    command = ["online", "--model", str(tmp_path / "model"), "--answers", "3"]
    command += ["--max-new-tokens", "5", "--every", "2", "-o", str(tmp_path / "out")]
    command += ["--domain", str(files[0])]
    assert main(command) == 2
    assert "give --domain FILE once more" in capsys.readouterr().err
    assert main([*command, "--domain", str(files[1])]) == 0
    assert "gained by learning" in capsys.readouterr().out
    record = json.loads((tmp_path / "out/online.json").read_text())
    assert record["domains"] == [["cats", 3], ["dogs", 3]]
    assert all(len(run["calls"]) == 6 for run in record["runs"].values())
    assert {path.name for path in (tmp_path / "out").glob("online.*")} == {
        *(f"online.{kind}" for kind in ("json", "md", "svg"))
    }
    assert [one["prompt"] for one in of_files(files, 3)[0].asked] == [
        f"the cats {n}" for n in (0, 1, 0)
    ]


def test_a_head_that_is_not_there(pipe):
    with pytest.raises(InputError, match="no head 'medusa' that could learn, only eagle"):
        measure_online(pipe, SpecConfig("medusa"), domains(1), CALL)
