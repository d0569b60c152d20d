"""What is printed does nothing to the terminal, whatever browsers and users call themselves."""

import json
from collections.abc import Callable, Mapping

import pytest

from pushops.cli.output import print_fields, print_json, print_table

HOSTILE = "a\x1b]0;title\x07\x1b[2J\r\x9b31m\x7f\u202eb\tc"


def _as_table(fields: Mapping[str, object]) -> None:
    print_table(list(fields), [list(fields.values())])


@pytest.mark.parametrize("printed", [print_fields, print_json, _as_table])
def test_control_characters_are_spelled_out(
    printed: Callable[[Mapping[str, object]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    printed({"user agent": HOSTILE, "tags": [HOSTILE]})
    out = capsys.readouterr().out.replace("\n", "")
    assert out.isprintable()
    assert "\\u001b[2J" in out


def test_json_says_the_same_to_who_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"user_agent": HOSTILE})
    assert json.loads(capsys.readouterr().out) == {"user_agent": HOSTILE}
