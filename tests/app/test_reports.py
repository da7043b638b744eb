"""Any report is drawn, and what is none is refused in a line that names no folder of the server."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from mmspec import assets
from mmspec.app.folders import Folders
from mmspec.app.limits import Limits
from mmspec.app.model_cache import ModelCache
from mmspec.app.page import Page
from mmspec.app.reports import shipped_reports
from mmspec.errors import InputError
from mmspec.methods import PIPELINES

FIGURE = 'class="mm-plot"'
HERE = SimpleNamespace(session_hash="one", client=SimpleNamespace(host="127.0.0.1"), headers={})


@pytest.fixture
def page():
    made = Page(ModelCache({}), Folders(anywhere=True), Limits(rows=50))
    yield made
    made.jobs.close()


@pytest.fixture
def data() -> dict:
    return json.loads(shipped_reports()["image"].read_text())


def upload(tmp_path: Path, content) -> str:
    file = tmp_path / "mine.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(file)


def test_the_first_reports_are_of_the_kinds_of_models_and_none_is_lost():
    stored = {
        path.parent.name for path in Path(assets.__file__).parent.glob("reports/*/report.json")
    }
    assert [*shipped_reports()][:4] == [*PIPELINES]
    assert set(shipped_reports()) == stored


@pytest.mark.parametrize("name", shipped_reports())
def test_every_report_of_the_project(page, name):
    html = page.reports.report("shipped", name, HERE)
    figures, none = html.count(FIGURE), html.count("There is no pair of speed and quality to draw")
    rows = json.loads(shipped_reports()[name].read_text())["methods"]
    if any(row["quality"] and row["speedup_ci95"] for row in rows.values()):
        assert figures >= html.count('class="mm-plots"') > none == 0
    else:
        assert (figures, none) == (0, len({row["call"] for row in rows.values()}))
    for method in rows:
        assert method.partition("[")[0] in html
    assert page.reports.report("path", str(shipped_reports()[name].parent), HERE) == html


def test_what_a_report_says_is_text(page, data, tmp_path):
    evil = "<script>alert(1)</script>${x}"
    data["suite"] = evil
    data["notes"] = [evil]
    data["settings"] = {evil: evil}
    data["methods"][evil] = data["methods"].pop("zipar")
    html = page.reports.report("upload", upload(tmp_path, data), HERE)
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 5
    assert "<script" not in html
    assert "${" not in html
    assert "<svg" not in html  # figures are pictures, in which nothing runs


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: "no JSON", "the upload: not JSON"),
        (lambda data: [], "the upload is not a version 2 report"),
        (lambda data: {**data, "version": 1}, "the upload is not a version 2 report"),
        (lambda data: {**data, "more": 1}, "more: unexpected keyword argument"),
        (lambda data: {**data, "methods": {"plain": 3}}, "input should be an object"),
        (lambda data: {**data, "methods": 3}, "is not a report"),
        (
            lambda data: {**data, "methods": {str(n): data["methods"]["plain"] for n in range(51)}},
            "51 methods, more than 50",
        ),
        (
            lambda data: {
                **data,
                "methods": {n: {**r, "nfe_per_sample": "x"} for n, r in data["methods"].items()},
            },
            "nfe_per_sample: input should be a valid number, not 'x'",
        ),
    ],
)
def test_what_is_no_report(page, data, tmp_path, change, told):
    with pytest.raises(InputError) as error:
        page.reports.report("upload", upload(tmp_path, change(data)), HERE)
    assert told in str(error.value)
    assert str(tmp_path) not in str(error.value)
    assert "\n" not in str(error.value)


def test_an_upload_that_is_gone(page, tmp_path):
    with pytest.raises(InputError, match="the report is no longer here; upload it again"):
        page.reports.report("upload", str(tmp_path / "report.json"), HERE)


def test_paths_have_the_rule_of_folders(data, tmp_path):
    page = Page(ModelCache({}), Folders(tmp_path / "root"), Limits())
    (tmp_path / "root").mkdir()
    with pytest.raises(InputError, match="in the folder that this demo may read"):
        page.reports.report("path", upload(tmp_path, data), HERE)
    assert FIGURE in page.reports.report("path", upload(tmp_path / "root", data), HERE)
    with pytest.raises(InputError, match="there is no report"):
        page.reports.report("shipped", "../x", HERE)
    page.jobs.close()


def test_a_link_out_of_the_root_is_not_followed(data, tmp_path):
    """Not even as the report of a folder inside; nor is a path of the server told."""
    root = tmp_path / "root"
    for name in ("link", "folder", "broken", "fine"):
        (root / name).mkdir(parents=True)
    (root / "link" / "report.json").symlink_to(upload(tmp_path, data))
    (root / "folder" / "report.json").mkdir()
    (root / "folder" / "report.json" / "report.json").symlink_to(upload(tmp_path, data))
    (root / "broken" / "report.json").write_text("[]")
    (root / "fine" / "report.json").write_text(json.dumps(data))
    page = Page(ModelCache({}), Folders(root), Limits())
    for name, told in (
        ("link", "there is no 'link/report.json' in the folder that this demo may read"),
        ("folder", "folder is no report: it is no file"),
        ("broken", "broken is not a version 2 report"),
    ):
        with pytest.raises(InputError) as error:
            page.reports.report("path", name, HERE)
        assert str(error.value).startswith(told)
        assert str(tmp_path) not in str(error.value)
    assert FIGURE in page.reports.report("path", "fine", HERE)
    page.jobs.close()
