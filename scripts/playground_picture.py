"""The picture of the playground: a question of the demo, put to a tier beside the plain search, with recorded replies.

    python -m scripts.playground_picture docs/playground.png

It starts ``qtm demo --playground``, opens its page in the system's own Chromium
(``scripts/browser``) and writes what stands above the fold.
"""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import sync_playwright

from qtmiddleware.kit.demo import load_dataset

QUESTION = "q46"
TIERS = ("combined",)
SIZE = {"width": 1010, "height": 1060}


def main(place: Path) -> None:
    """Write the picture to *place*."""
    root = Path(__file__).parents[1]
    chromium = subprocess.run(
        [root / "scripts/browser"], capture_output=True, text=True, check=True
    ).stdout.strip()
    asked = next(question.text for question in load_dataset().questions if question.id == QUESTION)
    command = "from qtmiddleware.kit.cli import main; main()"
    options = ("demo", "--playground", "--recorded", "--no-open", "--port", "0")
    with subprocess.Popen(
        [sys.executable, "-c", command, *options], stdout=subprocess.PIPE, text=True
    ) as served:
        try:
            url = served.stdout.readline().strip() if served.stdout else ""
            query = urlencode([("q", asked), *(("tier", name) for name in TIERS)])
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=chromium, chromium_sandbox=False
                )
                page = browser.new_page(viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
                # Asked twice: the first time, modules are read.
                for _ in range(2):
                    page.goto(f"{url}?{query}")
                page.evaluate("document.activeElement.blur()")
                picture = Image.open(BytesIO(page.screenshot()))
                browser.close()
            # As many colours as a reader tells apart, in a third of the bytes.
            picture.quantize(160).save(place, optimize=True)
        finally:
            served.terminate()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
