"""Texts in the form of java.util.Properties, and what Java 17 reads in them; None where it refuses
them.
"""

from typing import Final

SAMPLES: Final[list[tuple[bytes, dict[str, str] | None]]] = [
    (b"", {}),
    (b"listenPort=10921\nlistenPort = 10922", {"listenPort": "10922"}),
    (
        b"listenPort 10921\r\nbrokerName\tbroker-b\rbrokerId:0",
        {"listenPort": "10921", "brokerName": "broker-b", "brokerId": "0"},
    ),
    ("# 端口\nlistenPort=10921\n! 名字\n".encode("gbk"), {"listenPort": "10921"}),
    (b"  # comment with a backslash at its end \\\nlistenPort=10921", {"listenPort": "10921"}),
    (
        b"namesrvAddr=10.0.0.1:9876;\\\n    10.0.0.2:9876",
        {"namesrvAddr": "10.0.0.1:9876;10.0.0.2:9876"},
    ),
    (b"a=one \\\r\n\ttwo\\\n# not a comment\nb=3", {"a": "one two# not a comment", "b": "3"}),
    (b"a=one\\\\\nb=two\\\\\\\nthree", {"a": "one\\", "b": "two\\three"}),
    (b"a=one\\\n\nb=two", {"a": "one", "b": "two"}),
    (b"\\\n# comment\na=1", {"a": "1"}),
    (b"a=the end\\", {"a": "the end"}),
    (b"path=C:\\\\store\\temp\\new", {"path": "C:\\store\temp\new"}),
    (b"path=C:\\store", {"path": "C:store"}),
    (b"a\\ b\\=c\\:d = e=f:g", {"a b=c:d": "e=f:g"}),
    (b"a = = b\nc : = d\ne  f = g", {"a": "= b", "c": "= d", "e": "f = g"}),
    (b"a=b  \nc=\nd\n=e\n : f", {"a": "b  ", "c": "", "d": "", "": "f"}),
    (b"name=\\u6570\\u636E \\ud83d\\ude00", {"name": "数据 😀"}),
    ("name=数".encode(), {"name": "æ\x95°"}),
    (b"name=\\u12", None),
    (b"name=\\uxyz1", None),
    (b"a=1\x0cb\n\x0c c=2\x0b3\x85\n", {"a": "1\x0cb", "c": "2\x0b3\x85"}),
]
