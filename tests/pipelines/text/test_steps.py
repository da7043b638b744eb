"""Steps of text that are routed, through the pipeline and `generate`: against a slow loop."""

from __future__ import annotations

import re

import pytest
import texts
import torch
from transformers import TextStreamer

from mmspec import SpecConfig, TextPipeline
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.models import step_ends
from mmspec.models.heads.step_router import StepRouter
from mmspec.models.step_ends import StepEnds
from mmspec.pipelines.vlm.generate import disable_speculation, enable_speculation

PROMPTS = ["the cat saw", "the dog and the dog saw the cat. the dog and", "x"]
NEW, STEP = 24, 6


def router_of(seed: int) -> StepRouter:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = StepRouter(texts.WIDTH, width=8).double().eval()
        torch.nn.init.normal_(made.score.weight, std=2.0)
    return made


@pytest.fixture(scope="module")
def words():
    return texts.tokenizer()


@pytest.fixture(scope="module")
def pipe(words):
    parts = dict(drafter=texts.model(words, seed=1), advantage_router=router_of(0))
    return TextPipeline(texts.model(words), words, router=router_of(1), **parts)


@pytest.fixture(autouse=True)
def plainly(pipe, monkeypatch):
    # what such models say has no sentences: steps end where they often come by
    monkeypatch.setitem(step_ends.ENDS, "sentence", re.compile(r"e$|[^a-z ]{2}$"))
    yield
    pipe.reward = None
    pipe.disable_speculation()


def said(pipe, method: str, prompts=PROMPTS, **how):
    options = {name: how.pop(name) for name in [*how] if name in ("advantage_tau", "step")}
    if method in ("arbitrage", "reward-guided", "oracle-routing", "random-routing"):
        options["step_tokens"] = STEP
    pipe.enable_speculation(SpecConfig(method, **options))
    return pipe(prompts, **{"max_new_tokens": NEW, **how})


@torch.inference_mode()
def slowly(pipe, prompt: str, tau: float) -> tuple[list[int], list[bool]]:
    """Greedy text by whole forward calls, and which steps are the drafter's."""
    turns = [{"role": "user", "content": prompt}]
    words, eos = pipe.tokenizer, pipe.tokenizer.eos_token_id
    text = words.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    ends, start, stood = StepEnds(words, eos=(eos,)), len(text), []

    def step(model) -> tuple[list[int], torch.Tensor]:
        tokens: list[int] = []
        states = []
        while len(tokens) < min(STEP, NEW - (len(text) - start)):
            out = model(torch.tensor([[*text, *tokens]]), output_hidden_states=True)
            tokens.append(int(out.logits[0, -1].argmax()))
            states.append(out.hidden_states[-1][0, -1])
            if ends(torch.tensor([tokens])):
                break
        return tokens, torch.stack(states)[None]

    while len(text) - start < NEW and (len(text) == start or text[-1] != eos):
        drafted, states = step(pipe.drafter)
        guess = float(pipe.advantage_router(states, torch.tensor([len(drafted)])))
        stood.append(guess <= tau)
        text = [*text, *(drafted if stood[-1] else step(pipe.model)[0])]
    return text[start:], stood


