"""The table of the HTP back end's extension file, which a dialog's `backend.extensions` names.

It is read by the back end, not by Genie: its top keys are fixed, and what is inside grows with the versions.
"""

from __future__ import annotations

from edgewright.genie.schema import Block, Flag, Integer, Items, Number, Text

COUNT, FLAG, TEXT = Integer(0), Flag(), Text()
CORE = Block(
    {
        "core_id": COUNT, "perf_profile": TEXT, "rpc_control_latency": COUNT, "rpc_polling_time": COUNT,
        "hmx_timeout_us": COUNT, "adaptive_polling_time": COUNT,
    }
)  # fmt: skip
DEVICE = Block(
    {
        "device_id": COUNT, "soc_id": COUNT, "soc_model": COUNT, "dsp_arch": TEXT, "pd_session": TEXT,
        "profiling_level": TEXT, "use_client_context": FLAG, "cores": Items(CORE),
    }
)  # fmt: skip
GRAPH = Block(
    {
        "graph_names": Items(TEXT), "vtcm_mb": COUNT, "O": Number(), "fp16_relaxed_precision": COUNT,
        "hvx_threads": COUNT, "dlbc": COUNT, "num_cores": COUNT,
    }
)  # fmt: skip
EXTENSIONS = Block(
    {
        "devices": Items(DEVICE),
        "context": Block(
            {
                "weight_sharing_enabled": FLAG, "extended_udma": FLAG, "max_spill_fill_buffer_for_group": COUNT,
                "file_read_memory_budget_in_mb": COUNT, "enable_graphs": Items(TEXT),
            }
        ),
        "graphs": Items(GRAPH),
        "memory": Block({"mem_type": Text(("shared_buffer",))}),
        "groupContext": Block({"share_resources": FLAG}),
    }
)  # fmt: skip
