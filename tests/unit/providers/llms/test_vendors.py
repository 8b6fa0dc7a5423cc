"""Whose client is whose, and what the errors of vendors' clients are read as."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.providers.llms import anthropic, google, make_language_model, mistral
from qtmiddleware.providers.llms.vendors import DEFAULT_MODELS, VendorModel, convert_vendor_error
from qtmiddleware.providers.openai_client import convert_client_error
from tests.support.vendor_services import VENDORS

PROVIDERS = {"anthropic": anthropic, "mistral": mistral, "google": google}


@pytest.fixture(params=list(VENDORS))
def service(request: pytest.FixtureRequest) -> Any:
    made = VENDORS[request.param].__new__(VENDORS[request.param])
    made.url = "http://localhost:1"
    return made


def test_a_client_belongs_to_one_vendor(service) -> None:
    client = service.client()
    assert [name for name, it in PROVIDERS.items() if it.accepts(client)] == [service.name]
    assert isinstance(make_language_model(client, Settings(transformation_model="m")), VendorModel)


def test_a_client_of_a_class_made_of_the_vendors_is_the_vendors(service) -> None:
    own: Any = type("Own", (type(service.client()),), {})
    client = service.client()
    client.__class__ = own
    assert PROVIDERS[service.name].accepts(client)


def test_clients_of_bedrock_vertex_and_foundry_are_anthropics() -> None:
    vendor = pytest.importorskip("anthropic")
    foundry = vendor.AnthropicFoundry(api_key="k", base_url="http://localhost:1")
    assert anthropic.accepts(foundry)
    assert anthropic.accepts(
        (foundry, vendor.AsyncAnthropicFoundry(api_key="k", base_url="http://localhost:1"))
    )


STRANGE = [None, 7, "claude", object(), (), [], {}, SimpleNamespace(messages=1), len, Exception]


@pytest.mark.parametrize("given_", STRANGE, ids=lambda it: type(it).__name__)
@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=list(PROVIDERS))
def test_nothing_else_is_accepted(provider, given_) -> None:
    assert not provider.accepts(given_)


def test_a_class_a_resource_and_half_a_pair_are_not_accepted(service) -> None:
    client = service.client()
    for it in (type(client), [client, 7], getattr(client, "messages", None) or client.__class__):
        assert not PROVIDERS[service.name].accepts(it)


@pytest.mark.parametrize("name", sorted(DEFAULT_MODELS))
def test_the_default_of_openai_is_refused_before_anything_is_sent(service, name: str) -> None:
    with pytest.raises(ConfigError, match="set transformationModel") as caught:
        make_language_model(service.client(), Settings(transformation_model=name))
    assert (caught.value.path, caught.value.value) == ("transformationModel", name)


def test_no_package_of_a_vendor_is_loaded_to_find_out() -> None:
    code = (
        "import sys; from qtmiddleware.providers.llms import make_language_model\n"
        "from qtmiddleware.config.settings import Settings\n"
        "make_language_model(lambda messages: '', Settings())\n"
        "print({'anthropic', 'mistralai', 'google.genai'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout == "set()\n"


OLDER = [
    "claude-3-haiku-20240307",
    "claude-sonnet-4-20250514",
    "claude-opus-4-5-20251101",
    "claude-haiku-4-5",
    "anthropic.claude-3-5-sonnet-20241022-v2:0",
    "us.anthropic.claude-opus-4-6-v1",
    "claude-sonnet-4@20250514",
]
NEWER = [
    "claude-opus-4-7",
    "claude-opus-4-8",
    "claude-sonnet-5",
    "claude-opus-5-5",
    "us.anthropic.claude-opus-5-v1",
]


def test_which_of_anthropics_models_think_by_themselves_is_told_by_their_names() -> None:
    vendor = anthropic.accepts.__self__
    assert {vendor.find_reasoning_effort(name) for name in OLDER} == {None}
    assert {vendor.find_reasoning_effort(name) for name in NEWER} == {"none"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30),
    lambda it: (
        st.lists(it, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "message", "type", "code", "status", "details", "x"]), it
        )
    ),
)


@given(
    status=st.none() | st.integers(-5, 999) | st.text(max_size=3),
    body=JSON,
    headers=st.none() | st.dictionaries(st.sampled_from(["Retry-After", "x"]), st.text(max_size=5)),
    place=st.sampled_from(
        [("status_code", "body", "response"), ("code", "details", "raw_response")]
    ),
)
def test_an_unknown_class_of_errors_has_a_reason(status, body, headers, place) -> None:
    error = Exception("qmarkzebulon")
    for name, value in zip(place, (status, body, SimpleNamespace(headers=headers)), strict=True):
        setattr(error, name, value)
    known = convert_vendor_error(error)
    if not isinstance(known, ModelError):
        known = convert_client_error(known, "m at there", key="THEIR_KEY")
    assert known.reason
    assert "qmarkzebulon" not in str(known)
    assert known.retry_after is None or known.retry_after >= 0
