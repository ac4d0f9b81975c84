"""What can be wrong with a journal. Every text names the file and, where there is one, the offset."""

from __future__ import annotations

from millrace.protocol import MillraceError


class JournalError(MillraceError):
    """A journal that cannot be opened, read or written."""

    code = "journal"


class JournalMissing(JournalError):  # noqa: N818 - named after the state
    """The folder has no journal."""

    code = "journal_missing"


class JournalLocked(JournalError):  # noqa: N818 - named after the state
    """Another process writes this journal."""

    code = "journal_locked"


class JournalDamaged(JournalError):  # noqa: N818 - named after the state
    """Bytes that were synced are not what was written. Nothing on disk has been changed."""

    code = "journal_damaged"


class JournalFull(JournalError):  # noqa: N818 - named after the state
    """The disk is full. Buffered records are kept, and the next `write()` tries them again."""

    code = "disk_full"


class JournalBroken(JournalError):  # noqa: N818 - named after the state
    """A write or a sync failed, so the state of the disk is unknown until a restart reads it."""

    code = "journal_broken"


class NotRetained(JournalError):  # noqa: N818 - named after the state
    """The requested records have been removed."""

    code = "not_retained"


def reason(error: OSError) -> str:
    """An error of the system in a few words."""
    return error.strerror or str(error)
