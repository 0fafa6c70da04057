"""Works out what text tools print of known text: what they would print, or nothing where an option or a form is not known
here (:class:`ValueError`), since half of a command means something else."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from getopt import GetoptError, getopt, gnu_getopt

from projector.dataclass import dataclass
from projector.intake.shell.patterns import classes, searchable
from projector.intake.shell.unknown import is_known


@dataclass(frozen=True)
class _Call:
    """Holds a tool's options, its words, and the lines of what it reads."""

    options: Mapping[str, str]
    words: Sequence[str]
    text: str
    file: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def printed(argv: Sequence[str], stdin: str | None, read: Callable[[str], str | None]) -> str:
    """Returns what the text tool ``argv`` prints; ``read`` gives a file's text. Raises ValueError, or what :mod:`re` and
    :mod:`getopt` raise, where that is not known here."""
    name = posixpath.basename(argv[0])
    options, words, files = _split(name, argv[1:])
    text = read(files[0]) if files else stdin
    if text is None or len(files) > 1:
        raise ValueError
    if name != "sed" and not all(map(is_known, (*argv, text))):
        raise ValueError
    return _TOOLS[name][2](_Call(options, words, text, files[0] if files else ""))


def _split(name: str, rest: Sequence[str]) -> tuple[dict[str, str], list[str], list[str]]:
    form, before, _ = _TOOLS[name]
    if name in ("head", "tail") and rest and re.fullmatch(r"-\d+", rest[0]):
        rest = [f"-n{rest[0][1:]}", *rest[1:]]
    pairs, words = gnu_getopt(list(rest), form)
    scripts = [value for option, value in pairs if option == "-e"]
    at = 0 if scripts else before
    return dict(pairs), scripts or words[:at], words[at:]


def edited(argv: Sequence[str], read: Callable[[str], str | None]) -> dict[str, str | None]:
    """Returns the new text of each file that ``sed -i`` (``argv``) changes, of those that ``read`` gives; None: unknown."""
    words = [word for word in argv if not re.fullmatch(r"-i\S*|--in-place\S*", word)]
    try:
        *_, files = _split("sed", words[1:])
    except GetoptError:
        return {file: None for file in words[2:] if read(file) is not None}
    changed: dict[str, str | None] = {}
    for file in files:
        if read(file) is not None:
            try:
                changed[file] = printed([*words[: len(words) - len(files)], file], None, read)
            except (ValueError, IndexError, GetoptError, re.error):
                changed[file] = None
    return changed


def passed_on(argv: Sequence[str], stdin: str | None) -> list[str] | None:
    """Returns the command that ``xargs`` starts once with all words of ``stdin``; None where it starts several."""
    try:
        _, command = getopt(list(argv[1:]), "rt", ["no-run-if-empty"])
        return None if stdin is None else [*(command or ["echo"]), *shlex.split(stdin)]
    except (GetoptError, ValueError):  # a quote without its end
        return None


def _count(call: _Call, default: str) -> tuple[str, int]:
    match = re.fullmatch(r"([-+]?)(\d{1,9})", call.options.get("-c") or call.options.get("-n") or default)
    if match is None:
        raise ValueError
    return match[1], int(match[2])


def _part(call: _Call) -> Sequence[str]:
    return call.text if "-c" in call.options else call.text.splitlines(keepends=True)


def _head(call: _Call) -> str:
    sign, count = _count(call, "10")
    part = _part(call)
    return "".join(part[: max(len(part) - count, 0) if sign == "-" else count])


def _tail(call: _Call) -> str:
    sign, count = _count(call, "10")
    part = _part(call)
    return "".join(part[max(count - 1, 0) if sign == "+" else max(len(part) - count, 0) :])


