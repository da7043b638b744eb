"""DPG-Bench's files: the questions, bad rows, the folder of grids, and the figures by hand."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from mmspec.errors import InputError
from mmspec.eval.data.dpg_files import judge_folder, read_dpg, read_folder, split_grid
from mmspec.eval.metrics.dpg import DpgPrompt, DpgQuestion

HEADER = (
    "item_id,text,keywords,proposition_id,dependency,category_broad,category_detailed,tuple,"
    "question_natural_language"
)
ROWS = [
    'p1,"Two dogs, one\nred.",,1,0,entity,whole,entity - whole (dogs),Are there dogs?',
    'p1,"Two dogs, one\nred.",,2,1,other,count,"other - count (dogs, ==2)",Are there two dogs?',
    'p1,"Two dogs, one\nred.",,3,"1, 2",attribute,color,attribute - color (dog),Is one dog red?',
    "p2,A cup.,,1,0,entity,whole,entity - whole (cup),Is there a cup?",
]


def write_csv(tmp_path, *rows, header=HEADER):
    path = tmp_path / "dpg_bench.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_questions_come_back_from_the_first_row_on(tmp_path):
    dogs = DpgPrompt(
        "p1",
        "Two dogs, one\nred.",
        (
            DpgQuestion(1, "Are there dogs?", (), "entity - whole"),
            DpgQuestion(2, "Are there two dogs?", (1,), "other - count"),
            DpgQuestion(3, "Is one dog red?", (1, 2), "attribute - color"),
        ),
    )
    cup = DpgPrompt("p2", "A cup.", (DpgQuestion(1, "Is there a cup?", (), "entity - whole"),))
    assert read_dpg(write_csv(tmp_path, *ROWS)) == [dogs, cup]
    assert [q.broad_category for q in dogs.questions] == ["entity", "other", "attribute"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("p2,A cup.,,x,0,,,entity - whole (cup),Is there a cup?", "'x' and dependency '0'"),
        ("p2,A cup.,,1,,,,entity - whole (cup),Is there a cup?", "dependency ''"),
        ("p2,A cup.,,1,0", "too few or too many columns"),
        ("p2,A cup.,,1,0,,,entity - whole (cup),Is there a cup?,more", "too few or too many"),
        ("p2,A cup.,,1,0,,,entity - whole (cup),", "may not be empty"),
        ("p2,A cup.,,1,0,,,(cup),Is there a cup?", "may not be empty"),
        ("p1,x,,3,0,,,entity - whole (cup),Is there a cup?", "question 3 of p1 is there twice"),
        ("p2,A cup.,,1,1,,,entity - whole (cup),Is there a cup?", "question 1 depends on itself"),
        ("p2,A cup.,,1,2,,,entity - whole (cup),Is there a cup?", "dependency on question 2"),
    ],
)
def test_a_bad_row_is_named_in_one_line(tmp_path, row, reason):
    path = write_csv(tmp_path, *ROWS[:3], row)
    with pytest.raises(InputError, match=rf"dpg_bench\.csv:8: .*{reason}") as caught:
        read_dpg(path)  # three of the rows before are of two lines
    assert "\n" not in str(caught.value)


def test_dependencies_in_a_circle_are_refused(tmp_path):
    rows = [
        f"p,x,,{i},{above},,,entity - whole (x),Is it?"
        for i, above in ((1, "0"), (2, "4"), (3, "2"), (4, '"1,3"'))
    ]
    with pytest.raises(InputError, match="depends on itself"):
        read_dpg(write_csv(tmp_path, *rows))


def test_files_that_are_not_the_benchmark(tmp_path):
    with pytest.raises(InputError, match="no column dependency"):
        read_dpg(write_csv(tmp_path, header=HEADER.replace("dependency,", "")))
    with pytest.raises(InputError, match="holds no questions"):
        read_dpg(write_csv(tmp_path))
    with pytest.raises(InputError, match="nowhere"):
        read_dpg(tmp_path / "nowhere")
    (tmp_path / "binary.csv").write_bytes(HEADER.encode() + b"\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"can't read .*binary\.csv"):
        read_dpg(tmp_path / "binary.csv")


def grid(*shades):
    image = Image.new("RGB", (8, 8))
    for shade, corner in zip(shades, [(0, 0), (4, 0), (0, 4), (4, 4)], strict=True):
        image.paste(Image.new("RGB", (4, 4), (shade, 0, 0)), corner)
    return image


class ByShade:
    """Says yes to the questions whose bits the picture's shade has."""

    name = "by_shade"

    def answer(self, images, questions):
        bits = {"Are there dogs?": 1, "Are there two dogs?": 2, "Is one dog red?": 4,
                "Is there a cup?": 1}  # fmt: skip
        assert all(image.size == (4, 4) for image in images)
        pairs = zip(images, questions, strict=True)
        return [bool(image.getpixel((1, 1))[0] & bits[text]) for image, text in pairs]


