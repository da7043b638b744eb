"""A head learns from the answers that it drafts for, at the tokens where its drafts fell."""

from __future__ import annotations

import copy

import folders
import pytest
import texts
import torch
import vlms

import mmspec
from mmspec import OnlineLearner
from mmspec.draft.guarded import GuardedDrafter
from mmspec.errors import InputError
from mmspec.models.heads.formats.new import MAKERS
from mmspec.models.heads.formats.new_head import NewHead
from mmspec.models.transformers.prompted import prompted
from mmspec.train.heads import head_losses
from mmspec.train.heads.teacher import Teacher

MROPE = {"type": "mrope", "mrope_section": [1, 1, 0]}
LIMIT = 24
PROMPTS = ["the cat saw the dog", "a dog", "the cat and the dog and a cat"]


def text_pipe(method: str = "eagle", seed: int = 0):
    words = texts.tokenizer()
    model = texts.model(words).float()
    torch.manual_seed(seed)
    head = MAKERS[method](NewHead(model)).eval()
    with torch.no_grad():
        for weight in head.parameters():  # so that there is something to learn
            weight.add_(torch.randn_like(weight), alpha=0.05)
    pipe = mmspec.TextPipeline(model, words, heads={method: head})
    pipe.enable_speculation(f"{method}[num_draft_tokens=3]" if method != "dflash" else method)
    return pipe


def asked(pipe, **call):
    return pipe(PROMPTS, max_new_tokens=LIMIT, **call)


@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa", "hydra"])
def test_drafts_that_fell_stand_more_often(method):
    pipe = text_pipe(method)
    pipe.listener = learner = OnlineLearner(pipe.model, pipe.heads[method], rate=3e-3)
    for seed in range(3):
        asked(pipe, temperature=1.0, generator=torch.Generator().manual_seed(seed))
    first = learner.learn(1, batch_size=9)
    learner.learn(20, batch_size=3)
    assert learner.learn(1, batch_size=9)["acceptance_1"] > first["acceptance_1"] + 0.04


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_what_it_learns_stands_and_the_text_stays(method):
    pipe = text_pipe(method)
    plain = copy.deepcopy(pipe)
    plain.disable_speculation()
    truth = asked(plain).tokens
    pipe.listener = learner = OnlineLearner(pipe.model, pipe.heads[method], rate=1e-2)
    before = asked(pipe)
    assert learner.heard == 3
    for _ in range(4):
        learner.learn(steps=6)
        after = asked(pipe)
    assert before.tokens == after.tokens == truth
    frozen = asked(text_pipe(method)).stats.mean_acceptance_length
    assert before.stats.mean_acceptance_length == frozen
    assert after.stats.mean_acceptance_length > frozen + 0.25
    assert all(weight.grad is None for weight in pipe.model.parameters())


def test_it_hears_where_drafts_fell(monkeypatch):
    """By what was drafted and what came out: the first token of a draft that is another there.

    What is drawn in the place of a fallen token is never that token.
    """
    pipe = text_pipe()
    pipe.listener = learner = OnlineLearner(pipe.model, pipe.heads["eagle"])
    drafts, propose = [], GuardedDrafter.propose

    def noted(self, context, budget, coins):
        draft = propose(self, context, budget, coins)
        counts = draft.lengths.tolist()
        rows = [t[:n] for t, n in zip(draft.tokens.tolist(), counts, strict=True)]
        drafts.append(list(zip(context.base, rows, strict=True)))
        return draft

    monkeypatch.setattr(GuardedDrafter, "propose", noted)
    said = asked(pipe, temperature=1.0, generator=torch.Generator().manual_seed(3)).tokens
    (answers,) = learner._waiting
    for row, fallen in enumerate(answers.fallen):
        expected = []
        for base, tokens in (drafted[row] for drafted in drafts):
            pairs = zip(tokens, said[row][base:], strict=False)
            differs = [base + n for n, (drafted, out) in enumerate(pairs) if drafted != out]
            expected += differs[:1]
        assert fallen == expected
        assert fallen
    learner.learn(1)
    for row, (lesson, places) in enumerate(learner._lessons):
        behind = lesson.tokens[0, 1:][places[0, :-1]].tolist()
        assert behind == [said[row][n] for n in answers.fallen[row]]


@pytest.mark.parametrize("family", ["llama", "llava", "qwen2_5_vl", "qwen3_vl"])
def test_what_the_target_reads_is_what_it_saw_as_it_answered(family):
    if family == "llama":
        words = texts.tokenizer()
        model = texts.model(words).float()
        ids = torch.randint(1, 30, (3, 9), generator=torch.Generator().manual_seed(1))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        inputs["attention_mask"][1, :4] = 0
    else:
        model = vlms.made(family)
        inputs = vlms.asked(model, [1, 2, 0])
    decoder = prompted(model)
    ids, mask = inputs.pop("input_ids"), inputs.pop("attention_mask").bool()
    teacher = Teacher(model, 8, (1, 2))
    with torch.inference_mode():
        prompt = decoder.prompt(ids, mask, 8, **inputs)
    images = getattr(prompt, "images", [[]] * 3)
    written = teacher.lessons(prompt, images, [0, 1, 2], 1)
    lengths = torch.tensor([int(one.answer.sum()) for one in written])
    tokens = torch.zeros(3, int(lengths.max()), dtype=torch.long)
    for row, one in enumerate(written):
        tokens[row, : lengths[row]] = one.tokens[0][one.answer[0]]
    for told, read in zip(written, teacher.read(prompt, images, tokens, lengths), strict=True):
        assert torch.equal(told.tokens[told.mask], read.tokens[read.mask])
        assert torch.equal(told.answer, read.answer)
        real = told.mask & ~(told.answer & (told.answer.flip(1).cumsum(1).flip(1) == 1))
        for name in ("embedded", "features", "states"):  # all but behind the last token
            one, other = getattr(told, name)[real], getattr(read, name)[real]
            assert torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max()))


