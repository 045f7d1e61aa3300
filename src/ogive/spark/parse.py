"""Message bodies as columns: JSON, Avro and Debezium's changes, and the handling of bodies that do
not match their schema.

`parse_json`, `parse_avro` and `parse_debezium` add a struct column ``value`` and
return (good, bad): the messages whose body matches, and the others. *on_error* says what a query
does with the others:

``dead-letter``
    *good* is without them; *bad* has the columns of the sink (body, keys, tags, properties with
    reason and origin), ready to be written to a topic.
``null``
    *good* has all messages. A column ``_error`` names what is wrong; ``value`` is null then.
``drop``
    *good* is without them, and counts them: the observation *counts* has ``read`` and ``dropped``.
``fail``
    A bad body ends the query with an error that names the message and what is wrong.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from ogive.errors import InvalidOption
from ogive.spark.body_schema import Schema, columns_of
from ogive.spark.failures import SPARK_ERRORS
from ogive.spark.failures import reason as cause

_BROKEN: Final = "_broken"
_PERMISSIVE: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN}
_TEXT_MAP: Final = MapType(StringType(), StringType())

OnError = Literal["dead-letter", "null", "drop", "fail"]

OPERATIONS: Final = ("c", "r", "u", "d")
"""Debezium's operations: create, read (of a snapshot), update, delete."""


def parse_json(
    messages: DataFrame,
    schema: Schema,
    *,
    on_error: OnError = "dead-letter",
    counts: Observation | str = "parse",
) -> tuple[DataFrame, DataFrame]:
    """Parse JSON bodies. *schema* is a dataclass, a JSON Schema as a mapping, or a StructType.

    A body matches if it is a JSON object whose fields have the right types, and has all fields, at
    any depth, that may not be None. The reason names the first field that does not match.
    """
    wanted = columns_of(schema)
    value, reason = _json(f.col("body").cast("string"), wanted)
    return _sort_out(messages, value, reason, on_error, counts)


def parse_avro(
    messages: DataFrame,
    schema: str,
    *,
    writers: Mapping[int, str] | None = None,
    on_error: OnError = "dead-letter",
    counts: Observation | str = "parse",
) -> tuple[DataFrame, DataFrame]:
    """Parse Avro bodies without a file header; *schema* is the reader's schema, as JSON.

    With *writers* the bodies have a schema registry's header of five bytes; it maps the ids there
    to the schemas that the bodies were written with. Needs Spark's package spark-avro.
    """
    value, reason = _avro(f.col("body"), schema, writers)
    try:
        messages.select(value)
    except SPARK_ERRORS as exc:
        if "AVRO_NOT_LOADED" not in str(exc):
            raise InvalidOption(f"the Avro schema is invalid: {cause(str(exc))}") from None
        version = messages.sparkSession.version
        raise InvalidOption(
            "Spark's package for Avro is missing: start the session with "
            f"spark.jars.packages=org.apache.spark:spark-avro_2.13:{version}"
        ) from None
    return _sort_out(messages, value, reason, on_error, counts)


def parse_debezium(
    messages: DataFrame,
    schema: Schema,
    *,
    on_error: OnError = "dead-letter",
    counts: Observation | str = "parse",
) -> tuple[DataFrame, DataFrame]:
    """Parse Debezium's changes in JSON, with or without their schema (``payload``).

    *schema* describes a row of the table, as in `parse_json`. ``value`` has ``op`` (one of
    OPERATIONS), ``before``, ``after`` and ``ts_ms``. `merge_changes` applies them to a table.
    """
    row = columns_of(schema)
    envelope = StructType(
        [
            StructField("op", StringType(), nullable=False),
            StructField("before", row),
            StructField("after", row),
            StructField("ts_ms", LongType()),
        ]
    )
    text = f.col("body").cast("string")
    text = f.coalesce(f.get_json_object(text, "$.payload"), text)
    value, reason = _json(text, envelope)
    image = f.when(value["op"] == "d", value["before"]).otherwise(value["after"])
    reason = f.coalesce(
        reason,
        f.when(
            ~value["op"].isin(*OPERATIONS),
            f.concat(f.lit("op is "), value["op"], f.lit(f", not one of {', '.join(OPERATIONS)}")),
        ),
        f.when(
            image.isNull(), f.when(value["op"] == "d", "before is null").otherwise("after is null")
        ),
    )
    return _sort_out(messages, value, reason, on_error, counts)


