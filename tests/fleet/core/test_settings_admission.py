"""What claims must show: off unless somebody decides, and roots are ids of keys."""

from __future__ import annotations

import pytest

from fleet.core import errors
from fleet.core.settings_admission import AdmissionSettings
from fleet.core.settings_parse import parse

ROOT = "0" * 64


def test_nothing_is_demanded_by_default() -> None:
    """C5: a fleet without a tag authority serves as before."""
    assert parse({}).admission == AdmissionSettings(required=False, tag_keys="", tag_roots=())


def test_a_list_with_its_roots_is_settings() -> None:
    """C5: several roots, for the time in which one takes another's place."""
    given = {"required": True, "tag_keys": "/etc/tags", "tag_roots": [ROOT, "f" * 64]}
    assert parse({"admission": given}).admission.tag_roots == (ROOT, "f" * 64)


@pytest.mark.parametrize("root", ["", "0" * 63, "G" * 64, "0" * 65])
def test_a_root_is_a_whole_id(root: str) -> None:
    """C5: the first characters of an id are no id: another key may have them too."""
    with pytest.raises(errors.SettingsInvalid) as caught:
        parse({"admission": {"tag_keys": "/x", "tag_roots": [root]}})
    assert "admission.tag_roots" in str(caught.value)
