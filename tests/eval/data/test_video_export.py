"""Names of videos as the benchmarks look for them; writing that is whole, careful and resumable."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

from mmspec.errors import InputError
from mmspec.eval.data.video_export import (
    VideoFile,
    export_videos,
    moviegen_files,
    read_prompts,
    vbench_files,
)


def found_by_vbench(prompt: str, names: list[str]) -> list[str]:
    """VBench's own search, per prompt: five exact names with the suffix of any file there."""
    suffix = "." + names[0].rsplit(".", 1)[1]
    wanted = [f"{prompt}-{index}{suffix}" for index in range(5)]
    return [name for name in wanted if name in names]


def test_vbench_finds_every_video():
    prompts = [
        "A 3D model of a 1800s victorian house.",
        'a dog\'s café, 50 % (off): "now"',
        "-",
        "é" * 124,
    ]
    files = vbench_files(prompts)
    names = [file.name for file in files]
    assert len(set(names)) == 20
    for prompt in prompts:
        assert len(found_by_vbench(prompt, names)) == 5
    assert files[1] == VideoFile(prompts[0], 1, "A 3D model of a 1800s victorian house.-1.mp4")
    assert max(len(name.encode()) for name in names) == 254


@pytest.mark.parametrize(
    ("prompts", "reason"),
    [
        (["a", "b/c"], "prompt 2 can't be a file's name"),
        (["a\0"], "prompt 1 can't"),
        (["é" * 125], "prompt 1 can't"),
        (["a", "b", "a"], "prompts 1 and 3 are the same"),
    ],
)
def test_vbench_refuses_what_it_could_not_find(prompts, reason):
    with pytest.raises(InputError, match=reason):
        vbench_files(prompts)


def test_moviegen_names_go_by_the_prompts_line():
    files = moviegen_files(["x/y", "x/y", "z" * 900], samples=2)
    assert [file.name for file in files] == [
        "0-0_regular.mp4",
        "0-1_regular.mp4",
        "1-0_regular.mp4",
        "1-1_regular.mp4",
        "2-0_regular.mp4",
        "2-1_regular.mp4",
    ]
    assert moviegen_files(["x"], variant="ema")[0].name == "0-0_ema.mp4"
    with pytest.raises(InputError, match="variant"):
        moviegen_files(["x"], variant="a/b")


def test_prompts_are_lines(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("one\u2028still one \r\n two\n\n".encode())
    assert read_prompts(path) == ["one\u2028still one", "two"]
    path.write_text("one\n\ntwo\n")
    with pytest.raises(InputError, match=r"prompts\.txt:2"):
        read_prompts(path)
    with pytest.raises(InputError, match="nowhere"):
        read_prompts(tmp_path / "nowhere")


class Encoder:
    """Writes the frames' shades as text; fails at the calls it is told to, halfway."""

    def __init__(self, *failing: int) -> None:
        self.calls = 0
        self.failing = failing

    def __call__(self, frames, path, fps):
        assert path.suffix == ".mp4"  # what encoders know the container by
        self.calls += 1
        path.write_text("half")
        if self.calls in self.failing:
            raise RuntimeError("disk full")
        path.write_text(f"{fps}:" + ",".join(str(f.getpixel((0, 0))[0]) for f in frames))


def generate(file: VideoFile):
    shades = torch.tensor([len(file.prompt), file.sample], dtype=torch.uint8)
    return shades[:, None, None, None].expand(-1, 3, 4, 6)


FILES = vbench_files(["a", "bb"], samples=2)
SETTINGS = {"method": "plain", "seed": 3, "size": (4, 6)}


def export(folder, encoder, files=FILES, settings=SETTINGS, resume=False):
    return export_videos(
        folder, files, generate, 8, settings=settings, resume=resume, encoder=encoder
    )


def test_videos_are_written_with_their_settings_beside_them(tmp_path):
    folder = tmp_path / "videos"
    made = export(folder, Encoder())
    assert [path.name for path in made] == ["a-0.mp4", "a-1.mp4", "bb-0.mp4", "bb-1.mp4"]
    assert [path.read_text() for path in made] == ["8:1,0", "8:1,1", "8:2,0", "8:2,1"]
    # VBench takes the suffix of whatever file comes first
    assert sorted(path.name for path in folder.iterdir()) == [path.name for path in made]
    kept = json.loads((tmp_path / "videos.json").read_text())
    assert kept == {"method": "plain", "seed": 3, "size": [4, 6], "fps": 8}


def test_a_failure_leaves_nothing_half_written_and_the_run_resumes(tmp_path):
    folder = tmp_path / "videos"
    with pytest.raises(RuntimeError, match="disk full"):
        export(folder, Encoder(3))
    assert sorted(path.name for path in folder.iterdir()) == ["a-0.mp4", "a-1.mp4"]
    first = (folder / "a-0.mp4").stat().st_mtime_ns
    made = export(folder, Encoder(), resume=True)
    assert [path.name for path in made] == ["bb-0.mp4", "bb-1.mp4"]
    assert (folder / "a-0.mp4").stat().st_mtime_ns == first
    assert export(folder, Encoder(1), resume=True) == []


def test_videos_that_are_there_are_not_overwritten(tmp_path):
    folder = tmp_path / "videos"
    export(folder, Encoder(), FILES[:2])
    with pytest.raises(InputError, match=r"a-0\.mp4 is there already \(2 of 4 videos\)"):
        export(folder, Encoder())
    assert (folder / "a-0.mp4").read_text() == "8:1,0"


def test_videos_of_other_settings_are_not_mixed(tmp_path):
    folder = tmp_path / "videos"
    export(folder, Encoder(), FILES[:2])
    with pytest.raises(InputError, match=r"seed 3, this run 4"):
        export(folder, Encoder(), settings={**SETTINGS, "seed": 4}, resume=True)
    with pytest.raises(InputError, match=r"extra None, this run 1"):
        export(folder, Encoder(), settings={**SETTINGS, "extra": 1}, resume=True)
    (tmp_path / "videos.json").unlink()
    with pytest.raises(InputError, match=r"videos\.json"):
        export(folder, Encoder(), resume=True)


def test_without_an_encoder_the_package_is_named_at_once(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    absent = {"imageio_ffmpeg", "cv2"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in absent else find(name)
    )

    def never(file):
        raise AssertionError("generated")

    for missing in (absent, {*absent, "imageio"}):
        absent = missing
        with pytest.raises(InputError, match=r"pip install -e '\.\[video\]'"):
            export_videos(tmp_path / "videos", FILES, never, 8, settings={})
    assert list(tmp_path.iterdir()) == []
