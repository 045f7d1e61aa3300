"""Properties of a copy of a message, reduced until they fit into a record.

A copy for another try, or for the dead letters, has more properties than its message. If the
message leaves no room for them, its largest properties are removed. Otherwise anyone who may send
could create messages that no consumer can get rid of.
"""

from collections.abc import Mapping
from typing import Final

from ogive.model import RESERVED_PROPERTIES, PropertyName
from ogive.wire.message import MAX_PROPERTIES_BYTES

_SMALL_BYTES: Final = 300
"""A reserved property of at most this size is kept: all of them together leave room."""
_MAX_NAME_BYTES: Final = 64
_MAX_NAMES_BYTES: Final = 200
_MARK_BYTES: Final = len(PropertyName.REMOVED_PROPERTIES) + _MAX_NAMES_BYTES + len("\x01...\x02")


def fit_properties(
    properties: Mapping[str, str], limit: int = MAX_PROPERTIES_BYTES
) -> dict[str, str]:
    """Return *properties*, without the largest ones if they do not fit into *limit* bytes.

    REMOVED_PROPERTIES names the removed ones. *limit* must be at least 24,000.
    """
    kept = dict(properties)
    sizes = {name: _bytes(name) + _bytes(value) + 2 for name, value in kept.items()}
    excess = sum(sizes.values()) - limit
    if excess <= 0:
        return kept
    removable = [
        name for name in kept if name not in RESERVED_PROPERTIES or sizes[name] > _SMALL_BYTES
    ]
    removed: list[str] = []
    excess += _MARK_BYTES
    for name in sorted(removable, key=sizes.__getitem__, reverse=True):
        if excess <= 0:
            break
        excess -= sizes[name]
        removed.append(_cut(name, _MAX_NAME_BYTES))
        del kept[name]
    before = kept.pop(PropertyName.REMOVED_PROPERTIES, None)
    kept[PropertyName.REMOVED_PROPERTIES] = _cut(
        ", ".join([before, *removed] if before else removed), _MAX_NAMES_BYTES
    )
    return kept


def _bytes(text: str) -> int:
    return len(text.encode(errors="replace"))


def _cut(text: str, limit: int) -> str:
    raw = text.encode(errors="replace")
    return text if len(raw) <= limit else f"{raw[:limit].decode(errors='ignore')}..."
