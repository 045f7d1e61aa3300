"""Report of traces as one HTML file: tables with bars, and a curve over time.

The page has no script, and loads nothing from other servers.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

Row = Mapping[str, Any]

_WIDTH: Final = 900
_HEIGHT: Final = 260
_LEFT: Final = 76
_BOTTOM: Final = 28
_COLOURS: Final = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#718096")
_NAMES: Final = ("p50", "p95", "p99")
_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1a202c;--paper:#fff;--soft:#718096;--line:#e2e8f0}
@media(prefers-color-scheme:dark){
:root{--ink:#e2e8f0;--paper:#171923;--soft:#a0aec0;--line:#2d3748}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:960px;margin:2rem auto;padding:0 1rem}
h2{margin-top:2.2rem;font-size:1.15rem}p{color:var(--soft)}
table{border-collapse:collapse;width:100%}
th,td{text-align:right;padding:.3rem .6rem;border-bottom:1px solid var(--line);
font-variant-numeric:tabular-nums}
th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere}
th{font-weight:600;color:var(--soft)}
svg{width:100%;height:auto}svg text{fill:var(--soft);font-size:12px}.grid{stroke:var(--line)}
.p50{fill:#2b6cb0}.p95{fill:#63a4e0}.p99{fill:#c6dcf2}
.key i{display:inline-block;width:.8em;height:.8em;margin:0 .35em 0 1em;border-radius:2px}
"""


def page(
    figures: Mapping[str, Sequence[Mapping[str, Any]]],
    series: Mapping[str, Sequence[tuple[int, float]]],
    *,
    read: int,
    bucket: str,
) -> str:
    parts = [
        f"<p>From {read:,} trace records, in milliseconds. A delivery is from the send to the "
        "first call of a listener, a listener's time "
        "that of each call.</p>"
    ]
    for title, rows in figures.items():
        parts += [
            f"<h2>{escape(title)}</h2>",
            _table(rows) if rows else "<p>Nothing was traced.</p>",
        ]
    if series:
        parts += [
            f"<h2>Delivery over time: 95th percentile in steps of {escape(bucket)}</h2>",
            _curves(series),
            _key(series),
        ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>Message traces</title><style>{_STYLE}</style>'
    )
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body><h1>Message '
        f"traces</h1>{''.join(parts)}</body></html>\n"
    )


def _table(rows: Sequence[Row]) -> str:
    most = max(row["quantiles"][2] for row in rows) or 1
    lines = []
    for row in rows:
        values = [row["count"], row["failed"], *row["quantiles"], row["most"]]
        cells = "".join(f"<td>{value:,.0f}</td>" for value in values)
        lines.append(
            f"<tr><td>{escape(row['name'])}</td>{cells}<td>{_bar(row['quantiles'], most)}</td></tr>"
        )
    heads = "".join(
        f"<th>{name}</th>" for name in ("name", "count", "failed", *_NAMES, "max", "p50 p95 p99")
    )
    return f"<table><tr>{heads}</tr>{''.join(lines)}</table>"


def _bar(quantiles: Sequence[float], most: float) -> str:
    """Draw a bar, the longest part first, so that the shorter ones are on top of it."""
    bars = "".join(
        f'<rect class="{name}" width="{max(1.0, 160 * value / most):.1f}" height="14" '
        f'rx="2"><title>{name} {value:,.0f} ms</title></rect>'
        for name, value in reversed(list(zip(_NAMES, quantiles, strict=True)))
    )
    return f'<svg viewBox="0 0 160 14" style="width:160px" role="img">{bars}</svg>'


def _curves(series: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    points = [point for curve in series.values() for point in curve]
    first, last = min(at for at, _ in points), max(at for at, _ in points)
    top = _round(max(value for _, value in points) or 1.0)

    def x(at: int) -> float:
        return _LEFT + (at - first) / max(1, last - first) * (_WIDTH - _LEFT - 8)

    def y(value: float) -> float:
        return 12 + (1 - value / top) * (_HEIGHT - _BOTTOM - 12)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        height = y(share * top)
        parts.append(f'<path class="grid" d="M{_LEFT} {height:.1f}H{_WIDTH - 8}"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{height + 4:.1f}" '
            f'text-anchor="end">{share * top:,.4g}{" ms" * (share == 1)}</text>'
        )
    for at, anchor in ((first, "start"), (last, "end")):
        text = datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        parts.append(
            f'<text x="{x(at):.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{text}</text>'
        )
        if first == last:
            break
    for (name, curve), colour in zip(series.items(), _COLOURS * len(series), strict=False):
        line = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in curve)
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" '
            f'stroke-width="2"><title>{escape(name)}</title></polyline>'
        )
        parts += [
            f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>'
            for at, value in curve
        ]
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="latency over '
        f'time">{"".join(parts)}</svg>'
    )


def _round(value: float) -> float:
    """Return the next number whose quarters are easy to read."""
    step = 10.0 ** math.floor(math.log10(value))
    return next(step * factor for factor in (1, 2, 4, 8, 10) if step * factor >= value)


def _key(series: Mapping[str, Any]) -> str:
    names = zip(series, _COLOURS * len(series), strict=False)
    return (
        '<p class="key">'
        + "".join(f'<i style="background:{colour}"></i>{escape(name)}' for name, colour in names)
        + "</p>"
    )
