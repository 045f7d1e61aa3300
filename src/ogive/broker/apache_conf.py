"""Write ``apache-broker.conf``, with which Apache's broker starts on the broker's directory.

Apache's broker refuses files of any size but the configured ones, so this file has the sizes of the
store. Ours reads the sizes from the files themselves; what it reads here are the delay levels, see
store/queue_rebuild.py.
"""

from typing import Final

from ogive.broker.config import BrokerConfig
from ogive.store.fs import Fs
from ogive.store.message_store import MessageStore
from ogive.store.queue_rebuild import LevelTables
from ogive.store.tables import read_file, replace_file
from ogive.store.types import APACHE_CONF

_HEAD: Final = """\
# Apache RocketMQ's broker starts on this directory:
#   mqbroker -c apache-broker.conf -n HOST:PORT-OF-A-NAME-SERVER
# after ogive's broker has stopped. Where the directory is a copy, adapt the paths; the sizes must
# stay. Written at each start.
"""


def settings(config: BrokerConfig, store: MessageStore) -> dict[str, object]:
    """Return the settings of Apache's broker for this store, by its names."""
    root = config.data.resolve()
    sizes = store.file_sizes
    return {
        "brokerClusterName": config.cluster,
        "brokerName": config.name,
        "brokerId": config.broker_id,
        "storePathRootDir": root,
        "storePathCommitLog": root / "commitlog",
        "mappedFileSizeCommitLog": sizes.segment,
        "mappedFileSizeConsumeQueue": sizes.queue_file,
        "mapperFileSizeBatchConsumeQueue": sizes.batch_queue_file,
        "maxHashSlotNum": sizes.keys.slots,
        "maxIndexNum": sizes.keys.items,
        "messageDelayLevel": config.delay_levels,
        "flushDiskType": f"{config.flush.upper()}_FLUSH",
        "fileReservedTime": max(1, round(config.retention.keep_s / 3600)),
        "deleteWhen": ";".join(f"{hour:02d}" for hour in config.retention.hours),
        "autoCreateTopicEnable": str(config.auto_create_topics).lower(),
        "autoCreateSubscriptionGroup": str(config.auto_create_groups).lower(),
    }


def write_apache_conf(fs: Fs, config: BrokerConfig, store: MessageStore) -> None:
    """Write the file, unless it has this text already. Raises OSError."""
    path, stats = config.data / APACHE_CONF, store.stats()
    levels = LevelTables.read(fs, config.data).followed_by(
        config.levels, stats.commitlog_start, stats.commitlog_end
    )
    text = (
        _HEAD
        + "".join(f"{name}={value}\n" for name, value in settings(config, store).items())
        + levels.lines()
    ).encode()
    if read_file(fs, path) != text:
        replace_file(fs, path, text)
