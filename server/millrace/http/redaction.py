"""The configuration without its secrets.

Rule: the models determine the secrets, so that a setting added tomorrow is left out too. Secret are types
made for secrets, and whatever its name says holds one. A setting that merely names a file with a secret is left out
too: a reader of the bundle needs to know that a token exists, not where.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import BaseModel, SecretBytes, SecretStr

LEFT_OUT: Final = "(set, left out)"
_SECRET_NAME: Final = re.compile(r"token|password|passwd|secret|credential|(^|_)key($|_)", re.IGNORECASE)
# user:password@ in an address.
_PASSWORD_IN_URL: Final = re.compile(r"(?<=://)[^/\s@]+@")


def redacted(model: BaseModel) -> dict[str, Any]:
    """The model as data, with a word in place of each secret that is set."""
    shown = model.model_dump(mode="json")
    return {name: _shown(name, getattr(model, name), shown[name]) for name in type(model).model_fields}


def is_secret(name: str, value: object) -> bool:
    return isinstance(value, SecretStr | SecretBytes) or _SECRET_NAME.search(name) is not None


def _shown(name: str, value: object, data: Any) -> Any:
    if isinstance(value, BaseModel):
        return redacted(value)
    if value is not None and is_secret(name, value):
        return LEFT_OUT
    return _PASSWORD_IN_URL.sub("", data) if isinstance(data, str) else data
