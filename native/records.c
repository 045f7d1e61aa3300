/* Records of the commit log, with what is kept and answered of each. Python: store/appender.py,
 * store/record.py. */

#include "native.h"

enum {
    MAX_RECORD_BYTES = 4 * 1024 * 1024 + 64 * 1024,
    MAX_CRC_PROPERTIES = MAX_PROPERTIES_BYTES - CRC_BYTES,
    MAX_HEAD_BYTES = FIXED_V4 + 2 * (HOST_V6 - HOST_V4),
};

/* in place of a flag, as in store/types.py */
#define SIZE_BEFORE ((int64_t)1 << 31)

/* The fields of a NewMessage */
enum {
    TOPIC,
    QUEUE_ID,
    BODY,
    PROPERTIES,
    SYS_FLAG,
    FLAG,
    BORN_MS,
    BORN_HOST,
    STORE_HOST,
    TIMES,
    PREPARED,
    MESSAGE_FIELDS
};

/* what messages have of their own */
typedef struct {
    int32_t flag;
    const uint8_t *body;
    Py_ssize_t body_size;
    /* the properties; NULL in a batch */
    PyObject *given;
    /* of them, what is stored */
    const uint8_t *properties;
    Py_ssize_t properties_size;
    /* one is stored behind them, so that the checksum may follow */
    int separator;
} Part;

/* What of these properties is stored; 0 where the message is not usual */
static int take_properties(const uint8_t *properties, Py_ssize_t size, int with_crc, Part *part)
{
    if (size >= CRC_BYTES && memcmp(properties + size - CRC_BYTES, CRC_NAME, CRC_NAME_BYTES) == 0)
        /* it speaks of the record that this message came from */
        size -= CRC_BYTES;
    part->properties = properties;
    part->properties_size = size;
    part->separator = with_crc && size && properties[size - 1] != 2;
    return size + part->separator <= MAX_CRC_PROPERTIES;
}

/* All of a part but its flag; 0 where the message is not usual */
static int take_texts(PyObject *body, PyObject *properties, int with_crc, Part *part)
{
    if (!PyBytes_Check(body) || !PyBytes_Check(properties))
        return 0;
    part->body = (const uint8_t *)PyBytes_AS_STRING(body);
    part->body_size = PyBytes_GET_SIZE(body);
    part->given = properties;
    return part->body_size <= MAX_RECORD_BYTES
        && take_properties((const uint8_t *)PyBytes_AS_STRING(properties),
            PyBytes_GET_SIZE(properties), with_crc, part);
}

/* The next message of a batch, or the only one where *at* is NULL; 0 where it is not usual */
static int take_part(
    PyObject *message, const uint8_t **at, const uint8_t *end, int with_crc, Part *part)
{
    BatchItem item;
    int64_t flag;
    if (*at == NULL) {
        if (!is_number(PyTuple_GET_ITEM(message, FLAG), INT32_MIN, INT32_MAX, &flag))
            return 0;
        part->flag = (int32_t)flag;
        return take_texts(
            PyTuple_GET_ITEM(message, BODY), PyTuple_GET_ITEM(message, PROPERTIES), with_crc, part);
    }
    if (!read_batch_item(at, end, &item))
        return 0;
    part->flag = item.flag;
    part->body = item.body;
    part->body_size = item.body_size;
    part->given = NULL;
    return take_properties(item.properties, item.properties_size, with_crc, part);
}

