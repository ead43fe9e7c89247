"""The section ``[hardware]``: what it means unsaid, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from fleet.core import errors, settings_file, settings_parse
from fleet.core.settings import HardwareKind, HardwareSettings, MpsPolicy, ResetMethod
from fleet.devices.nvidia.backend import NvidiaBackend
from fleet.devices.pcie.backend import DEFAULT_METHODS

PAGE = (Path(__file__).parents[3] / "docs" / "hardware.md").read_text()


def test_unsaid_nothing_reaches_further_than_one_device() -> None:
    """Promise 9: no bus reset, no daemon ended and no vendor's word taken unless policy says so."""
    found = HardwareSettings()
    assert not {ResetMethod.BUS, ResetMethod.CXL_BUS} & set(found.reset_methods)
    assert found.mps is MpsPolicy.REFUSE
    assert not found.accept_unread
    assert found.kind is HardwareKind.AUTO


def test_back_ends_have_the_same_defaults() -> None:
    """A back end made without settings acts like one made with the defaults of the policy."""
    found = HardwareSettings().model_dump(mode="json")
    assert list(DEFAULT_METHODS) == found["reset_methods"]
    alone = NvidiaBackend().settings()
    assert {name: found[name] for name in alone.keys() & found.keys()} == {
        name: value for name, value in alone.items() if name in found
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "cuda"},
        {"reset_methods": ["flr", "hammer"]},
        {"mps": "kill"},
        {"mps_deadline_s": 0},
        {"partition_retries": 0},
        {"root": ""},
        {"roots": "/"},
    ],
    ids=str,
)
def test_what_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    """Input trouble is told by the name of the setting, before any device is touched."""
    (name,) = wrong
    with pytest.raises(ValidationError, match=name):
        HardwareSettings.model_validate(wrong)


def test_the_examples_of_the_page_are_settings(tmp_path: Path) -> None:
    """docs/hardware.md: each TOML example can be put into a policy file as it stands."""
    examples = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert examples
    for number, text in enumerate(examples):
        path = tmp_path / f"{number}.toml"
        path.write_text(text)
        assert settings_file.load(path).hardware != HardwareSettings()


def test_a_list_is_told_with_its_choices() -> None:
    """A wrong reset method, in a policy file, is answered with those there are."""
    with pytest.raises(errors.SettingsInvalid, match='a list; each one of "flr"'):
        settings_parse.parse({"hardware": {"reset_methods": ["flr", "hammer"]}})
