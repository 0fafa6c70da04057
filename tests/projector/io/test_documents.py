"""YAML and JSON texts: strict where a slip hides, bounded where a text could grow, plain where it is ordinary."""

import io
import math
import re

import pytest
import yaml
from asked import refusal
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from projector.errors import InputError, Problem, Unsupported
from projector.io import terminal
from projector.io.documents import DEEPEST, parse_json, parse_yaml
from projector.io.table import Column, Line, Table
from tests.conftest import ROOT

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
CHAIN = "k0: &k0 [1]\n" + "".join(f"k{i}: &k{i} [*k{i - 1}]\n" for i in range(1, 3_000))

TOO_MUCH = {
    "nested mappings": "".join(" " * i + "a:\n" for i in range(10_000)),
    "nested lists": "- " * 10_000,
    "nested brackets": "[" * 100_000,
    "closed brackets": "[" * 5_000 + "]" * 5_000,
    "nested json": '{"a":' * 500 + "1" + "}" * 500,
    "deeply nested json": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "questions": "? " * 10_000,
    "alias bomb": BOMB,
    "merge bomb": "a: &a {x: 1}\n"
    + "".join(f"{n}: &{n} {{<<: [{','.join([f'*{o}'] * 9)}]}}\n" for o, n in zip("abcdefgh", "bcdefghi", strict=True)),
    "alias chain": CHAIN,
    "alias of itself": "a: &a [*a]",
    "decimal digits": "a: " + "9" * 5_000,
    "hexadecimal digits": "a: 0x" + "f" * 5_000,
    "sexagesimal digits": "a: 1" + ":59" * 5_000,
    "json digits": '{"a": ' + "9" * 5_000 + "}",
}


@pytest.mark.parametrize("text", TOO_MUCH.values(), ids=list(TOO_MUCH))
@pytest.mark.parametrize("name", ["f.yaml", "f.json"])
def test_what_nests_or_expands_without_bound_is_one_short_mistake(text: str, name: str) -> None:
    caught = refusal(parse_yaml, text, name)
    assert len(str(caught)) < 500
    assert name in str(caught)


@pytest.mark.parametrize(("text", "line"), tabled("refusals", "yaml"))
def test_mistakes_name_their_line(text: str, line: tuple[str, ...]) -> None:
    caught = refusal(parse_yaml, text, "f.yaml")
    assert all(word in str(caught) for word in line), str(caught)


def test_aliases_and_merges_that_people_write_are_read() -> None:
    text = "base: &b {x: 1, y: 1}\nmid: &m {<<: *b, x: 2}\ntop: {<<: *m, y: 3}\nlist: [*b, *b]\n"
    expected = {"x": 1, "y": 1}
    assert parse_yaml(text, "f") == {
        "base": expected, "mid": {"x": 2, "y": 1}, "top": {"x": 2, "y": 3}, "list": [expected, expected],
    }  # fmt: skip


@st.composite
def merging(draw: st.DrawFn) -> tuple[str, dict[str, object]]:
    """A document whose mappings merge earlier ones, singly or as lists and at any depth, beside what it says written out."""
    lines: list[str] = []
    written_out: dict[str, dict[str, object]] = {}

    def mapping(depth: int) -> tuple[str, dict[str, object]]:
        sources = draw(st.lists(st.sampled_from(sorted(written_out)), max_size=3)) if written_out else []
        single = len(sources) == 1 and draw(st.booleans())
        cells = (
            [f"<<: *{sources[0]}" if single else f"<<: [{', '.join('*' + name for name in sources)}]"]
            if sources
            else []
        )
        value: dict[str, object] = {}
        for name in reversed(sources):
            value |= written_out[name]
        for key in draw(st.lists(st.sampled_from("wxyz"), unique=True, max_size=4)):
            if depth < 4 and draw(st.booleans()):
                cell, value[key] = mapping(depth + 1)
            else:
                value[key] = number = draw(st.integers(0, 99))
                cell = str(number)
            cells.insert(draw(st.integers(0, len(cells))), f"{key}: {cell}")
        return "{" + ", ".join(cells) + "}", value

    for name in (f"m{index}" for index in range(draw(st.integers(1, 5)))):
        text, written_out[name] = mapping(1)
        lines.append(f"{name}: &{name} {text}\n")
    return "".join(lines), dict(written_out)


@given(merging())
def test_a_merged_document_is_the_same_document_written_out(case: tuple[str, dict[str, object]]) -> None:
    text, written_out = case
    assert parse_yaml(text, "f.yaml") == written_out


@pytest.mark.parametrize("merge", ["1", "[*b, 1]", "null", "[[*b]]"])
def test_a_merge_of_what_is_no_mapping_is_a_mistake(merge: str) -> None:
    refusal(parse_yaml, f"b: &b {{x: 1}}\nc: {{<<: {merge}}}\n", "f.yaml", match=r"line 2: .*no mapping")


