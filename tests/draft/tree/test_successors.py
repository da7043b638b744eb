"""Likeliest successors: as laws and logits rank them, what prompts teach, and what is kept."""

from __future__ import annotations

import pytest
import texts
import torch

import mmspec
from mmspec.draft.tree.successors import SuccessorTable, runners_up
from mmspec.draft.tree.token_recycling import RecyclingDrafter
from mmspec.engine.draft import Context, Scores

PROMPT = "the dog and the dog saw the cat. the dog and"


def test_greedy_laws_are_ranked_by_their_logits():
    logits = torch.tensor([[[0.1, 3.0, -1.0, 2.0, 0.5]]])
    greedy = torch.nn.functional.one_hot(logits.argmax(-1), 5).float()
    assert runners_up(Scores(greedy, logits=logits), 4).tolist() == [[[1, 3, 4, 0]]]
    # what a warper keeps comes first, though the laws' order may be another
    some = torch.tensor([[[0.0, 0.0, 0.3, 0.0, 0.7]]])
    assert runners_up(Scores(some, logits=logits), 4).tolist() == [[[4, 2, 1, 3]]]
    # logits of fewer tokens than the laws have: a vocabulary that was filled up
    short = Scores(greedy, logits=logits[..., :4])
    assert runners_up(short, 4).tolist() == [[[1, 3, 0, 2]]]
    assert runners_up(Scores(some), 2).tolist() == [[[4, 2]]]


def test_a_table_joins_what_rows_have_learnt():
    table, cpu = SuccessorTable(), torch.device("cpu")
    first = table.rows(2, (4, 2), cpu)
    assert first.tolist() == [[[0, 0]] * 4] * 2
    first[0, 1], first[1, 2] = torch.tensor([3, 2]), torch.tensor([1, 1])
    first[0, 3], first[1, 3] = torch.tensor([1, 2]), torch.tensor([2, 1])
    second = table.rows(3, (4, 2), cpu)
    assert second.tolist() == [[[0, 0], [3, 2], [1, 1], [2, 1]]] * 3
    second[2, 0] = torch.tensor([2, 2])
    assert table.rows(1, (4, 2), cpu)[0].tolist() == [[2, 2], [3, 2], [1, 1], [2, 1]]
    assert table.rows(1, (5, 2), cpu).tolist() == [[[0, 0]] * 5]  # of another model


@pytest.fixture(scope="module")
def pipe():
    words = texts.tokenizer()
    return mmspec.TextPipeline(texts.model(words), words)


@pytest.fixture
def drafters(monkeypatch):
    """The drafters of all generations."""
    made = []

    def start(drafter: RecyclingDrafter, context: Context) -> None:
        original(drafter, context)
        made.append((drafter, drafter._table.clone()))

    original = RecyclingDrafter.start
    monkeypatch.setattr(RecyclingDrafter, "start", start)
    return made


def asked(pipe, prompt: str) -> list[int]:
    turn = [{"role": "user", "content": prompt}]
    return pipe.tokenizer.apply_chat_template(turn, add_generation_prompt=True)["input_ids"]


def test_a_prompt_teaches_what_the_model_expects_in_it(pipe, drafters):
    pipe.enable_speculation("token-recycling")
    pipe([PROMPT, "x"], max_new_tokens=1)
    table = drafters[0][1]
    for row, prompt in enumerate([PROMPT, "x"]):
        ids = asked(pipe, prompt)
        with torch.no_grad():
            logits = pipe.model(torch.tensor([ids])).logits[0]
        expected = torch.zeros_like(table[row])
        for place, token in enumerate(ids[:-1]):  # the last column is the first call's
            expected[token] = logits[place].topk(3).indices
        assert torch.equal(table[row, :-1], expected[:-1])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_round_teaches_the_runners_up_of_all_that_was_scored(pipe, monkeypatch, temperature):
    """By transformers' own logits behind the root and behind every node, whatever the law."""
    rounds = []

    def observe(drafter, context, draft, scores, verdict) -> None:
        base = int(context.lengths[0] - verdict.counts[0])
        before = context.tokens[0, :base].tolist()
        paths = {-1: []}
        for node in range(int(draft.lengths[0])):
            above = paths[int(draft.parents[0, node])]
            paths[node] = [*above, int(draft.tokens[0, node])]
        original(drafter, context, draft, scores, verdict)
        rounds.append((before, list(paths.values()), drafter._table[0].clone()))

    original = RecyclingDrafter.observe
    monkeypatch.setattr(RecyclingDrafter, "observe", observe)
    pipe.enable_speculation("token-recycling")
    generator = torch.Generator().manual_seed(0)
    pipe(PROMPT, max_new_tokens=12, temperature=temperature, generator=generator)
    assert len(rounds) > 2
    for before, paths, table in rounds:
        known = {}  # of a token that is there several times the last one counts
        for path in paths:
            ids = [*asked(pipe, PROMPT), *before, *path]
            with torch.no_grad():
                known[ids[-1]] = pipe.model(torch.tensor([ids])).logits[0, -1].topk(3).indices
        for token, best in known.items():
            assert torch.equal(table[token], best)


def test_a_table_lives_on_if_it_is_told_to(pipe, drafters):
    pipe.enable_speculation("token-recycling")
    for _ in range(2):
        pipe("the cat", max_new_tokens=8)
    assert torch.equal(drafters[0][1], drafters[1][1])
    pipe.enable_speculation("token-recycling[table_lives=true]")
    told = [pipe(prompt, max_new_tokens=8).tokens for prompt in (PROMPT, "x")]
    later = drafters[3][1]
    known = drafters[2][0]._table[0]
    taught = {*asked(pipe, "x")}
    for token in {*asked(pipe, PROMPT)} - taught:
        assert torch.equal(later[0, token], known[token])
    pipe.enable_speculation("plain")
    assert told == [pipe(prompt, max_new_tokens=8).tokens for prompt in (PROMPT, "x")]
