"""A judge beside a transformers model: the texts that it lets through, against a slow loop."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
import vlms
from sizes import SMALL
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec import SpecConfig, disable_speculation, enable_speculation, load_judge
from mmspec.errors import InputError
from mmspec.models.heads.fit import TargetFit
from mmspec.models.heads.judge import JudgeHead

VOCAB, NEW, DRAFTED = 23, 20, 3
PROMPT = [3, 1, 4, 1, 5, 9, 2]


def made(seed: int, layers: int = 2) -> LlamaForCausalLM:
    sizes = SMALL | dict(vocab_size=VOCAB, num_hidden_layers=layers, num_key_value_heads=2)
    ends = dict(bos_token_id=1, eos_token_id=None, pad_token_id=0)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**sizes, **ends, tie_word_embeddings=False)).double()
        for weight in model.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.25)
    return model.eval()


@pytest.fixture(scope="module")
def models():
    return made(0), made(1, 1)


def judge_of(model, bias: float = 0.0, seed: int = 0) -> JudgeHead:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        judge = JudgeHead(model.config.hidden_size, 0.5, asdict(TargetFit.of(model))).double()
        torch.nn.init.normal_(judge.score.weight, std=1.0)
        torch.nn.init.constant_(judge.score.bias, bias)
    return judge


def texts(models, config, judge, prompts=(PROMPT,), **how) -> list[list[int]]:
    target, drafter = models
    enable_speculation(target, config, drafter, judge=judge)
    try:
        ids = torch.tensor(list(prompts))
        out = target.generate(ids, max_new_tokens=NEW, **{"do_sample": False, **how})
        assert target.speculation_stats.contract == "lossy"
        assert target.speculation_stats.fault is None
    finally:
        disable_speculation(target)
    return out[:, ids.shape[1] :].tolist()


@torch.inference_mode()
def slowly(models, judge, threshold: float, floor: float) -> tuple[list[int], int]:
    """Greedy text by whole forward calls, and how many tokens only the judge let through."""
    target, drafter = models
    text, judged = [*PROMPT], 0

    def laws(model, ids):
        out = model(torch.tensor([ids]), output_hidden_states=True)
        return out.logits[0].softmax(-1), out.hidden_states[-1][0]

    while len(text) < len(PROMPT) + NEW:
        drafted: list[int] = []
        for _ in range(min(DRAFTED, len(PROMPT) + NEW - len(text) - 1)):
            drafted.append(int(laws(drafter, text + drafted)[0][-1].argmax()))
        p, states = laws(target, text + drafted)
        for token in drafted:
            law = p[len(text) - 1]
            if token != int(law.argmax()):
                sure = judge is None or float(judge(states[len(text)])) > threshold
                if not sure or float(law[token]) < floor:
                    break
                judged += 1
            text.append(token)
        text.append(int(p[len(text) - 1].argmax()))
    return text[len(PROMPT) :], judged


@pytest.mark.parametrize("floor", [0.0, 0.03, 0.2])
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8])
def test_greedy_texts_are_those_of_a_slow_loop(models, threshold, floor):
    judge = judge_of(models[0])
    config = SpecConfig(
        "judge", num_draft_tokens=DRAFTED, judge_threshold=threshold, judge_floor=floor
    )
    text, judged = slowly(models, judge, threshold, floor)
    assert texts(models, config, judge) == [text]
    assert judged > 0 or floor == 0.2


def test_likely_needs_no_judge(models):
    config = SpecConfig("likely", num_draft_tokens=DRAFTED, judge_floor=0.03)
    text, judged = slowly(models, None, 0.0, 0.03)
    assert judged > 0
    assert texts(models, config, None) == [text]


def test_a_judge_that_takes_nothing_changes_nothing(models):
    target = models[0]
    plain = target.generate(torch.tensor([PROMPT]), max_new_tokens=NEW, do_sample=False)
    assert texts(models, "judge", judge_of(target, -1e3)) == [plain[0, len(PROMPT) :].tolist()]


def test_what_processors_forbid_never_stands(models):
    """However gladly the judge takes it, greedy or sampled."""
    judge, many = judge_of(models[0], 1e3), [[*PROMPT, n] for n in range(1, 5)]
    config = SpecConfig("judge", judge_floor=0.0)
    for how in ({}, {"do_sample": True, "top_k": 5}):
        free = texts(models, config, judge, many, **how)
        often = max(range(VOCAB), key=lambda token: sum(row.count(token) for row in free))
        said = texts(models, config, judge, many, suppress_tokens=[often], **how)
        assert not any(often in row for row in said)


@pytest.mark.parametrize("method", ["early-exit[exit_layer=1]", "layer-skip", "specqd"])
def test_a_soft_rule_judges_the_drafts_that_others_judge(models, method):
    """At temperature 0 the floor asks a law that is open, and drafts stay the likeliest tokens."""
    target = models[0] if method != "specqd" else made(0).float()
    ids, told = torch.tensor([PROMPT]), []
    for config in (
        method,
        f"{method}[rule=judge,judge_threshold=0,judge_floor=1]".replace("][", ","),
    ):
        enable_speculation(target, config)
        out = target.generate(ids, max_new_tokens=NEW, do_sample=False)
        stats = target.speculation_stats
        told.append((out.tolist(), stats.calls, stats.drafted, stats.accepted))
        disable_speculation(target)
    assert told[0] == told[1]


def test_a_head_is_judged_as_well():
    """Whoever drafts: what the rule needs is asked for."""
    needs = SpecConfig("vispec", rule="judge").resolve("vlm").needs
    assert set(needs) == {"heads/vispec", "judge"}
    assert SpecConfig("vispec", rule="judge", judge_threshold=0.0).resolve("vlm").needs == (
        "heads/vispec",
    )


def test_it_is_saved_and_known_again(models, tmp_path):
    judge = judge_of(models[0])
    judge.save_pretrained(tmp_path / "judge")
    found = load_judge(tmp_path / "judge", torch.float64)
    assert (tmp_path / "judge/diffusion_pytorch_model.safetensors").is_file()
    assert found.threshold == 0.5
    hidden = torch.randn(2, 3, models[0].config.hidden_size, dtype=torch.float64)
    assert torch.equal(found(hidden), judge(hidden))
    assert found(hidden).shape == (2, 3)
    config = SpecConfig("judge", num_draft_tokens=DRAFTED)
    assert texts(models, config, found) == texts(models, config, judge)


def test_what_is_refused(models):
    target, drafter = models
    judge = judge_of(target)
    for method, given, said in (
        ("judge", judge_of(made(5)), "the judge is for a target with other weights"),
        ("judge", JudgeHead(7), "the judge is for a target with hidden_size 7, and this one has"),
        ("judge", None, "needs a judge and there is none; put one into judge of the folder"),
        ("draft", judge, "method 'draft' asks no judge; leave judge out"),
        ("likely", judge, "method 'likely' asks no judge; leave judge out"),
        ("judge[drafter=ahead]", judge, "guesses a token that the target has not read"),
        ("judge[judge_floor=2]", judge, "judge_floor must be from 0 to 1, not 2"),
    ):
        with pytest.raises(InputError, match=said.replace("[", r"\[")) as error:
            enable_speculation(target, method, drafter, judge=given)
        assert "\n" not in str(error.value)
    seeing = vlms.made("llava")
    with pytest.raises(InputError, match="make it: mmspec train vlm-judge --pipeline FOLDER"):
        enable_speculation(seeing, "judge", vlms.made("llava"))
