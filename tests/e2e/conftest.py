# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""One cluster of each kind for a whole session, started before any test's clock runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import pytest

from tests.e2e.backing import (
    Backing,
    Encoder,
    Filmer,
    Painter,
    Recitation,
    Reranker,
    StandIn,
    Viewer,
)
from tests.e2e.portal import Portal
from tests.e2e.served import Ending, Served, end, open_served

STAND_IN_SCRIPT = (
    "step_ms=10,fault=delay_dispatch:ms=40:prompt=SLOW,fault=delay_register:ms=30:prompt=LATE"
)
"""A question with SLOW in it is tokenized slowly, one with LATE comes late to SGLang's registry."""


MODULES = {"slow recitation": "tests.e2e.slow_tokenizer"}
"""What to run instead of the worker's own entrypoint."""

CANARY = {"DYN_HEALTH_CHECK_ENABLED": "true", "DYN_CANARY_WAIT_TIME": "2"}


BACKINGS: dict[str, type[Encoder | Filmer | Painter | Reranker | Viewer]] = {
    "encoder": Encoder,
    "filmer": Filmer,
    "painter": Painter,
    "reranker": Reranker,
    "viewer": Viewer,
}
"""Real engines with tiny random models."""


class Clusters:
    """The session's clusters by kind; started when first needed, or needed again."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._folder = tempfile.TemporaryDirectory(prefix="trio-worker-e2e-")
        self._open: dict[str, Portal[Served]] = {}

    def portal(self, kind: str) -> Portal[Served]:
        """Neither flavour; blocks while the cluster starts."""
        if kind not in self._open:
            backing = self._backing(kind)

            env = CANARY if isinstance(backing, StandIn | Encoder) else {}
            env = {**env, "TRIO_WORKER_RECORDER_DIR": f"{self._folder.name}/flights"}

            def opens() -> AbstractAsyncContextManager[Served]:
                module = MODULES.get(kind, "trio_worker")
                return open_served(backing, module=module, env=env, say=self._say)

            self._open[kind] = Portal(opens)
        return self._open[kind]

    def end(self, kind: str) -> Ending:
        """Neither flavour; blocks. Stop the cluster in order; the next to need one starts anew."""
        portal = self._open.pop(kind)
        ending = portal.call(end, portal.wait_open())
        portal.close()
        return ending

    def close(self) -> None:
        """Neither flavour; blocks until nothing runs any more."""
        for portal in self._open.values():
            # Whoever needed it has had the error.
            with suppress(Exception):
                portal.close()
        self._folder.cleanup()

    def _backing(self, kind: str) -> Backing:
        if kind in ("recitation", "slow recitation"):
            return Recitation.make()
        if kind in BACKINGS:
            return BACKINGS[kind].make(Path(self._folder.name))
        return StandIn.make(Path(self._folder.name), STAND_IN_SCRIPT)


CLUSTERS = pytest.StashKey[Clusters]()


@pytest.fixture(scope="session")
def clusters(pytestconfig: pytest.Config) -> Clusters:
    """All clusters of the session."""
    return _clusters(pytestconfig)


@pytest.fixture
def served(clusters: Clusters) -> Served:
    """The real engine, reciting."""
    return clusters.portal("recitation").wait_open()


@pytest.fixture
def slow_served(clusters: Clusters) -> Served:
    """The real engine, reciting; it tokenizes questions with SLOW or STUCK slowly."""
    return clusters.portal("slow recitation").wait_open()


@pytest.fixture
def stand_in(clusters: Clusters) -> Served:
    """The GPU-free scheduler."""
    return clusters.portal("stand_in").wait_open()


@pytest.fixture
def encoder(clusters: Clusters) -> Served:
    """The real engine, embedding."""
    return clusters.portal("encoder").wait_open()


@pytest.fixture
def painter(clusters: Clusters) -> Served:
    """The real generator, painting."""
    return clusters.portal("painter").wait_open()


@pytest.fixture
def reranker(clusters: Clusters) -> Served:
    """The real engine, ranking."""
    return clusters.portal("reranker").wait_open()


@pytest.fixture
def viewer(clusters: Clusters) -> Served:
    """The real engine behind the real encoder, looking at pictures."""
    return clusters.portal("viewer").wait_open()


@pytest.fixture
def filmer(clusters: Clusters) -> Served:
    """The real generator, filming."""
    return clusters.portal("filmer").wait_open()


@pytest.fixture
def end_cluster(clusters: Clusters) -> Callable[[str], Ending]:
    """Ends the session's cluster of a kind."""
    return clusters.end


NEEDS = {
    "served": "recitation",
    "slow_served": "slow recitation",
    "stand_in": "stand_in",
    **{kind: kind for kind in BACKINGS},
}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Start what the test needs outside of its time-out; an error is the fixture's to raise."""
    for fixture, kind in NEEDS.items():
        if fixture in getattr(item, "fixturenames", ()):
            with suppress(Exception):
                _clusters(item.config).portal(kind).wait_open()
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """The one marker that means something here only."""
    config.addinivalue_line("markers", "ends_cluster: stops the session's cluster, so comes last")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Last of a session, when nobody else wants the processors; those that end a cluster last."""
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        if here not in item.path.parents:
            return 0
        return 2 if item.get_closest_marker("ends_cluster") else 1

    items.sort(key=place)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Neither flavour. Stop everything, whatever became of the session."""
    clusters = config.stash.get(CLUSTERS, None)
    if clusters is not None:
        clusters.close()


def _clusters(config: pytest.Config) -> Clusters:
    if CLUSTERS not in config.stash:
        reporter = config.pluginmanager.get_plugin("terminalreporter")

        def say(text: str) -> None:
            # Past the capture: whoever waits wants to know for what.
            if reporter is not None:
                reporter.write_line(f"[cluster] {text}")

        config.stash[CLUSTERS] = Clusters(say)
    return config.stash[CLUSTERS]
