"""The text that Prometheus reads."""

from ogive.transport.monitoring import Histogram, MetricsText


def test_lines_have_all_labels_and_numbers_as_they_are() -> None:
    text = MetricsText({"node": "a"})
    text.add(
        "sent_total", "counter", "messages", [({"topic": "T"}, 2**60 + 1), ({"topic": "U"}, 3.0)]
    )
    text.add("rate", "gauge", "a second", [({}, 0.1), ({"node": "b"}, float("inf"))])
    assert text.text().splitlines() == [
        "# HELP sent_total messages",
        "# TYPE sent_total counter",
        'sent_total{node="a",topic="T"} 1152921504606846977',
        'sent_total{node="a",topic="U"} 3',
        "# HELP rate a second",
        "# TYPE rate gauge",
        'rate{node="a"} 0.1',
        'rate{node="b"} inf',
    ]


def test_a_label_cannot_end_its_line() -> None:
    text = MetricsText()
    text.add("lag", "gauge", "messages", [({"group": 'a"} 1\nfake 2\\'}, 5)])
    assert text.text().splitlines()[2:] == ['lag{group="a\\"} 1\\nfake 2\\\\"} 5']


def test_a_histogram_ends_with_all_of_its_values() -> None:
    text = MetricsText({"node": "a"})
    text.histogram("size", "bytes", [({"topic": "T"}, Histogram((1024, 4096), (1, 2), 3, 7000.5))])
    assert text.text().splitlines() == [
        "# HELP size bytes",
        "# TYPE size histogram",
        'size_bucket{node="a",topic="T",le="1024.0"} 1',
        'size_bucket{node="a",topic="T",le="4096.0"} 2',
        'size_bucket{node="a",topic="T",le="+Inf"} 3',
        'size_sum{node="a",topic="T"} 7000.5',
        'size_count{node="a",topic="T"} 3',
    ]
