"""Render HTML pages with a common style and content security policy.

The pages load no other files.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.errors import MissingExtra
from qtmiddleware.kit.evaluation.reporting import figures
from qtmiddleware.preprocessing.text import shorten_text

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

# A hyphen after a letter, a digit or another hyphen belongs to a name.
_MINUS: Final = re.compile(r"(?<![\w-])-(?=[\d$]|$)")
# Only this page's own style may be used. The browser recognises the style by its hash.
_POLICY: Final = (
    "default-src 'none'; style-src 'sha256-{style}'; img-src data:; base-uri 'none'; form-action"
    " 'none'"
)


def render_template(template_name: str, *, style: str = "", **values: Any) -> str:
    """Return an HTML page: the template called *template_name*, filled with *values*.

    The page's content security policy forbids scripts and loading other files. Raises
    `MissingExtra` if jinja2 is not installed.

    Args:
        template_name: The template's file name.
        style: CSS rules for this page only.
        values: The template's variables.
    """
    template, raw = load_template_and_markup(template_name)
    style = read_file("house.css") + read_file("page.css") + style
    policy = _POLICY.format(style=b64encode(sha256(style.encode()).digest()).decode())
    shared = {"figures": figures, "name_length": figures.NAME_LENGTH, "lede": "", "notes": ()}
    return template.render({**shared, **values}, policy=policy, style=raw(style))


@cache
def load_template_and_markup(template_name: str) -> tuple[jinja2.Template, type[Markup]]:
    """Return the compiled template called *template_name*, and the class `Markup`.

    `Markup` marks text as safe HTML, which is not escaped.
    """
    environment = build_environment(read_file, "eval")
    environment.filters.update(typeset=_insert_minus_signs, count="{:,}".format)
    # markupsafe comes with jinja2, so it can be imported only after the check above.
    from markupsafe import Markup

    return environment.get_template(template_name), Markup


def build_environment(read_template: Callable[[str], str], extra_name: str) -> jinja2.Environment:
    """Return a jinja2 environment that escapes every value.

    Args:
        read_template: Returns a template's text by its name.
        extra_name: The name of qtmiddleware's extra that installs jinja2.

    Raises:
        MissingExtra: jinja2 is not installed. The message names *extra_name*.
    """
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra("jinja2", extra_name) from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = shorten_text
    return environment


def read_file(file_name: str) -> str:
    """Return the text of the file called *file_name* in this module's folder."""
    return files(__package__).joinpath(file_name).read_text(encoding="utf-8")


def _insert_minus_signs(text: str) -> str:
    """Replace each hyphen before a number with a minus sign. Hyphens in names stay."""
    return _MINUS.sub("\N{MINUS SIGN}", text)
