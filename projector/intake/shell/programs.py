"""Evaluates programs that a script starts: looks through launchers and wrappers, enters other scripts, notes trainers."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from projector.intake.shell import launchers, python_text, scheduler, text_tools
from projector.intake.shell.conditions import Undecided, Verdict
from projector.intake.shell.control import Exit, Return, Unreadable
from projector.intake.shell.launch import Launch, Step, visible
from projector.intake.shell.outputs import SILENT, printed, substituted
from projector.intake.shell.state import State
from projector.intake.shell.unknown import MARK, Unknown, word_set

if TYPE_CHECKING:
    from projector.intake.shell.machine import Machine

#: Commands whose output is a word or a path: never an option, never a count that matters.
_PLAIN_OUTPUT = word_set("date hostname whoami uuidgen mktemp id pwd realpath readlink ip ifconfig git uname tty")
_SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
_PRINTS_GPU_COUNT = re.compile(
    r"\S*python[\d.]* (?:-\w )*-c\s+(?:import torch\s*[;\n]\s*print\(|print\(__import__\(['\"]torch['\"]\)\.)"
    r"(?:torch\.)?cuda\.device_count\(\)\)\s*;?\s*"
)
_IN_PLACE = re.compile(r"-[a-z]{0,3}i|--in-?place")
_CONFIGURATION = re.compile(r"\w\.ya?ml$")
#: An argument where a command stands: the line before it does not go on, and bash starts the trainer without it.
_LOST_ARGUMENT = re.compile(r"--[A-Za-z][\w-]*(?:=|$)|\+*[A-Za-z]\w*(?:\.\w+)+=")
_PROBES = frozenset(
    ("grep", "egrep", "diff", "cmp", "pgrep", "nvidia-smi", "rocm-smi", "ping", "nc", "ibstat", "python-test")
)


class Programs:
    """Evaluates the words of a command that is no builtin."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.steps: list[Step] = []

    def run(self, argv: list[str], state: State, where: str, line: int) -> Verdict:
        """Evaluates one program with its arguments."""
        argv = list(argv)
        if argv and self.machine.launches and not self.machine.captures and _LOST_ARGUMENT.match(argv[0]):
            raise Unreadable(
                where,
                line,
                f"{self.machine.unknowns.shown(argv[0])} as a command",
                "\\ at the end of the line before, and no comment there",
            )
        while argv and not self.machine.unknowns.as_shell(argv[0]):
            argv = argv[1:]
        if not argv:
            return True
        name = posixpath.basename(MARK.sub("", argv[0]))
        if name in _SHELLS:
            return self._run_shell(argv, state, where, line)
        if name in ("srun", "sbatch", "salloc"):
            return self._run_slurm(name, argv, state, where, line)
        if name == "flux" and argv[1:2] == ["run"]:  # flux-run(1): the sizes of a step in srun's words
            return self._run_slurm("srun", argv[1:], state, where, line)
        if name in launchers.MPI:
            options, rest = launchers.mpi_options(argv[1:], name)
            return self._run_inside(Step("mpirun", options), rest, _with_exported(options, state), where, line)
        if name == "bcprun":
            options = launchers.bcp_options(argv[1:])
            child = _with_exported(options, state)
            child.cwd = options.pop("cwd", state.cwd)
            return self._run_inside(Step("mpirun", options), ["bash", "-c", options.pop("cmd", "")], child, where, line)
        if name in ("ssh", "pdsh", "clush"):
            return self._run_remote(argv, state, where)
        if name == "primus-cli":  # a program in shell, which nothing follows: its own reader takes its words
            return self._record((Step("other", {"name": name}), argv[0], argv[1:]), state, where, line)
        if name == "xargs" and (passed := text_tools.passed_on(argv, self.machine.stdin[-1])):
            return self.run(passed, state, where, line)
        if name == "xargs" and self.machine.captures:
            self.machine.emit(
                self.machine.unknowns.mark(Unknown(f"$({self.machine.unknowns.shown(' '.join(argv))[:60]})"))
            )
        inner = launchers.unwrapped(name, argv)
        if inner is not None:
            if name == "env":
                inner, state = _split_env(inner, state)
            return self.run(inner, state, where, line) if inner else True
        launch = launchers.launched(name, argv)
        if launch is not None:
            launcher, program, behind = launch
            if self.machine.captures and _PRINTS_GPU_COUNT.fullmatch(" ".join(argv)):
                count = visible(state.environment(), self.machine.unknowns, "torch.cuda.device_count()")
                self.machine.emit(count + "\n")
                return True
            if not program:
                self._forget_written(argv, state)
            submitter_options, submitted = launchers.submitted(behind)
            if submitted:
                step = Step("submitter", {"name": posixpath.basename(program), **submitter_options})
                return self._run_inside(step, submitted, state, where, line)
            if launcher and posixpath.basename(program) in _SHELLS:
                return self._run_inside(launcher, [program, *behind], state, where, line)
            at = next((number for number, word in enumerate(behind) if launchers.starts_program(word)), None)
            if launcher and program.endswith(".sh") and at is not None:  # a script that binds each process first
                return self._run_inside(launcher, behind[at:], state, where, line)
            return self._record(launch, state, where, line)
        if self._is_script(argv[0], state):
            return self._run_script(argv, state)
        return self._run_other(argv, state, where, line)

    def _run_other(self, argv: list[str], state: State, where: str, line: int) -> Verdict:
        machine = self.machine
        name = posixpath.basename(argv[0])
        if name == "cat":
            return self._cat(argv, state)
        if name == "tee":
            self._tee(argv, state)
            return True
        if name == "scontrol" and "hostnames" in argv:
            nodes = str(state.variables.get("SLURM_NNODES", ""))
            if nodes.isdigit() and len(nodes) < 6:
                machine.emit("".join(f"node{number}\n" for number in range(int(nodes))))
                return True
        stdin = machine.stdin[-1]
        if self._changes_files(argv, state):
            return True
        expands = name == "envsubst" and stdin is not None
        text = self._gpu_listing(argv) or (
            substituted(stdin or "", state.environment(), argv[1:])
            if expands
            else printed(argv, stdin, cwd=state.cwd, read=lambda path: machine.files.read(path, state))
        )
        if text is not None:
            machine.emit(text)
            return True
        if name not in SILENT | _PROBES | text_tools.NAMES:
            at = next((i for i, word in enumerate(argv[1:], 1) if launchers.starts_program(word)), None)
            if at is not None and name not in launchers.TEXT_TOOLS:
                return self._run_inside(Step("other", {"name": name}), argv[at:], state, where, line)
            has_options = any(word.startswith("--") for word in argv[1:])
            if has_options or (not machine.captures and any(_CONFIGURATION.search(word) for word in argv[1:])):
                return self._record((Step("other", {"name": name}), argv[0], argv[1:]), state, where, line)
        if machine.captures:
            shown = machine.unknowns.shown(" ".join(argv))
            unset = machine.unknowns.within(" ".join(argv))
            plain = name in _PLAIN_OUTPUT
            machine.emit(
                machine.unknowns.mark(*[u for u in unset if not u.unset], Unknown(f"$({shown[:60]})", plain=plain))
            )
        if name in _PROBES:
            return Undecided(machine.unknowns.shown(" ".join(argv))[:100])
        return True

    def _gpu_listing(self, argv: list[str]) -> str | None:
        """Returns one line per GPU for an ``nvidia-smi`` that only lists its machine's GPUs; None for other commands."""
        if (
            posixpath.basename(argv[0]) != "nvidia-smi"
            or not self.machine.captures
            or self.machine.unknowns.node_gpus is None
        ):
            return None
        words = " ".join(argv[1:])
        if not re.fullmatch(r"-L|--list-gpus|--query-gpu=\S+ --format=csv,\s*noheader\S*", words):
            return None
        return "".join(f"GPU {i}\n" for i in range(int(self.machine.unknowns.node(f"nvidia-smi {words}"))))

    def _changes_files(self, argv: list[str], state: State) -> bool:
        """Carries out a command that copies, moves, removes or edits files, of those that are known; False for others."""
        files, name = self.machine.files, posixpath.basename(argv[0])
        if name == "sed" and any(_IN_PLACE.match(word) for word in argv[1:]):
            changed = text_tools.edited(argv, lambda path: files.read(path, state))
        elif name in ("rm", "sponge") or (name in ("perl", "yq") and any(_IN_PLACE.match(word) for word in argv[1:])):
            changed = {word: None for word in argv[1:] if files.read(word, state) is not None}
        elif name in ("cp", "mv", "ln"):
            *sources, target = [word for word in argv[1:] if not word.startswith("-")] or [""]
            named = [
                bool(posixpath.splitext(word)[1]) for word in (*sources[:1], target)
            ]  # a folder's name ends in none
            folder = len(sources) > 1 or target.endswith(("/", ".")) or named == [True, False]
            places = {posixpath.join(target, posixpath.basename(word)) if folder else target: word for word in sources}
            changed = {place: files.read(word, state) for place, word in places.items()}
            changed |= {word: None for word in sources if name == "mv"}
        else:
            return False
        for path, text in changed.items():
            if text is not None:
                files.write(path, text, state)
            else:
                files.forget(path, state)
        return True

    def _forget_written(self, argv: list[str], state: State) -> None:
        """Takes away the files that a Python program on standard input, or behind ``-c``, writes: their text is unknown."""
        text = argv[argv.index("-c") + 1 :][:1] if "-c" in argv else [self.machine.stdin[-1] or ""]
        words, environment = python_text.words_of_written("".join(text)), state.environment()
        for path in {*words, *(environment.get(word, "") for word in words), *(argv[1:] if "argv" in words else ())}:
            self.machine.files.forget(path, state)

    def _cat(self, argv: list[str], state: State) -> Verdict:
        machine = self.machine
        verdict: Verdict = True
        shown = machine.unknowns.shown(" ".join(argv))
        unknown = machine.unknowns.mark(Unknown(f"$({shown[:60]})"))
        if any(len(word) > 1 and word.startswith("-") for word in argv[1:]):  # numbers lines, shows ends, …
            machine.emit(unknown)
            return True
        for path in argv[1:] or ["-"]:
            text = (machine.stdin[-1] or "") if path == "-" else machine.files.read(path, state)
            machine.emit(unknown if text is None else text)
            verdict = Undecided(shown, files=True) if text is None else verdict
        return verdict

    def _tee(self, argv: list[str], state: State) -> None:
        text = self.machine.stdin[-1] or ""
        for path in argv[1:]:
            if not path.startswith("-"):
                self.machine.files.write(path, text, state, append="-a" in argv)
        self.machine.emit(text)

    # other scripts

    def _is_script(self, word: str, state: State) -> bool:
        return bool(re.search(r"\.(sh|bash|slurm|sbatch|sub|job|pbs|lsf)$", word)) or (
            "/" in word and self.machine.files.wrote(word, state)
        )

    def _run_shell(self, argv: list[str], state: State, where: str, line: int) -> Verdict:
        at = 1
        text = None
        while at < len(argv) and argv[at][:1] in "-+" and argv[at] not in ("-", "--"):
            if argv[at].startswith("-") and not argv[at].startswith("--") and "c" in argv[at]:
                text = argv[at + 1] if at + 1 < len(argv) else ""
                at += 1
            elif argv[at] in ("-o", "+o", "--rcfile", "--init-file"):
                at += 1
            at += 1
        if text is not None:
            inner = state.process(argv[at] if at < len(argv) else "bash", argv[at + 1 :])
            return self._run_process(text, f"{where}, line {line}: -c", inner, marked=True)
        if at < len(argv) and argv[at] not in ("-", "-s", "--"):
            cli = posixpath.basename(argv[at]) == "primus-cli"
            return self.run(argv[at:], state, where, line) if cli else self._run_script(argv[at:], state)
        stdin = self.machine.stdin[-1]
        if stdin:
            return self._run_process(stdin, where, state.process("bash", argv[at + 1 :]), marked=True)
        return True

    def _run_script(self, argv: list[str], state: State, request: scheduler.Request | None = None) -> Verdict:
        machine = self.machine
        text = machine.files.read(argv[0], state)
        shown = machine.unknowns.shown(argv[0])
        if text is None:
            at = next((i for i, word in enumerate(argv[1:], 1) if launchers.starts_program(word)), None)
            if at is not None:
                machine.note(f"{shown} is not there: taken for a wrapper of the command behind it")
                name = posixpath.basename(shown)
                return self._run_inside(Step("other", {"name": name}), argv[at:], state, shown, 0)
            machine.absent[shown] = None
            return True
        written = machine.files.wrote(argv[0], state)
        inner = state.process(argv[0], argv[1:])
        if request is not None:
            self.submit(scheduler.directives(text), request, inner)
        return self._run_process(text, posixpath.basename(shown), inner, marked=written)

    def _run_process(self, text: str, where: str, state: State, *, marked: bool) -> Verdict:
        try:
            return self.machine.run_text(text, where, state, marked=marked)
        except Exit as error:
            if error.why:
                raise
            return error.code == 0
        except Return as error:
            return error.fine

    # launchers

    def submit(self, written: scheduler.Request, given: scheduler.Request, state: State) -> None:
        """Sets a batch job's variables in ``state``; options of the command line (``given``) override its directives."""
        request = given.over(written)
        for name, value in scheduler.variables(request).items():
            if name in state.variables and (value is None or name in self.machine.given):
                continue
            unknown = Unknown(f"${name}", f"--env {name}=…", filled=True)
            state.export(name, self.machine.unknowns.mark(unknown) if value is None else value)
        if request.kind == "slurm":
            self.machine.first_rank(state)
        if request.kind == "pbs":
            self._set_pbs_hosts(request, state)

    def _set_pbs_hosts(self, request: scheduler.Request, state: State) -> None:
        nodes = request.values.get("nodes", "")
        per_node = request.values.get("ntasks-per-node") or request.values.get("ppn")
        state.export("PBS_NODEFILE", "/var/spool/pbs/aux/nodefile")
        if nodes.isdigit() and int(nodes) < 20_000:
            hosts = [f"node{number}\n" for number in range(int(nodes)) for _ in range(int(per_node or 1))]
            self.machine.files.write("/var/spool/pbs/aux/nodefile", "".join(hosts), state)

    def _run_slurm(self, name: str, argv: list[str], state: State, where: str, line: int) -> Verdict:
        options, rest = scheduler.options(argv[1:])
        request = scheduler.Request("slurm", options)
        if name == "srun":
            inner = state.child()
            self.machine.first_rank(inner)
            for key, value in scheduler.variables(scheduler.Request("slurm", options)).items():
                if value is not None:  # of the step (slurm src/common/env.c, env_array_for_step)
                    inner.export(key, value)
            return self._run_inside(Step("srun", options), rest, inner, where, line)
        if name == "salloc":
            inner = state.child()
            self.submit(scheduler.Request(), request, inner)
            return self.run(rest, inner, where, line)
        wrap = options.get("wrap")
        if wrap is not None or not rest:
            text = wrap if wrap is not None else self.machine.stdin[-1] or ""
            inner = state.process("sbatch", [])
            self.submit(scheduler.directives(text), request, inner)
            return self._run_process(text, f"{where}, line {line}: sbatch", inner, marked=True)
        return self._run_script(rest, state, request)

    def _run_inside(self, step: Step, argv: list[str], state: State, where: str, line: int) -> Verdict:
        self.steps.append(step)
        try:
            return self.run(argv, state, where, line) if argv else True
        finally:
            self.steps.pop()

    def _run_remote(self, argv: list[str], state: State, where: str) -> Verdict:
        at = 1
        while at < len(argv) and argv[at].startswith("-"):
            at += 2 if argv[at] in ("-p", "-i", "-o", "-l", "-w", "-F", "-f", "-g", "-x", "-R") else 1
        text = " ".join(argv[at + (0 if posixpath.basename(argv[0]) != "ssh" else 1) :])
        if not text:
            text = self.machine.stdin[-1] or ""
        return self._run_process(text, f"{where}: {argv[0]}", state.process(argv[0], []), marked=True)

    def _record(self, parts: tuple[Step | None, str, list[str]], state: State, where: str, line: int) -> Verdict:
        step, program, arguments = parts
        steps = (*self.steps, step) if step else tuple(self.steps)
        launch = Launch(program, tuple(arguments), steps, state.environment(), where, line, state.cwd)
        self.machine.launches.append(launch)
        if self.machine.captures:
            self.machine.emit(self.machine.unknowns.mark(Unknown(f"$({posixpath.basename(program) or 'python'} …)")))
        return True


def _with_exported(options: dict[str, str], state: State) -> State:
    inner = state.child()
    for text in options.pop("exported", "").split("\n"):
        name, equals, value = text.partition("=")
        if equals:
            inner.export(name, value)
    return inner


def _split_env(argv: list[str], state: State) -> tuple[list[str], State]:
    """Splits ``env A=1 B=2 command`` into the command and a child of ``state`` with those variables."""
    inner = state.child()
    while argv and (re.match(r"[A-Za-z_]\w*=", argv[0]) or argv[0].startswith("-")):
        name, equals, value = argv[0].partition("=")
        if equals and not name.startswith("-"):
            inner.export(name, value)
        elif argv[0] in ("-u", "--unset"):
            inner.variables.pop(argv[1] if len(argv) > 1 else "", None)
            argv = argv[1:]
        argv = argv[1:]
    return argv, inner
