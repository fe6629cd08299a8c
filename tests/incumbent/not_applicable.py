# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The incumbent's tests that can't be run against ours, each with its reason.

An adapter that inherits from the incumbent's handler would pass most of them, by running the
incumbent's own code. They are left out for that. What they check is checked by the rules named.
"""

from __future__ import annotations

MONITOR = "drives the incumbent's monitor, a private context manager"
ABORT = "calls the incumbent's private ordered abort"
READER = "calls the incumbent's private reader generator"
TASKS = "looks into the incumbent's set of abort tasks"
AHEAD = (
    "counts on the engine's stream being asked for its next chunk only after the last one was "
    "delivered; the engine pushes to us (rule 54)"
)

DECODE: dict[str, str] = {
    "test_cancellation_monitor_rechecks_shutdown_after_cleanup": f"{MONITOR}: rules 40, 66",
    "test_cancellation_monitor_keeps_pending_ordered_abort_alive": f"{MONITOR}: rules 23, 63",
    "test_pending_ordered_abort_has_bounded_registration_wait": f"{MONITOR}: rule 20",
    "test_cancelled_stream_drain_is_bounded": f"{READER}: rule 47",
    "test_cancelled_stream_starts_deadline_when_chunk_is_already_ready": (
        f"{READER}, and replaces asyncio.wait in it: rule 46"
    ),
    "test_cancelled_stream_drain_does_not_wait_for_resistant_iterator": f"{READER}: rule 48",
    "test_cancellation_monitor_aborts_parallel_ids_on_stream_close": f"{MONITOR}: rule 64",
    "test_cancellation_monitor_logs_only_submitted_abort": f"{ABORT}: rules 26, 28",
    "test_cancellation_monitor_stops_when_request_finishes": f"{MONITOR}: rule 27",
    "test_decode_stream_exit_retains_pending_abort_wait": (
        f"{TASKS} and stops the clock of its polling: rules 34, 69, 70"
    ),
    "test_cancellation_monitor_without_tokenizer_manager": f"{MONITOR}: rule 13",
    "test_cancellation_monitor_without_request_registry": f"{MONITOR}: rule 16",
    "test_cancellation_monitor_retries_only_without_ordered_dispatch": f"{MONITOR}: rules 29, 30",
    "test_cancellation_monitor_bounds_abort_retries": f"{ABORT}: rules 25, 31",
    "test_stream_drain_starts_before_abort_retries_complete": f"{MONITOR} and its reader: rule 32",
    "test_cancel_abort_tasks_cancels_and_releases_owned_tasks": f"{TASKS}: rule 34",
    "test_base_worker_cleanup_cancels_abort_tasks": f"{TASKS}: rule 34",
    "test_cancellation_monitor_preserves_abort_ordering": f"{MONITOR}: rules 14, 19, 24",
    "test_ordered_abort_stops_when_stream_ends_before_registration": f"{ABORT}: rule 21",
    "test_cancellation_monitor_logs_fallback_abort_failure": f"{MONITOR}: rule 16",
    "test_shutdown_survives_ordered_abort_cleanup": f"{MONITOR}: rule 36",
    "test_unsupported_runtime_uses_response_id_cancellation[True]": f"{AHEAD}: rules 5, 7",
    "test_native_session_cancellation_uses_confirmed_response_id": f"{AHEAD}: rules 4, 82",
}

PREFILL: dict[str, str] = {
    "test_native_batched_prefill_disables_ordered_cancellation": (
        "replaces the incumbent's private consumer of results: rule 3"
    ),
    "test_prefill_reports_kv_cache_hit_after_bootstrap": f"replaces and {MONITOR}: rule 83",
    "test_prefill_omits_kv_cache_hit_after_cancellation": f"replaces and {MONITOR}: rules 83, 85",
}

PART = "calls one private step of the incumbent's, which ours runs as it is"

IMAGE: dict[str, str] = {
    "test_initialization": PART,
    "test_initialization_with_url_base": PART,
    "test_cleanup": "calls the incumbent's cleanup; here the generator's host ends it",
    "test_parse_size": PART,
    "test_parse_size_auto_uses_default": PART,
    "test_parse_size_invalid_raises_invalid_argument": PART,
    "test_encode_base64": PART,
    "test_upload_to_fs": PART,
    "test_generate_images_with_numpy_array": PART,
    "test_generate_images_with_pil_image": PART,
    "test_generate_images_with_bytes": PART,
}

RERANK: dict[str, str] = {
    "test_builds_pairs_sorts_scores_and_applies_top_n": (
        "wants SGLang's rids to be the caller's trace id, which has duplicates refused (B21)"
    ),
    "test_dedicated_pooling_registration_health_and_cleanup": (
        "calls the incumbent's start-up; ours: tests/roles/test_serving.py"
    ),
}

CONSUMER = "drives the incumbent's private consumer task; ours: tests/semantics/test_multimodal.py"
WATCH = "replaces a private step that ours does not have; ours: tests/semantics/test_multimodal.py"

DIFFUSION: dict[str, str] = {
    "test_diffusion_without_budget_keeps_existing_generation": (
        "replaces the incumbent's private conversion: rule 6"
    ),
}

MULTIMODAL: dict[str, str] = {
    "test_extract_media_inputs_supports_video_urls": PART,
    "test_extract_media_inputs_supports_mixed_image_and_video": PART,
    "test_encode_media_uses_sglang_0_5_19_pipeline": PART,
    "test_extract_media_inputs_rejects_multimodal_cache_uuid": PART,
    "test_build_mm_items_routes_video_to_video_data": PART,
    "test_multimodal_prefill_starts_before_returning_bootstrap": WATCH,
    "test_multimodal_prefill_releases_embeddings_when_submission_fails": PART,
    "test_multimodal_prefill_overwrites_forwarded_thinking_budget": PART,
    "test_multimodal_prefill_propagates_invalid_request_errors": WATCH,
    "test_multimodal_decode_treats_prefill_errors_as_server_failures": PART,
    "test_multimodal_prefill_rejects_custom_logit_processor": PART,
    "test_multimodal_prefill_rejects_forwarded_budget_without_canonical_value": PART,
    "test_multimodal_prefill_rejects_empty_engine_stream": CONSUMER,
    "test_multimodal_prefill_cancellation_awaits_consumer_cleanup": CONSUMER,
    "test_multimodal_prefill_cancels_registered_rid_before_first_result": CONSUMER,
    "test_multimodal_prefill_cleanup_awaits_consumers_before_engine_shutdown": CONSUMER,
    "test_build_mm_items_releases_embeddings_when_validation_fails": PART,
    "test_build_mm_items_releases_embeddings_when_item_construction_fails": PART,
    "test_vp9_without_software_decoder_is_actionable": PART,
    "test_vp9_with_software_decoder_passes_bytes_through": PART,
    "test_multimodal_decode_preserves_position_metadata_without_embeddings": PART,
}

UNCHANGED = "calls a function or class of Dynamo's that ours uses as it is"
STARTUP = "calls the incumbent's start-up; ours: tests/roles/test_serving_multimodal.py"

FRONTEND_DECODING: dict[str, str] = {
    "test_validate_accepts_frontend_decoding_with_encode_worker": UNCHANGED,
    "test_validate_rejects_frontend_decoding_with_multimodal_worker": UNCHANGED,
    "test_validate_rejects_frontend_decoding_with_dedicated_mm_encoder": UNCHANGED,
    "test_validate_accepts_frontend_decoding_alone": UNCHANGED,
    "test_encode_worker_prepares_mixed_url_and_decoded_images_in_order": PART,
    "test_encode_worker_rejects_decoded_images_without_frontend_decoding": PART,
    "test_encode_worker_missing_decoded_hash_bypasses_cache_and_warns_once": PART,
    "test_encode_worker_skips_image_cache_keys_when_cache_is_disabled": PART,
    "test_encode_worker_rejects_ambiguous_media_variant": PART,
    "test_frontend_decoded_video_falls_back_to_duration_fps": UNCHANGED,
}

EMBEDDING_CACHE: dict[str, str] = {
    "test_encode_with_cache_partial_hit_and_reuse": PART,
    "test_session_scope_partitions_image_embedding_keys": PART,
    "test_session_scoped_image_embedding_cache_bypasses_without_scope": PART,
    "test_publish_cache_delta_delegates_to_publisher": PART,
    "test_encode_with_cache_all_hit_no_remote_call": PART,
    "test_encode_with_cache_keeps_prechecked_hit_after_eviction": PART,
    "test_encode_with_cache_reencodes_only_unkeyed_items": PART,
    "test_aux_value_for_item_rejects_mismatched_batched_lists": PART,
    "test_video_cache_key_includes_sampling_config": PART,
    "test_disabled_nvdec_without_software_decoder_is_actionable": PART,
    "test_disabled_nvdec_with_software_decoder_passes_urls": PART,
    "test_disabled_nvdec_fetches_remote_video_with_configured_limit": PART,
    "test_nvdec_video_enabled_gating": PART,
    "test_build_encode_inputs_non_video_passthrough": PART,
    "test_build_encode_inputs_swaps_only_nvdec_hits": PART,
    "test_maybe_nvdec_decoder_wraps_h264_only": PART,
    "test_maybe_nvdec_decoder_returns_bytes_for_non_hw_codec": PART,
    "test_maybe_nvdec_decoder_rejects_non_http_scheme": PART,
    "test_fetch_failure_is_terminal": PART,
    "test_policy_rejection_is_not_swallowed_into_url_passthrough": PART,
    "test_decode_failure_falls_back_to_the_fetched_bytes": PART,
    "test_disabled_nvdec_validates_url_before_reporting_decoders": PART,
    "test_decode_failure_without_software_decoder_is_actionable": PART,
    "test_codec_probe_failure_is_not_retried": PART,
    "test_load_video_passthrough_patches_the_encoder_binding": UNCHANGED,
}

MEDIA_UTILITIES: dict[str, str] = {
    "test_extract_media_urls_supports_string_and_wire_items": UNCHANGED,
    "test_build_disagg_mm_kwargs_includes_audio_urls": UNCHANGED,
    "test_extract_media_urls_returns_none_for_missing_modality": UNCHANGED,
    "test_extract_media_urls_rejects_malformed_payloads": UNCHANGED,
    "test_extract_mm_hashes_preserves_legacy_image_protocol": UNCHANGED,
    "test_extract_mm_hashes_flattens_in_sglang_item_order": UNCHANGED,
    "test_extract_mm_hashes_rejects_per_modality_count_mismatch": UNCHANGED,
    "test_extract_mm_hashes_rejects_malformed_grouped_protocol": UNCHANGED,
    "test_raises_for_image_url": UNCHANGED,
    "test_raises_for_audio_url": UNCHANGED,
    "test_text_only_request_bypasses_guard": UNCHANGED,
    "test_stripped_extra_args_still_uses_multi_modal_data": UNCHANGED,
}

HEALTH_CHECK: dict[str, str] = {
    "test_disagg_payload_has_marker": UNCHANGED,
    "test_decode_payload_has_no_marker": UNCHANGED,
    "test_disagg_env_override_preserves_marker": UNCHANGED,
    "test_encoder_health_follows_registration_and_shutdown": STARTUP,
}

NOT_APPLICABLE: dict[str, dict[str, str]] = {
    "test_sglang_decode_cancellation.py": DECODE,
    "test_sglang_prefill_handler.py": PREFILL,
    "test_sglang_image_diffusion_handler.py": IMAGE,
    "test_sglang_rerank_handler.py": RERANK,
    "test_sglang_diffusion_handler.py": DIFFUSION,
    "test_sglang_multimodal_video.py": MULTIMODAL,
    "test_sglang_frontend_decoding.py": FRONTEND_DECODING,
    "test_sglang_multimodal_embedding_cache.py": EMBEDDING_CACHE,
    "test_sglang_multimodal_utils.py": MEDIA_UTILITIES,
    "test_sglang_health_check.py": HEALTH_CHECK,
}
"""File -> test -> reason; without a parameter set in its name, a test is left out with all."""

NOT_RUNNABLE: dict[str, dict[str, str]] = {
    "test_sglang_multimodal_video.py": {
        "test_nvdec_video_metadata_shim_stamps_valid_metadata": (
            "a coroutine without a mark, which needs upstream's configuration of pytest-asyncio"
        ),
        "test_remote_video_fetch_honors_configured_media_limit": "looks up a host of the internet",
    },
}
"""Run against neither, each with its reason."""
