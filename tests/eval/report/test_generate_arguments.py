"""The page of `generate`'s arguments says what is true here."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from mmspec.eval.report import generate_arguments
from mmspec.eval.report.generate_arguments import argument_trials, arguments
from mmspec.eval.report.generate_trials import BESIDE, TRIALS
from mmspec.eval.report.table import escape
from mmspec.integrations.custom_generate import write_custom_generate

PAGE = (Path(__file__).parents[3] / "pipelines" / "generate.md").read_text()
MAY_BE_REFUSED = {  # of other ways to search, and of what our loop does not keep
    *("num_beams", "num_beam_groups", "diversity_penalty", "length_penalty", "early_stopping"),
    *("constraints", "force_words_ids", "penalty_alpha", "dola_layers", "token_healing"),
    *("custom_generate", "assistant_model", "prompt_lookup_num_tokens", "use_mtp"),
    *("assistant_early_exit", "output_attentions", "output_hidden_states", "synced_gpus"),
}
# an exported repository takes these, or refuses them in words of its own
OF_CALLS = {"custom_generate", "use_mtp", "assistant_ensemble_weight", "speculation_type"}
OF_CALLS |= {"assistant_model", "assistant_early_exit", "prompt_lookup_num_tokens"}
OF_CALLS |= {"max_matching_ngram_size"}  # beside a method, here
VERDICTS = {"honoured", "without effect", "refused", "refused by transformers"}


def test_every_argument_is_tried():
    assert not arguments() - TRIALS.keys() - BESIDE


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sjd", "prompt-lookup"])
def test_the_page_is_true_of_every_argument(method):
    stated = re.findall(r"^\| `(\w+)` \| ([\w ]+) \| (.*) \|$", PAGE, re.M)
    tried = [(one.name, one.verdict, escape(one.note)) for one in argument_trials(method)]
    assert {name for name, verdict, _ in tried if verdict == "refused"} <= MAY_BE_REFUSED
    assert {verdict for _, verdict, _ in tried} <= VERDICTS
    wrong = set(tried) ^ set(stated)
    assert not wrong, "make it anew: mmspec eval arguments --into pipelines/generate.md"


@pytest.mark.slow
def test_an_exported_repository_takes_them_as_well(tmp_path, monkeypatch):
    """`custom_generate=FOLDER` in place of `enable_speculation`: the same verdicts."""
    write_custom_generate(tmp_path)
    hub = {"custom_generate": str(tmp_path), "trust_remote_code": True}
    ways = {
        "enable_speculation": lambda model, method: vars(model).update(
            generate=partial(type(model).generate, model, speculation=method, **hub)
        ),
        "disable_speculation": lambda model: vars(model).pop("generate", None),
    }
    for name, way in ways.items():
        monkeypatch.setattr(generate_arguments, name, way)
    for name in OF_CALLS | {n for n in TRIALS if "num_assistant" in n or "confidence" in n}:
        monkeypatch.delitem(TRIALS, name)
    stated = dict(re.findall(r"^\| `(\w+)` \| ([\w ]+) \| .* \|$", PAGE, re.M))
    tried = {one.name: one.verdict for one in argument_trials()}
    assert len(tried) > 60
    assert tried == {name: stated[name] for name in tried}
