"""One DynamoDB table as the stores ask it: whole answers, tried within a deadline, nothing twice.

1. Every read is strongly consistent, and whole: pages are followed, keys left over asked again.
2. Every write is a transaction with a client token, sent again as it is while its fate is unknown:
   within ten minutes the service carries one token out once. A condition that does not hold then
   may be our own doing: what the write left behind is looked for.
3. Throttling, conflicts and absent answers are waited out with chance, until the time is over.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from fleet import aws, errors
from fleet.aws import Kind
from fleet.clock import Clock, SystemClock
from fleet.stores import decisions

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient

ACTIONS_MAX = 100
"""Items of one transaction: the service's limit."""
KEYS_MAX = 100
"""Keys of one read: the service's limit."""
PAUSE_S, PAUSE_MAX_S = 0.02, 1.0
"""First pause, s, and the longest: doubled each time, and all of it by chance (full jitter)."""
_UNCERTAIN = (
    "retry; the write may have been carried out: a lease granted is found by asking for it again"
)
_RETRIED = frozenset({Kind.UNCERTAIN, Kind.THROTTLED, Kind.CONFLICT})

Item = dict[str, Any]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one call tries, s, how time passes meanwhile, and chance (0 to below 1).

    A request under way when the time is over is waited for, as long as the client lets it take.
    """

    timeout_s: float
    clock: Clock = field(default_factory=SystemClock)
    pause: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random


class Attempts:
    """The pauses of one call, and what it says when its time is over."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._began = patience.clock.monotonic()
        self._count = 0
        self.uncertain = False
        """Whether a write of this call may have been carried out without our knowing."""

    def go_on(self, why: str) -> None:
        """Wait before the next one. Raises `StoreUnavailable` when the time is over."""
        patience = self._patience
        left_s = self._began + patience.timeout_s - patience.clock.monotonic()
        if left_s <= 0:
            raise errors.StoreUnavailable(
                f"the store on DynamoDB did not do it within {patience.timeout_s:g} s"
                f" ({self._count + 1} tries, the last: {why})",
                remedy=_UNCERTAIN if self.uncertain else "",
            )
        longest_s = min(PAUSE_MAX_S, PAUSE_S * 2.0 ** min(self._count, 10))
        self._count += 1
        patience.pause(min(left_s, longest_s * (0.1 + 0.9 * patience.chance())))