def middle(pipe) -> float:
    """A threshold on both sides of which there are steps."""
    taus = [n / 10 for n in range(1, 10)]
    shares = [[s for p in PROMPTS for s in slowly(pipe, p, tau)[1]] for tau in taus]
    mixed = [tau for tau, stood in zip(taus, shares, strict=True) if 0 < sum(stood) < len(stood)]
    return mixed[len(mixed) // 2]


def test_greedy_texts_are_those_of_a_slow_loop(pipe):
    """In a batch of prompts of several lengths, and with as many rows as prompts or fewer."""
    tau = middle(pipe)
    wanted = [slowly(pipe, prompt, tau) for prompt in PROMPTS]
    for size in (None, 2, 1):
        out = said(pipe, "arbitrage", advantage_tau=tau, batch_size=size)
        assert out.tokens == [text for text, _ in wanted]
        assert (out.stats.contract, out.stats.fault) == ("lossy", None)
        falls = [sum(not stands for stands in stood) for _, stood in wanted]
        assert [calls > 0 for calls in out.stats.calls] == [fell > 0 for fell in falls]
        own = [e - a for e, a in zip(out.stats.emitted, out.stats.accepted, strict=True)]
        assert out.stats.calls == own


@pytest.mark.parametrize("step", ["sentence", "line"])
def test_at_its_ends_it_is_either_models_own_text(pipe, step):
    """With τ = 0 every step is the target's, with τ = 1 the drafter's."""
    plain, alone = said(pipe, "plain").tokens, said(pipe, "drafter-only").tokens
    assert plain != alone
    assert said(pipe, "arbitrage", advantage_tau=0.0, step=step).tokens == plain
    out = said(pipe, "arbitrage", advantage_tau=1.0, step=step)
    assert out.tokens == alone
    assert out.stats.calls == [0] * 3


@pytest.mark.parametrize("method", ["random-routing", "reward-guided", "arbitrage"])
def test_sampled_rows_do_not_depend_on_their_neighbours(pipe, method):
    """Neither their texts nor what is counted of them."""
    how = dict(advantage_tau=middle(pipe)) if method == "arbitrage" else {}

    def drawn(rows, **more):
        seeds = [torch.Generator().manual_seed(n) for n in rows]
        told = dict(temperature=1.0, generator=seeds, **how, **more)
        out = said(pipe, method, [PROMPTS[n] for n in rows], **told)
        names = ("calls", "drafted", "accepted", "emitted", "target_tokens")
        counts = [getattr(out.stats, name) for name in names]
        return list(zip(out.tokens, *counts, strict=True))

    both = drawn([0, 1, 2])
    assert [drawn([n])[0] for n in range(3)] == both == drawn([0, 1, 2], batch_size=2)


def test_stop_strings_ends_and_streams(pipe, words, capsys):
    """As plainly: with τ = 0 the texts end where plain's do, wherever in a step that is."""
    whole = said(pipe, "plain", PROMPTS[0]).tokens[0]
    string = words.decode(whole[3:5])
    for stop in (string, [words.decode([whole[7]]), "nowhere"]):
        plain = said(pipe, "plain", PROMPTS[0], stop=stop)
        assert len(plain.tokens[0]) < NEW
        found = said(pipe, "arbitrage", PROMPTS[0], stop=stop, advantage_tau=0.0)
        assert found.tokens == plain.tokens
        assert found.stats.emitted == plain.stats.emitted
    streamer = TextStreamer(words, skip_prompt=True)
    told = said(pipe, "arbitrage", PROMPTS[0], advantage_tau=0.5, streamer=streamer).text[0]
    assert capsys.readouterr().out.strip() == told.strip()
    model, ids = pipe.model, torch.tensor([whole[:6]])
    ends = [whole[9], whole[11]]
    plain = model.generate(ids, max_new_tokens=NEW, do_sample=False, eos_token_id=ends)
    beside = dict(tokenizer=words, router=pipe.advantage_router)
    enable_speculation(model, "arbitrage[advantage_tau=0,step_tokens=5]", pipe.drafter, **beside)
    try:
        found = model.generate(ids, max_new_tokens=NEW, do_sample=False, eos_token_id=ends)
        assert torch.equal(found, plain)
        for name in ("output_scores", "output_logits"):
            with pytest.raises(InputError, match="where a draft model writes steps"):
                model.generate(ids, max_new_tokens=2, return_dict_in_generate=True, **{name: True})
        with pytest.raises(InputError, match="logits processors that read the text"):
            model.generate(ids, max_new_tokens=2, repetition_penalty=1.2)
    finally:
        disable_speculation(model)


def test_rewards_see_steps_in_their_texts(pipe):
    """A reward takes the router's place; an oracle asks it about both models' steps."""
    seen = []

    def reward(steps):
        seen.extend(steps)
        return [len(step.text) % 7 for step in steps]

    pipe.reward = reward
    out = said(pipe, "oracle-routing")
    assert {step.sample for step in seen} == {0, 1, 2}
    for step in seen:
        assert PROMPTS[step.sample] in step.prompt
        assert pipe.tokenizer.decode(out.tokens[step.sample]).startswith(step.before)
    assert 0 < sum(out.stats.accepted) < sum(out.stats.drafted)
    # it pays for what stood, too
    assert sum(out.stats.calls) > sum(out.stats.emitted) - sum(out.stats.accepted)
    pipe.enable_speculation("reward-guided[reward_tau=1e9]")
    assert pipe(PROMPTS, max_new_tokens=NEW).tokens == said(pipe, "plain").tokens
    pipe.enable_speculation("reward-guided[reward_tau=-1]")
    assert pipe(PROMPTS, max_new_tokens=NEW).tokens == said(pipe, "drafter-only").tokens


def test_a_reward_that_fails_asks_the_target(pipe, caplog):
    def broken(steps):
        raise RuntimeError("no weights")

    plain = said(pipe, "plain").tokens
    for reward in (broken, lambda steps: [float("nan")] * len(steps), lambda steps: [1.0] * 99):
        pipe.reward = reward
        pipe.enable_speculation("reward-guided[reward_tau=-1e9]")
        assert pipe(PROMPTS, max_new_tokens=NEW).tokens == plain
    assert "the reward failed (no weights); the target writes" in caplog.text


def test_routers_are_saved_with_their_pipeline(pipe, tmp_path, capsys):
    pipe.save_pretrained(tmp_path / "saved")
    again = TextPipeline.from_pretrained(tmp_path / "saved", dtype=torch.float64)
    for name in ("router", "advantage_router"):
        mine, theirs = getattr(pipe, name).state_dict(), getattr(again, name).state_dict()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    for method in ("arbitrage", "reward-guided"):
        assert said(again, method).tokens == said(pipe, method).tokens
    command = ["chat", "hello", "--model", str(tmp_path / "saved"), "--max-new-tokens", "6"]
    assert main([*command, "--method", "arbitrage", "--advantage-tau", "0.4"]) == 0
    assert main([*command, "--method", "oracle-routing"]) == 2
    assert "asks a reward of steps" in capsys.readouterr().err


def test_what_is_refused(pipe, words):
    model, drafter, router = pipe.model, pipe.drafter, router_of(0)
    named = dict(tokenizer=words)
    for method, given, word in (
        ("arbitrage", dict(router=router), "give the model's tokenizer"),
        ("arbitrage", named, "there is none; put one into advantage_router of the folder"),
        ("reward-guided", named, "needs the component 'router' and there is none; put one into"),
        ("oracle-routing", named, "asks a reward of steps, and there is none"),
        ("random-routing", named | dict(router=router), "asks no router; leave router out"),
        ("draft", dict(router=router), "routes nothing; leave router, reward out"),
        ("arbitrage", named | dict(router=router_of(0).train()), "is in training mode"),
        ("arbitrage", named | dict(router=StepRouter(7).eval()), "hidden_size 7, and this one"),
        ("arbitrage", named | dict(router=router, reward=len), "its router alone; leave reward"),
        ("draft[rule=step-random]", {}, "judges drafts as a whole, and drafter 'model' makes"),
    ):
        with pytest.raises(InputError, match=word.replace("[", r"\[")) as error:
            enable_speculation(model, method, drafter, **given)
        assert "\n" not in str(error.value)
    pipe.listener = Silent()
    try:
        with pytest.raises(InputError, match="hears the target's own answers"):
            said(pipe, "random-routing")
    finally:
        pipe.listener = None


class Silent:
    """A listener that hears nothing."""

    def begin(self, prompt, rows):
        raise AssertionError

    round = end = begin
