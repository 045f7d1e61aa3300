"""Server reflection for tools such as grpcurl: grpc.reflection.v1 and v1alpha.

The service is described under its public name, ``apache.rocketmq.v2``; the generated classes have a
package of their own, so that they can be in one process with those of an SDK.

Source: reflection.proto of gRPC.
"""

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, duration_pb2, message_factory, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool

from ogive.proxy import rocketmq_pb2 as pb
from ogive.proxy.calls import CallContext, CallKind, GrpcStatus, Method, WireMessage

PACKAGE: Final = "apache.rocketmq.v2"
SERVICE: Final = f"{PACKAGE}.MessagingService"
PATHS: Final = tuple(
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    for version in ("v1", "v1alpha")
)
_FIELD: Final = descriptor_pb2.FieldDescriptorProto
# fields by message: number, name, and the type, which is a message unless it is one of protobuf's
_MESSAGES: Final[dict[str, tuple[tuple[int, str, Any, bool], ...]]] = {
    "Request": (
        (1, "host", _FIELD.TYPE_STRING, False),
        (3, "file_by_filename", _FIELD.TYPE_STRING, False),
        (4, "file_containing_symbol", _FIELD.TYPE_STRING, False),
        (7, "list_services", _FIELD.TYPE_STRING, False),
    ),
    "Files": ((1, "file_descriptor_proto", _FIELD.TYPE_BYTES, True),),
    "Service": ((1, "name", _FIELD.TYPE_STRING, False),),
    "Services": ((1, "service", "Service", True),),
    "Error": (
        (1, "error_code", _FIELD.TYPE_INT32, False),
        (2, "error_message", _FIELD.TYPE_STRING, False),
    ),
    "Response": (
        (1, "valid_host", _FIELD.TYPE_STRING, False),
        (2, "original_request", "Request", False),
        (4, "file_descriptor_response", "Files", False),
        (6, "list_services_response", "Services", False),
        (7, "error_response", "Error", False),
    ),
}


def reflection(methods: Mapping[str, Method]) -> dict[str, Method]:
    """Return the methods that describe *methods*, by path."""
    found = _Reflection(methods.values())
    method = Method("ServerReflectionInfo", CallKind.BOTH_STREAMS, found.request, found.answer)
    return dict.fromkeys(PATHS, method)


class _Reflection:
    """The description of the service, and the answers of which it is part."""

    def __init__(self, methods: Iterable[Method]) -> None:
        described = (describe(methods), duration_pb2.DESCRIPTOR, timestamp_pb2.DESCRIPTOR)
        self._names = {file.name for file in described}
        self._files = [
            file.SerializeToString()
            if isinstance(file, descriptor_pb2.FileDescriptorProto)
            else file.serialized_pb
            for file in described
        ]
        made = descriptor_pb2.FileDescriptorProto(name="reflection", package="r", syntax="proto3")
        for name, fields in _MESSAGES.items():
            message = made.message_type.add(name=name)
            for number, field, kind, repeated in fields:
                label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
                typed = {"type_name": f".r.{kind}"} if isinstance(kind, str) else {"type": kind}
                message.field.add(number=number, name=field, label=label, **typed)
        pool = DescriptorPool()
        pool.Add(made)
        self.request: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("r.Request"))
        self._response: Any = message_factory.GetMessageClass(
            pool.FindMessageTypeByName("r.Response")
        )

    async def answer(
        self, requests: AsyncIterator[Any], call: CallContext
    ) -> AsyncIterator[WireMessage]:
        async for request in requests:
            # not kept while the client does not read
            yield self._describe(request)

    def _describe(self, request: Any) -> Any:
        response = self._response(valid_host=request.host, original_request=request)
        symbol = request.file_containing_symbol
        if request.list_services:
            response.list_services_response.service.add(name=SERVICE)
        elif request.file_by_filename in self._names or symbol.startswith(f"{PACKAGE}."):
            response.file_descriptor_response.file_descriptor_proto.extend(self._files)
        else:
            response.error_response.error_code = GrpcStatus.NOT_FOUND
            response.error_response.error_message = "only the service is described"
        return response


def describe(methods: Iterable[Method]) -> descriptor_pb2.FileDescriptorProto:
    """Return the description of the service with *methods*, under its public name."""
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    own = f".{file.package}."
    file.name, file.package = "apache/rocketmq/v2/service.proto", PACKAGE
    messages = list(file.message_type)
    for message in messages:
        messages.extend(message.nested_type)
        for field in message.field:
            # as protoc does for other languages
            field.json_name = re.sub("_(.)", lambda found: found[1].upper(), field.name)
            if field.type_name.startswith(own):
                field.type_name = f".{PACKAGE}.{field.type_name.removeprefix(own)}"
    service = file.service.add(name="MessagingService")
    for method in methods:
        request = method.request.__name__
        service.method.add(
            name=method.name,
            input_type=f".{PACKAGE}.{request}",
            output_type=f".{PACKAGE}.{request.replace('Request', 'Response')}",
            client_streaming=method.kind is CallKind.BOTH_STREAMS,
            server_streaming=method.kind is not CallKind.UNARY,
        )
    return file
