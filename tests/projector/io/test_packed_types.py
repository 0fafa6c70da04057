"""Values as text: what was packed comes back, by the declared type, and text that names anything else is refused."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from projector.io.packed import pack, unpack
from projector.mechanisms.execution import Execution
from projector.workload.layer_kinds import LayerKind

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Way:
    length: int = 1


@dataclass(frozen=True)
class Bent(Way):
    bends: int = 2


@dataclass(frozen=True)
class Apart:
    length: int = 1


@dataclass(frozen=True)
class Trip:
    way: Way
    other: Bent | Apart | None = None


@pytest.mark.parametrize("trip", [Trip(Way(3)), Trip(Bent(3, 4)), Trip(Way(), Apart(5)), Trip(Bent(), Bent(1, 7))])
def test_what_extends_the_declared_and_one_of_several_come_back(trip: Trip) -> None:
    assert unpack(pack(trip, Trip), Trip) == trip


def test_a_class_that_is_not_declared_is_neither_written_nor_read() -> None:
    with pytest.raises(TypeError):
        pack(Trip(Apart()), Trip)  # type: ignore[arg-type]
    text = pack(Trip(Bent(3, 4)), Trip).decode()
    assert "Bent" in text
    for name in ("Apart", "Path", "system", "__class__"):
        with pytest.raises(ValueError, match="not a"):
            unpack(text.replace("Bent", name).encode(), Trip)
    with pytest.raises(ValueError, match="not a"):
        unpack(json.dumps([[{"way": 0}], 0]).encode(), Trip)  # a trip in the place of its way


def test_strategies_and_kinds_of_layers_travel() -> None:
    one = Execution.of(fusion={"strategy": "torch_eager"})
    assert unpack(pack(one, Execution), Execution) == one
    assert unpack(pack(LayerKind(), LayerKind), LayerKind) == LayerKind()


def test_no_program_reads_what_could_run() -> None:
    """Pickles, and the readers that open them, stand in no file of the packages."""
    for path in (path for package in ("projector", "harness") for path in (ROOT / package).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for word in (
            "import pickle",
            "from pickle",
            "torch.load(",
            "torch.save(",
            "allow_pickle",
            "import marshal",
            "import shelve",
        ):
            assert word not in text, f"{path}: {word}"