def test_a_step_is_the_loss_at_the_fallen_places():
    """Beside the loss by hand: cross-entropy at those places alone."""
    pipe = text_pipe()
    pipe.listener = learner = OnlineLearner(pipe.model, pipe.heads["eagle"])
    asked(pipe)
    learner._read()
    lesson, fallen = learner._lessons[0]
    batch = learner.teacher.on_device(lesson)
    loss, _ = head_losses.head_loss(
        learner._own, batch, laws=True, objective=learner.objective, only=fallen
    )
    (pair,) = head_losses.leveled(learner._own, batch, 1)
    hidden, places = pair
    expected = []
    for state, place in zip(hidden, places.tolist(), strict=True):
        if fallen.flatten()[place]:
            law = batch.output(batch.features.flatten(0, 1)[place]).softmax(-1)
            expected.append(-(law * batch.output(state).log_softmax(-1)).sum())
    assert len(expected) == int(fallen.sum())
    assert torch.allclose(loss, torch.stack(expected).mean(), rtol=1e-4)


def test_enabled_models_and_bad_input():
    model = vlms.made("qwen2_5_vl")
    torch.manual_seed(0)
    head = MAKERS["eagle"](NewHead(model)).eval()
    learner = OnlineLearner(model, head, rate=1e-2, kept=2)
    with pytest.raises(InputError, match="there is no answer yet to learn from"):
        learner.learn()
    with pytest.raises(InputError, match=r"all weights of the .* are frozen"):
        OnlineLearner(model, copy.deepcopy(head).requires_grad_(False))
    mmspec.enable_speculation(model, head=head, listener=learner)
    inputs = vlms.asked(model, [1, 2, 0])
    call = dict(max_new_tokens=12, do_sample=False)
    first = model.generate(**inputs, **call)
    assert "acceptance_1" in learner.learn(2)
    assert len(learner._lessons) == 2  # the latest ones
    assert torch.equal(model.generate(**inputs, **call), first)
    pipe = text_pipe()
    heard = OnlineLearner(pipe.model, pipe.heads["eagle"])
    mmspec.enable_speculation(pipe.model, head=pipe.heads["eagle"], listener=heard)
    with pytest.raises(InputError, match="nothing learns from answers under guidance"):
        pipe.model.generate(torch.tensor([[5, 9, 12]]), guidance_scale=2.0, **call)
    mmspec.enable_speculation(
        pipe.model, "eagle[target_weights=float16]", head=pipe.heads["eagle"], listener=heard
    )
    with pytest.raises(InputError, match="and here another network gives them"):
        pipe.model.generate(torch.tensor([[5, 9, 12]]), **call)
    with pytest.raises(InputError, match="'Linear' is no kind of head that can be trained"):
        OnlineLearner(model, torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folders.eagle1(folder, embeds=True), "embeddings of its own"),
        (lambda folder: folders.eagle3(folder, rope_scaling=MROPE), "three axes"),
        (lambda folder: folders.prefix_hydra(folder, sized=True), "prefix layer"),
    ],
    ids=["embeddings", "mrope", "hydra-prefix"],
)
def test_heads_whose_lessons_would_be_others_are_refused(tmp_path, make, message):
    torch.manual_seed(0)
    head = mmspec.load_head(make(tmp_path / "head")[0])
    with pytest.raises(InputError, match=message):
        OnlineLearner(texts.model(texts.tokenizer()), head)


@pytest.mark.parametrize("met", [False, True], ids=["learner first", "speculation first"])
@pytest.mark.parametrize("method", ["eagle3", "dflash"])
def test_a_head_that_takes_the_targets_rows_learns(tmp_path, method, met):
    """These stay the target's."""
    model = texts.model(texts.tokenizer()).float()
    size = len(model.get_output_embeddings().weight)
    new = NewHead(model, lambda: torch.ones(size))
    MAKERS[method](new, vocabulary=20, output="target").save_pretrained(tmp_path / "head")
    head = mmspec.load_head(tmp_path / "head")
    if met:
        mmspec.enable_speculation(model, head=head)
    learner = OnlineLearner(model, head, rate=1e-3)
    mmspec.enable_speculation(model, head=head, listener=learner)
    before = {name: weight.clone() for name, weight in head.named_parameters()}
    for _ in range(2):
        model.generate(torch.tensor([[5, 9, 12]]), max_new_tokens=12, do_sample=False)
    learner.learn(2)
    rows = model.get_output_embeddings().weight[head.vocabulary.ids]
    assert torch.equal(head.network.lm_head.weight, rows)
    assert any(not torch.equal(weight, before[name]) for name, weight in head.named_parameters())
