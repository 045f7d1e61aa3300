/* Records of the commit log, with what is kept and answered of each. Python: store/appender.py, store/record.py. */

#include "native.h"

enum {
    MAX_RECORD_BYTES = 4 * 1024 * 1024 + 64 * 1024,
    MAX_CRC_PROPERTIES = MAX_PROPERTIES_BYTES - CRC_BYTES,
    MAX_HEAD_BYTES = FIXED_V4 + 2 * (HOST_V6 - HOST_V4),
};

/* The fields of a NewMessage */
enum { TOPIC, QUEUE_ID, BODY, PROPERTIES, SYS_FLAG, FLAG, BORN_MS, BORN_HOST, STORE_HOST, TIMES, PREPARED, MESSAGE_FIELDS };

/* what messages have of their own */
typedef struct {
    int32_t flag;
    const uint8_t *body;
    Py_ssize_t body_size;
    PyObject *given; /* the properties */
    const uint8_t *properties; /* of them, what is stored */
    Py_ssize_t properties_size;
    int separator; /* one is stored behind them, so that the checksum may follow */
} Part;

/* 0 where the message is not usual */
static int take_part(PyObject *flag, PyObject *body, PyObject *properties, int with_crc, Part *part)
{
    int64_t number;
    if (!is_number(flag, INT32_MIN, INT32_MAX, &number) || !PyBytes_Check(body) || !PyBytes_Check(properties))
        return 0;
    part->flag = (int32_t)number;
    part->body = (const uint8_t *)PyBytes_AS_STRING(body);
    part->body_size = PyBytes_GET_SIZE(body);
    part->given = properties;
    part->properties = (const uint8_t *)PyBytes_AS_STRING(properties);
    Py_ssize_t size = PyBytes_GET_SIZE(properties);
    if (size >= CRC_BYTES && memcmp(part->properties + size - CRC_BYTES, CRC_NAME, CRC_NAME_BYTES) == 0)
        size -= CRC_BYTES; /* it speaks of the record that this message came from */
    part->properties_size = size;
    part->separator = with_crc && size && part->properties[size - 1] != 2;
    return part->body_size <= MAX_RECORD_BYTES && size + part->separator <= MAX_CRC_PROPERTIES;
}

static int take_part_at(PyObject *message, PyObject *items, Py_ssize_t at, int with_crc, Part *part)
{
    if (items == NULL)
        return take_part(
            PyTuple_GET_ITEM(message, FLAG), PyTuple_GET_ITEM(message, BODY), PyTuple_GET_ITEM(message, PROPERTIES), with_crc, part);
    PyObject *item = PyTuple_GET_ITEM(items, at);
    return PyTuple_Check(item) && PyTuple_GET_SIZE(item) == 3
        && take_part(PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1), PyTuple_GET_ITEM(item, 2), with_crc, part);
}

/* What the heads of all records have in common, in *head*; its size, or 0 where it is not usual. */
static size_t fill_head(PyObject *message, int64_t stored_ms, size_t field_size, uint8_t *head, int *kind)
{
    int64_t queue_id, sys_flag, born_ms, times, prepared;
    PyObject *born_host = PyTuple_GET_ITEM(message, BORN_HOST), *store_host = PyTuple_GET_ITEM(message, STORE_HOST);
    if (!is_number(PyTuple_GET_ITEM(message, QUEUE_ID), INT32_MIN, INT32_MAX, &queue_id)
        || !is_number(PyTuple_GET_ITEM(message, SYS_FLAG), INT32_MIN, INT32_MAX, &sys_flag)
        || !is_number(PyTuple_GET_ITEM(message, BORN_MS), INT64_MIN, INT64_MAX, &born_ms)
        || !is_number(PyTuple_GET_ITEM(message, TIMES), INT32_MIN, INT32_MAX, &times)
        || !is_number(PyTuple_GET_ITEM(message, PREPARED), INT64_MIN, INT64_MAX, &prepared) || !PyBytes_Check(born_host)
        || !PyBytes_Check(store_host))
        return 0;
    size_t born_size = (size_t)PyBytes_GET_SIZE(born_host), store_size = (size_t)PyBytes_GET_SIZE(store_host);
    if ((born_size != HOST_V4 && born_size != HOST_V6) || (store_size != HOST_V4 && store_size != HOST_V6))
        return 0;
    *kind = (int)(sys_flag & TRANSACTION_MASK);
    sys_flag &= ~(int64_t)HOSTS_V6;
    sys_flag |= (born_size == HOST_V6 ? BORN_HOST_V6 : 0) | (store_size == HOST_V6 ? STORE_HOST_V6 : 0);
    memset(head, 0, MAX_HEAD_BYTES);
    put32(head + MAGIC_AT, field_size <= 128 ? MAGIC_V1 : MAGIC_V2);
    put32(head + QUEUE_ID_AT, (uint32_t)queue_id);
    put32(head + SYS_FLAG_AT, (uint32_t)sys_flag);
    put64(head + BORN_AT, (uint64_t)born_ms);
    uint8_t *at = head + BORN_HOST_AT;
    memcpy(at, PyBytes_AS_STRING(born_host), born_size);
    at += born_size;
    put64(at, (uint64_t)stored_ms);
    memcpy(at + 8, PyBytes_AS_STRING(store_host), store_size);
    at += 8 + store_size;
    put32(at, (uint32_t)times);
    put64(at + 4, (uint64_t)prepared);
    return (size_t)(at + 16 - head);
}

