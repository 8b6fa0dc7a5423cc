"""Build the documentation as a site in .tmp/site: ``python -m scripts.site``.

The pages are in several folders of the repository. They are copied to .tmp/docs with the same
folders, together with the files they link to, so relative links work in both places. The site
also has each page as Markdown, and ``llms.txt`` (https://llmstxt.org) lists these for programs
that read.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.project import ROOT, read_repository

STAGED = ROOT / ".tmp/docs"
SITE = ROOT / ".tmp/site"
PAGES = (
    *(
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "qtmiddleware/preprocessing/lexicons/README.md",
    ),
    *(
        "docs/*.md",
        "benchmarks/README.md",
        "benchmarks/results/*.md",
        "benchmarks/keywords/GUIDE.md",
    ),
    *("benchmarks/data/*/README.md", "benchmarks/quality/replies/README.md"),
    "skills/*/SKILL.md",
)
"""The files that become pages."""
_FENCE = re.compile(r"^(```python) .+$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)|<img[^>]*\ssrc=\"(?!\w+:)([^\"]+)\"")
_PARAGRAPH = re.compile(r"^(?=[\w`*\"\[])(?:.+\n)+", re.MULTILINE)
_MARKUP = re.compile(r"\[([^\]]+)\]\([^)]*\)|</?\w+>|\*+")
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


def stage(to: Path = STAGED) -> list[Path]:
    """Copy all pages and the files they link to into the folder *to*, and return the pages."""
    shutil.rmtree(to, ignore_errors=True)
    pages = [page for pattern in PAGES for page in sorted(ROOT.glob(pattern))]
    for page in pages:
        text = page.read_text("utf-8")
        # The tests read an example's requirements after its language. The site would not
        # recognize the language with them.
        _place(page, to).write_text(_FENCE.sub(r"\1", text), encoding="utf-8")
        for link in _LINK.findall(text):
            linked = (page.parent / next(filter(None, link))).resolve()
            if linked.is_file() and linked.suffix != ".md" and linked.is_relative_to(ROOT):
                shutil.copyfile(linked, _place(linked, to))
    return pages


def _place(file: Path, to: Path) -> Path:
    """Return the path of *file*'s copy in the folder *to*. Create its parent folders."""
    place = to / file.relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def write_llms_txt(config: Any, to: Path = SITE) -> None:
    """Copy each page as Markdown into the site *to*, and list the pages in ``llms.txt``.

    Args:
        config: mkdocs' configuration, with the site's name, description and navigation.
        to: The folder of the built site.
    """
    shutil.copytree(STAGED, to, dirs_exist_ok=True)
    overview = [entry for entry in config["nav"] if isinstance(next(iter(entry.values())), str)]
    sections = [("Overview", overview)]
    for entry in config["nav"]:
        ((title, pages),) = entry.items()
        if not isinstance(pages, str):
            sections.append((title, pages))
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}"]
    for title, pages in sections:
        lines += ["", f"## {title}", "", *_list_pages(pages)]
    (to / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _list_pages(pages: list[Any]) -> Iterator[str]:
    """Yield a line of ``llms.txt`` for each page: the title as a link, and what it is about."""
    for entry in pages:
        # A page without a title of its own in the navigation has the one of its first line.
        title, page = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
        text = (STAGED / page).read_text("utf-8")
        title = title or text.partition("\n")[0].lstrip("# ")
        yield f"- [{title}]({page}): {_summarize(text)}"


def _summarize(text: str) -> str:
    """Return the first paragraph of a page without Markdown, or its headings if it has none."""
    introduction = _HEADING.split(text)[0]
    paragraph = _PARAGRAPH.search(introduction)
    summary = paragraph[0] if paragraph else " ".join(_HEADING.findall(text))
    return " ".join(_MARKUP.sub(r"\1", summary.replace("<sup>", "^")).split())


def main() -> None:
    """Build the site. Exit with 1 if a page, a link or an anchor is wrong."""
    from mkdocs.__main__ import cli
    from mkdocs.config import load_config

    stage()
    os.environ["REPOSITORY"] = read_repository()
    configuration = str(ROOT / "mkdocs.yml")
    cli(["build", "--config-file", configuration], standalone_mode=False)
    write_llms_txt(load_config(configuration))


if __name__ == "__main__":
    main()
