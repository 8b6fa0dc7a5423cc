"""A small package with entry points, built as a wheel and installed with pip into a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

VERSION = "1.0"


def install_package(
    folder: Path, name: str, source: str, entry_points: Mapping[str, Mapping[str, str]]
) -> Path:
    """Install the module *name* of *source* with *entry_points* by group; returns the folder for the path."""
    wheel = folder / f"{name}-{VERSION}-py3-none-any.whl"
    info = f"{name}-{VERSION}.dist-info"
    groups = "".join(
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in entry_points.items()
    )
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": groups,
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with ZipFile(wheel, "w") as packed:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            packed.writestr(path, text)
    target = folder / "site"
    options = ["--no-deps", "--no-index", "--disable-pip-version-check", "--quiet"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        *options,
        "--target",
        str(target),
        str(wheel),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    return target


def run_python(
    script: str, folder: Path, *sites: Path, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run *script* in a fresh process that finds what is installed in *sites*."""
    root = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, (*sites, root)))
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "QTM_"))
    }
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**kept, "PYTHONPATH": path, **environ},
        timeout=200,
        check=False,
    )
