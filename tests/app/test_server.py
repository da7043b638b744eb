"""The server: what it gives away over HTTP, what it takes, and how the command refuses."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from mmspec.app.limits import Limits
from mmspec.app.server import served
from mmspec.app.views import ImageView
from mmspec.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


def status(address: str, data: bytes | None = None, **headers: str) -> int:
    return answer(address, data, **headers)[0]


def answer(address: str, data: bytes | None = None, **headers: str) -> tuple[int, str]:
    """Code and text."""
    request = urllib.request.Request(
        address, data, {name.replace("_", "-"): value for name, value in headers.items()}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as found:
            return int(found.status), found.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "pyproject.toml",
        "mmspec/app/page.py",
        "{model}/model_index.json",
    ],
)
def test_no_file_is_served(address, folders, path):
    assert status(address) == 200
    file = path.format(model=folders["image"])
    assert (Path(__file__).resolve().parents[2] / file).is_file()
    if not file.startswith("/"):
        assert status(f"{address}/{file}") == 404
    assert status(f"{address}/gradio_api/file={file}") in (403, 404)
    assert status(f"{address}/file={file}") in (403, 404)


@pytest.mark.parametrize(("size", "code"), [(1000, 200), (300_000, 413)])
def test_uploads_have_a_size(address, size, code):
    body = (
        b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n'
        b"Content-Type: image/png\r\n\r\n" + b"x" * size + b"\r\n--b--\r\n"
    )
    kind = "multipart/form-data; boundary=b"
    assert status(f"{address}/gradio_api/upload", body, Content_Type=kind) == code


@pytest.mark.parametrize("route", ["file=", "file/", "proxy="])
@pytest.mark.parametrize("scheme", ["https", "http", "FILE"])
def test_no_address_is_fetched(address, route, scheme):
    found = answer(f"{address}/gradio_api/{route}{scheme}://example.org/a.png")
    assert found == (403, "this server fetches no addresses")


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("evil.example", 403),
        ("evil.example:{port}", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost@evil.example", 403),
        ("[::1", 403),
        ("", 403),
        ("localhost:{port}", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:{port}", 200),
        ("[::1]:{port}", 200),
    ],
)
def test_other_hosts_are_not_answered(address, host, code):
    """A page of theirs would reach the demo through its visitor's browser."""
    host = host.format(port=address.rpartition(":")[2])
    for path in ("", "/config"):
        assert status(address + path, Host=host) == code


def join(address: str, path: str) -> tuple[int, str]:
    """Ask for a picture's thumbnail, as the page does for an upload at a path."""
    with urllib.request.urlopen(f"{address}/config", timeout=120) as config:
        (number, *_) = (
            found["id"]
            for found in json.load(config)["dependencies"]
            if found["api_name"] == "_thumbnail"
        )
    file = {"path": path, "meta": {"_type": "gradio.FileData"}}
    body = {"data": [file], "fn_index": number, "session_hash": "one"}
    kind = "application/json"
    return answer(f"{address}/gradio_api/queue/join", json.dumps(body).encode(), Content_Type=kind)


def test_an_upload_is_no_address(address):
    for path in ("https://example.org/a.png", " HTTP://127.0.0.1/"):
        assert join(address, path) == (403, "this server fetches no addresses; upload the file")
    code, event = join(address, "a.png")
    assert (code, "event_id" in event) == (200, True)


def parts(*sizes: int) -> bytes:
    """An upload of files."""
    head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    return b"".join(head + b"x" * size + b"\r\n" for size in sizes) + b"--b--\r\n"


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    ("route", "kind", "body", "code"),
    [
        ("upload", "multipart/form-data; boundary=b", parts(90_000, 90_000), 200),
        ("upload", "multipart/form-data; boundary=b", parts(*[90_000] * 3), 413),
        ("queue/join", "application/json", b'{"event_id": "' + b"x" * 90_000 + b'"}', 422),
        ("queue/join", "application/json", b'{"event_id": "' + b"x" * 110_000 + b'"}', 413),
        ("queue/join", "application/json", b"[" * 90_000, 400),
        ("queue/join", "multipart/form-data; boundary=b", parts(1000), 400),
    ],
)
def test_requests_have_a_size(address, tmp_path, declared, route, kind, body, code):
    """Also those that do not declare one; of an upload that is too large nothing stays."""
    scratch = Path(os.environ["GRADIO_TEMP_DIR"])
    before = set(scratch.rglob("*"))
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=120)
    pieces = (body[at : at + 50_000] for at in range(0, len(body), 50_000))
    headers = {"Content-Type": kind} | ({"Content-Length": str(len(body))} if declared else {})
    url = f"/gradio_api/{route}"
    connection.request("POST", url, pieces, headers, encode_chunked=not declared)
    assert connection.getresponse().status == code
    connection.close()
    if code != 200:
        assert set(scratch.rglob("*")) == before


