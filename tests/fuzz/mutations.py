"""Seeded damage to files of users: to the values of a document, to its lines, to its bytes."""

import copy
import json
import math
import os
import random
from typing import Any

from projector.errors import InputError
from projector.io.documents import parse_yaml

__all__ = ["JUNK", "MANY", "mutate"]

MANY = int(os.environ.get("FUZZ_TRIES", "10000"))
"""Tries of one slow test."""

JUNK: tuple[Any, ...] = (
    *(None, True, False, "", " ", "x", "8", "1e3", "none", "null", "true", "1.5", "-1", "nan", "\x00", "é\u202e\x1b[31m"),
    *(0, 1, -1, 2, 3, 7, 64, 10**6, 10**9, 10**12, 10**30, -(10**9), 2**31, 2**63),
    *(0.0, 1.5, -0.5, 1e-300, 1e300, math.nan, math.inf, -math.inf),
    *([], [0], [1, 2, 3], ["a"], [None], [[]], [{}], [[1], [2]], {}, {"a": 1}, {"": None}, {"a": {"b": {"c": []}}}),
    *("x" * 5_000, "([0]*10**9)", "([0]*3+[1]*58)", "[0]*1000000000", "9" * 400, "2025-02-31", "${HOME}", "${NO:}", "${"),
    *("../../etc/passwd", "/dev/zero", "*", "[", "a,b,,c", "a\nb", "llama3_8b", "mi355x", "--tp 8", "torch.bfloat16", "8e"),
)  # fmt: skip
_TOKENS = (
    *(b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\t", b"\n\n", b"---\n", b"...\n", b"%YAML 9\n", b"!!python/none x"),
    *(b"&a ", b"*a", b"<<: *a", b"{" * 200, b"[" * 200, b"- " * 200, b"? ", b": ", b"'", b'"', b"#", b"\\\n", b"$(", b"${"),
    *(b"`", b"9" * 5_000, b"1e999", b"-", b"=", b"~", b"<<EOF\n", b"((", b"))", b";;", b"|", b"&&", b"\xf0\x9f\x98\x80"),
    *(b"\xc3", b"!!"),
)  # fmt: skip


def mutate(text: str, seed: int) -> bytes:
    """``text`` with one to four kinds of damage; the same for the same seed."""
    rng = random.Random(seed)
    if rng.random() < 0.6:
        try:
            document = parse_yaml(text, "")
        except InputError:
            document = None
        if isinstance(document, (dict, list)):
            return _dump(_of_document(document, rng), rng)
    data = text.encode()
    for _ in range(rng.randint(1, 4)):
        data = rng.choice((_lines, _lines, _bytes, _token))(data, rng)
    return data


def _dump(document: object, rng: random.Random) -> bytes:
    if rng.random() < 0.8:
        return json.dumps(document, default=str).encode()
    import yaml

    return str(yaml.dump(document, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper))).encode()


def _of_document(document: Any, rng: random.Random) -> Any:
    made = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        places = _places(made)
        if not places or rng.random() < 0.01:
            return _junk(rng)
        holder, key = rng.choice(places)
        change = rng.random()
        if change < 0.6:
            holder[key] = _junk(rng)
        elif change < 0.7:
            del holder[key]
        elif change < 0.78:
            other, at = rng.choice(places)
            holder[key] = copy.deepcopy(other[at])
        elif change < 0.86:
            holder[key] = rng.choice(([holder[key]], {"a": holder[key]}, [holder[key]] * 3, str(holder[key])))
        elif isinstance(holder, dict):
            name = rng.choice((*map(str, JUNK[:20]), f"{key}x", str(key).upper(), str(key)[::-1], f"--{key}"))
            holder[name] = holder.pop(key) if rng.random() < 0.5 else _junk(rng)
        else:
            holder.insert(rng.randint(0, len(holder)), copy.deepcopy(holder[key]))
    return made


def _junk(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(JUNK))  # a list of JUNK itself would be damaged further


def _places(document: Any) -> list[tuple[Any, Any]]:
    """(container, key or index) of every value."""
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        item = waiting.pop()
        keys = list(item) if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ()
        found += [(item, key) for key in keys]
        waiting += [item[key] for key in keys if isinstance(item[key], (dict, list))]
    return found


def _lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    change = rng.randrange(6)
    if change == 0:
        del lines[at]
    elif change == 1:
        lines.insert(other, lines[at])
    elif change == 2:
        lines[at] = b" " * rng.randint(0, 9) + lines[at]
    elif change == 3:
        lines[at] = lines[at].strip()
    elif change == 4:
        key, mark, _ = lines[at].partition(rng.choice((b":", b"=", b" ")))
        lines[at] = key + mark + b" " + json.dumps(_junk(rng)).encode()
    else:
        lines[at], lines[other] = lines[other], lines[at]
    return b"\n".join(lines)


def _bytes(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return data[: rng.randint(0, len(data))]
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _token(data: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice(_TOKENS) + data[at:]
