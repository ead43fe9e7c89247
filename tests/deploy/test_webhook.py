"""What the webhook may be asked, as a lint of its configuration (B65)."""

from __future__ import annotations

from tests.deploy.webhook import configuration, dangers


def test_b65_ours_cannot_take_the_cluster_down() -> None:
    """B65: claims and templates alone, 5 s, fail closed, governed namespaces but never ours."""
    assert list(dangers(configuration({}))) == []


def test_b65_a_configuration_that_is_too_broad_is_named() -> None:
    """B65: everything everywhere for 30 s: each danger is found."""
    rule = {field: ["*"] for field in ("apiGroups", "apiVersions", "operations")}
    broad = {
        "webhooks": [
            {
                "rules": [{**rule, "resources": ["*/*"]}],
                "failurePolicy": "Fail",
                "timeoutSeconds": 30,
            }
        ]
    }
    assert list(dangers(broad)) == [
        "apiGroups ['*']",
        "operations ['*']",
        "resources ['*/*']",
        "it may keep a request waiting for more than 5 s",
        "kube-system and its own namespace wait for it",
        "namespaces that nobody governs wait for it",
        "finalizers and labels wait for it",
    ]
