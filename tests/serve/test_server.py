"""The server as its users meet it: OpenAI's own client, over the embedded models."""

from __future__ import annotations

import base64
import io
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import openai
import pytest
import torch
from openai import OpenAI
from PIL import Image
from serving import DESCRIBE, KEY, LIMITS, asked, figures, running, scene

from mmspec import ImagePipeline, VlmPipeline
from mmspec.serve.loading import Offered, local_backend


@pytest.fixture(scope="module")
def client(address):
    return OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0)


@pytest.fixture(scope="module")
def pipe():
    made = VlmPipeline.from_pretrained(None)
    made.enable_speculation("plain")
    return made


def test_the_models(client):
    assert [one.id for one in client.models.list()] == ["embedded-vlm", "embedded-image"]
    assert client.models.retrieve("embedded-vlm").id == "embedded-vlm"
    with pytest.raises(openai.NotFoundError, match="no model 'gpt' here"):
        client.models.retrieve("gpt")


def test_an_answer_is_the_pipelines(client, pipe):
    """Batches, and the greedy text of plain decoding, whoever asks beside whom."""
    seeds = range(6)

    def ask(seed: int):
        return client.chat.completions.create(
            model="embedded-vlm", messages=asked(seed), temperature=0, max_tokens=30
        )

    with ThreadPoolExecutor(6) as many:
        answers = list(many.map(ask, seeds))
    for seed, answer in zip(seeds, answers, strict=True):
        expected = pipe(DESCRIBE, scene(seed), max_new_tokens=30)
        choice = answer.choices[0]
        assert choice.message.content == expected.text[0]
        assert answer.usage.completion_tokens == len(expected.tokens[0])
        assert answer.usage.prompt_tokens == expected.stats.prompt_tokens[0] > 64
        assert choice.finish_reason == ("length" if len(expected.tokens[0]) == 30 else "stop")
        assert answer.mmspec["tokens_per_call"] > 1


def test_rows_of_a_batch_may_be_of_different_lengths(client, pipe):
    def ask(count: int):
        return client.chat.completions.create(
            model="embedded-vlm", messages=asked(), temperature=0, max_tokens=count
        )

    with ThreadPoolExecutor(4) as many:
        answers = list(many.map(ask, (3, 30, 11, 1)))
    tokens = pipe(DESCRIBE, scene(3), max_new_tokens=30).tokens[0]
    words = pipe.processor.tokenizer
    for count, answer in zip((3, 30, 11, 1), answers, strict=True):
        told = words.decode(tokens[:count], skip_special_tokens=True)
        assert answer.choices[0].message.content == told


def test_a_drawn_answer_does_not_depend_on_what_runs_beside_it(client):
    """Nor on how long the others may get."""

    def ask(seed: int, count: int) -> str:
        out = client.chat.completions.create(
            model="embedded-vlm", messages=asked(), temperature=1.2, max_tokens=count, seed=seed
        )
        return out.choices[0].message.content

    alone = [ask(seed, 9) for seed in range(4)]
    jobs = [(seed, 9) for seed in range(4)] + [(9, 40), (8, 33)]
    with ThreadPoolExecutor(6) as many:
        beside = list(many.map(lambda job: ask(*job), jobs))
    assert beside[:4] == alone


def test_a_second_turn_without_a_length(client):
    """As OpenAI's page has it: the answer's message goes back as it came."""
    turns = asked(text="How many objects are there?")
    first = client.chat.completions.create(model="embedded-vlm", messages=turns, temperature=0)
    turns.append(first.choices[0].message)
    turns.append({"role": "user", "content": "What is the shape of the largest object?"})
    second = client.chat.completions.create(model="embedded-vlm", messages=turns, temperature=0)
    assert second.choices[0].message.content
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


def test_a_stream_is_the_whole_in_pieces(client):
    given = dict(model="embedded-vlm", messages=asked(), temperature=0, max_tokens=40)
    whole = client.chat.completions.create(**given)
    told = {"include_usage": True}
    events = list(client.chat.completions.create(**given, stream=True, stream_options=told))
    pieces = [one.choices[0].delta.content or "" for one in events if one.choices]
    assert len([piece for piece in pieces if piece]) > 2
    assert "".join(pieces) == whole.choices[0].message.content
    reasons = [one.choices[0].finish_reason for one in events if one.choices]
    assert [reason for reason in reasons if reason] == [whole.choices[0].finish_reason]
    assert events[-1].usage == whole.usage


def test_stop_strings_are_no_part_of_an_answer(client):
    given = dict(model="embedded-vlm", messages=asked(), temperature=0, max_tokens=60)
    whole = client.chat.completions.create(**given).choices[0].message.content
    word = whole.split()[6]  # whatever it says
    cut = client.chat.completions.create(**given, stop=[word, "no such"]).choices[0]
    assert cut.message.content == whole[: whole.index(word)]
    assert cut.finish_reason == "stop"


