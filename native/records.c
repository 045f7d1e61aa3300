/* Records of the commit log, with what is kept and answered of each. Python: store/record.py. */

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

/* Of a record: what its message has of its own */
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
    int separator, with_crc;
} Part;

static void take_properties(const uint8_t *properties, Py_ssize_t size, int with_crc, Part *part)
{
    if (size >= CRC_BYTES && memcmp(properties + size - CRC_BYTES, CRC_NAME, CRC_NAME_BYTES) == 0)
        /* it speaks of the record that this message came from */
        size -= CRC_BYTES;
    part->properties = properties;
    part->properties_size = size;
    part->separator = with_crc && size && size < MAX_PROPERTIES_BYTES && properties[size - 1] != 2;
    part->with_crc = with_crc && size + part->separator <= MAX_CRC_PROPERTIES;
}

static int misfit(const char *why)
{
    PyErr_Format(PyExc_ValueError, "message does not fit the stored form: %s", why);
    return 0;
}

/* What the heads of a message's records have in common, in *head*; its size, or 0 with an error. */
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
        return (size_t)misfit("a number is out of range");
    size_t born_size = (size_t)PyBytes_GET_SIZE(born_host),
           store_size = (size_t)PyBytes_GET_SIZE(store_host);
    if ((born_size != HOST_V4 && born_size != HOST_V6)
        || (store_size != HOST_V4 && store_size != HOST_V6))
        return (size_t)misfit("a host has 8 or 20 bytes");
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

static void put_record(uint8_t *record, const Part *part, const uint8_t *head, size_t head_size,
    PyObject *field, uint32_t size, int64_t offset, int64_t position)
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
    put16(
        at, (uint16_t)(part->properties_size + part->separator + (part->with_crc ? CRC_BYTES : 0)));
    memcpy(at + 2, part->properties, (size_t)part->properties_size);
    at += 2 + part->properties_size;
    if (part->separator)
        *at++ = 2;
    if (part->with_crc) {
        uint32_t crc = crc_of(record, (size_t)(at - record), 0) & 0x7FFFFFFF;
        memcpy(at, CRC_NAME, CRC_NAME_BYTES);
        at += CRC_NAME_BYTES;
        /* the least significant first */
        for (int digit = 0; digit < 10; digit++, crc /= 10)
            *at++ = (uint8_t)('0' + crc % 10);
        *at = 2;
    }
}

/* Java's hash of the TAGS property, 0 without one; -1 is returned with an error. */
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
    uint32_t found = 0;
    int right = tag == NULL || java_hash_replacing(0, tag, tag_end - tag, &found);
    *hash = (int32_t)found;
    return right ? 0 : -1;
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

/* A queue that records are for */
typedef struct {
    PyObject *name, *field, *topic;
    int64_t id;
    /* offset in the queue */
    int64_t next;
    /* the hash that those of its keys begin with */
    uint32_t prefix;
    /* of its entries */
    Py_ssize_t count;
    /* the next of them */
    uint8_t *entry;
} Queue;

/* Goes through the messages, record by record */
typedef struct {
    PyObject *messages;
    Queue *queues;
    Py_ssize_t queue_count;
    int64_t stored_ms;
    int with_crc;
    /* of the next message */
    Py_ssize_t at;
    /* of the next one in a batch, or NULL */
    const uint8_t *item, *end;
    /* how many the batch has, and how many are left in it */
    int64_t number, left;
    /* of the record: */
    uint8_t head[MAX_HEAD_BYTES];
    size_t head_size;
    int kind;
    Queue *queue;
    Part part;
    Py_ssize_t size;
} Records;

static int is_visible(int kind)
{
    return kind == 0 || kind == TRANSACTION_COMMIT;
}

/* A single message; 0 with an error */
static int take_message(PyObject *message, Records *records)
{
    PyObject *body = PyTuple_GET_ITEM(message, BODY),
             *properties = PyTuple_GET_ITEM(message, PROPERTIES);
    int64_t flag;
    if (!is_number(PyTuple_GET_ITEM(message, FLAG), INT32_MIN, SIZE_BEFORE, &flag)
        || (flag == SIZE_BEFORE && records->size == 0))
        return misfit("a number is out of range");
    if (!PyBytes_Check(body) || !PyBytes_Check(properties))
        return misfit("body and properties are bytes");
    Part *part = &records->part;
    part->flag = (int32_t)(flag == SIZE_BEFORE ? records->size : flag);
    part->body = (const uint8_t *)PyBytes_AS_STRING(body);
    part->body_size = PyBytes_GET_SIZE(body);
    part->given = properties;
    take_properties((const uint8_t *)PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties),
        records->with_crc, part);
    return 1;
}

