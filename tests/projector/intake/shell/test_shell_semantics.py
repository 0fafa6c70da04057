"""The evaluator against a real shell: a table of constructs, and expansions that hypothesis makes up."""

import contextlib
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from asked import put, refusal
from hypothesis import given
from hypothesis import strategies as st
from tabled import scripts as written_out
from tabled import tabled

from projector.errors import InputError, Unsupported
from projector.intake import scripts
from projector.intake.scripts import load
from projector.intake.shell.control import TooLong
from projector.intake.shell.evaluate import commands
from projector.intake.shell.patterns import matches, most_steps, searchable, stripped
from projector.intake.shell.unknown import is_known

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="no bash to compare with")

#: Each ends in a launch whose words are compared with what bash passes.
CONSTRUCTS = written_out(Path(__file__).parents[1] / "data/constructs.sh") | {
    "far characters": "x='\U0001f600\U000e0001'; torchrun t.py --n {\U000e0001} $x a{\U0010fffd,b}"
}
if not shutil.which("bc"):
    del CONSTRUCTS["bc"]


def of_bash(script: str, folder) -> list[list[str]]:
    """What bash passes to a stand-in for torchrun, call by call."""
    tool = folder / "bin" / "torchrun"
    tool.parent.mkdir()
    tool.write_text('#!/bin/bash\nprintf "%s\\0" "$@" >> "$CALLS"; printf "\\1\\0" >> "$CALLS"\n')
    tool.chmod(0o755)
    calls = folder / "calls"
    path = f"{tool.parent}:/usr/bin:/bin"
    subprocess.run(
        [str(BASH), "-c", script], cwd=folder, env={"PATH": path, "CALLS": str(calls)}, timeout=20, check=False
    )
    words = calls.read_text().split("\0")[:-1] if calls.exists() else []
    found: list[list[str]] = [[]]
    for word in words:
        if word == "\1":
            found.append([])
        else:
            found[-1].append(word)
    return found[:-1]


def of_ours(script: str, folder) -> list[list[str]]:
    (way,) = commands(put(folder / "script.sh", script)).paths
    return [[item.program, *item.arguments] for item in way.launches]


@needs_bash
@pytest.mark.parametrize("name", sorted(CONSTRUCTS))
def test_as_bash_does(name, tmp_path):
    real, ours = tmp_path / "real", tmp_path / "ours"
    real.mkdir()
    ours.mkdir()
    expected = of_bash(CONSTRUCTS[name], real)
    assert expected, "the construct launches nothing"
    assert of_ours(CONSTRUCTS[name], ours) == expected


_FILES = "printf '%s\\n' 'h1 slots=8 a' 'h2  slots=10' '#, c' h11 h2 h2 > f; printf '9\\n10\\n' > g"
_TOOLS = [(tool, words) for tool, uses in tabled("readers", "text_tools").items() for words in uses]


@needs_bash
@pytest.mark.parametrize(("tool", "words"), _TOOLS)
def test_a_text_tool_prints_what_it_prints_or_what_nobody_knows(tool, words, tmp_path):
    script = f'{_FILES}; torchrun t.py "$({tool} {words})"'
    if tool == "sed":
        script += f'; sed -i {words}; torchrun t.py "$(cat f)"'
    for real, ours in zip(of_bash(script, tmp_path), of_ours(script, tmp_path), strict=True):
        assert not is_known(ours[-1]) or ours[-1] == real[-1]


_TEXT = st.text(alphabet="ab1./-_ ", max_size=8)
_NUMBER = st.integers(-20, 20)
_EXPANSION = st.sampled_from(
    """"$x" | $x | ${x%.*} | ${x%%.*} | ${x#*/} | ${x##*/} | ${x/a/z} | ${x//a/} | "${x:-d e}" | ${x:+s} | ${#x} |
    "${x:1:3}" | "${x^^}" | ${y:-$x} | $((n*m+1)) | $((n-m)) | $((n<m)) | $(( n>0 ? n : -n )) | $((n%7)) | "${A[@]}" |
    ${A[@]} | ${#A[@]} | "${A[1]}" | "$(echo "$x")" | $(echo $x) | p$x'q' | "${A[*]}\"""".replace("\n   ", "").split(
        " | "
    )
)


