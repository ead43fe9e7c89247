"""The policies that Helm installed judge the corpus as the CEL here does, in a real API server.

The tests are those of `tests.e2e.test_admission`, asked of the chart's own policies.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import kubernetes
import pytest

from fleet.admission.ground import GOVERNED_LABEL, Ground
from fleet.admission.policies import files
from tests.e2e.polling import eventually
from tests.e2e.test_admission import (
    CASES,
    RAY_KINDS,
    Server,
    crd,
    in_force,
    namespace,
    rights,
    test_a_container_for_debugging_is_judged,
    test_f60_rights_in_a_namespace_alone_label_it_for_no_admin_access,
    test_f68_the_pod_security_level_of_a_governed_namespace_stays,
    test_nobody_leaves_the_rules_with_rights_in_a_namespace_alone,
    test_the_server_has_no_warning,
    test_the_server_judges_the_corpus_as_we_do,
    test_what_was_there_before_may_end,
    warning,
)
from tests.e2e_chart.installation import Installation
from tests.fleet.admission import corpus

__all__ = [
    "test_a_container_for_debugging_is_judged",
    "test_f60_rights_in_a_namespace_alone_label_it_for_no_admin_access",
    "test_f68_the_pod_security_level_of_a_governed_namespace_stays",
    "test_nobody_leaves_the_rules_with_rights_in_a_namespace_alone",
    "test_the_server_has_no_warning",
    "test_the_server_judges_the_corpus_as_we_do",
    "test_what_was_there_before_may_end",
]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def server(release: Installation) -> Iterator[Server]:
    """The server with Ray's kinds and a governed namespace; its policies are the release's.

    Bindings that only warn are made beside those of the release: a denial names one rule alone.
    """
    configuration = kubernetes.client.Configuration()
    load = kubernetes.config.load_kube_config
    load(str(release.place.kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
    pool = kubernetes.client.rest.RESTClientObject(configuration).pool_manager
    found = Server(configuration.host.rstrip("/"), pool, f"governed-{secrets.token_hex(3)}")
    users = sorted({case.said(corpus.REQUESTER) for case in CASES} - {""})
    made = [
        *(dict(crd(kind)) for kind in RAY_KINDS),
        dict(namespace(found.namespace, **{GOVERNED_LABEL: "true"})),
        dict(rights(users)),
        *(dict(warning(binding)) for _, binding in files(Ground()).values()),
    ]
    kept = [one for one in made if found.create(one, dry=False).status == 201]
    try:
        assert len(kept) == len(made), "something of an earlier run is in the way"
        account = f"/api/v1/namespaces/{found.namespace}/serviceaccounts/default"
        eventually("an account", lambda: found.ask("GET", account).status == 200, timeout_s=30)
        eventually("the policies hold", lambda: in_force(found), timeout_s=30)
        yield found
    finally:
        for one in reversed(kept):
            found.delete(one)
        for one in kept:
            path = found.path(one, one["metadata"]["name"])
            eventually(
                f"{path} is gone",
                lambda path=path: found.ask("GET", path).status == 404,  # type: ignore[misc]
                timeout_s=60,
            )
        pool.clear()
