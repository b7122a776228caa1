"""Stand-ins for packages that are large to install: only what their documentation says of a class to inherit from."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class Filter:
    """Data-Juicer's: operators are made with the name of the text's field, asked for statistics, then for truths."""

    def __init__(self, *args: Any, text_key: str = "text", **kwargs: Any) -> None:
        self.text_key = text_key


class Operators:
    """Data-Juicer's registry."""

    modules: dict[str, type] = {}  # noqa: RUF012

    @classmethod
    def register_module(cls, name: str) -> Callable[[type], type]:
        return lambda made: cls.modules.setdefault(name, made)


class Fields:
    stats = "__dj__stats__"


class DocumentFilter(ABC):
    """NeMo Curator's."""

    def __init__(self) -> None:
        self._name = type(self).__name__

    @abstractmethod
    def score_document(self, text: str) -> float: ...

    @abstractmethod
    def keep_document(self, scores: float) -> bool: ...


class Document:
    """datatrove's."""

    def __init__(self, text: str, id: str) -> None:
        self.text, self.id, self.metadata = text, id, {}


class BaseFilter(ABC):
    """datatrove's: documents go by in batches, and those that are not kept are left out."""

    def __init__(self, exclusion_writer: Any = None, batch_size: int = 1) -> None:
        self.exclusion_writer, self.batch_size = exclusion_writer, batch_size

    @abstractmethod
    def filter(self, doc: Document) -> Any: ...

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        batch = list(data)
        for document, result in zip(batch, self.filter_batch(batch), strict=True):
            if result is True:
                yield document

    def filter_batch(self, batch: list[Document]) -> list[Any]:
        return list(map(self.filter, batch))


class Dataset:
    """Hugging Face's: a dict of columns."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = columns

    @classmethod
    def from_dict(cls, columns: dict[str, list[Any]]) -> Dataset:
        return cls(columns)

    def map(self, function: Callable[[dict[str, list[Any]]], dict[str, list[Any]]], **options: Any) -> Dataset:
        assert options["batched"]
        return Dataset(self.columns | function(self.columns))

    def filter(self, function: Callable[[dict[str, Any]], bool]) -> Dataset:
        rows = [dict(zip(self.columns, row, strict=True)) for row in zip(*self.columns.values(), strict=True)]
        kept = [row for row in rows if function(row)]
        return Dataset({name: [row[name] for row in kept] for name in self.columns})

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]


MODULES: dict[str, dict[str, Any]] = {
    "datasets": {"Dataset": Dataset},
    "datatrove.data": {"Document": Document},
    "datatrove.pipeline.filters.base_filter": {"BaseFilter": BaseFilter},
    "data_juicer.ops.base_op": {"OPERATORS": Operators, "Filter": Filter},
    "data_juicer.utils.constant": {"Fields": Fields},
    "nemo_curator.stages.text.filters.doc_filter": {"DocumentFilter": DocumentFilter},
}


def stand_in() -> list[str]:
    """Put modules in the place of packages that are not installed, and name these."""
    missing = sorted({name.partition(".")[0] for name in MODULES} - {name for name in sys.modules if "." not in name})
    missing = [name for name in missing if find_spec(name) is None]
    for name, members in MODULES.items():
        parts = name.split(".")
        if parts[0] not in missing:
            continue
        for number in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:number]), ModuleType(".".join(parts[:number])))
        vars(sys.modules[name]).update(members)
    return missing
