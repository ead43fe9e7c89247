"""What the webhook judges by: the table of rules, and the tags that only a list of keys can tell.

Pure, but for the list, which is asked for anew with each object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fleet.admission import rules
from fleet.admission.ground import Ground
from fleet.admission.review import Judge, Objection, Subject
from fleet.plugin.tags import TagKeys
from fleet.plugin.tags_claim import Asked, Isolation


def judges(ground: Ground, keys: Callable[[], TagKeys]) -> tuple[Judge, ...]:
    """The rules of admission, then the tags."""
    # That deallocation and tag are there is a rule; here is what only a list of keys can tell.
    isolation = Isolation(driver=ground.driver, keys=keys)

    def by_rules(subject: Subject) -> Iterator[Objection]:
        for found in rules.judge(subject.document, ground, requester=subject.user):
            if found.refuses:
                yield Objection(found.place, found.wrong, found.remedy)

    def by_tags(subject: Subject) -> Iterator[Objection]:
        document = rules.settled(subject.document)
        asked = Asked(subject.namespace, subject.created_at, document)
        for found in isolation.objections(asked):
            yield Objection(found.path, found.wrong, f"write {found.write}")

    return by_rules, by_tags
