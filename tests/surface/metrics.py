"""Names of metrics and of their labels.

rocketmq_messages_in_total: counter
rocketmq_messages_in_total{topic}
"""

import re


def metric_lines(page: str) -> set[str]:
    """Return a line for each metric of a page for Prometheus, and for each of its labels."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    found = {f"{name}: {kind}" for name, kind in kinds.items()}
    for name, labels in re.findall(r"^(\w+)(\{.*\})? \S+$", page, re.MULTILINE):
        family = name if name in kinds else re.sub(r"_(bucket|sum|count)$", "", name)
        for label in re.findall(r'(\w+)="(?:[^"\\]|\\.)*"', labels):
            found.add(f"{family}{{{label}}}")
    return found
