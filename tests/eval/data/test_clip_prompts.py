"""Prompts of clips: the shipped list, and lines that do not say what they ask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mmspec.assets
from mmspec.errors import InputError
from mmspec.eval.data.clip_prompts import read_clip_prompts
from mmspec.worlds.video_world.clip import held_out_clips

LIST = Path(mmspec.assets.__file__).parent / "prompts" / "clips.jsonl"
LINE = {
    "prompt": "a red circle moves left",
    "tag": "move",
    "include": [{"class": "circle", "count": 1, "color": "red", "motion": "left"}],
}


def test_the_shipped_list():
    assert read_clip_prompts(LIST) == tuple(item.prompt for item in held_out_clips(100))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tag": "jump"}, "the tag must be one of move, "),
        ({"prompt": "a red circle moves right"}, "its facts say 'a red circle moves left', not"),
        ({"include": []}, "include holds no facts of a clip"),
        ({"include": "circle"}, "include"),
        ({"include": [{"class": "circle"}]}, "include holds no facts of a clip: KeyError"),
        ({"include": [LINE["include"][0] | {"motion": "left", "turns": "blue"}]}, "KeyError"),
        ({"prompt": None}, "no 'prompt'"),
    ],
)
def test_wrong_lines_are_named(tmp_path, change, said):
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(LINE) + "\n" + json.dumps(LINE | change) + "\n")
    with pytest.raises(InputError, match=r"line 2|:2") as error:
        read_clip_prompts(path)
    assert said in str(error.value)


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "none.jsonl").write_text("")
    with pytest.raises(InputError, match="none"):
        read_clip_prompts(tmp_path / "none.jsonl")
