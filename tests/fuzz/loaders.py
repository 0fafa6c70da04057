"""Every loader of a file that a user may bring, with small sound files to damage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.evidence import run_text
from tests.conftest import ROOT
from tests.fuzz import samples

__all__ = ["LOADERS", "Loader"]


@dataclass(frozen=True)
class Loader:
    """``samples``: (file name, text) that ``load`` reads; ``load`` gets the path of a damaged one."""

    samples: Callable[[], tuple[tuple[str, str], ...]]
    load: Callable[[Path], object]


def _primus(path: Path) -> object:
    from projector.intake import detect

    return detect.load(path, configs=samples.PRIMUS if path.name.startswith("primus") else None)


def _detected(path: Path) -> object:
    from projector.intake import detect

    return detect.load(path)


def _architecture(path: Path) -> object:
    from projector.intake.architecture import load_architecture

    return load_architecture(str(path)).model


def _gpu(path: Path) -> object:
    from projector.hardware import catalogue, efficiency

    return efficiency.of(catalogue.gpu(str(path)))


def _cluster(path: Path) -> object:
    from projector.hardware import catalogue

    return catalogue.cluster(str(path))


def _hardware(path: Path) -> object:
    from projector.hardware import catalogue, primus

    return primus.read(path, catalogue.cluster("mi300x"))


def _efficiency(path: Path) -> object:
    from projector.hardware import efficiency
    from projector.io.files import read_text

    return efficiency.parse(read_text(path), str(path))


def _posterior(path: Path) -> object:
    from projector import posterior
    from projector.io.files import read_text

    return posterior.parse(read_text(path), str(path))


def _suite(path: Path) -> object:
    from harness.evidence import suite

    return suite.load(path, ROOT / "measured" / "runs")


def _runs(path: Path) -> object:
    from harness.evidence import dataset

    return run_text.to_yaml(dataset.read(path))


def _ingested(path: Path) -> object:
    from harness.evidence.ingest import command

    return run_text.to_yaml(command.load(path).runs)


def _map(path: Path) -> object:
    from harness.evidence.ingest.importmap import read_import_map
    from harness.evidence.ingest.loose import convert

    return convert([dict(samples.TABLE[0]), dict(samples.TABLE[1])], "t.yaml", read_import_map(path))


def _context(path: Path) -> object:
    from harness.evidence.ingest.context import read_context

    return read_context(path)


def _trainings(path: Path) -> object:
    from harness.measure import spec

    return spec.read(path)


def _shapes(path: Path) -> object:
    from projector.benchmark import shapes

    return shapes.of_file(path)


def _kernels(path: Path) -> object:
    from harness.kernels import schema

    return schema.read(path, "mi355x")


def _collectives(path: Path) -> object:
    from harness.kernels import collectives_table

    return collectives_table.read(path.parent)


def _results(path: Path) -> object:
    """As ``harness report`` and ``harness run --against`` use them."""
    from harness.report import files, markdown, publish
    from harness.score import drift, gate

    saved = files.read(path)
    e = saved.evaluation
    checks = [check for name, limits in saved.gates.items() for check in gate.check(name, e.frame, limits)]
    report = publish.report_of(saved, checks, "title")
    drift.compare(e.frame, e.frame)
    return markdown.render(report), publish.page(report, saved), files.json_text(saved), files.csv_text(e.rows)


LOADERS: Mapping[str, Loader] = {
    "primus": Loader(samples.primus, _primus),
    "case": Loader(lambda: (("case.yaml", samples.CASE), ("whole.yaml", samples.WHOLE)), _detected),
    "megatron": Loader(samples.megatron, _detected),
    "torchtitan": Loader(samples.titan, _detected),
    "maxtext": Loader(samples.maxtext, _detected),
    "nemo": Loader(samples.nemo, _detected),
    "huggingface": Loader(samples.configs, _architecture),
    "gpu": Loader(samples.catalogue("gpus", "mi355x", "b200"), _gpu),
    "cluster": Loader(samples.catalogue("clusters", "mi355x", "gb200"), _cluster),
    "hardware": Loader(lambda: (("hardware.yaml", samples.HARDWARE),), _hardware),
    "efficiency": Loader(samples.parameters, _efficiency),
    "posterior": Loader(samples.posteriors, _posterior),
    "suite": Loader(lambda: (("suite.yaml", samples.SUITE),), _suite),
    "runs": Loader(samples.measured, _runs),
    "table": Loader(samples.tables, _ingested),
    "map": Loader(lambda: (("map.yaml", samples.MAP), ("flat.yaml", "TP size: tp\nGBS: gbs\n")), _map),
    "context": Loader(lambda: (("recipe.yaml", samples.CONTEXT),), _context),
    "trainings": Loader(lambda: samples.files(ROOT / "examples" / "measure" / "logs.yaml"), _trainings),
    "shapes": Loader(samples.kernel_tables, _shapes),
    "kernels": Loader(samples.kernel_tables, _kernels),
    "collectives": Loader(samples.collective_tables, _collectives),
    "results": Loader(samples.evaluated, _results),
}  # fmt: skip
