"""Bands of error from tables of predictions (``answers/errors.csv``), and how many rows kept aside lie within them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, islice
from pathlib import Path
from zlib import crc32

import numpy as np

from crossflow.answers.bands import (
    CHIPS,
    FEWEST,
    GENERATED,
    LAYOUTS,
    SHARED,
    UNMEASURED_CHIP,
    Band,
    Likeness,
    PairSpread,
    candidates,
)
from crossflow.base.arrays import Array, Mask
from crossflow.evidence.validation.earlier import earlier_families, has_earlier
from crossflow.evidence.validation.kept import KeptTables
from crossflow.evidence.validation.left_out import validate_instead
from crossflow.evidence.validation.likeness import likenesses
from crossflow.evidence.validation.report import Table
from crossflow.evidence.validation.tables import device_spec, template_of

PERCENTILE = 0.9
OF_A_GROUP, MANY, MOST_PAIRS = 40, 100, 100_000  # pairs of a group, in all where there are enough, and that one is drawn from
FEWEST_BLIND = 4  # rows of chips that were predicted before they were announced
FEW_ITEMS = 16  # models or shapes, below which those kept aside differ more than rows do
FEWEST_ITEMS = 4  # models or shapes: the worst of three is passed by one in four of others, so no edge of theirs holds nine of ten
CHIP_DRAWS, ROW_DRAWS = 401, 100  # quantiles of chips yet to come, and of the rows on each, that stand for their distributions
WIDENED = 2.0  # times as wide as its rows say, the most that a band of few models or chips is made, so that no outlier decides
PARTS = 5  # of the models and shapes, each of which is kept aside once
HEADER = (*Likeness.__dataclass_fields__, "n", "median", "p90", "bias", "tables")


@dataclass(frozen=True, kw_only=True)
class JudgedRow:
    """A row of a table with its error, and what it is like."""

    table: str
    like: Likeness
    error: float  # relative to what was measured
    item: str  # what it is about: a model or a shape; rows of one are alike
    chip: str = ""  # the device that was measured, also of a row that speaks for devices never seen


def judged(tables: Iterable[Table]) -> Iterator[JudgedRow]:
    """Rows of tables that were measured and predicted."""
    for table in tables:
        likes = likenesses(table)
        for i in np.flatnonzero(np.isfinite(table.measured) & np.isfinite(table.predicted)).tolist():
            if likes[i].kind:
                item = table.items[i] if table.items else str(i)
                error = float(table.predicted[i] / table.measured[i] - 1.0)
                chip = likes[i].device or (table.groups["chip"][i] if likes[i].seen == GENERATED else "")
                yield JudgedRow(table=table.name, like=likes[i], error=error, item=item, chip=chip)


def left_out(folder: Path | None, kept: KeptTables | None = None) -> list[JudgedRow]:
    """Rows of devices whose generation is left out: they are predicted by their datasheet and the parameters of the generation before."""
    rows = list(judged(validate_instead(earlier_families(), folder, whole=True, kept=kept).tables))
    late = [row for row in rows if has_earlier(row.like.device)]
    return [replace(row, like=replace(row.like, device="", seen="none", memory=_memory(row.like.device))) for row in late]


def _memory(device: str) -> str:
    return getattr(device_spec(device), "memory_kind", "")


def lines(rows: Sequence[JudgedRow], fewest: int = FEWEST) -> dict[Likeness, Band]:
    """Bands of all sets of rows that share something, of `fewest` rows and more; the likest stand before what they are part of."""
    found: dict[Likeness, list[JudgedRow]] = {}
    for row in rows:
        for names in SHARED:
            left = not row.like.device and row.like.seen in ("none", GENERATED)  # what speaks for devices never seen alone
            if all(getattr(row.like, name) for name in names) and not (left and not names):
                found.setdefault(row.like.only(*names), []).append(row)
    spread = _spread_of_chips(rows)
    kept = {
        like: band(members, spread, apart=like.seen == "none" and not like.memory)
        for like, members in found.items()
        if len(members) >= _least(like, fewest) and _speaks(like, members)
    }
    items = {like: len({row.item for row in found[like]}) for like in kept}
    widened = {like: replace(one, p90=_edge(like, kept, items, fewest)) for like, one in kept.items()}
    return dict(sorted(widened.items(), key=lambda pair: tuple(asdict(pair[0]).values())))


def _least(like: Likeness, fewest: int) -> int:
    """Rows that a line must have: of chips that were predicted blind there are few, and their band is as wide as the worst of them."""
    return FEWEST_BLIND if like.seen == GENERATED else fewest


def _speaks(like: Likeness, rows: Sequence[JudgedRow]) -> bool:
    """Whether rows speak for the next chip: of chips that nobody fitted some of the rows do where two generations have enough of them,
    each of which was predicted with the parameters of the one before.
    """
    if like.seen not in ("none", GENERATED) or like in (like.only("seen"), like.only("seen", "memory")):
        return True
    told = [row.chip for row in rows if like.seen == GENERATED or has_earlier(row.chip)]
    return sum(n >= FEWEST for n in Counter(map(_generation, told)).values()) > 1


@functools.cache
def _generation(chip: str) -> str:
    template = template_of(chip) if chip else None
    return chip if template is None else getattr(device_spec(template), "family", "") or chip


def _edge(like: Likeness, known: Mapping[Likeness, Band], items: Mapping[Likeness, int], fewest: int) -> float:
    """Edge of a line's band: of few models or shapes at least that of the likest line that has enough of them, which holds for others.

    Where none has, and the line has fewer than four, it is twice as wide as its rows say.
    That of chips of another kind is twice as wide as any that was seen: of these the widest by their kind of memory is taken.
    That of devices whose family alone was fitted to, of which few have rows, is no narrower than that of devices that were fitted to.
    """
    surer = known.get(replace(like, seen="device")) if like.seen == "family" else None
    least = max(known[like].p90, 0.0 if surer is None else surer.p90)
    if items[like] >= _least(like, fewest):
        return least
    wider = next((_of_kinds(own, known) for _, own in candidates(like, known) if items[own] >= fewest), None)
    if wider is None:
        return least if items[like] >= FEWEST_ITEMS else WIDENED * least
    return max(least, wider)


def _of_kinds(like: Likeness, known: Mapping[Likeness, Band]) -> float:
    """Edge of a line, of chips apart that of the widest kind of memory."""
    if like.seen != "none" or like.memory:
        return known[like].p90
    return max((known[one].p90 for one in known if one.memory and replace(one, memory="") == like), default=known[like].p90)


def band(rows: Sequence[JudgedRow], spread: ChipSpread | None = None, *, apart: bool = False) -> Band:
    """Band of rows: its edge is the error that one row in ten of others of the kind passes, as conformal prediction has it [1]_.

    Of few models or shapes it is up to twice as wide.
    Of chips that nobody fitted it is no narrower than that of the chip with the widest one, or of the next chip where that is wider
    (`_of_next_chip`), up to twice as wide. For chips `apart`, of a kind of which none is among the rows, it is twice as wide as that of the
    hardest.

    References
    ----------
    .. [1] V. Vovk, A. Gammerman, G. Shafer, "Algorithmic Learning in a Random World", 2005: of n exchangeable errors the one of rank
       0.9 (n + 1) holds nine of ten further ones.
    """
    errors = np.array([row.error for row in rows])
    tables = " ".join(sorted({row.table for row in rows}))
    edge, items = _rank(np.abs(errors)), _grouped(rows, _item)
    if len(rows) >= FEWEST and len(items) < FEW_ITEMS:  # whose errors are alike: nine of ten of others are within their own edges
        each_item = [np.quantile([abs(row.error) for row in own], PERCENTILE) for own in items]
        edge = float(np.clip(np.quantile(each_item, PERCENTILE), edge, WIDENED * edge))
    if rows[0].like.seen in ("none", GENERATED) and (each := _by_chip(rows)):
        edge = max(edge, *map(_rank, each))  # the next chip may be as hard as the hardest of these
        if rows[0].like.seen == "none":
            edge = WIDENED * edge if apart else float(np.clip(_of_next_chip(each, spread), edge, WIDENED * edge))
    return Band(median=float(np.median(np.abs(errors))), p90=edge, bias=float(errors.mean()), n=len(errors), tables=tables)


@dataclass(frozen=True, kw_only=True)
class ChipSpread:
    """How much the edges of chips that nobody fitted differ."""

    deviation: float  # standard deviation of their logarithms about the mean of each kind of runs
    freedom: int  # degrees of freedom: chips of all kinds, less one of each kind


def _by_chip(rows: Sequence[JudgedRow]) -> list[Array]:
    """Sizes of the errors on each chip that has enough rows."""
    each = [np.abs([row.error for row in own]) for own in _grouped(sorted(rows, key=_chip), _chip)]
    return [own for own in each if len(own) >= FEWEST]


def _spread_of_chips(rows: Sequence[JudgedRow]) -> ChipSpread | None:
    """Spread of chips that nobody fitted, over all kinds of runs that have two of them; None where none has."""
    kinds = [_by_chip(own) for own in _grouped([row for row in rows if row.like.seen == "none"], lambda row: row.like.kind)]
    edges = [np.log([_rank(own) for own in each]) for each in kinds if len(each) > 1]
    freedom = sum(len(own) - 1 for own in edges)
    if not freedom:
        return None
    return ChipSpread(deviation=float(np.sqrt(sum(((own - own.mean()) ** 2).sum() for own in edges) / freedom)), freedom=freedom)


def _of_next_chip(each: Sequence[Array], spread: ChipSpread | None) -> float:
    """Edge that nine of ten rows of a further chip keep to, if it is drawn as these were; nothing where one chip is all there is.

    The logarithms of the edges of k chips are taken for draws of one normal distribution with unknown mean and variance. Then that of
    the next chip lies about their mean as s sqrt(1 + 1 / k) t, with t of Student's distribution [1]_, Sec. 3.2: of few chips its tails are
    wide. Of a single chip s is that of the chips of all kinds. Rows lie about the edge of their chip as they do on these chips.

    References
    ----------
    .. [1] A. Gelman et al., "Bayesian Data Analysis", 3rd ed., 2013: posterior predictive distribution of a normal with flat prior.
    """
    from scipy.stats import t as student

    edges = np.log([_rank(own) for own in each])
    if len(edges) > 1:
        spread = ChipSpread(deviation=float(edges.std(ddof=1)), freedom=len(edges) - 1)
    if spread is None or not np.isfinite(edges).all():
        return 0.0
    draws = student.ppf((np.arange(CHIP_DRAWS) + 0.5) / CHIP_DRAWS, spread.freedom)
    chips = np.exp(edges.mean() + spread.deviation * np.sqrt(1.0 + 1.0 / len(edges)) * draws)
    at = (np.arange(ROW_DRAWS) + 0.5) / ROW_DRAWS
    shapes = np.concatenate([np.quantile(own, at) / np.exp(edge) for own, edge in zip(each, edges, strict=True)])
    return float(np.quantile(np.outer(shapes, chips), PERCENTILE))


def _rank(sizes: Array) -> float:
    ordered = np.sort(sizes)
    return float(ordered[min(int(np.ceil(PERCENTILE * (len(ordered) + 1))), len(ordered)) - 1])


def pairs(rows: Sequence[JudgedRow], late: Sequence[JudgedRow]) -> dict[tuple[str, str], PairSpread]:
    """By kind, and by what they are pairs of, how much more one of two rows was overestimated than the other.

    Rows of one model or shape are compared; where none were measured on two devices, rows of one table are.
    `late` are those of `left_out`: pairs of one of them with a row of another device.
    """
    known = [row for row in rows if row.like.device]
    found: dict[tuple[str, str], PairSpread] = {}
    for kind in sorted({row.like.kind for row in known}):
        mine, unseen = ([row for row in some if row.like.kind == kind] for some in (known, late))
        layouts = [pair for group in _grouped(mine, _system) for pair in _some(combinations(group, 2))]
        for between, drawn in ((LAYOUTS, layouts), (CHIPS, _across(mine, mine)), (UNMEASURED_CHIP, _across(unseen, mine))):
            if len(drawn) >= FEWEST:
                sizes = np.abs([np.log1p(one.error) - np.log1p(other.error) for one, other in drawn])
                own = PairSpread(n=len(drawn), even=_ratio(sizes, 0.5), order=_ratio(sizes, 2.0 * PERCENTILE - 1.0))
                if own.order >= found.get((kind, LAYOUTS), own).order:  # two systems share no more than one has by itself
                    found[kind, between] = own
    return found


def _ratio(sizes: Array, quantile: float) -> float:
    """A quantile of differences of logarithms, as a ratio less one."""
    return float(np.expm1(np.quantile(sizes, quantile)))


def _system(row: JudgedRow) -> tuple[str, ...]:
    return row.table, row.like.device, row.like.stack, row.like.scale, row.item


def _grouped(rows: Iterable[JudgedRow], key: Callable[[JudgedRow], object]) -> list[list[JudgedRow]]:
    found: dict[object, list[JudgedRow]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return list(found.values())


def _across(some: Sequence[JudgedRow], others: Sequence[JudgedRow]) -> list[tuple[JudgedRow, JudgedRow]]:
    """Pairs of rows on two chips: of one model or shape, else of one table."""
    for key in (_item, _table):
        against: dict[str, list[JudgedRow]] = {}
        for row in others:
            against.setdefault(key(row), []).append(row)
        groups = _grouped(some, key)
        most = max(OF_A_GROUP, MANY * MANY // max(len(groups), 1))
        drawn = [pair for group in groups for pair in _some(_on_two(group, against.get(key(group[0]), [])), most)]
        if len(drawn) >= MANY:
            return drawn
    return drawn


def _item(row: JudgedRow) -> str:
    return row.item


def _chip(row: JudgedRow) -> str:
    return row.chip


def _table(row: JudgedRow) -> str:
    return row.table


def _on_two(some: Sequence[JudgedRow], others: Sequence[JudgedRow]) -> Iterator[tuple[JudgedRow, JudgedRow]]:
    return ((one, other) for one in some for other in others if one.chip != other.chip)


def _some(found: Iterable[tuple[JudgedRow, JudgedRow]], most: int = OF_A_GROUP) -> list[tuple[JudgedRow, JudgedRow]]:
    """Some of the pairs of a group, drawn by chance with a seed, so that no large group decides."""
    every = list(islice(found, MOST_PAIRS))
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(every))[:most]
    return [every[int(i)] for i in np.sort(chosen)]


def written_pairs(found: Mapping[tuple[str, str], PairSpread]) -> str:
    """Spreads of pairs as the file has them."""
    rows = (f'"{kind}",{between},{one.n},{one.even:.4g},{one.order:.4g}' for (kind, between), one in found.items())
    return "\n".join(("kind,between,n,even,order", *rows)) + "\n"


def written(found: Mapping[Likeness, Band]) -> str:
    """The lines as the file has them."""
    rows = [",".join(HEADER)]
    for like, of in found.items():
        cells = [f'"{cell}"' if "," in cell else cell for cell in asdict(like).values()]
        rows.append(",".join((*cells, str(of.n), *(f"{value:.4g}" for value in (of.median, of.p90, of.bias)), of.tables)))
    return "\n".join(rows) + "\n"


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Rows that were kept aside, and the share of them that lies within the band that is drawn without them."""

    kind: str
    chip: str  # empty for all chips
    seen: str  # "" for rows of devices that were fitted to, "none" for chips predicted as if nobody had fitted them
    n: int
    share: float


