"""Builds the documentation as a site in .tmp/site: ``python -m scripts.site``.

The pages lie where a reader of the repository finds them, in several folders; they are laid
together in .tmp/docs in the same order, with whatever they link to, so that every relative link
holds in both places.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from scripts.project import ROOT, read_repository

STAGED = ROOT / ".tmp/docs"
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
)
"""What becomes a page; what these link to goes along as it is."""
_FENCE = re.compile(r"^(```python) .+$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)|<img[^>]*\ssrc=\"(?!\w+:)([^\"]+)\"")


def stage(to: Path = STAGED) -> list[Path]:
    """Lay all pages, and what they link to, together in the folder *to*; returns the pages."""
    shutil.rmtree(to, ignore_errors=True)
    pages = [page for pattern in PAGES for page in sorted(ROOT.glob(pattern))]
    for page in pages:
        text = page.read_text("utf-8")
        # What an example needs is said behind its language, for the tests; here it would hide that
        # it is code.
        _place(page, to).write_text(_FENCE.sub(r"\1", text), encoding="utf-8")
        for link in _LINK.findall(text):
            linked = (page.parent / next(filter(None, link))).resolve()
            if linked.is_file() and linked.suffix != ".md" and linked.is_relative_to(ROOT):
                shutil.copyfile(linked, _place(linked, to))
    return pages


def _place(file: Path, to: Path) -> Path:
    """Where *file* lies in the folder *to*, which is made."""
    place = to / file.relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def main() -> None:
    """Build the site; exits with 1 where a page, a link or an anchor is wrong."""
    from mkdocs.__main__ import cli

    stage()
    os.environ["REPOSITORY"] = read_repository()
    cli(["build", "--config-file", str(ROOT / "mkdocs.yml")])


if __name__ == "__main__":
    main()
