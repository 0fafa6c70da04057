# ruff: noqa: E501 (shell text in tables)
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
from tabled import tabled

from projector.errors import InputError, Unsupported
from projector.intake import scripts
from projector.intake.scripts import load
from projector.intake.shell.control import TooLong
from projector.intake.shell.evaluate import commands
from projector.intake.shell.patterns import matches, most_steps, searchable, strip_prefix

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="no bash to compare with")

#: Each ends in a launch whose words are compared with what bash passes.
CONSTRUCTS = {
    "defaults": 'TP=${TP:-2}; : ${PP:=4}; E=""; torchrun t.py --a $TP $PP "${E:-x y}" ${E:+no} ${TP:+yes}',
    "export, local": 'export A=1 B="2 3"; f() { local A=9 C=$1; torchrun t.py --f $A "$B" $C; }; f 7; A=${A}5; torchrun t.py --g $A',
    "arrays": 'A=(--x 1 "two words"); A+=(--y "$((3+4))"); torchrun t.py "${A[@]}" ${#A[@]} ${A[2]} "${A[*]}" "${A[@]:1:2}"',
    "array with comments": "A=(\n --x 1 # one\n # --x 2\n --y 3\n)\ntorchrun t.py ${A[@]}",
    "envsubst": "export A=1 B='x y'; C=3; printf '%s\\n' 'a=$A ${B} $C' > t; torchrun t.py $(envsubst < t) \"$(envsubst '$A' < t)\"",
    "lone dollars": 'D="--dir $/fsx/x"; torchrun t.py $D a$/b "$/c" "x$"',
    "words of a text": 'O=" --a 1 \\\n --b 2 "; torchrun t.py $O --c "$O"',
    "associative": "declare -A M=([7b]=32 [13b]=40); M[x]=5; k=13b; torchrun t.py --n ${M[$k]} ${M[7b]} ${M[x]} ${#M[@]}",
    "arithmetic": "N=4; let K=N*2; (( J = K + 1 )); i=1; ((i++)); torchrun t.py --n $((16*N)) $K $J $i $((7/2)) $((-7/2)) "
    "$((7%3)) $((2**5)) $((N>3?10:20)) $((0x1f)) $(( (1<<3) | 1 )) $((!0)) $((N==4&&J!=9)) $[N+1]",
    "far characters": "x='\U0001f600\U000e0001'; torchrun t.py --n {\U000e0001} $x a{\U0010fffd,b}",
    "bases": 'X=08; N=$((10#$X)); M=$((10#${X}+1)); Y="16#ff" ; torchrun t.py --n $N $M $((10#"$X")) $((2#101)) $((Y)) # 10#$X',
    "suffixes": "x=a/b/train.tar.gz; torchrun t.py --n ${x%.*} ${x%%.*} ${x#*/} ${x##*/} ${x/a/z} ${x//a/z} ${x:2:3} ${x: -2} ${#x} "
    "${x^^} ${x/%gz/bz} ${x/#a/q}",
    "quotes": """x=v; torchrun t.py --n '$x' "$x" "a'b" 'a"b' a\\ b "\\$x" "\\\\" $'t\\tb' pre"mid $x"post""",
    "indirect": "a=1; n=a; torchrun t.py --n ${!n}",
    "if": 'x=3; y=; if [ $x -gt 2 ] && [ -z "$y" ]; then A=1; elif [ 1 = 2 ]; then A=2; else A=3; fi; torchrun t.py --a $A',
    "double brackets": "x=h100_sxm; if [[ $x == h100* && ! $x =~ ^a[0-9]+$ || -n $q ]]; then A=1; else A=2; fi; torchrun t.py --a $A",
    "quoted patterns": 'x="a*"; if [[ ab == "$x" ]]; then A=1; else A=2; fi; if [[ ab == $x ]]; then B=1; fi; torchrun t.py --a $A $B',
    "old tests": 'x=1; [ "$x" = 1 -a ! "$x" = 2 ] && A=1; [ "$x" == 2 -o -n "$x" ] || A=2; test $x -le 1 && B=3; torchrun t.py --a $A $B',
    "case": 's=7B; case "$s" in 1B) N=1;; 7B|7b) N=2;; *) N=3;; esac; case x$s in x[0-9]*) M=1;; esac; torchrun t.py --n $N $M',
    "case falls through": "s=a; N=; case $s in a) N+=1;& b) N+=2;; *) N+=3;; esac; torchrun t.py --n $N",
    "loops": "S=; for i in 1 2 {3..5} {x,y}; do [ $i = 4 ] && continue; S+=$i; done; for ((j=0;j<3;j++)); do S+=_$j; done; "
    "k=0; while [ $k -lt 3 ]; do k=$((k+1)); [ $k = 2 ] && break; done; torchrun t.py --n $S $k",
    "until": "k=0\nuntil [ $k -ge 2 ]; do k=$((k+1)); done\ntorchrun t.py --n $k",
    "options": 'set -- --tp 4 --name=big -v rest; while [[ $# -gt 0 ]]; do case "$1" in --tp) TP="$2"; shift 2;; '
    '--name=*) N="${1#*=}"; shift;; -v) V=1; shift;; *) R+=("$1"); shift;; esac; done; torchrun t.py --a $TP $N $V "${R[@]}"',
    "functions": 'add() { echo $(( $1 + $2 )); }; n=$(add 3 4); g() { return 1; }; g || B=no; torchrun t.py --n $n $B "$(add 1 1)"',
    "recursion": "f() { if [ $1 -gt 0 ]; then S+=$1; f $(($1-1)); fi; }; f 3; torchrun t.py --n $S",
    "here-document": 'X=5; cat <<EOF > c.txt\n{"n": $X, "m": "\\$X", "s": $((X+1))}\nEOF\ntorchrun t.py --c "$(cat c.txt)"',
    "quoted here-document": "X=5; cat > c.txt <<'EOF'\n$X $(date)\nEOF\ntorchrun t.py --c \"$(cat c.txt)\"",
    "here-document with tabs": 'cat <<-EOF > c.txt\n\ta\n\tEOF\ntorchrun t.py --c "$(< c.txt)"',
    "here-string": 'read -r a b <<< "1 2 3"; IFS=, read -ra L <<< "x,y"; torchrun t.py --n "$a" "$b" "${L[1]}"',
    "tools": 'x=0,1,2,3; n=$(echo $x | tr , "\\n" | wc -l); m=$(echo $x | awk -F, "{print NF}"); torchrun t.py --n $((n)) $m '
    "$(basename /a/b.sh .sh) $(dirname /a/b.sh) $(seq 1 3) $(expr 3 \\* 4) $(echo $x | cut -d, -f2) $(printf '%02d' 7)",
    "remarks": "torchrun t.py `# it's one; of two` --n 1 \\\n  `# -- 模型 --` \\\n  --m 2",
    "commas": 'x=0,1,2; n=$(($(echo $x | grep -o "," | wc -l)+1)); torchrun t.py --n $n $(echo a:b:a | grep -o a)',
    "bc": 'torchrun t.py --n $(echo "3*4" | bc) $(echo "scale=2; 7/2" | bc)'
    if shutil.which("bc")
    else "torchrun t.py --n 1",
    "eval": 'CMD="torchrun t.py --n 1"; CMD="$CMD --m \'a b\'"; eval $CMD; $CMD',
    "subshell": "x=1; (x=2; torchrun t.py --n $x); torchrun t.py --n $x; { x=3; }; torchrun t.py --n $x",
    "bash -c": """export X=1; Y=2; bash -c 'torchrun t.py --n $X "${Y:-none}" "$1"' name arg; bash -c "torchrun t.py --n $Y" """,
    "prefix": "A=1 torchrun t.py --n ${A:-0}; B=2\ntorchrun t.py --n $B",
    "two assignments in a line": "a=1 b=2\ntorchrun t.py --n $a $b",
    "script by here-document": "X=8; cat <<EOF > in.sh\ntorchrun t.py --n $X \\$1\nEOF\nbash in.sh arg",
    "sed": 'echo "n: SIZE, m: SIZE" > t.txt; sed "s/SIZE/12/" t.txt > u.txt; torchrun t.py --n "$(cat u.txt)"',
    "comments": "# TP=8\nTP=2 # TP=4\n: '\nTP=16\n'\ntorchrun t.py --n $TP # --n 3",
    "branch not taken": "if false; then torchrun t.py --n 1; fi; false && torchrun t.py --n 2; true || torchrun t.py --n 3; torchrun t.py --n 4",
    "what a pattern found": "set -u; [[ tp=8x2 =~ ^tp=([0-9]+)x([0-9]+)$ ]] && torchrun t.py --n ${BASH_REMATCH[2]}",
    "a new enough bash": "set -u; (( BASH_VERSINFO[0] >= 4 )) && [[ -n $BASH_VERSION ]] && torchrun t.py --n 1",
    "status of a pipe": "set -u; true | true; torchrun t.py --n ${PIPESTATUS[0]} | cat",
    "pipe and redirect": "torchrun t.py --n 1 2>&1 | tee log.txt; torchrun t.py --n 2 > out.log 2>&1 &\nwait",
    "heredoc to shell": "bash <<EOF\ntorchrun t.py --n 1\nEOF",
    "integer": "declare -i n=3+4; n+=1; torchrun t.py --n $n",
    "unset": "x=1; unset x; torchrun t.py --n ${x-none} ${x:-empty}",
    "getopts": 'set -- -a 3 -b rest; while getopts "a:b" o; do case $o in a) A=$OPTARG;; b) B=1;; esac; done; torchrun t.py --n $A $B',
    "shift": 'set -- a b c; shift; torchrun t.py --n $1 $# "$@"; shift 2; torchrun t.py --n $#',
    "mapfile": "mapfile -t L <<< $'a\\nb'; torchrun t.py --n \"${L[1]}\" ${#L[@]}",
    "exit": "torchrun t.py --n 1; exit 0; torchrun t.py --n 2",
    "negation": "if ! [ 1 = 2 ]; then A=1; fi; ! false && B=2; torchrun t.py --n $A $B",
    "nested": 'A=x; B="${A:-${C:-y}}-${D:-"${A}z"}"; torchrun t.py --n "$B" "$(echo "$(echo "$A")")"',
    "printf -v": "printf -v x '%s-%s' a b; torchrun t.py --n $x",
    "local scope": "x=1; f() { local x; x=2; g; }; g() { torchrun t.py --n $x; }; f; g",
    "arrays by index": 'a[0]=x; a[2]=z; i=2; torchrun t.py --n "${a[$i]}" "${a[i-2]}" "${a[-1]}"',
    "keys": 'declare -A M; M[k]=v; for k in "${!M[@]}"; do torchrun t.py --n $k=${M[$k]}; done',
}


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


_TEXT = st.text(alphabet="ab1./-_ ", max_size=8)
_NUMBER = st.integers(-20, 20)
_EXPANSION = st.sampled_from(
    [
        *(
            '"$x"',
            "$x",
            "${x%.*}",
            "${x%%.*}",
            "${x#*/}",
            "${x##*/}",
            "${x/a/z}",
            "${x//a/}",
            '"${x:-d e}"',
            "${x:+s}",
            "${#x}",
        ),
        *(
            '"${x:1:3}"',
            '"${x^^}"',
            "${y:-$x}",
            "$((n*m+1))",
            "$((n-m))",
            "$((n<m))",
            "$(( n>0 ? n : -n ))",
            "$((n%7))",
        ),
        *('"${A[@]}"', "${A[@]}", "${#A[@]}", '"${A[1]}"', '"$(echo "$x")"', "$(echo $x)", "p$x'q'", '"${A[*]}"'),
    ]
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
    file = tmp_path_factory.mktemp("bytes") / "script.sh"
    file.write_bytes(b"#!/bin/bash\n" + data)
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
    assert strip_prefix("a/b/c", "*/", longest=True) == "c"
    with pytest.raises(TooLong):
        matches("a" * 60 + "!", "+(+(a))")


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