def coverage(rows: Sequence[JudgedRow], fewest: int = FEWEST) -> list[Coverage]:
    """Shares of rows of models and shapes kept aside that lie within their band, by kind, and by kind and chip.

    Bands are those of the other models and shapes; each part of them is kept aside once.
    """
    rows = [row for row in rows if row.like.seen != GENERATED]  # each of which is a chip of its own
    part = np.array([crc32(row.item.encode()) % PARTS for row in rows])
    return _shares(rows, [(part == one, part != one) for one in range(PARTS)], "", fewest)


def unseen_coverage(rows: Sequence[JudgedRow], fewest: int = FEWEST) -> list[Coverage]:
    """The same of the rows of `left_out`: those of each chip are kept aside, and the band is drawn from the other chips."""
    chips = np.array([row.chip for row in rows])
    return _shares(rows, [(chips == chip, chips != chip) for chip in sorted(set(chips.tolist()))], "none", fewest)


def _shares(rows: Sequence[JudgedRow], folds: Sequence[tuple[Mask, Mask]], seen: str, fewest: int) -> list[Coverage]:
    within: dict[tuple[str, str], list[bool]] = {}
    for aside, others in folds:
        known = lines([rows[int(i)] for i in np.flatnonzero(others)], fewest)
        for row in (rows[int(i)] for i in np.flatnonzero(aside)):
            found = next(candidates(row.like, known), None)
            if found is not None and not row.like.lies_apart(found[1]):
                for chip in {"", row.chip}:
                    within.setdefault((row.like.kind, chip), []).append(abs(row.error) <= found[0].p90)
    shares = sorted((*key, len(told), float(np.mean(told))) for key, told in within.items())
    return [Coverage(kind=kind, chip=chip, seen=seen, n=n, share=share) for kind, chip, n, share in shares]
