"""Total variation per step is measured through the shipped rule, and seen where there is some."""

from __future__ import annotations

import pytest
import torch

from mmspec import ImagePipeline, SpecConfig
from mmspec.engine.accept.chain import accepted_prefix, prefix_verdict
from mmspec.engine.accept.greedy import GreedyRule
from mmspec.engine.accept.judge import JudgeRule
from mmspec.engine.accept.lantern.lantern import LanternRule
from mmspec.engine.accept.local import LocalRule
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.accept.restricted import RestrictedRule
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import Categorical
from mmspec.eval.data.prompts import load_prompts
from mmspec.eval.measure.variation import Step, WatchedRule, summarize, tv_per_step, variation
from mmspec.eval.run.job import Job
from mmspec.eval.suite import load_suite
from mmspec.pipelines.model_folders import runnable_in


def laws(seed: int, size: int = 12) -> Step:
    generator = torch.Generator().manual_seed(seed)
    q, p = torch.rand(2, size, generator=generator).pow(3)
    q[3:6], p[7:9] = 0, 0
    return Step(q / q.sum(), p / p.sum())


class Everything:
    """Accepts whatever comes: the law of the output is the drafter's."""

    contract = "lossy"

    def verify(self, draft, scores, coins):
        accepted = accepted_prefix(torch.ones_like(draft.tokens, dtype=torch.bool), draft)
        return prefix_verdict(draft, accepted, coins.draw(scores.probs[:, 1]))


class Relaxed(TokenRule):
    """Half of what the exact rule would refuse stands, and recovery is as ever."""

    contract = "lossy"

    def verify(self, draft, scores, coins):
        class Kinder:
            def accept(self, prob, lengths):
                return coins.accept((prob.clamp(max=1) + 1) / 2, lengths)

            draw = staticmethod(coins.draw)

        return super().verify(draft, scores, Kinder())


def test_local_rules():
    """Nodes are judged by themselves: several are noted in a round, none that nobody scored."""
    exact = LocalRule(8, 1.0, criterion="ratio", radius=1)
    assert variation(exact, laws(1)) < 1e-12
    assert variation(LocalRule(8, 0.0), laws(1)) > 0.01  # all stands: the law is the drafter's
    watched = WatchedRule(exact)
    assert watched.local
    assert not WatchedRule(TokenRule()).local
    step = laws(2)
    q = step.law.expand(1, 16, -1)
    positions = torch.arange(16)[None]
    draft = Draft(positions % 3, torch.tensor([16]), Categorical(q), positions=positions)
    p = step.target.expand(1, 17, -1)
    for calls, noted in ((0, 0), (1, 3)):
        watched.verify(draft, Scores(p, calls=calls), ProductionCoins([0]).round(0)[1])
        assert len(watched.steps) == noted


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rule", [TokenRule(), RecursiveRule()])
def test_exact_rules_bend_nothing(rule, seed):
    assert variation(rule, laws(seed)) < 1e-12
    chosen = laws(seed)
    chosen.law = torch.nn.functional.one_hot(torch.tensor(2), 12).float()
    assert variation(rule, chosen) < 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_lossy_rules_against_their_formulas(seed):
    step = laws(seed)
    q, p = step.law.double(), step.target.double()
    between = 0.5 * float((q - p).abs().sum())
    assert variation(Everything(), step) == pytest.approx(between, abs=1e-6)
    # P(x) = q a + (1 − Σ q a) r with a = (1 + min(1, p/q)) / 2 and r = [p − q]+ / TV
    a = (1 + torch.where(q > 0, p / q, 1.0).clamp(max=1)) / 2
    rest = (p - q).clamp(min=0)
    emitted = q * a + (1 - (q * a).sum()) * rest / rest.sum()
    expected = 0.5 * float((emitted - p).abs().sum())
    assert 0.01 < expected < between
    assert variation(Relaxed(), step) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_rules_that_know_tokens_by_their_ids(seed):
    """Neighbours are neighbours whichever ids neither law has: TV = Σ min([q − p]+, pool)."""
    step, delta = laws(seed), 0.15
    step.law[[0, 9]] = step.target[[0, 9]] = 0
    q, p = step.law.double(), step.target.double()
    q, p = q / q.sum(), p / p.sum()
    near = torch.stack([(torch.arange(1, 5) * (-1) ** x + x) % 12 for x in range(12)])
    sums = p[near].cumsum(1)
    pool = torch.where((sums <= delta) & (p > 0)[:, None], sums, 0.0).amax(1)
    expected = float(torch.minimum((q - p).clamp(min=0), pool).sum())
    assert expected > 1e-3
    assert variation(LanternRule(near, delta), step) == pytest.approx(expected, abs=1e-6)


class FirstNumber:
    """A judge whose verdicts are the first numbers of the states."""

    threshold = 0.5

    def __call__(self, hidden):
        return hidden[..., 0]