/* of *part* with *fixed* bytes beside body and properties */
static Py_ssize_t record_size(const Part *part, Py_ssize_t fixed)
{
    return fixed + part->body_size + part->properties_size + part->separator;
}

static void put_record(
    uint8_t *record, const Part *part, const uint8_t *head, size_t head_size, PyObject *field, uint32_t size, int64_t offset,
    int64_t position, int with_crc)
{
    memcpy(record, head, head_size);
    put32(record, size);
    put32(record + BODY_CRC_AT, crc_of(part->body, (size_t)part->body_size, 0) & 0x7FFFFFFF);
    put32(record + FLAG_AT, (uint32_t)part->flag);
    put64(record + QUEUE_OFFSET_AT, (uint64_t)offset);
    put64(record + COMMITLOG_OFFSET_AT, (uint64_t)position);
    put32(record + head_size - 4, (uint32_t)part->body_size);
    uint8_t *at = record + head_size;
    memcpy(at, part->body, (size_t)part->body_size);
    at += part->body_size;
    memcpy(at, PyBytes_AS_STRING(field), (size_t)PyBytes_GET_SIZE(field));
    at += PyBytes_GET_SIZE(field);
    put16(at, (uint16_t)(part->properties_size + part->separator + (with_crc ? CRC_BYTES : 0)));
    memcpy(at + 2, part->properties, (size_t)part->properties_size);
    at += 2 + part->properties_size;
    if (part->separator)
        *at++ = 2;
    if (with_crc) {
        uint32_t crc = crc_of(record, (size_t)(at - record), 0) & 0x7FFFFFFF;
        memcpy(at, CRC_NAME, CRC_NAME_BYTES);
        at += CRC_NAME_BYTES;
        for (int digit = 0; digit < 10; digit++, crc /= 10) /* the least significant first */
            *at++ = (uint8_t)('0' + crc % 10);
        *at = 2;
    }
}

/* Java's hash of the TAGS property, 0 without one; 0 is returned where the tag is not ASCII. */
static int hash_tag(const Part *part, int32_t *hash)
{
    const uint8_t *at = part->properties, *end = at + part->properties_size;
    *hash = 0;
    while (end - at >= 5) {
        const uint8_t *stop = property_end(at, end);
        if (stop - at >= 5 && memcmp(at, "TAGS\x01", 5) == 0) {
            uint8_t others = 0;
            *hash = (int32_t)java_hash(0, at + 5, stop - at - 5, &others);
            return !others;
        }
        if (stop == end)
            return 1;
        at = stop + 1;
    }
    return 1;
}

static PyObject *stored_properties(const Part *part)
{
    if (!part->separator && part->properties_size == PyBytes_GET_SIZE(part->given))
        return Py_NewRef(part->given);
    PyObject *text = PyBytes_FromStringAndSize(NULL, part->properties_size + part->separator);
    if (text != NULL) {
        memcpy(PyBytes_AS_STRING(text), part->properties, (size_t)part->properties_size);
        if (part->separator)
            PyBytes_AS_STRING(text)[part->properties_size] = 2;
    }
    return text;
}

/* records(message, items, field, topic, offset, position, room, stored_ms, with_crc, result): (records, entries, keyed, results) of a
   NewMessage, or of the BatchItems that share it, or None.

   Everything as the twin has it: the records one behind the other, their entries in the queue, what the index needs of each, and a
   *result* of each. None also where they do not fit *room* bytes. */
