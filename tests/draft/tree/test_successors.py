"""Likeliest successors: as laws and logits rank them, what prompts teach, and what is kept."""

from __future__ import annotations

import pytest
import texts
import torch

import mmspec
from mmspec.draft.tree.successors import SuccessorTable, runners_up
from mmspec.draft.tree.token_recycling import RecyclingDrafter
from mmspec.engine.draft import Context, Scores
from mmspec.methods import SpecConfig
from mmspec.methods.static_trees import RECYCLING_WIDTHS, children_of
from mmspec.pipelines.load_switch import choices_of

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
            expected[token] = logits[place].topk(8).indices
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
                known[ids[-1]] = pipe.model(torch.tensor([ids])).logits[0, -1].topk(8).indices
        for token, best in known.items():
            assert torch.equal(table[token], best)


@pytest.mark.parametrize("lives", ["false", "none", "true"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_table_that_does_not_live_on_begins_anew(pipe, drafters, lives, temperature):
    """By itself it lives on where nothing that is said can depend on it."""
    pipe.enable_speculation(f"token-recycling[table_lives={lives}]")
    for _ in range(2):
        generator = torch.Generator().manual_seed(0)
        pipe("the cat", max_new_tokens=8, temperature=temperature, generator=generator)
    anew = torch.equal(drafters[0][1], drafters[1][1])
    assert anew == (lives == "false" or (lives == "none" and temperature == 1.0))


def test_a_table_lives_on_with_all_that_it_has_learnt(pipe, drafters):
    pipe.enable_speculation("token-recycling")
    told = [pipe(prompt, max_new_tokens=8).tokens for prompt in (PROMPT, "x")]
    (first, _), (_, later) = drafters
    known = first._table[0]
    taught = {*asked(pipe, "x")}
    for token in {*asked(pipe, PROMPT)} - taught:
        assert torch.equal(later[0, token], known[token])
    pipe.enable_speculation("plain")
    assert told == [pipe(prompt, max_new_tokens=8).tokens for prompt in (PROMPT, "x")]


def test_text_can_be_drafted_in_the_published_tree(pipe, monkeypatch):
    """Eight successors a token, 80 nodes: behind every node the first of its token's own."""
    drafts = []

    def propose(drafter, context, budget, coins):
        draft = original(drafter, context, budget, coins)
        root = drafter._before(context, context.lengths)
        drafts.append((drafter._table[0].clone(), draft, int(root[0, 0])))
        return draft

    original = RecyclingDrafter.propose
    monkeypatch.setattr(RecyclingDrafter, "propose", propose)
    pipe.enable_speculation("token-recycling[static_nodes=80]")
    pipe(PROMPT, max_new_tokens=8)
    table, draft, root = drafts[0]
    parents, tokens = draft.parents[0].tolist(), draft.tokens[0].tolist()
    assert len(tokens) == 80
    assert table.shape[-1] == 8
    depths, ranks = [], []
    for node, parent in enumerate(parents):
        depths.append(0 if parent < 0 else depths[parent] + 1)
        ranks.append(parents[:node].count(parent))
        above = root if parent < 0 else tokens[parent]
        assert tokens[node] == table[above, ranks[node]]
    assert [depths.count(depth) for depth in range(6)] == [8, 21, 25, 15, 8, 3]
    # the likelier a path's successors are, the more of them are drafted behind it
    assert [parents.count(node) for node in range(8)] == [8, 4, 3, 2, 1, 1, 1, 1]


def test_widths_cut_the_published_tree():
    assert children_of((2, 1), "recycling-80") == children_of((2, 1)) == ((2,), (1, 1))
    for depth in range(1, 7):
        narrow = children_of((1,) * depth, "recycling-80")
        assert narrow == ((1,),) * depth  # the likeliest successors of the likeliest
    assert sum(map(sum, children_of((9,) * 9, "recycling-80"))) == 80


def paths(children):
    """The ranks on the way to every node."""
    found, above = [], [()]
    for level in children:
        above = [(*p, n) for p, count in zip(above, level, strict=True) for n in range(count)]
        found += above
    return found


def test_nodes_stay_in_the_order_of_what_is_behind_them():
    whole = paths(children_of(RECYCLING_WIDTHS, "recycling-80"))
    behind = {p: sum(other[: len(p)] == p for other in whole) for p in whole}
    before = set()
    for most in range(1, 81):
        kept = set(paths(children_of(RECYCLING_WIDTHS, "recycling-80", most)))
        (new,) = kept - before
        assert before < kept
        assert all(behind[new] >= behind[other] for other in set(whole) - kept)
        assert len(new) == 1 or new[:-1] in kept
        before = kept
    assert children_of((2, 2), "full", 3) == ((2,), (1, 0))
    assert children_of((2, 2), "full", 256) == children_of((2, 2))


def test_a_call_on_a_processor_has_room_for_the_usual_tree():
    """Sixteen rows with the root; by itself the size is chosen, up to the published one."""
    sizes = []
    for config in choices_of(SpecConfig("token-recycling", length="auto"), "vlm"):
        size = config.resolve("vlm").draft_size()
        sizes.append((size.most_drafted, size.deepest))
    assert sizes == [(15, 4), (0, 0), (80, 6), (7, 4)]
    for own in ({"static_nodes": 80}, {"tree_widths": (4, 2, 1)}):
        set_ = SpecConfig("token-recycling", length="auto", **own)
        assert len(choices_of(set_, "vlm")) == 2  # what is set is the only size
