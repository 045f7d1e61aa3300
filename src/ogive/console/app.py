"""Pages of the console: for each address, the queries to the cluster and the template."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ogive import __version__
from ogive.client.admin import BrokerStatus
from ogive.client.admin.records import behind_s
from ogive.client.config import DEFAULT_NAME_SERVER, ClientConfig
from ogive.console import format
from ogive.console.action_pages import ACTION_S, ActionPages
from ogive.console.browse import BrowseQueries
from ogive.console.charts import MAX_SERIES, Samples
from ogive.console.cluster_pages import ClusterQueries
from ogive.console.config import ConsoleConfig
from ogive.console.failures import status_of
from ogive.console.forms import QUEUE_ROWS, page_of, places_in, whole_number
from ogive.console.group_pages import GroupQueries, GroupRow
from ogive.console.guard import RequestGuard
from ogive.console.message_pages import MessageQueries, body_of
from ogive.console.queries import Queries, reason
from ogive.console.search_pages import SearchPages
from ogive.console.topic_pages import TopicQueries, TopicRow
from ogive.errors import (
    InvalidOption,
    NoRoute,
    OgiveError,
)
from ogive.model import MessageExt, MessageQueue, PropertyName, dlq_topic
from ogive.text import escape_lines
from ogive.wire.signing import Credentials

log = logging.getLogger(__name__)

# time limit for all queries of a page
PAGE_S: Final = 10.0
# time between two samples that are taken without a reader, and the topics and groups of each
SAMPLE_S: Final = 60.0
MAX_SAMPLED: Final = 100
# characters of a field of a form
MAX_QUERY: Final = 1024
# topics on a page of a group, each with its queues
TOPICS: Final = 20
# messages on a topic's page
RECENT: Final = 20
# pages that do not show new figures by themselves
_STILL: Final = ("message", "messages", "action", "done")
_STATIC: Final = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
View = Callable[[Request], Awaitable[dict[str, Any] | Response]]


def console_app(*configs: ConsoleConfig) -> ASGIApp:
    """Return the console as an ASGI application with a lifespan.

    Several clusters are below ``/clusters/CONTEXT``, each with pages, samples, actions and a log-in
    of its own; a single one is at the root.
    """
    first, *others = configs
    if not others:
        return _guarded(first, _Pages(first).app(), credentials=first.credentials)
    contexts = tuple(config.context for config in configs)
    pages = [_Pages(config, contexts) for config in configs]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as running:
            for one in pages:
                await running.enter_async_context(one.lifespan(app))
            yield

    async def to_first(request: Request) -> Response:
        return RedirectResponse(pages[0].path())

    apps = {
        config.context: _guarded(config, one.app(), credentials=config.credentials)
        for config, one in zip(configs, pages, strict=True)
    }

    async def to_cluster(scope: Scope, receive: Receive, send: Send) -> None:
        app = apps.get(scope["path_params"]["context"], no_cluster)
        await app(scope, receive, send)

    no_cluster = PlainTextResponse("The console has no such page.\n", 404)
    app = Starlette(
        routes=[Route("/", to_first), Mount("/clusters/{context}", to_cluster)], lifespan=lifespan
    )
    # each cluster asks for its own credentials
    return _guarded(first, app, credentials=None)


def _guarded(config: ConsoleConfig, app: ASGIApp, *, credentials: Credentials | None) -> ASGIApp:
    return RequestGuard(
        app,
        name=config.name,
        context=config.context,
        credentials=credentials,
        accepts_posts=config.actions,
        https=config.tls is not None,
    )


class _Pages:
    """Views: coroutines that gather the values for a template.

    The values include the status of the answer, if it is not 200.
    """

    def __init__(self, config: ConsoleConfig, contexts: Sequence[str] = ()) -> None:
        """*contexts*: the names of all clusters of the console, if it has several."""
        self.path = partial(format.path_below, _root(config.context) if contexts else "")
        self._queries = Queries(config.client)
        self._cluster = ClusterQueries(self._queries)
        self._topics = TopicQueries(self._cluster)
        self._groups = GroupQueries(self._cluster, self._topics)
        self._messages = MessageQueries(self._cluster, self._topics)
        self._search = SearchPages(
            self._messages, BrowseQueries(self._cluster, self._topics), self._command, self.path
        )
        self._actions = (
            ActionPages(config.client, self._queries.forget, self.path) if config.actions else None
        )
        self._samples = Samples(limit=MAX_SERIES // max(1, len(contexts)))
        # the topics and groups that are next
        self._turns = {"topics": 0, "groups": 0}
        self._name_server = config.client.name_server
        self._static = {
            name: (files("ogive.console") / "static" / name).read_bytes() for name in _STATIC
        }
        self._templates = Environment(
            loader=PackageLoader("ogive.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= format.FILTERS | {"visible": escape_lines}
        self._templates.globals |= {
            "path": self.path,
            "context": config.context if contexts else "",
            "contexts": [(name, partial(format.path_below, _root(name))) for name in contexts],
            "command": self._command,
            "access_options": _access_options(config.client),
            "actions_on": config.actions,
            "version": __version__,
            "static": {
                name: f"{self.path('static', name)}?{hashlib.sha256(text).hexdigest()[:12]}"
                for name, text in self._static.items()
            },
        }

    def app(self) -> Starlette:
        views: dict[str, tuple[str, View]] = {
            "/": ("overview", self._overview),
            "/brokers/{name:path}": ("broker", self._broker),
            "/topics": ("topics", self._topic_list),
            "/topics/{name:path}": ("topic", self._topic),
            "/groups": ("groups", self._group_list),
            "/groups/{name:path}": ("group", self._group),
            "/dead-letters/{name:path}": ("dead-letters", self._dead_letters),
            "/messages": ("messages", self._search.page),
            "/message": ("message", self._message),
        }
        routes = [
            Route(path, self._shown(template, view)) for path, (template, view) in views.items()
        ]
        routes.append(Route("/messages.jsonl", self._shown("messages", self._search.download)))
        if self._actions is not None:
            routes += [
                Route("/act/{name}", self._shown("action", self._actions.form)),
                Route(
                    "/act/{name}",
                    self._shown("done", self._actions.confirm, limit_s=2 * ACTION_S),
                    methods=["POST"],
                ),
            ]
        return Starlette(
            routes=[*routes, Route("/static/{name}", self._file)],
            lifespan=self.lifespan,
            exception_handlers={HTTPException: self._no_page},
        )

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        await self._queries.start()
        sampling = asyncio.create_task(self._sample())
        try:
            yield
        finally:
            sampling.cancel()
            await asyncio.wait([sampling])
            await self._queries.close()

    def _shown(
        self, template: str, view: View, *, limit_s: float = PAGE_S
    ) -> Callable[[Request], Awaitable[Response]]:
        # what a POST was answered with must not be replaced by the page of a GET
        error = partial(self._error, live=template != "done")

        async def endpoint(request: Request) -> Response:
            try:
                if any(len(value) > MAX_QUERY for _, value in request.query_params.multi_items()):
                    raise InvalidOption(f"a field holds more than {MAX_QUERY:,} characters")
                async with asyncio.timeout(limit_s):
                    values = await view(request)
                if isinstance(values, Response):
                    return values
                status = values.pop("status", 200)
                return self._page(template, values, status)
            except OgiveError as exc:
                status, title = status_of(exc)
                return error(title, reason(exc), status)
            except TimeoutError:
                return error(
                    "The cluster does not answer",
                    f"not everything came within {limit_s:.0f} s",
                    504,
                )
            except HTTPException:
                raise
            except Exception as exc:
                # an error in one page must not affect the others
                log.exception("the page %s failed", request.url.path)
                return error(
                    "The console has a fault", f"{type(exc).__name__}; its log says more", 500
                )

        return endpoint

    def _page(self, template: str, values: dict[str, Any], status: int = 200) -> Response:
        text = self._templates.get_template(f"{template}.html").render(
            {"live": template not in _STILL, **values}, page=template, now=datetime.now(UTC)
        )
        # without a referrer browsers hide the origin of a form, which the guard needs
        headers = {"Referrer-Policy": "same-origin"} if template == "action" else None
        return Response(text.encode("utf-8", "replace"), status, headers, media_type="text/html")

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            raise HTTPException(404)
        return Response(
            self._static[name], media_type=_STATIC[name], headers={"Cache-Control": "max-age=86400"}
        )

    def _command(self, *words: object) -> str:
        """Return a command line, with the address of the cluster unless commands use that address
        anyway.
        """
        there = () if self._name_server == DEFAULT_NAME_SERVER else ("-n", self._name_server)
        return format.command(*words, *there)

    # --- what went wrong --------------------------------------------------------------------------

    def _error(self, title: str, text: str, status: int, *, live: bool = True) -> Response:
        return self._page("error", {"title": title, "text": text, "live": live}, status)

    async def _no_page(self, request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 405:
            return self._error("Not possible", "this page takes no such request", 405)
        return self._error("Not found", "the console has no such page", 404)

    # --- samples ----------------------------------------------------------------------------------

    async def _sample(self) -> None:
        """Take samples for the plots, so that they are there when somebody looks."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            for take in (self._sample_brokers, self._sample_groups, self._sample_topics):
                try:
                    async with asyncio.timeout(PAGE_S):
                        await take()
                except (OgiveError, TimeoutError) as exc:
                    log.debug("no samples: %s", exc)
                except Exception:
                    # an error in one plot must not affect the others
                    log.exception("taking samples for plots failed")

    async def _sample_brokers(self) -> None:
        self._add_rates(await self._cluster.brokers())

    async def _sample_groups(self) -> None:
        names = self._next("groups", (await self._cluster.groups()).names)
        for row in await self._groups.rows(names):
            self._add_group(row, evict=False)

    async def _sample_topics(self) -> None:
        kinds = await self._cluster.topics()
        names = self._next("topics", [n for n, kind in kinds.items() if kind == "application"])
        for row in await self._topics.rows(names):
            self._add_topic(row, evict=False)

    def _next(self, kind: str, names: Sequence[str]) -> Sequence[str]:
        """Return the next MAX_SAMPLED names in turn."""
        start = self._turns[kind] if self._turns[kind] < len(names) else 0
        self._turns[kind] = start + MAX_SAMPLED
        return names[start : start + MAX_SAMPLED]

    def _add_rates(self, brokers: Sequence[BrokerStatus]) -> tuple[float, float]:
        rate_in = float(sum(row.puts_per_s or 0.0 for row in brokers))
        rate_out = float(sum(row.gets_per_s or 0.0 for row in brokers))
        self._samples.add(("in",), rate_in)
        self._samples.add(("out",), rate_out)
        return rate_in, rate_out

    def _add_group(self, row: GroupRow, *, evict: bool = True) -> None:
        # without the answers of all brokers the sums are too small
        if row.lag is not None and row.trouble is None:
            self._samples.add(("lag", row.name), row.lag, evict=evict)
            self._samples.add(("consumed", row.name), row.consumed, evict=evict)

    def _add_topic(self, row: TopicRow, *, evict: bool = True) -> None:
        if row.trouble is None:
            self._samples.add(("stored", row.name), row.stored, evict=evict)

    # --- views ------------------------------------------------------------------------------------

    async def _overview(self, request: Request) -> dict[str, Any]:
        name_servers, brokers, topics, groups = await asyncio.gather(
            self._cluster.name_servers(),
            self._cluster.brokers(),
            self._cluster.topics(),
            self._cluster.groups(),
        )
        worst, known, trouble = await self._groups.worst()
        rate_in, rate_out = self._add_rates(brokers)
        day = _is_day(request)
        curves = [
            ("messages in per second", self._samples.curves(("in",), day=day)),
            ("out", self._samples.curves(("out",), day=day)),
        ]
        return {
            "name_servers": name_servers,
            "brokers": brokers,
            "broker_pages": page_of(request, len(brokers), "brokers"),
            "rate_in": rate_in,
            "rate_out": rate_out,
            "clusters": sorted({row.cluster for row in brokers}),
            "topic_count": sum(kind == "application" for kind in topics.values()),
            "groups": groups,
            "worst": worst,
            "known": known,
            "trouble": trouble,
            "day": day,
            "plot": format.plot("Messages in and out per second, all brokers", curves),
            "uptime": _uptime,
        }

    async def _broker(self, request: Request) -> dict[str, Any]:
        name = request.path_params["name"]
        rows = [row for row in await self._cluster.brokers() if row.name == name]
        if not rows:
            raise NoRoute(f'no name server knows a broker "{name}"')
        return {"name": name, "rows": rows, "uptime": _uptime}

    async def _topic_list(self, request: Request) -> dict[str, Any]:
        wanted = request.query_params.get("q", "").strip()
        system = bool(request.query_params.get("system"))
        kinds = await self._cluster.topics()
        names = [
            name
            for name, kind in kinds.items()
            if (system or kind == "application") and wanted.lower() in name.lower()
        ]
        pages = page_of(request, len(names))
        return {
            "rows": await self._topics.rows(names[pages.start : pages.end]),
            "count": len(names),
            "pages": pages,
            "q": wanted,
            "system": system,
        }

    async def _topic(self, request: Request) -> dict[str, Any]:
        name = request.path_params["name"]
        topic = await self._topics.page(name)
        self._add_topic(topic.row)
        day = _is_day(request)
        curves = [("messages stored per second", self._samples.rates(("stored", name), day=day))]
        newest = await self._messages.newest(name, RECENT)
        return {
            "topic": topic,
            "pages": page_of(request, len(topic.queues), rows=QUEUE_ROWS),
            "group_pages": page_of(request, len(topic.groups), "groups"),
            "route_pages": page_of(request, len(topic.brokers), "routes"),
            "newest": newest,
            "day": day,
            "plot": format.plot(f"Messages stored per second in {name}", curves),
        }

    async def _group_list(self, request: Request) -> dict[str, Any]:
        wanted = request.query_params.get("q", "").strip()
        system = bool(request.query_params.get("system"))
        groups = await self._cluster.groups()
        listed = sorted((*groups.names, *groups.system)) if system else groups.names
        names = [name for name in listed if wanted.lower() in name.lower()]
        pages = page_of(request, len(names))
        rows = await self._groups.rows(names[pages.start : pages.end])
        return {
            "rows": rows,
            "count": len(names),
            "pages": pages,
            "q": wanted,
            "system": system,
            "troubles": groups.troubles,
        }

    async def _group(self, request: Request) -> dict[str, Any]:
        name = request.path_params["name"]
        group = await self._groups.page(name, lambda count: page_of(request, count, "members"))
        topic_pages = page_of(request, len(group.topics), "topics", rows=TOPICS)
        topics = group.topics[topic_pages.start : topic_pages.end]
        lag, consumed = ("lag", name), ("consumed", name)
        self._add_group(group.row)
        day = _is_day(request)
        rates = self._samples.rates(consumed, day=day)
        return {
            "group": group,
            "topics": topics,
            "topic_pages": topic_pages,
            "retry_pages": page_of(request, len(group.retries), "retries"),
            "day": day,
            "behind_s": behind_s,
            "pages": page_of(
                request,
                max((len(topic.queues) for topic in topics), default=0),
                rows=QUEUE_ROWS,
            ),
            "moving": not group.members and any(value > 0 for piece in rates for _, value in piece),
            "lag_plot": format.plot(
                f"Lag of {name}", [("messages behind", self._samples.curves(lag, day=day))]
            ),
            "rate_plot": format.plot(
                f"Messages consumed per second by {name}", [("messages consumed per second", rates)]
            ),
        }

    async def _dead_letters(self, request: Request) -> dict[str, Any]:
        name = request.path_params["name"]
        await self._cluster.group(name)
        found = await self._messages.dead_letters(name, places_in(request, dlq_topic(name)))
        failures, trouble = await self._messages.failures(name, [row.id for row in found.rows])
        return {"group": name, "found": found, "failures": failures, "trouble": trouble}

    async def _message(self, request: Request) -> dict[str, Any]:
        message = await self._wanted(request)
        queue = message.queue
        groups, silent = await self._messages.groups(queue)
        group_pages = page_of(request, len(groups), "groups")
        readers, troubles = await self._messages.readers(
            queue, message.queue_offset, groups[group_pages.start : group_pages.end]
        )
        trace, more_troubles = await self._messages.trace(message.id)
        step_pages = page_of(request, len(trace), "steps")
        body = body_of(message.body, request.query_params.get("as", ""))
        place = {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": f"{queue.queue_id}",
            "offset": f"{message.queue_offset}",
        }
        return {
            "message": message,
            "body": body,
            "forms": [(form, self.path("message", **place, **{"as": form})) for form in body.forms],
            "readers": readers,
            "group_pages": group_pages,
            "trace": trace[step_pages.start : step_pages.end],
            "step_pages": step_pages,
            "troubles": silent + troubles + more_troubles,
            "origin": message.properties.get(PropertyName.ORIGIN_MESSAGE_ID),
            "removed": message.properties.get(PropertyName.REMOVED_PROPERTIES),
        }

    async def _wanted(self, request: Request) -> MessageExt:
        query = request.query_params
        if query.get("id"):
            return await self._messages.by_id(query["id"].strip(), query.get("topic") or None)
        try:
            queue = MessageQueue(
                query["topic"], query["broker"], whole_number("queue", query["queue"])
            )
            offset = whole_number("offset", query["offset"])
        except KeyError:
            raise InvalidOption(
                "a message is named by its id, or by topic, broker, queue and offset"
            ) from None
        return await self._messages.at(queue, offset)


def _root(context: str) -> str:
    return format.path_below("", "clusters", context)


def _uptime(figures: dict[str, str], now: datetime) -> float | None:
    """Return the seconds since the broker's start, by its own report."""
    boot = figures.get("bootTimestamp", "")
    return (
        max(0.0, now.timestamp() - int(boot) / 1000)
        if boot.isdecimal() and len(boot) < 16
        else None
    )


def _is_day(request: Request) -> bool:
    """Return True if plots show the whole day. Raises InvalidOption."""
    span = request.query_params.get("span", "")
    if span not in ("", "day"):
        raise InvalidOption(f"span {span[:80]!r}: only day is possible")
    return span == "day"


def _access_options(client: ClientConfig) -> list[str]:
    """Return the options that commands need for this cluster, in addition to its address.

    Each reader of the page has files of their own, so the options have no file names.
    """
    return [
        *(["--credentials FILE"] if client.credentials is not None else []),
        *(["--cafile FILE"] if client.ssl else []),
    ]
