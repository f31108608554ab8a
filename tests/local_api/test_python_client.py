"""The official Python client works with the local API, as it does with any API server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from local_api.server import account_made, serving


def use(kubeconfig: str) -> list[str]:
    """Create, patch, list, watch and delete objects; returns the types of the watch's events."""
    with config.new_client_from_config(kubeconfig) as api:
        core: Any = client.CoreV1Api(api)
        made = core.create_namespaced_config_map(
            "default",
            client.V1ConfigMap(metadata=client.V1ObjectMeta(name="web", labels={"app": "web"}), data={"a": "1"}),
        )
        patched = core.patch_namespaced_config_map("web", "default", {"data": {"b": "2"}})
        assert patched.data == {"a": "1", "b": "2"}
        assert [
            item.metadata.name for item in core.list_namespaced_config_map("default", label_selector="app=web").items
        ] == ["web"]
        spec = client.V1PodSpec(containers=[client.V1Container(name="c", image="example.test/none:1")])
        pod = core.create_namespaced_pod(
            "default", client.V1Pod(metadata=client.V1ObjectMeta(generate_name="p-"), spec=spec)
        )
        assert pod.status.phase == "Pending"
        assert pod.spec.service_account_name == "default"
        core.delete_namespaced_config_map("web", "default")
        with pytest.raises(ApiException) as caught:
            core.read_namespaced_config_map("web", "default")
        assert caught.value.status == 404
        seen = []
        version = str(int(made.metadata.resource_version) - 1)
        for event in watch.Watch().stream(
            core.list_namespaced_config_map,
            "default",
            resource_version=version,
            label_selector="app=web",
            timeout_seconds=5,
        ):
            seen.append(event["type"])
            if event["type"] == "DELETED":
                break
        account = client.V1ServiceAccount(metadata=client.V1ObjectMeta(name="reader"))
        core.create_namespaced_service_account("default", account)
        review = client.V1SubjectAccessReview(
            spec=client.V1SubjectAccessReviewSpec(
                user="system:serviceaccount:default:reader",
                resource_attributes=client.V1ResourceAttributes(verb="get", resource="pods", namespace="default"),
            )
        )
        authorization: Any = client.AuthorizationV1Api(api)
        assert authorization.create_subject_access_review(review).status.allowed is False
        return seen


async def test_the_python_client_creates_watches_and_deletes(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        await account_made(api)
        assert await asyncio.to_thread(use, api.kubeconfig) == ["ADDED", "MODIFIED", "DELETED"]