/* What the heads of all records have in common, in *head*; its size, or 0 where it is not usual. */
static size_t fill_head(
    PyObject *message, int64_t stored_ms, size_t field_size, uint8_t *head, int *kind)
{
    int64_t queue_id, sys_flag, born_ms, times, prepared;
    PyObject *born_host = PyTuple_GET_ITEM(message, BORN_HOST),
             *store_host = PyTuple_GET_ITEM(message, STORE_HOST);
    if (!is_number(PyTuple_GET_ITEM(message, QUEUE_ID), INT32_MIN, INT32_MAX, &queue_id)
        || !is_number(PyTuple_GET_ITEM(message, SYS_FLAG), INT32_MIN, INT32_MAX, &sys_flag)
        || !is_number(PyTuple_GET_ITEM(message, BORN_MS), INT64_MIN, INT64_MAX, &born_ms)
        || !is_number(PyTuple_GET_ITEM(message, TIMES), INT32_MIN, INT32_MAX, &times)
        || !is_number(PyTuple_GET_ITEM(message, PREPARED), INT64_MIN, INT64_MAX, &prepared)
        || !PyBytes_Check(born_host) || !PyBytes_Check(store_host))
        return 0;
    size_t born_size = (size_t)PyBytes_GET_SIZE(born_host),
           store_size = (size_t)PyBytes_GET_SIZE(store_host);
    if ((born_size != HOST_V4 && born_size != HOST_V6)
        || (store_size != HOST_V4 && store_size != HOST_V6))
        return 0;
    *kind = (int)(sys_flag & TRANSACTION_MASK);
    sys_flag &= ~(int64_t)HOSTS_V6;
    sys_flag |=
        (born_size == HOST_V6 ? BORN_HOST_V6 : 0) | (store_size == HOST_V6 ? STORE_HOST_V6 : 0);
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

static void put_record(uint8_t *record, const Part *part, const uint8_t *head, size_t head_size,
    PyObject *field, uint32_t size, int64_t offset, int64_t position, int with_crc)
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
        /* the least significant first */
        for (int digit = 0; digit < 10; digit++, crc /= 10)
            *at++ = (uint8_t)('0' + crc % 10);
        *at = 2;
    }
}

/* Java's hash of the TAGS property, 0 without one; 0 is returned where the tag is not UTF-8. */
static int hash_tag(const Part *part, int32_t *hash)
{
    const uint8_t *at = part->properties, *end = at + part->properties_size, *tag = NULL,
                  *tag_end = NULL;
    while (end - at >= 5) {
        const uint8_t *stop = property_end(at, end);
        /* of several the last counts */
        if (stop - at >= 5 && memcmp(at, "TAGS\x01", 5) == 0) {
            tag = at + 5;
            tag_end = stop;
        }
        if (stop == end)
            break;
        at = stop + 1;
    }
    uint8_t others = 0;
    *hash = tag == NULL ? 0 : (int32_t)java_hash(0, tag, tag_end - tag, &others);
    return !others;
}

static PyObject *stored_properties(const Part *part)
{
    if (part->given != NULL && !part->separator
        && part->properties_size == PyBytes_GET_SIZE(part->given))
        return Py_NewRef(part->given);
    PyObject *text = PyBytes_FromStringAndSize(NULL, part->properties_size + part->separator);
    if (text != NULL) {
        memcpy(PyBytes_AS_STRING(text), part->properties, (size_t)part->properties_size);
        if (part->separator)
            PyBytes_AS_STRING(text)[part->properties_size] = 2;
    }
    return text;
}

/* The entry of a record in its queue */
static void put_entry(uint8_t *entry, int64_t position, Py_ssize_t size, int32_t hash)
{
    put64(entry, (uint64_t)position);
    put32(entry + 8, (uint32_t)size);
    put64(entry + 12, (uint64_t)(int64_t)hash);
}

/* Puts a *type* of where a record is, and what the index needs of it where there is *keyed*, into
 * these lists; 0 with an error */
static int note_record(const Part *part, PyObject *topic, int64_t offset, int64_t position,
    Py_ssize_t size, PyObject *stored_ms, PyTypeObject *type, PyObject *results, PyObject *keyed,
    Py_ssize_t at)
{
    PyObject *place = PyLong_FromLongLong(position), *text = NULL, *key = NULL;
    if (place == NULL)
        return 0;
    PyObject *fields[] = {PyLong_FromLongLong(offset), Py_NewRef(place), PyLong_FromSsize_t(size),
        Py_NewRef(stored_ms)};
    PyObject *result = make_tuple(type, fields, 4);
    if (result != NULL)
        PyList_SET_ITEM(results, at, result);
    if (result != NULL && keyed != NULL && (text = stored_properties(part)) != NULL
        && (key = PyTuple_Pack(4, topic, text, place, stored_ms)) != NULL)
        PyList_SET_ITEM(keyed, at, key);
    Py_XDECREF(text);
    Py_DECREF(place);
    return result != NULL && (keyed == NULL || key != NULL);
}