def _cut(call: _Call) -> str:
    listed, sep = call.options.get("-f") or call.options.get("-c"), call.options.get("-d", "\t")
    if not listed or ("-f" in call.options) == ("-c" in call.options) or not re.fullmatch(r"[\d,-]+", listed):
        raise ValueError
    spans = [re.fullmatch(r"(\d*)(-?)(\d*)", span) for span in listed.split(",")]

    def taken(number: int) -> bool:
        return any(
            span and int(span[1] or 1) <= number <= int(span[3] or (1e9 if span[2] else span[1])) for span in spans
        )

    if "-c" in call.options:
        return "".join("".join(char for at, char in enumerate(line, 1) if taken(at)) + "\n" for line in call.lines)
    rows = [line.split(sep) for line in call.lines if sep in line or "-s" not in call.options]
    kept = (row if len(row) == 1 else [field for at, field in enumerate(row, 1) if taken(at)] for row in rows)
    return "".join(sep.join(row) + "\n" for row in kept)


def _wc(call: _Call) -> str:
    counts = {"-l": call.text.count("\n"), "-w": len(call.text.split()), "-c": len(call.text.encode())}
    (option,) = call.options  # several print several columns
    return f"{counts[option]}{f' {call.file}' if call.file else ''}\n"


def _tr(call: _Call) -> str:
    sets = [_characters(word) for word in call.words]
    delete, squeeze = "-d" in call.options, "-s" in call.options
    if len(sets) != (1 if delete or (squeeze and len(sets) == 1) else 2) or (delete and squeeze):
        raise ValueError
    other = "-c" in call.options or "-C" in call.options

    def meant(char: str) -> bool:
        return (char in sets[0]) != other

    if delete:
        return "".join(char for char in call.text if not meant(char))
    text = call.text
    if len(sets) == 2:
        last = sets[1][-1]
        table = dict(zip(sets[0], sets[1] + last * len(sets[0]), strict=False))
        text = "".join((last if other else table[char]) if meant(char) else char for char in text)
    if squeeze:
        kept = sets[-1]
        many = (lambda char: char in kept) if len(sets) == 2 else meant
        text = "".join(char for at, char in enumerate(text) if not (at and text[at - 1] == char and many(char)))
    return text


def _characters(text: str) -> str:
    text = re.sub(r"\\([nt\\])", lambda match: {"n": "\n", "t": "\t", "\\": "\\"}[match[1]], classes(text))
    if not text or "[:" in text or re.search(r"\\[^\\]", text):
        raise ValueError
    return re.sub(r"(\w)-(\w)", lambda m: "".join(chr(c) for c in range(ord(m[1]), ord(m[2]) + 1)), text)


def _sort(call: _Call) -> str:
    lines = sorted(set(call.lines) if "-u" in call.options else call.lines)
    if "-n" in call.options:
        lines.sort(key=lambda line: float(re.match(r"\s*(-?\d+(?:\.\d+)?)|", line)[1] or 0))  # type: ignore[index]
    if "-V" in call.options:
        if not all(re.fullmatch(r"[\w.-]*", line) for line in lines):
            raise ValueError
        lines.sort(key=lambda line: [(int(each or -1), text) for each, text in re.findall(r"(\d+)|(\D+)", line)])
    if "-r" in call.options:
        lines.reverse()
    return "".join(line + "\n" for line in lines)


def _uniq(call: _Call) -> str:
    lines = call.lines
    return "".join(line + "\n" for number, line in enumerate(lines) if not number or line != lines[number - 1])


def _grep(call: _Call) -> str:
    """Prints what ``grep`` prints; a search that finds nothing is a question of its own (ValueError)."""
    perl = "-P" in call.options
    pattern = call.words[0] if perl else _regex(call.words[0], extended="-E" in call.options)
    compiled = searchable(pattern, max(map(len, call.lines), default=0))
    found = [line for line in call.lines if (compiled.search(line) is None) == ("-v" in call.options)]
    if not found:
        raise ValueError
    if "-c" in call.options:
        return f"{len(found)}\n"
    if "-o" in call.options:
        found = [match[0] for line in found for match in compiled.finditer(line) if match[0]]
    return "".join(line + "\n" for line in found)


