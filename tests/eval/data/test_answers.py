"""Published formats, written by hand and read back; what is wrong is one line that says where."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmspec.errors import InputError
from mmspec.eval.data.answers import (
    read_chartqa,
    read_docvqa,
    read_mmmu,
    read_predictions,
    read_questions,
    read_textvqa,
    read_vqav2,
)
from mmspec.eval.data.questions import Prediction
from mmspec.eval.data.records import read_records

PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])  # as datasets writes it


def written(path: Path, value) -> Path:
    lines = path.suffix == ".jsonl"
    path.write_text("".join(json.dumps(v) + "\n" for v in value) if lines else json.dumps(value))
    return path


def refused(match: str, read, *args, **kwargs) -> None:
    """`read` raises an `InputError` of one line that contains `match`."""
    with pytest.raises(InputError) as caught:
        read(*args, **kwargs)
    assert match in str(caught.value)
    assert "\n" not in str(caught.value)


class TestVqav2:
    def files(self, tmp_path: Path) -> tuple[Path, Path]:
        questions = {
            "data_subtype": "val2014",
            "questions": [
                {"image_id": 42, "question": "How many?", "question_id": 420000},
                {"image_id": 7, "question": "Is it red?", "question_id": 70001},
            ],
        }
        answers = [{"answer": "2", "answer_confidence": "yes", "answer_id": i} for i in range(10)]
        annotations = {
            "annotations": [
                {"question_id": 70001, "image_id": 7, "answer_type": "yes/no", "answers": answers},
                {"question_id": 420000, "image_id": 42, "answer_type": "number",
                 "answers": [{**a, "answer": str(i)} for i, a in enumerate(answers)]},
            ],
        }  # fmt: skip
        return (
            written(tmp_path / "q.json", questions),
            written(tmp_path / "a.json", annotations),
        )

    def test_read(self, tmp_path):
        first, second = read_vqav2(*self.files(tmp_path))
        assert (first.id, first.question, first.subject) == ("420000", "How many?", "number")
        assert first.answers == tuple("0123456789")
        assert (second.answers, second.subject) == (("2",) * 10, "yes/no")

    def test_without_annotations(self, tmp_path):
        questions, _ = self.files(tmp_path)
        assert all(q.answers == () for q in read_vqav2(questions))

    def test_files_that_do_not_fit(self, tmp_path):
        questions, annotations = self.files(tmp_path)
        held = json.loads(annotations.read_text())["annotations"]

        def changed(entries) -> tuple[Path, Path]:
            return questions, written(tmp_path / "b.json", {"annotations": entries})

        refused(
            "questions[0]: question 420000 has no annotation in", read_vqav2, *changed(held[:1])
        )
        twice = [*held, held[0]]
        refused("b.json: annotations[2]: question 70001 is annotated", read_vqav2, *changed(twice))
        extra = [*held, {**held[0], "question_id": 1}]
        refused("annotations[2]: question 1 is not in", read_vqav2, *changed(extra))
        other = [{**held[0], "image_id": 8}, held[1]]
        refused("annotations[0]: question 70001 has another image_id", read_vqav2, *changed(other))
        broken = [{**held[0], "answers": [{"answer": True}]}, held[1]]
        refused("answers[0]: 'answer' must be text or a number, not True", read_vqav2,
                *changed(broken))  # fmt: skip
        refused("b.json: no 'annotations'; it has other", read_vqav2, questions,
                written(tmp_path / "b.json", {"other": []}))  # fmt: skip


def test_textvqa(tmp_path):
    entry = {"question_id": 34602, "image_id": "003a8ae2ef43b901", "question": "what brand?",
             "answers": ["dakota"] * 10, "set_name": "val"}  # fmt: skip
    path = written(tmp_path / "TextVQA_0.5.1_val.json", {"data": [entry]})
    (question,) = read_textvqa(path)
    assert (question.id, question.question) == ("34602", "what brand?")
    assert question.answers == ("dakota",) * 10
    hidden = {k: v for k, v in entry.items() if k != "answers"}
    assert read_textvqa(written(path, {"data": [hidden]}))[0].answers == ()
    refused("data[1]: question id 34602 is used in", read_textvqa,
            written(path, {"data": [entry, entry]}))  # fmt: skip
    refused("expected a list, found 5", read_textvqa, written(path, {"data": 5}))
    refused("expected an object, found [", read_textvqa, written(path, [entry]))


def test_docvqa(tmp_path):
    entry = {"questionId": 337, "question": "which date?", "image": "documents/xnbl0037_1.png",
             "docId": 279, "answers": ["1/8/93", "1/8/1993"], "data_split": "val"}  # fmt: skip
    path = written(tmp_path / "val_v1.0.json", {"dataset_name": "docvqa", "data": [entry]})
    (question,) = read_docvqa(path)
    assert (question.id, question.answers) == ("337", ("1/8/93", "1/8/1993"))
    broken = {**entry, "answers": ["1/8/93", None]}
    refused("data[0]: 'answers' must be text, a number or a list of them", read_docvqa,
            written(path, {"data": [broken]}))  # fmt: skip


def test_chartqa(tmp_path):
    entries = [{"imgname": "1.png", "query": "How many?", "label": "14"},
               {"imgname": "1.png", "query": "Which?", "label": ["Yes"]}]  # fmt: skip
    path = written(tmp_path / "test_human.json", entries)
    first, second = read_chartqa(path)
    assert (first.id, second.id) == ("test_human-0", "test_human-1")
    assert (first.answers, second.answers) == (("14",), ("Yes",))
    assert first.subject == second.subject == "human"
    for entry, problem in (
        ({**entries[0], "label": []}, "[0]: no 'label'"),
        ({"imgname": "1.png", "query": "?"}, "[0]: no 'label'"),
        ({"imgname": "1.png", "label": "?"}, "[0]: no 'query'; it has imgname, label"),
        ("text", "[0]: expected an object, found 'text'"),
    ):
        refused(problem, read_chartqa, written(path, [entry]))


class TestMmmu:
    def table(self, **changes) -> pa.Table:
        columns = {
            "id": ["validation_Art_Theory_1", "validation_Art_Theory_12", "validation_Math_3"],
            "question": ["What is <image 1>?", "<image 1> or <image 2>?", "Solve <image 1>."],
            "options": ["['a \"b\"', \"it's\", 'c']", "['<image 1>', '<image 2>']", "[]"],
            "answer": ["B", "A", "['24/7', '3.429']"],
            "question_type": ["multiple-choice", "multiple-choice", "open"],
            "image_1": [{"bytes": b"png", "path": None}] * 3,
            "image_2": [None, {"bytes": b"png", "path": "x.png"}, None],
            **changes,
        }
        kinds = {"image_1": PICTURE, "image_2": PICTURE}
        return pa.table({k: pa.array(v, kinds.get(k)) for k, v in columns.items()})

    def written(self, path: Path, **changes) -> Path:
        pq.write_table(self.table(**changes), path, row_group_size=2)
        return path

    def test_read(self, tmp_path):
        first, second, third = read_mmmu(self.written(tmp_path / "m.parquet"))
        assert [q.subject for q in (first, second, third)] == ["Art_Theory", "Art_Theory", "Math"]
        assert first.options == ('a "b"', "it's", "c")
        assert (first.answers, third.answers) == (("B",), ("24/7", "3.429"))
        assert third.options == ()

    def test_folder_of_subjects(self, tmp_path):
        for name in ("Math", "Art"):
            (tmp_path / name).mkdir()
            ids = [f"dev_{name}_{i}" for i in range(3)]
            self.written(tmp_path / name / "dev.parquet", id=ids)
        assert [q.subject for q in read_mmmu(tmp_path)] == ["Art"] * 3 + ["Math"] * 3
        self.written(tmp_path / "again.parquet", id=ids)
        refused(f"{tmp_path}/again.parquet, row 0: question id dev_Art_0 is used in ", read_mmmu,
                tmp_path)  # fmt: skip
        (tmp_path / "empty").mkdir()
        refused("no Parquet files", read_mmmu, tmp_path / "empty")

    def test_other_answers(self, tmp_path):
        path = self.written(tmp_path / "m.parquet", answer=["?", "A", "[0, 5)"])
        assert [q.answers for q in read_mmmu(path)] == [(), ("A",), ("[0, 5)",)]
        lists = [["x", "y"], ["z", "w"], []]
        assert read_mmmu(self.written(path, options=lists))[1].options == ("z", "w")

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"options": ["['a', 'b'", "[]", "[]"]}, "row 0: 'options' is not a printed list"),
            (
                {"options": ["['a', 'b']", "[1, None]", "[]"]},
                "row 1: 'options' must be text, a number or a list",
            ),
            ({"options": ["['a', 'b']", "'ab'", "[]"]}, "row 1: 'options' must be a list"),
            ({"options": ["['a', 'b']", "[]", "[]"]}, "row 1: a multiple-choice question needs"),
            ({"question_type": ["open", "open", "essay"]}, "row 2: question_type must be"),
            ({"answer": ["A", None, "5"]}, "row 1: no 'answer'"),
            ({"id": ["a", "b", "a"]}, "row 2: question id a is used in"),
        ],
    )
    def test_bad_rows(self, tmp_path, changes, problem):
        path = self.written(tmp_path / "m.parquet", **changes)
        refused(f"{path}, {problem}", read_mmmu, path)

    def test_missing_columns(self, tmp_path):
        path = tmp_path / "m.parquet"
        for column in ("id", "question", "options", "answer", "question_type"):
            pq.write_table(self.table().drop_columns([column]), path)
            refused(f"{path}, row 0: no '{column}'", read_mmmu, path)


class TestOwnQuestions:
    ENTRIES = (
        {"question_id": 1, "image": "1.png", "question": "Red?", "answers": ["yes", "ja"]},
        {"question_id": "b", "image": None, "question": "Which?", "answer": "B",
         "options": ["x", "y"], "subject": "Art"},
    )  # fmt: skip

    @pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet"])
    def test_read(self, tmp_path, suffix):
        path, entries = tmp_path / f"q.{suffix}", [dict(e) for e in self.ENTRIES]
        if suffix == "parquet":
            rows = [{"answers": [e["answer"]], **e} if "answer" in e else e for e in entries]
            rows = [{**row, "question_id": str(row["question_id"])} for row in rows]
            pq.write_table(pa.Table.from_pylist(rows, self.schema()), path)
        else:
            written(path, entries)
        first, second = read_questions(path)
        assert (first.id, first.question) == ("1", "Red?")
        assert (first.answers, first.options) == (("yes", "ja"), ())
        assert (second.id, second.answers, second.subject) == ("b", ("B",), "Art")
        assert second.options == ("x", "y")

    def schema(self) -> pa.Schema:
        texts = pa.list_(pa.string())
        return pa.schema(
            [("question_id", pa.string()), ("image", pa.string()), ("question", pa.string()),
             ("answers", texts), ("options", texts), ("subject", pa.string())]
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ("{not json", "not JSON: Expecting property name"),
            ("[1, 2]", "expected an object, found [1, 2]"),
            ("[" * 100_000, "nested too deeply"),
            ({"question_id": None}, "no 'question_id'; it has question_id, question, answer"),
            ({"question_id": 1.5}, "'question_id' must be text or a whole number, not 1.5"),
            ({"question_id": True}, "'question_id' must be text or a whole number, not True"),
            ({"question_id": ""}, "'question_id' must be text or a whole number, not ''"),
            ({"question_id": "0"}, "question id 0 is used in"),
            ({"question": ["?"]}, "'question' must be text, not ['?']"),
            ({"answer": None}, "no 'answer': a question needs at least one"),
            ({"answer": False}, "'answer' must be text, a number or a list of them, not False"),
            ({"answers": []}, "no 'answers': a question needs at least one"),
            (
                {"options": {"A": "x"}},
                "'options' must be text, a number or a list of them, not {'A'",
            ),
            ({"subject": 5}, "'subject' must be text, not 5"),
        ],
    )
    def test_a_bad_line_is_named(self, tmp_path, line, problem):
        path = tmp_path / "q.jsonl"
        good = {"question_id": 0, "question": "?", "answer": "x"}
        if isinstance(line, dict):
            line = json.dumps({**good, "question_id": 1, **line})
        path.write_text(f"{json.dumps(good)}\n\n{line}\n")  # blank lines count
        refused(f"{path}, line 3: {problem}", read_questions, path)

    def test_bad_files(self, tmp_path):
        refused("can't read", read_questions, tmp_path / "none.jsonl")
        refused("can't read", read_questions, tmp_path / "none.parquet")
        refused("expected a .json, .jsonl or .parquet file", read_questions, tmp_path / "q.csv")
        path = tmp_path / "q.json"
        path.write_text('[\n{"question_id": 1,\n}]')
        refused(f"{path}, line 3: not JSON", read_questions, path)
        refused("q.json: expected a list, found {", read_questions, written(path, {"a": 1}))
        path.write_bytes(b"\xff\xfe")
        refused(f"can't read {path}", read_questions, path)
        path = tmp_path / "q.parquet"
        path.write_bytes(b"no parquet")
        refused(f"can't read {path}", read_questions, path)


class TestPredictions:
    @pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet"])
    def test_read(self, tmp_path, suffix):
        path = tmp_path / f"p.{suffix}"
        entries = [{"question_id": 7, "answer": "yes"}, {"question_id": 3, "answer": "naïve\n"}]
        if suffix == "parquet":
            pq.write_table(pa.Table.from_pylist(entries), path)
        else:
            written(path, entries)
        found = read_predictions(path)
        assert [(p.question_id, p.answer) for p in found] == [("7", "yes"), ("3", "naïve\n")]
        assert all(isinstance(p, Prediction) and str(path) in p.where for p in found)

    def test_numbers_are_answers(self, tmp_path):
        """Numbers stay as the data writes them, in questions, options and predictions."""
        rows = [{"question_id": n, "answer": x} for n, x in enumerate((42, 0.5, -3, "7"))]
        found = read_predictions(written(tmp_path / "p.jsonl", rows))
        assert [p.answer for p in found] == ["42", "0.5", "-3", "7"]
        own = {"question_id": 1, "question": "?", "answers": [42, "42.0"], "options": [1, 42]}
        (question,) = read_questions(written(tmp_path / "q.jsonl", [own]))
        assert (question.answers, question.options) == (("42", "42.0"), ("1", "42"))
        chart = {"imgname": "a.png", "query": "?", "label": 0.12}
        (question,) = read_chartqa(written(tmp_path / "test_human.json", [chart]))
        assert question.answers == ("0.12",)

    def test_bad_entries(self, tmp_path):
        path = tmp_path / "p.jsonl"
        one = {"question_id": 1, "answer": "x"}
        refused(f"{path}, line 2: question 1 was answered in {path}, line 1", read_predictions,
                written(path, [one, {**one, "question_id": "1"}]))  # fmt: skip
        refused(f"{path}, line 1: no 'answer'; it has question_id, text", read_predictions,
                written(path, [{"question_id": 1, "text": "x"}]))  # fmt: skip
        refused(f"{path}, line 1: 'answer' must be text or a number, not {{}}", read_predictions,
                written(path, [{**one, "answer": {}}]))  # fmt: skip
        path = tmp_path / "p.parquet"
        pq.write_table(pa.table({"question_id": [1, 2], "answer": ["x", None]}), path)
        refused(f"{path}, row 1: no 'answer'", read_predictions, path)


def test_parquet_round_trip_keeps_values(tmp_path):
    rows = [{"n": i, "text": f"t{i}", "list": ["a"] * i, "none": None} for i in range(7)]
    table = pa.Table.from_pylist(rows)
    for name, kind in (("bytes", pa.binary()), ("large", pa.large_binary()), ("picture", PICTURE)):
        table = table.append_column(name, pa.nulls(7, kind))  # left out
    pq.write_table(table, tmp_path / "r.parquet", row_group_size=3)
    records = read_records(tmp_path / "r.parquet")
    assert [dict(record.fields) for record in records] == rows
    assert [record.where for record in records] == [
        f"{tmp_path}/r.parquet, row {i}" for i in range(7)
    ]