/* records(message, batch, start, field, topic, offset, position, room, stored_ms, with_crc,
   result): (records, entries, keyed, results) of a NewMessage, or of the messages in batch[start:]
   that share it, or None.

   Everything as the twin has it: the records one behind the other, their entries in the queue, what
   the index needs of each, and a *result* of each. None also where they do not fit *room* bytes. */
PyObject *native_records(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 11 || !PyTuple_Check(args[0]) || PyTuple_GET_SIZE(args[0]) != MESSAGE_FIELDS
        || (args[1] != Py_None && !PyBytes_Check(args[1])) || !PyBytes_Check(args[3])
        || !PyBytes_Check(args[4]) || !is_tuple_type(args[10])) {
        PyErr_SetString(PyExc_TypeError,
            "records(message: NewMessage, batch: bytes | None, start: int, field: bytes, topic: "
            "bytes, offset: int, position: int, "
            "room: int, stored_ms: int, with_crc: bool, result: type[PutResult])");
        return NULL;
    }
    PyObject *message = args[0], *field = args[3], *topic = args[4], *stored_ms = args[8];
    PyTypeObject *type = (PyTypeObject *)args[10];
    int with_crc = args[9] == Py_True, kind;
    int64_t start, first, position, room, stored;
    uint8_t head[MAX_HEAD_BYTES];
    if (!is_number(args[2], 0, INT64_MAX, &start) || !is_number(args[5], 0, INT64_MAX / 2, &first)
        || !is_number(args[6], 0, INT64_MAX / 2, &position)
        || !is_number(args[7], 0, INT64_MAX / 2, &room)
        || !is_number(stored_ms, 0, INT64_MAX, &stored) || PyBytes_GET_SIZE(field) > 0xFFFF)
        Py_RETURN_NONE;
    const uint8_t *batch = NULL, *end = NULL, *at;
    if (args[1] != Py_None) {
        if (start >= PyBytes_GET_SIZE(args[1]))
            Py_RETURN_NONE;
        batch = (const uint8_t *)PyBytes_AS_STRING(args[1]);
        end = batch + PyBytes_GET_SIZE(args[1]);
        batch += start;
    }
    size_t head_size = fill_head(message, stored, (size_t)PyBytes_GET_SIZE(field), head, &kind);
    if (head_size == 0 || (batch != NULL && kind != 0))
        Py_RETURN_NONE;
    PyObject *records = NULL, *entries = NULL, *keyed = NULL, *results = NULL, *made = NULL;
    int is_visible = kind == 0 || kind == TRANSACTION_COMMIT,
        is_keyed = kind != TRANSACTION_ROLLBACK;
    Py_ssize_t number = 0, total = 0;
    Py_ssize_t fixed =
        (Py_ssize_t)head_size + PyBytes_GET_SIZE(field) + 2 + (with_crc ? CRC_BYTES : 0);
    Part part;
    at = batch;
    do {
        if (!take_part(message, &at, end, with_crc, &part))
            Py_RETURN_NONE;
        Py_ssize_t size = record_size(&part, fixed);
        if (size > MAX_RECORD_BYTES || size > room - total)
            Py_RETURN_NONE;
        total += size;
        number++;
    } while (at < end);
    records = PyBytes_FromStringAndSize(NULL, total);
    entries = PyBytes_FromStringAndSize(NULL, is_visible ? number * ENTRY_BYTES : 0);
    keyed = PyList_New(is_keyed ? number : 0);
    results = PyList_New(number);
    if (records == NULL || entries == NULL || keyed == NULL || results == NULL)
        goto done;
    uint8_t *record = (uint8_t *)PyBytes_AS_STRING(records),
            *entry = (uint8_t *)PyBytes_AS_STRING(entries);
    at = batch;
    for (Py_ssize_t i = 0; i < number; i++) {
        int64_t offset = is_visible ? first + i : 0;
        /* as above: it is usual */
        take_part(message, &at, end, with_crc, &part);
        Py_ssize_t size = record_size(&part, fixed);
        put_record(
            record, &part, head, head_size, field, (uint32_t)size, offset, position, with_crc);
        if (is_visible) {
            int32_t hash;
            if (!hash_tag(&part, &hash)) {
                made = Py_NewRef(Py_None);
                goto done;
            }
            put_entry(entry, position, size, hash);
            entry += ENTRY_BYTES;
        }
        if (!note_record(&part, topic, offset, position, size, stored_ms, type, results,
                is_keyed ? keyed : NULL, i))
            goto done;
        record += size;
        position += size;
    }
    made = PyTuple_Pack(4, records, entries, keyed, results);