def test_a_key_that_says_the_same_word_again_is_read_and_one_that_says_another_is_not() -> None:
    assert parse_yaml("a: 1\nb: {c: x, c: x}\na: 1\n", "f.yaml") == {"a": 1, "b": {"c": "x"}}
    for other in ("2", "'1'", "[1]", "1.0"):
        refusal(parse_yaml, f"a: 1\nb: 2\na: {other}\n", "f.yaml", match="line 3: found 'a', expected each key once")


def test_two_merges_in_one_mapping_are_a_key_given_twice() -> None:
    refusal(parse_yaml, "b: &b {x: 1}\nc: {<<: *b,\n  <<: *b}\n", "f.yaml", match="line 3: found '<<'")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{\n\t"a": 1e-06\n}', {"a": 1e-06}),
        ("{a: 1, b: [2, 3]}", {"a": 1, "b": [2, 3]}),
        ('{"a": "\\u00e9"}', {"a": "é"}),
        ("", None),
        ("# nothing\n", None),
        ("[1, 2, 3]", [1, 2, 3]),
        ("{" + ", ".join(f"k{i}: [[{i}]]" for i in range(500)) + "}", {f"k{i}": [[i]] for i in range(500)}),
        ("a: {b: {c: [1]}}", {"a": {"b": {"c": [1]}}}),
    ],
)
def test_ordinary_texts(text: str, value: object) -> None:
    assert parse_yaml(text, "f.yaml") == value


def test_the_deepest_document() -> None:
    text = "[" * DEEPEST + "]" * DEEPEST
    assert parse_yaml(text, "f.yaml") == parse_json(text, "f.json")
    for parse in (parse_yaml, parse_json):
        refusal(parse, f"[{text}]", "f.yaml", match="levels")


def test_every_shipped_file_reads_as_yaml_reads_it() -> None:
    files = [*(ROOT / "measured" / "runs").glob("*.yaml"), *(ROOT / "projector").rglob("*.yaml")]
    assert len(files) > 50
    for path in sorted(files, key=lambda path: path.stat().st_size)[:80]:
        text = path.read_text(encoding="utf-8")
        assert parse_yaml(text, str(path)) == yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), path


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_what_yaml_writes_is_read_back(value: object) -> None:
    assert parse_yaml(yaml.safe_dump(value), "f.yaml") == value


@given(st.text(alphabet=st.sampled_from("a1:-? \n\t[]{},&*!|>'\"#%@`=<~.\\é\x00"), max_size=60))
def test_any_text_is_a_document_or_a_mistake(text: str) -> None:
    for name in ("f.yaml", "f.json"):
        try:
            parse_yaml(text, name)
        except InputError as error:
            assert str(error).startswith(name)  # noqa: PT017


def test_json_numbers_that_json_does_not_have() -> None:
    assert math.isinf(parse_json('{"a": 1e400}', "f")["a"])


class Loud:
    def __repr__(self) -> str:
        raise RuntimeError


FOUND = (10**5_000, "x" * 10**6, ["y" * 1_000] * 10_000, {i: i for i in range(10_000)}, Loud(), b"z" * 10**6)


@pytest.mark.parametrize("found", FOUND, ids=["integer", "text", "list", "mapping", "loud", "bytes"])
def test_what_is_printed_is_short_whatever_was_found(found: object) -> None:
    assert len(str(Problem("f.yaml", "k" * 10_000, found, "e" * 100_000))) < 12_000


def test_what_is_printed_stays_on_its_line() -> None:
    shown = str(Problem("a\nb", "k\x1b[31m", "v\n::error::x", "w\r"))
    assert shown.isprintable()
    assert "\\x1b[31m" in shown


def test_thousands_of_mistakes_are_counted() -> None:
    error = InputError(Problem("f", str(i), i, "something else") for i in range(5_000))
    assert len(error.problems) == 5_000
    assert error.lines()[-1] == "and 4900 more mistakes"
    assert len(str(Unsupported("r" * 10**6))) < 5_000


def test_long_mistakes_are_few() -> None:
    long = [Problem("a.yaml", f"key{i}", ["x" * 300] * 24, "a number") for i in range(9)]
    *shown, last = InputError(long).lines()
    assert sum(map(len, shown)) <= 16_384
    assert last == f"and {9 - len(shown)} more mistakes"
    assert InputError([Problem("a.yaml", "key", "b", "c")] * 3).lines() == ["a.yaml: key: found 'b', expected c"] * 3


# The one printer of tables: nothing is cut, whole columns go, and what went is said.


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
        assert whole in text or "whole" in left
        assert broken in text or "broken" in left


def test_a_line_keeps_its_indent_and_a_path_its_letters() -> None:
    assert terminal.wrapped("  some words that go on", 12) == ["  some words", "  that go on"]
    assert terminal.wrapped("written to /a/path/of/many/letters", 12)[-1] == "/a/path/of/many/letters"


@pytest.mark.parametrize(("stated", "width"), [("", None), ("72", 72), ("wide", None), ("0", None)])
def test_a_pipe_is_as_wide_as_its_tables_unless_told(stated: str, width: int | None, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", stated)
    out = io.StringIO()
    assert terminal.width_of(out) == width
    terminal.show([Line("bold", "bold"), WIDE], out)
    assert "\x1b" not in out.getvalue()
