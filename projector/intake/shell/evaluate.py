"""Follows every way that a script can go where conditions depend on the machine, and notes what each way launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from projector.intake.shell import scheduler
from projector.intake.shell.conditions import Undecided
from projector.intake.shell.control import Break, Continue, Exit, Return, TooLong
from projector.intake.shell.files import Files
from projector.intake.shell.launch import Evaluation, Way
from projector.intake.shell.machine import Machine
from projector.intake.shell.state import State, Variables
from projector.intake.shell.syntax import PLACEHOLDER, places
from projector.intake.shell.unknown import Unknown

_MOST_WAYS = 48
_MOST_COMMANDS = 40_000  # of all ways together: more is a program in shell, and takes half a minute


class _Choices:
    """Settles open conditions in turn as ``wanted`` says, with False beyond its end; ``asked`` keeps every decision."""

    def __init__(self, wanted: Sequence[bool]) -> None:
        self.wanted = wanted
        self.asked: dict[str, bool] = {}

    def __call__(self, verdict: Undecided) -> bool:
        if verdict.text not in self.asked:
            position = len(self.asked)
            self.asked[verdict.text] = self.wanted[position] if position < len(self.wanted) else False
        return self.asked[verdict.text]


def commands(
    script: str | Path,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    text: str | None = None,
    node_gpus: int | None = None,
    read: Callable[[Path], str] = Path.read_text,
) -> Evaluation:
    """Returns the commands that ``script``, or the shell ``text`` that the file there holds, launches on every way it
    can go, as if started with ``args`` in the environment ``env`` on machines of ``node_gpus`` GPUs (None: not known).

    ``read``: returns the text of a file beside the script. Raises what ``read`` raises for the script itself,
    :class:`Unreadable` for lines that are no shell, :class:`TooLong` for a script without an end.
    """
    file = Path(script)
    text = read(file) if text is None else text
    ways: list[Way] = []
    waiting: list[tuple[bool, ...]] = [()]
    while waiting and len(ways) < _MOST_WAYS and sum(way.commands for way in ways) < _MOST_COMMANDS:
        wanted = waiting.pop(0)
        choices = _Choices(wanted)
        files = Files(file.parent, read)
        ways.append(_follow_way(file, text, files, args, env or {}, choices, node_gpus))
        values = tuple(choices.asked.values())
        waiting += [(*values[:position], True) for position in range(len(wanted), len(values))]
    return Evaluation(where=str(file), paths=tuple(ways), whole=not waiting)


def _follow_way(
    file: Path, text: str, files: Files, args: Sequence[str], env: Mapping[str, str], choices: _Choices,
    node_gpus: int | None,
) -> Way:  # fmt: skip
    machine = Machine(files, choices, given=frozenset(env), node_gpus=node_gpus)
    place = file.resolve()
    state = State(Variables(env), set(env), list(args), script=str(place), cwd=str(file.parent.resolve()))
    request = scheduler.directives(text)
    if request:
        machine.programs.submit(request, scheduler.Request(), state)
    ended = ""
    try:
        machine.run_text(text, file.name, state)
    except Exit as error:
        ended = error.why or ("exit" if error.code is None else f"exit {error.code}" if error.code else "")
    except (Return, Break, Continue):
        pass
    except RecursionError:
        raise TooLong("commands inside one another without end") from None
    _fill_placeholders(machine)
    unfilled = places(text)
    if unfilled:
        machine.note(f"{', '.join(unfilled[:4])}: left to fill in, where nothing depends on it")
    return Way(
        launches=tuple(machine.launches), unknowns=machine.unknowns, taken=dict(choices.asked), ended=ended,
        absent=tuple(machine.absent), notes=tuple(machine.notes), files=machine.files, unset=tuple(machine.unset),
        commands=machine.commands,
    )  # fmt: skip


def _fill_placeholders(machine: Machine) -> None:
    """Marks each ``<path to data>`` that a user was to fill in as unknown in the arguments of launches."""

    def filled(word: str) -> str:
        match = PLACEHOLDER.search(word)
        if match is None:
            return word
        place = match[0].replace("⟨", "<").replace("⟩", ">").replace("\u00a0", " ")
        return machine.unknowns.mark(Unknown(f"{place}, a place to fill in"))

    machine.launches = [replace(item, arguments=tuple(map(filled, item.arguments))) for item in machine.launches]
