"""Seeded damage to logs: flipped bytes, cut ends, shuffled, doubled and spliced lines."""

import random

WORDS = (
    b"iteration", b"|", b":::MLLOG {", b"\0\0", b"\xff\xfe", b"\r", b"9" * 400, b"[" * 300, b"{" * 300, b"1e999", b"-1",
)  # fmt: skip


def mutate(data: bytes, seed: int) -> bytes:
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 3)):
        data = rng.choice((_flip, _cut, _shuffle, _double, _insert, _digits))(data, rng)
    return data


def _flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, max(1, len(changed) // 50))):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randint(0, len(data))] if rng.random() < 0.7 else data[rng.randint(0, len(data)) :]


def _shuffle(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    rng.shuffle(lines)
    return b"\n".join(lines)


def _double(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    return b"\n".join(line for line in lines for _ in range(rng.choice((0, 1, 1, 1, 2))))


def _insert(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 5)):
        at = rng.randint(0, len(data))
        data = data[:at] + rng.choice(WORDS) + data[at:]
    return data


def _digits(data: bytes, rng: random.Random) -> bytes:
    """Other numbers in the places of numbers: what still parses but makes no sense."""
    changed = bytearray(data)
    for i, byte in enumerate(changed):
        if 48 <= byte <= 57 and rng.random() < 0.05:
            changed[i] = rng.choice(b"0123456789.,eE-")
    return bytes(changed)
