"""A draft model of other words learns from the answers that it drafts for."""

from __future__ import annotations

import copy

import pytest
import texts
import torch
import vlms
from tokenizers_of_two_kinds import byte_level, sentence_piece

import mmspec
from mmspec import DrafterLearner
from mmspec.errors import InputError
from mmspec.models.transformers.vocabulary_map import VocabularyMap

PROMPTS = ["the cat saw the dog", "a dog", "the cat and the dog and a cat"]


def made(others, method: str = "omnidraft"):
    words = texts.tokenizer()
    model, small = texts.model(words).float(), texts.model(others, seed=1).float()
    pipe = mmspec.TextPipeline(model, words, drafter=small, drafter_tokenizer=others)
    pipe.enable_speculation(method)
    return pipe


def learner_of(pipe, **more):
    words = pipe.tokenizer, pipe.drafter_tokenizer
    return DrafterLearner(pipe.model, pipe.drafter, *words, **more)


def sampled(pipe, prompts=PROMPTS[:1]):
    drawn = torch.Generator().manual_seed(2)
    return pipe(prompts, max_new_tokens=24, temperature=1.0, generator=drawn)


@pytest.mark.parametrize("others", [byte_level(258), sentence_piece(120)], ids=["bytes", "pieces"])
def test_what_it_learns_stands_and_the_text_stays(others):
    pipe = made(others, "omnidraft[num_draft_tokens=6]")
    pipe.listener = learner = learner_of(pipe, rate=3e-3)
    before = pipe(PROMPTS, max_new_tokens=24)
    for _ in range(4):
        learner.learn(steps=6)
        after = pipe(PROMPTS, max_new_tokens=24)
    assert learner.heard == 15
    assert after.tokens == before.tokens
    assert after.stats.mean_acceptance_length > before.stats.mean_acceptance_length + 0.25
    assert all(weight.grad is None for weight in pipe.model.parameters())


@pytest.mark.parametrize("fallen", [False, True])
def test_the_loss_is_of_laws_and_of_runs(fallen):
    """Beside the same by hand: reverse divergences, and a fifth of the runs' likelihoods."""
    pipe = made(byte_level(258))
    pipe.listener = learner = learner_of(pipe, fallen=fallen)
    sampled(pipe)
    learner._read()
    lesson, places = learner._lessons[0]
    loss, figures = learner.loss(lesson, places if fallen else None)
    words, other = pipe.tokenizer, pipe.drafter_tokenizer
    both = VocabularyMap(words, other, len(words), len(other))
    theirs, ours = both.shared
    column = int(lesson.answer[0].long().argmax())
    ids = lesson.tokens[0]
    own = both.retold(ids[None, :column], None)["input_ids"][0].tolist()
    direct, runs, stood = [], [], []
    while column < len(ids):
        spelled = both.spelled(int(ids[column]))
        if not fallen or places[0, column - 1]:
            p = pipe.model(ids[None, :column]).logits[0, -1].softmax(-1)[theirs]
            q = pipe.drafter(torch.tensor([own])).logits[0, -1][ours].softmax(-1)
            if len(spelled) == 1:
                direct.append((q * (q / p.clamp_min(1e-6)).log()).sum())
                stood.append(torch.minimum(p, q).sum())
            else:
                said = torch.tensor([[*own, *spelled]])
                laws = pipe.drafter(said).logits[0, -len(spelled) - 1 : -1][:, ours].softmax(-1)
                numbers = [ours.tolist().index(each) for each in spelled]
                runs.append(-laws[range(len(spelled)), numbers].log().sum())
        own += spelled
        column += 1
    assert direct
    assert runs
    expected = (sum(direct) + 0.2 * sum(runs)) / len([*direct, *runs])
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)
    assert figures["acceptance_1"] == pytest.approx(
        float((sum(stood) / len(stood)).detach()), rel=1e-4
    )


def test_it_reads_no_further_than_it_has_positions():
    pipe = made(byte_level(258))
    pipe.listener = learner = learner_of(pipe, fallen=False)
    sampled(pipe)
    learner._read()
    lesson, _ = learner._lessons[0]
    whole, _ = learner.loss(lesson, None)
    learner.room -= 512 - int(lesson.mask.sum())
    part, figures = learner.loss(lesson, None)
    assert figures
    assert part.requires_grad
    assert float(part) != float(whole)
    learner.room = 3
    nothing, figures = learner.loss(lesson, None)
    assert (float(nothing), figures) == (0.0, {})
    learner.learn()


def test_one_of_the_same_words_learns():
    words = texts.tokenizer()
    small = texts.model(words, seed=1).float()
    pipe = mmspec.TextPipeline(texts.model(words).float(), words, drafter=small)
    pipe.enable_speculation("draft")
    pipe.listener = learner = DrafterLearner(pipe.model, small, words, words, rate=3e-3)
    kept = copy.deepcopy(small.state_dict())
    sampled(pipe, PROMPTS)
    first = learner.learn(1, batch_size=3)
    learner.learn(20, batch_size=3)
    assert learner.learn(1, batch_size=3)["acceptance_1"] > first["acceptance_1"] + 0.04
    assert any(not torch.equal(kept[name], now) for name, now in small.state_dict().items())


def test_what_it_refuses():
    pipe = made(byte_level(258))
    learner = learner_of(pipe)
    with pytest.raises(InputError, match="there is no answer yet to learn from"):
        learner.learn()
    both = dict(tokenizer=pipe.tokenizer, drafter_tokenizer=pipe.drafter_tokenizer)
    model = vlms.made("llava")
    mmspec.enable_speculation(model, "prompt-lookup", listener=learner)
    inputs = vlms.asked(model, [1])
    with pytest.raises(InputError, match="a draft model learns from texts alone"):
        model.generate(**inputs, max_new_tokens=4)
    with pytest.raises(InputError, match="unknown objective 'kll'"):
        DrafterLearner(pipe.model, pipe.drafter, *both.values(), objective="kll")
