"""The pages: what a user is told to type works, figures are true, links and papers are there."""

from __future__ import annotations

import ast
import glob
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import forked
import pytest
from pages import FENCED, PAGES, ROOT, TEXTS, anchors, blocks, links

from benchmarks.__main__ import build_parser as benchmarks_parser
from mmspec.app.tabs import TABS
from mmspec.cli.main import build_parser, main, trained
from mmspec.eval.report.matrix import measured
from mmspec.eval.report.pages import write_reports
from mmspec.eval.schema import Report
from mmspec.eval.suite import suite_names
from mmspec.eval.sweeps import parse_methods
from mmspec.methods import PIPELINES, parts, presets

README = TEXTS["README.md"]
FIRST_SCREEN, QUICK_START = README.split("## Quick start")
MADE = re.compile(
    r"<!-- (mmspec (?:eval (?:table|matrix)|ls methods)[^>]*?) --into (\S+) -->"
    r"\n\n(.*?)\n<!-- end -->",
    re.DOTALL,
)
RUNS = sorted(ROOT.glob("assets/reports/*/report.json"))
REPORTS = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("assets/reports/*/*.json")]
SPEEDUP = r"\d\.\d\d(?:×|–\d\.\d\d)"  # or the ends of its interval
CITED = re.compile(
    r"([A-Z][\w’-]+)(?: et al\.| and [A-Z][\w-]+) ((?:19|20)\d\d)"
    r"(?: \([\w-]+\))?(?:, \"([^\"]+)\")?"
)
BENCHMARKS = "python -m benchmarks "
LIGHT = ["mmspec ls methods", "mmspec eval table assets/reports/*/report.json"]


def commands(text: str) -> list[str]:
    """Those of the project in a page, as they are typed; in running text, those with options."""
    lines = "".join(blocks(text, "sh")).replace("\\\n", " ").splitlines()
    spans = re.findall(r"`([^`]+)`", FENCED.sub("", text))
    typed = [*lines, *(" ".join(span.split()) for span in spans if " --" in span)]
    typed = [re.sub(r"^\w+=\S+ ", "", line) for line in typed]
    return [line for line in typed if line.startswith(("mmspec ", BENCHMARKS))]


def words(command: str) -> list[str]:
    """What a shell makes of a command, in the root of the project."""
    command = command.replace("mmspec ask …", "mmspec ask scene.png 'what is it'")
    command = command.replace('"$PORT"', "8000").removesuffix(" &")
    found = shlex.split(command.removeprefix(BENCHMARKS), comments=True)
    found = found if command.startswith(BENCHMARKS) else found[1:]
    return [name for word in found for name in sorted(glob.glob(word, root_dir=ROOT)) or [word]]


COMMANDS = [(name, command) for name, text in TEXTS.items() for command in commands(text)]
COMMANDS = [(name, command) for name, command in COMMANDS if not command.endswith(" --help")]


