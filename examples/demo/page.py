"""Style sheet and HTML frame of the report."""

from typing import Final

STYLE: Final = """
:root {
  --ink: #1b1f24; --soft: #667080; --page: #f6f7f9; --card: #fff; --line: #e3e6eb; --good: #0b7a4b;
  --bad: #c0281f;
  --c0: #2463c7; --c1: #d9690a; --c2: #0b8a63; --c3: #8a3fb5; --band0: #eef1f5; --band1: #f8f9fb;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e8eaee; --soft: #98a2b3; --page: #14171b; --card: #1c2026; --line: #2d333b;
  --good: #2fb47c; --bad: #ff6b60;
    --c0: #6ea3ff; --c1: #ff9a4a; --c2: #3ccf9b; --c3: #c58af0; --band0: #22272e; --band1: #1c2026;
  }
}
* { box-sizing: border-box }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 1020px; margin: 0 auto; padding: 32px 20px 64px }
h1 { margin: 0 0 4px; font-size: 28px; letter-spacing: -.01em }
h2 { margin: 0 0 4px; font-size: 18px }
h3 { margin: 18px 0 6px; font-size: 14px; font-weight: 600 }
p { margin: 0 0 10px; color: var(--soft) }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 20px 22px; margin-top: 18px }
.verdict { display: inline-block; margin: 14px 0 4px; padding: 8px 14px; border-radius: 8px;
  color: #fff; font-weight: 600 }
.verdict.good { background: #0b7a4b }
.verdict.bad { background: #c0281f }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px;
  margin-top: 14px }
.facts div { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 12px 16px }
.facts b { display: block; font-size: 22px; font-variant-numeric: tabular-nums }
.facts span { color: var(--soft); font-size: 13px }
svg { display: block; width: 100%; height: auto; overflow: visible }
.tick, .phase, .hour { fill: var(--soft); font-size: 12px }
.row { fill: var(--ink); font-weight: 600; font-size: 14px }
.cell { fill: #000; font-size: 13px; font-variant-numeric: tabular-nums }
.cell.pale { fill: #fff }
.halves { display: flex; flex-wrap: wrap; gap: 10px 16px }
.halves svg { flex: 1 1 400px; width: 0 }
.grid { stroke: var(--line) }
.band0 { fill: var(--band0) }
.band1 { fill: var(--band1) }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round }
.c0 { --own: var(--c0) }
.c1 { --own: var(--c1) }
.c2 { --own: var(--c2) }
.c3 { --own: var(--c3) }
.curve { stroke: var(--own) }
@media (max-width: 760px) { .tick, .phase { font-size: 22px } .curve { stroke-width: 3.5 } }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 6px 0 0; font-size: 13px;
  color: var(--ink) }
.legend i { display: inline-block; width: 18px; height: 3px; border-radius: 2px;
  background: var(--own) }
.legend + svg { margin-top: 22px }
.legend i { margin-right: 7px; vertical-align: middle }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: 4px 8px; text-align: right }
td:first-child, th { text-align: left }
thead td { color: var(--soft); font-size: 13px }
th { padding-top: 16px; border-bottom: 1px solid var(--line) }
tbody tr + tr td { border-bottom: 1px solid var(--line) }
.ok td:last-child { color: var(--good) }
.differs td { color: var(--bad); font-weight: 700 }
"""

PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>ogive demo</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>ogive demo</h1>
<p>{subtitle}</p>
<div class="verdict {verdict_class}">{verdict}</div>
<div class="facts">{facts}</div>
<section>
<h2>Events per second</h2>
<p>An event is on disk before it is acknowledged. Spark's curve is its rate over each batch.</p>
{rates}
</section>
<section>
<h2>Lag of each group</h2>
<p>Events acknowledged and not yet consumed.</p>
{lag}
</section>
<section>
<h2>Delay by airport and hour</h2>
<p>As Spark computed it; hours of departure on New York's clocks. Hover over a cell for more.</p>
{heat}
</section>
<section>
<h2>Every figure beside the same figure computed from the files</h2>
{table}
</section>
</main>
</body>
</html>
"""