done:
    Py_XDECREF(records);
    Py_XDECREF(entries);
    Py_XDECREF(keyed);
    Py_XDECREF(results);
    return made;
}

/* One of several messages that are stored together, with what its record is made of */
typedef struct {
    PyObject *field, *topic;
    /* in its queue */
    int64_t offset;
    uint8_t head[MAX_HEAD_BYTES];
    size_t head_size;
    Part part;
    int32_t hash;
    /* of its record */
    Py_ssize_t size;
} Joined;

/* Takes all behind the offset. *before* is the size of the record before this one, 0 without one. 0
   where the message is not usual, or no queue holds it. */
static int take_joined(
    PyObject *message, Py_ssize_t before, int64_t stored_ms, int with_crc, Joined *joined)
{
    int64_t flag;
    int kind;
    if (!PyTuple_Check(message) || PyTuple_GET_SIZE(message) != MESSAGE_FIELDS
        || !is_number(PyTuple_GET_ITEM(message, FLAG), INT32_MIN, SIZE_BEFORE, &flag)
        || (flag == SIZE_BEFORE && before == 0)
        || !take_texts(PyTuple_GET_ITEM(message, BODY), PyTuple_GET_ITEM(message, PROPERTIES),
            with_crc, &joined->part)
        || !hash_tag(&joined->part, &joined->hash))
        return 0;
    joined->part.flag = (int32_t)(flag == SIZE_BEFORE ? before : flag);
    joined->head_size =
        fill_head(message, stored_ms, (size_t)PyBytes_GET_SIZE(joined->field), joined->head, &kind);
    joined->size = record_size(&joined->part,
        (Py_ssize_t)joined->head_size + PyBytes_GET_SIZE(joined->field) + 2
            + (with_crc ? CRC_BYTES : 0));
    return joined->head_size != 0 && (kind == 0 || kind == TRANSACTION_COMMIT)
        && joined->size <= MAX_RECORD_BYTES;
}

/* Takes the field, the topic and the offset; 0 where *queue* is not these three */
static int take_queue(PyObject *queue, Joined *joined)
{
    if (!PyTuple_Check(queue) || PyTuple_GET_SIZE(queue) != 3)
        return 0;
    joined->field = PyTuple_GET_ITEM(queue, 0);
    joined->topic = PyTuple_GET_ITEM(queue, 1);
    return PyBytes_Check(joined->field) && PyBytes_GET_SIZE(joined->field) <= 0xFFFF
        && PyBytes_Check(joined->topic)
        && is_number(PyTuple_GET_ITEM(queue, 2), 0, INT64_MAX / 2, &joined->offset);
}

/* Puts all that is made of it, its entry into *entry*; 0 with an error */
static int put_joined(const Joined *joined, uint8_t *record, uint8_t *entry, int64_t position,
    PyObject *stored_ms, int with_crc, PyTypeObject *type, PyObject *results, PyObject *keyed,
    Py_ssize_t at)
{
    put_record(record, &joined->part, joined->head, joined->head_size, joined->field,
        (uint32_t)joined->size, joined->offset, position, with_crc);
    put_entry(entry, position, joined->size, joined->hash);
    return note_record(&joined->part, joined->topic, joined->offset, position, joined->size,
        stored_ms, type, results, keyed, at);
}

/* joined_records(messages, queues, position, room, stored_ms, with_crc, result): (records, entries,
   keyed, results) of NewMessages, one behind the other, or None. *queues* has for each (topic
   field, topic, its offset in the queue); of the entries there is one for each. */
