"""Takes apart the command lines of launchers and of the wrappers in front of them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from itertools import pairwise

from projector.intake.shell.launch import Step
from projector.intake.shell.unknown import MARK, listed
from projector.intake.tables import table

MPI = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "aprun", "jsrun", "prun", "horovodrun")
TEXT_TOOLS = listed("text_tools")
_WRAPPERS = listed("wrappers")
_PYTHON = re.compile(r"(?:i?python|pypy)(?:\d+(?:\.\d+)?)?t?$")
_TORCH_MODULES = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic.run")
_KINDS = {name: kind for kind, names in table("launchers", "kinds").items() for name in names.split()}
_FLAGS = {kind: listed(f"{kind}_flags") for kind in _KINDS.values()}
_MPI_TWO, _MPI_NONE, _MPI_COUNT, _MPI_EACH = map(listed, ("mpi_two", "mpi_none", "mpi_count", "mpi_each"))
_BCP, _JSRUN = (
    {option: name for name, options in table("launchers", tool).items() for option in options.split()}
    for tool in ("bcp", "jsrun")
)


def starts_program(word: str) -> bool:
    """Says whether ``word`` starts a command that may train: an interpreter, a launcher, a script."""
    name = posixpath.basename(MARK.sub("", word))
    return (
        name in ("bash", "sh", "srun", "zsh", *_KINDS.values(), *MPI)
        or _PYTHON.match(name) is not None
        or bool(re.search(r"\.(sh|bash|py)$", name))
    )


def unwrapped(name: str, argv: Sequence[str]) -> list[str] | None:
    """Returns the command behind the wrapper ``name``; None when ``name`` is no wrapper."""
    if name not in _WRAPPERS:
        return None
    if name == "env":
        return list(argv[1:])
    for at in range(1, len(argv)):
        word = argv[at]
        if starts_program(word) and argv[at - 1] not in ("--entrypoint", "-o", "--output", "--name", "-w", "--workdir"):
            return list(argv[at:])
    plain = [at for at in range(1, len(argv)) if not argv[at].startswith("-")]
    return list(argv[plain[0] :]) if name in ("nohup", "time", "sudo", "setsid") and plain else []


def launched(name: str, argv: Sequence[str]) -> tuple[Step | None, str, list[str]] | None:
    """Returns (launcher, program, its arguments) of an interpreter or a launcher; None for any other command."""
    if kind := _KINDS.get(name):
        words = argv[1:] if kind != "accelerate" else argv[2:] if argv[1:2] == ["launch"] else []
        options, rest = _options(words, _FLAGS[kind], table("launchers", "short").get(kind, {}))
        return Step(kind, options), *_program(rest)
    if _PYTHON.match(name):
        return _python(list(argv[1:]))
    if re.search(r"\.py$", name):
        return None, argv[0], list(argv[1:])
    return None


def submitted(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Returns (options, the command behind ``--``) of a program that submits another one; both empty for others."""
    if "--" not in arguments:
        return {}, []
    at = arguments.index("--")
    command = list(arguments[at + 1 :])
    while "&&" in command:  # quoted: what prepares the machine, and then the command
        command = command[command.index("&&") + 1 :]
    if not command or not (starts_program(command[0]) or posixpath.basename(command[0]) in _WRAPPERS):
        return {}, []
    submitter_options = {word.lstrip("-").replace("-", "_"): value for word, value in pairwise(arguments[: at + 1])}
    return submitter_options, command