/* The next one of a batch; 0 with an error */
static int take_item(Records *records)
{
    BatchItem item;
    if (records->left-- == 0 || !read_batch_item(&records->item, records->end, &item)
        || (records->item == records->end) != (records->left == 0))
        return misfit("the lengths in a batch do not add up");
    Part *part = &records->part;
    part->flag = item.flag;
    part->body = item.body;
    part->body_size = item.body_size;
    part->given = NULL;
    take_properties(item.properties, item.properties_size, records->with_crc, part);
    if (records->item == records->end)
        records->item = NULL;
    return 1;
}

/* NULL where it is none of those that were given */
static Queue *queue_of(PyObject *message, const Records *records)
{
    PyObject *topic = PyTuple_GET_ITEM(message, TOPIC);
    int64_t id;
    if (!PyUnicode_Check(topic)
        || !is_number(PyTuple_GET_ITEM(message, QUEUE_ID), INT64_MIN, INT64_MAX, &id))
        return NULL;
    for (Queue *queue = records->queues; queue < records->queues + records->queue_count; queue++) {
        if (queue->id == id && (queue->name == topic || PyUnicode_Compare(queue->name, topic) == 0))
            return queue;
    }
    return NULL;
}

/* A message, or the batch that shares it: its head, and where a batch begins; 0 with an error */
static int take_shared(Records *records)
{
    PyObject *message = PyTuple_GET_ITEM(records->messages, records->at++);
    int64_t start;
    if (PyTuple_Check(message) && PyTuple_GET_SIZE(message) == 4) {
        PyObject *data = PyTuple_GET_ITEM(message, 1);
        if (!PyBytes_Check(data)
            || !is_number(PyTuple_GET_ITEM(message, 2), 0, PyBytes_GET_SIZE(data) - 1, &start)
            || !is_number(
                PyTuple_GET_ITEM(message, 3), 1, PyBytes_GET_SIZE(data) - start, &records->number))
            return misfit("the lengths in a batch do not add up");
        records->left = records->number;
        records->item = (const uint8_t *)PyBytes_AS_STRING(data) + start;
        records->end = (const uint8_t *)PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data);
        message = PyTuple_GET_ITEM(message, 0);
    }
    if (!PyTuple_Check(message) || PyTuple_GET_SIZE(message) != MESSAGE_FIELDS)
        return misfit("it is no message");
    records->queue = queue_of(message, records);
    if (records->queue == NULL)
        return misfit("there is no such queue");
    records->head_size = fill_head(message, records->stored_ms,
        (size_t)PyBytes_GET_SIZE(records->queue->field), records->head, &records->kind);
    return records->head_size != 0 && (records->item != NULL || take_message(message, records));
}

/* The next record: 1, 0 behind the last, -1 with an error */
static int next_record(Records *records)
{
    if (records->item == NULL) {
        if (records->at == PyTuple_GET_SIZE(records->messages))
            return 0;
        if (!take_shared(records))
            return -1;
    }
    if (records->item != NULL && !take_item(records))
        return -1;
    const Part *part = &records->part;
    Py_ssize_t properties = part->properties_size + part->separator;
    records->size = (Py_ssize_t)records->head_size + part->body_size
        + PyBytes_GET_SIZE(records->queue->field) + 2 + properties
        + (part->with_crc ? CRC_BYTES : 0);
    if (records->size > MAX_RECORD_BYTES || properties > MAX_PROPERTIES_BYTES) {
        PyErr_Format(PyExc_ValueError,
            "record of %zd bytes, properties of %zd: the limits are %d and %d", records->size,
            properties, MAX_RECORD_BYTES, MAX_PROPERTIES_BYTES);
        return -1;
    }
    return 1;
}