def recipe(*arguments: str, **environment: str) -> list[str]:
    """The commands of a target of the Makefile, as a shell gets them; none is run."""
    make = [shutil.which("make") or "make", "--dry-run", "--always-make", *arguments]
    theirs = {"MAKEFLAGS": "", "SLOW": ""}  # of a make that runs these tests, and passes them on
    done = subprocess.run(
        make,
        cwd=ROOT,
        env={**os.environ, **theirs, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.replace("\\\n", " ").splitlines()


def test_make_knows_the_commands():
    """All that README names, and the command line takes what they run."""
    for target, command in (("picture", "generate"), ("demo", "demo")):
        (line,) = (line for line in recipe(target) if line.startswith(".venv/bin/mmspec "))
        typed = shlex.split(line)[1:]
        assert typed[0] == command
        build_parser().parse_args(typed)
    assert any("pytest" in line for line in recipe("test"))
    assert any("mkdocs build --strict" in line for line in recipe("docs"))


def test_the_first_prompts_are_those_that_the_demo_offers():
    """Which the models do well: in the quick start, `make picture`, help and examples alike."""
    offered = {tab.modality: tab.examples for tab in TABS}
    start = commands(QUICK_START)
    start += [line for line in recipe("picture") if line.startswith(".venv/bin/mmspec ")]
    start += [str(build_parser().epilog).partition(": ")[2]]
    seen = []
    for command in start:
        name, *typed = shlex.split(command, comments=True)[1:]
        if name in ("generate", "video"):
            drawn = "continuous" if "continuous" in typed else "image"
            kind = "video" if name == "video" else drawn
            assert typed[0] in offered[kind], command
            seen.append(kind)
    assert seen == ["image", "continuous", "video", "image", "image"]
    known = {text for texts in offered.values() for text in texts}
    for path in (ROOT / "examples").glob("*.py"):
        found = re.findall(r'"(a photo of [^"]*|a [^"]* moves [^"]*)"', path.read_text())
        assert path.name == "compare_methods.py" or not set(found) - known, path.name


@pytest.mark.parametrize(
    ("target", "installed"),
    [
        ("picture", ["."]),
        ("demo", [".", ".[demo]"]),
        ("docs", [".", ".[docs]"]),
        ("test", [".", ".[eval,train,demo,serve,docs,dev]"]),
    ],
)
def test_make_installs_what_is_needed_alone(target, installed):
    found = [shlex.split(line) for line in recipe(target) if "--editable" in line]
    assert [words[-1] for words in found] == installed


def test_ci_leaves_out_no_test_where_there_is_no_browser():
    """And runs a part of those that take long; a developer's run leaves both out, and says so."""
    bare = {"PATH": "/nonexistent"}
    last = (ROOT / ".ci/run").read_text().splitlines()[-1].replace("$part", "3/8")
    _, *typed = shlex.split(last, comments=True)
    assert typed[0] == "make"
    assert "SLOW=3/8" in typed
    # these take what few have, or download much
    everything = "not gpu and not speculators and not llama_cpp and not fresh"

    def tests(*arguments: str, **more: str) -> str:
        """The last options of the command that runs the tests."""
        (line,) = (one for one in recipe(*arguments, **bare, **more) if "-n logical" in one)
        return " ".join(line.split()).partition("worksteal ")[2]

    assert tests(*typed[1:]) == f'-m "{everything}" --slow-part 3/8'
    assert any("-m speculators" in line for line in recipe(*typed[1:], **bare))
    assert tests("test") == f'-m "{everything} and not browser and not slow"'
    assert tests("test", SLOW="1") == f'-m "{everything} and not browser"'


@pytest.mark.parametrize("command", LIGHT)
def test_a_light_command_runs(command, monkeypatch, capsys):
    assert command in [typed.split("  #")[0] for typed in commands(README)]
    monkeypatch.chdir(ROOT)
    assert main(words(command)) == 0
    assert capsys.readouterr().out


@pytest.mark.slow
def test_the_quick_start_runs_as_it_is_typed(tmp_path, monkeypatch, capsys):
    """A picture both ways and a question about it, one of continuous tokens, and a clip.

    The pictures of continuous tokens take two minutes, which is four of them; here it is one.
    """
    monkeypatch.chdir(tmp_path)
    start = commands(QUICK_START)
    drawn = [typed for typed in start if typed.split()[1] in ("generate", "ask", "video")]
    assert len(drawn) == 4
    for typed in drawn:
        few = ["-n", "1"] if "continuous" in words(typed) else []
        assert main([*words(typed), *few]) == 0
        assert re.search(r"\d\.\d\d×", capsys.readouterr().out)
    for name in ("", "continuous", "video"):
        assert any((tmp_path / "out" / name).glob("*.*"))
    assert (tmp_path / "out" / "side-by-side.png").stat().st_size


@pytest.mark.slow
def test_the_evaluation_runs_as_it_is_typed(tmp_path):
    """On two samples of one prompt. The other run is a copy of the first, so no row may differ."""
    typed = commands(QUICK_START)
    run, compare, _ = (line for line in typed if line.startswith("mmspec eval"))
    for line, more in ((run, ["--limit", "2"]), (compare, [])):
        said = forked.printed(tmp_path, forked.command, [*words(line), *more])
        if line == run:
            shutil.copytree(tmp_path / "report", tmp_path / "other")
    assert (tmp_path / "report" / "report.html").stat().st_size
    for method in build_parser().parse_args(words(run)).methods:
        assert re.search(rf"^{method} +geneval +2 .* 0\.000 +McNemar", said, re.MULTILINE)


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_the_parser_takes_every_command(page, command):
    """Its methods, suites and recipes are known, too; "…" and "NAME" stand for what a user has."""
    parser = benchmarks_parser() if command.startswith(BENCHMARKS) else build_parser()
    args = parser.parse_args(words(command))
    if isinstance(getattr(args, "suite", None), str) and args.suite != "NAME":
        assert args.suite in suite_names()
    methods = getattr(args, "methods", None)
    if isinstance(methods, tuple) and methods != ("…",):
        assert parse_methods(methods, getattr(args, "sweep", ()))
    if getattr(args, "recipe", "RECIPE") != "RECIPE" and args.stage != "NAME":
        assert trained(args)["device"]  # its recipe takes them, too


def test_the_ten_lines_print_a_speedup(tmp_path):
    snippet = blocks(README, "python")[0]
    assert len(snippet.splitlines()) <= 10
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", snippet],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^speed-up: \d+\.\d\d$", ran.stdout, re.MULTILINE)
    assert (tmp_path / "purple_triangle.png").stat().st_size


@pytest.mark.parametrize("page", [n for n, text in TEXTS.items() if blocks(text, "python")])
def test_snippets_import_what_is_there(page):
    for block in blocks(TEXTS[page], "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, name.name) for name in node.names)


def test_the_first_screen_is_understood_in_a_minute():
    """Ten rows, the two commands, where to go next, and what no figure is of."""
    assert len(FIRST_SCREEN.splitlines()) <= 70
    ((command, _, table),) = MADE.findall(FIRST_SCREEN)
    assert "--short" in command
    assert len(table.split("\n\n")[0].splitlines()) == 2 + 10
    assert "on one or two CPU cores. None is of a GPU" in " ".join(FIRST_SCREEN.split())
    assert "## Where to go next" in FIRST_SCREEN
    assert re.findall(r"^make (\w+)", FIRST_SCREEN, re.MULTILINE) == ["picture", "demo"]
    prose = FIRST_SCREEN.replace(table, "")
    assert [figure for figure in re.findall(SPEEDUP, prose) if figure not in table] == []


def test_the_first_screen_counts_methods_and_those_measured():
    first = " ".join(FIRST_SCREEN.split())
    methods = {name for name, method in presets().items() if method.role == "method"}
    reports = [Report.read(path) for path in RUNS]
    rows = {name for names in measured(reports).values() for name in names}
    assert f"has {len(methods)} methods" in first
    assert f"For {len(methods & rows)} of them [stored reports]" in first


def test_quick_start_begins_with_a_clone():
    """In the order in which a newcomer types it, and each picture that is asked about is there."""
    typed = [
        line.split("  #")[0].strip()
        for block in blocks(README, "sh")
        for line in block.splitlines()
    ]
    assert typed[0].startswith("git clone ")
    assert typed[1] == "cd mmspec"
    assert typed[2] == "make picture"
    drawn, _ = (line for line in typed if line.startswith("mmspec generate"))
    (asked,) = (line for line in typed if line.startswith("mmspec ask"))
    method, seed = PIPELINES["image"].first[0], build_parser().parse_args(words(drawn)).seed
    assert f"out/{method}-{seed}.png" in asked


def test_tables_are_those_that_their_commands_make(monkeypatch):
    """And each lies on the page that its command names."""
    monkeypatch.chdir(ROOT)
    made = [(name, *found) for name, text in TEXTS.items() for found in MADE.findall(text)]
    pages = ["README.md", "docs/methods.md", "docs/methods.md", "docs/results.md"]
    assert sorted(name for name, *_ in made) == pages
    for name, command, page, text in made:
        assert name == page
        args = build_parser().parse_args([*words(command), "--into", page])
        assert args.make(args) == text, f"out of date: {command} --into {page}"


@pytest.mark.parametrize("name", [path.parent.name for path in RUNS])
def test_pages_of_stored_reports_are_those_that_would_be_drawn(name, tmp_path):
    stored = ROOT / "assets/reports" / name
    shutil.copytree(stored, tmp_path / name)
    write_reports(tmp_path / name)
    drawn = (tmp_path / name / "report.md").read_text()
    assert (stored / "report.md").read_text() == drawn, f"mmspec eval report {name}"


def test_reports_name_what_they_ran_on():
    for path in RUNS:
        report = Report.read(path)
        machine, wanted = report.environment, ["processor", "threads", "device", "dtype"]
        wanted += ["resolution"] * (report.pipeline in PIPELINES)  # text has none
        assert all(machine.get(name) for name in wanted), path


def known(commit: str) -> bool:
    """Whether it is in the history here; a copy with none, or with a part, can't deny it."""
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]
    part = [*git, "rev-parse", "--is-shallow-repository"]
    if not (ROOT / ".git").exists():
        return True
    if subprocess.run(part, check=True, capture_output=True, text=True).stdout.strip() == "true":
        return True
    asked = [*git, "merge-base", "--is-ancestor", commit, "HEAD"]
    return subprocess.run(asked, capture_output=True).returncode == 0


@pytest.mark.parametrize("path", sorted(REPORTS))
def test_reports_name_the_commit_that_they_were_measured_at(path):
    """One of the history here, and nothing beside it; else a note says what is wrong with it."""
    report = json.loads((ROOT / path).read_text())
    commit, notes = report["environment"]["commit"], report.get("notes", [])
    if commit is None:
        assert any(note.startswith("no commit was recorded") for note in notes)
    elif not re.fullmatch("[0-9a-f]{12,}", commit) or not known(commit):
        assert any(note.startswith(f"commit {commit} ") for note in notes)


@pytest.mark.parametrize("page", TEXTS)
def test_links_resolve(page):
    for link in links(TEXTS[page]):
        path, _, anchor = link.partition("#")
        target = (PAGES[page].parent / path).resolve() if path else PAGES[page]
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text()), link


