"""``< file``, ``> file``, here-documents and here-strings: what a statement reads, and the files that it writes."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from projector.dataclass import dataclass
from projector.intake.shell import flow, words
from projector.intake.shell.conditions import Verdict
from projector.intake.shell.state import State
from projector.intake.shell.syntax import Source, named, text_of

if TYPE_CHECKING:
    from tree_sitter import Node

    from projector.intake.shell.machine import Machine


@dataclass
class _Plan:
    stdin: str | None = None
    target: str | None = None
    append: bool = False
    after: list[Node] = field(default_factory=list)


def run(machine: Machine, source: Source, node: Node, state: State) -> Verdict:
    """Evaluates a statement between its redirections."""
    parts = named(node)
    redirects = [part for part in parts if part.type.endswith("_redirect")]
    bodies = [part for part in parts if not part.type.endswith("_redirect")]
    plan = _Plan(stdin=machine.stdin[-1])
    for part in redirects:
        _read(machine, source, part, state, plan)
    # the grammar hangs `cat <<EOF | sbatch` below the here-document
    pipes = [part for part in plan.after if part.type == "pipeline"]
    capture = plan.target is not None or bool(pipes)
    machine.stdin.append(plan.stdin)
    if capture:
        machine.captures.append([])
    verdict: Verdict = True
    try:
        for body in bodies:
            verdict = machine.statement(source, body, state)
    finally:
        machine.stdin.pop()
        printed = "".join(machine.captures.pop()) if capture else ""
    if plan.target is not None:
        machine.files.write(plan.target, printed, state, append=plan.append)
    for part in plan.after:
        if part.type == "pipeline":
            machine.stdin.append(printed)
            try:
                verdict = flow.pipeline(machine, source, part, state)
            finally:
                machine.stdin.pop()
        elif part.type in ("command", "list", "redirected_statement", "variable_assignment"):
            verdict = machine.statement(source, part, state)
    return verdict


def _read(machine: Machine, source: Source, part: Node, state: State, plan: _Plan) -> None:
    if part.type == "file_redirect":
        _file(machine, source, part, state, plan)
    elif part.type == "herestring_redirect":
        text = "".join(text_of(source, child) for child in part.children[1:])
        plan.stdin = machine.single(text.strip(), state) + "\n"
    elif part.type == "heredoc_redirect":
        plan.stdin = _document(machine, source, part, state)
        for child in part.children:
            if child.type in ("file_redirect", "herestring_redirect"):
                _read(machine, source, child, state, plan)
            elif child.is_named and child.type not in ("heredoc_start", "heredoc_body", "heredoc_end", "comment"):
                plan.after.append(child)


def _file(machine: Machine, source: Source, part: Node, state: State, plan: _Plan) -> None:
    descriptor = next((text_of(source, c) for c in part.children if c.type == "file_descriptor"), "")
    sign = next((child.type for child in part.children if not child.is_named), "")
    targets = [c for c in part.children if c.is_named and c.type not in ("file_descriptor", "comment")]
    target = machine.single("".join(text_of(source, c) for c in targets[:1]), state)
    if sign == "<":
        plan.stdin = machine.files.read(target, state)
    elif sign in (">", ">>", ">|", "&>", "&>>") and descriptor in ("", "1") and target != "/dev/null":
        plan.target, plan.append = target, ">>" in sign
    elif target == "/dev/null" and sign in (">", "&>") and descriptor in ("", "1"):
        plan.target = target


def _document(machine: Machine, source: Source, part: Node, state: State) -> str:
    """The text of a here-document, expanded unless its end is quoted."""
    start = next((text_of(source, c) for c in part.children if c.type == "heredoc_start"), "")
    body = next((text_of(source, c) for c in part.children if c.type == "heredoc_body"), "")
    if any(child.type == "<<-" for child in part.children):
        body = "\n".join(line.lstrip("\t") for line in body.split("\n"))
    if body and not body.endswith("\n"):
        body += "\n"
    if any(sign in start for sign in "'\"\\"):
        return body
    return words.joined(words.lex(body.replace('"', "\ue002"), machine.parameters(state), inside=True)).replace(
        "\ue002", '"'
    )
