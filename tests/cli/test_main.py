"""All commands: help, lists, defaults, and one clear line for everything that is wrong."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from mmspec.cli.main import build_parser
from mmspec.eval.suite import suite_names
from mmspec.methods import presets
from mmspec.pipelines.model_folders import first_method
from mmspec.train.recipes import STAGES

PROMPT = "a photo of a red circle left of a blue square"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def every_option():
    """All options of all commands, with the command that they are of."""
    waiting = [build_parser()]
    while waiting:
        parser = waiting.pop()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()
            else:
                yield parser, action


def test_every_help_says_what_and_which_default():
    for parser, action in every_option():
        told = parser._get_formatter()._get_help_string(action)
        assert told.split("(default")[0].strip(), (parser.prog, action.dest)
        if isinstance(action.default, str | int | float | Path) and action.default is not False:
            assert "default" in told or action.default == argparse.SUPPRESS, (parser.prog, told)


def test_help_names_every_recipe():
    told = next(a.help for parser, a in every_option() if a.dest == "recipe")
    assert sorted(re.split(r", | or ", told)) == sorted(STAGES)


@pytest.mark.parametrize(("told", "expected"), [((), {}), (("0.5",), {"temperature": 0.5})])
def test_vectors_are_drawn_at_the_models_own_temperature(
    run, tmp_path, monkeypatch, told, expected
):
    """Unless another one is given."""
    asked = []

    def compare(show, out):
        asked.append(show.call)
        return {}

    pipe = SimpleNamespace(set_progress_bar_config=lambda **how: None)
    monkeypatch.setattr("mmspec.cli.options.open_pipeline", lambda *args: pipe)
    monkeypatch.setattr("mmspec.eval.showcase.compare", compare)
    words = "generate", "a red circle", "--pipeline", "continuous", "-o", tmp_path, "--json"
    code, _, err = run(*words, *(f"--temperature={value}" for value in told))
    assert code == 0, err
    (call,) = asked
    assert {name: call[name] for name in call if name == "temperature"} == expected


def test_who_reads_no_more_ends_a_command_quietly():
    """As in `mmspec ls methods | head`."""
    command = [sys.executable, "-m", "mmspec", "ls", "methods"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        run.stdout.close()
        said = run.stderr.read()
    assert (run.returncode, said) == (0, b"")


def test_defaults_are_methods_that_gain(generate, run, tiny_folder, tmp_path):
    assert list(json.loads(generate("--json")[1])["methods"]) == ["scd"]
    assert first_method(tiny_folder, "continuous") == "reflection"
    home = tmp_path / "vlm"
    for parts, wanted in (("", "prompt-lookup"), ("drafter", "draft"), ("heads/eagle", "eagle")):
        (home / parts).mkdir(parents=True, exist_ok=True)
        (home / parts / "config.json").write_text("{}")
        assert first_method(home, "vlm") == wanted


@pytest.mark.parametrize(
    ("command", "listed"),
    [
        (["ls", "models"], ["embedded-image", "embedded-mar", "embedded-video", "embedded-vlm"]),
        (["eval", "ls"], suite_names()),
        (["eval", "ls", "judges"], ["mask2former", "shapes"]),
        (["eval", "ls", "weights"], ["blip_vqa", "hpsv2", "inception-v3", "mask2former"]),
    ],
    ids=str,
)
def test_lists(run, command, listed):
    code, out, err = run(*command)
    assert (code, err) == (0, "")
    shown = [line.split(maxsplit=1) for line in out.splitlines()]
    assert all(text.strip() for _, text in shown)
    code, out, err = run(*command, "--json")
    assert (code, err) == (0, "")
    assert list(json.loads(out)) == [name for name, _ in shown]
    assert set(listed) <= set(json.loads(out))


def test_metrics_are_listed(run):
    code, out, err = run("eval", "ls", "metrics")
    assert (code, err) == (0, "")
    head, *lines = out.splitlines()
    assert head.split()[:5] == ["metric", "pipelines", "files", "needs", "values"]
    (fid,) = [line for line in lines if line.startswith("fid ")]
    assert all(told in fid for told in ("image, continuous", "images, reference", "0 to"))
    found = json.loads(run("eval", "ls", "metrics", "--json")[1])
    assert [line.split()[0] for line in lines] == [one["name"] for one in found]
    assert {"fid", "geneval", "accuracy", "vqav2"} <= {one["name"] for one in found}


def test_methods_are_listed_with_their_contracts(run):
    code, out, err = run("ls", "methods")
    assert (code, err) == (0, "")
    head, *lines = out.split("\n\n")[0].splitlines()
    assert head.split()[:5] == ["method", "image", "vlm", "continuous", "video"]
    rows = {line.split()[0]: line for line in lines}
    assert list(rows) == list(presets())
    assert all(presets()[name].summary in line for name, line in rows.items())
    facts = json.loads(run("ls", "methods", "--json")[1])
    at = {word: head.index(word) for word in ("image", "vlm", "continuous", "video")}
    for name, method in presets().items():
        assert set(facts[name]["contracts"]) == set(method.serves)
        for modality, column in at.items():
            promised = facts[name]["contracts"].get(modality, "")
            assert rows[name][column:].startswith(promised or " "), (name, modality)
    assert facts["eagle"]["needs"] == {"image": ["eagle"], "vlm": ["heads/eagle"]}
    assert facts["mulo-sd"]["contracts"] == {"image": "lossy"}
    assert facts["cool-sd"]["contracts"]["image"] == "bounded"


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (["generate", PROMPT, "--model", "empty"], ["can't read empty", "model_index.json"]),
        (["generate", PROMPT, "--model", "a-file"], ["can't read a-file", "no folder"]),
        (["generate", PROMPT, "--model", "embedded-none"], ["embedded-image, embedded-mar"]),
        (["generate", PROMPT, "--model", "image"], ["image;", "embedded-image, embedded-mar"]),
        (["generate", PROMPT, "--model", "embedded-vlm"], ["'llava' is no model that draws here"]),
        (["generate", PROMPT, "--iterations", "0"], ["--iterations is of --pipeline continuous"]),
        (["generate", PROMPT, "--method", "medusa"], ["a model that writes text", "ls methods"]),
        (["generate", PROMPT, "--method", "scd[window"], ["NAME[SETTING=VALUE"]),
        (["generate", PROMPT, "--rule", "no_module:Rule"], ["can't import rule", "PYTHONPATH"]),
        (["ask", "none.png", "what"], ["no picture none.png"]),
        (["ask", "a-file", "what"], ["can't read a-file: it is no picture"]),
        (["ask", "picture.png", " "], ["the question is empty"]),
        (["ask", "picture.png", "what", "--method", "medusa"], ["train vlm-head --method medusa"]),
        (["ask", "picture.png", "what", "--model", "embedded-image"], ["VlmPipeline can't open"]),
        (["ask", "picture.png", "what", "--model", "empty"], ["can't read empty", "config.json"]),
        (["ask", "picture.png", "what", "--max-new-tokens", "9999"], ["1024 positions"]),
        (["ask", "picture.png", "what", "--stream", "--json"], ["leave --json out"]),
        (["video", PROMPT, "--model", "embedded-image"], ["VideoPipeline can't open it"]),
        (["demo", "--model", "image=a-file"], ["no model folder at a-file"]),
        (["eval", "run", "-o", "r", "--suite", "vlm", "--pipeline", "image"], ["--pipeline vlm"]),
        (["eval", "report", "empty"], ["report.json"]),
        (["eval", "table", "a-file"], ["a-file: not JSON"]),
        (["eval", "validate", "a-file"], ["unknown suite 'a-file'"]),
        (["train", "vlm-head", "--pipeline", "empty"], ["empty/config.json"]),
        (["serve", "--model", "vlm=a-file", "--method", "vlm=egle"], ["did you mean 'eagle'"]),
        (["serve", "--method", "image=eagle3[top_k=2]"], ["top_k"]),
        (
            ["serve", "--model", "text=a", "--method", "text=mulo-sd"],
            ["a model that draws pictures"],
        ),
        (["export", "custom-generate", "a-file"], ["can't write to a-file"]),
        (["export", "comfyui", "a-file/in"], ["can't write to a-file/in"]),
        (["export", "diffusers", "image", "a-file"], ["can't write to a-file"]),
    ],
    ids=str,
)
def test_faults_of_every_command_are_one_line(run, tmp_path, monkeypatch, command, parts, refused):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a-file").write_text("text")
    Image.new("RGB", (32, 32)).save(tmp_path / "picture.png")
    before = names(tmp_path)
    refused(run(*command), *parts)
    assert names(tmp_path) == before
    assert names(tmp_path / "empty") == []


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ([], ["COMMAND"]),
        (["draw"], ["draw"]),
        (["ls", "colours"], ["colours"]),
        (["eval"], ["ACTION"]),
        (["eval", "run", "--suite", "speed"], ["--out"]),
        (["generate"], ["prompt"]),
        (["train", "image-tokeniser"], ["did you mean 'image-tokenizer'"]),
        (["train", "image-tokenizer", "--steps", "0"], ["--steps", "0"]),
        (["train", "image-tokenizer", "--batch-size", "-1"], ["--batch-size", "-1"]),
        (["train", "image-tokenizer", "--max-minutes", "nan"], ["--max-minutes", "nan"]),
        (["train", "image-tokenizer", "--precision", "int8"], ["int8"]),
        (["train", "image-target", "--steps", "1"], ["vq_model"]),
        (["train", "image-tokenizer", "--device", "gpu"], ["device 'gpu'"]),
    ],
    ids=str,
)
def test_commands_refused(run, tmp_path, monkeypatch, command, parts, refused):
    monkeypatch.chdir(tmp_path)
    refused(run(*command), *parts)
    assert list(tmp_path.iterdir()) == []


def test_interrupt(monkeypatch, run, tiny_folder, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("mmspec.cli.options.open_pipeline", stop)
    code, out, err = run("generate", PROMPT, "-o", tmp_path / "out")
    assert (code, out, err) == (130, "", "mmspec: interrupted\n")