def test_every_page_is_reachable_from_the_readme():
    """In two steps; cards of embedded models are found where they lie."""
    reached = {"README.md"}
    for _ in range(2):
        for name in list(reached):
            targets = ((PAGES[name].parent / link.partition("#")[0]) for link in links(TEXTS[name]))
            found = {os.path.relpath(target.resolve(), ROOT) for target in targets}
            reached |= found & set(PAGES)
    assert {name for name in PAGES if not name.startswith("assets/models/")} <= reached


def figures(text: str) -> list[str]:
    """With two decimals or more, outside of links and code."""
    return re.findall(r"−?\d+\.\d\d+", re.sub(r"\]\([^)]*\)|`[^`]*`", "", text))


def stands(figure: str, text: str) -> bool:
    """Whether a figure is in a text, and not as a part of a longer one."""
    return re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", text) is not None


def test_negative_results_are_in_the_reports_that_they_name():
    """In rows of the methods that a sentence names, or of plain decoding.

    But for benchmarks, which print theirs: each names its command and the machine.
    """
    section = TEXTS["docs/when-it-does-not-help.md"]
    told = [item.split("\n\n")[0] for item in section.split("\n- ")[1:]]
    assert len(told) >= 5
    for item in told:
        report = re.search(r"\(\.\./(assets/reports/[^)]*report\.md)\)", item)
        if report is None:
            assert not figures(item) or (f"`{BENCHMARKS}micro" in item and "EPYC" in item)
            continue
        assert figures(item)
        rows = [row.split("|") for row in (ROOT / report[1]).read_text().splitlines()]
        for part in re.split(r";|\. ", item):
            named = {"plain", *re.findall(r"`([\w.:-]+)`", part)}
            found = " ".join(
                cell
                for _, method, *cells in (row for row in rows if len(row) > 2)
                for cell in cells
                if re.split(r"[\\\[@ ]", method.strip())[0] in named
            )
            assert [figure for figure in figures(part) if not stands(figure, found)] == [], part