def _python(rest: list[str]) -> tuple[Step | None, str, list[str]]:
    while rest:
        word = rest[0]
        if word == "-m":
            module = rest[1] if len(rest) > 1 else ""
            if module in _TORCH_MODULES:
                return launched("torchrun", ["torchrun", *rest[2:]]) or (None, "", [])
            if module in ("deepspeed.launcher.runner", "deepspeed.launcher.launch", "deepspeed"):
                return launched("deepspeed", ["deepspeed", *rest[2:]]) or (None, "", [])
            if module == "accelerate.commands.launch":
                return launched("accelerate", ["accelerate", "launch", *rest[2:]]) or (None, "", [])
            return None, module, rest[2:]
        if word in ("-c", "-", "-V", "--version") or not word:
            return None, "", []
        if word in ("-W", "-X"):
            rest = rest[2:]
        elif word.startswith("-"):
            rest = rest[1:]
        else:
            break
    if rest and posixpath.basename(rest[0]) in ("torchrun", "deepspeed", "accelerate"):
        return launched(posixpath.basename(rest[0]), rest) or (None, "", [])
    return None, rest[0] if rest else "", rest[1:]


def _program(rest: list[str]) -> tuple[str, list[str]]:
    """Returns the trainer and its arguments; with ``--no_python`` an interpreter may stand before the trainer."""
    if rest and _PYTHON.match(posixpath.basename(rest[0])):
        launch = _python(rest[1:])
        return launch[1], launch[2]
    if rest and posixpath.basename(rest[0]) == "python-m":
        return rest[1] if len(rest) > 1 else "", rest[2:]
    return (rest[0], rest[1:]) if rest else ("", [])


def _options(words: Sequence[str], flags: frozenset[str], short: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    at = 0
    while at < len(words):
        word = words[at]
        if MARK.fullmatch(word):
            at += 1
            continue
        if not word.startswith("-") or word == "-":
            break
        at += 1
        if word == "--":
            break
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        name = short.get(name, name)
        if name in flags:
            options[name] = "True"
            continue
        if not equals and " " in name:  # one quoted word: "--nnodes 2"
            name, _, value = name.partition(" ")
            equals = "="
        if not equals and at < len(words):
            value = words[at]
            at += 1
        options[name] = value.strip()
    return options, list(words[at:])


def mpi_options(words: Sequence[str], tool: str = "mpirun") -> tuple[dict[str, str], list[str]]:
    """Returns ``np``, ``per_node``, ``host``, ``hostfile`` and ``exported`` (lines of NAME=value) of mpirun or another
    ``tool`` of its kind, and the command behind its options."""
    options: dict[str, str] = {}
    exported: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        if not word.startswith("-"):
            if MARK.fullmatch(word):
                at += 1
                continue
            break
        name, equals, value = word.partition("=")
        at += 1
        if name in _MPI_TWO:
            at += 2
            continue
        if name in _MPI_NONE:
            options |= {"per_node": "1"} if "pernode" in name else {}
            continue
        if not equals and at < len(words):
            if starts_program(words[at]) and not name.startswith(("-x", "-wdir", "--wdir")):
                continue
            value = words[at]
            at += 1
        if tool == "jsrun" and name in _JSRUN:
            options[_JSRUN[name]] = value
        elif name in _MPI_COUNT:
            options["np"] = value
        elif name in _MPI_EACH:
            options["per_node"] = value
        elif name in ("--map-by", "-map-by") and value.startswith("ppr:"):
            options["per_node"] = value.split(":")[1]
        elif name in ("-H", "--host", "-host", "--hostfile", "-hostfile", "--machinefile", "-machinefile"):
            options["hostfile" if "file" in name else "host"] = value
        elif name == "-x":
            exported.append(value)
    if tool == "jsrun" and all(options.get(name, "1").isdigit() for name in ("np", "each")):
        options["np"] = str(int(options.get("np", "1")) * int(options.get("each", "1")))
    if exported:
        options["exported"] = "\n".join(exported)
    return options, list(words[at:])


def bcp_options(words: Sequence[str]) -> dict[str, str]:
    """Returns ``nodes``, ``per_node``, shell text ``cmd``, folder ``cwd`` and ``exported`` (NAME=value lines) of bcprun."""
    options: dict[str, str] = {}
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        kind = _BCP.get(name)
        if kind is None:
            continue
        value = value if equals else next(remaining, "")
        options[kind] = f"{options[kind]}\n{value}" if kind == "exported" and kind in options else value
    return options
