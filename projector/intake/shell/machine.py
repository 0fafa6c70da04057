"""Walks the statements of a script, changes variables as a shell would, and notes what the script launches.

Nothing is executed, nothing is read but the script, the files it sources or starts, and what it has itself written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from projector.intake.shell import assignments, builtins, conditions, flow, words
from projector.intake.shell.conditions import Undecided, Verdict
from projector.intake.shell.control import Exit, Return, TooLong, Unreadable
from projector.intake.shell.files import Files
from projector.intake.shell.launch import Launch
from projector.intake.shell.parameters import Parameters
from projector.intake.shell.programs import Programs
from projector.intake.shell.state import State
from projector.intake.shell.syntax import Source, adjacent, deep, named, newline_before_name, parse, text_of
from projector.intake.shell.unknown import MARK, Unknown, Unknowns, is_known

if TYPE_CHECKING:
    from tree_sitter import Node

_MOST_STEPS, _MOST_LOOPS, _DEEPEST = 60_000, 1_000, 40
_NOT_WORDS = frozenset(("comment", "file_redirect", "heredoc_redirect", "herestring_redirect", "variable_assignment"))


class Machine:
    """Holds one evaluation of a script. ``decide`` settles a condition that only a run would; ``launches`` is the result."""

    def __init__(
        self,
        files: Files,
        decide: Callable[[Undecided], bool],
        given: frozenset[str] = frozenset(),
        node_gpus: int | None = None,
    ) -> None:
        self.given = given
        self.unknowns = Unknowns(node_gpus)
        self.files = files
        self.launches: list[Launch] = []
        self.notes: list[str] = []
        self.unset: dict[str, None] = {}
        self.absent: dict[str, None] = {}
        self.stdin: list[str | None] = [None]
        self.captures: list[list[str]] = []
        self.programs = Programs(self)
        self._decide = decide
        self.here = ""
        self.status: Verdict = True  # of the last statement
        self.piped: list[Verdict] = [True]  # of the last pipeline's commands
        self.substituted: Verdict = True  # of the last $(…) since an assignment began
        self.commands = self._depth = self.asked = 0

    # what expansion asks for

    def substitution(self, text: str, state: State) -> str:
        """Returns what ``$(text)`` prints, without the last newlines; a mark where only a run can tell."""
        bare = text.strip()
        if bare.startswith("<"):
            path = words.joined(words.lex(bare[1:].strip(), Parameters(self, state)))
            content = self.files.read(path, state)
            return self._unknown_output(text) if content is None else content.rstrip("\n")
        self.captures.append([])
        verdict: Verdict = True
        try:
            verdict = self.run_text(text, "$(…)", state.child(), marked=True)
        except (Exit, Return) as error:
            verdict = error.fine
        except Unreadable:
            self.captures[-1].append(self._unknown_output(text))
        finally:
            printed = "".join(self.captures.pop())
            self.substituted = verdict
        return self._named_by_command(printed.rstrip("\n"), text)

    def _named_by_command(self, printed: str, text: str) -> str:
        """Replaces output that only a run knows by a mark named after the whole command ``text`` that prints it."""
        if is_known(printed):
            return printed
        items = self.unknowns.within(printed)
        if not any(item.source.startswith("$(") for item in items) or MARK.sub("", printed).strip():
            return printed
        rest = [item for item in items if not item.source.startswith("$(")]
        plain = all(item.plain for item in items if item.source.startswith("$("))
        return self.unknowns.mark(*rest, Unknown(self._command_source(text), plain=plain))

    def _command_source(self, text: str) -> str:
        short = " ".join(self.unknowns.shown(text).split())
        return f"$({short[:60]}{'…' if len(short) > 60 else ''})"

    def _unknown_output(self, text: str) -> str:
        return self.unknowns.mark(Unknown(self._command_source(text)))

    def writer(self, state: State) -> Callable[[str, str], None]:
        return lambda name, value: state.set(name, value)

    def looked_for(self, name: str) -> None:
        """Remembers a variable that the script reads and nothing sets: the environment may."""
        self.unset[name] = None

    def parameters(self, state: State) -> Parameters:
        return Parameters(self, state)

    def fields(self, text: str, state: State) -> list[str]:
        """Returns the words into which one word of the script expands."""
        pieces = words.lex(text, Parameters(self, state))
        ifs = state.variables.get("IFS")
        expanded = words.fields_of(pieces, ifs if isinstance(ifs, str) and is_known(ifs) else " \t\n")
        return words.braces(expanded) if "{" in text and not any(piece.quoted for piece in pieces) else expanded

    def single(self, text: str, state: State) -> str:
        """Expands a word without splitting it into fields, as on the right side of an assignment."""
        return words.joined(words.lex(text, Parameters(self, state)))

    def first_rank(self, state: State) -> None:
        """Sets Slurm's rank variables to those of the first process of a job step, where ``state`` has none."""
        for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"):
            if name not in state.variables:
                state.export(name, "0")

    def emit(self, text: str) -> None:
        """Appends ``text`` to the innermost captured standard output; drops it where nothing captures."""
        if self.captures:
            self.captures[-1].append(text)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # running

    def run_text(self, text: str, where: str, state: State, *, marked: bool = False, first_line: int = 1) -> Verdict:
        """Evaluates ``text`` as statements of ``state``."""
        if self._depth > _DEEPEST:
            raise TooLong("scripts that start one another without end")
        self._depth += 1
        try:
            source = parse(text.rstrip("\\\n \t"), where, marked=marked, first_line=first_line)
            return self.sequence(source, source.root, state)
        finally:
            self._depth -= 1

    def sequence(self, source: Source, node: Node, state: State) -> Verdict:
        verdict: Verdict = True
        for child in named(node):
            verdict = self.statement(source, child, state)
        return verdict

    def statement(self, source: Source, node: Node, state: State) -> Verdict:
        """Evaluates one statement and returns its exit status as a verdict."""
        self.commands += 1
        if self.commands > _MOST_STEPS:
            raise TooLong(f"more than {_MOST_STEPS:,} commands")
        if node.type == "ERROR" or (
            node.type in ("command", "variable_assignment", "declaration_command") and node.has_error
        ):
            return self._unreadable(source, node, state)
        handler = _HANDLERS.get(node.type)
        if handler is None:
            return True
        self.status = handler(self, source, node, state)
        if handler in _SINGLE:
            self.piped = [self.status]
        return self.status

    def _unreadable(self, source: Source, node: Node, state: State) -> Verdict:
        """Marks variables that an unreadable statement assigns; raises :class:`Unreadable` where it may be a command."""
        if node.end_byte <= node.start_byte:
            return True
        line = source.line(node)
        text = text_of(source, node)
        kinds = {item.type for item in deep(node)}
        only_words = node.type == "ERROR" and not kinds & {"command", "variable_assignment", "if", "do", "case"}
        if only_words and len(text) < 4:
            return True
        if node.type == "ERROR" or not kinds & {"variable_assignment"}:
            raise Unreadable(source.where, line, text.strip().splitlines()[0][:80] if text.strip() else "")
        for item in deep(node):
            if item.type == "variable_assignment" and item.children:
                name = text_of(source, item.children[0])
                state.set(name, self.unknowns.mark(Unknown(f"${name} of line {line}, which cannot be read")))
        return True

    def arithmetic_test(self, text: str, state: State) -> Verdict:
        """Evaluates ``(( text ))``: true when the value is not 0; variables that are not set count as 0."""
        value = self.parameters(state).arithmetic(text)
        if value is None:
            return False
        if not is_known(value):
            unset = all(item.unset for item in self.unknowns.within(value))
            if unset:
                value = (
                    self.parameters(state).arithmetic(self.unknowns.as_shell(self.single_unset(text, state))) or value
                )
        if not is_known(value):
            return Undecided(f"(({self.unknowns.shown(self.single(text, state)).strip()}))")
        return value.lstrip("-") not in ("0", "")

    def single_unset(self, text: str, state: State) -> str:
        """Returns the expression ``text`` with 0 in place of each variable that is not set."""
        import re

        def zero(match: re.Match[str]) -> str:
            return match[0] if self.parameters(state).is_set(match[1]) else "0"

        return re.sub(r"\$?\{?\b([A-Za-z_]\w*)\b\}?", zero, text)

    def _unset_command(self, source: Source, node: Node, state: State) -> Verdict:
        for text in adjacent(source, named(node)):
            for name in self.fields(text, state):
                base, _, key = name.partition("[")
                if key:
                    state.unset_element(base, key.rstrip("]"))
                state.variables.pop(name, None)
                state.functions.pop(name, None)
        return True

    def _command(self, source: Source, node: Node, state: State) -> Verdict:
        parts = [child for child in node.children if child.type != "comment"]
        split = newline_before_name(source, parts)
        assigned = [part for part in parts if part.type == "variable_assignment"]
        if split:
            for part in assigned:
                assignments.assign(self, source, part, state)
            assigned = []
        texts = adjacent(source, [part for part in parts if part.type not in _NOT_WORDS])
        argv = [word for text in texts for word in self.fields(text, state)]
        while argv and not self.unknowns.as_shell(argv[0]):
            argv = argv[1:]
        if not argv:
            for part in assigned:
                assignments.assign(self, source, part, state)
            return True
        is_builtin = argv[0] in builtins.BUILTINS and argv[0] not in ("exec", "command")
        before = {name: state.variables.get(name) for name in (text_of(source, part.children[0]) for part in assigned)}
        inner = state if is_builtin or not assigned else state.child()
        for part in assigned:
            assignments.assign(self, source, part, inner)
            inner.exported.add(text_of(source, part.children[0]))
        herestrings = [part for part in parts if part.type == "herestring_redirect"]
        if herestrings:
            text = "".join(text_of(source, item) for item in herestrings[-1].children[1:])
            self.stdin.append(self.single(text, state) + "\n")
        try:
            return self.call(argv, inner, source, source.line(node))
        finally:
            if herestrings:
                self.stdin.pop()
            if is_builtin:
                state.restore(before)

    def call(self, argv: list[str], state: State, source: Source, line: int) -> Verdict:
        """Evaluates the command ``argv``: a function of the script, a builtin, or a program."""
        self.here = f"{source.where}, line {line}"
        if argv[0] in state.functions:
            return self._function(argv, state)
        builtin = builtins.BUILTINS.get(argv[0])
        if builtin is not None:
            return builtin(self, argv, state)
        return self.programs.run(argv, state, source.where, line)

    def _function(self, argv: list[str], state: State) -> Verdict:
        if self._depth > _DEEPEST:
            raise TooLong(f"{argv[0]}, a function that calls itself without end")
        source, body = state.functions[argv[0]]
        outer, state.positional = state.positional, argv[1:]
        references = dict(state.variables.references)
        state.local.append({})
        self._depth += 1
        try:
            return self.statement(source, body, state)
        except Return as error:
            return error.fine
        finally:
            self._depth -= 1
            state.positional = outer
            state.variables.references = references
            state.restore(state.local.pop())

    # conditions

    def decided(self, verdict: Undecided) -> bool:
        self.asked += 1
        return self._decide(verdict) != verdict.opposite

    def matters(self, source: Source, node: Node) -> bool:
        """Says whether running ``node`` or not can change what is launched."""
        from projector.intake.shell.outputs import SILENT

        for item in deep(node):
            if item.type in ("variable_assignment", "declaration_command", "unset_command", "function_definition"):
                return True
            if item.type == "command":
                name = next((text_of(source, part) for part in item.children if part.type == "command_name"), "")
                if name not in SILENT and name not in ("echo", "printf", "cat", "tee", "test", "[", "true", ":"):
                    return True
        return False


_HANDLERS: Mapping[str, Callable[[Machine, Source, Node, State], Verdict]] = {
    **flow.HANDLERS,
    "command": Machine._command,
    "variable_assignment": assignments.assign,
    "variable_assignments": Machine.sequence,
    "declaration_command": assignments.declare,
    "unset_command": Machine._unset_command,
    "test_command": conditions.bracketed,
}
_SINGLE = frozenset((Machine._command, assignments.assign, assignments.declare, conditions.bracketed))
