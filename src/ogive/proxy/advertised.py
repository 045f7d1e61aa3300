"""One address in all routes, for endpoints that clients do not reach by the one they were given."""

import ipaddress
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from ogive.proxy import rocketmq_pb2 as pb
from ogive.proxy.calls import CallContext, Method, Unary, WireMessage


def advertise(methods: Mapping[str, Method], host: str, port: int) -> dict[str, Method]:
    """Return *methods* that answer as if every client had asked with this address.

    The service names in routes the endpoints of the request.
    """
    scheme = pb.AddressScheme.DOMAIN_NAME
    try:
        v6 = ipaddress.ip_address(host).version == 6
        scheme = pb.AddressScheme.IPv6 if v6 else pb.AddressScheme.IPv4
    except ValueError:
        # it is a name
        pass
    endpoints = pb.Endpoints(scheme=scheme, addresses=[pb.Address(host=host, port=port)])

    def advertised(method: Method) -> Method:
        handler = cast(Unary, method.handler)

        async def handle(request: Any, context: CallContext) -> WireMessage:
            request.endpoints.CopyFrom(endpoints)
            return await handler(request, context)

        return replace(method, handler=handle)

    naming = (pb.QueryRouteRequest, pb.QueryAssignmentRequest)
    return {
        path: advertised(method) if method.request in naming else method
        for path, method in methods.items()
    }