@needs_bash
@given(x=_TEXT, y=_TEXT, n=_NUMBER, m=_NUMBER, uses=st.lists(_EXPANSION, min_size=1, max_size=6))
def test_expansions_as_bash_does(x, y, n, m, uses, tmp_path_factory):
    script = f"x='{x}' ; y='{y}'; n={n}; m={m}; A=('{x}' '{y}' \"$n\")\ntorchrun t.py --n {' '.join(uses)}\n"
    real, ours = tmp_path_factory.mktemp("real"), tmp_path_factory.mktemp("ours")
    assert of_ours(script, ours) == of_bash(script, real)


@given(data=st.data())
def test_damaged_scripts_raise_input_errors_alone(data, tmp_path_factory):
    whole = "\n".join(
        CONSTRUCTS[name] for name in data.draw(st.lists(st.sampled_from(sorted(CONSTRUCTS)), min_size=1, max_size=4))
    )
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    text = whole[:start] + data.draw(st.text(max_size=6)) + whole[stop:]
    file = tmp_path_factory.mktemp("damaged") / "script.sh"
    file.write_text(text, encoding="utf-8", errors="replace")
    with contextlib.suppress(InputError, Unsupported):
        scripts.load(file)


@given(data=st.binary(max_size=300))
def test_bytes_raise_input_errors_alone(data, tmp_path_factory):
    file = put(tmp_path_factory.mktemp("bytes") / "script.sh", b"#!/bin/bash\n" + data)
    with contextlib.suppress(InputError, Unsupported):
        scripts.load(file)


@pytest.mark.parametrize(
    "script",
    [
        "while true; do x=1; done", "f() { f; }; f",
        "for i in $(seq 1 100000); do for j in $(seq 1 100000); do x=$i; done; done",
        'x=a; for i in $(seq 1 100); do x="$x$x"; done; torchrun t.py --n $x', "bash script.sh", "eval " * 3000,
        "((" * 3000, "x=$(" * 2000, "torchrun t.py ${x:-" * 500, "{\U000e0001", "getopts ab",
    ],
)  # fmt: skip
def test_what_never_ends_ends(script, tmp_path):
    file = put(tmp_path / "script.sh", script)
    with contextlib.suppress(InputError, Unsupported):
        scripts.load(file)


# Patterns that a script brings are searched in bounded time, or refused with the reason.


_TRAINS = (
    "torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16"
    " --seq-length 2048 --max-position-embeddings 2048"
    " --micro-batch-size 1 --global-batch-size 8 --bf16 --vocab-size 32000\n"
)
_ATOMS = st.sampled_from(["a", "b", "[ab]", ".", "(a|b)", "(a|aa)", "(ab)", r"\w", "(a?)"])
_REGEXES = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{1,9}", "{3,}"])).map(lambda pair: f"({pair[0]}){pair[1]}"),
        st.lists(inner, min_size=1, max_size=2).map("".join),
    ),
    max_leaves=5,
)


@given(_REGEXES)
def test_what_is_searched_ends(regex: str) -> None:
    text = "a" * 40 + "!"
    try:
        pattern = searchable(f"{regex}$", len(text))
    except TooLong:
        return
    began = time.process_time()
    pattern.search(text)
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize("regex", ["^(a+)+$", "(a|aa)+$", "((a+)b?)*c", "a*a*a*a*a*a*a*a*b", "([a-z]+)*=$"])
def test_what_backtracks_without_end_is_refused(regex: str, tmp_path: Path) -> None:
    assert most_steps(regex, 60) > 1e8
    script = put(tmp_path / "train.sh", f'X={"a" * 60}\nif [[ "$X" =~ {regex} ]]; then exit 1; fi\n{_TRAINS}')
    refusal(load, script, match=re.escape(f"the pattern {regex} on a text of 60 characters"))


