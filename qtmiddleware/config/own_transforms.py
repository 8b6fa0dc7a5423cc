"""Check the transforms that users define in a config, and describe them like the built-in ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, get_args, get_origin

from qtmiddleware.catalogue import FILLED_BY, TEXT_FIELDS, TRANSFORMS, TransformRow
from qtmiddleware.config.errors import (
    build_name_error,
    build_unknown_key_error,
    build_value_error,
    fold_name,
    format_key,
)
from qtmiddleware.config.keys import to_camel_case
from qtmiddleware.config.settings import PROMPT_NAMES
from qtmiddleware.errors import ConfigError

TRANSFORMS_KEY: Final = ("transforms",)
_TYPE: Final = "transformation_type"
_DEFINITION: Final = ("prompt", "fields")

_MAX_WEIGHT: Final = 100.0
_PROMPT_ALLOWED: Final = "a text that is not empty"
_WEIGHT_ALLOWED: Final = f"a number from 0 to {_MAX_WEIGHT:.0f}, or null"
_FIELDS_ALLOWED: Final = f"a list of {', '.join(FILLED_BY)}, or an object with their weights"
_NAME_ALLOWED: Final = "at most 60 letters, digits, - and _, beginning with a letter"

_Weights = tuple[tuple[str, float | None], ...]
_NAME: Final = re.compile(r"[A-Za-z][\w-]{0,59}", re.ASCII)


def describe_transform(name: str, definition: Mapping[str, Any]) -> TransformRow:
    """Return the description of the transform *name*, which a config defines by *definition*.

    Equal definitions give the same object.
    """
    return _build_transform_row(name, definition["prompt"], tuple(definition["fields"].items()))


@lru_cache(64)
def _build_transform_row(name: str, prompt: str, fields: _Weights) -> TransformRow:
    filled = {field for field, _ in fields}
    return TransformRow(
        name=name,
        label=f"{name} (a transformation of your own)",
        # Variants are searched in the catalogue's order.
        fields=tuple(field for field in TEXT_FIELDS if field in filled),
        prompt=prompt,
        weights=tuple((field, float(weight)) for field, weight in fields if weight is not None),
    )


def normalize_transforms(
    definitions_by_name: Mapping[Any, Any], source: str, errors: list[ConfigError]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the definition of each valid transform that a user defines.

    Args:
        definitions_by_name: The setting ``transforms``: definitions by name.
        source: The origin of the setting, for errors.
        errors: The list to which the errors of invalid transforms are added.
    """
    built_in_names = {fold_name(name): name for name in (*TRANSFORMS, *PROMPT_NAMES)}
    for name, definition in definitions_by_name.items():
        path = f"transforms.{format_key(name)}"
        if not isinstance(name, str):
            errors.append(build_unknown_key_error(name, TRANSFORMS_KEY, (), source))
        # A name that differs only in case or dashes would be confused with the built-in one.
        elif fold_name(name) in built_in_names:
            built_in = built_in_names[fold_name(name)]
            line = f"{path} must have another name, because {built_in} is built in ({source})"
            advice = f"to change the prompt of {built_in}, set llm.prompts"
            errors.append(
                ConfigError(f"{line}; {advice}", path=path, allowed="another name", source=source)
            )
        elif not isinstance(definition, Mapping):
            errors.append(
                build_value_error(path, definition, "an object with prompt and fields", source)
            )
        else:
            unknown = [key for key in definition if key not in _DEFINITION]
            errors.extend(
                _build_definition_key_error(f"{path}.{format_key(key)}", source) for key in unknown
            )
            problems = list(_find_definition_problems(name, definition))
            errors.extend(
                build_value_error(".".join(filter(None, (path, place))), rejected, allowed, source)
                for place, rejected, allowed in problems
            )
            if not (unknown or problems):
                fields = _read_field_weights(definition["fields"])
                yield name, {"prompt": definition["prompt"].strip(), "fields": fields}


def _build_definition_key_error(dotted_key: str, source: str) -> ConfigError:
    """Return the error for an unknown key in the definition of a transform."""
    advice = (
        "a transformation has the keys prompt and fields; fields may hold weights, for example"
        ' {"rewrite": 0.8}'
    )
    allowed = "one of " + ", ".join(_DEFINITION)
    line = f"{dotted_key} is not a setting ({source}); {advice}"
    return ConfigError(line, path=dotted_key, allowed=allowed, source=source)


