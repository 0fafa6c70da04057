"""Every loader of a file that a user may bring, with small sound files to damage."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.evidence import dataset, run_text, suite
from harness.evidence.ingest import command
from harness.evidence.ingest.context import read_context
from harness.evidence.ingest.importmap import read_import_map
from harness.evidence.ingest.loose import convert
from harness.kernels import collectives_table, schema
from harness.measure import spec
from harness.report import files, markdown, publish
from harness.score import drift, gate
from projector import posterior
from projector.benchmark import shapes
from projector.hardware import catalogue, efficiency, primus
from projector.intake import detect
from projector.intake.architecture import load_architecture
from projector.io.files import read_text
from tests.conftest import ROOT
from tests.fuzz import samples

__all__ = ["LOADERS", "Loader"]


@dataclass(frozen=True)
class Loader:
    """``samples``: (file name, text) that ``load`` reads; ``load`` gets the path of a damaged one."""

    samples: Callable[[], tuple[tuple[str, str], ...]]
    load: Callable[[Path], object]


def _primus(path: Path) -> object:
    return detect.load(path, configs=samples.PRIMUS if path.name.startswith("primus") else None)


def _hardware(path: Path) -> object:
    return primus.read(path, catalogue.cluster("mi300x"))


def _map(path: Path) -> object:
    return convert([dict(samples.TABLE[0]), dict(samples.TABLE[1])], "t.yaml", read_import_map(path))


def _results(path: Path) -> object:
    """As ``harness report`` and ``harness run --against`` use them."""
    saved = files.read(path)
    e = saved.evaluation
    checks = [check for name, limits in saved.gates.items() for check in gate.check(name, e.frame, limits)]
    report = publish.report_of(saved, checks, "title")
    drift.compare(e.frame, e.frame)
    return markdown.render(report), publish.page(report, saved), files.json_text(saved), files.csv_text(e.rows)


LOADERS: Mapping[str, Loader] = {
    "primus": Loader(samples.primus, _primus),
    "case": Loader(lambda: (("case.yaml", samples.CASE), ("whole.yaml", samples.WHOLE)), detect.load),
    "megatron": Loader(samples.megatron, detect.load),
    "torchtitan": Loader(samples.titan, detect.load),
    "maxtext": Loader(samples.maxtext, detect.load),
    "nemo": Loader(samples.nemo, detect.load),
    "huggingface": Loader(samples.configs, lambda path: load_architecture(str(path)).model),
    "gpu": Loader(samples.catalogue("gpus", "mi355x", "b200"), lambda path: efficiency.of(catalogue.gpu(str(path)))),
    "cluster": Loader(samples.catalogue("clusters", "mi355x", "gb200"), lambda path: catalogue.cluster(str(path))),
    "hardware": Loader(lambda: (("hardware.yaml", samples.HARDWARE),), _hardware),
    "efficiency": Loader(samples.parameters, lambda path: efficiency.parse(read_text(path), str(path))),
    "posterior": Loader(samples.posteriors, lambda path: posterior.parse(read_text(path), str(path))),
    "suite": Loader(lambda: (("suite.yaml", samples.SUITE),), lambda path: suite.load(path, ROOT / "measured" / "runs")),
    "runs": Loader(samples.measured, lambda path: run_text.to_yaml(dataset.read(path))),
    "table": Loader(samples.tables, lambda path: run_text.to_yaml(command.load(path).runs)),
    "map": Loader(lambda: (("map.yaml", samples.MAP), ("flat.yaml", "TP size: tp\nGBS: gbs\n")), _map),
    "context": Loader(lambda: (("recipe.yaml", samples.CONTEXT),), read_context),
    "trainings": Loader(lambda: samples.files(ROOT / "examples" / "measure" / "logs.yaml"), spec.read),
    "shapes": Loader(samples.kernel_tables, shapes.of_file),
    "kernels": Loader(samples.kernel_tables, lambda path: schema.read(path, "mi355x")),
    "collectives": Loader(samples.collective_tables, lambda path: collectives_table.read(path.parent)),
    "results": Loader(samples.evaluated, _results),
}  # fmt: skip