_AWK = re.compile(
    r"\s*(?:NR\s*==\s*(?P<row>\d+)|(?P<without>!?)/(?P<has>[\w\s=:,-]+)/)?\s*\{\s*print\s*(?P<fields>[^{}();\"]*?)\s*;?\s*\}\s*"
)


def _awk(call: _Call) -> str:
    """Prints columns of all lines, of one, or of those with a plain text; other programs raise ValueError."""
    match = _AWK.fullmatch(call.words[0])
    by = call.options.get("-F")
    if match is None or (by is not None and len(by) != 1):
        raise ValueError
    text = ""
    for number, line in enumerate(call.lines, 1):
        if (match["row"] and number != int(match["row"])) or (
            match["has"] and (match["has"] in line) == bool(match["without"])
        ):
            continue
        columns, asked = line.split(by) if by and by != " " else line.split(), match["fields"] or "$0"
        text += " ".join(_column(what.strip(), line, columns, number) for what in asked.split(",")) + "\n"
    return text


def _column(what: str, line: str, columns: list[str], number: int) -> str:
    if what in ("NF", "NR"):
        return str(len(columns) if what == "NF" else number)
    match = re.fullmatch(r"\$(\d+|NF)", what)
    if match is None:
        raise ValueError
    index = len(columns) if match[1] == "NF" else int(match[1])
    return line if not index else columns[index - 1] if index <= len(columns) else ""


def _sed(call: _Call) -> str:
    """Applies ``s`` commands in turn; replacements and the text around a match may hold marks."""
    text = call.text
    for script in (part for word in call.words for part in word.split(";") if part.strip()):
        match = re.fullmatch(r"\s*s([^\w\s\\])(.*?)\1(.*?)\1(g?)\s*", script, re.DOTALL)
        if match is None or not is_known(match[2]):
            raise ValueError
        pattern = _regex(match[2], extended="-E" in call.options or "-r" in call.options)
        compiled = searchable(pattern, max(map(len, text.splitlines()), default=0))
        by, count = _replacement(match[3]), 0 if match[4] else 1
        text = "".join(
            compiled.sub(by, line.removesuffix("\n"), count=count) + "\n" * line.endswith("\n")
            for line in text.splitlines(keepends=True)
        )
    return text


def _replacement(text: str) -> Callable[[re.Match[str]], str]:
    parts = re.findall(r"\\(\d)|\\([^\w\s])|(&)|([^\\&]+|\\.)", text)
    if any(rest.startswith("\\") for *_, rest in parts):
        raise ValueError

    def by(match: re.Match[str]) -> str:
        return "".join(
            match[int(group)] if group else match[0] if whole else mark + rest for group, mark, whole, rest in parts
        )

    return by


def _regex(pattern: str, *, extended: bool) -> str:
    """Returns Python's regular expression for one of POSIX; raises ValueError for what the two write otherwise."""
    pattern = classes(pattern)
    if re.search(r"\\[^\W_]|^\*", pattern) or (not extended and re.search(r"\\[(){}|+?]", pattern)):
        raise ValueError
    return pattern if extended else re.sub(r"[(){}|+?]", r"\\\g<0>", pattern)


#: Each tool's options that are known here as getopt writes them, how many words stand before its files, and what it prints.
_TOOLS: Mapping[str, tuple[str, int, Callable[[_Call], str]]] = {
    "head": ("n:c:", 0, _head), "tail": ("n:c:", 0, _tail), "cut": ("d:f:c:s", 0, _cut),
    "awk": ("F:", 1, _awk), "wc": ("lwc", 0, _wc), "tr": ("dscC", 9, _tr),
    "sort": ("nruV", 0, _sort), "uniq": ("", 0, _uniq), "grep": ("ovcEP", 1, _grep),
    "sed": ("e:Er", 1, _sed),
}  # fmt: skip
NAMES = frozenset(_TOOLS)