def merge_changes(changes: DataFrame, table: str, keys: Sequence[str]) -> None:
    """Apply the changes of `parse_debezium` to *table* by its columns *keys*, with one MERGE.

    For ``foreachBatch``: the newest change of a key in the batch counts, by its offset, so all
    changes of a key must be in one queue. A batch that is repeated has the same result. *table* is
    a name in SQL of a table that knows MERGE, such as one of Delta or Iceberg.
    """
    spark = changes.sparkSession
    after = changes.schema["value"].dataType["after"].dataType  # type: ignore[index]
    unknown = [key for key in keys if key not in after.names]
    if unknown or not keys:
        raise InvalidOption(
            f"keys must be columns of the table ({', '.join(after.names)}), got {list(keys)}"
        )
    value = f.col("value")
    image = f.when(value["op"] == "d", value["before"]).otherwise(value["after"])
    newest = (
        changes.select(image.alias("image"), value["op"].alias("op"), "queueOffset")
        .groupBy(*(f.col("image")[key].alias(f"key_{i}") for i, key in enumerate(keys)))
        .agg(f.max_by(f.struct("image", "op"), "queueOffset").alias("newest"))
        .select("newest.image.*", f.col("newest.op").alias("_op"))
    )
    # threads may merge in one session at the same time
    view = f"ogive_changes_{uuid.uuid4().hex}"
    newest.createOrReplaceTempView(view)
    names = [_quoted(name) for name in after.names]
    same = " AND ".join(f"t.{_quoted(key)} = c.{_quoted(key)}" for key in keys)
    try:
        spark.sql(
            f"MERGE INTO {table} t USING {view} c ON {same} "  # noqa: S608  names are quoted
            "WHEN MATCHED AND c._op = 'd' THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{one} = c.{one}' for one in names)} "
            f"WHEN NOT MATCHED AND c._op <> 'd' THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f'c.{one}' for one in names)})"
        )
    finally:
        spark.catalog.dropTempView(view)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# --- formats --------------------------------------------------------------------------------------


def _json(text: Column, wanted: StructType) -> tuple[Column, Column]:
    """Return the value of *text*, null if it is no JSON, and the reason why it does not match."""
    loose = StructType(
        [*(StructField(one.name, one.dataType) for one in wanted), _field(_BROKEN, StringType())]
    )
    value = f.from_json(text, loose, _PERMISSIVE)
    broken = [
        f.when(_is_broken(text, one), f"{path[1:]} is not {_named(kind)}")
        for path, one, kind in _probes(wanted)
    ]
    reason = f.coalesce(
        f.when(text.isNull(), "the body is null"),
        f.when(
            value.isNull() | value[_BROKEN].isNotNull(),
            f.coalesce(
                f.when(_is_broken(text, StructType()), "the body is not a JSON object"),
                *broken,
                f.lit("the body is not JSON of the schema"),
            ),
        ),
        *(f.when(missing(value), f"{path[1:]} is missing") for path, missing in _gaps(wanted)),
    )
    return f.struct(*(value[name].alias(name) for name in wanted.names)), reason


def _field(name: str, kind: DataType) -> StructField:
    return StructField(name, kind)


def _is_broken(text: Column, wanted: StructType) -> Column:
    probe = StructType([*wanted, _field(_BROKEN, StringType())])
    parsed = f.from_json(text, probe, _PERMISSIVE)
    return parsed.isNull() | parsed[_BROKEN].isNotNull()


def _probes(wanted: StructType) -> Iterator[tuple[str, StructType, DataType]]:
    """Yield a schema with only one field for each field at any depth: its path, the schema, and the
    type of the field. Outer fields come before what is in them.
    """
    for field in wanted:
        for path, one, kind in _probes_of(field.dataType):
            yield f".{field.name}{path}", StructType([_field(field.name, one)]), kind


def _probes_of(kind: DataType) -> Iterator[tuple[str, DataType, DataType]]:
    if isinstance(kind, StructType):
        yield "", _TEXT_MAP, kind
        yield from _probes(kind)
    elif isinstance(kind, ArrayType):
        yield "", ArrayType(StringType()), kind
        for path, one, inner in _probes_of(kind.elementType):
            yield f"[]{path}", ArrayType(one), inner
    elif isinstance(kind, MapType):
        yield "", _TEXT_MAP, kind
        for path, one, inner in _probes_of(kind.valueType):
            yield f"[]{path}", MapType(StringType(), one), inner
    else:
        yield "", kind, kind


def _named(kind: DataType) -> str:
    if isinstance(kind, ArrayType):
        return "an array"
    return "an object" if isinstance(kind, StructType | MapType) else kind.simpleString()


_HEADER_BYTES: Final = 5
"""Size of a schema registry's header: a zero byte, and the id of the schema."""


