"""Every example of every ``--help`` works as it stands, from the project's folder, and every ``--json`` is a document."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise

import command_line
import pytest
from cli_command import ROOT

from harness.cli import _parser as harness_parser
from projector.cli import _parser as projector_parser
from projector.cli.parser import Parser, arguments, parse

#: Commands that time the device at hand, and those that take a minute: steps of CI or their small siblings in the tests.
TORCH = ("record", "probe", "benchmark", "measure")
NIGHT = ("figures", "run", "calibrate", "ablate", "search", "sweep", "ask", "report", "compare", "kernels", "tolerance")
SERVERS = ("serve", "mcp")  # they end when they are told to


def commands():
    for program, build in (("projector", projector_parser), ("harness", harness_parser)):
        root = build()
        yield program, "", root
        for action in arguments(root):
            if action.nargs == "A...":
                yield from ((program, name, parser.filled()) for name, parser in action.choices.items())


def examples():
    for program, name, parser in commands():
        for i, line in enumerate(parser.examples):
            marks = [pytest.mark.night] if (name or line.split()[0]) in NIGHT else []
            yield pytest.param(program, name, line, id=f"{program}-{name or 'program'}-{i}", marks=marks)


def run(folder, name, line):
    return command_line.run(name, *shlex.split(line), cwd=folder, timeout=300)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The project's folder for commands that write beside what they read."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("examples", "measured", "suites"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture(scope="module")
def recorded(project):
    """The same with the results of a run, and a history of one."""
    done = run(project, "harness", "run suites/strategies.yaml --no-gate --no-plots --record --out out/scaling")
    assert done.returncode == 0, done.stderr


def test_every_command_has_two_examples_and_help_starts_with_them():
    roots = {"projector": projector_parser(), "harness": harness_parser()}
    for program, name, parser in commands():
        assert isinstance(parser, Parser)
        assert len(parser.examples) == 2, (program, name)
        for line in parser.examples:
            parse(roots[program], [*name.split(), *shlex.split(line)])
        lines = parser.format_help().splitlines()
        assert lines[0] == "examples:"
        assert sum(line.startswith(f"  python -m {program} {name}".rstrip()) for line in lines) == 2
        if name:
            assert any("--json" in flags for flags in (a.option_strings for a in arguments(parser))), (program, name)


@pytest.mark.parametrize("program", ["projector", "harness"])
def test_every_section_of_the_table_of_flags_is_a_command_or_is_added_by_one(program):
    text = (ROOT / program / "cli" / "flags.yaml").read_text(encoding="utf-8")
    sections = set(re.findall(r"^(\S.*):(?: \*\w+| &\w+)?$", text, re.MULTILINE))
    shared = {name for name in sections if name.startswith("+")}
    assert shared <= set(re.findall(r"^ +(\+.+):$", text, re.MULTILINE))
    assert sections - shared == {name for other, name, _ in commands() if other == program and name}


@pytest.mark.parametrize("columns", ["80", "200"])
def test_help_has_80_columns_and_three_groups(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    for program, name, parser in commands():
        text = parser.format_help() if name else parser.format_help() + parser.format_help(further=True)
        lines = text.splitlines()
        assert [line for line in lines if len(line) > 80] == [], (program, name)
        told = [pair for pair in pairwise(lines) if all(line[:1].strip() for line in pair) and pair[0][-1] not in ".:"]
        for line, further in told:  # a paragraph is broken where it is full, not where its source file was
            assert len(f"{line} {further.partition(' ')[0]}") >= 78, (program, name, line)
    for program, build in (("projector", projector_parser), ("harness", harness_parser)):
        short, whole = build().format_help(), build().format_help(further=True)
        groups = ("ask:", "check:", "make:")
        assert tuple(line for line in short.splitlines() if line in groups) == groups
        told = {name for other, name, _ in commands() if other == program and name}
        assert all(f"\n  {name} " in whole for name in told)
        further = {"constants", "record"} if program == "projector" else {"calibrate", "ablate"}
        assert not any(f"\n  {name} " in short for name in further)


def test_help_is_short_and_help_all_has_every_field(capsys):
    from projector.workload.fields import fields

    parser = {name: p for program, name, p in commands() if program == "projector"}["performance"]
    short = parser.format_help()
    assert len(short.splitlines()) < 160
    with pytest.raises(SystemExit):
        parser.parse_args(["--help-all"])
    whole = capsys.readouterr().out
    for field in fields():
        assert all(f"--{name.replace('_', '-')}" in whole for name in field.names), field.key
    assert "--moe-deepep-num-sms" not in short


@pytest.mark.parametrize(("program", "name", "line"), list(examples()))
def test_an_example_works(project, program, name, line, request):
    if name in TORCH and importlib.util.find_spec("torch") is None:
        pytest.skip("times the device at hand, which takes torch")
    if (program, name) in (("harness", "report"), ("harness", "history")):
        request.getfixturevalue("recorded")
    if (program, name) == ("projector", "benchmark"):
        pytest.skip("takes a device of the cluster's vendor")
    if name in SERVERS and "--json" not in line:
        pytest.skip("goes on until it is told to end")
    done = run(project, program, f"{name} {line}")
    assert done.returncode == 0, done.stderr
    if "--json" in line:
        assert isinstance(json.loads(done.stdout), dict)
    else:
        assert done.stdout


def test_what_comes_with_the_program(project):
    for program in ("projector", "harness"):
        assert run(project, program, "--version").stdout.startswith(f"{program} 0.")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(project, shell):
    script, other = (run(project, program, f"--completion {shell}") for program in ("projector", "harness"))
    assert (script.returncode, other.returncode) == (0, 0), script.stderr + other.stderr
    for word in ("performance", "llama3.1_8b", "mi355x", "megatron-lm", "moe-deepep-num-sms", "no_shard"):
        assert word in script.stdout


def test_completion_in_fish(project):
    script = run(project, "projector", "--completion fish").stdout
    gpus = [line for line in script.splitlines() if line.startswith("complete ") and " -l gpu " in line]
    assert any("performance" in line and " mi355x" in line for line in gpus)
    if shutil.which("fish"):
        subprocess.run(["fish", "-n"], input=script, text=True, check=True)


def test_completion_in_bash(project):
    script = run(project, "projector", "--completion bash").stdout
    ask = "COMP_WORDS=(projector performance --gpu mi35); COMP_CWORD=3; _shtab_projector; echo ${COMPREPLY[@]}"
    done = subprocess.run(["bash"], input=f"{script}\n{ask}", capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["mi350x", "mi355x"], done.stderr


@pytest.mark.parametrize("program", ["projector", "harness"])
def test_help_imports_no_command_and_nothing_large(program):
    code = (
        f"import sys; from {program}.__main__ import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"large = {{'numpy', 'yaml', 'rich', '{program}.cli.trace', '{program}.cli.search'}}\n"
        "print(sorted(large & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
