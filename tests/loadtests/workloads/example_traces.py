"""Traces in the formats that load tests read."""

from __future__ import annotations

import json
from typing import Any

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9500000,4800,10
2023-11-16 18:17:04.0020001,3100,8
"""

BURST_1 = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,400,18,418,Conversation log
45,GPT-4,1000,230,1230,API log
"""

BURST_2 = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,one,43,GPT-4,900,440,1340,Conversation log
19440161.5,,2,ChatGPT,36,29,65,API log
"""


def mooncake(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def row(timestamp: Any = 0, into: Any = 700, out: Any = 52, **more: Any) -> dict[str, Any]:
    return {"timestamp": timestamp, "input_length": into, "output_length": out, **more}


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


# More digits than Python reads as a whole number.
LONG = "1" * 5000

HEAD, *_ = AZURE_2023.splitlines()
