"""Server reflection: what tools are told about the service."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool

from ogive.proxy.calls import CallKind, GrpcStatus, Method
from ogive.proxy.reflection import PATHS, SERVICE, reflection
from tests.unit.proxy.sdk import Sdk


async def ask(methods: Mapping[str, Method], path: str, **question: str) -> Any:
    method = reflection(methods)[path]
    handler: Any = method.handler
    request: Any = method.request

    async def requests() -> AsyncIterator[Any]:
        yield request(**question)

    [answer] = [one async for one in handler(requests(), Sdk(methods).context())]
    return answer


@pytest.mark.parametrize("path", PATHS)
async def test_the_service_is_listed_and_described(
    methods: Mapping[str, Method], path: str
) -> None:
    answer = await ask(methods, path, list_services="*")
    assert [one.name for one in answer.list_services_response.service] == [SERVICE]
    answer = await ask(methods, path, file_containing_symbol=SERVICE)
    pool = DescriptorPool()
    for file in reversed(answer.file_descriptor_response.file_descriptor_proto):
        pool.Add(descriptor_pb2.FileDescriptorProto.FromString(file))
    service = pool.FindServiceByName(SERVICE)
    assert {method.name for method in service.methods} == {
        method.name for method in methods.values()
    }
    for method in methods.values():
        described = service.methods_by_name[method.name]
        assert described.input_type.full_name == f"apache.rocketmq.v2.{method.request.__name__}"
        assert described.server_streaming == (method.kind is not CallKind.UNARY)
        assert described.client_streaming == (method.kind is CallKind.BOTH_STREAMS)
    properties = pool.FindMessageTypeByName("apache.rocketmq.v2.SystemProperties")
    assert properties.fields_by_name["born_timestamp"].number == 7
    assert properties.fields_by_name["born_timestamp"].json_name == "bornTimestamp"


async def test_files_are_found_by_name_and_other_things_are_not(
    methods: Mapping[str, Method],
) -> None:
    answer = await ask(methods, PATHS[0], file_by_filename="google/protobuf/duration.proto")
    assert len(answer.file_descriptor_response.file_descriptor_proto) == 3
    for question in ({"file_by_filename": "x.proto"}, {"file_containing_symbol": "x.Y"}, {}):
        answer = await ask(methods, PATHS[0], **question)
        assert answer.error_response.error_code == GrpcStatus.NOT_FOUND
