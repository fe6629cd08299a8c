# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""docs/deploy: probes, grace and budgets that fit each other, and what they name exists."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from . import pages
from .test_shutdown import bounds

FOLDER = pages.DOCS / "deploy"
MANIFEST: dict[str, Any] = yaml.safe_load((FOLDER / "worker.yaml").read_text())
POD = MANIFEST["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]
ENV = {variable["name"]: variable["value"] for variable in CONTAINER["env"]}
CONTAINERFILE = (FOLDER / "Containerfile").read_text()

TOTAL = float(ENV["DYN_WORKER_SHUTDOWN_TOTAL_TIMEOUT_SECS"])
GRACE = float(ENV["DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS"])
LAST_RESORT_S = 5
"""After the total: 1.5 s until the signal thread acts, 2 s for it at most, and some air."""
PREFILL_WARM_UP_S = 1800


def patience(probe: dict[str, Any]) -> float:
    """Seconds of failures that a probe bears."""
    return float(probe["periodSeconds"] * probe["failureThreshold"])


def pre_stop() -> float:
    hook = CONTAINER.get("lifecycle", {}).get("preStop")
    if hook is None:
        return 0.0
    seconds: float = hook["sleep"]["seconds"]
    return seconds


def test_the_total_leaves_each_phase_its_bound() -> None:
    known = bounds()
    phases = ("withdraw", "migrate", "stop", "engine", "deferred", "exit")
    assert GRACE + sum(known[phase] for phase in phases) <= TOTAL


def test_the_worker_is_gone_before_kubernetes_kills_it() -> None:
    assert POD["terminationGracePeriodSeconds"] >= pre_stop() + TOTAL + LAST_RESORT_S


def test_a_draining_worker_is_not_killed_by_its_own_liveness_probe() -> None:
    """From phase 4 on it finds a closed port, for as long as the total at the very most."""
    probe = CONTAINER["livenessProbe"]
    assert patience(probe) > TOTAL
    # A probe's own grace would replace the pod's.
    assert "terminationGracePeriodSeconds" not in probe


def test_a_worker_that_loads_is_not_killed() -> None:
    assert patience(CONTAINER["startupProbe"]) > PREFILL_WARM_UP_S


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_probes_ask_the_status_server(probe: str) -> None:
    ports = {port["name"]: str(port["containerPort"]) for port in CONTAINER["ports"]}
    asked = CONTAINER[probe]["httpGet"]
    assert ports[asked["port"]] == ENV["DYN_SYSTEM_PORT"]
    assert asked["path"] in ("/live", "/health")


def test_there_is_somewhere_to_migrate_to_while_rolling() -> None:
    assert MANIFEST["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert MANIFEST["spec"]["replicas"] >= 2


@pytest.mark.parametrize("name", ENV)
def test_variables_exist_in_the_code(name: str) -> None:
    assert name in pages.source()


def test_selector_and_volumes_match() -> None:
    labels = MANIFEST["spec"]["template"]["metadata"]["labels"]
    assert MANIFEST["spec"]["selector"]["matchLabels"].items() <= labels.items()
    mounted = {mount["name"] for mount in CONTAINER["volumeMounts"]}
    assert mounted == {volume["name"] for volume in POD["volumes"]}


def test_no_image_names_a_host() -> None:
    images = [CONTAINER["image"], *re.findall(r"^FROM (\S+)", CONTAINERFILE, re.MULTILINE)]
    assert images[1:] == ["${BASE_IMAGE}"]
    assert all("." not in image.rpartition(":")[0] and "/" not in image for image in images)


def test_the_image_starts_the_worker_itself() -> None:
    """In exec form, so that it is PID 1 and not a shell that keeps the signal."""
    assert 'ENTRYPOINT ["python3", "-m", "trio_worker"]\n' in CONTAINERFILE
    for source in re.findall(r"^COPY (.*) \S+$", CONTAINERFILE, re.MULTILINE):
        for name in source.split():
            assert (pages.ROOT / name).exists(), name