def test_figures_of_measured_are_in_the_reports_that_their_section_links():
    """But for benchmarks, which print theirs: each names its command."""
    page = PAGES["assets/reports/README.md"]
    for section in TEXTS["assets/reports/README.md"].split("\n## ")[1:]:
        if section.startswith("Benchmarks"):
            items = section.split("\n- ")[1:]
            assert items
            named = re.compile(f"`{BENCHMARKS}(?!micro(?! --only))")
            unnamed = [item for item in items if not named.search(" ".join(item.split()))]
            assert unnamed == []
            continue
        linked = [page.parent / link for link in re.findall(r"\]\(([^)#]*\.md)\)", section)]
        pages = {"report.md", "experts.md", "growth.md", "simulation.md", "weights.md"}
        assert {link.name for link in linked} & pages
        found = " ".join(link.read_text() for link in linked)
        text = re.sub(r"\]\([^)]*\)|`[^`]*`", "", section)
        figures = re.findall(r"−?\d[\d,]*\.\d+", text)
        assert figures
        missing = [figure for figure in figures if not stands(figure, found)]
        assert missing == [], section.splitlines()[0]


def test_every_drafter_is_explained():
    """On the page of methods, with the method that it is of."""
    told = TEXTS["docs/methods.md"].split("## Drafters")[1].split("\n## ")[0]
    assert {name for name in parts("drafter") if f"`{name}`" not in told} == set()