@pytest.mark.parametrize(
    "regex", [r"^([a-z]+)-?([0-9]+)$", "^node([0-9]+)$", ".*,.*", "([^,]*,){20}P", "^(a+)+$", "[a-z]+[0-9]*"]
)
def test_what_scripts_ask_is_answered(regex: str) -> None:
    assert isinstance(searchable(regex, 12), re.Pattern)
    assert most_steps(regex, 100_000) > 0  # ways of a text that is longer than a float counts


def test_shell_patterns_are_bounded_too() -> None:
    assert matches("model-7b-chat", "*-@(7b|13b)-*")
    assert stripped("a/b/c", "*/", "##") == "c"
    refusal(matches, "a" * 60 + "!", "+(+(a))", kind=TooLong)


@pytest.mark.parametrize(("command", "found"), tabled("readers", "classes_mean_in_sed_what_they_mean_in_the_shell"))
def test_classes_mean_in_sed_what_they_mean_in_the_shell(tmp_path: Path, command: str, found: str) -> None:
    script = put(tmp_path / "train.sh", f"X=$({command})\nif [[ ${{X// /}} == {found} ]]; then\n{_TRAINS}\nfi\n")
    assert load(script).recipe is not None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("regex", ["[[:space:]]+x", "[[]x"])
def test_no_pattern_of_a_script_warns_its_reader(regex: str, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f"X=$(echo abc | sed 's/{regex}//')\nif [[ abc =~ {regex} ]]; then exit 1; fi\n{_TRAINS}")
    assert load(script).recipe is not None


@pytest.mark.parametrize(
    ("before", "more", "backend"), tabled("readers", "switches_of_the_engine_leave_a_kernel_of_attention")
)
def test_switches_of_the_engine_leave_a_kernel_of_attention(
    tmp_path: Path, before: str, more: str, backend: str | None
) -> None:
    loaded = load(put(tmp_path / "train.sh", f"{before}\n{_TRAINS.strip()} {more}\n"))
    assert loaded.recipe.attention_backend == backend
    assert any("NVTE_" in text for text in loaded.assumed) == (backend is not None and not more)


@pytest.mark.parametrize(
    "edit",
    ["sed -i '2d' a.sh", "perl -pi -e 's/1/2/' a.sh", "yq -i .x=2 a.sh", "jq . a.sh > b; mv b a.sh", "exec 3> a.sh",
     "python - <<E\nwith open('a.sh', 'w') as f: f.write(1)\nE\n", "python -c 'json.dump({}, open(\"a.sh\", mode=\"w\"))'",
     "cat <<E | python3 - a.sh\np = Path(sys.argv[1])\np.write_text('')\nE\n",
     "F=a.sh python3 <<E\nshutil.copy('c', os.environ['F'])\nE\n"],
)  # fmt: skip
def test_a_file_that_is_edited_in_a_way_that_nobody_knows_is_not_read(edit, tmp_path):
    (way,) = commands(put(tmp_path / "train.sh", f"echo N=1 > a.sh; {edit}; . ./a.sh; torchrun t.py --n $N\n")).paths
    assert not is_known(way.launches[-1].arguments[-1])


@pytest.mark.parametrize(
    "text", ["print(open('a.sh').read())", "open('b', 'w').write(open('a.sh', 'r').read())", "open("]
)
def test_a_file_that_a_program_does_not_write_stays_what_it_is(text, tmp_path):
    (way,) = commands(
        put(tmp_path / "t.sh", f"echo N=1 > a.sh\npython - <<E\n{text}\nE\n. ./a.sh; torchrun t.py $N\n")
    ).paths
    assert way.launches[-1].arguments[-1] == "1"


@pytest.mark.parametrize("target", ["a", "x[0]", "$(date)", ""])
def test_a_name_for_no_variable_is_refused(target, tmp_path):
    script = put(tmp_path / "train.sh", f"a=1\ndeclare -n a={target}\n{_TRAINS}\n")
    assert f"declare -n a={target}" in str(refusal(load, script))
