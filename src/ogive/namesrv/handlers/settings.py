"""KV settings and the name server's own configuration: 100, 101, 102, 219, 318, 319.

Behaviour
- A KV change is on stable storage before it is answered, where the name server has a file for it.
- 319 shows the settings under their names in Apache's namesrv.conf.

Differs from Java
- 318 changes orderMessageEnable until the name server stops, and refuses every other setting by
  name (Java's list of refused ones had holes through which strangers wrote files, CVE-2023-37582).
- KV settings are bounded in number and size, and changing them tells no broker; brokers learn
  ORDER_TOPIC_CONFIG as they register.
"""

from dataclasses import replace

from ogive.errors import InvalidOption, Refused
from ogive.namesrv.context import Call, Context, success
from ogive.wire.bodies import kv_table_dumps
from ogive.wire.codes import ResponseCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import (
    DeleteKvConfigRequest,
    GetKvConfigRequest,
    GetKvListRequest,
    GetNameServerConfigRequest,
    KvConfigResponse,
    PutKvConfigRequest,
    UpdateNameServerConfigRequest,
)
from ogive.wire.java_properties import parse_properties


async def put(ctx: Context, call: Call, header: PutKvConfigRequest) -> RemotingCommand:
    try:
        await ctx.kv.put(header.namespace, header.key, header.value)
    except InvalidOption as exc:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(exc)) from None
    return success()


async def delete(ctx: Context, call: Call, header: DeleteKvConfigRequest) -> RemotingCommand:
    await ctx.kv.delete(header.namespace, header.key)
    return success()


def get(ctx: Context, call: Call, header: GetKvConfigRequest) -> RemotingCommand:
    value = ctx.kv.get(header.namespace, header.key)
    if value is None:
        raise Refused(
            ResponseCode.QUERY_NOT_FOUND,
            f"No config item, Namespace: {header.namespace[:256]} Key: {header.key[:256]}",
        )
    return success(KvConfigResponse(value=value))


def get_namespace(ctx: Context, call: Call, header: GetKvListRequest) -> RemotingCommand:
    entries = ctx.kv.namespace(header.namespace)
    if not entries:
        raise Refused(
            ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace[:256]}"
        )
    return success(body=kv_table_dumps(entries))


def update_config(
    ctx: Context, call: Call, header: UpdateNameServerConfigRequest
) -> RemotingCommand:
    try:
        asked = {name: value.strip().lower() for name, value in parse_properties(call.body).items()}
    except InvalidOption as exc:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(exc)) from None
    for name, value in asked.items():
        if name != "orderMessageEnable":
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"{name[:80]} cannot be changed over the network; orderMessageEnable can",
            )
        if value not in ("true", "false"):
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"orderMessageEnable={value[:80]}: true or false is needed",
            )
    if not asked:
        raise Refused(ResponseCode.INVALID_PARAMETER, "no line of the form name=value")
    ctx.config = replace(ctx.config, order_messages=asked["orderMessageEnable"] == "true")
    return success()


def get_config(ctx: Context, call: Call, header: GetNameServerConfigRequest) -> RemotingCommand:
    config = ctx.config
    settings: dict[str, object] = {
        "bindAddress": config.host,
        "kvConfigPath": config.kv_path.absolute() if config.kv_path else "",
        "listenPort": config.port,
        "orderMessageEnable": str(config.order_messages).lower(),
        "scanNotActiveBrokerInterval": round(config.scan_s * 1000),
    }
    return success(body="".join(f"{name}={value}\n" for name, value in settings.items()).encode())
