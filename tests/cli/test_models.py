"""Models and folders that commands can't use: one clear line each."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "a photo of a red circle left of a blue square"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def without_tensor(tiny_folder: Path, folder: Path, part: str, tensor: str) -> Path:
    shutil.copytree(tiny_folder, folder)
    (path,) = (folder / part).glob("*.safetensors")
    weights = load_file(path)
    del weights[tensor]
    save_file(weights, path, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("part", "tensor"),
    [
        ("transformer", "layers.1.attention.wo.weight"),
        ("vq_model", "quant_conv.bias"),
        ("text_encoder", "encoder.final_layer_norm.weight"),
    ],
)
def test_checkpoint_with_a_missing_tensor(run, tiny_folder, tmp_path, part, tensor, refused):
    folder = without_tensor(tiny_folder, tmp_path / "model", part, tensor)
    result = run("generate", PROMPT, "--model", folder, "-o", tmp_path / "out")
    refused(result, f"missing tensor {tensor}", str(folder / part))
    assert names(tmp_path) == ["model"]


def test_unreadable_models(run, tmp_path, refused):
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "model_index.json").write_bytes(b"\xff\xfe\x00")
    for model in ("nothing", "file", "folder", "binary"):
        path = tmp_path / model
        refused(run("generate", PROMPT, "--model", path, "-o", tmp_path / "out"), str(path))
        command = ("eval", "run", "--suite", "speed", "--model", path, "-o", tmp_path / "out")
        refused(run(*command), str(path))
    refused(run("generate", PROMPT, "--model", "nothing", "-o", tmp_path / "out"), "nothing")
    assert names(tmp_path) == ["binary", "file", "folder"]


def test_model_without_drafter(run, tiny_folder, tmp_path, refused):
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, "drafter": [None, None]}))
    where = ("--model", folder, "-o", tmp_path / "out")
    draft = ("generate", PROMPT, "--method", "draft", *where)
    refused(run(*draft), "needs the component 'drafter'", "'sjd'")
    refused(
        run("eval", "run", "--suite", "speed", "--limit", 1, *where),
        "needs the component 'drafter'",
    )
    assert names(tmp_path) == ["model"]
    assert run("generate", PROMPT, "--method", "sjd", *where)[0] == 0


def test_unwritable_folder(run, tiny_folder, tmp_path, refused):
    (tmp_path / "file").write_text("text")
    for out in (tmp_path / "file", tmp_path / "file" / "a" / "b", "/proc/nothing"):
        refused(run("generate", PROMPT, "--model", tiny_folder, "-o", out), str(out))
        command = ("eval", "run", "--suite", "speed", "--limit", 1, "--model", tiny_folder)
        refused(run(*command, "-o", out), str(out))
    assert (tmp_path / "file").read_text() == "text"
    assert names(tmp_path) == ["file"]


@pytest.mark.slow
def test_as_a_process(tiny_folder, tmp_path, refused):
    """No library says a word of its own, in a process that nobody has prepared."""
    tensor = "encoder.block.0.layer.0.layer_norm.weight"
    folder = without_tensor(tiny_folder, tmp_path / "model", "text_encoder", tensor)
    command = [sys.executable, "-m", "mmspec", "generate", PROMPT, "--model", str(folder)]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    refused((done.returncode, done.stdout, done.stderr), f"missing tensor {tensor}")
    assert names(tmp_path) == ["model"]