PyObject *native_records(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 10 || !PyTuple_Check(args[0]) || PyTuple_GET_SIZE(args[0]) != MESSAGE_FIELDS || !PyBytes_Check(args[2])
        || !PyBytes_Check(args[3]) || !is_tuple_type(args[9])) {
        PyErr_SetString(
            PyExc_TypeError,
            "records(message: NewMessage, items: list[BatchItem] | None, field: bytes, topic: bytes, offset: int, position: int, "
            "room: int, stored_ms: int, with_crc: bool, result: type[PutResult])");
        return NULL;
    }
    PyObject *message = args[0], *field = args[2], *topic = args[3], *stored_ms = args[7];
    PyTypeObject *type = (PyTypeObject *)args[9];
    int with_crc = args[8] == Py_True, kind;
    int64_t first, start, room, stored;
    uint8_t head[MAX_HEAD_BYTES];
    if (!is_number(args[4], 0, INT64_MAX / 2, &first) || !is_number(args[5], 0, INT64_MAX / 2, &start)
        || !is_number(args[6], 0, INT64_MAX / 2, &room) || !is_number(stored_ms, 0, INT64_MAX, &stored)
        || PyBytes_GET_SIZE(field) > 0xFFFF)
        Py_RETURN_NONE;
    size_t head_size = fill_head(message, stored, (size_t)PyBytes_GET_SIZE(field), head, &kind);
    if (head_size == 0 || (args[1] != Py_None && (!PyList_Check(args[1]) || kind != 0)))
        Py_RETURN_NONE;
    PyObject *items = NULL, *records = NULL, *entries = NULL, *keyed = NULL, *results = NULL, *made = NULL;
    if (args[1] != Py_None && (items = PyList_AsTuple(args[1])) == NULL) /* so that nothing changes it while objects are made */
        return NULL;
    int is_visible = kind == 0 || kind == TRANSACTION_COMMIT, is_keyed = kind != TRANSACTION_ROLLBACK;
    Py_ssize_t number = items == NULL ? 1 : PyTuple_GET_SIZE(items), total = 0;
    Py_ssize_t fixed = (Py_ssize_t)head_size + PyBytes_GET_SIZE(field) + 2 + (with_crc ? CRC_BYTES : 0);
    Part part;
    if (number == 0)
        goto unusual;
    for (Py_ssize_t i = 0; i < number; i++) {
        if (!take_part_at(message, items, i, with_crc, &part))
            goto unusual;
        Py_ssize_t size = record_size(&part, fixed);
        if (size > MAX_RECORD_BYTES || size > room - total)
            goto unusual;
        total += size;
    }
    records = PyBytes_FromStringAndSize(NULL, total);
    entries = PyBytes_FromStringAndSize(NULL, is_visible ? number * ENTRY_BYTES : 0);
    keyed = PyList_New(is_keyed ? number : 0);
    results = PyList_New(number);
    if (records == NULL || entries == NULL || keyed == NULL || results == NULL)
        goto done;
    uint8_t *record = (uint8_t *)PyBytes_AS_STRING(records), *entry = (uint8_t *)PyBytes_AS_STRING(entries);
    int64_t position = start;
    for (Py_ssize_t i = 0; i < number; i++) {
        int32_t hash;
        int64_t offset = is_visible ? first + i : 0;
        take_part_at(message, items, i, with_crc, &part);
        Py_ssize_t size = record_size(&part, fixed);
        put_record(record, &part, head, head_size, field, (uint32_t)size, offset, position, with_crc);
        if (is_visible) {
            if (!hash_tag(&part, &hash))
                goto unusual;
            put64(entry, (uint64_t)position);
            put32(entry + 8, (uint32_t)size);
            put64(entry + 12, (uint64_t)(int64_t)hash);
            entry += ENTRY_BYTES;
        }
        PyObject *place = PyLong_FromLongLong(position);
        if (place == NULL)
            goto done;
        PyObject *fields[] = {PyLong_FromLongLong(offset), Py_NewRef(place), PyLong_FromSsize_t(size), Py_NewRef(stored_ms)};
        PyObject *result = make_tuple(type, fields, 4);
        if (result == NULL) {
            Py_DECREF(place);
            goto done;
        }
        PyList_SET_ITEM(results, i, result);
        if (is_keyed) {
            PyObject *text = stored_properties(&part);
            PyObject *key = text == NULL ? NULL : PyTuple_Pack(4, topic, text, place, stored_ms);
            Py_XDECREF(text);
            if (key == NULL) {
                Py_DECREF(place);
                goto done;
            }
            PyList_SET_ITEM(keyed, i, key);
        }
        Py_DECREF(place);
        record += size;
        position += size;
    }
    made = PyTuple_Pack(4, records, entries, keyed, results);

done:
    Py_XDECREF(items);
    Py_XDECREF(records);
    Py_XDECREF(entries);
    Py_XDECREF(keyed);
    Py_XDECREF(results);
    return made;

unusual:
    made = Py_NewRef(Py_None);
    goto done;
}
