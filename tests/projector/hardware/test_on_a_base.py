"""A file of hardware on a base: what it states counts, with a source of its own; everything else is the base's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from projector.errors import InputError
from projector.hardware import catalogue
from projector.hardware.types import Cluster
from projector.hardware.yaml_file import described

FASTER = {
    "name": "faster",
    "title": "HGX H100 with adapters twice as fast",
    "base": "clusters/h100_sxm",
    "inter": {"bandwidth_gbs": 100.0, "nics_per_node": None},
    "sources": [{"title": "a data sheet", "kind": "datasheet", "values": ["inter.bandwidth_gbs"]}],
}


def read(tmp_path: Path, **changes: object) -> Cluster:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({**FASTER, **changes}), encoding="utf-8")
    return catalogue.cluster(str(path))


def test_what_is_not_stated_is_the_base_s(tmp_path: Path) -> None:
    found, base = read(tmp_path), catalogue.cluster("h100_sxm")
    inter = replace(base.inter, bandwidth=100e9, nics_per_node=None)
    assert found == replace(base, name="faster", inter=inter, sources=found.sources)
    assert "inter.bandwidth_gbs: datasheet, a data sheet" in found.sources
    assert not any("nics_per_node" in line for line in found.sources), "what is not there has no source"
    assert sum("inter.bandwidth_gbs" in line for line in found.sources) == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sources": []}, "nothing for inter.bandwidth_gbs"),
        ({"base": "clusters/h100_sxn"}, "nearest: clusters/h100_sxm"),
        ({"base": "h100_sxm"}, "base: found 'h100_sxm'"),
        ({"base": ["clusters/h100_sxm"]}, "base: found"),
        ({"name": None}, "name: found None, expected a non-empty text"),
        ({"sources": "a data sheet"}, "sources: found 'a data sheet'"),
        ({"intre": {"size": 4}}, "intre"),
    ],
)
def test_mistakes_name_the_file_and_the_key(tmp_path: Path, changes: dict[str, object], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, **changes)
    assert "own.yaml" in str(caught.value)
    assert expected in str(caught.value)


def test_names_are_never_the_base_s() -> None:
    """What a GPU is called belongs to it alone: an alias of two would name one of them."""
    files = sorted(Path(catalogue.__file__).parent.glob("gpus/*.yaml"))
    aliases = [alias for file in files for alias in described(file).get("aliases", ())]
    assert len(aliases) == len(set(aliases))
