"""The epoch of a server as text: `2-0123456789abcdef`, its number and a code that only its servers can make."""

from __future__ import annotations

import re
from typing import Final

_FORM: Final = re.compile(r"([1-9][0-9]{0,17})-[0-9a-f]{16}", re.ASCII)


def epoch_number(text: str) -> int | None:
    """The number of an epoch; None if the text is not one."""
    found = _FORM.fullmatch(text)
    return None if found is None else int(found[1])


class EpochMemory:
    """The highest epoch that a client has seen. It accepts nothing from a server with a lower one."""

    def __init__(self) -> None:
        self.text: str | None = None

    @property
    def number(self) -> int:
        """0: no server has said its epoch yet."""
        return 0 if self.text is None else epoch_number(self.text) or 0

    def accepts(self, text: str | None) -> bool:
        """Whether the client may use a server of this epoch; notes a higher one. A server that does not say its epoch,
        such as one without a data directory, has the first."""
        number = 1 if text is None else epoch_number(text) or 1
        if number > self.number and text is not None:
            self.text = text
        return number >= self.number
