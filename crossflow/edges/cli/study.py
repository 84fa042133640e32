"""`crossflow study`: run a study, progress on stderr, its table on stdout."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence

from rich.text import Text

from crossflow.answers.study.reading import locate
from crossflow.answers.study.run import StudyResult, run_study
from crossflow.base.names import visible
from crossflow.edges.cli import page
from crossflow.edges.cli.progress import progress

LISTED = 16  # files that the log names one by one
PICTURES = (".png", ".svg")


def run(arguments: argparse.Namespace) -> None:
    """Run the study and show its table, and what its answer hangs on."""
    with progress("designs", best=True) as report:
        result = run_study(
            locate(arguments.study),
            out=arguments.out,
            jobs=arguments.jobs,
            dask=arguments.dask,
            resume=arguments.resume,
            settings=arguments.settings,
            yes=arguments.yes,
            progress=report,
            hinged=arguments.hinges,
            format=arguments.format,
        )
    found = None
    if arguments.hinges:
        with _finished(), progress("constants") as report:
            found = result.hinges(report)
    if arguments.json:
        sys.stdout.writelines(result.to_json({} if found is None else {"hinges": found.to_dict()}))
    else:
        _show(result)
        if found is not None:
            _show_hinges(found.title, *found.table(), found.note)
    _log(result)
    if found is not None:
        page.log(f"wrote {result.write_hinges(found)}")


@contextlib.contextmanager
def _finished() -> Iterator[None]:
    """Say of an interrupt that no point is lost."""
    try:
        yield
    except KeyboardInterrupt:
        page.log("the study itself is finished: with --resume, --hinges begins from its points")
        raise


def _show_hinges(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> None:
    """Write who wins, and with which constants somebody else does."""
    if sys.stdout.isatty():
        told = [Text(f"\n{note}", "dim")] if note else []
        page.emit(Text(f"\n{title}\n"), *page.columns_of(head, rows), *told, unbroken=True)
        return
    sys.stdout.write(f"\n{title}:\n\n")
    page.write_rows(head, rows)
    sys.stdout.writelines([f"\n{visible(note)}\n"] if note else [])


def _show(result: StudyResult) -> None:
    """Write the table and its notes; a terminal gets the first rows of a long one."""
    found = result.listing
    if sys.stdout.isatty():
        rows = list(itertools.islice(found.rows, page.SHOWN))
        cut = [f"the first {page.SHOWN:,} of {found.total:,} rows; all are in {result.out / found.file}"] * (found.total > page.SHOWN)
        page.emit(*page.columns_of(found.headers, rows), *(Text(f"\n{note}", "dim") for note in [*cut, *result.notes]), unbroken=True)
    else:
        page.write_rows(found.headers, found.rows)
        sys.stdout.writelines(f"\n{visible(note)}\n" for note in result.notes)


def _log(result: StudyResult) -> None:
    page.log(result.summary)
    if len(result.files) <= LISTED:
        for path in result.files:
            page.log(f"wrote {path}")
        return
    apart = [path.relative_to(result.out) for path in result.files]
    told = [path.name for path in apart if path.suffix not in PICTURES and len(path.parts) == 1]
    pictures = {path.stem for path in apart if path.suffix in PICTURES}
    told += [f"{len(pictures)} pictures (PNG and SVG)"] if pictures else []
    folders = [path.parts[0] for path in apart if len(path.parts) > 1]
    told += [f"{folder}/ ({folders.count(folder)} files)" for folder in dict.fromkeys(folders)]
    page.log(f"wrote {len(apart)} files into {result.out}: {', '.join(told)}")
