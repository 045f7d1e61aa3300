"""Headers: what a declaration makes of a class, and when."""

import copy
import dataclasses
import sys
import threading

import pytest

from ogive.errors import ProtocolError
from ogive.wire.headers.admin import DeleteUserRequest, ListUsersRequest
from ogive.wire.headers.codec import Header, decode_header, encode_header, wire


def declare() -> type[Header]:
    """A class of which no header has been made."""

    class Request(Header):
        """One with names of both kinds, and a default in front."""

        code = 7
        limit: int = 5
        topic_name: str
        broker_name: str | None = wire("bname", default=None)

    return Request


def test_a_class_costs_nothing_until_its_first_header_is_made() -> None:
    request = declare()
    assert not dataclasses.is_dataclass(request)
    assert dataclasses.is_dataclass(request(topic_name="T"))


def test_decoding_may_make_the_first_one() -> None:
    request = declare()
    assert encode_header(decode_header(request, {"topicName": "T", "bname": "b"})) == {
        "limit": "5",
        "topicName": "T",
        "bname": "b",
    }
    with pytest.raises(ProtocolError, match="Request: field topicName is missing"):
        decode_header(declare(), {})


def test_headers_are_frozen_records_that_compare_by_value() -> None:
    header = DeleteUserRequest(username="amy")
    with pytest.raises(dataclasses.FrozenInstanceError):
        header.username = "ben"  # type: ignore[misc]
    assert header == DeleteUserRequest(username="amy") != DeleteUserRequest(username="ben")
    assert hash(header) == hash(DeleteUserRequest(username="amy"))
    assert repr(header) == "DeleteUserRequest(username='amy')"
    assert dataclasses.replace(header, username="ben") == DeleteUserRequest(username="ben")
    assert copy.copy(header) == header


def test_a_wrong_argument_is_refused_by_name_also_the_first_time() -> None:
    request = declare()
    with pytest.raises(TypeError, match="topic_name"):
        request()
    with pytest.raises(TypeError, match="username"):
        ListUsersRequest(username="amy")  # type: ignore[call-arg]


@pytest.mark.parametrize("base_first", [True, False])
def test_a_header_that_derives_from_another_has_its_fields_whichever_is_made_first(
    base_first: bool,
) -> None:
    class First(Header):
        topic: str = wire("t")

    class Second(First):
        code = 8

    if base_first:
        assert encode_header(First(topic="T")) == {"t": "T"}
    second = Second(topic="T")
    assert encode_header(second) == {"t": "T"} == encode_header(decode_header(Second, {"t": "T"}))
    assert second == Second(topic="T") != First(topic="T")


def test_a_header_that_derives_from_another_can_have_no_fields_of_its_own() -> None:
    with pytest.raises(TypeError, match="Second"):

        class Second(DeleteUserRequest):
            topic: str


def test_threads_that_make_the_first_header_at_once_get_the_same_class() -> None:
    made: list[dict[str, str]] = []

    def make(request: type[Header], together: threading.Barrier) -> None:
        together.wait()
        made.append(encode_header(request(topic_name="T", broker_name="b")))

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(10):
            request, together = declare(), threading.Barrier(4)
            threads = [threading.Thread(target=make, args=(request, together)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(usual)
    assert made == [{"limit": "5", "topicName": "T", "bname": "b"}] * 40
