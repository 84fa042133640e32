"""What PyPI shows of the README: its links and pictures lead to the repository, at the version that is built."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<mark>!?)(?P<text>\[(?:[^\[\]]|\[[^\]]*\](?:\([^()\s]*\))?)*\])\((?P<target>[^()\s]+)(?P<title> \"[^\"]*\")?\)")
_TAG = re.compile(r"(?P<before><(?P<tag>a|img|source)\b[^>]*?\b(?:href|src|srcset)=\")(?P<target>[^\"]+)(?P<after>\")")
_BLOCK = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:|//|#")


class ReadmeHook(MetadataHookInterface):
    """Gives the project's metadata its description, which `pyproject.toml` calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README, with links of `project.urls`."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        shown = absolute(text, metadata["urls"]["Source"], metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": shown}


def absolute(text: str, source: str, version: str) -> str:
    """A page with its relative links and pictures as addresses of the repository; blocks of code stay as they are."""
    raw = source.replace("https://github.com/", "https://raw.githubusercontent.com/", 1)

    def address(target: str, *, picture: bool) -> str:
        if _ELSEWHERE.match(target):
            return target
        return f"{raw}/v{version}/{target}" if picture else f"{source}/blob/v{version}/{target}"

    def link(found: re.Match[str]) -> str:
        inner = _LINK.sub(link, found["text"][1:-1])  # a picture that is a link
        return f"{found['mark']}[{inner}]({address(found['target'], picture=bool(found['mark']))}{found['title'] or ''})"

    def tag(found: re.Match[str]) -> str:
        return found["before"] + address(found["target"], picture=found["tag"] != "a") + found["after"]

    blocks = _BLOCK.split(text)
    return "".join(block if block.startswith("```") else _TAG.sub(tag, _LINK.sub(link, block)) for block in blocks)
