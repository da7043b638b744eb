"""GenEval's files: what is wrong is named by file and line; the score by hand."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from mmspec.errors import InputError
from mmspec.eval.data.geneval_files import judge_folder, read_folder, read_metadata
from mmspec.worlds.shapes import SHAPES, prompt_list
from mmspec.worlds.shapes.vocabulary import TASKS

# one of each task, as the official `create_prompts.py` writes them
# fmt: off
OFFICIAL = [
    {"tag": "single_object", "prompt": "a photo of a bench",
     "include": [{"class": "bench", "count": 1}]},
    {"tag": "two_object", "prompt": "a photo of a tv remote and a cow",
     "include": [{"class": "tv remote", "count": 1}, {"class": "cow", "count": 1}]},
    {"tag": "counting", "prompt": "a photo of three buses",
     "include": [{"class": "bus", "count": 3}], "exclude": [{"class": "bus", "count": 4}]},
    {"tag": "colors", "prompt": "a photo of a pink car",
     "include": [{"class": "car", "count": 1, "color": "pink"}]},
    {"tag": "position", "prompt": "a photo of a dog right of a tv",
     "include": [{"class": "tv", "count": 1},
                 {"class": "dog", "count": 1, "position": ["right of", 0]}]},
    {"tag": "color_attr", "prompt": "a photo of a red cup and a white computer mouse",
     "include": [{"class": "cup", "count": 1, "color": "red"},
                 {"class": "computer mouse", "count": 1, "color": "white"}]},
]
# fmt: on


def write_lines(path, lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def write_pictures(root, prompts, samples=4):
    for number, metadata in enumerate(prompts):
        folder = root / f"{number:05d}"
        (folder / "samples").mkdir(parents=True)
        (folder / "metadata.jsonl").write_text(json.dumps(metadata))
        for sample in range(samples):
            shade = (number, sample, 0)
            Image.new("RGB", (4, 4), shade).save(folder / "samples" / f"{sample:05d}.png")
        Image.new("RGB", (8, 8)).save(folder / "grid.png")
    return root


def test_official_lines_come_back(tmp_path):
    path = write_lines(tmp_path / "m.jsonl", map(json.dumps, OFFICIAL))
    assert read_metadata(path) == OFFICIAL


def test_the_shapes_worlds_lines_need_its_classes(tmp_path):
    prompts = [prompt.metadata() for prompt in prompt_list(3)]
    path = write_lines(tmp_path / "m.jsonl", map(json.dumps, prompts))
    assert read_metadata(path, SHAPES) == prompts
    with pytest.raises(InputError, match=r"m\.jsonl:1: include\[0\] has class"):
        read_metadata(path)


def changed(index, **fields):
    return json.dumps({**OFFICIAL[index], **fields})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object"),
        ("", "not JSON"),
        (changed(0, tag="colour"), "tag 'colour'"),
        (changed(0, prompt=None), "prompt should be a text"),
        (changed(0, include=[]), "include should be"),
        (changed(0, exclude={}), "include should be"),
        (changed(0, include=["bench"]), r"include\[0\] has class 'bench'"),
        (changed(0, include=[{"class": "unicorn", "count": 1}]), "class 'unicorn'"),
        (changed(0, include=[{"class": "bench", "count": 0}]), "count 0"),
        (changed(0, include=[{"class": "bench", "count": True}]), "count True"),
        (changed(0, include=[{"class": "bench"}]), "count None"),
        (changed(3, include=[{"class": "car", "count": 1, "color": "mauve"}]), "color 'mauve'"),
        (changed(2, exclude=[{"class": "bus"}]), r"exclude\[0\] has count None"),
        (changed(4, include=[{"class": "tv", "count": 1, "position": ["above", 0]}]), "earlier"),
        (changed(4, include=[OFFICIAL[4]["include"][0],
         {"class": "dog", "count": 1, "position": ["near", 0]}]), r"include\[1\] has position"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_in_one_line(tmp_path, line, reason):
    good = json.dumps(OFFICIAL[0])
    path = write_lines(tmp_path / "m.jsonl", [good, line, good])
    with pytest.raises(InputError, match=rf"m\.jsonl:2: .*{reason}") as caught:
        read_metadata(path)
    assert "\n" not in str(caught.value)


def test_files_that_hold_nothing_are_named(tmp_path):
    (tmp_path / "m.jsonl").write_text("\n")
    with pytest.raises(InputError, match=r"m\.jsonl is empty"):
        read_metadata(tmp_path / "m.jsonl")
    with pytest.raises(InputError, match="nowhere"):
        read_metadata(tmp_path / "nowhere")


class ByShade:
    """Right where the table says, by prompt (red channel) and sample (green channel)."""

    name = "by_shade"

    def __init__(self, right):
        self.right = right
        self.seen = []

    def judge(self, prompts, images):
        answers = []
        for metadata, image in zip(prompts, images, strict=True):
            number, sample, _ = image.getpixel((0, 0))
            assert metadata == OFFICIAL[number % 6]
            self.seen.append((number, sample))
            answers.append(((number, sample) in self.right, f"{number}-{sample}"))
        return answers


def test_the_score_is_the_mean_of_the_task_means(tmp_path):
    prompts = [*OFFICIAL, OFFICIAL[0]]  # seven prompts: the first task has eight pictures
    folders = read_folder(write_pictures(tmp_path, prompts), prompts)
    judge = ByShade({(0, 0), (0, 1), (6, 3), (2, 0), (4, 0), (4, 1), (4, 2), (4, 3)})
    lines = []
    scores = judge_folder(judge, folders, lines.append)
    means = {"single_object": 3 / 8, "two_object": 0, "counting": 1 / 4, "colors": 0, "position": 1}
    assert scores == {**means, "color_attr": 0, "overall": pytest.approx(13 / 8 / 6)}
    assert judge.seen == [(number, sample) for number in range(7) for sample in range(4)]
    assert [line["correct"] for line in lines[:4]] == [True, True, False, False]
    assert set(lines[0]) == {"filename", "tag", "prompt", "correct", "reason"}
    assert lines[27]["filename"].endswith("00006/samples/00003.png")
    assert list(means) == list(TASKS[:5])


def test_wrong_numbers_of_pictures_and_folders(tmp_path):
    write_pictures(tmp_path, OFFICIAL)
    (tmp_path / "00002/samples/00004.png").touch()
    with pytest.raises(InputError, match="00002/samples holds 5 pictures, expected 4"):
        read_folder(tmp_path, OFFICIAL)
    (tmp_path / "00002/samples/00004.png").unlink()
    (tmp_path / "00001/samples/00000.png").unlink()
    with pytest.raises(InputError, match="00001/samples holds 3 pictures, expected 4"):
        read_folder(tmp_path, OFFICIAL)
    with pytest.raises(InputError, match="00005 is one too many: there are 5 prompts"):
        read_folder(tmp_path, OFFICIAL[:5])
    with pytest.raises(InputError, match="nowhere"):
        read_folder(tmp_path / "nowhere", OFFICIAL)


def test_a_folder_that_is_missing_is_named(tmp_path):
    write_pictures(tmp_path, OFFICIAL[:3])
    with pytest.raises(InputError, match=r"00003/metadata\.jsonl"):
        read_folder(tmp_path, OFFICIAL)


def test_pictures_of_another_prompt_are_refused(tmp_path):
    write_pictures(tmp_path, OFFICIAL[::-1])
    with pytest.raises(InputError, match="prompt 0 is 'a photo of a bench'"):
        read_folder(tmp_path, OFFICIAL)


def test_a_broken_picture_is_named_before_anything_is_judged(tmp_path):
    write_pictures(tmp_path, OFFICIAL)
    (tmp_path / "00005/samples/00003.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"can't read .*00005/samples/00003\.png: it is no"):
        read_folder(tmp_path, OFFICIAL)
