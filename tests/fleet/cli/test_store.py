"""`fleet store`: the epoch is minted once, and a doubtful store is adopted on the record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fleet.cli.store import Terms, app, follow
from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.core.messages import DeviceView, NodeView
from fleet.core.model import NO_TOKEN, Token
from fleet.stores.base import Event
from fleet.stores.sqlite import Stores, open_stores, store_path
from tests.cloud.server import REGION, CloudServer
from tests.contracts.lease_store_contract import ask, claim, granted
from tests.lab.apiserver.server import StandIn


class ToldNode:
    """A node that is told to follow an epoch; `silent` ones answer nothing."""

    def __init__(self, floor: Token, *, silent: bool = False) -> None:
        self.floor = floor
        self.silent = silent
        self.epochs: list[tuple[int, str]] = []

    def view(self) -> NodeView:
        self._answer()
        device = DeviceView(
            uuid="g1",
            name="0",
            accelerator="g1",
            units=("g1/0",),
            memory_bytes=1,
            state="CLEAN",
            floor=str(self.floor),
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

    def follow_epoch(self, epoch: int, *, operator: str) -> None:
        self._answer()
        self.epochs.append((epoch, operator))

    def _answer(self) -> None:
        if self.silent:
            raise errors.RayUnavailable("no answer")


def run(*arguments: str) -> Result:
    """Run one verb of `fleet store`; errors of ours stay exceptions, as the command sees them."""
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    with closing(open_stores(store_path(tmp_path), clock=SystemClock())) as opened:
        opened.leases.init()
        yield opened


def test_init_makes_the_store_once(tmp_path: Path) -> None:
    """DESIGN 4: `fleet store init` mints the epoch; again, it says so and changes nothing."""
    first, second = (
        json.loads(run("init", "--state", str(tmp_path), "--json").output) for _ in range(2)
    )
    assert first == {**second, "made": True}
    assert second["made"] is False
    assert Path(first["store"]).is_file()
    assert "nothing was changed" in run("init", "--state", str(tmp_path)).output


def test_adopt_is_recorded_with_its_operator(tmp_path: Path, stores: Stores) -> None:
    """DESIGN 4: a suspended store grants again, under a newer epoch, and the history says who."""
    before = granted(stores.leases, ask(claim("a"), "u1")).token
    with pytest.raises(errors.StoreBehind):
        stores.leases.learn(Token(before.epoch, before.counter + 50))
    done = run("adopt", "--state", str(tmp_path), "--operator", "ops", "--json")
    told = json.loads(done.output)
    assert told["epoch"] > before.epoch
    assert told["leases"] == 1
    assert stores.leases.suspended() is None
    entry = stores.leases.history(1)[0]
    assert (entry.event, str(entry.token)) == (Event.ADOPTED, told["newest"])
    assert entry.detail.startswith("by ops")


def test_adopt_goes_above_the_token_given(tmp_path: Path, stores: Stores) -> None:
    """DESIGN 4: an operator who knows a higher token names it."""
    floor = Token(stores.leases.newest().epoch * 2, 5)
    done = run("adopt", "--state", str(tmp_path), "--at-least", str(floor))
    assert "adopted by" in done.output
    assert stores.leases.newest() > floor


def test_adopt_takes_a_store_of_another_host(tmp_path: Path) -> None:
    """Promise 7: the remedy named by the refusal works: a moved store is adopted, then ours."""
    path = store_path(tmp_path)
    with closing(open_stores(path, clock=SystemClock(), host="elsewhere")) as moved:
        moved.leases.init()
    assert isinstance(run("init", "--state", str(tmp_path)).exception, errors.SettingsInvalid)
    assert run("adopt", "--state", str(tmp_path)).exit_code == 0
    assert run("init", "--state", str(tmp_path)).exit_code == 0


@pytest.mark.parametrize("extra", [[], ["--at-least", "seven"]])
def test_adopt_without_a_store_or_a_token_cannot_run(tmp_path: Path, extra: list[str]) -> None:
    """Issue 2: a refusal with a remedy (exit code 2), and no store is made by adopting."""
    error = run("adopt", "--state", str(tmp_path), *extra).exception
    assert isinstance(error, errors.InputInvalid)
    assert error.exit_code == 2
    assert not store_path(tmp_path).exists()


def test_nodes_that_cannot_be_reached_are_said_so(stores: Stores) -> None:
    """Promise 7: the store is adopted all the same, and the operator knows who was not told."""
    adoption = follow(stores, {}, Terms("ops", unreached="another process serves"))
    assert adoption.failed == {"": "another process serves"}
    assert adoption.newest == str(stores.leases.newest())


def test_nodes_follow_an_adopted_store(stores: Stores) -> None:
    """Promise 7: nodes are told the new epoch, above all they have seen; a silent one is named."""
    floor = Token(stores.leases.newest().epoch * 2, 5)
    good, silent = ToldNode(floor), ToldNode(NO_TOKEN, silent=True)
    adoption = follow(stores, {"good": good, "silent": silent}, Terms("ops"))
    assert adoption.epoch > floor.epoch
    assert good.epochs == [(adoption.epoch, "ops")]
    assert adoption.following == ("good",)
    assert "no answer" in adoption.failed["silent"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Options that name a store on Kubernetes, of an API server that runs."""
    policy = tmp_path / "policy.toml"
    policy.write_text('[store]\nkind = "kubernetes"\nhosts = 3\nnamespace = "ours"\n')
    with StandIn() as api:
        config = api.kubeconfig(tmp_path / "kubeconfig")
        state = str(tmp_path / "state")
        yield ("--policy", str(policy), "--kubeconfig", str(config), "--state", state)


