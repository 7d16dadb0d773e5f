"""The output of workers outside a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.elastic.flags import parse_flags
from trainer.elastic.workers.streams import Streams


@pytest.mark.parametrize("below", ["file", "file/below"])
def test_a_log_folder_that_cannot_be_created_is_refused(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="--log-dir is "):
        Streams(parse_flags([f"--log-dir={tmp_path / below}", "script.py"], {}))


def test_a_run_id_with_a_slash_becomes_one_folder(tmp_path: Path) -> None:
    streams = Streams(parse_flags([f"--log-dir={tmp_path}", "-r", "3", "script.py"], {}))
    environ = {"TORCHELASTIC_RUN_ID": "team/run", "TORCHELASTIC_RESTART_COUNT": "0"}
    output = streams.open({0: environ})[0]
    streams.close()
    assert output.folder.is_relative_to(tmp_path)
    assert environ["TORCHELASTIC_RUN_ID"] == "team/run"
    assert Path(environ["TORCHELASTIC_ERROR_FILE"]).parent == output.folder
