"""A rule of the user's own, "module:Class", stands where a rule of the library does."""

from __future__ import annotations

import pytest
import torch

from mmspec import ImagePipeline, SpecConfig
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.methods import parse_method

RULES = """
from mmspec.engine.accept.token import TokenRule

class Twin(TokenRule):
    contract = "bounded"

class Needy(Twin):
    def __init__(self, knob):
        self.knob = knob

class Vague(TokenRule):
    contract = "fast"

class Idle:
    contract = "exact"
"""


@pytest.fixture
def own_rules(tmp_path, monkeypatch):
    (tmp_path / "own_rules.py").write_text(RULES)
    (tmp_path / "broken_rules.py").write_text("class Half(:")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def pipe(tiny_folder):
    pipe = ImagePipeline.from_pretrained(tiny_folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def drawn(pipe, config):
    pipe.enable_speculation(config)
    generator = torch.Generator().manual_seed(0)
    return pipe("a red circle", generator=generator, output_type="tokens")


def test_it_judges_as_a_rule_of_the_library_does(pipe, own_rules):
    ours = drawn(pipe, SpecConfig("draft"))
    own = drawn(pipe, SpecConfig("draft", rule="own_rules:Twin"))
    assert torch.equal(own.images, ours.images)
    assert own.stats.accepted == ours.stats.accepted
    assert (own.stats.contract, ours.stats.contract) == ("bounded", "exact")


def test_the_command_line_names_it():
    name, config = parse_method("draft[rule=own_rules:Twin,num_draft_tokens=2]")
    assert name == "draft[rule=own_rules:Twin,num_draft_tokens=2]"
    assert config == SpecConfig("draft", rule="own_rules:Twin", num_draft_tokens=2)


def test_a_rule_of_chains_refuses_trees_in_one_line(tiny_folder, own_rules, tmp_path, capsys):
    words = ["generate", "a red circle", "--model", str(tiny_folder), "-o", str(tmp_path / "out")]
    assert main([*words, "--method", "tree", "--rule", "own_rules:Twin"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "judges chains; this draft is a tree" in line


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("no_such_rules:Twin", "can't import rule .*PYTHONPATH"),
        ("own_rules:Twine", "can't import rule .*has no attribute"),
        ("broken_rules:Half", "can't import rule .*invalid syntax"),
        ("own_rules:Needy", "must be a class without arguments"),
        ("own_rules:Vague", "needs verify.* and a contract"),
        ("own_rules:Idle", "needs verify.* and a contract"),
    ],
)
def test_what_is_no_rule(pipe, own_rules, rule, said):
    with pytest.raises(InputError, match=said):
        drawn(pipe, SpecConfig("draft", rule=rule))


@pytest.mark.parametrize("rule", ["toke", "token:", ":Rule"])
def test_a_name_that_is_no_reference_is_looked_up(rule):
    with pytest.raises(InputError, match="unknown rule"):
        SpecConfig("draft", rule=rule)
