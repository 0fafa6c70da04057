"""The one printer of tables: nothing is cut, whole columns go, and what went is said."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.io import terminal
from projector.io.table import Column, Line, Table

WIDE = Table(
    title="t",
    columns=(
        Column("name", numeric=False),
        Column("n"),
        Column("extra", minor=1),
        Column("more", minor=2),
        Column("said", numeric=False),
    ),
    rows=(("first", "1", "22.5 %", "333", "x" * 20), ("second", "-4.25", "0", "5", "a few words that go on below")),
    note="A note.",
)


def lines(table: Table, width: int | None = None, most: int | None = None) -> list[str]:
    return [text for text, _ in terminal.plain([table], width, most)]


def test_tables_align_and_say_what_they_leave_out() -> None:
    columns = (Column("name", numeric=False), Column("n"))
    table = Table(title="t", columns=columns, rows=(("a", "1"), ("bb", "22"), ("c", "3")), note="x")
    head = ["", "t", "name   n", "----  --", "a      1", "bb    22"]
    assert lines(table, most=2) == [*head, "… and 1 more: see the report files", "x"]


def test_a_total_stands_apart() -> None:
    table = Table(title="", columns=(Column("n"),), rows=(("1",), ("2",), ("3",)), total=True)
    assert lines(table) == ["", "n", "-", "1", "2", "-", "3"]


def test_the_least_important_columns_go_first_and_are_named() -> None:
    assert lines(WIDE)[2].split() == ["name", "n", "extra", "more", "said"]
    narrow, narrower = lines(WIDE, 50), lines(WIDE, 44)
    assert narrow[2].split() == ["name", "n", "extra", "said"]
    assert "Left out at this width: more; a wider terminal or" in narrow
    assert narrower[2].split() == ["name", "n", "said"]
    assert "Left out at this width: extra, more;" in " ".join(narrower)


def test_words_go_on_in_the_next_line_and_figures_never_do() -> None:
    made = lines(WIDE, 40)
    assert any(line.startswith("second") and "-4.25" in line for line in made)
    assert re.sub(r"\s+", " ", " ".join(line[-24:] for line in made if "few" in line or "below" in line)).endswith(
        "below"
    )
    assert "…" not in "".join(made)


def test_a_long_name_breaks_at_its_marks() -> None:
    name = "mbridge-26.02-pretraining-gpt_oss_120b-b300-64g-bf16-gbs1280-tp1pp1cp1vp1ep64"
    table = Table(title="t", columns=(Column("row", numeric=False), Column("n")), rows=((name, "12.5 %"),))
    parts = [line.split()[0] for line in lines(table, 50)[4:]]
    assert "".join(parts) == name
    assert all(part[-1] in "-_." for part in parts[:-1])


@given(
    st.lists(st.tuples(st.text("ab-_ 1", max_size=70), st.integers(-(10**9), 10**9), st.floats(0, 1e6)), max_size=6),
    st.integers(30, 200),
)
def test_every_figure_is_whole_or_its_column_is_gone(rows: list[tuple[str, int, float]], width: int) -> None:
    columns = (Column("what is it", numeric=False), Column("whole"), Column("broken", minor=1))
    cells = tuple((name, str(n), f"{x:.3f} %") for name, n, x in rows)
    made = lines(Table(title="t", columns=columns, rows=cells), width)
    assert all(len(line) <= width for line in made)
    text = " ".join("\n".join(made).split())
    left = text.partition("Left out at this width: ")[2]
    for _, whole, broken in cells:
        assert whole in text
        assert broken in text or "broken" in left


def test_a_line_keeps_its_indent_and_a_path_its_letters() -> None:
    assert terminal.wrapped("  some words that go on", 12) == ["  some words", "  that go on"]
    assert terminal.wrapped("written to /a/path/of/many/letters", 12)[-1] == "/a/path/of/many/letters"


@pytest.mark.parametrize(("stated", "width"), [("", None), ("72", 72), ("wide", None), ("0", None)])
def test_a_pipe_is_as_wide_as_its_tables_unless_told(
    stated: str, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", stated)
    out = io.StringIO()
    assert terminal.width_of(out) == width
    terminal.show([Line("bold", "bold"), WIDE], out)
    assert "\x1b" not in out.getvalue()
