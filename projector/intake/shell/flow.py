"""Evaluates a shell's lists, pipelines, branches, loops and redirections (``< file``, ``> file``, here-documents and
here-strings) on the machine that evaluates their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial, reduce
from typing import TYPE_CHECKING

from projector.dataclass import dataclass
from projector.intake.shell import conditions, words
from projector.intake.shell.conditions import Undecided, Verdict
from projector.intake.shell.control import Break, Continue, Exit, Return
from projector.intake.shell.patterns import matches
from projector.intake.shell.state import State
from projector.intake.shell.syntax import Source, adjacent, alternatives, branches, named, text_of
from projector.intake.shell.unknown import is_known

if TYPE_CHECKING:
    from tree_sitter import Node

    from projector.intake.shell.machine import Machine

_MOST_LOOPS = 1_000


def _list(machine: Machine, source: Source, node: Node, state: State) -> Verdict:
    parts = [child for child in node.children if child.type != "comment"]
    verdict = machine.statement(source, parts[0], state)
    for sign, part in zip(parts[1::2], parts[2::2], strict=False):
        wanted = sign.type == "&&"
        if isinstance(verdict, Undecided):
            if not machine.matters(source, part):
                continue
            verdict = machine.decided(verdict)
        if verdict == wanted:
            verdict = machine.statement(source, part, state)
    return verdict


def pipeline(machine: Machine, source: Source, node: Node, state: State) -> Verdict:
    stages, verdicts = named(node), list[Verdict]()
    text: str | None = machine.stdin[-1]
    for number, stage in enumerate(stages):
        last = number == len(stages) - 1
        machine.stdin.append(text)
        if not last:
            machine.captures.append([])
        try:
            verdicts.append(machine.statement(source, stage, state.child()))
        except (Exit, Return) as error:
            verdicts.append(error.fine)
        finally:
            machine.stdin.pop()
            if not last:
                text = "".join(machine.captures.pop())
    machine.piped = verdicts
    return reduce(partial(conditions.combined, any_=False), verdicts) if "pipefail" in state.options else verdicts[-1]


def _negated_command(machine: Machine, source: Source, node: Node, state: State) -> Verdict:
    return conditions.negated(machine.statement(source, named(node)[-1], state))


def _subshell(machine: Machine, source: Source, node: Node, state: State) -> Verdict:
    try:
        return machine.sequence(source, node, state.child())
    except Exit as error:
        if error.why:
            raise
        return error.fine


def _compound_statement(machine: Machine, source: Source, node: Node, state: State) -> Verdict:
    if node.children and node.children[0].type == "((":
        return machine.arithmetic_test(text_of(source, node).strip()[2:-2], state)
    return machine.sequence(source, node, state)


def _if_statement(machine: Machine, source: Source, node: Node, state: State) -> Verdict:
    groups = branches(node)
    bodies = [item for _, body in groups for item in body]
    for condition, body in groups:
        verdict: Verdict = True
        for item in condition:
            verdict = machine.statement(source, item, state)
        if isinstance(verdict, Undecided):
            if not any(machine.matters(source, item) for item in bodies):
                return True
            verdict = machine.decided(verdict)
        if verdict:
            result: Verdict = True
            for item in body:
                result = machine.statement(source, item, state)
            return result
    return True


def _case_statement(machine: Machine, source: Source, node: Node, state: State) -> Verdict:
    children = [child for child in node.children if child.type != "comment"]
    opening = next((i for i, child in enumerate(children) if child.type == "in"), 2)
    value = machine.single("".join(text_of(source, child) for child in children[1:opening]).strip(), state)
    value = machine.unknowns.judge(value)
    falling = False
    for item in (child for child in children if child.type == "case_item"):
        parts = [part for part in item.children if part.type != "comment"]
        closing = next((i for i, part in enumerate(parts) if part.type == ")"), 0)
        tests = alternatives(source, parts[:closing])
        fits = falling or any(_matches_pattern(machine, value, test, state) for test in tests)
        if not fits:
            continue
        verdict: Verdict = True
        for part in parts[closing + 1 :]:
            if part.is_named:
                verdict = machine.statement(source, part, state)
        end = parts[-1].type
        falling = end in (";&", ";;&") and end == ";&"
        if end not in (";&", ";;&"):
            return verdict
    return True


def _matches_pattern(machine: Machine, value: str, test: str, state: State) -> bool:
    pattern = machine.parameters(state).pattern(test)
    if is_known(value) and is_known(pattern):
        return matches(value, pattern)
    if pattern == "*":
        return True
    return machine.decided(Undecided(f"{machine.unknowns.shown(value)} is {machine.unknowns.shown(pattern)}"))


def _for_statement(machine: Machine, source: Source, node: Node, state: State) -> Verdict:
    children = [child for child in node.children if child.type != "comment"]
    name = text_of(source, children[1])
    body = children[-1]
    listed = any(child.type == "in" for child in children)
    items = list(state.positional)
    if listed:
        items = [word for text in adjacent(source, children[3:-1]) for word in machine.fields(text, state)]
        items = [word for word in items if machine.unknowns.as_shell(word)]
    verdict: Verdict = True
    for item in items[:_MOST_LOOPS]:
        state.set(name, item)
        if (status := _run_body(machine, source, body, state)) is None:
            break
        verdict = status
    return verdict


def _run_body(machine: Machine, source: Source, body: Node, state: State) -> Verdict | None:
    """Evaluates a loop's body once; None where it leaves the loop. Jumps out of several loops go on to the outer ones."""
    try:
        return machine.statement(source, body, state)
    except (Break, Continue) as jump:
        if jump.levels > 1:
            raise type(jump)(jump.levels - 1) from None
        return True if isinstance(jump, Continue) else None


