"""What a served model is called, and how long its answers may get."""

from __future__ import annotations

import time

import pytest
import texts

import mmspec
from mmspec.errors import InputError
from mmspec.serve import runners
from mmspec.serve.backend import ChatAsked, PictureAsked
from mmspec.serve.jobs import Job
from mmspec.serve.loading import Offered
from mmspec.serve.metrics import RunMetrics
from mmspec.serve.requests import ServeLimits
from mmspec.serve.runners import ChatRunner, PictureRunner

PLACES = 80


@pytest.fixture(scope="module")
def pipe():
    """A model of few positions that ends no answer by itself."""
    words = texts.tokenizer()
    model = texts.model(words)
    model.config.max_position_embeddings = PLACES
    model.generation_config.eos_token_id = None
    return mmspec.TextPipeline(model, words)


def answers(pipe, prompts, limit=None) -> list[dict]:
    """What a runner says at the end of the answers to prompts that are asked together."""
    heard, jobs = [], []
    for prompt in prompts:
        said = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]
        asked = ChatAsked(said, 0.0, 1.0, 0, limit, ())
        tell = heard.append
        jobs.append(Job("m", asked, asked.key, 1, [0], tell, time.monotonic() + 60))
    ChatRunner(pipe, RunMetrics(), ServeLimits()).run(jobs)
    return [one.value for one in heard if one.kind == "usage"]


def test_without_a_length_an_answer_has_what_its_prompt_leaves(pipe):
    """Half of the model's positions at most."""
    short, long = "the cat", "the cat saw the dog " * 9
    assert PLACES // 2 < pipe.prompt_tokens(long) < PLACES
    (told,) = answers(pipe, [short])
    assert (told["prompt"], told["written"]) == (pipe.prompt_tokens(short), PLACES // 2)
    (told,) = answers(pipe, [long])
    assert told["prompt"] + told["written"] == PLACES
    with pytest.raises(InputError, match="are too long"):
        answers(pipe, [long], limit=PLACES // 2)
    with pytest.raises(InputError, match="are too long"):
        answers(pipe, [short, long])  # those of a batch run alone then


def test_positions_that_would_turn_otherwise_are_none(pipe, monkeypatch):
    """Of a model whose rotation changes behind its first length, an answer has those before."""
    rope = {"rope_type": "dynamic", "original_max_position_embeddings": PLACES // 2}
    told = {**pipe.model.config.rope_parameters, **rope}
    monkeypatch.setattr(pipe.model.config, "rope_parameters", told)
    long = "the cat saw the dog " * 3
    assert PLACES // 4 < pipe.prompt_tokens(long) < PLACES // 2
    (told,) = answers(pipe, [long])
    assert told["prompt"] + told["written"] == PLACES // 2


def test_tokens_that_nobody_gets_are_not_counted(pipe):
    """Of a round, those behind a stop string or behind a row's own limit."""
    said = [{"role": "user", "content": [{"type": "text", "text": "the cat saw the dog " * 2}]}]

    def usage(limit, stops=()) -> dict:
        heard: list = []
        asked = [ChatAsked(said, 0.0, 1.0, 0, n, s) for n, s in ((limit, stops), (30, ()))]
        tells = heard.append, lambda _: None
        late = time.monotonic() + 60
        jobs = [
            Job("m", one, one.key, 1, [0], tell, late)
            for one, tell in zip(asked, tells, strict=True)
        ]
        ChatRunner(pipe, RunMetrics(), ServeLimits()).run(jobs)
        (found,) = [one for one in heard if one.kind == "usage"]
        return found.value

    pipe.enable_speculation("prompt-lookup")
    try:
        whole = usage(30)
        assert whole["calls"] < whole["emitted"] == whole["written"] == 30
        for limit in range(1, 12):
            told = usage(limit)
            assert told["emitted"] == told["written"] == limit
    finally:
        pipe.disable_speculation()


def test_a_short_answer_is_told_before_the_long_one_beside_it_is_over(pipe):
    """And one that is too late, as soon as it is."""
    heard, jobs = [], []
    for name, limit in (("short", 2), ("late", 30), ("long", 30)):
        said = [{"role": "user", "content": [{"type": "text", "text": "the cat"}]}]
        asked = ChatAsked(said, 0.0, 1.0, 0, limit, ())

        def tell(news, name=name):
            heard.append((name, news.kind))
            if name == "long":
                jobs[1].deadline = 0.0

        jobs.append(Job("m", asked, asked.key, 1, [0], tell, time.monotonic() + 60))
    ChatRunner(pipe, RunMetrics(), ServeLimits()).run(jobs)
    kinds = {name: [kind for other, kind in heard if other == name] for name in dict(heard)}
    assert kinds["short"][-2:] == kinds["long"][-2:] == ["finish", "usage"]
    assert kinds["late"][-1] == "error"
    assert all(own.count("usage") + own.count("error") == 1 for own in kinds.values())
    last = len(heard) - 1 - heard[::-1].index(("long", "text"))
    assert heard.index(("short", "usage")) < last
    assert heard.index(("late", "error")) < last


def test_a_picture_of_one_round_ends_once_nobody_waits_for_it(tiny_folder, monkeypatch):
    """`zipar` draws it by many calls of the target in one round."""
    heard, calls = [], []
    pipe = mmspec.ImagePipeline.from_pretrained(tiny_folder)
    pipe.enable_speculation("zipar[zipar_window=4]")
    asked = PictureAsked("a photo of a red circle", None, None)
    job = Job("m", asked, asked.key, 1, [0], heard.append, time.monotonic() + 60)
    check = mmspec.ImagePipeline._check_interrupt

    def called(pipe):
        calls.append(1)
        if len(calls) == 2:
            job.cancelled = True
            time.sleep(1.0)
        check(pipe)

    monkeypatch.setattr(mmspec.ImagePipeline, "_check_interrupt", called)
    monkeypatch.setattr(runners, "LOOK", 0.01)
    PictureRunner(pipe, RunMetrics(), ServeLimits()).run([job])
    assert [news.kind for news in heard] == ["error"]
    assert len(calls) == 2


def test_the_folder_that_one_is_in_has_a_name(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    assert Offered("text", ".").name == "mine"
    assert Offered("text", "owner/model").name == "model"
    assert Offered("vlm", "embedded-vlm").name == "embedded-vlm"
