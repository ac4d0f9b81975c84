"""Types of the fields of changes, with their descriptions and limits."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

StreamName = Annotated[str, Field(description="The stream.", max_length=1_000)]
QueryName = Annotated[str, Field(description="The query.", max_length=1_000)]
SinkName = Annotated[str, Field(description="The sink.", max_length=1_000)]
ComponentName = Annotated[str, Field(description="The component.", max_length=1_000)]
OperatorName = Annotated[str, Field(description="The operator.", max_length=1_000)]
StrategyText = Annotated[str, Field(description="dfs, bfs, rr or chain, also with (k).", max_length=100)]
InputNumber = Annotated[int, Field(ge=0, le=1_000, description="The number of the input, from 0.")]