/* Whether the record is one of a batch */
static int is_in_batch(const Records *records)
{
    return records->part.given == NULL;
}

/* Counts what the index needs of the messages, the bytes of the records, and the entries of each
 * queue; 0 with an error */
static int count_records(Records records, Py_ssize_t *keyed, Py_ssize_t *total)
{
    int found;
    *keyed = *total = 0;
    while ((found = next_record(&records)) > 0) {
        /* one of each batch */
        *keyed += records.kind != TRANSACTION_ROLLBACK
            && (!is_in_batch(&records) || records.item == NULL);
        *total += records.size;
        records.queue->count += is_visible(records.kind);
    }
    return found == 0;
}

/* The fields of a queue, see QueueEnd in Python; 0 with an error */
static int take_queue(PyObject *end, Queue *queue)
{
    *queue = (Queue){0};
    PyObject *place;
    if (!PyTuple_Check(end) || PyTuple_GET_SIZE(end) != 2
        || !is_number(PyTuple_GET_ITEM(end, 1), 0, INT64_MAX / 2, &queue->next)
        || !PyTuple_Check(place = PyTuple_GET_ITEM(end, 0)) || PyTuple_GET_SIZE(place) != 4
        || !is_number(PyTuple_GET_ITEM(place, 1), INT64_MIN, INT64_MAX, &queue->id))
        return misfit("a queue is its place and its next offset");
    queue->name = PyTuple_GET_ITEM(place, 0);
    queue->field = PyTuple_GET_ITEM(place, 2);
    queue->topic = PyTuple_GET_ITEM(place, 3);
    if (!PyUnicode_Check(queue->name) || !PyBytes_Check(queue->field)
        || PyBytes_GET_SIZE(queue->field) > 0xFFFF || !PyBytes_Check(queue->topic))
        return misfit("a place is a topic, a queue id, and twice the topic's bytes");
    return key_prefix(queue->topic, &queue->prefix);
}

/* Where the records of a batch are, and what the index needs of them */
typedef struct {
    /* commit-log offsets, as bytes */
    PyObject *places;
    int64_t offset, position;
    Py_ssize_t size;
    PackedKeys keys;
} Batch;

/* A PutResult; takes *places* over */
static PyObject *make_result(PyTypeObject *type, int64_t offset, int64_t position, Py_ssize_t size,
    PyObject *stored_ms, PyObject *places)
{
    PyObject *fields[] = {PyLong_FromLongLong(offset), PyLong_FromLongLong(position),
        PyLong_FromSsize_t(size), Py_NewRef(stored_ms), places};
    return make_tuple(type, fields, 5);
}

/* Adds a record to those of its batch; 0 with an error */
static int add_to_batch(Batch *batch, const Records *records, int64_t offset, int64_t position)
{
    int64_t at = records->number - records->left - 1;
    if (at == 0) {
        batch->places = PyBytes_FromStringAndSize(NULL, records->number * 8);
        if (batch->places == NULL)
            return 0;
        batch->offset = offset;
        batch->position = position;
        batch->size = 0;
        batch->keys.size = 0;
    }
    put64((uint8_t *)PyBytes_AS_STRING(batch->places) + 8 * at, (uint64_t)position);
    batch->size += records->size;
    return records->kind == TRANSACTION_ROLLBACK
        || pack_keys(&batch->keys, records->queue->prefix, records->part.properties,
            records->part.properties_size, position);
}

