"""Which wipes have ended, as the counters see it."""

from __future__ import annotations

from actors.metrics import Tally
from fleet.messages import DeviceView, NodeView, Outcome


def view(state: str, certificate: str = "") -> NodeView:
    """A node with one device."""
    device = DeviceView(
        uuid="u0",
        name="gpu-0",
        accelerator="u0",
        units=("u0/0",),
        memory_bytes=64,
        state=state,
        certificate=certificate,
    )
    return NodeView(
        node="n",
        incarnation="i",
        boot_id="b",
        at=0.0,
        simulated=True,
        backend="simulated",
        devices=(device,),
    )


def test_a_new_certificate_is_a_wipe_ended() -> None:
    """E4: a certificate that was not there before counts once, with the memory it covers."""
    tally = Tally()
    assert tally.ended(view("CLEAN", "c1")) == []
    assert tally.ended(view("WIPING")) == []
    assert tally.ended(view("CLEAN", "c2")) == [(Outcome.CERTIFIED, 64)]
    assert tally.ended(view("CLEAN", "c2")) == []


def test_a_quarantine_counts_once() -> None:
    """E4: a device that fails counts when it is quarantined, not while it stays there."""
    tally = Tally()
    tally.ended(view("WIPING"))
    assert tally.ended(view("QUARANTINED")) == [(Outcome.QUARANTINED, 64)]
    assert tally.ended(view("QUARANTINED")) == []


def test_the_past_of_another_process_is_not_counted() -> None:
    """Counters of a restarted actor start at zero: what it finds was done by another."""
    assert Tally().ended(view("QUARANTINED")) == []
