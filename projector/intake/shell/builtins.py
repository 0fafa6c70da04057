"""Evaluates the commands that a shell carries out itself."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from getopt import GetoptError, getopt
from itertools import zip_longest
from typing import TYPE_CHECKING

from projector.intake.shell.conditions import Undecided, Verdict, tested
from projector.intake.shell.control import Break, Continue, Exit, Return
from projector.intake.shell.outputs import printed
from projector.intake.shell.state import State
from projector.intake.shell.unknown import Unknown, is_known

if TYPE_CHECKING:
    from projector.intake.shell.machine import Machine

#: Sourced files that prepare a machine and say nothing about a training.
_PREPARES_MACHINE = re.compile(
    r"bashrc|profile|activate|conda|modules?\b|lmod|/etc/|set_?env|setvars|spack|nvm|hpcx|venv|virtualenv|/opt/|cuda|"
    r"env/bin|mamba|rocm|ascend|cann|oneapi|proxy|secret|token|credential|\.env$|nccl|wandb|utils?\.sh|log(ging)?\.sh",
    re.IGNORECASE,
)


def _bracket(machine: Machine, argv: list[str], state: State) -> Verdict:
    items = argv[1:-1] if argv[0] in ("[", "[[") else argv[1:]
    return tested(machine, items, state, double=argv[0] == "[[")


def _echo(machine: Machine, argv: list[str], state: State) -> Verdict:
    name = argv[2] if argv[:2] == ["printf", "-v"] and len(argv) > 3 else ""
    text = printed([argv[0], *argv[3 if name else 1 :]], None, cwd=state.cwd)
    text = machine.unknowns.mark(Unknown(f"$({' '.join(argv)[:60]})")) if text is None else text
    if name:
        state.set(name, text)
    else:
        machine.emit(text)
    return True


def _cd(machine: Machine, argv: list[str], state: State) -> Verdict:
    target = next((word for word in argv[1:] if not word.startswith("-")), "")
    target = machine.unknowns.as_shell(target)
    if target:
        state.cwd = posixpath.normpath(posixpath.join(state.cwd, target)) if is_known(target) else target
    return True


def _shift(_: Machine, argv: list[str], state: State) -> Verdict:
    count = int(argv[1]) if len(argv) > 1 and argv[1].isdigit() else 1
    fine = count <= len(state.positional)
    if fine:
        del state.positional[:count]
    return fine


#: Options of ``set`` that count here.
_OPTIONS = {"u": "nounset", "a": "allexport"}


def _set(_: Machine, argv: list[str], state: State) -> Verdict:
    for number, word in enumerate(argv[1:], 1):
        if word == "--":
            state.positional = argv[number + 1 :]
            return True
        named = re.fullmatch("[-+][a-z]*o", argv[number - 1])  # a name in full stands behind -o
        names = {word} if named else {_OPTIONS[letter] for letter in word[1:] if letter in _OPTIONS}
        if (named[0] if named else word).startswith("+"):
            state.options -= names
        elif named or word.startswith("-"):
            state.options |= names
        else:
            state.positional = argv[number:]
            return True
    return True


def _eval(machine: Machine, argv: list[str], state: State) -> Verdict:
    return machine.run_text(" ".join(argv[1:]), f"{machine.here}: eval", state, marked=True)


def _source(machine: Machine, argv: list[str], state: State) -> Verdict:
    if len(argv) < 2:
        return True
    path = argv[1]
    text = machine.files.read(path, state)
    shown = machine.unknowns.shown(path)
    if text is None:
        prepares = _PREPARES_MACHINE.search(shown) and not re.search(r"(model|train|config|param|args|hyper)", shown)
        if not prepares:
            machine.absent[shown] = None
            state.missing.append(shown)
        return True
    outer, before = state.positional, state.script
    state.positional, state.script = argv[2:] or outer, path
    try:
        return machine.run_text(text, posixpath.basename(shown), state)
    except Return as error:
        return error.fine
    finally:
        state.script, state.positional = before, outer if len(argv) > 2 else state.positional


def _exit(_: Machine, argv: list[str], __: State) -> Verdict:
    raise Exit(int(argv[1]) if len(argv) > 1 and re.fullmatch(r"\d{1,4}", argv[1]) else 0 if len(argv) == 1 else None)


def _return(machine: Machine, argv: list[str], __: State) -> Verdict:
    raise Return(machine.status if len(argv) < 2 else argv[1] == "0")


def _leave(_: Machine, argv: list[str], __: State) -> Verdict:
    levels = int(argv[1]) if len(argv) > 1 and argv[1].isdigit() else 1
    raise Break(levels) if argv[0] == "break" else Continue(levels)


def _let(machine: Machine, argv: list[str], state: State) -> Verdict:
    for text in argv[1:]:
        machine.parameters(state).arithmetic(text)
    return True


def _read(machine: Machine, argv: list[str], state: State) -> Verdict:
    text = machine.stdin[-1]
    try:
        options, names = getopt(argv[1:], "ersa:d:i:n:N:p:t:u:")
    except GetoptError:
        return False
    given = dict(options)
    names = [given["-a"]] if "-a" in given else names or ["REPLY"]
    if text is None:
        if state.variables.get("__read") == names[0]:
            state.variables.pop("__read")
            return False
        state.variables["__read"] = names[0]
        for name in names:
            state.set(name, machine.unknowns.mark(Unknown(f"${name} (read from input)", f"--env {name}=…")))
        return True
    if not text:
        return False
    end = re.escape(given.get("-d", "\n")[:1] or "\0")
    taken = re.match(rf"[^{end}]*" if "-r" in given else rf"(?:\\.|[^\\{end}])*", text, re.DOTALL)
    record = taken[0] if taken else ""
    machine.stdin[-1] = text[len(record) + 1 :]
    record = record if "-r" in given else re.sub(r"\\(?:\n|(.))", r"\1", record)
    if "-a" in given:
        state.variables[names[0]] = _fields(record, state, 0)
        return True
    fields = _fields(record, state, len(names))
    for name, field in zip_longest(names, fields[: len(names)], fillvalue=""):
        state.set(name, field)
    return True


def _fields(record: str, state: State, most: int) -> list[str]:
    """Returns the fields of ``record`` between characters of IFS; the last of ``most`` (0: any) is the rest as it stands."""
    between = str(state.variables.get("IFS", " \t\n"))
    blank, marks = "".join(filter(str.isspace, between)), re.sub(r"\s", "", between)
    record = record.strip(blank) if blank else record
    if not between or not record or most == 1:
        return [record] if record else []
    spaces = f"[{re.escape(blank)}]" if blank else "(?!)"
    mark = rf"{spaces}*[{re.escape(marks)}]{spaces}*|" if marks else ""
    fields = re.split(rf"{mark}{spaces}+", record, maxsplit=max(most - 1, 0))
    return fields if fields[-1] or most else fields[:-1]


def _mapfile(machine: Machine, argv: list[str], state: State) -> Verdict:
    try:
        options, names = getopt(argv[1:], "td:n:s:O:u:C:c:")
    except GetoptError:
        return False
    given, name = dict(options), names[0] if names else "MAPFILE"
    text = machine.stdin[-1]
    counts = [given.get(option, "0") for option in ("-s", "-n")]
    if text is None or not given.keys() <= {"-t", "-d", "-n", "-s"} or not all(map(str.isdecimal, counts)):
        state.variables[name] = [machine.unknowns.mark(Unknown(f"${name} (read from input)"))]
        return True
    end = given.get("-d", "\n")[:1] or "\0"
    lines = [line + end for line in text.removesuffix(end).split(end)] if text else []
    lines = lines[int(counts[0]) :][: int(counts[1]) or None]
    state.variables[name] = [line.removesuffix(end) if "-t" in given else line for line in lines]
    return True


def _getopts(_: Machine, argv: list[str], state: State) -> Verdict:
    if len(argv) < 3:
        return False
    spec, name = argv[1], argv[2]
    index = int(str(state.variables.get("OPTIND", "1")))
    if index > len(state.positional) or not state.positional[index - 1].startswith("-"):
        return False
    word = state.positional[index - 1]
    letter = word[1:2]
    state.set(name, letter if letter and letter in spec else "?")
    if f"{letter}:" in spec:
        attached = word[2:]
        following = state.positional[index] if index < len(state.positional) else ""
        state.set("OPTARG", attached or following)
        index += 0 if attached else 1
    state.set("OPTIND", str(index + 1))
    return True


def _command_or_exec(machine: Machine, argv: list[str], state: State) -> Verdict:
    rest = argv[1:]
    if argv[0] == "command" and rest and rest[0] in ("-v", "-V"):
        name = rest[-1]
        machine.emit(name + "\n")
        return Undecided(f"{machine.unknowns.shown(name)} is installed", files=True)
    rest = [word for number, word in enumerate(rest) if number or not word.startswith("-")]
    if not rest:
        return True
    builtin = BUILTINS.get(rest[0])
    verdict = builtin(machine, rest, state) if builtin else machine.programs.run(rest, state, "", 0)
    if argv[0] == "exec":
        raise Exit(0)
    return verdict


BUILTINS: dict[str, Callable[[Machine, list[str], State], Verdict]] = {
    **dict.fromkeys(("[", "[[", "test"), _bracket),
    **dict.fromkeys(("echo", "printf"), _echo),
    **dict.fromkeys(("cd", "pushd"), _cd),
    **dict.fromkeys(("source", "."), _source),
    **dict.fromkeys(("mapfile", "readarray"), _mapfile),
    **dict.fromkeys(("command", "builtin", "exec"), _command_or_exec),
    **dict.fromkeys(("true", ":", "trap", "wait"), lambda *_: True),
    "false": lambda *_: False,
    "shift": _shift, "set": _set, "eval": _eval, "let": _let, "read": _read, "getopts": _getopts,
    "exit": _exit, "return": _return, "break": _leave, "continue": _leave,
}  # fmt: skip
