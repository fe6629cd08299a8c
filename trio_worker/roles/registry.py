# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Which class serves which role."""

from __future__ import annotations

from collections.abc import Callable

from trio_worker import cli
from trio_worker.roles import Role
from trio_worker.roles.encode import EncodeRole
from trio_worker.roles.gateway import GatewayChildRole, GatewayLeaderRole
from trio_worker.roles.llm import DecodeRole, DiffusionRole, PrefillRole
from trio_worker.roles.media import ImageRole, VideoRole
from trio_worker.roles.multimodal import MultimodalPrefillRole, MultimodalRole
from trio_worker.roles.non_leader import NonLeaderRole
from trio_worker.roles.pooling import EmbeddingRole, RerankRole
from trio_worker.roles.snapshot import SnapshotRole

_ROLES: dict[cli.Role, Callable[[], Role]] = {
    cli.Role.DECODE: DecodeRole,
    cli.Role.DISAGGREGATED_DECODE: DecodeRole,
    cli.Role.LLM_DIFFUSION: DiffusionRole,
    cli.Role.GATEWAY_CHILD: GatewayChildRole,
    cli.Role.GATEWAY_LEADER: GatewayLeaderRole,
    cli.Role.MULTIMODAL: MultimodalRole,
    cli.Role.MULTIMODAL_ENCODE: EncodeRole,
    cli.Role.MULTIMODAL_PREFILL: MultimodalPrefillRole,
    cli.Role.NON_LEADER: NonLeaderRole,
    cli.Role.PREFILL: PrefillRole,
    cli.Role.SNAPSHOT: SnapshotRole,
    cli.Role.EMBEDDING: EmbeddingRole,
    cli.Role.RERANK: RerankRole,
    cli.Role.IMAGE_DIFFUSION: ImageRole,
    cli.Role.VIDEO_GENERATION: VideoRole,
}


def implementation_of(role: cli.Role) -> Role:
    """The role's implementation."""
    return _ROLES[role]()
