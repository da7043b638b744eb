"""Captions: three forms of the same captions read alike, and each faulty entry is named."""

from __future__ import annotations

import json
import re

import pytest

from mmspec.errors import InputError
from mmspec.eval.data.captions import check_captioned, read_captions
from mmspec.eval.data.folders import read_images

EXPECTED = {"a": ("a red ring",), "sub/b": ("zwei Kühe", "two cows")}


def coco():
    return {
        "info": {"year": 2014},
        "images": [{"id": 7, "file_name": "sub/b.jpg"}, {"id": 3, "file_name": "a.png"}],
        "annotations": [
            {"id": 1, "image_id": 7, "caption": "zwei Kühe\n"},
            {"id": 2, "image_id": 3, "caption": "a red ring"},
            {"id": 3, "image_id": 7, "caption": " two cows"},
        ],
    }


@pytest.fixture
def write(tmp_path):
    def write(text, name="captions.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
        return path

    return write


def test_coco(write):
    path = write(coco())
    captions = read_captions(path)
    assert captions.by_id == EXPECTED
    assert list(captions.by_id) == ["a", "sub/b"]
    assert captions.source == path


def test_ids_may_be_text(write):
    data = json.loads(json.dumps(coco()).replace('id": 7', 'id": "seven"'))
    assert read_captions(write(data)).by_id == EXPECTED


def test_text_files(write, tmp_path):
    write("\n a red ring\n\n", "set/a.txt")
    write("\ufeffzwei Kühe\r\ntwo cows\n", "set/sub/b.txt")
    assert read_captions(tmp_path / "set").by_id == EXPECTED


def test_json_lines(write):
    lines = ['{"file_name": "b.v2", "caption": "zwei Kühe"}', "", '{"image":"a.png","caption":"x"}']
    captions = read_captions(write("\n".join(lines) + "\n", "c.jsonl"))
    assert captions.by_id == {"a": ("x",), "b.v2": ("zwei Kühe",)}


def test_a_line_separator_within_a_caption_ends_no_line(write):
    line = '{"image": "a.png", "caption": "one\u2028two"}'
    assert read_captions(write(line, "c.jsonl")).by_id == {"a": ("one\u2028two",)}


GOOD = '{"image": "a.png", "caption": "x"}\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "c.jsonl, line 2: not JSON"),
        ('["a"]', "c.jsonl, line 2: expected an object, found ['a']"),
        ('{"caption": "x"}', "c.jsonl, line 2: no 'image'; it has caption"),
        ('{"image": 3, "caption": "x"}', "c.jsonl, line 2: 'image' must be text, not 3"),
        ('{"image": "b.png"}', "c.jsonl, line 2: no 'caption'; it has image"),
        (
            '{"image": "b.png", "caption": ["x"]}',
            "c.jsonl, line 2: 'caption' must be text, not ['x']",
        ),
        ('{"image": "b.png", "caption": " "}', "c.jsonl, line 2: the caption is empty"),
        ('{"image": "./a.jpg", "caption": "x"}', "c.jsonl, line 2: a second line for 'a'"),
    ],
)
def test_bad_lines(write, line, message):
    with pytest.raises(InputError, match=re.escape(message)):
        read_captions(write(GOOD + line, "c.jsonl"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("images"), "captions.json: no 'images'; it has info"),
        (lambda d: d.update(annotations={}), "annotations: expected a list, found {}"),
        (lambda d: d["images"][1].pop("id"), "images[1]: no 'id'"),
        (lambda d: d["images"][1].update(file_name=None), "images[1]: no 'file_name'; it has"),
        (lambda d: d["images"][1].update(id=7), "images[1]: a second picture of id '7'"),
        (lambda d: d["images"][1].update(file_name="sub/b.png"), "or name 'sub/b'"),
        (lambda d: d["annotations"][2].update(image_id=8), "annotations[2]: no picture has the id"),
        (lambda d: d["annotations"][2].update(image_id=[8]), "annotations[2]: 'image_id' must be"),
        (lambda d: d["annotations"][0].update(caption=""), "annotations[0]: the caption is empty"),
        (lambda d: d["annotations"].clear(), "no captions in"),
    ],
)
def test_bad_entries(write, change, message):
    data = coco()
    change(data)
    with pytest.raises(InputError, match=re.escape(message)):
        read_captions(write(data))


def test_bad_files(write, tmp_path):
    with pytest.raises(InputError, match=r"captions\.json, line 2: not JSON"):
        read_captions(write('{"images": [],\n"annotations": ['))
    with pytest.raises(InputError, match="expected an object"):
        read_captions(write([1]))
    with pytest.raises(InputError, match=r"can't read .*absent"):
        read_captions(tmp_path / "absent.json")
    with pytest.raises(InputError, match=r"captions\.csv: expected a \.json or \.jsonl file"):
        read_captions(write("a,b", "captions.csv"))
    (tmp_path / "latin.jsonl").write_bytes('{"image": "ü"}'.encode("latin-1"))
    with pytest.raises(InputError, match=r"can't read .*latin\.jsonl"):
        read_captions(tmp_path / "latin.jsonl")
    write(" \n", "set/a.txt")
    with pytest.raises(InputError, match=r"a\.txt holds no caption"):
        read_captions(tmp_path / "set")
    write("x", "other/a.md")
    with pytest.raises(InputError, match=r"a\.md is no \.txt file"):
        read_captions(tmp_path / "other")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no captions in .*empty"):
        read_captions(tmp_path / "empty")


def test_captions_and_pictures_must_fit(write, tmp_path, crops):
    captions = read_captions(write(coco()))
    (tmp_path / "set" / "sub").mkdir(parents=True)
    crops[0].save(tmp_path / "set" / "a.png")
    with pytest.raises(InputError, match=r"1 captions have no picture, the first 'sub/b'"):
        check_captioned(read_images(tmp_path / "set"), captions)
    crops[1].save(tmp_path / "set" / "sub" / "b.png")
    check_captioned(read_images(tmp_path / "set"), captions)
    for name in ("d", "c"):
        crops[2].save(tmp_path / "set" / f"{name}.png")
    with pytest.raises(InputError, match=r"set and .*captions\.json: 2 pictures have no .*'c'"):
        check_captioned(read_images(tmp_path / "set"), captions)
