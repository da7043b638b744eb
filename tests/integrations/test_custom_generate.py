"""`generate(custom_generate=FOLDER)` of an exported repository, against the model's own loop."""

from __future__ import annotations

import copy
import gc
import weakref

import folders
import pytest
import torch
import vlms
from texts import tokenizer
from transformers import GenerationConfig, GenerationMixin
from transformers.generation.streamers import BaseStreamer

import mmspec
from mmspec import SpecConfig
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.models.transformers.tiny import tiny

IDS = torch.tensor([[0, 0, 3, 9, 4, 9], [5, 9, 4, 5, 9, 4]])
ASKED = {"attention_mask": (IDS > 0).long(), "max_new_tokens": 14, "do_sample": False}

SMALL = tiny("llama", torch.float64, num_hidden_layers=1)
GROWING = {"num_assistant_tokens_schedule": "heuristic"}
SURE = {"assistant_confidence_threshold": 0.3}


def drafts_of(count: int) -> SpecConfig:
    return SpecConfig("draft", num_draft_tokens=count)


def growing(**settings: int) -> SpecConfig:
    return SpecConfig("draft", length="heuristic", **settings)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "speculation"
    assert main(["export", "custom-generate", str(folder)]) == 0
    return folder


class Heard(BaseStreamer):
    def __init__(self):
        self.values, self.ended = [], False

    def put(self, value):
        self.values += value.flatten().tolist()

    def end(self):
        self.ended = True


@pytest.fixture(scope="module", params=["llava", "qwen2_5_vl"])
def seeing(request):
    """A model that sees, and a draft model of its kind."""
    return vlms.made(request.param), vlms.made(request.param, seed=1)


@pytest.fixture
def draft_head(tmp_path, monkeypatch):
    folders.sized_for(vlms.VOCAB, monkeypatch)
    torch.manual_seed(0)
    folders.vispec(tmp_path / "head")
    return tmp_path / "head"


@pytest.fixture
def model():
    made = tiny("llama", torch.float64)
    made.generation_config.eos_token_id = None
    return made


@pytest.fixture
def hub(repository):
    return {"custom_generate": str(repository), "trust_remote_code": True}


def test_the_repository_is_what_the_hub_wants(repository, capsys):
    files = {str(f.relative_to(repository)) for f in repository.rglob("*") if f.is_file()}
    assert files == {
        "README.md",
        "custom_generate/generate.py",
        "custom_generate/requirements.txt",
    }
    card = (repository / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\ntags:\n  - custom_generate\n")
    assert "{" not in card.split("```")[1]
    assert main(["export", "custom-generate", str(repository)]) == 2
    assert "holds files already; name another folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "method"),
    [
        ({}, "prompt-lookup"),
        ({"speculation": "sjd[window=5]"}, "sjd"),
        ({"prompt_lookup_num_tokens": 4}, "prompt-lookup"),
        ({"assistant_model": SMALL}, "draft"),
        ({"repetition_penalty": 1.4, "no_repeat_ngram_size": 2}, "prompt-lookup"),
        ({"output_scores": True, "return_dict_in_generate": True}, "prompt-lookup"),
    ],
    ids=["nothing", "method", "lookup", "assistant", "processors", "scores"],
)
def test_batches_are_what_the_model_writes_itself(model, hub, more, method):
    """Assisted generation refuses batches."""
    ours_alone = ("speculation", "prompt_lookup_num_tokens", "assistant_model")
    theirs = model.generate(IDS, **ASKED, **{k: v for k, v in more.items() if k not in ours_alone})
    ours = model.generate(IDS, **ASKED, **more, **hub)
    if "output_scores" in more:
        assert len(ours.scores) == len(theirs.scores) == 14
        theirs, ours = theirs.sequences, ours.sequences
    assert torch.equal(theirs, ours)
    assert model.speculation_stats.method == method
    assert model.speculation_stats.emitted == [14, 14]