def test_the_store_of_a_cluster_is_made_once(cluster: tuple[str, ...], tmp_path: Path) -> None:
    """E5: `fleet store init` makes the objects of the API server, and nothing on this host."""
    first, second = (json.loads(run("init", *cluster, "--json").output) for _ in range(2))
    assert first == {**second, "made": True}
    assert second["made"] is False
    assert first["store"] == "on Kubernetes, namespace ours"
    assert not store_path(tmp_path / "state").exists()


def test_the_store_on_dynamodb_is_made_once_and_adopted(cloud: CloudServer, tmp_path: Path) -> None:
    """E5: `fleet store init` makes the table, and nothing on this host; before that there is
    nothing to adopt."""
    policy, state = tmp_path / "policy.toml", tmp_path / "state"
    policy.write_text(
        f'[store]\nkind = "dynamodb"\ntable = "by-command"\nregion = "{REGION}"\n'
        f'endpoint = "{cloud.endpoint}"\nhosts = 2\n'
    )
    options = ("--policy", str(policy), "--state", str(state))
    assert isinstance(run("adopt", *options).exception, errors.SettingsInvalid)
    first, second = (json.loads(run("init", *options, "--json").output) for _ in range(2))
    assert first == {**second, "made": True}
    assert second["made"] is False
    assert first["store"] == f"on DynamoDB, table by-command ({cloud.endpoint})"
    assert not store_path(state).exists()
    told = json.loads(run("adopt", *options, "--operator", "ops", "--json").output)
    assert told["epoch"] > first["epoch"]


def test_the_store_of_a_cluster_is_adopted(cluster: tuple[str, ...]) -> None:
    """DESIGN 4: adopting what nobody has made is refused; else nodes elsewhere are said to need
    telling, and telling them does not adopt again."""
    error = run("adopt", *cluster).exception
    assert isinstance(error, errors.SettingsInvalid)
    epoch = json.loads(run("init", *cluster, "--json").output)["epoch"]
    done = run("adopt", *cluster, "--operator", "ops", "--json")
    told = json.loads(done.output)
    assert told["epoch"] > epoch
    assert done.exit_code == 1
    assert "--nodes-only" in told["failed"][""]
    again = json.loads(run("adopt", *cluster, "--nodes-only", "--json").output)
    assert again["epoch"] == told["epoch"]


def test_nodes_that_have_seen_more_are_not_just_told(stores: Stores) -> None:
    """Promise 2: telling nodes alone never puts their floors behind."""
    floor = Token(stores.leases.newest().epoch * 2, 5)
    node = ToldNode(floor)
    with pytest.raises(errors.StoreBehind):
        follow(stores, {"n": node}, Terms("ops", nodes_only=True))
    assert node.epochs == []
    good = ToldNode(stores.leases.newest())
    assert follow(stores, {"n": good}, Terms("ops", nodes_only=True)).following == ("n",)