def test_a_seed_repeats_and_choices_differ(client):
    given = dict(model="embedded-vlm", messages=asked(), temperature=1.2, max_tokens=24)

    def texts(seed: int) -> list[str]:
        out = client.chat.completions.create(**given, seed=seed, n=3)
        assert [one.index for one in out.choices] == [0, 1, 2]
        return [one.message.content for one in out.choices]

    assert texts(5) == texts(5)
    assert len({*texts(5), *texts(6)}) > 3


@pytest.mark.slow
def test_pictures_are_the_pipelines(client):
    words = "a photo of a red circle"
    out = client.images.generate(model="embedded-image", prompt=words, n=2, extra_body={"seed": 11})
    pipe = ImagePipeline.from_pretrained(None)
    pipe.enable_speculation("scd")
    chance = [torch.Generator().manual_seed(11 + n) for n in range(2)]
    expected = pipe([words] * 2, generator=chance).images
    for one, other in zip(out.data, expected, strict=True):
        drawn = Image.open(io.BytesIO(base64.b64decode(one.b64_json)))
        assert drawn.format == "PNG"
        assert np.array_equal(np.asarray(drawn), np.asarray(other))
    small = client.images.generate(model="embedded-image", prompt=words, size="64x64")
    assert Image.open(io.BytesIO(base64.b64decode(small.data[0].b64_json))).size == (64, 64)


@pytest.mark.parametrize(
    ("ask", "kind", "message"),
    [
        (dict(model="gpt"), openai.NotFoundError, "no model 'gpt' for this route here; there are"),
        (dict(model="embedded-image"), openai.NotFoundError, "no model 'embedded-image' for this"),
        (dict(logit_bias={"3": 4}), openai.BadRequestError, "does not honour logit_bias"),
        (dict(messages=[{"role": "assistant", "content": "a"}]), openai.BadRequestError, "last"),
        (dict(messages=asked(text="")), openai.BadRequestError, "the question is empty"),
    ],
)
def test_what_is_refused(client, ask, kind, message):
    given = dict(model="embedded-vlm", messages=asked(), max_tokens=4) | ask
    with pytest.raises(kind, match=message):
        client.chat.completions.create(**given)


def test_keys_and_forms_of_requests(address):
    assert httpx.get(f"{address}/health").json() == {"status": "ok", "waiting": 0}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY[:-1]}):
        told = httpx.get(f"{address}/v1/models", headers=headers)
        assert told.status_code == 401
        assert "no valid API key" in told.json()["error"]["message"]
    shown = {"Authorization": f"Bearer {KEY}"}
    where = f"{address}/v1/chat/completions"
    form = httpx.post(where, headers=shown, content=b"{}")
    assert form.status_code == 415  # what a page of another site can send by itself
    large = httpx.post(where, headers=shown, json={"model": "x" * 200_000})
    assert large.status_code == 413
    wrong = httpx.post(where, headers=shown, json={"model": "embedded-vlm"})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["message"] == "messages: Field required"
    unknown = httpx.get(f"{address}/docs", headers=shown)
    assert unknown.status_code == 404
    assert unknown.json()["error"]["type"] == "invalid_request_error"
    assert figures(address)['mmspec_requests_total{code="413",model=""}'] >= 1


def test_routes_that_there_are_not_name_those_that_there_are(client):
    for ask in (
        lambda: client.responses.create(model="embedded-vlm", input="hello"),
        lambda: client.images.edit(image=b"x", prompt="a"),
    ):
        with pytest.raises(openai.NotFoundError) as error:
            ask()
        assert "this server has /v1/chat/completions, /v1/images/generations" in str(error.value)


def test_a_page_that_took_this_machines_address_is_not_heard(backend):
    with running(backend, LIMITS) as where:
        for name, status in (
            ("evil.example", 403),
            ("[::1", 403),
            ("127.0.0.1:1", 200),
            ("localhost", 200),
        ):
            told = httpx.get(f"{where}/v1/models", headers={"Host": name})
            assert told.status_code == status


def test_figures_count(address, client):
    before, labels = figures(address), '{method="eagle",model="embedded-vlm"}'

    def more(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    answer = client.chat.completions.create(
        model="embedded-vlm", messages=asked(), temperature=0, max_tokens=30
    )
    after = figures(address)
    written = more(f"mmspec_tokens_total{labels}")
    assert written == answer.usage.completion_tokens == 30
    assert written / more(f"mmspec_target_calls_total{labels}") > 1
    assert 0 < after[f"mmspec_acceptance{labels}"] < 1
    assert more('mmspec_requests_total{code="200",model="embedded-vlm"}') == 1
    assert after["mmspec_waiting"] == 0


@pytest.mark.slow
def test_pictures_of_vectors():
    made = local_backend([Offered("continuous", "embedded-mar")], LIMITS)
    try:
        with running(made, LIMITS) as where:
            client = OpenAI(base_url=f"{where}/v1", api_key="none", max_retries=0)
            out = client.images.generate(
                model="embedded-mar", prompt="a photo of a red circle", n=2
            )
    finally:
        made.close()
    assert len({one.b64_json for one in out.data}) == 2
    assert out.mmspec["target_calls"] > 1