@pytest.mark.parametrize("pictures", [[1], [1, 2, 0]], ids=["one", "batch"])
def test_models_that_see_write_what_they_write_themselves(seeing, hub, draft_head, pictures):
    """Assisted generation refuses a batch, and most of these models."""
    model, drafter = seeing
    inputs = vlms.asked(model, pictures)
    theirs = vlms.greedy(model, inputs)
    for more, method in (
        ({}, "prompt-lookup"),
        ({"prompt_lookup_num_tokens": 4}, "prompt-lookup"),
        ({"speculation": "sjd"}, "sjd"),
        ({"assistant_model": drafter}, "draft"),
        ({"draft_head": draft_head}, None),
    ):
        out = model.generate(**inputs, max_new_tokens=vlms.NEW, do_sample=False, **more, **hub)
        assert vlms.agree(out, theirs), more
        stats = model.speculation_stats
        assert stats.emitted == [vlms.NEW] * len(pictures)
        assert method is None or stats.method == method
        assert sum(stats.drafted) > 0, more


@pytest.mark.parametrize("pictures", [[1], [1, 2]], ids=["one", "batch"])
def test_a_streamer_hears_what_transformers_lets_it_hear(seeing, hub, pictures):
    model, drafter = seeing
    inputs = vlms.asked(model, pictures)
    heard = []
    for more in ({}, hub, {**hub, "assistant_model": drafter}):
        heard.append(Heard())
        asked = {"max_new_tokens": vlms.NEW, "do_sample": False, "streamer": heard[-1]}
        model.generate(**inputs, **asked, **more)
        assert heard[-1].ended
    assert heard[0].values == heard[1].values == heard[2].values


def test_the_model_is_tried_out_once_and_stays_itself(model, hub, monkeypatch):
    calls = []
    from mmspec.pipelines.vlm import generate

    probed = generate.probed
    monkeypatch.setattr(generate, "probed", lambda model: calls.append(1) or probed(model))
    for method in ("sjd", "sjd", "prompt-lookup"):
        model.generate(IDS, **ASKED, **hub, speculation=method)
    assert len(calls) == 2
    assert "generate" not in vars(model)
    assert type(model).generate is GenerationMixin.generate


def test_a_model_lets_go_of_what_it_keeps(model, hub):
    """The draft model of a call that is over, with what was learned of it."""
    drafter = tiny("llama", torch.float64, num_hidden_layers=1)
    seen = weakref.ref(drafter)
    model.generate(IDS, **ASKED, assistant_model=drafter, **hub)
    del drafter
    mmspec.disable_speculation(model)
    gc.collect()
    assert seen() is None
    assert not hasattr(model, "speculation_stats")


def test_methods_that_route_are_given_the_tokenizer(model, hub):
    """They look where sentences end."""
    asked = {**ASKED, "assistant_model": SMALL, "speculation": "random-routing", **hub}
    with pytest.raises(InputError, match=r"give the model's tokenizer \(tokenizer=\)"):
        model.generate(IDS, **asked)
    out = model.generate(IDS, **asked, tokenizer=tokenizer())
    assert out.shape == (2, IDS.shape[1] + 14)
    assert model.speculation_stats.method == "random-routing"


def test_a_head_of_msd_is_read_as_one(model, hub, tmp_path, monkeypatch):
    """Its files look like EAGLE's."""
    folders.sized_for(model.config.vocab_size, monkeypatch)
    torch.manual_seed(0)
    folders.eagle1(tmp_path / "head")
    for method in ("msd", "eagle"):
        asked = {"draft_head": tmp_path / "head", "speculation": method, **hub}
        model.generate(IDS, **ASKED, **asked)
        assert model.speculation_stats.method == method


def test_none_means_what_it_means_to_generate(model, hub):
    """No end token, and no stored copy of what was learned."""
    model.generation_config.eos_token_id = [11, 13, 20, 30]
    asked = {**ASKED, "pad_token_id": 0}
    for more in ({}, {"eos_token_id": None}):
        theirs = model.generate(IDS, **asked, **more)
        assert torch.equal(theirs, model.generate(IDS, **asked, **more, **hub))
    copied = copy.deepcopy(model)
    assert copied._mmspec_generation.generation is None
    assert torch.equal(model.generate(IDS, **asked), copied.generate(IDS, **asked, **hub))


