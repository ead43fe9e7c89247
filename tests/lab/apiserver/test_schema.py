"""Rules of shapes."""

from __future__ import annotations

from tests.lab.apiserver import schema


def test_lists_have_the_ownership_of_the_real_schema() -> None:
    """status.devices, conditions and reservedFor merge by key; a slice's devices have one owner."""
    status = schema.CLAIM_STATUS.fields
    devices, reserved = status["devices"], status["reservedFor"]
    assert isinstance(devices, schema.Series)
    assert isinstance(reserved, schema.Series)
    assert devices.keys == ("device", "driver", "pool", "shareID")
    assert reserved.keys == ("uid",)
    published = schema.SLICE_SPEC.fields["devices"]
    assert isinstance(published, schema.Series)
    assert published.atomic


def test_conditions_of_a_node_merge_by_type() -> None:
    """Kubelet and others each own conditions of their own."""
    status = schema.NODE.fields["status"]
    assert isinstance(status, schema.Struct)
    conditions = status.fields["conditions"]
    assert isinstance(conditions, schema.Series)
    assert conditions.keys == ("type",)


def test_a_field_can_be_added_anywhere() -> None:
    """B19: a newer server's fields: beside known ones, and below what did not exist."""
    shape = schema.extended(schema.CLAIM, ("status", "futureField"))
    shape = schema.extended(shape, ("later", "still"))
    assert isinstance(shape, schema.Struct)
    status, later = shape.fields["status"], shape.fields["later"]
    assert isinstance(status, schema.Struct)
    assert isinstance(later, schema.Struct)
    assert status.fields["futureField"] == schema.RAW
    assert "devices" in status.fields
    assert later.fields["still"] == schema.RAW
    assert "futureField" not in schema.CLAIM_STATUS.fields