class Table:
    """A table with string keys ``pk`` and ``sk``. Safe for threads.

    Raises `StoreUnavailable` when it does not answer in time, and `SettingsInvalid` when it is not
    there or a right is missing.
    """

    def __init__(self, client: DynamoDBClient, name: str, patience: Patience) -> None:
        """Sends nothing."""
        self.client = client
        self.name = name
        self.patience = patience
        self._home = ""

    def attempts(self) -> Attempts:
        """The tries of one call that begins now."""
        return Attempts(self.patience)

    def patience_of(self, timeout_s: float) -> Patience:
        """The same patience for longer or shorter, s."""
        return replace(self.patience, timeout_s=timeout_s)

    def home(self) -> str:
        """What tells this table from its copies: restored ones, and those of other regions."""
        if not self._home:
            found = self.tried(lambda: self.client.describe_table(TableName=self.name))["Table"]
            made = found["CreationDateTime"].timestamp()
            self._home = f"{found['TableArn']} of {made:.3f}"
        return self._home

    def forget_home(self) -> None:
        """Look again which table it is, when next asked."""
        self._home = ""

    def get(self, key: Item) -> Item | None:
        """One item as it is now."""
        return self.tried(lambda: self._get(key))

    def read(self, keys: Iterable[Item]) -> list[Item]:
        """The items of these keys that there are, each as it is at some moment of the call."""
        wanted = list(keys)
        found: list[Item] = []
        for start in range(0, len(wanted), KEYS_MAX):
            found += self._batch(wanted[start : start + KEYS_MAX])
        return found

    def query(
        self, pk: str, *, prefix: str = "", newest_first: bool = False, limit: int | None = None
    ) -> Iterator[Item]:
        """The items of one partition whose sort keys begin with `prefix`, in their order.

        `limit`: the most that are read at once, for who needs only the first.
        """
        names, values = {"#p": "pk"}, {":p": {"S": pk}}
        condition = "#p = :p"
        if prefix:
            condition += " AND begins_with(#s, :s)"
            names["#s"], values[":s"] = "sk", {"S": prefix}
        asked: Item = {
            "TableName": self.name,
            "ConsistentRead": True,
            "KeyConditionExpression": condition,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
            "ScanIndexForward": not newest_first,
            **({} if limit is None else {"Limit": limit}),
        }
        while True:
            page: Any = self.tried(lambda: self.client.query(**asked))
            yield from page["Items"]
            if not page.get("LastEvaluatedKey"):
                return
            asked["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    def write(
        self, actions: Sequence[Item], attempts: Attempts, *, write: str, mark: Item | None
    ) -> bool:
        """Carry all actions out, or none: whether it was done. If not, decide anew.

        `write` names this transaction. `mark` is the key of an item that carries the name when it
        was carried out; None where doing it twice is harmless.
        """
        unknown = False
        while True:
            try:
                self._transact(actions, write)
            except errors.CloudFailed as error:
                if error.kind is Kind.UNMET:
                    return unknown and mark is not None and self._is_marked(mark, write)
                if error.kind is Kind.CONFLICT and not unknown:
                    return False
                if error.kind not in _RETRIED:
                    self.refuse("write", error)
                unknown = unknown or error.kind is Kind.UNCERTAIN
                attempts.uncertain = attempts.uncertain or unknown
                attempts.go_on(error.detail)
            else:
                return True

    def delete(self, keys: Iterable[Item]) -> None:
        """Remove items, one after the other, without a guard."""
        for key in keys:
            self.tried(partial(self.client.delete_item, TableName=self.name, Key=key))

    def tried(self, call: Callable[[], _T]) -> _T:
        """What a request that may be repeated answers."""
        attempts = self.attempts()
        while True:
            try:
                return aws.ask(call)
            except errors.CloudFailed as error:
                if error.kind not in _RETRIED:
                    self.refuse("read", error)
                attempts.go_on(error.detail)

    def refuse(self, verb: str, error: errors.CloudFailed) -> NoReturn:
        """Raise what a refusal of the service means to users of a store."""
        if error.kind is Kind.ABSENT:
            self.forget_home()
            raise decisions.uninitialised() from error
        if error.kind is Kind.DENIED:
            raise errors.SettingsInvalid(
                f"the store may not {verb} table {self.name}: {error.detail}",
                remedy="grant what deploy/aws/iam-leases.json lists to the role we run under, and"
                " see that its credentials are valid and this host's clock is right",
            ) from error
        raise errors.StoreUnavailable(
            f"DynamoDB refuses what the store asks of table {self.name}: {error.detail}",
            remedy="nothing was written; correct what the message names",
        ) from error

    def _get(self, key: Item) -> Item | None:
        return self.client.get_item(TableName=self.name, Key=key, ConsistentRead=True).get("Item")

    def _batch(self, keys: Sequence[Item]) -> list[Item]:
        attempts = self.attempts()
        found: list[Item] = []
        left: Any = {self.name: {"Keys": list(keys), "ConsistentRead": True}} if keys else {}
        while left:
            page: Any = self.tried(partial(self.client.batch_get_item, RequestItems=left))
            found += page["Responses"].get(self.name, [])
            left = page.get("UnprocessedKeys")
            if left:
                attempts.go_on("throttled: keys were left over")
        return found

    def _transact(self, actions: Sequence[Item], write: str) -> None:
        asked: Any = {"TransactItems": list(actions), "ClientRequestToken": write}
        aws.ask(lambda: self.client.transact_write_items(**asked))

    def _is_marked(self, mark: Item, write: str) -> bool:
        found = self.get(mark)
        return found is not None and found.get("write") == {"S": write}


def new_write() -> str:
    """A name that no other write has."""
    return secrets.token_hex(16)


def by_key(items: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Items by partition and sort key."""
    return {(item["pk"]["S"], item["sk"]["S"]): item for item in items}
