"""The recipe of a judge: which tokens are left and how they are labelled, and a short run."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from mmspec import VlmPipeline
from mmspec.cli.main import main
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import Categorical
from mmspec.errors import InputError
from mmspec.models.heads.judge import JudgeHead
from mmspec.models.heads.loading import load_judge
from mmspec.train import recipes
from mmspec.train.judging import LenientRule, roc_auc
from mmspec.train.tokenizers import exchange_tokenizer
from mmspec.train.trainer import TrainConfig
from mmspec.train.vlm import judge as recipe
from mmspec.train.vlm import pair as pair_recipe
from mmspec.train.vlm.judge import VlmJudgeRecipe
from mmspec.train.vlm.statements import ends_false, in_false
from mmspec.worlds.shapes.claims import score_description
from mmspec.worlds.shapes.exchanges import sample_exchange

WORDS = exchange_tokenizer()


@pytest.fixture(scope="module")
def described():
    """A scene with its true description, as tokens."""
    picture, exchange = sample_exchange(np.random.default_rng(4), "description")
    ids = WORDS(exchange.answer, add_special_tokens=False).input_ids
    assert score_description(exchange.answer, picture).truthfulness == 1
    return picture, ids


def ends_of(ids) -> list[int]:
    return [n for n, token in enumerate(ids) if WORDS.decode([token]).strip() in (".", ";")]


def spoiled(picture, ids) -> tuple[int, list[int]]:
    """A colour that the scene does not have in place of the first one named, and its place."""
    colors = ("purple", "orange", "brown", "pink", "green", "blue")
    free = next(c for c in colors if c not in {item.color for item in picture.items})
    own = {item.color for item in picture.items}
    place = next(n for n, token in enumerate(ids) if WORDS.decode([token]).strip() in own)
    (wrong,) = WORDS(f" {free}", add_special_tokens=False).input_ids
    return place, [*ids[:place], wrong, *ids[place + 1 :]]


def test_places_in_true_statements_are_harmless(described):
    picture, ids = described
    places = [1, 2, ends_of(ids)[1], len(ids) - 2]
    assert in_false(WORDS, ids, places, picture) == dict.fromkeys(places, False)


def test_a_place_in_a_false_statement_is_important(described):
    picture, ids = described
    place, wrong = spoiled(picture, ids)
    ends = ends_of(ids)
    start = max((end + 1 for end in ends if end < place), default=0)
    end = next(end for end in ends if end >= place)
    found = in_false(WORDS, wrong, [place, end + 1], picture)
    assert found == {place: True}  # what follows builds on it
    # of two nobody knows which is to blame
    assert in_false(WORDS, wrong, [start, place], picture) == {}
    # without one of them the error is the target's, and what follows counts
    assert in_false(WORDS, wrong, [end + 1], picture).keys() == {end + 1}
    assert ends_false(WORDS, wrong[: end + 1], picture)
    assert not ends_false(WORDS, ids[: end + 1], picture)


def test_the_lenient_rule_leaves_what_falls():
    rows, nodes, vocab = 64, 3, 7
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(rows, nodes + 1, vocab, generator=generator).mul(2).softmax(-1)
    q = torch.randn(rows, nodes, vocab, generator=generator).mul(2).softmax(-1)
    tokens = torch.distributions.Categorical(q).sample()
    hidden = torch.randn(rows, nodes + 1, 5, generator=generator)
    draft = Draft(tokens, torch.full((rows,), nodes), Categorical(q))
    even = lambda states: states.new_zeros(len(states), vocab)  # noqa: E731
    coins = ProductionCoins(range(rows)).round(0)[1]
    strict = TokenRule().verify(draft, Scores(p), coins)
    for share, ends in ((0.0, ()), (0.5, (2,)), (1.0, ()), (1.0, (2,))):
        rule = LenientRule(share, torch.Generator().manual_seed(1), even, ends)
        verdict = rule.verify(draft, Scores(p, hidden), coins)
        rule.verify(draft, Scores(p, hidden), coins)
        left = rule.left()
        first = len(rule.noted[0].rows)
        assert torch.equal(verdict.counts, strict.counts)
        for n, (row, place) in enumerate(
            zip(left.rows.tolist(), left.places.tolist(), strict=True)
        ):
            at = int(strict.accepted[row])
            assert place == at + (n >= first) * int(strict.counts[row])
            if n < first:
                assert int(verdict.last[row]) == int(tokens[row, at]) not in ends
                assert torch.equal(left.states[n], hidden[row, at + 1])
        changed = (verdict.emitted != strict.emitted).any(1).nonzero()[:, 0].tolist()
        assert changed == left.rows[:first].tolist()
        fell = (strict.accepted < nodes) & ~torch.isin(
            tokens.gather(1, strict.accepted.clamp_max(2)[:, None])[:, 0], torch.tensor(ends)
        )
        assert (first == int(fell.sum())) == (share == 1)
        assert (first > 0) == (share > 0)
        assert torch.allclose(left.probs, torch.full((len(left.rows),), 1 / vocab))


def test_roc_auc():
    """The share of pairs in the right order, ties half."""
    scores = torch.tensor([0.1, 0.4, 0.4, 0.8, 0.9])
    positive = torch.tensor([False, False, True, False, True])
    pairs = [(a, b) for a in scores[positive] for b in scores[~positive]]
    right = sum(float(a > b) + 0.5 * float(a == b) for a, b in pairs) / len(pairs)
    assert roc_auc(scores, positive) == pytest.approx(right)
    assert roc_auc(-scores, ~positive) == pytest.approx(right)


def labelled(self, asked, first):
    """Tokens of which the first number of the state tells whether they are important."""
    generator = torch.Generator().manual_seed(first)
    states = torch.randn(40, 16, generator=generator) * 3 + 1
    return states, states[:, 0] > 2, torch.rand(40, generator=generator)


def test_it_learns_and_a_pipeline_takes_it(pair, monkeypatch, capsys):
    monkeypatch.setattr(VlmJudgeRecipe, "described", labelled)
    command = ["train", "vlm-judge", "--pipeline", str(pair), "--steps", "300", "--seed", "1"]
    assert main([*command, "--set", "pictures=256", "--set", "recall=0.8", "--quiet"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    figures = record["held_out"]
    assert figures["held_out_auc"] > 0.95
    assert figures["held_out_auc_of_probability"] < 0.8
    assert record["config"]["tokens"] == 320
    card = (pair / "judge" / "README.md").read_text()
    assert "held_out_auc" in card
    judge = load_judge(pair / "judge")
    assert judge.threshold == figures["threshold"]
    # what it refuses of the important ones is what was asked for
    states, important, _ = labelled(None, None, 0)
    refused = judge(states)[important] <= judge.threshold
    assert float(refused.float().mean()) > 0.6

    pipe = VlmPipeline.from_pretrained(pair)
    assert isinstance(pipe.judge, JudgeHead)
    picture = np.zeros((32, 32, 3), np.uint8)
    for method in ("judge", "judge[judge_threshold=0.2,judge_floor=0.001]", "likely"):
        pipe.enable_speculation(method)
        out = pipe("What is this?", picture, max_new_tokens=8)
        assert (out.stats.contract, out.stats.fault) == ("lossy", None)
    pipe.save_pretrained(pair.parent / "again")
    again = VlmPipeline.from_pretrained(pair.parent / "again")
    assert torch.equal(again.judge.score.weight, pipe.judge.score.weight)
    assert again.judge.threshold == judge.threshold
    Image.fromarray(picture).save(pair.parent / "black.png")
    ask = ["ask", str(pair.parent / "black.png"), "What is this?", "--model", str(pair)]
    assert main([*ask, "--method", "judge", "--max-new-tokens", "5"]) == 0


def labels_of(made: VlmJudgeRecipe, asked):
    with torch.inference_mode():
        return made.described(made.shown(asked), 0)


def test_descriptions_give_labelled_tokens(pair, monkeypatch):
    """Of the real thing: every label is of a token that the target had rejected."""
    monkeypatch.setattr(pair_recipe, "LIMIT", 12)
    monkeypatch.setattr(recipe, "STATEMENT", 5)
    told = []

    def all_in_false(words, ids, places, picture):
        told.append((ids, places))
        return {place: n == 0 for n, place in enumerate(places)}

    monkeypatch.setattr(recipe, "in_false", all_in_false)
    monkeypatch.setattr(VlmJudgeRecipe, "gathered", lambda self, *_: labelled(None, None, 0))
    large = 2**62  # as any seed that may be given
    made = VlmJudgeRecipe(TrainConfig(out=pair / "x", steps=1, batch_size=4, seed=large), pair)
    asked = made._asked("train", 5)
    monkeypatch.setattr(recipe, "ends_false", lambda *_: False)
    states, labels, probs = labels_of(made, asked)
    places = sum(len(inside) for _, inside in told)
    assert len(labels) == len(states) == len(probs) == places > 5
    assert states.shape[1] == 16
    assert int(labels.sum()) == sum(bool(inside) for _, inside in told)
    assert all(place < len(ids) for ids, inside in told for place in inside)
    # where the target itself ends falsely, nothing is told of the token
    monkeypatch.setattr(recipe, "ends_false", lambda *_: True)
    _, cleared, _ = labels_of(made, asked)
    assert len(cleared) == places - int(labels.sum())
    assert not cleared.any()


def test_the_target_goes_on_with_texts(pair, monkeypatch):
    """As its own greedy answer does, from whatever place on."""
    monkeypatch.setattr(pair_recipe, "LIMIT", 12)
    monkeypatch.setattr(recipe, "STATEMENT", 6)
    monkeypatch.setattr(VlmJudgeRecipe, "gathered", lambda self, *_: labelled(None, None, 0))
    monkeypatch.setattr(recipe, "ends_statement", lambda words, token: False)
    made = VlmJudgeRecipe(TrainConfig(out=pair / "x", steps=1, batch_size=4), pair)
    asked = made._asked("held_out", 3)
    pipe = VlmPipeline.from_pretrained(pair)
    _, shown = made.shown(asked)
    out = pipe(shown.texts, shown.pictures, max_new_tokens=12)
    texts = [row[:n] for row, n in zip(out.tokens, (0, 2, 5), strict=True)]
    with torch.inference_mode():
        whole = made.ended(shown, texts)
        assert made.ended(recipe.Questions([], []), []) == []
    for row, text, own in zip(whole, texts, out.tokens, strict=True):
        assert len(row) == len(text) + 6
        assert row[: len(own)] == own[: len(row)]


def test_what_is_refused(pair):
    with pytest.raises(InputError, match="has no drafter, whose tokens a judge is to learn from"):
        VlmJudgeRecipe(TrainConfig(out=pair / "x", steps=1, batch_size=4), pair / "drafter")

    def harmless(self, asked, first):
        return torch.zeros(3, 16), torch.zeros(3, dtype=torch.bool), torch.zeros(3)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VlmJudgeRecipe, "described", harmless)
        with pytest.raises(InputError, match=r"4 pictures .* gave 3 tokens to judge, 0 of them wr"):
            recipes.train("vlm-judge", pair, steps=1, settings={"pictures": "4"})
