"""`mmspec demo`: what it refuses before it serves anything, in one line."""

from __future__ import annotations

import pytest

from mmspec.cli.main import main


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "imge=x"], "unknown modality 'imge'; did you mean 'image'?"),
        (["--model", "image=/no/such"], "no model folder at /no/such"),
        (["--models-root", "/no/such"], "--models-root /no/such is no folder"),
        (["--port", "0"], "--port must be from 1 to 65535, not 0"),
        (["--device", "abacus"], "device 'abacus' can't be used"),
        (["--host", "no_such_host"], "can't serve at no_such_host:7860: "),
        (["--host", "203.0.113.7"], "can't serve at 203.0.113.7:7860: "),
    ],
)
def test_command_refuses_in_one_line(capsys, words, told):
    assert main(["demo", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"mmspec: error: {told}")
    assert error.count("\n") == 1


def test_a_model_is_given_with_its_modality(capsys):
    with pytest.raises(SystemExit):
        main(["demo", "--model", "image"])
    told = "mmspec demo: error: argument --model: must be MODALITY=FOLDER, not 'image'\n"
    assert capsys.readouterr().err == told


def test_a_folder_that_can_not_be_read(capsys, tmp_path):
    (tmp_path / "model_index.json").write_text("[]")
    assert main(["demo", "--port", "7999", "--model", f"image={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert "does not hold a JSON object" in error
    assert error.count("\n") == 1
