"""Find transforms, fusion methods and document readers in other installed packages.

Each plugin is an entry point of its package. qtmiddleware checks a plugin before using it. A
built-in transform, fusion method or reader takes precedence over a plugin of the same name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.catalogue import FILLED_BY, TEXT_FIELDS, FusionMethod, TransformRow
from qtmiddleware.errors import ConfigError
from qtmiddleware.types import Key, Ranking

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["OwnFusion", "OwnTransform"]

# The groups of entry points, as a package's ``pyproject.toml`` names them.
TRANSFORM_GROUP: Final = "qtmiddleware.transforms"
FUSION_GROUP: Final = "qtmiddleware.fusion"
READER_GROUP: Final = "qtmiddleware.readers"

MAX_WEIGHT: Final = 100.0
PROMPT_ALLOWED: Final = "a text that is not empty"
WEIGHT_ALLOWED: Final = f"a number from 0 to {MAX_WEIGHT:.0f}, or null"
FIELDS_ALLOWED: Final = f"a list of {', '.join(FILLED_BY)}, or an object with their weights"
NAME_ALLOWED: Final = "at most 60 letters, digits, - and _, beginning with a letter"

_Weights = tuple[tuple[str, float | None], ...]
_NAME: Final = re.compile(r"[A-Za-z][\w-]{0,59}", re.ASCII)
_MAX_ERROR_CHARS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTransform:
    """A transform of your own: instructions for the model, and the texts that the model returns.

    An entry point of the group ``qtmiddleware.transforms`` names an object of this class.

    Attributes:
        prompt: The instructions.
        fields: The texts that the model returns: ``rewrite``, ``step_back``, ``sub_queries``,
            ``hyde``, ``paraphrases`` or ``keywords``. A mapping also sets their weights in the
            fusion, from 0 to 100. ``None`` keeps the weight of the settings.
    """

    prompt: str
    fields: Sequence[str] | Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFusion:
    """A fusion method of your own.

    An entry point of the group ``qtmiddleware.fusion`` names an object of this class.

    Attributes:
        merge: A function ``merge(rankings, sign, rrf_k)`` that returns a ``(key, score)`` pair for
            each passage, in any order. Higher scores are better. Passages without a pair come last.
            Each of *rankings* is a `qtmiddleware.types.Ranking`, best first. *sign* is 1 if higher
            scores are better in the rankings, and -1 if lower scores are better. *rrf_k* is
            ``fusion.rrfK``.
        weighs: Whether the method uses the weights of the variants.
        needs_scores: Whether the method needs scores. If a ranking has no usable scores,
            ``weighted_rrf`` is used instead.
    """

    merge: Callable[[Sequence[Ranking], int, int], Iterable[tuple[Key, float]]]
    weighs: bool = False
    needs_scores: bool = False


class UnknownPlugin(ConfigError):
    """The requested transform, fusion method or reader is neither built in nor installed."""


# --- entry points ---------------------------------------------------------------------------------


@cache
def list_plugin_names(group: str) -> frozenset[str]:
    """Return the names of the entry points in *group*, without importing their packages."""
    return frozenset(entry.name for entry in _list_entry_points(group))


def _list_entry_points(group: str) -> Sequence[EntryPoint]:
    # Built-in names are never looked up here, so most processes do not wait for this import.
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


@cache
def load_plugin(group: str, entry_name: str) -> Any:
    """Import and return the object of the entry point *entry_name* in *group*.

    Raises:
        UnknownPlugin: No installed package has this entry point.
        ConfigError: Several packages have this entry point, or the object cannot be imported.
    """
    entries = [entry for entry in _list_entry_points(group) if entry.name == entry_name]
    if not entries:
        raise UnknownPlugin(f"no installed package has an entry point {entry_name!r} in {group}")
    if len(entries) > 1:
        packages = " and ".join(sorted(_find_package_name(entry) for entry in entries))
        problem = f"is defined by {packages}; keep only one of these packages"
        raise _build_entry_point_error(group, entry_name, problem)
    try:
        return entries[0].load()
    except (Exception, SystemExit) as error:
        # The package may be a script that exits when it is imported.
        raise _build_entry_point_error(
            group, entry_name, f"cannot be imported: {_describe_error(error)}"
        ) from error


def _find_package_name(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist is not None else entry_point.value


def _describe_error(error: BaseException) -> str:
    """Return the class and the message of *error* on one line. A long message is shortened."""
    message = " ".join(str(error).split())[:_MAX_ERROR_CHARS]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _build_entry_point_error(group: str, entry_name: str, problem: str) -> ConfigError:
    return ConfigError(f"the entry point {entry_name!r} of {group} {problem}")


# --- transforms -----------------------------------------------------------------------------------


def find_transform(transform_name: str, configured_transforms: Mapping[str, Any]) -> TransformRow:
    """Return the transform *transform_name* from the config, or else from an installed package.

    The same definition always gives the same object.

    Args:
        transform_name: The value of ``transformationType``.
        configured_transforms: The definitions in the config, by name.

    Raises:
        UnknownPlugin: Neither the config nor an installed package has a transform of this name.
        ConfigError: The definition of the transform is not valid.
    """
    if (definition := configured_transforms.get(transform_name)) is not None:
        fields = tuple(read_field_weights(definition["fields"]).items())
        return _build_transform_row(transform_name, definition["prompt"], fields)
    part = load_plugin(TRANSFORM_GROUP, transform_name)
    if not isinstance(part, OwnTransform):
        problem = f"must be a qtmiddleware.plugins.OwnTransform, not {type(part).__name__}"
        raise _build_entry_point_error(TRANSFORM_GROUP, transform_name, problem)
    for place, _, allowed in find_definition_problems(
        transform_name, {"prompt": part.prompt, "fields": part.fields}
    ):
        problem = f"is not valid: {place or 'name'} must be {allowed}"
        raise _build_entry_point_error(TRANSFORM_GROUP, transform_name, problem)
    return _build_transform_row(
        transform_name, part.prompt.strip(), tuple(read_field_weights(part.fields).items())
    )


@lru_cache(64)
def _build_transform_row(name: str, prompt: str, fields: _Weights) -> TransformRow:
    """Return the `TransformRow` of a user-defined transform.

    Equal arguments give the same object.
    """
    filled = {field for field, _ in fields}
    return TransformRow(
        name=name,
        label=f"{name} (a transformation of your own)",
        # Variants are searched in the catalogue's order.
        fields=tuple(field for field in TEXT_FIELDS if field in filled),
        prompt=prompt,
        weights=tuple((field, float(weight)) for field, weight in fields if weight is not None),
    )


def find_definition_problems(
    name: str, definition: Mapping[str, Any]
) -> Iterator[tuple[str, Any, str]]:
    """Yield (key, value, allowed) for each problem in the *definition* of the transform *name*.

    - key says where in the definition the invalid value is; ``""`` stands for an invalid name.
    - value is the invalid value.
    - allowed describes the valid values.
    """
    if not _NAME.fullmatch(name):
        yield "", name, NAME_ALLOWED
    prompt, fields = definition.get("prompt"), definition.get("fields")
    if not isinstance(prompt, str) or not prompt.strip():
        yield "prompt", prompt, PROMPT_ALLOWED
    if not isinstance(fields, Sequence | Mapping) or isinstance(fields, str) or not fields:
        yield "fields", fields, FIELDS_ALLOWED
        return
    kinds = ", ".join(FILLED_BY)
    for field in fields:
        if not isinstance(field, str) or _convert_to_snake_case(field) not in FILLED_BY:
            yield "fields", field, f"one of {kinds}"
        elif isinstance(fields, Mapping) and not _is_valid_weight(fields[field]):
            yield f"fields.{field}", fields[field], WEIGHT_ALLOWED
        elif (
            isinstance(fields, Mapping)
            and fields[field] is not None
            and not _is_searched_field(field)
        ):
            yield (
                f"fields.{field}",
                fields[field],
                "null, because its words are evidence and are not searched",
            )


def read_field_weights(
    fields: Sequence[str] | Mapping[str, float | None],
) -> dict[str, float | None]:
    """Return the weight of each field by the field's name, in snake case.

    The weight is ``None`` if *fields* sets no weight for the field.
    """
    weights = fields if isinstance(fields, Mapping) else dict.fromkeys(fields)
    return {_convert_to_snake_case(field): weight for field, weight in weights.items()}


def _is_valid_weight(weight: Any) -> bool:
    if weight is None:
        return True
    return type(weight) in (int, float) and 0 <= weight <= MAX_WEIGHT


def _is_searched_field(field_name: str) -> bool:
    return bool(TEXT_FIELDS[_convert_to_snake_case(field_name)].variant)


def _convert_to_snake_case(camel_case_name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", camel_case_name).lower()


# --- fusion methods -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class FoundFusion:
    """A fusion method of an installed package.

    Attributes:
        row: The properties of the method, as for a built-in method.
        merge: The function that merges the rankings.
    """

    row: FusionMethod
    merge: Callable[[Sequence[Ranking], int, int], Iterable[tuple[Key, float]]]


@cache
def find_fusion_method(method_name: str) -> FoundFusion:
    """Return the fusion method *method_name* from an installed package.

    Raises:
        UnknownPlugin: No installed package has a fusion method of this name.
        ConfigError: The fusion method is not valid.
    """
    part = load_plugin(FUSION_GROUP, method_name)
    if not isinstance(part, OwnFusion):
        problem = f"must be a qtmiddleware.plugins.OwnFusion, not {type(part).__name__}"
        raise _build_entry_point_error(FUSION_GROUP, method_name, problem)
    if not callable(part.merge):
        problem = f"must have a function as its merge, not {type(part.merge).__name__}"
        raise _build_entry_point_error(FUSION_GROUP, method_name, problem)
    row = FusionMethod(
        name=method_name, weighs=bool(part.weighs), needs_scores=bool(part.needs_scores)
    )
    return FoundFusion(row, part.merge)


# --- document readers -----------------------------------------------------------------------------


def has_reader(file_ending: str) -> bool:
    """Return whether an installed package reads files with the *file_ending*, such as ``.tape``."""
    return file_ending.removeprefix(".") in list_plugin_names(READER_GROUP)


def find_reader(file_ending: str) -> Callable[..., Any]:
    """Return the function that reads files with the *file_ending*, such as ``.tape``.

    Raises:
        UnknownPlugin: No installed package has a reader for *file_ending*.
        ConfigError: The entry point of the reader is not a function.
    """
    name = file_ending.removeprefix(".")
    part = load_plugin(READER_GROUP, name)
    if not callable(part):
        problem = f"must be a function that takes a path and a file, not {type(part).__name__}"
        raise _build_entry_point_error(READER_GROUP, name, problem)
    reader: Callable[..., Any] = part
    return reader