def _avro(body: Column, schema: str, writers: Mapping[int, str] | None) -> tuple[Column, Column]:
    """Return the value of *body*, null if it is not Avro of *schema*, and the reason."""
    if writers is None:
        value = _from_avro(body, schema, schema)
        return value, f.when(value.isNull(), "the body is not Avro of the schema")
    if not writers:
        raise InvalidOption("writers is empty: it maps the registry's ids to schemas")
    framed = (f.octet_length(body) > _HEADER_BYTES) & (f.hex(f.substring(body, 1, 1)) == "00")
    number = f.when(framed, f.conv(f.hex(f.substring(body, 2, 4)), 16, 10).cast("bigint"))
    rest = f.substring(body, _HEADER_BYTES + 1, 2**31 - 1)
    value = f.coalesce(
        *(
            _from_avro(f.when(number == one, rest), writer, schema)
            for one, writer in writers.items()
        )
    )
    unknown = f.concat(f.lit("no schema is given for the registry's id "), number.cast("string"))
    reason = (
        f.when(number.isNull(), "the body does not begin with a schema registry's header")
        .when(~number.isin(*writers), unknown)
        .when(value.isNull(), "the body is not Avro of the schema")
    )
    return value, reason


def _from_avro(body: Column, writer: str, reader: str) -> Column:
    """Return the value of *body*, or null.

    Each schema is put into a record of one field, which changes no byte: Spark returns a record of
    nulls for a body that it cannot read, and that field tells it from a record of nulls.
    """
    options = {"mode": "PERMISSIVE", "avroSchema": _in_record(reader)}
    return from_avro(body, _in_record(writer), options)["value"]


def _in_record(schema: str) -> str:
    try:
        inner = json.loads(schema)
    except ValueError as exc:
        raise InvalidOption(f"an Avro schema must be JSON: {exc}") from None
    field = {"name": "value", "type": inner}
    return json.dumps({"type": "record", "name": "OgiveBody", "fields": [field]})


# --- bad bodies -----------------------------------------------------------------------------------


def _sort_out(
    messages: DataFrame,
    value: Column,
    reason: Column,
    on_error: OnError,
    counts: Observation | str,
) -> tuple[DataFrame, DataFrame]:
    """Return (good, bad). *reason* is null for a good *value*."""
    judged = messages.withColumn("_error", reason)
    bad = _letters(judged.where(f.col("_error").isNotNull()))
    if on_error == "drop":
        judged = judged.observe(
            counts,
            f.count(f.lit(1)).alias("read"),
            f.count("_error").alias("dropped"),
        )
    kept = judged if on_error in ("null", "fail") else judged.where(f.col("_error").isNull())
    whole = f.when(f.col("_error").isNull(), value)
    if on_error == "fail":
        place = f.concat_ws(
            "/", f.lit("body"), *(f.col(name).cast("string") for name in _present(messages))
        )
        whole = whole.otherwise(
            f.raise_error(f.concat(f.lit("bad "), place, f.lit(": "), "_error"))
        )
    good = kept.withColumn("value", whole)
    return good if on_error == "null" else good.drop("_error"), bad


def _gaps(
    kind: DataType, nullable: bool = True
) -> Iterator[tuple[str, Callable[[Column], Column]]]:
    """Yield the required parts of a value of *kind*: their path, and a test for each."""
    if not nullable:
        yield "", lambda value: value.isNull()
    if isinstance(kind, StructType):
        for field in kind:
            for path, missing in _gaps(field.dataType, field.nullable):
                yield f".{field.name}{path}", _in_field(field.name, missing)
    elif isinstance(kind, ArrayType):
        for path, missing in _gaps(kind.elementType, kind.containsNull):
            yield f"[]{path}", _in_elements(missing)
    elif isinstance(kind, MapType):
        for path, missing in _gaps(kind.valueType, kind.valueContainsNull):
            yield f"[]{path}", _in_values(missing)


def _in_field(name: str, missing: Callable[[Column], Column]) -> Callable[[Column], Column]:
    return lambda value: value.isNotNull() & missing(value[name])


def _in_elements(missing: Callable[[Column], Column]) -> Callable[[Column], Column]:
    return lambda value: f.exists(value, missing)


def _in_values(missing: Callable[[Column], Column]) -> Callable[[Column], Column]:
    return lambda value: f.exists(f.map_values(value), missing)


def _present(messages: DataFrame) -> list[str]:
    return [
        name
        for name in ("topic", "brokerName", "queueId", "queueOffset")
        if name in messages.columns
    ]


def _letters(bad: DataFrame) -> DataFrame:
    """Return bad messages as rows for the sink. Their properties include the reason and the
    origin.
    """
    marks = [f.lit("reason"), f.col("_error")]
    for name in _present(bad):
        marks += [f.lit(f"from_{name}"), f.col(name).cast("string")]
    note = f.create_map(*marks)
    if "properties" in bad.columns:
        own = f.map_filter(
            f.coalesce("properties", f.create_map().cast("map<string,string>")),
            lambda name, _: ~name.isin(*_names(bad)),
        )
        note = f.map_concat(own, note)
    columns = [name for name in ("body", "keys", "tags") if name in bad.columns]
    return bad.select(*columns, note.alias("properties"))


def _names(bad: DataFrame) -> list[str]:
    """Return the names of our properties, which a letter that failed before already has."""
    return ["reason", *(f"from_{name}" for name in _present(bad))]
