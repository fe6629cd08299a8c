# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
import threading
import uuid

from trio_worker.standin.ranks import follow, lead, meeting_point


def test_a_follower_waits_for_its_leader_and_leaves_with_it() -> None:
    point = meeting_point(uuid.uuid4().hex, 0)
    led = threading.Event()
    tried = threading.Event()

    def wait_for_leader(_: float) -> None:
        tried.set()
        led.wait()

    follower = threading.Thread(target=lambda: follow(point, sleep=wait_for_leader), daemon=True)
    follower.start()
    assert tried.wait(10)
    leader = lead(point)
    led.set()
    connection, _ = leader.accept()
    assert follower.is_alive()
    connection.close()
    leader.close()
    follower.join(10)
    assert not follower.is_alive()


def test_groups_and_replicas_meet_apart() -> None:
    points = {meeting_point(group, rank) for group in ("a", "b") for rank in (None, 0, 1)}
    assert len(points) == 6
