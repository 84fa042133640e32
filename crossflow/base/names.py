"""Names and other text of users, where they must not be more than text: on a terminal, in a table, as a file."""

from __future__ import annotations

import re
import unicodedata

from crossflow.base import platforms

LONGEST = 120  # bytes of a file's name
# What moves the cursor, begins an escape sequence (C0, C1), breaks lines, or turns the direction of what follows; what is invisible.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_FORMULA = ("=", "+", "-", "@")  # with which a spreadsheet's formulas begin
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def visible(text: str, kept: str = "") -> str:
    r"""Text whose control characters are written out, but for those that are `kept`.

    >>> print(visible("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    return _HIDDEN.sub(lambda found: found[0] if found[0] in kept else found[0].encode("unicode_escape").decode(), text)


def cell(value: str) -> str:
    """Text of a table's cell; an apostrophe stands before what a spreadsheet would take for a formula, control characters are written out.

    Numbers stay as they are.

    >>> cell("=1+2"), cell("-3.5"), cell("a=b")
    ("'=1+2", '-3.5', 'a=b')
    """
    shown = visible(value)
    return f"'{shown}" if shown.startswith(_FORMULA) and not _NUMBER.fullmatch(shown) else shown


def own_file(name: str) -> str:
    """A name, if it is that of a file in its folder as it stands; ValueError for one that leads elsewhere, or is hidden or too long."""
    if not name or name.startswith(".") or set("/\\") & set(name) or visible(name) != name or len(name.encode()) > LONGEST:
        raise ValueError(f"expected the name of a file, without folders and of at most {LONGEST} letters, such as '{file_name(name)}'")
    if platforms.WINDOWS and not platforms.can_name_a_file(name):
        raise ValueError(f"Windows can have no file of the name '{name}'; give another one, such as '{file_name(name)}'")
    return name


def file_name(name: str) -> str:
    """A name as that of a file in its folder: letters, digits, dots, hyphens and underscores stay, hyphens part the rest.

    >>> file_name("../../evil"), file_name("GPT-3 / H100, 80 GB"), file_name("..")
    ('evil', 'GPT-3-H100-80-GB', 'unnamed')

    An underscore stands before what Windows takes for a device.

    >>> file_name("aux"), file_name("Con.2")
    ('_aux', '_Con.2')
    """
    plain = "".join(letter if letter.isalnum() or letter in "._-" else " " for letter in unicodedata.normalize("NFC", name))
    found = "-".join(plain.split()).lstrip(".-").encode()[:LONGEST].decode(errors="ignore").rstrip(".-") or "unnamed"
    return f"_{found}" if platforms.is_device_name(found) else found
