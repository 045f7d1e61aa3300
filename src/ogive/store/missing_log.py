"""A directory whose log is gone, as where its disk is not mounted: a start on it would give out
offsets that were given out already, and what is stored then is lost when the log comes back.
"""

from ogive.errors import StoreCorrupt
from ogive.store import checkpoint as checkpoints
from ogive.store.fs import Fs
from ogive.store.queue_rebuild import end_of_files
from ogive.store.queue_types import QueueKinds
from ogive.store.segments import segment_names
from ogive.store.types import StoreConfig


def refuse_emptied(fs: Fs, config: StoreConfig) -> None:
    """Raises StoreCorrupt where the log has no file, and other files tell of messages.

    No removal by age takes the newest file.
    """
    if (told := traces(fs, config)) is not None:
        raise StoreCorrupt(
            f"{config.root / 'commitlog'} holds no messages, but {told}: is its disk mounted? "
            "Where the messages are meant to be gone, `ogive up --empty-log` begins a new log"
        )


def traces(fs: Fs, config: StoreConfig) -> str | None:
    """What tells of messages that the log does not have, in words; None where nothing does, or the
    log has files. Raises OSError.
    """
    root = config.root
    if segment_names(fs, root / "commitlog"):
        return None
    checkpoint = checkpoints.load(fs, root)
    if checkpoint is not None and checkpoint.position > 0:
        return f"the last checkpoint had seen a log of {checkpoint.position} bytes"
    for kind in QueueKinds.found(fs, config):
        for topic, queue_id in kind.found(fs):
            if end := end_of_files(fs, kind, (topic, queue_id)):
                return f"queue {queue_id} of {topic} has offsets up to {end - 1}"
    return None
