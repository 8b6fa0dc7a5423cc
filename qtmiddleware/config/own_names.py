"""Check the transforms that users define, and the names of transforms and fusion methods."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, get_args, get_origin

from qtmiddleware.catalogue import FILLED_BY, TRANSFORMS
from qtmiddleware.config.errors import (
    build_name_error,
    build_plugin_error,
    build_unknown_key_error,
    build_value_error,
    fold_name,
    format_key,
)
from qtmiddleware.config.keys import PROMPT_NAMES, Key, get_value, list_all_keys, to_camel_case
from qtmiddleware.errors import ConfigError
from qtmiddleware.plugins import (
    MAX_WEIGHT,
    UnknownPlugin,
    find_definition_problems,
    find_fusion_method,
    find_transform,
    read_field_weights,
)

TRANSFORMS_KEY: Final = ("transforms",)
_TYPE: Final = ("transformation_type",)
_DEFINITION: Final = ("prompt", "fields")


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
            problems = list(find_definition_problems(name, definition))
            errors.extend(
                build_value_error(".".join(filter(None, (path, place))), rejected, allowed, source)
                for place, rejected, allowed in problems
            )
            if not (unknown or problems):
                fields = read_field_weights(definition["fields"])
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


def find_name_errors(
    layer_values: dict[str, Any],
    user_transform_names: Collection[str],
    source: str,
) -> Iterator[ConfigError]:
    """Yield an error for each unknown name of a transform or fusion method.

    The names in the catalogue and in installed plugins are known too. A name that differs from one
    of *user_transform_names* only in case, dashes or underscores is corrected in *layer_values*.

    Args:
        layer_values: The settings from one source, by field name.
        user_transform_names: The names of the transforms that users define.
        source: The origin of the settings, for errors.
    """
    for key in list_all_keys():
        name = get_value(layer_values, key) if key.is_open else None
        if not isinstance(name, str) or name in key.choices:
            continue
        defined = user_transform_names if key.path == _TYPE else ()
        known = next(
            (spelling for spelling in defined if fold_name(spelling) == fold_name(name)), None
        )
        if known is not None:
            # Only `transformationType` gets here. It is at the top level, so its path has one name.
            layer_values[key.path[-1]] = known
        elif (error := _find_plugin_error(key, name, (*key.choices, *defined), source)) is not None:
            yield error


def _find_plugin_error(
    key: Key, name: str, accepted_names: Sequence[str], source: str
) -> ConfigError | None:
    """Return an error if no installed plugin provides *name*, else ``None``.

    Args:
        key: The option whose value is *name*.
        name: The name of a transform or fusion method.
        accepted_names: The names that the option accepts without a plugin, for the error.
        source: The origin of the value.
    """
    try:
        if key.path == _TYPE:
            find_transform(name, {})
        else:
            find_fusion_method(name)
    except UnknownPlugin:
        return build_name_error(key.name, name, accepted_names, source)
    except ConfigError as error:
        return build_plugin_error(key.name, name, error, source)
    return None


def allow_other_names(type_hint: Any, schema: dict[str, Any]) -> None:
    """Extend the JSON schema of an option that also accepts names from users or plugins.

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
        "additionalProperties": {"type": ["number", "null"], "minimum": 0, "maximum": MAX_WEIGHT},
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
