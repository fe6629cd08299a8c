# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""With real etcd and NATS: register, serve, migrate, stop; and etcd when it is not well."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
import trio

from tests.e2e.backing import StandIn
from tests.trials.cases import BY_NAME
from tests.trials.members import Members, open_members
from tests.trials.services import Etcd, obtain, open_services
from tests.trials.trial import Stream, run_trial

pytestmark = [
    pytest.mark.e2e,
    # Three workers start in it, each takes a minute or more on a busy machine.
    pytest.mark.timeout(1500),
]

INSTANCES = "v1/instances/"
TOTAL_S = 12.0
"""--shutdown-timeout of the workers."""

SLACK_S = 3.0
"""Until the last resort has acted, and then some for a busy machine."""


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    """etcd and NATS are there."""
    if reason := obtain():
        pytest.skip(reason)


async def test_life_of_workers_with_etcd_and_nats(tmp_path: Path) -> None:
    backing = StandIn.make(tmp_path, "step_ms=8")
    async with (
        open_services() as services,
        open_members("ours", backing, env=services.env) as members,
    ):
        args = ("--shutdown-timeout", str(TOTAL_S))
        first = await members.start(BY_NAME["grace over"], *args)
        second = await members.start(None, *args)
        assert len(await services.etcd.keys(INSTANCES)) == 2 * 5  # the role has five endpoints

        outcome = await run_trial(
            members,
            first,
            BY_NAME["grace over"],
            length=800,
            count=4,
            source=random.Random(1),
        )
        assert outcome.wrong == []
        assert outcome.migrations >= 1
        assert (outcome.status, outcome.orphans) == (0, 0)
        assert len(await services.etcd.keys(INSTANCES)) == 5

        await _restart_while_serving(members, services.etcd)
        assert second.process.returncode is None
        assert await services.etcd.revoke_leases_of(INSTANCES) == 1
        assert await second.process.wait() == 1

        third = await members.start(None, *args)
        services.etcd.freeze()
        started = trio.current_time()
        third.process.signal(signal.SIGTERM)
        status = await third.process.wait(TOTAL_S + SLACK_S)
        services.etcd.thaw()
        assert trio.current_time() - started < TOTAL_S + SLACK_S
        assert status == 1, third.process.tail()


async def _restart_while_serving(members: Members, etcd: Etcd) -> None:
    stream = _stream(members, "Through a restart.")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run, members, False)
        while not stream.answer.text:
            await trio.sleep(0.02)
        await etcd.stop()
        await trio.sleep(1)
        await etcd.start()
    assert stream.fault() is None
    after = _stream(members, "After a restart.")
    await after.run(members, False)
    assert after.fault() is None


def _stream(members: Members, question: str) -> Stream:
    return Stream(question, members.backing.expected(question, 800))