def _c_style_for_statement(machine: Machine, source: Source, node: Node, state: State) -> Verdict:
    text = text_of(source, node)
    opening = text.index("((")
    stop = words.closing(text, opening)
    first, test, step = [*text[opening + 2 : stop - 1].split(";"), "", ""][:3]
    parameters = machine.parameters(state)
    parameters.arithmetic(first)
    for _ in range(_MOST_LOOPS):
        verdict = machine.arithmetic_test(test, state) if test.strip() else True
        if not (machine.decided(verdict) if isinstance(verdict, Undecided) else verdict):
            break
        if _run_body(machine, source, node.children[-1], state) is None or isinstance(verdict, Undecided):
            break
        parameters.arithmetic(step)
    return True


def _while_statement(machine: Machine, source: Source, node: Node, state: State) -> Verdict:
    until = node.children[0].type == "until"
    parts = named(node)
    endless = text_of(source, parts[0]) in ("true", ":", "false")  # only its body ends it, where a run would
    for _ in range(_MOST_LOOPS):
        verdict: Verdict = True
        for part in parts[:-1]:
            verdict = machine.statement(source, part, state)
        verdict = conditions.negated(verdict) if until else verdict
        undecided = isinstance(verdict, Undecided)
        if isinstance(verdict, Undecided):
            if not machine.matters(source, parts[-1]):
                return True
            verdict = machine.decided(verdict)
        if not verdict:
            break
        asked, stdin, before = machine.asked, machine.stdin[-1], state.child() if endless else state
        left = _run_body(machine, source, parts[-1], state) is None
        same = (stdin, before.variables, before.positional) == (machine.stdin[-1], state.variables, state.positional)
        if left or undecided or (endless and (same or machine.asked > asked)):
            break
    return True


def _function_definition(_: Machine, source: Source, node: Node, state: State) -> Verdict:
    parts = named(node)
    state.functions[text_of(source, parts[0])] = (source, parts[-1])
    return True


@dataclass
class _Redirections:
    stdin: str | None = None
    target: str | None = None
    append: bool = False
    after: list[Node] = field(default_factory=list)


def _redirected_statement(machine: Machine, source: Source, node: Node, state: State) -> Verdict:
    parts = named(node)
    redirects = [part for part in parts if part.type.endswith("_redirect")]
    bodies = [part for part in parts if not part.type.endswith("_redirect")]
    plan = _Redirections(stdin=machine.stdin[-1])
    for part in redirects:
        _redirect(machine, source, part, state, plan)
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
                verdict = pipeline(machine, source, part, state)
            finally:
                machine.stdin.pop()
        elif part.type in ("command", "list", "redirected_statement", "variable_assignment"):
            verdict = machine.statement(source, part, state)
    return verdict


def _redirect(machine: Machine, source: Source, part: Node, state: State, plan: _Redirections) -> None:
    if part.type == "file_redirect":
        _file_redirect(machine, source, part, state, plan)
    elif part.type == "herestring_redirect":
        text = "".join(text_of(source, child) for child in part.children[1:])
        plan.stdin = machine.single(text.strip(), state) + "\n"
    elif part.type == "heredoc_redirect":
        plan.stdin = _heredoc_text(machine, source, part, state)
        for child in part.children:
            if child.type in ("file_redirect", "herestring_redirect"):
                _redirect(machine, source, child, state, plan)
            elif child.is_named and child.type not in ("heredoc_start", "heredoc_body", "heredoc_end", "comment"):
                plan.after.append(child)


def _file_redirect(machine: Machine, source: Source, part: Node, state: State, plan: _Redirections) -> None:
    descriptor = next((text_of(source, c) for c in part.children if c.type == "file_descriptor"), "")
    sign = next((child.type for child in part.children if not child.is_named), "")
    targets = [c for c in part.children if c.is_named and c.type not in ("file_descriptor", "comment")]
    target = machine.single("".join(text_of(source, c) for c in targets[:1]), state)
    if sign == "<" and targets and targets[0].type == "process_substitution":
        printed = machine.substitution(text_of(source, targets[0])[2:-1], state)
        plan.stdin = printed + "\n" if is_known(printed) else None
    elif sign == "<":
        plan.stdin = machine.files.read(target, state)
    elif sign in (">", ">>", ">|", "&>", "&>>") and descriptor in ("", "1") and target != "/dev/null":
        plan.target, plan.append = target, ">>" in sign
    elif target == "/dev/null" and sign in (">", "&>") and descriptor in ("", "1"):
        plan.target = target
    elif sign in (">", ">>", ">|") and target != "/dev/null":
        machine.files.forget(target, state)  # what goes to other descriptors is not followed


def _heredoc_text(machine: Machine, source: Source, part: Node, state: State) -> str:
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


#: Evaluators by the type of a syntax node.
HANDLERS: Mapping[str, Callable[[Machine, Source, Node, State], Verdict]] = {
    "list": _list,
    "pipeline": pipeline,
    "negated_command": _negated_command,
    "subshell": _subshell,
    "compound_statement": _compound_statement,
    "do_group": _compound_statement,
    "if_statement": _if_statement,
    "case_statement": _case_statement,
    "for_statement": _for_statement,
    "c_style_for_statement": _c_style_for_statement,
    "while_statement": _while_statement,
    "function_definition": _function_definition,
    "redirected_statement": _redirected_statement,
}