@pytest.mark.parametrize("seed", range(4))
def test_a_judge_is_asked_of_every_token_that_may_be_drafted(seed):
    """TV = Σ [q − p]+ over the tokens that it takes, whichever of them was drafted."""
    step = laws(seed)
    step.states = torch.rand(12, 2, generator=torch.Generator().manual_seed(seed + 9))
    q, p = step.law.double(), step.target.double()
    taken = (step.states[:, 0] > 0.5) & (p >= 0.02)
    expected = float((q - p).clamp(min=0)[taken].sum())
    assert variation(JudgeRule(FirstNumber(), 0.5, 0.02), step) == pytest.approx(expected, abs=1e-6)
    assert variation(JudgeRule(FirstNumber(), 1.0, 0.02), step) < 1e-9
    assert variation(JudgeRule(None, floor=0.02), step) >= expected


def test_states_behind_tokens_of_real_rounds(tiny_folder, monkeypatch):
    """Of the drafted token it is the state that the rule was shown; a picture is as without."""
    pipe = ImagePipeline.from_pretrained(tiny_folder, dtype=torch.float64)
    pipe.set_progress_bar_config(disable=True)
    suite = load_suite("speed")
    job = Job(suite, load_prompts(suite, None), {}, suite.call)
    seen = []
    noted, judged = WatchedRule._note, WatchedRule.verify

    def note(self, draft, target, node):
        noted(self, draft, target, node)
        seen.append([int(draft.tokens[0, 0]), self.steps[-1].states])

    def verify(self, draft, scores, coins):
        before = len(seen)
        verdict = judged(self, draft, scores, coins)
        for one in seen[before:]:
            one.append(None if scores.hidden is None else scores.hidden[0, 1])
        return verdict

    monkeypatch.setattr("mmspec.eval.measure.variation.EVERY", 2)
    monkeypatch.setattr(WatchedRule, "_note", note)
    monkeypatch.setattr(WatchedRule, "verify", verify)
    always = SpecConfig("judge", judge_threshold=0.01, judge_floor=0.001)
    values = tv_per_step(pipe, job, always)
    assert len(values) == len(seen) >= 2
    assert max(values) > 0.01
    for token, states, shown in seen:
        assert torch.allclose(states[token], shown, atol=1e-9)
        assert int((states.abs().sum(1) > 0).sum()) > 1
    never = SpecConfig("judge", judge_threshold=1.0)
    assert max(tv_per_step(pipe, job, never)) < 1e-9
    assert max(tv_per_step(pipe, job, SpecConfig("likely", judge_floor=0.001))) > 0.01


@pytest.mark.parametrize("least", [0.0, 0.1, 1.0])
def test_an_early_law_prunes_and_bends_nothing(least):
    step = laws(5)
    step.early = laws(6).target
    assert variation(RestrictedRule(None, least), step) < 1e-12


RULES = [
    SpecConfig("draft", rule="restricted"),
    SpecConfig("draft", rule="block"),
    SpecConfig("draft", rule="restricted", length="faser"),
    SpecConfig("tree", rule="k-seq", siblings="independent"),
    SpecConfig("tree", siblings="without-replacement"),
]


@pytest.mark.slow
def test_all_methods_of_pictures(tiny_folder):
    """Whatever their rules read is there; what is called exact is."""
    pipe = ImagePipeline.from_pretrained(tiny_folder)
    pipe.set_progress_bar_config(disable=True)
    suite = load_suite("speed")
    job = Job(suite, load_prompts(suite, None), {}, suite.call)
    measured = 0
    for config in [*map(SpecConfig, runnable_in(tiny_folder, "image")), *RULES]:
        values = tv_per_step(pipe, job, config)
        assert all(-1e-9 < value < 1 + 1e-9 for value in values), config
        if config.resolve("image").contract == "exact":
            assert max(values, default=0.0) < 1e-9, config
        measured += bool(values)
    assert measured > 30


def test_greedy_rule_on_a_law_that_is_not_greedy():
    """Put to work above temperature 0 it would ignore the law, and the figure says so."""
    step = laws(0)
    p = step.target.double()
    assert variation(GreedyRule(), step) == pytest.approx(1 - float(p.max()), abs=1e-6)


def test_laws_are_those_of_real_rounds(tiny_folder):
    pipe = ImagePipeline.from_pretrained(tiny_folder)
    pipe.set_progress_bar_config(disable=True)
    suite = load_suite("speed")
    job = Job(suite, load_prompts(suite, None), {}, suite.call)
    for method in ("draft", "sjd", "scd", "tree", "prompt-lookup"):
        values = tv_per_step(pipe, job, SpecConfig(method=method))
        assert values or method == "prompt-lookup"  # which drafts only what was there before
        assert max(values, default=0) < 1e-9
    assert tv_per_step(pipe, job, SpecConfig(method="plain")) == []
    alone = tv_per_step(pipe, job, SpecConfig(method="drafter-only"))
    assert len(alone) == 16
    assert all(0 < value < 1 for value in alone)
    assert pipe.on_engine is None
    assert summarize([]) is None
    assert summarize([0.25, 0.75]) == (0.5, 0.75)