def _find_definition_problems(
    name: str, definition: Mapping[str, Any]
) -> Iterator[tuple[str, Any, str]]:
    """Yield (key, value, allowed) for each problem in the *definition* of the transform *name*.

    - key says where in the definition the invalid value is; ``""`` stands for an invalid name.
    - value is the invalid value.
    - allowed describes the valid values.
    """
    if not _NAME.fullmatch(name):
        yield "", name, _NAME_ALLOWED
    prompt, fields = definition.get("prompt"), definition.get("fields")
    if not isinstance(prompt, str) or not prompt.strip():
        yield "prompt", prompt, _PROMPT_ALLOWED
    if not isinstance(fields, Sequence | Mapping) or isinstance(fields, str) or not fields:
        yield "fields", fields, _FIELDS_ALLOWED
        return
    kinds = ", ".join(FILLED_BY)
    for field in fields:
        if not isinstance(field, str) or _convert_to_snake_case(field) not in FILLED_BY:
            yield "fields", field, f"one of {kinds}"
        elif isinstance(fields, Mapping) and not _is_valid_weight(fields[field]):
            yield f"fields.{field}", fields[field], _WEIGHT_ALLOWED
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


def _read_field_weights(
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
    return type(weight) in (int, float) and 0 <= weight <= _MAX_WEIGHT


def _is_searched_field(field_name: str) -> bool:
    return bool(TEXT_FIELDS[_convert_to_snake_case(field_name)].variant)


def _convert_to_snake_case(camel_case_name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", camel_case_name).lower()


def find_name_error(
    layer_values: dict[str, Any], user_transform_names: Collection[str], source: str
) -> Iterator[ConfigError]:
    """Yield an error if ``transformationType`` is neither built in nor defined by the user.

    A name that differs from one of *user_transform_names* only in case, dashes or underscores is
    corrected in *layer_values*.

    Args:
        layer_values: The settings from one source, by field name.
        user_transform_names: The names of the transforms that users define.
        source: The origin of the settings, for errors.
    """
    name = layer_values.get(_TYPE)
    if not isinstance(name, str) or name in TRANSFORMS:
        return
    for known_name in user_transform_names:
        if fold_name(known_name) == fold_name(name):
            layer_values[_TYPE] = known_name
            return
    names = (*TRANSFORMS, *user_transform_names)
    yield build_name_error(to_camel_case(_TYPE), name, names, source)


def allow_own_transforms(type_hint: Any, schema: dict[str, Any]) -> None:
    """Extend the JSON schema of an option that names or defines transforms of the user.

    Editors then accept any name, and still suggest the built-in names. The schemas of other options
    are not changed.

    Args:
        type_hint: The type hint of the option.
        schema: The schema of the option, which is changed in place.
    """
    if get_origin(type_hint) is Annotated:
        built_in = {"enum": list(type_hint.__metadata__[0]), "type": schema["type"]}
        schema["anyOf"] = [built_in, {"type": schema.pop("type")}]
    elif get_origin(type_hint) is Mapping and get_args(type_hint)[1] is Any:
        schema["additionalProperties"] = _build_definition_schema()


def _build_definition_schema() -> dict[str, Any]:
    """Return the JSON schema for the definition of one transform in ``transforms``."""
    names = [
        spelling for name in FILLED_BY for spelling in dict.fromkeys((name, to_camel_case(name)))
    ]
    weights = {
        "type": "object",
        "propertyNames": {"enum": names},
        "additionalProperties": {"type": ["number", "null"], "minimum": 0, "maximum": _MAX_WEIGHT},
        "minProperties": 1,
    }
    return {
        "type": "object",
        "properties": {
            "prompt": {
                "type": "string",
                "minLength": 1,
                "description": "The instructions for the model.",
            },
            "fields": {
                "anyOf": [{"type": "array", "items": {"enum": names}, "minItems": 1}, weights],
                "description": "The texts it writes: a list, or an object with their weights.",
            },
        },
        "required": list(_DEFINITION),
        "additionalProperties": False,
    }
