"""Processes of ours next to the server: they find the modules that it finds, its users' functions among them."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any


async def start_python(module: str, *arguments: str, **more: Any) -> asyncio.subprocess.Process:
    """Start a module, with pipes to its input and from its output. `more`: as `asyncio.create_subprocess_exec` has
    it."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        **more,
    )