@pytest.fixture
def prompts(tmp_path):
    return read_dpg(write_csv(tmp_path, *ROWS))


def test_the_four_pictures_of_a_grid_are_judged(tmp_path, prompts):
    folder = tmp_path / "pictures"
    folder.mkdir()
    grid(0b111, 0b110, 0b101, 0b000).save(folder / "p1.png")  # hold: 3, 0, 1, 0 of 3
    grid(1, 0, 0, 0).save(folder / "p2.png")
    lines = []
    pictures = read_folder(folder, prompts)
    scores = judge_folder(ByShade(), pictures, on_line=lines.append)
    assert list(scores) == ["dpg_by_shade"]
    figures = scores["dpg_by_shade"]
    assert figures["overall"] == pytest.approx(100 * ((3 + 0 + 1 + 0) / 12 + 1 / 4) / 2)
    assert figures["l1"] == {"attribute": 75, "entity": pytest.approx(37.5), "other": 50}
    assert len(lines) == 4 * 3 + 4 * 1
    assert [line["holds"] for line in lines[3:6]] == [False, False, False]
    assert [line["answer"] for line in lines[3:6]] == [False, True, True]


def test_one_picture_a_file(tmp_path, prompts):
    folder = tmp_path / "pictures"
    folder.mkdir()
    Image.new("RGB", (4, 4), (0b011, 0, 0)).save(folder / "p1.png")
    Image.new("RGB", (4, 4), (0b1, 0, 0)).save(folder / "p2.png")
    scores = judge_folder(ByShade(), read_folder(folder, prompts), samples=1)
    assert scores["dpg_by_shade"]["overall"] == pytest.approx(100 * (2 / 3 + 1) / 2)


def test_a_bad_folder_is_named(tmp_path, prompts):
    folder = tmp_path / "pictures"
    with pytest.raises(InputError, match="no folder"):
        read_folder(folder, prompts)
    folder.mkdir()
    grid(1, 1, 1, 1).save(folder / "p1.png")
    with pytest.raises(InputError, match=r"no picture .*p2\.png"):
        read_folder(folder, prompts)
    grid(1, 1, 1, 1).save(folder / "p2.jpg")
    (folder / "p2.png").write_bytes(b"")
    with pytest.raises(InputError, match="of the same prompt"):
        read_folder(folder, prompts)
    (folder / "p2.jpg").unlink()
    with pytest.raises(InputError, match=r"can't read .*p2\.png: it is no picture"):
        read_folder(folder, prompts)
    grid(1, 1, 1, 1).save(folder / "p2.png")
    grid(1, 1, 1, 1).save(folder / "p3.png")
    with pytest.raises(InputError, match=r"p3\.png is of no prompt"):
        read_folder(folder, prompts)
    (folder / "p3.png").unlink()
    Image.new("RGB", (7, 8)).save(folder / "p2.png")
    with pytest.raises(InputError, match=r"p2\.png: 4 pictures can't lie"):
        judge_folder(ByShade(), read_folder(folder, prompts))


def test_a_grid_is_cut_row_by_row():
    tiles = [Image.new("RGB", (6, 4), (i, 0, 0)) for i in range(4)]
    grid = Image.new("RGB", (12, 8))
    for tile, corner in zip(tiles, [(0, 0), (6, 0), (0, 4), (6, 4)], strict=True):
        grid.paste(tile, corner)
    for count in (1, 2, 3, 4):
        parts = split_grid(grid, count)
        assert [np.asarray(p).tolist() for p in parts] == [
            np.asarray(t).tolist() for t in tiles[:count]
        ]


@pytest.mark.parametrize(("size", "count"), [((5, 4), 4), ((4, 5), 4), ((4, 4), 0), ((4, 4), 5)])
def test_what_is_no_grid_is_refused(size, count):
    with pytest.raises(ValueError, match="grid"):
        split_grid(Image.new("RGB", size), count)
