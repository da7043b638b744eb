"""`mmspec video`: from the prompt to the files, and one clear line for everything that is wrong."""

from __future__ import annotations

import importlib.util
import io
import json

import numpy as np
import pytest
from imageio.v3 import immeta, imread
from PIL import Image, ImageColor, ImageSequence
from wans import tiny_pipeline

from mmspec.cli.main import main
from mmspec.eval.contact_sheet import COLOURS
from mmspec.eval.showcase_video import gif_bytes, strip

PROMPT = "a red circle moves right behind a blue square"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("video")
    tiny_pipeline().save_pretrained(folder)
    return folder


@pytest.fixture
def video(home, tmp_path, capfd):
    """Runs `mmspec video` on a tiny model: exit code, standard output, standard error."""

    def call(*more: object, prompt: str = PROMPT) -> tuple[int, str, str]:
        capfd.readouterr()
        given = ["video", prompt, "--model", home, "-o", tmp_path / "out", "--steps", 1, *more]
        try:
            code = main([str(word) for word in given])
        except SystemExit as stop:  # argparse
            code = stop.code
        return code, *capfd.readouterr()

    return call


def test_compared_clips_and_their_files(video, tmp_path):
    code, out, _ = video(
        "--compare", "--tau", 20, "--blocks", 3, "-n", 2, "--seed", 4, "--fps", 10, "--json"
    )
    assert code == 0
    record = json.loads(out)
    assert record == json.loads((tmp_path / "out" / "stats.json").read_text())
    assert list(record["methods"]) == ["plain", "sdvg[tau=20]"]
    assert record["call"]["num_frames"] == 21
    plain, sdvg = record["methods"].values()
    assert (plain["contract"], sdvg["contract"]) == ("exact", "lossy")
    assert plain["made_by"] == [["target"] * 3] * 2
    assert [len(clip) for clip in sdvg["rewards"]] == [3, 3]
    for maker, rewards in zip(sdvg["made_by"][0][1:], sdvg["rewards"][0][1:], strict=True):
        assert (maker == "drafter") == (min(rewards) >= 20)
    assert set(sdvg["parts"]) == {"draft", "decode", "reward", "commit", "regenerate"}
    assert set(plain["parts"]) == {"decode", "commit", "regenerate"}
    assert sdvg["speedup_median"] > 0
    for row in (plain, sdvg):  # blocks are shown as they are made: all seconds count
        assert row["decode_seconds_median"] == row["seconds_median"]
    names = ("plain-4", "plain-5", "sdvg-tau=20-4", "sdvg-tau=20-5")
    files = {"stats.json", *(f"{name}.{kind}" for name in names for kind in ("gif", "png", "mp4"))}
    assert {path.name for path in (tmp_path / "out").iterdir()} == files
    assert set(record["files"]) == files - {"stats.json"}
    for name in names:
        with Image.open(tmp_path / "out" / f"{name}.gif") as film:
            shown = [frame.info["duration"] for frame in ImageSequence.Iterator(film)]
            assert film.size == (24, 16)
        assert sum(shown) == 21 * 100  # frames that are the same are one
        assert all(time % 100 == 0 for time in shown)
        with Image.open(tmp_path / "out" / f"{name}.png") as sheet:
            colours = {sheet.getpixel((0, sheet.height * (n + 1) // 3 - 1)) for n in range(3)}
        makers = {"target"} if name.startswith("plain") else set(sdvg["made_by"][int(name[-1]) - 4])
        assert colours == {ImageColor.getrgb(COLOURS[maker]) for maker in makers}


def test_gif_is_played_at_the_clips_pace():
    """62.5 milliseconds a frame, which a GIF can't say: the file has the frames, and the time."""
    frames = [Image.new("RGB", (8, 8), (n * 5, 0, 255 - n * 5)) for n in range(45)]
    with Image.open(io.BytesIO(gif_bytes(frames, 16))) as film:
        shown = [
            (f.convert("RGB").getpixel((0, 0))[0], f.info["duration"]) for f in frames_of(film)
        ]
        assert film.info["loop"] == 0
    assert [shade for shade, _ in shown] == pytest.approx([n * 5 for n in range(45)], abs=2)
    assert sum(time for _, time in shown) == pytest.approx(45 * 62.5, abs=5)
    assert {time for _, time in shown} == {60, 70}
    with Image.open(io.BytesIO(gif_bytes(frames[:1], 16))) as still:
        assert still.n_frames == 1


def frames_of(film):
    return ImageSequence.Iterator(film)


def test_seconds_and_speedup_are_of_the_same(video):
    code, out, _ = video("--compare", "--blocks", 2)
    assert code == 0
    head, plain, fast = out.splitlines()[:3]
    spent = [float(line[head.index("seconds") :].split()[0]) for line in (plain, fast)]
    ratio = float(fast[head.index("speed-up") :].split("×")[0])
    assert ratio == pytest.approx(spent[0] / spent[1], rel=0.1)


def test_table_says_who_made_what(video):
    code, out, _ = video("--method", "drafter-only", "--num-frames", 13)
    assert code == 0
    assert "drafter-only: 100% of the blocks drafted; draft 0" in out


def test_drafts_made_ahead_change_nothing(video, tmp_path):
    found = []
    for ahead in ("true", "false"):
        how = ["--blocks", 4, "--seed", 4, "--json"]
        code, out, _ = video("--method", f"sdvg-adaptive[draft_ahead={ahead}]", *how)
        assert code == 0
        (stats,) = json.loads(out)["methods"].values()
        (picture,) = (tmp_path / "out").glob("*.png")
        found.append((stats["made_by"], stats["rewards"], picture.read_bytes()))
        picture.unlink()
    assert found[0] == found[1]
    assert stats["wasted"] == 0


def test_mp4_has_the_frames(video, tmp_path):
    """Those of the GIF, at the clip's pace."""
    code, out, _ = video("--method", "plain", "--blocks", 2, "--fps", 10, "--json")
    assert code == 0
    assert "plain-0.mp4" in json.loads(out)["files"]
    path = tmp_path / "out" / "plain-0.mp4"
    frames = imread(path)
    assert frames.shape == (13, 16, 24, 3)
    assert immeta(path)["fps"] == 10
    with Image.open(path.with_suffix(".gif")) as film:
        first = np.asarray(film.convert("RGB")).astype(int)
    assert np.abs(frames[0].astype(int).mean((0, 1)) - first.mean((0, 1))).max() <= 8


def test_without_an_encoder_there_is_the_gif(video, tmp_path, monkeypatch):
    find, absent = importlib.util.find_spec, ("imageio_ffmpeg", "cv2")
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n in absent else find(n))
    code, out, err = video("--method", "plain", "--blocks", 1, "--json")
    assert code == 0
    assert json.loads(out)["files"] == ["plain-0.gif", "plain-0.png"]
    assert "pip install -e '.[video]'; the clips are written as GIF alone" in err


def test_strip_shows_who_made_each_block():
    """A row a block, its border in the maker's colour, its own frames in it."""
    frames = [Image.new("RGB", (96, 96), (n * 10, 0, 0)) for n in range(5 + 8 + 8)]
    makers = ["target", "drafter", "target"]
    blocks = [frames[:5], frames[5:13], frames[13:]]
    sheet = np.asarray(strip(list(zip(makers, blocks, strict=True)), [[], [9.0], [1.0]])).astype(
        int
    )
    line = sheet.shape[0] // 3
    wanted = [[0, 1, 3, 4], [5, 7, 10, 12], [13, 15, 18, 20]]
    for row, maker in enumerate(makers):
        below = sheet[row * line : (row + 1) * line]
        colour = tuple(int(COLOURS[maker][at : at + 2], 16) for at in (1, 3, 5))
        assert (below[-1] == colour).all()
        assert (below[18:, 0] == colour).all()
        shades = [below[line // 2 + 9, 4 + 96 * n + 48, 0] // 10 for n in range(4)]
        assert shades == wanted[row]


@pytest.mark.parametrize(
    ("size", "wanted"), [((832, 480), (166, 96)), ((24, 16), (144, 96)), ((64, 64), (128, 128))]
)
def test_strip_can_be_read(size, wanted):
    """Whatever the clip's size, frames are about as high; blocks are labelled with rewards."""
    block = [Image.new("RGB", size, "red")] * 3
    told = [strip([("target", block)] * 2, rewards) for rewards in ([[], []], [[], [1.5, 0.5]])]
    width, height = wanted
    assert {sheet.size for sheet in told} == {(4 * width + 8, 2 * (height + 26))}
    one, two = (np.asarray(sheet).astype(int) for sheet in told)
    line = height + 26
    assert np.array_equal(one[:line], two[:line])
    assert not np.array_equal(one[line : line + 18], two[line : line + 18])
    assert np.array_equal(one[line + 18 :], two[line + 18 :])


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (["--num-frames", 14], "num_frames must be of whole blocks of 2 latent frames"),
        (["--blocks", 0], "--blocks must be at least 1, not 0"),
        (["--blocks", 1, "--num-frames", 5], "not allowed with"),
        (["--num-videos", 0], "--num-videos must be from 1 to 1000"),
        (["--fps", 0], "--fps must be from 1 to 240"),
        (["--steps", 0], "a whole number from 1, not 0"),
        (["--height", 20], "height must be a multiple of 8 pixels"),
        (["--method", "sdgv"], "did you mean 'sdvg'"),
        (["--method", "sjd"], "method 'sjd' is for a model that draws pictures"),
        (["--method", "random-routing", "--tau", 3], "tau is a setting of 'reward-threshold'"),
        (["--method", "sdvg[tau=3]", "--tau", 3], "sets tau twice"),
        (["--method", "sdvg[draft_ahead=1]"], "draft_ahead must be true or false, or none"),
        (
            ["--method", "drafter-only[draft_ahead=true]"],
            "draft_ahead is a setting of",
        ),
        (["--method", "drafter-only", "--tau", 3], "method 'drafter-only' does not read it"),
        (["--tau", 300], "tau 300 is no threshold for reward 'router'"),
        (["--reward", "shapes_clip_score", "--compare"], "no tau is usual for reward 'shapes_clip"),
        (["--steps", 1001], "made in at most 1000 steps, not 1001"),
        (["--tau", "nan"], "tau must be a number, not 'nan'"),
        (["--reward", "hps"], "unknown reward 'hps'; did you mean 'hpsv2'"),
        (["--reward", "hpsv2"], "hpsv2 needs its weights: pass --weights PATH, where PATH is the"),
        (["--method", "sdvg[reward=hpsv2,tau=0.2]"], "hpsv2 needs its weights: pass --weights"),
        (["--reward", "router", "--weights", "x.pt"], "not the router's"),
        (["--weights", "x"], "--weights are a reward's"),
        (["--device", "tpu"], "device 'tpu' can't be used"),
        (["--model", "./nowhere"], "no model folder at ./nowhere"),
    ],
)
def test_wrong_input_is_one_line(video, tmp_path, more, word):
    code, out, err = video(*more)
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if "error" in line]
    assert len(lines) == 1
    assert word in lines[0]
    assert not (tmp_path / "out").exists()


def test_empty_prompt(video):
    code, _, err = video(prompt=" ")
    assert code == 2
    assert "the prompt is empty" in err
