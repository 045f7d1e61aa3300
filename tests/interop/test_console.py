"""The console in front of Apache's name server and broker, with Apache's tools as the judge of what
it shows.
"""

import re

import ogive
from tests.browser import console_of
from tests.interop import apache


def test_pages_show_apaches_broker_as_its_own_tools_do(
    apache_broker: apache.Apache, topic: str, group: str
) -> None:
    name_server = apache_broker.name_server
    with ogive.Admin(name_server) as admin, ogive.Producer(name_server) as producer:
        admin.create_topic(topic, queues=3, message_type="NORMAL")
        admin.create_group(group, max_retries=5)
        sent = [
            producer.send(topic, b"espresso", tag="paid", keys=f"k{number}") for number in range(9)
        ]
    with ogive.PullConsumer(
        topic, group=group, name_server=name_server, start="earliest"
    ) as consumer:
        taken = 0
        while taken < 9:
            taken += len(consumer.poll(timeout_s=60))
        consumer.commit()
    with ogive.Producer(name_server) as producer:
        producer.send(topic, b"late", queue=sent[0].queue)
    progress, status = apache_broker.admin(
        f"consumerProgress -g {group}", f"topicStatus -t {topic}"
    )
    (total,) = re.findall(r"Consume Diff Total: (\d+)", progress)
    ends = sorted(int(line.split()[3]) for line in status.splitlines() if line.startswith("broker"))
    with console_of(name_server) as browser:
        overview = browser.get("/").words
        assert re.search(rf"broker-a master up {apache_broker.address} {apache.VERSION} ", overview)
        assert re.search(rf"{group} {total} ", overview)
        assert re.search(rf"{topic} 3 {sum(ends)} ", browser.get(f"/topics?q={topic}").words)
        shown = browser.get(f"/topics/{topic}").words
        assert "Message type NORMAL" in shown
        assert f"Groups that read it {group}" in shown
        assert sorted(int(end) for end in re.findall(r"broker-a \d 0 (\d+) \d+ 20", shown)) == ends
        shown = browser.get(f"/groups/{group}").words
        assert f"{total} behind" in shown
        assert "5 retries" in shown
        for path in (f"/message?id={sent[4].id}", f"/message?id={sent[4].offset_id}"):
            shown = browser.get(path).words
            assert sent[4].offset_id in shown
            assert "Body 8 B · text" in shown
            assert f"{group} passed" in shown
        assert "1 messages" in browser.get(f"/messages?topic={topic}&key=k4").words
        assert (
            browser.get("/topics?system=1").status == browser.get("/groups?system=1").status == 200
        )
        assert "None." in browser.get(f"/dead-letters/{group}").words
