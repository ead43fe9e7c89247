"""What an operator retired is not offered."""

from __future__ import annotations

from fleet.core.messages import DeviceView, NodeView
from fleet.plugin.slices.publisher import WHY, barred
from tests.fleet.plugin.slices.test_publisher import Bench


def view(*retired: str) -> NodeView:
    """A node with one accelerator of one part, with these devices retired."""
    devices = tuple(
        DeviceView(
            uuid=uuid, name=uuid, accelerator="gpu", units=("gpu/0",), memory_bytes=1, state="CLEAN"
        )
        for uuid in ("gpu", "part")
    )
    return NodeView(
        node="n", incarnation="i", boot_id="b", at=0.0, simulated=True, backend="simulated",
        devices=devices, retired=retired,
    )  # fmt: skip


def test_a_retired_device_and_its_parts_are_barred() -> None:
    """E7: a retired accelerator takes its parts along; a retired part only itself."""
    assert barred(view(), {}) == {}
    assert barred(view("gpu"), {}) == {"gpu": WHY, "part": WHY}
    assert barred(view("part"), {}) == {"part": WHY}


def test_a_card_that_is_gone_leaves_the_slices() -> None:
    """A3: what is known from the slice only, a lost card and its parts, goes too."""
    remembered = {
        "a": {"attributes": {"uuid": {"string": "old"}}},
        "b": {"attributes": {"uuid": {"string": "old-part"}, "parentUUID": {"string": "old"}}},
        "c": {"attributes": {"uuid": {"string": "other"}}},
    }
    assert set(barred(view("old"), remembered)) == {"old", "old-part"}


class Retiring(Bench):
    """A bench whose node has retired devices, and may have lost some."""

    retired: tuple[str, ...] = ()

    def view(self) -> NodeView:
        """The node now."""
        return super().view().model_copy(update={"retired": self.retired})


def test_a_retired_device_leaves_the_slices_and_stays_out() -> None:
    """E7: present or lost it is not published any more, by no later publisher; others stay."""
    bench = Retiring(3)
    assert bench.step().settled
    del bench.changes["GPU-2"]
    assert bench.step().settled
    assert set(bench.pool().devices) == {"gpu-0", "gpu-1", "gpu-2"}, "a lost card is told"
    bench.retired = ("GPU-1", "GPU-2")
    assert bench.step().settled
    assert set(bench.pool().devices) == {"gpu-0"}
    bench.start()
    bench.step()
    assert bench.step(after=60.0).settled
    assert set(bench.pool().devices) == {"gpu-0"}
    bench.retired = ()
    assert bench.step().settled
    assert set(bench.pool().devices) == {"gpu-0", "gpu-1"}
