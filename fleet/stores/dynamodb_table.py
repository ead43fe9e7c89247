"""One DynamoDB table as the stores ask it: whole answers, tried within a deadline, nothing twice.

1. Every read is strongly consistent, and whole: pages are followed, keys left over asked again.
2. Every write is a transaction with a client token, sent again as it is while its fate is unknown:
   within ten minutes the service carries one token out once. A condition that does not hold then
   may be our own doing: what the write left behind is looked for.
3. Throttling, conflicts and absent answers are waited out with chance, until the time is over. All
   requests of one call share its time: no new one begins when it is over.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from fleet.core import errors
from fleet.core.clock import Clock, SystemClock
from fleet.stores import aws, decisions
from fleet.stores.aws import Kind

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient

ACTIONS_MAX = 100
"""Items of one transaction: the service's limit."""
KEYS_MAX = 100
"""Keys of one read: the service's limit."""
PAUSE_S, PAUSE_MAX_S = 0.02, 1.0
"""First pause, s, and the longest: doubled each time, and all of it by chance (full jitter)."""
HOME_TRUSTED_S = 30.0
"""How long, s, a table is taken for the one it was: to delete and restore one takes minutes."""
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
    chance: Callable[[], float] = random.SystemRandom().random


class Attempts:
    """The time of one call, the pauses in it, and what it says when the time is over."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._began = patience.clock.monotonic()
        self._count = 0
        self._last = ""
        self.uncertain = False
        """Whether a write of this call may have been carried out without our knowing."""

    @property
    def left_s(self) -> float:
        """What is left of the time, s; 0.0: it is over."""
        return max(0.0, self._began + self._patience.timeout_s - self._patience.clock.monotonic())

    def begin(self) -> None:
        """Before every request. Raises `StoreUnavailable` when the time is over."""
        if self.left_s > 0.0:
            return
        tries = f" ({self._count} tries failed, the last: {self._last})" if self._count else ""
        raise errors.StoreUnavailable(
            f"the store on DynamoDB did not do it within {self._patience.timeout_s:g} s{tries}",
            remedy=_UNCERTAIN if self.uncertain else "",
        )

    def go_on(self, why: str) -> None:
        """Wait before the next one. Raises `StoreUnavailable` when the time is over."""
        longest_s = min(PAUSE_MAX_S, PAUSE_S * 2.0 ** min(self._count, 10))
        self._count, self._last = self._count + 1, why
        self.begin()
        patience = self._patience
        patience.pause(min(self.left_s, longest_s * (0.1 + 0.9 * patience.chance())))


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
        self._home: tuple[str, float, float] | None = None

    def attempts(self) -> Attempts:
        """The tries of one call that begins now."""
        return Attempts(self.patience)

    def patience_of(self, timeout_s: float) -> Patience:
        """The same patience for longer or shorter, s."""
        return replace(self.patience, timeout_s=timeout_s)

    def home(self, attempts: Attempts, *, anew: bool = False) -> str:
        """What tells this table from its copies: restored ones, and those of other regions.

        Asked for `anew` when told to, and when it was for the last time `HOME_TRUSTED_S` ago.
        """
        known, clock = self._home, self.patience.clock
        now = clock.monotonic(), clock.now()  # a host that was asleep has not counted the time
        if known is not None and not anew:
            home, *asked_at = known
            if all(0.0 <= n - a <= HOME_TRUSTED_S for n, a in zip(now, asked_at, strict=True)):
                return home
        describe = partial(self.client.describe_table, TableName=self.name)
        found = self.tried(describe, attempts)["Table"]
        home = f"{found['TableArn']} of {found['CreationDateTime'].timestamp():.3f}"
        self._home = (home, *now)
        return home

    def forget_home(self) -> None:
        """Look again which table it is, when next asked."""
        self._home = None

    def get(self, key: Item, attempts: Attempts) -> Item | None:
        """One item as it is now."""
        return self.tried(lambda: self._get(key), attempts)

    def read(self, keys: Iterable[Item], attempts: Attempts) -> list[Item]:
        """The items of these keys that there are, each as it is at some moment of the call."""
        wanted = list(keys)
        found: list[Item] = []
        for start in range(0, len(wanted), KEYS_MAX):
            found += self._batch(wanted[start : start + KEYS_MAX], attempts)
        return found

    def query(
        self,
        pk: str,
        attempts: Attempts,
        *,
        prefix: str = "",
        newest_first: bool = False,
        limit: int | None = None,
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
            page: Any = self.tried(lambda: self.client.query(**asked), attempts)
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
        unknown, before = False, attempts.uncertain
        while True:
            attempts.begin()
            try:
                self._transact(actions, write)
            except errors.CloudFailed as error:
                if error.kind is Kind.UNMET:
                    if not unknown or mark is None:
                        return False
                    done = self._is_marked(mark, write, attempts)
                    attempts.uncertain = before
                    return done
                if error.kind is Kind.CONFLICT and not unknown:
                    return False
                if error.kind not in _RETRIED:
                    self.refuse("write", error)
                unknown = unknown or error.kind is Kind.UNCERTAIN
                attempts.uncertain = attempts.uncertain or unknown
                attempts.go_on(error.detail)
            else:
                attempts.uncertain = before
                return True

    def delete(self, keys: Iterable[Item], attempts: Attempts) -> None:
        """Remove items, one after the other, without a guard."""
        for key in keys:
            remove = partial(self.client.delete_item, TableName=self.name, Key=key)
            self.tried(remove, attempts)

    def tried(self, call: Callable[[], _T], attempts: Attempts) -> _T:
        """What a request that may be repeated answers."""
        while True:
            attempts.begin()
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
        if error.code in aws.NO_CREDENTIALS:
            told = f"the store cannot {verb} table {self.name}: {error.detail}"
            raise errors.SettingsInvalid(told, remedy=aws.CREDENTIALS) from error
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

    def _batch(self, keys: Sequence[Item], attempts: Attempts) -> list[Item]:
        found: list[Item] = []
        left: Any = {self.name: {"Keys": list(keys), "ConsistentRead": True}} if keys else {}
        while left:
            ask = partial(self.client.batch_get_item, RequestItems=left)
            page: Any = self.tried(ask, attempts)
            found += page["Responses"].get(self.name, [])
            left = page.get("UnprocessedKeys")
            if left:
                attempts.go_on("throttled: keys were left over")
        return found

    def _transact(self, actions: Sequence[Item], write: str) -> None:
        asked: Any = {"TransactItems": list(actions), "ClientRequestToken": write}
        aws.ask(lambda: self.client.transact_write_items(**asked))

    def _is_marked(self, mark: Item, write: str, attempts: Attempts) -> bool:
        found = self.get(mark, attempts)
        return found is not None and found.get("write") == {"S": write}


def new_write() -> str:
    """A name that no other write has."""
    return secrets.token_hex(16)


def by_key(items: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Items by partition and sort key."""
    return {(item["pk"]["S"], item["sk"]["S"]): item for item in items}
