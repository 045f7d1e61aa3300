"""A broker and a name server in a process that notes which files it opens, makes and removes, where
it connects and what it starts.

``python -m tests.rel.watched DIRECTORY NOTES`` prints both addresses and serves until SIGTERM. Each
line of the file NOTES is a JSON list: an event of Python's auditing, what it is about, and for
``open`` whether only to read. What is noted once is not noted again.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from ogive.broker import Broker, BrokerConfig
from ogive.namesrv.config import NameServerConfig
from ogive.namesrv.server import NameServer

STARTS: Final = (
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "pty.spawn",
    "subprocess.Popen",
)
CHANGES: Final = (
    "os.chmod",
    "os.chown",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
    "os.utime",
    "shutil.copyfile",
    "shutil.move",
    "shutil.rmtree",
)
OTHERS: Final = ("open", "ctypes.dlopen", "socket.connect")
READS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_NONBLOCK


class Notes:
    def __init__(self, file: Path) -> None:
        self._out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._seen: set[bytes] = set()

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """The hook: for every event of the process, in every thread."""
        if event in STARTS:
            line = [event, repr(arguments)[:300]]
        elif event in CHANGES:
            line = [
                event,
                *(
                    os.fsdecode(part)
                    for part in arguments
                    if isinstance(part, str | bytes | os.PathLike)
                ),
            ]
        elif event == "open":
            path, _, flags = arguments
            # what is open already
            if isinstance(path, int):
                return
            line = [event, os.fsdecode(path), flags & ~READS == 0]
        elif event in OTHERS:
            line = [event, repr(arguments[-1])]
        else:
            return
        text = json.dumps(line).encode() + b"\n"
        if text not in self._seen:
            self._seen.add(text)
            os.write(self._out, text)


async def serve(folder: Path, notes: Notes) -> None:
    sys.addaudithook(notes.note)
    name_server = NameServer(NameServerConfig(port=0, kv_path=folder / "kv.json"))
    await name_server.start()
    broker = Broker(
        BrokerConfig(
            data=folder,
            port=0,
            segment_bytes=1024 * 1024,
            name_servers=(name_server.address,),
            register_period_s=1.0,
        )
    )
    await broker.start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    print(broker.address, name_server.address, flush=True)
    await ended.wait()
    await broker.stop()
    await name_server.stop()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Notes(Path(sys.argv[2]))))