/* Puts all records from *position* on, and what is kept of each; 0 with an error */
static int put_records(Records records, int64_t position, PyObject *stored_ms, PyTypeObject *type,
    uint8_t *to, PyObject *keyed, PyObject *results, Batch *batch)
{
    Py_ssize_t number = 0, keys = 0;
    for (; next_record(&records) > 0; to += records.size, position += records.size) {
        Queue *queue = records.queue;
        int64_t offset = 0;
        int32_t hash;
        if (is_visible(records.kind)) {
            if (hash_tag(&records.part, &hash) < 0)
                return 0;
            put64(queue->entry, (uint64_t)position);
            put32(queue->entry + 8, (uint32_t)records.size);
            put64(queue->entry + 12, (uint64_t)(int64_t)hash);
            queue->entry += ENTRY_BYTES;
            offset = queue->next++;
        }
        put_record(to, &records.part, records.head, records.head_size, queue->field,
            (uint32_t)records.size, offset, position);
        PyObject *result, *key = NULL;
        if (is_in_batch(&records)) {
            if (!add_to_batch(batch, &records, offset, position))
                return 0;
            if (records.item != NULL)
                continue;
            result = make_result(
                type, batch->offset, batch->position, batch->size, stored_ms, batch->places);
            batch->places = NULL;
            if (records.kind != TRANSACTION_ROLLBACK)
                key = Py_BuildValue("(NO)",
                    PyBytes_FromStringAndSize((const char *)batch->keys.at, batch->keys.size),
                    stored_ms);
        } else {
            result = make_result(type, offset, position, records.size, stored_ms,
                PyBytes_FromStringAndSize(NULL, 0));
            if (records.kind != TRANSACTION_ROLLBACK)
                key = Py_BuildValue("(ONLO)", queue->topic, stored_properties(&records.part),
                    (long long)position, stored_ms);
        }
        if (result != NULL)
            PyList_SET_ITEM(results, number++, result);
        if (key != NULL)
            PyList_SET_ITEM(keyed, keys++, key);
        if (result == NULL || (key == NULL && records.kind != TRANSACTION_ROLLBACK))
            return 0;
    }
    return 1;
}

/* The entries of each queue, still without what stands in them; NULL with an error */
static PyObject *make_entries(Queue *queues, Py_ssize_t count)
{
    PyObject *entries = PyList_New(count);
    for (Py_ssize_t at = 0; entries != NULL && at < count; at++) {
        PyObject *own = PyBytes_FromStringAndSize(NULL, queues[at].count * ENTRY_BYTES);
        if (own == NULL) {
            Py_CLEAR(entries);
            break;
        }
        PyList_SET_ITEM(entries, at, own);
        queues[at].entry = (uint8_t *)PyBytes_AS_STRING(own);
    }
    return entries;
}

/* build_records(messages, queues, position, room, otherwise, stored_ms, with_crc, result):
 * see ogive.store.record */
FUNCTION(build_records)
{
    int64_t position, room, otherwise;
    if (count != 8 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1]) || !is_tuple_type(args[7]))
        return misused("build_records(messages: tuple, queues: tuple, position: int, room: int, "
                       "otherwise: int, stored_ms: int, with_crc: bool, result: type[PutResult])");
    Records records = {.messages = args[0],
        .queue_count = PyTuple_GET_SIZE(args[1]),
        .with_crc = args[6] == Py_True};
    if (!is_number(args[2], 0, INT64_MAX / 2, &position)
        || !is_number(args[3], INT64_MIN, INT64_MAX, &room)
        || !is_number(args[4], 0, INT64_MAX / 2, &otherwise)
        || !is_number(args[5], 0, INT64_MAX, &records.stored_ms)) {
        misfit("a place or a time is out of range");
        return NULL;
    }
    Py_ssize_t key_count, total;
    Batch batch = {0};
    PyObject *built = NULL, *data = NULL, *entries = NULL, *keyed = NULL, *results = NULL;
    records.queues = PyMem_New(Queue, records.queue_count);
    if (records.queues == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t at = 0; at < records.queue_count; at++) {
        if (!take_queue(PyTuple_GET_ITEM(args[1], at), &records.queues[at]))
            goto done;
    }
    if (!count_records(records, &key_count, &total))
        goto done;
    data = PyBytes_FromStringAndSize(NULL, total);
    entries = make_entries(records.queues, records.queue_count);
    keyed = PyList_New(key_count);
    results = PyList_New(PyTuple_GET_SIZE(args[0]));
    if (data != NULL && entries != NULL && keyed != NULL && results != NULL
        && put_records(records, total > room ? otherwise : position, args[5],
            (PyTypeObject *)args[7], (uint8_t *)PyBytes_AS_STRING(data), keyed, results, &batch))
        built = PyTuple_Pack(4, data, entries, keyed, results);

done:
    PyMem_Free(records.queues);
    PyMem_Free(batch.keys.at);
    Py_XDECREF(batch.places);
    Py_XDECREF(data);
    Py_XDECREF(entries);
    Py_XDECREF(keyed);
    Py_XDECREF(results);
    return built;
}
