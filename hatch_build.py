"""What the package's metadata derives: a description that needs no checkout, and the project's addresses.

Hatchling loads this file whenever it builds the package. The repository's address stands in
``pyproject.toml`` alone, under ``[tool.hatch.metadata.hooks.custom]``; while it is empty, no
address and no link to a file is published.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

WARNING = (
    "the repository's address is empty, so the package will have no [project.urls], and its description no links to "
    "files. Set `repository` under [tool.hatch.metadata.hooks.custom] in pyproject.toml."
)
_LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!\w+:|#)(?P<file>[^)#\s]+)(?P<place>#[^)\s]*)?\)"
)


class DerivedMetadata(MetadataHookInterface):
    """Sets `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the derived fields to *metadata*."""
        repository, tag = self.config["repository"].rstrip("/"), f"v{metadata['version']}"
        if not repository:
            print(f"warning: {WARNING}", file=sys.stderr)
        text = Path(self.root, "README.md").read_text("utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": resolve_links(text, repository, tag),
        }
        metadata["urls"] = build_urls(repository, tag)


def build_urls(repository: str, tag: str) -> dict[str, str]:
    """Return the addresses of the project, all below that of the *repository*; none if it is unknown."""
    if not repository:
        return {}
    return {
        "Source": repository,
        "Documentation": f"{repository}/blob/{tag}/docs/start.md",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
        "Security": f"{repository}/blob/{tag}/SECURITY.md",
    }


def resolve_links(text: str, repository: str, tag: str) -> str:
    """Return Markdown *text* in which links to files are absolute, those of *tag* in the *repository*.

    An index shows the text on a page of its own, where a relative link leads nowhere. If the
    *repository* is unknown, the text of each link stays, and of an image its description.
    """

    def resolve(link: re.Match[str]) -> str:
        if not repository:
            return link["text"]
        view = "raw" if link["image"] else "blob"
        address = f"{repository}/{view}/{tag}/{link['file']}{link['place'] or ''}"
        return f"{link['image']}[{link['text']}]({address})"

    return _LINK.sub(resolve, text)
