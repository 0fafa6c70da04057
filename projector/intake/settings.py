"""What one configuration of another tool states, read by its dialect: every setting is accounted for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from projector.errors import InputError, Problem, Unsupported
from projector.intake import aliases, known_settings
from projector.intake.dialect import ONLY, STATED, Dialect, flat
from projector.intake.loaded import Loaded
from projector.intake.named_models import OTHERS, published
from projector.intake.spelling import misspelt, normal
from projector.intake.values import Reader, word_of
from projector.workload.model import Model
from projector.workload.optimizers import named
from projector.workload.schema import parse_recipe


class Settings:
    """Reads what a configuration states, as far as the dialect's YAML says, and accounts for every setting.

    ``args``: typed access to what is stated and to defaults, for the dialect's Python, whose own findings are added to
    ``fields`` (recipe field to value, None: not stated), ``doubts`` and ``args.problems``. ``stated``: the settings to
    account for, by dotted name; those of a file ``below`` them are read and not accounted for, over ``preset``, which
    stands over the dialect's defaults.
    """

    def __init__(
        self, of: Dialect, content: Mapping[str, object], where: str, *, below: Mapping[str, object] | None = None,
        preset: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        """Reads ``content``. Raises :class:`Unsupported` for another kind of training or of layers."""
        self.dialect, self.where, self.below = of, where, below
        self.renamed: set[str] = set()
        under = self._under_todays_names(below or {})
        self.stated = self._under_todays_names(content)
        given = {key: value for key, value in {**under, **self.stated}.items() if value is not None}
        whole = {**of.default, **(preset or {}), **given}
        self._refuse(whole)
        self.args = Reader(whole)
        self.doubts: list[str] = []
        self.fields: dict[str, object] = (
            {name: self._first(settings) for name, settings in of.names.items()}
            if of.arguments
            else aliases.read(self.args, of.names)
        )
        if isinstance(word := self.fields.get("optimizer"), str):
            called = named(word.removeprefix("paged_"))
            momentum = called != "sgd" or of.arguments  # torch's has none where nothing is said
            self.fields["optimizer"] = called if momentum else "sgd_no_momentum"
        for setting, table in of.values.items():
            self.fields |= self._meaning(setting, table)

    def _under_todays_names(self, content: Mapping[str, object]) -> dict[str, object]:
        """Returns the settings by today's names; where a setting is stated under an old name, too, today's counts."""
        named = [(key, self.dialect.today(key), value) for key, value in flat(content, self.dialect)]
        old = {today: value for key, today, value in named if today != key}
        self.renamed |= set(old)
        return {**old, **{key: value for key, today, value in named if today == key}}

    def was(self, setting: str) -> bool:
        """Returns whether ``setting`` is stated under a name of another year."""
        return setting in self.renamed

    def _refuse(self, stated: Mapping[str, object]) -> None:
        for setting, (off, why) in self.dialect.another.items():
            value = stated.get(setting)
            unset = value is None or (STATED not in off and (value in (False, 0, "") or value in ([], {})))
            listed = any(value is each or (value == each and value is not True) for each in off)
            if not unset and listed == (ONLY in off):
                what = f"{setting}: {why}" if why else f"{setting}={value}"
                raise Unsupported(f"{self.where}: {self.dialect.title} with {what}")

    def published(self, setting: str) -> Model | None:
        """Returns the zoo's model that ``setting`` names; reports a problem without one."""
        name = self.args.text(setting)
        if (model := published(name)) is None:
            self.args.problems.append((setting, name.rstrip("/") or "nothing", OTHERS))
        return model

    def class_name(self, *settings: str) -> str:
        """Returns the class at the end of the module path of the first of ``settings`` with a value; empty without one."""
        return str(self._first(settings) or "").rpartition(".")[2]

    def _first(self, settings: Iterable[str]) -> object:
        return next((value for each in settings if (value := self.args.raw(each)) is not None), None)

    def one_of(self, setting: str, table: str) -> Any:
        """Returns the entry of the dialect's ``table`` for the word of ``setting``; reports a problem without one."""
        words = self.dialect.tables[table]
        word = (self.args.word(setting) or "").lower()
        word = next((each for each in (str(self.args.raw(setting)).lower(), word) if each in words), word)
        if word not in words:
            self._expected(setting, word, words)
        return words.get(word)

    def _expected(self, setting: str, found: object, table: Iterable[object]) -> None:
        words = [str(each).lower() for each in table if each is not None]
        self.args.problems.append((setting, found, f"one of {', '.join(words)}"))

    def _meaning(self, setting: str, table: Mapping[object, Any]) -> Mapping[str, object]:
        """Returns the recipe fields that the value of ``setting`` means; reports a problem for a value not in ``table``."""
        value = self.args.raw(setting)
        word = (word_of(value) or "").lower() if isinstance(value, str) else value
        known = isinstance(word, (str, int, float, type(None)))
        if known and word in table and (not isinstance(word, bool) or any(isinstance(each, bool) for each in table)):
            means = table[word]
            if means == "doubtful":
                self.doubts.append(f"{setting}={known_settings.shown(value)}")
            elif means == "needed":
                self._expected(setting, "nothing", table)
            return means if isinstance(means, Mapping) else {}
        if value is not None and "_" not in table:
            self._expected(setting, value, table)
        return {} if value is None else table.get("_", {})

    def loaded(
        self, model: Model | None, *, told: Iterable[str] = (), problems: Iterable[Problem] = (), written: bool = True,
        **more: Any,
    ) -> Loaded:  # fmt: skip
        """Returns the workload of all that was read. ``told``: more doubts; ``problems``: more problems; ``more``: fields of
        the result.

        Raises :class:`InputError` with everything that does not fit.
        """
        self.args.problems += [(each, "nothing", expected) for each, expected in self.dialect.needed.items()
                               if self.args.raw(each) is None]  # fmt: skip
        left = self.unread(written)
        stated = {field: value for field, value in self.fields.items() if value is not None}
        if model is not None and model.moe is None:
            stated = {field: value for field, value in stated.items() if field not in ("ep", "etp")}
        elif model is not None:
            stated.setdefault("mock_data", False)  # tools train on a data set unless they are told otherwise
        recipe, wrong = parse_recipe(stated, self.where, "")
        wrong = [replace(each, key=self.dialect.names.get(each.key, (each.key,))[0]) for each in wrong]
        found = [*problems, *self.problems, *left.problems]
        if model is None or recipe is None or found:
            raise InputError([*found, *(each for each in wrong if not found or each.found != "nothing")])
        doubts = (*self.doubtful(), *told, *left.unmodelled)
        return Loaded(model=model, recipe=recipe, ignored=left.neutral, unmodelled=doubts, **more)

    @property
    def problems(self) -> list[Problem]:
        """Returns the problems that reading found, each once."""
        return list({(key, repr(value)): Problem(self.where, key, value, expected)
                     for key, value, expected in self.args.problems}.values())  # fmt: skip

    def doubtful(self) -> Iterator[str]:
        """Yields ``setting=value`` of each setting that nothing models, at a value that may change seconds or bytes, and the
        doubts that reading found."""
        for setting, off in self.dialect.doubtful.items():
            value = self.stated.get(setting)
            if setting not in self.args.used and value is not None and value not in off:
                yield f"{setting}={known_settings.shown(value)}"
        yield from self.doubts

    def unread(self, written: bool) -> known_settings.Unread:
        """Sorts the settings that nobody read into neutral ones, misspelt ones, and the rest, which may change anything.

        Raises :class:`Unsupported` for one that a person has ``written`` and that cuts the run over GPUs.
        """
        deciding, unread = self.dialect.deciding, {}
        neutral = []
        for key, value in self.stated.items():
            if key in self.args.used:
                continue
            if key in deciding or any(fnmatchcase(key, each) for each in self.dialect.neutral):
                neutral.append(key)
            else:
                unread[key] = value
        slips = list(self._slips(unread)) if written else []
        unread = {key: value for key, value in unread.items() if key not in {slip.key for slip in slips}}
        left = known_settings.sort(unread, deciding, self.where, written=False)
        if left.cutting and written:
            raise Unsupported(
                f"{self.where}: {', '.join(left.cutting)}: cuts the run over GPUs in a way not known here"
            )
        silent = {text.partition("=")[0] for text in self.doubtful()}
        calm = tuple(sorted({*neutral, *left.neutral} - silent))
        return replace(left, neutral=calm, problems=tuple(slips))

    def _slips(self, unread: Mapping[str, object]) -> Iterator[Problem]:
        """Yields a problem for each unknown setting or section whose name misspells one that decides something."""
        for key, value in unread.items():
            section, _, name = key.rpartition(".")
            beside = [each.rpartition(".") for each in self.dialect.deciding]
            near = misspelt(name, [last for head, _, last in beside if head == section])
            places = [f"{section}.{each}".lstrip(".") for each in near]
            if isinstance(value, Mapping) and key not in self.dialect.heads and not near:
                places = list(misspelt(key, self.dialect.heads))
            if places and normal(key) not in known_settings.known():
                yield Problem(self.where, key, value, f"a known setting; nearest: {', '.join(places)}")
