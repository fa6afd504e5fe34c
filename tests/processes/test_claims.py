"""Published results that the lessons rest on: each holds, and its broken variant fails."""

import json

import pytest

from course_lib.__main__ import main
from course_lib.commands import claims
from tests.helpers import compares_times, of_times


@pytest.mark.parametrize("name", claims.names())
@compares_times()
def test_a_claim_holds_and_its_broken_variant_fails(name: str) -> None:
    found = claims.carried_out(name, seeds=1)
    with of_times():
        assert found["confirmed"], found


def test_there_are_enough_and_each_says_where_it_comes_from() -> None:
    assert len(claims.names()) >= 12
    for name in claims.names():
        page = claims.page_of(name)
        text = str(page.__doc__)
        assert "\nSource: " in text, name
        assert text.partition("\n")[0].endswith(".") and page.broken.__doc__, name
        assert page.PUBLISHED and page.UNIT, name


def test_the_command_prints_a_table_and_its_exit_code_tells_if_all_are_confirmed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["claims", "ring_bytes"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and "Patarasuk" in shown and "confirmed" in shown
    with pytest.raises(SystemExit) as ended:
        main(["claims", "ring_bytes", "--seeds", "2", "--json"])
    row = json.loads(capsys.readouterr().out)[0]
    assert ended.value.code == 0 and (row["holds"], row["fails"]) == (2, 2)
    with pytest.raises(SystemExit) as ended:
        main(["claims", "ring_byte"])
    assert ended.value.code == 2 and "ring_bytes" in capsys.readouterr().err