def test_every_paper_is_listed_once_and_every_number_points_at_one():
    references = TEXTS["docs/references.md"]
    numbers = [int(n) for n in re.findall(r"^(\d+)\. ", references, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    cited = set()
    for text in (*TEXTS.values(),):
        prose = FENCED.sub("", text)
        for group in re.findall(r"\[(\d+(?:, \d+)*)\](?!\()", re.sub(r"`[^`]*`", "", prose)):
            cited |= {int(n) for n in group.split(", ")}
    assert cited == set(numbers)


def cited() -> set[tuple[str, str, str]]:
    """First author, year and, where it is quoted, title of all papers in docstrings."""
    found = set()
    for room in ("mmspec", "eval", "pipelines", "examples"):
        for path in ROOT.glob(f"{room}/**/*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                    found |= set(CITED.findall(" ".join((ast.get_docstring(node) or "").split())))
    return found


def test_every_paper_of_a_docstring_is_listed():
    """By its first author, its year and, where it is quoted, its title or the title's beginning."""
    entry = re.compile(r"^(?:\d+\.|-) ([^*]*)\*(.+)\*(.*)$", re.MULTILINE)
    listed = [
        (set(re.findall(r"[\w’-]+", authors)), title.lower(), where)
        for authors, title, where in entry.findall(TEXTS["docs/references.md"])
    ]
    papers = cited()
    assert len(papers) > 50
    missing = [
        (author, year, title)
        for author, year, title in papers
        if not any(
            author in authors and title.lower() in name and year in where
            for authors, name, where in listed
        )
    ]
    assert missing == []