PyObject *native_joined_records(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 7 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1])
        || PyTuple_GET_SIZE(args[0]) != PyTuple_GET_SIZE(args[1]) || !is_tuple_type(args[6])) {
        PyErr_SetString(PyExc_TypeError,
            "joined_records(messages: tuple of NewMessage, queues: tuple of as many, position: "
            "int, room: int, stored_ms: int, "
            "with_crc: bool, result: type[PutResult])");
        return NULL;
    }
    PyObject *messages = args[0], *queues = args[1], *stored_ms = args[4];
    PyObject *records = NULL, *entries = NULL, *keyed = NULL, *results = NULL, *made = NULL;
    int64_t position, room, stored;
    int with_crc = args[5] == Py_True;
    Py_ssize_t number = PyTuple_GET_SIZE(messages), total = 0, before = 0;
    Joined joined;
    if (number == 0 || !is_number(args[2], 0, INT64_MAX / 2, &position)
        || !is_number(args[3], 0, INT64_MAX / 2, &room)
        || !is_number(stored_ms, 0, INT64_MAX, &stored))
        Py_RETURN_NONE;
    for (Py_ssize_t at = 0; at < number; at++) {
        if (!take_queue(PyTuple_GET_ITEM(queues, at), &joined)
            || !take_joined(PyTuple_GET_ITEM(messages, at), before, stored, with_crc, &joined)
            || joined.size > room - total)
            Py_RETURN_NONE;
        before = joined.size;
        total += joined.size;
    }
    records = PyBytes_FromStringAndSize(NULL, total);
    entries = PyList_New(number);
    keyed = PyList_New(number);
    results = PyList_New(number);
    if (records == NULL || entries == NULL || keyed == NULL || results == NULL)
        goto done;
    uint8_t *record = (uint8_t *)PyBytes_AS_STRING(records);
    before = 0;
    for (Py_ssize_t at = 0; at < number; at++) {
        take_queue(PyTuple_GET_ITEM(queues, at), &joined);
        take_joined(PyTuple_GET_ITEM(messages, at), before, stored, with_crc, &joined);
        PyObject *entry = PyBytes_FromStringAndSize(NULL, ENTRY_BYTES);
        if (entry == NULL)
            goto done;
        PyList_SET_ITEM(entries, at, entry);
        if (!put_joined(&joined, record, (uint8_t *)PyBytes_AS_STRING(entry), position, stored_ms,
                with_crc, (PyTypeObject *)args[6], results, keyed, at))
            goto done;
        record += joined.size;
        position += joined.size;
        before = joined.size;
    }
    made = PyTuple_Pack(4, records, entries, keyed, results);

done:
    Py_XDECREF(records);
    Py_XDECREF(entries);
    Py_XDECREF(keyed);
    Py_XDECREF(results);
    return made;
}

/* The fields of a place */
enum { PLACE_TOPIC, PLACE_QUEUE_ID, PLACE_FIELD, PLACE_BYTES, PLACE_OFFSET, PLACE_FIELDS };

/* A queue that messages of a run go to */
typedef struct {
    PyObject *topic, *queue_id, *field, *bytes;
    /* offset in the queue */
    int64_t next;
    /* of its messages */
    Py_ssize_t count;
    /* of the next of them */
    uint8_t *entry;
} Place;

static int take_places(PyObject *all, Place *places)
{
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(all); at++) {
        PyObject *tuple = PyTuple_GET_ITEM(all, at);
        if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != PLACE_FIELDS
            || !PyBytes_Check(PyTuple_GET_ITEM(tuple, PLACE_FIELD))
            || PyBytes_GET_SIZE(PyTuple_GET_ITEM(tuple, PLACE_FIELD)) > 0xFFFF
            || !PyBytes_Check(PyTuple_GET_ITEM(tuple, PLACE_BYTES))
            || !is_number(
                PyTuple_GET_ITEM(tuple, PLACE_OFFSET), 0, INT64_MAX / 2, &places[at].next))
            return 0;
        places[at].topic = PyTuple_GET_ITEM(tuple, PLACE_TOPIC);
        places[at].queue_id = PyTuple_GET_ITEM(tuple, PLACE_QUEUE_ID);
        places[at].field = PyTuple_GET_ITEM(tuple, PLACE_FIELD);
        places[at].bytes = PyTuple_GET_ITEM(tuple, PLACE_BYTES);
        places[at].count = 0;
    }
    return 1;
}

