"""One of our members of a group, in a process that may be killed: python member.py NAME_SERVER
TOPIC GROUP concurrent|orderly.

Prints a JSON line for each delivery, when it begins: queueId, queueOffset, body, at (ms).
"""

import json
import sys
import time

import ogive


def main(name_server: str, topic: str, group: str, mode: str) -> None:
    @ogive.listener(topic, group=group, start="earliest", orderly=mode == "orderly")
    def note(message: ogive.MessageExt) -> None:
        at = time.time_ns() // 1_000_000
        place = {
            "queueId": message.queue.queue_id,
            "queueOffset": message.queue_offset,
            "body": message.text,
            "at": at,
        }
        sys.stdout.write(json.dumps(place) + "\n")
        sys.stdout.flush()

    ogive.run(note, name_server=name_server)


if __name__ == "__main__":
    main(*sys.argv[1:])
