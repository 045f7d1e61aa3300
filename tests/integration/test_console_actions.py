"""Actions of the console on a running broker, each by its page: what it says it will do is what
it does, and the command beside it is one.
"""

import html
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ogive
from ogive.cli.parser import build_parser
from ogive.wire.signing import Credentials
from tests.browser import Answer, Browser, console_of
from tests.integration.test_console import UP, address_of, ended, running
from tests.peers import RunningBroker

pytestmark = pytest.mark.client_suite

WAIT_S = 60.0
USER = Credentials(access_key="ada", secret_key="lovelace-secret")


@pytest.fixture
def browser(broker: RunningBroker) -> Iterator[Browser]:
    with console_of(broker.name_server, actions=True, credentials=USER) as browser:
        yield browser


def preview(browser: Browser, action: str, fields: str) -> Answer:
    page = browser.get(f"/act/{action}?preview=1&{fields}")
    assert page.status == 200, page.words
    (line,) = [html.unescape(text) for text in re.findall("<code>(ogive .*?)</code>", page.text)]
    build_parser().parse_args(shlex.split(line)[1:])
    return page


def done(browser: Browser, page: Answer) -> str:
    answer = browser.confirm(page)
    assert answer.status == 200, answer.words
    return answer.words


def test_a_topic_and_a_group_are_created_and_changed(
    broker: RunningBroker, browser: Browser, topic: str, group: str
) -> None:
    with ogive.Admin(broker.name_server) as admin:
        page = preview(browser, "create-topic", f"topic={topic}&queues=2&message_type=")
        assert f"Create topic {topic} with 2 queues on each of broker-a." in page.words
        with pytest.raises(ogive.errors.NoRoute):
            admin.topic(topic)
        done(browser, page)
        assert admin.topic(topic).brokers[0].write_queues == 2
        fields = f"topic={topic}&read_queues=4&write_queues=4&perm=&message_type="
        page = preview(browser, "update-topic", fields)
        assert "broker-a read queues 2 4" in page.words
        assert "2 settings changed" in done(browser, page)
        assert admin.topic(topic).brokers[0].read_queues == 4
        again = preview(browser, "update-topic", fields)
        assert "is like that already" in again.words
        assert 'method="post"' not in again.text

        done(browser, preview(browser, "create-group", f"group={group}&max_retries=3"))
        assert admin.group(group).max_retries == 3
        fields = f"group={group}&max_retries=5&retry_queues=&enabled=no&broadcast="
        page = preview(browser, "update-group", fields)
        assert "Its members get nothing" in page.words
        assert "broker-a enabled yes no" in page.words
        done(browser, page)
        assert not admin.group(group).enabled


def test_a_group_is_moved_and_its_dead_letters_are_given_again(
    broker: RunningBroker, browser: Browser, topic: str, group: str
) -> None:
    @ogive.listener(topic, group=group, start="earliest")
    def give_up(message: ogive.MessageExt) -> Any:
        return ogive.DEAD_LETTER

    with ogive.Admin(broker.name_server) as admin:
        admin.create_topic(topic, queues=1)
        for body in ("one", "two", "three"):
            fields = f"topic={topic}&body={body}&tag=t&keys=k1+{body}"
            assert f"stored in {topic}/broker-a/0 at" in done(
                browser, preview(browser, "send", fields)
            )
        with ogive.PushConsumer(give_up, name_server=broker.name_server):
            deadline = time.monotonic() + WAIT_S
            while len(admin.dead_letters(group)) < 3 and time.monotonic() < deadline:
                time.sleep(0.05)
        # three calls give up at the same time: their letters lie in any order
        letters = {letter.text: letter for letter in admin.dead_letters(group)}
        assert letters.keys() == {"one", "two", "three"}
        assert letters["one"].keys == ("k1", "one")

        page = preview(browser, "reset-group", f"group={group}&topic={topic}&to=earliest&at=")
        assert f"Deliver 3 messages of {topic} to group {group} again." in page.words
        assert "broker-a 0 3 0 3 again" in page.words
        assert sum(row.lag for row in admin.lag(group, topic)) == 0
        assert "0 messages skipped, 3 delivered again" in done(browser, page)
        assert sum(row.lag for row in admin.lag(group, topic)) == 3

        every = "since=&until=&tag=t&where=&limit=10"
        page = preview(browser, "redrive", f"group={group}&ids={letters['two'].id}&{every}")
        assert "Give 1 dead letter to" in page.words
        assert f"1 dead letter given to {group} again" in done(browser, page)
        page = preview(browser, "redrive", f"group={group}&ids=&{every}")
        assert "Give 2 dead letters to" in page.words
        assert "1 left out: sent before." in page.words
        assert f"2 dead letters given to {group} again" in done(browser, page)
        page = preview(browser, "redrive", f"group={group}&ids=&{every}")
        assert "has no such dead letters" in page.words


def test_with_access_control_the_broker_decides_by_who_signs_in(tmp_path: Path) -> None:
    """The console reads as a super user; ann, who signs in, may send to one topic only."""
    files = {"root": "much-secret", "ann": "little-secret"}
    for name, secret in files.items():
        file = tmp_path / f"{name}.yml"
        file.write_text(f"accessKey: {name}\nsecretKey: {secret}\n")
        file.chmod(0o600)
    with running(
        *(*UP, "--data", str(tmp_path / "data"), "--acl"),
        *("--credentials", str(tmp_path / "root.yml")),
        *("--console-credentials", str(tmp_path / "ann.yml"), "--console-actions"),
    ) as process:
        assert process.stdout is not None
        name_server = re.findall(r"name-server=(\S+)", process.stdout.readline())[0]
        browser = Browser(
            address_of(process), Credentials(access_key="ann", secret_key="little-secret")
        )
        config = ogive.ClientConfig(
            name_server=name_server,
            credentials=Credentials(access_key="root", secret_key="much-secret"),
        )
        send = "/act/send?preview=1&topic=Orders&body=x&tag=&keys="
        with ogive.Admin(client=config) as admin:
            admin.create_topic("Orders", queues=1)
            # nobody is called ann yet
            assert browser.get(send).status == 403
            admin.create_user("ann", "little-secret")
            admin.allow("ann", "Topic:Orders", ["Get", "Pub"])
            page = browser.get(send)
            assert page.status == 200, page.words
            assert browser.confirm(page).status == 200
            assert sum(row.max_offset for row in admin.offsets("Orders")) == 1
            update = "update-topic?preview=1&topic=Orders&perm=r&message_type="
            page = browser.get(f"/act/{update}&read_queues=&write_queues=")
            answer = browser.confirm(page)
            assert answer.status == 403, answer.words
            assert admin.topic("Orders").brokers[0].perm == "rw"
            page = browser.get(send)
            admin.forget_rules("ann")
            assert browser.confirm(page).status != 200
            assert sum(row.max_offset for row in admin.offsets("Orders")) == 1
        code, errors = ended(process)
    assert code == 0
    assert "INFO ogive.console.audit: user ann from 127.0.0.1:" in errors
    assert "at the console: send a message, topic Orders: stored in Orders/broker-a/0" in errors
    assert "WARNING ogive.console.audit: user ann from" in errors
    assert not any(secret in errors for secret in files.values())