/* Its place and what its record is made of; NULL where it is not usual */
static Place *take_message(PyObject *message, Place *places, Py_ssize_t place_count,
    int64_t stored_ms, int with_crc, Joined *joined)
{
    if (!PyTuple_Check(message) || PyTuple_GET_SIZE(message) != MESSAGE_FIELDS)
        return NULL;
    for (Place *place = places; place < places + place_count; place++) {
        if (place->topic == PyTuple_GET_ITEM(message, TOPIC)
            && place->queue_id == PyTuple_GET_ITEM(message, QUEUE_ID)) {
            joined->field = place->field;
            joined->topic = place->bytes;
            joined->offset = place->next;
            return take_joined(message, 0, stored_ms, with_crc, joined) ? place : NULL;
        }
    }
    return NULL;
}

/* run_records(messages, places, position, room, stored_ms, with_crc, result): (records, entries,
   keyed, results) of the first of these NewMessages, as many as are usual and fit *room* bytes;
   None where there is none.

   A place is a topic and a queue id, which its messages have as the same objects, the topic's field
   and bytes, and the queue's next offset. The records stand one behind the other; of the entries
   there is one bytes object for each place. */
PyObject *native_run_records(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 7 || !PyList_Check(args[0]) || !PyTuple_Check(args[1])
        || !is_tuple_type(args[6])) {
        PyErr_SetString(PyExc_TypeError,
            "run_records(messages: list, places: tuple, position: int, room: int, stored_ms: int, "
            "with_crc: bool, "
            "result: type[PutResult])");
        return NULL;
    }
    PyObject *stored_ms = args[4], *records = NULL, *entries = NULL, *keyed = NULL, *results = NULL,
             *made = NULL;
    int64_t position, room, stored;
    int with_crc = args[5] == Py_True;
    Py_ssize_t place_count = PyTuple_GET_SIZE(args[1]), number = 0, total = 0;
    Place places[MAX_PLACES];
    Place *place;
    Joined joined;
    if (!is_number(args[2], 0, INT64_MAX / 2, &position)
        || !is_number(args[3], 0, INT64_MAX / 2, &room)
        || !is_number(stored_ms, 0, INT64_MAX, &stored) || place_count > MAX_PLACES
        || !take_places(args[1], places))
        Py_RETURN_NONE;
    /* so that nothing changes them while objects are made */
    PyObject *messages = PyList_AsTuple(args[0]);
    if (messages == NULL)
        return NULL;
    for (; number < PyTuple_GET_SIZE(messages); number++) {
        place = take_message(
            PyTuple_GET_ITEM(messages, number), places, place_count, stored, with_crc, &joined);
        if (place == NULL || joined.size > room - total)
            break;
        total += joined.size;
        place->count++;
    }
    if (number == 0) {
        made = Py_NewRef(Py_None);
        goto done;
    }
    records = PyBytes_FromStringAndSize(NULL, total);
    entries = PyList_New(place_count);
    keyed = PyList_New(number);
    results = PyList_New(number);
    if (records == NULL || entries == NULL || keyed == NULL || results == NULL)
        goto done;
    for (Py_ssize_t at = 0; at < place_count; at++) {
        PyObject *own = PyBytes_FromStringAndSize(NULL, places[at].count * ENTRY_BYTES);
        if (own == NULL)
            goto done;
        PyList_SET_ITEM(entries, at, own);
        places[at].entry = (uint8_t *)PyBytes_AS_STRING(own);
    }
    uint8_t *record = (uint8_t *)PyBytes_AS_STRING(records);
    for (Py_ssize_t at = 0; at < number; at++) {
        place = take_message(
            PyTuple_GET_ITEM(messages, at), places, place_count, stored, with_crc, &joined);
        if (!put_joined(&joined, record, place->entry, position, stored_ms, with_crc,
                (PyTypeObject *)args[6], results, keyed, at))
            goto done;
        place->next++;
        place->entry += ENTRY_BYTES;
        record += joined.size;
        position += joined.size;
    }
    made = PyTuple_Pack(4, records, entries, keyed, results);

done:
    Py_DECREF(messages);
    Py_XDECREF(records);
    Py_XDECREF(entries);
    Py_XDECREF(keyed);
    Py_XDECREF(results);
    return made;
}
