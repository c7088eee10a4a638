"""The part of PromQL that our alerts are written in, over the scrapes of a few processes.

A scrape is the text of `/metrics`. `rate` and `increase` compare the first scrape of a process with its last one;
every other selector reads the last. Where `promtool` is installed, it judges the same scrapes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
NOTHING: Labels = frozenset()
_TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|[a-zA-Z_:][\w:]*|>=|<=|!=|==|\"[^\"]*\"|\[\w+\]|.)")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "==": operator.eq,
}
_FUNCTIONS = frozenset({"max", "sum", "rate", "increase", "histogram_quantile", "absent"})


def samples(text: str, instance: str) -> dict[tuple[str, Labels], float]:
    return {
        (sample.name, frozenset({*sample.labels.items(), ("instance", instance)})): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Scrapes:
    """The first and the last scrape of each process."""

    def __init__(self, texts: Mapping[str, Sequence[str]]) -> None:
        self.first: dict[tuple[str, Labels], float] = {}
        self.last: dict[tuple[str, Labels], float] = {}
        for instance, several in texts.items():
            self.first.update(samples(several[0], instance))
            self.last.update(samples(several[-1], instance))

    def holds(self, expression: str) -> bool:
        """Whether an alert with it would be pending or firing."""
        parser = _Parser(expression, self)
        found = parser.either()
        assert parser.at_end(), f"not read: {parser.rest()} of {expression}"
        return bool(found)


def names_in(expression: str) -> set[str]:
    """The metrics that it asks for."""
    return set(re.findall(r"\blocktender_\w+", expression))


class _Parser:
    def __init__(self, text: str, scrapes: Scrapes) -> None:
        self._tokens = [token for token in _TOKEN.findall(text.strip()) if token.strip()]
        self._at = 0
        self._scrapes = scrapes

    def at_end(self) -> bool:
        return self._at == len(self._tokens)

    def rest(self) -> str:
        return " ".join(self._tokens[self._at :])

    def _peek(self) -> str:
        return "" if self.at_end() else self._tokens[self._at]

    def _next(self, wanted: str | None = None) -> str:
        token = self._peek()
        assert wanted is None or token == wanted, f"{wanted!r} expected, not {token!r}"
        self._at += 1
        return token

    def either(self) -> Vector:
        found = self._both()
        while self._peek() == "or":
            self._next()
            other = self._both()
            found = {**other, **found}
        return found

    def _both(self) -> Vector:
        found = self._compared()
        while self._peek() == "and":
            self._next()
            other = self._compared()
            found = {labels: value for labels, value in found.items() if labels in other}
        return found

    def _compared(self) -> Vector:
        left = self._product()
        if (sign := self._peek()) not in _COMPARE:
            assert isinstance(left, dict)
            return left
        self._next()
        right = self._product()
        assert isinstance(left, dict)
        holds = _COMPARE[sign]
        found: Vector = {}
        for labels, value in left.items():
            other = right.get(labels) if isinstance(right, dict) else right
            if other is not None and holds(value, other):
                found[labels] = value
        return found

    def _product(self) -> Vector | float:
        found = self._operand()
        while self._peek() == "*":
            self._next()
            other = self._operand()
            assert isinstance(found, float)
            assert isinstance(other, dict)
            found = {labels: found * value for labels, value in other.items()}
        return found

    def _operand(self) -> Vector | float:
        token = self._next()
        if token[0].isdigit():
            return float(token)
        if token == "(":
            found = self.either()
            self._next(")")
            return found
        if token not in _FUNCTIONS:
            return self._selected(token, self._scrapes.last)
        return self._called(token)

    def _called(self, name: str) -> Vector:
        by: list[str] = []
        if self._peek() == "by":
            self._next()
            self._next("(")
            by = [self._next()]
            self._next(")")
        self._next("(")
        if name in {"rate", "increase"}:
            found = self._increased(self._next())
        elif name == "histogram_quantile":
            share = float(self._next())
            self._next(",")
            found = _quantile(share, self._vector())
        elif name == "absent":
            found = {} if self._vector() else {NOTHING: 1.0}
        else:
            found = _merged(self._vector(), by, max if name == "max" else sum)
        self._next(")")
        return found

    def _vector(self) -> Vector:
        found = self._product()
        assert isinstance(found, dict)
        return found

    def _increased(self, name: str) -> Vector:
        at = self._at
        first = self._selected(name, self._scrapes.first)
        self._at = at
        last = self._selected(name, self._scrapes.last)
        assert re.fullmatch(r"\[\d+[smh]\]", self._next()), "a range is expected"
        return {labels: value - first[labels] for labels, value in last.items() if labels in first}

    def _selected(self, name: str, known: Mapping[tuple[str, Labels], float]) -> Vector:
        wanted: set[tuple[str, str]] = set()
        if self._peek() == "{":
            self._next()
            label = self._next()
            self._next("=")
            wanted.add((label, self._next().strip('"')))
            self._next("}")
        return {
            labels: value
            for (each, labels), value in known.items()
            if each == name and wanted <= labels
        }


def _merged(found: Vector, by: Sequence[str], how: Callable[[Iterable[float]], float]) -> Vector:
    groups: dict[Labels, list[float]] = {}
    for labels, value in found.items():
        kept = frozenset(each for each in labels if each[0] in by)
        groups.setdefault(kept, []).append(value)
    return {labels: how(values) for labels, values in groups.items()}


def _quantile(share: float, buckets: Vector) -> Vector:
    """As Prometheus does: linear within a bucket; above the last bound, that bound."""
    ordered = sorted((float(dict(labels)["le"]), count) for labels, count in buckets.items())
    if not ordered or not ordered[-1][1]:
        return {}
    rank, low, below = share * ordered[-1][1], 0.0, 0.0
    for bound, count in ordered:
        if count >= rank:
            if bound == float("inf"):
                return {NOTHING: low}
            return {NOTHING: low + (bound - low) * (rank - below) / (count - below)}
        low, below = bound, count
    return {}