def test_what_is_refused_is_one_line(model, hub):
    for more, message in (
        ({"num_beams": 2}, "can't honour beam search"),
        ({"speculation": "sjd", "prompt_lookup_num_tokens": 4}, "both say how to draft"),
        ({"speculation": "drafty"}, "drafty"),
        ({"assistant_tokenizer": tokenizer()}, "needs tokenizer= beside it"),
        ({"assistant_tokenizer": "one"}, "assistant_tokenizer must be a PreTrained.*, not 'one'"),
        ({"tokenizer": "one"}, "tokenizer must be a PreTrained.*, not 'one'"),
        ({"assistant_model": "one"}, "assistant_model must be a PreTrained.*, not 'one'"),
        ({"draft_head": 3}, "draft_head must be text, a Path or None, not 3"),
        ({"speculation": "draft"}, "needs a draft model"),
        ({"assistant_model": SMALL, "prompt_lookup_num_tokens": 4}, "each say how to draft"),
        ({"assistant_model": SMALL, "num_assistant_tokens_schedule": "fast"}, "known: constant"),
        ({"assistant_model": SMALL, **SURE, **GROWING}, "both end drafts; give one"),
        ({"assistant_model": SMALL, "assistant_ensemble_weight": 0.5}, "takes no assistant_ens"),
        ({"assistant_model": SMALL, "speculation_type": "dflash"}, "give draft_head="),
        ({"use_mtp": True}, "give draft_head= and speculation='mtp'"),
    ):
        with pytest.raises(InputError, match=message) as error:
            model.generate(IDS, **ASKED, **more, **hub)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("asked", "config"),
    [
        ({"assistant_model": SMALL}, SpecConfig("draft")),
        ({"assistant_model": SMALL, "num_assistant_tokens": 2}, drafts_of(2)),
        ({"assistant_model": SMALL, "assistant_lookbehind": 5}, SpecConfig("draft")),
        ({"assistant_model": SMALL, **GROWING}, growing(max_draft_tokens=16)),
        (
            {"assistant_model": SMALL, **GROWING, "num_assistant_tokens": 20},
            growing(num_draft_tokens=20, max_draft_tokens=20),
        ),
        (
            {"assistant_model": SMALL, **SURE, "num_assistant_tokens": 5},
            SpecConfig("draft", length="confidence", confidence=0.3, max_draft_tokens=5),
        ),
        ({"assistant_early_exit": 2}, SpecConfig("early-exit", exit_layer=2)),
        (
            {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 1},
            SpecConfig("prompt-lookup", num_draft_tokens=3, max_ngram=1),
        ),
        ({"max_matching_ngram_size": 2}, SpecConfig("prompt-lookup", max_ngram=2)),
        (
            {"generation_config": GenerationConfig(prompt_lookup_num_tokens=3)},
            SpecConfig("prompt-lookup", num_draft_tokens=3),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_arguments_of_assisted_generation(model, hub, asked, config):
    ours = model.generate(IDS, **ASKED, **asked, **hub)
    assert torch.equal(ours, model.generate(IDS, **ASKED))
    assert model._mmspec_generation.generation.config.config == config
    if "generation_config" in asked:  # the user's own stays as it was
        assert asked["generation_config"].prompt_lookup_num_tokens == 3


def test_a_draft_model_s_own_config_says_how_long_drafts_are(model, hub):
    """As in transformers; what the call says goes before it."""
    drafter = tiny("llama", torch.float64)  # the model's own weights: every draft stands
    drafter.generation_config.num_assistant_tokens = 6
    for more, count, calls in (({}, 6, 2), ({"num_assistant_tokens": 3}, 3, 4)):
        model.generate(IDS, **ASKED, **more, assistant_model=drafter, **hub)
        assert model._mmspec_generation.generation.config.config == drafts_of(count)
        assert model.speculation_stats.calls == [calls, calls]
    model.generate(IDS, **ASKED, assistant_model=drafter, speculation="pearl", **hub)
    assert model.speculation_stats.method == "pearl"


def test_code_runs_only_where_it_is_trusted(model, hub):
    with pytest.raises(ValueError, match="trust_remote_code"):
        model.generate(IDS, **ASKED, **(hub | {"trust_remote_code": False}))
