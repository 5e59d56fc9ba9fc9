"""A server's metrics pages over a run."""

from __future__ import annotations

PAGES = [
    {
        "t": t,
        "moment": moment,
        "values": {'nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"}': running},
    }
    for t, moment, running in [(-1.0, "before", 9.0), (0.5, "during", 1.0), (0.9, "during", 2.0), (50.0, "after", 9.0)]
]
