"""Drafters that are shown grey: what they read, by hand, and that the target reads on."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from mmspec import SpecConfig
from mmspec.eval.modalities.vlm.answers import Questions
from mmspec.eval.modalities.vlm.blank import GREY, GreyHead, grey, looks, target_columns
from mmspec.eval.modalities.vlm.inputs import inputs_of
from mmspec.eval.modalities.vlm.variants import VlmMethod
from mmspec.models.heads.columns import Columns, Images
from mmspec.pipelines.vlm.generate import disable_speculation, enable_speculation

CALL = {"max_new_tokens": 24, "temperature": 0.0}


def answered(pipe, method, blank, picture, question):
    variant = VlmMethod(SpecConfig(method), pipe, blank)
    return variant.prepare(Questions([picture], [question]), [0], CALL)()


@pytest.mark.parametrize("method", ["draft", "eagle", "eagle3", "specvlm"])
def test_the_answer_is_the_targets_and_a_grey_picture_is_blank_already(pipe, items, method):
    picture, question = items[0].picture(64), items[0].prompt
    plain = answered(pipe, "plain", False, picture, question).tokens
    assert answered(pipe, method, True, picture, question).tokens == plain
    nothing = grey(picture)
    own = answered(pipe, method, False, nothing, question)
    blank = answered(pipe, method, True, nothing, question)
    for name in ("calls", "drafted", "accepted", "judged_at", "accepted_at"):
        assert getattr(own.stats, name) == getattr(blank.stats, name)
    assert own.tokens == blank.tokens != plain


def test_a_draft_model_is_given_the_grey_picture_as_a_prompt_of_its_own(pipe, items):
    picture, question = items[0].picture(64), items[0].prompt
    blank = answered(pipe, "draft", True, picture, question)
    enable_speculation(pipe.model, SpecConfig("draft"), pipe.drafter)
    try:
        pipe.model.generate(
            **inputs_of(pipe, picture, question),
            drafter_inputs=inputs_of(pipe, Image.new("RGB", picture.size, GREY), question),
            max_new_tokens=24,
            do_sample=False,
        )
        by_hand = pipe.model.speculation_stats
    finally:
        disable_speculation(pipe.model)
    assert (blank.stats.calls, blank.stats.drafted) == (by_hand.calls, by_hand.drafted)
    assert blank.stats.accepted == by_hand.accepted


@torch.no_grad()
def test_a_head_reads_the_targets_columns_of_a_grey_picture(pipe, items):
    picture, question = items[0].picture(64), items[0].prompt
    network = GreyHead(pipe.heads["eagle"])
    network.embedded, network.before = target_columns(pipe, [[grey(picture)]], [question])
    # by hand: the inputs of the first layer, and what leaves the last norm, of transformers' model
    rows = {}
    for name, shown in (("true", picture), ("grey", grey(picture))):
        given = inputs_of(pipe, shown, question)
        out = pipe.model(**given, output_hidden_states=True).hidden_states
        before = torch.cat([torch.zeros_like(out[-1][:, :1]), out[-1][:, :-1]], dim=1)
        rows[name] = out[0], before
    visual = given["input_ids"] == pipe.model.config.image_token_id
    place = visual[0].nonzero()[:, 0]
    images = Images.of([[(int(place[0]), len(place))]])
    mask = torch.ones_like(visual)
    made = network.columns(Columns(*rows["true"], mask, mask, images))
    for mine, true, blank in zip((made.embedded, made.before), *rows.values(), strict=True):
        torch.testing.assert_close(mine[visual], blank[visual], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(mine[~visual], true[~visual], atol=0, rtol=0)
        assert not torch.allclose(true[visual], blank[visual], atol=1e-2)
    read = network.network.shown(Columns(*rows["true"], mask, mask, images))
    torch.testing.assert_close(read.before, made.before)


def test_the_pipeline_that_it_is_made_of_still_sees(pipe, items):
    picture, question = items[0].picture(64), items[0].prompt
    before = answered(pipe, "eagle", False, picture, question).stats
    answered(pipe, "eagle", True, picture, question)
    after = answered(pipe, "eagle", False, picture, question).stats
    assert (before.calls, before.accepted) == (after.calls, after.accepted)
    assert pipe.drafter_processor is None


def test_which_methods_look():
    looking = {"draft", "tree", "eagle", "eagle3", "vispec", "specvlm", "msd", "flash", "falcon"}
    others = {
        "plain",
        "prompt-lookup",
        "drafter-only",
        "hydra",
        "dflash",
        "token-recycling",
        "longspec",
    }
    assert {name for name in looking | others if looks(SpecConfig(name))} == looking
    assert not looks(SpecConfig("eagle", target_compressor="divprune"))
