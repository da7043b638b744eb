"""`report.html`: one page, whole, escaped, the same every time, that fetches nothing."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser

import pytest

from mmspec.eval.report.pages import to_html
from mmspec.eval.report.samples import sample_files
from mmspec.eval.schema import MethodResult, Report

VOID = {"meta", "img", "br", "link", "input", "hr"}
NASTY = """<script>alert("1")</script> & 'x' $a_1$ {{ 7 * 7 }}"""


class Page(HTMLParser):
    """Tags with attributes, ids, text, and whether every tag is closed in turn."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def html(finished) -> str:
    return to_html(Report.read(finished), finished)


@pytest.fixture(scope="module")
def page(html) -> Page:
    return Page(html)


def test_nothing_is_fetched_and_nothing_runs(finished, html, page):
    links = sample_files(Report.read(finished), finished).values()
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "iframe", "object", "embed", "base", "form", "audio"}
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in {"src", "href", "xlink:href", "srcset", "data", "poster", "action"}:
                own = value.startswith(("#", "data:image/png;base64,"))
                assert own or (tag == "a" and value in links), (tag, value)
            assert "http" not in value, (tag, value)
    assert html.startswith("<!doctype html>")
    assert "@import" not in html
    assert set(re.findall(r"url\((.)", html)) <= {"#"}


def test_ids_are_unique_and_links_lead_somewhere(finished, page):
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        for name in ("href", "xlink:href"):
            if name in attributes:
                to = attributes[name]
                assert to[1:] in ids if to.startswith("#") else (finished / to).exists()


def test_every_method_has_its_row_and_the_sceptic_is_marked(finished, html):
    head = html[html.index('<table class="headline">') :]
    rows = re.findall(r'<th scope="row">(.*?)</th>', head[: head.index("</table>")], re.DOTALL)
    words = [" ".join(unescape(re.sub("<[^>]*>", "", row)).split()) for row in rows]
    report = Report.read(finished)
    assert [word.split()[0] for word in words] == list(report.methods)
    assert words[0] == "plain baseline"
    assert words[-1] == "drafter-only the sceptic's row"


def test_order_of_the_page(page):
    parts = [a["href"] for a in page.all("a") if a["href"].startswith("#")]
    assert parts == ["#methods", "#figures", "#tasks", "#pictures", "#settings", "#reading"]
    order = [a["id"] for a in page.all("section")]
    assert [f"#{part}" for part in order] == parts
    figures = [a["aria-label"].split()[0] for a in page.all("svg")]
    frontiers = ["speed-up", "speed-up", "times"]  # alone, in batches, by calls
    assert figures == [*frontiers, "Acceptance", "Seconds", "Tokens", "Speed-ups"]


def test_it_can_be_read_without_eyes(page):
    assert page.all("html")[0]["lang"] == "en"
    assert all(image["alt"] for image in page.all("img"))
    assert len(page.all("img")) == 12 * 6
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.all("svg"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert all("scope" in cell for cell in page.all("th"))
    assert len(page.all("h1")) == 1


@pytest.mark.slow
def test_banner(finished, run):
    report = Report.read(finished)
    assert "Read this before quoting a figure" in to_html(report, finished)
    report.notes = []
    assert "<aside" not in to_html(report, finished)
    report.for_reporting = False
    assert "Not for reporting: this run was cut short" in to_html(report, finished)


def test_text_of_users_is_escaped(run):
    data = json.loads((run / "report.json").read_text())
    data |= dict.fromkeys(("suite", "pipeline", "model", "command"), NASTY)
    data["notes"] = [NASTY]
    data["settings"][NASTY] = {NASTY: NASTY}
    data["environment"][NASTY] = NASTY
    data["costs"][NASTY] = data["costs"].pop("drafter")
    data["methods"] = {NASTY if n == "scd" else n: row for n, row in data["methods"].items()}
    for row in data["methods"].values():
        row["contract"] = NASTY
        row["phase_seconds"][NASTY] = 0.01
        row["quality"] = {NASTY: {**row["quality"]["geneval"], "verdict": NASTY}}
        row["quality"][NASTY]["parts"][NASTY] = 0.5
    (run / "report.json").write_text(json.dumps(data))
    lines = [json.loads(x) for x in (run / "samples.jsonl").read_text().splitlines()]
    for line in lines:
        for name in {"prompt", "tag", "reason"} & set(line):
            line[name] = f"{line[name]} {NASTY}"
        if line.get("method") == "scd":
            line["method"] = NASTY
        if "scores" in line:
            line["scores"] = {NASTY: line["scores"]["geneval"]}
    (run / "samples.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    html = to_html(Report.read(run), run)
    page = Page(html)
    assert "<script" not in html.lower()
    assert not page.all("script")
    assert page.text.count(NASTY) >= 12 * 6 + 30
    assert any(NASTY in image["alt"] for image in page.all("img"))


def test_the_same_bytes_every_time(finished, html):
    assert to_html(Report.read(finished), finished) == html
    code = (
        "import sys, hashlib, pathlib; from mmspec.eval.report.pages import to_html;"
        "from mmspec.eval.schema import Report; folder = pathlib.Path(sys.argv[1]);"
        "print(hashlib.sha256(to_html(Report.read(folder), folder).encode()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(finished)],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == hashlib.sha256(html.encode()).hexdigest()


def test_a_missing_picture_is_said(run):
    (run / "pictures/scd/00000.png").unlink()
    page = Page(to_html(Report.read(run), run))
    assert page.text.count("output missing") == 1
    assert len(page.all("img")) == 12 * 6 - 1


@pytest.mark.parametrize(
    ("field", "empty", "left"),
    [
        ("acceptance_by_position", [], 6),
        ("phase_seconds", {}, 6),
        ("throughput", {}, 5),  # and its frontier
        ("quality", {}, 4),  # all frontiers
    ],
)
def test_a_figure_without_data_is_left_out(run, field, empty, left):
    report = Report.read(run)
    for row in report.methods.values():
        setattr(row, field, empty)
    assert len(Page(to_html(report, run)).all("svg")) == left


def test_without_samples_the_rest_stands(run):
    (run / "samples.jsonl").unlink()
    page = Page(to_html(Report.read(run), run))
    assert len(page.all("svg")) == 6
    assert not page.all("img")


def test_a_report_with_next_to_nothing(tmp_path):
    row = MethodResult("exact", 1, 16.0, 16.0, 1.0, [], {}, role="baseline")
    report = Report("speed", "image", "m", "", {}, {}, None, {}, {"plain": row})
    page = Page(to_html(report, tmp_path))
    assert not page.all("svg")
    assert not page.all("img")
    assert [a["id"] for a in page.all("section")] == ["methods", "settings", "reading"]
    assert "speed: target calls" in page.text