def test_uploads_have_a_size_together(address):
    """Nothing more is taken while the folder is full."""
    kind = "multipart/form-data; boundary=b"
    full = Path(os.environ["GRADIO_TEMP_DIR"]) / "full"
    with full.open("wb") as file:
        file.truncate(Limits().uploads_bytes)
    found = answer(f"{address}/gradio_api/upload", parts(1000), Content_Type=kind)
    assert found == (503, "the server holds too many uploads; try again in an hour")
    full.unlink()
    assert status(f"{address}/gradio_api/upload", parts(1000), Content_Type=kind) == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *[(path, None) for path in ("monitoring", "robots.txt", "manifest.json", "svelte/a.js")],
        *[(f"gradio_api/{path}", None) for path in ("runs", "mcp/", "info", "openapi.json")],
        *[(f"gradio_api/{path}", None) for path in ("user", "token", "app_id", "vibe-code")],
        ("gradio_api/call/predict/1", None),
        ("config/", None),
        *[(f"gradio_api/{path}", b"{}") for path in ("api/predict", "call/predict")],
        *[(f"gradio_api/{path}", b"{}") for path in ("component_server", "vibe-edit")],
        *[(f"gradio_api/{path}", b"{}") for path in ("run/_thumbnail", "stream/1", "queue/join/")],
        ("login", b"{}"),
        ("config", b"{}"),
    ],
)
def test_what_the_page_does_not_use_does_not_answer(address, path, body):
    assert answer(f"{address}/{path}", body) == (404, "this page has nothing there")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 200),  # of no page: a program's
        ({"Origin": "http://{host}"}, 200),
        ({"Origin": "HTTP://{host}"}, 200),
        ({"Origin": "https://demo.example", "X-Forwarded-Host": "demo.example"}, 200),
        ({"Origin": "https://demo.example:443", "X-Forwarded-Host": "demo.example"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://{host}.evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "https://evil.example", "X-Forwarded-Host": "demo.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
    ],
)
def test_uploads_come_from_the_page_itself(address, headers, code):
    """A page of another origin may send a form here, whose answer it can't read."""
    host = address.removeprefix("http://")
    headers = {name: value.format(host=host) for name, value in headers.items()}
    request = urllib.request.Request(f"{address}/gradio_api/upload", parts(1000), headers)
    request.add_header("Content-Type", "multipart/form-data; boundary=b")
    scratch = Path(os.environ["GRADIO_TEMP_DIR"])
    before = set(scratch.rglob("*"))
    try:
        with urllib.request.urlopen(request, timeout=120) as found:
            given = found.status
    except urllib.error.HTTPError as error:
        given = error.code
        assert set(scratch.rglob("*")) == before
    assert given == code


def test_an_address_that_is_taken(address, capsys):
    port = address.rpartition(":")[2]
    assert main(["demo", "--port", port]) == 2
    assert "can't serve at 127.0.0.1" in capsys.readouterr().err


def test_nothing_is_left_behind(monkeypatch):
    with served({}, port=None) as url:
        assert status(url) == 200
        scratch = Path(os.environ["GRADIO_TEMP_DIR"])
        assert scratch.is_dir()
    assert not scratch.exists()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=20)


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_serves_until_it_is_ended(folders, tmp_path, stop, code):
    """As `make demo` runs it; the page is there once the line is, and no upload once it ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mmspec", "demo", "--port", str(port)]
    for modality, folder in folders.items():
        command += ["--model", f"{modality}={folder}"]
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "tmp")}
    demo = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        # a shell's background jobs, and what they start, ignore it otherwise
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        line = demo.stdout.readline()
        assert line.startswith(f"The demo is at http://127.0.0.1:{port}"), line
        url = f"http://127.0.0.1:{port}/"
        found, page = answer(url)
        assert (found, "mmspec" in page) == (200, True)
        kind = "multipart/form-data; boundary=b"
        assert status(f"{url}gradio_api/upload", parts(1000), Content_Type=kind) == 200
        (scratch,) = (tmp_path / "tmp").glob("mmspec-demo-*")
        assert any(file.name == "a.png" for file in scratch.rglob("*"))
        demo.send_signal(stop)
        assert demo.wait(60) == code
        assert not scratch.exists()
    finally:
        demo.kill()
        demo.stdout.close()


def test_the_queue_has_an_end(folders, monkeypatch):
    """A visitor has one place, one that stops a run that waits gives it up, and the rest wait."""
    go, begun = threading.Event(), threading.Event()
    observe = ImageView.observe

    def slowly(view, state):
        begun.set()
        go.wait(60)
        observe(view, state)

    monkeypatch.setattr(ImageView, "observe", slowly)
    kind = "application/json"
    with served({"image": [folders["image"]]}, port=None, limits=Limits(waiting=2)) as url:
        with urllib.request.urlopen(f"{url}config", timeout=120) as file:
            config = json.load(file)
        run = next(f for f in config["dependencies"] if f["api_name"] == "generate")
        values = {part["id"]: part["props"].get("value") for part in config["components"]}
        data = [values[field] for field in run["inputs"]]

        def post(route: str, session: str, **more: object) -> tuple[int, str]:
            body = {"fn_index": run["id"], "session_hash": session, **more}
            where = f"{url}gradio_api/{route}"
            return answer(where, json.dumps(body).encode(), Content_Type=kind)

        def join(session: str, fields: list | None = None) -> tuple[int, dict]:
            code, told = post("queue/join", session, data=fields or data)
            return code, json.loads(told)

        code, told = join("z", [" ", *data[1:]])
        assert (code, told["detail"][0]["message"]) == (
            422,
            "the prompt is empty; say what to make",
        )
        assert join("a")[0] == 200
        assert begun.wait(60)  # it is at work
        code, told = join("a")
        assert (code, "your last run is still at work" in told["detail"][0]["message"]) == (
            422,
            True,
        )
        _, waits = join("b")
        assert join("c")[0] == 200
        assert join("d")[0] == 503
        assert post("cancel", "b", **waits)[0] == 200
        assert join("d")[0] == 200
        assert post("run/predict", "e", data=data)[0] == 404  # none goes past the queue
        go.set()
