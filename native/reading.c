/* Records of the log as they are looked for: for a pull those that entries of a consume queue speak
   of, and whether they stand there; for a start all that follow each other.

   A wanted record is a tuple (commit-log offset, size, queue offset). Python:
   store/queue_reader.py, commitlog.py, record.py and log_scan.py. */

#include "native.h"

/* the record size in an entry of an offset that has no record */
enum { FILLER_SIZE = 0x7FFFFFFF };

/* no sum of an offset below it and of sizes of 32 bits overflows */
#define FARTHEST ((int64_t)1 << 62)

typedef struct {
    int64_t offset, size, queue_offset;
} Wanted;

/* whether *entry* is a wanted record with numbers that can be added up; the numbers */
static int read_wanted(PyObject *entry, Wanted *wanted)
{
    return PyTuple_Check(entry) && PyTuple_GET_SIZE(entry) == 3
        && is_number(PyTuple_GET_ITEM(entry, 0), 0, FARTHEST - 1, &wanted->offset)
        && is_number(PyTuple_GET_ITEM(entry, 1), 0, INT32_MAX, &wanted->size)
        && is_number(PyTuple_GET_ITEM(entry, 2), INT64_MIN, INT64_MAX, &wanted->queue_offset);
}

/* *count* numbers from *args* on; 0 where one is no number of 64 bits, without an exception */
static int read_numbers(PyObject *const *args, int count, int64_t *numbers)
{
    for (int i = 0; i < count; i++)
        if (!is_number(args[i], INT64_MIN, INT64_MAX, &numbers[i]))
            return 0;
    return 1;
}

/* chosen(entries, tags, wanted, offset, total, most, most_bytes, log_start): see
 * ogive.store.queue_reader; None for unusual numbers */
FUNCTION(chosen)
{
    if (count != 8 || !PyBytes_Check(args[0]) || (args[1] != Py_None && !PyAnySet_Check(args[1]))
        || !PyList_Check(args[2]))
        return misused(
            "chosen(entries: bytes, tags: frozenset or None, wanted: list, five numbers)");
    PyObject *tags = args[1], *wanted = args[2];
    int64_t numbers[5];
    if (!read_numbers(args + 3, 5, numbers) || PyBytes_GET_SIZE(args[0]) % ENTRY_BYTES != 0)
        Py_RETURN_NONE;
    int64_t offset = numbers[0], total = numbers[1], most = numbers[2], most_bytes = numbers[3],
            log_start = numbers[4];
    if (offset < 0 || offset > FARTHEST || total < 0 || total > FARTHEST)
        Py_RETURN_NONE;
    const uint8_t *entry = (const uint8_t *)PyBytes_AS_STRING(args[0]),
                  *end = entry + PyBytes_GET_SIZE(args[0]);
    int gone = 0, full = 0;
    for (; entry < end; entry += ENTRY_BYTES, offset++) {
        if (tags != Py_None) {
            PyObject *code = PyLong_FromLong((int32_t)get32(entry + 16));
            int found = code == NULL ? -1 : PySet_Contains(tags, code);
            Py_XDECREF(code);
            if (found < 0)
                return NULL;
            if (!found)
                continue;
        }
        int64_t commitlog_offset = (int64_t)get64(entry);
        int32_t size = (int32_t)get32(entry + 8);
        if (size == FILLER_SIZE || commitlog_offset < log_start) {
            gone = 1;
            continue;
        }
        Py_ssize_t chosen = PyList_GET_SIZE(wanted);
        if (chosen != 0 && (total + size > most_bytes || chosen >= most)) {
            full = 1;
            break;
        }
        PyObject *one =
            Py_BuildValue("(LiL)", (long long)commitlog_offset, (int)size, (long long)offset);
        int failed = one == NULL || PyList_Append(wanted, one) < 0;
        Py_XDECREF(one);
        if (failed)
            return NULL;
        total += size;
    }
    return Py_BuildValue("(LLNN)", (long long)offset, (long long)total, PyBool_FromLong(gone),
        PyBool_FromLong(full));
}

/* The numbers of (wanted, at, number, number), of which *at* is a place in *wanted*: 1, 0 for
 * unusual ones, -1 for other arguments */
static int take_place(PyObject *const *args, Py_ssize_t count, const char *form, int64_t *numbers)
{
    if (count != 4 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, form);
        return -1;
    }
    return read_numbers(args + 1, 3, numbers) && numbers[0] >= 0
        && numbers[0] < PyList_GET_SIZE(args[0]);
}

/* near(wanted, at, limit, gap): see ogive.store.commitlog; None for unusual numbers */
FUNCTION(near)
{
    int64_t numbers[3];
    Wanted one;
    int usual =
        take_place(args, count, "near(wanted: list, at: int, limit: int, gap: int)", numbers);
    if (usual <= 0)
        return usual < 0 ? NULL : Py_NewRef(Py_None);
    Py_ssize_t at = (Py_ssize_t)numbers[0];
    int64_t limit = numbers[1], gap = numbers[2];
    if (gap < 0 || gap > INT32_MAX || !read_wanted(PyList_GET_ITEM(args[0], at), &one))
        Py_RETURN_NONE;
    int64_t stop = one.offset + one.size, asked = one.size;
    for (at++; at < PyList_GET_SIZE(args[0]); at++) {
        if (!read_wanted(PyList_GET_ITEM(args[0], at), &one))
            Py_RETURN_NONE;
        if (one.offset < stop || one.offset > stop + gap || one.offset + one.size > limit)
            break;
        stop = one.offset + one.size;
        asked += one.size;
    }
    return Py_BuildValue("(nLL)", at, (long long)stop, (long long)asked);
}

/* inside(wanted, at, start, end): see ogive.store.commitlog; None for unusual numbers */
FUNCTION(inside)
{
    int64_t numbers[3];
    Wanted one;
    int usual =
        take_place(args, count, "inside(wanted: list, at: int, start: int, end: int)", numbers);
    if (usual <= 0)
        return usual < 0 ? NULL : Py_NewRef(Py_None);
    Py_ssize_t at = (Py_ssize_t)numbers[0] + 1;
    for (; at < PyList_GET_SIZE(args[0]); at++) {
        if (!read_wanted(PyList_GET_ITEM(args[0], at), &one))
            Py_RETURN_NONE;
        if (one.offset < numbers[1] || one.offset + one.size > numbers[2])
            break;
    }
    return PyLong_FromSsize_t(at);
}

static int add_view(PyObject *views, PyObject *data, Py_ssize_t first, Py_ssize_t last)
{
    PyObject *view = PySequence_GetSlice(data, first, last);
    int failed = view == NULL || PyList_Append(views, view) < 0;
    Py_XDECREF(view);
    return failed ? -1 : 0;
}

/* picked(wanted, start, data): see ogive.store.commitlog; None for unusual numbers */
FUNCTION(picked)
{
    int64_t start, total = 0;
    Py_ssize_t first = 0, last = 0;
    Wanted one;
    if (count != 3 || !PyList_Check(args[0]) || !PyBytes_Check(args[2]))
        return misused("picked(wanted: list, start: int, data: bytes)");
    if (!read_numbers(args + 1, 1, &start) || start < 0)
        Py_RETURN_NONE;
    PyObject *views = PyList_New(0), *data = PyMemoryView_FromObject(args[2]);
    if (views == NULL || data == NULL)
        goto failed;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[0]); i++) {
        if (!read_wanted(PyList_GET_ITEM(args[0], i), &one) || one.offset < start
            || one.offset - start > PyBytes_GET_SIZE(args[2]) - one.size) {
            Py_DECREF(views);
            Py_DECREF(data);
            Py_RETURN_NONE;
        }
        Py_ssize_t at = (Py_ssize_t)(one.offset - start);
        if (at != last) {
            if (last > first && add_view(views, data, first, last) < 0)
                goto failed;
            first = at;
        }
        last = at + (Py_ssize_t)one.size;
        total += one.size;
    }
    if (last > first && add_view(views, data, first, last) < 0)
        goto failed;
    Py_DECREF(data);
    return Py_BuildValue("(NL)", views, (long long)total);

failed:
    Py_XDECREF(views);
    Py_XDECREF(data);
    return NULL;
}

/* --- records of the log --------------------------------------------------------------------- */

/* whether the last CRC_BYTES of the *size* bytes are the checksum of those before them */
static int crc_holds(const uint8_t *record, size_t size)
{
    const uint8_t *tail = record + size - CRC_BYTES;
    if (memcmp(tail, CRC_NAME, CRC_NAME_BYTES) != 0 || tail[CRC_BYTES - 1] != 2)
        return 0;
    uint32_t crc = crc_of(record, size - CRC_BYTES, 0) & 0x7FFFFFFF;
    for (const uint8_t *digit = tail + CRC_NAME_BYTES; digit < tail + CRC_BYTES - 1;
        digit++, crc /= 10)
        if (*digit != '0' + crc % 10)
            return 0;
    return 1;
}

/* doubtful(data, base, wanted, queue_id, field, sound): those of *wanted* that are not plainly the
   records meant; None for unusual numbers.

   Plainly is: version 1, IPv4 hosts, its own offset, the queue's topic, id and offset, and, unless
   *sound*, the checksum over the whole. */
FUNCTION(doubtful)
{
    int64_t base, queue_id;
    Wanted one;
    if (count != 6 || !PyBytes_Check(args[0]) || !PyList_Check(args[2]) || !PyBytes_Check(args[4])
        || !PyBool_Check(args[5]))
        return misused("doubtful(data: bytes, base: int, wanted: list, queue_id: int, field: "
                       "bytes, sound: bool)");
    const uint8_t *data = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    const char *field = PyBytes_AS_STRING(args[4]);
    int64_t size = PyBytes_GET_SIZE(args[0]), field_size = PyBytes_GET_SIZE(args[4]);
    int sound = args[5] == Py_True;
    if (!read_numbers(args + 1, 1, &base) || !read_numbers(args + 3, 1, &queue_id) || base < 0
        || field_size > 128)
        Py_RETURN_NONE;
    PyObject *doubtful = PyList_New(0);
    if (doubtful == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[2]); i++) {
        PyObject *entry = PyList_GET_ITEM(args[2], i);
        if (!read_wanted(entry, &one)) {
            Py_DECREF(doubtful);
            Py_RETURN_NONE;
        }
        if (one.size >= FIXED_V4 + field_size + 2 + CRC_BYTES && one.offset >= base
            && one.offset - base <= size - one.size) {
            const uint8_t *record = data + (one.offset - base);
            /* for the body and the properties */
            int64_t room = one.size - FIXED_V4 - field_size - 2;
            int64_t body_size = (int32_t)get32(record + BODY_SIZE_AT);
            if (get32(record) == one.size && get32(record + MAGIC_AT) == MAGIC_V1
                && (int32_t)get32(record + QUEUE_ID_AT) == queue_id
                && (int64_t)get64(record + QUEUE_OFFSET_AT) == one.queue_offset
                && (int64_t)get64(record + COMMITLOG_OFFSET_AT) == one.offset
                && !(get32(record + SYS_FLAG_AT) & HOSTS_V6) && body_size >= 0
                && body_size <= room - CRC_BYTES) {
                const uint8_t *topic = record + FIXED_V4 + body_size;
                if (memcmp(topic, field, (size_t)field_size) == 0
                    && (sound
                        || (get16(topic + field_size) == room - body_size
                            && crc_holds(record, (size_t)one.size))))
                    continue;
            }
        }
        if (PyList_Append(doubtful, entry) < 0) {
            Py_DECREF(doubtful);
            return NULL;
        }
    }
    return doubtful;
}

/* whole_records(block, at, position, limit, most, record): ([(position, *record*, block, place)],
   where they end) of the records one behind the other from byte *at* of *block* on, which stands at
   commit-log offset *position*: at most *most*, none at *limit* or behind it, up to the first that
   is not plainly whole, with IPv4 hosts and the checksum over all of it. */
FUNCTION(whole_records)
{
    int64_t numbers[4];
    if (count != 6 || !PyBytes_Check(args[0]) || !is_tuple_type(args[5]))
        return misused("whole_records(block: bytes, at: int, position: int, limit: int, most: int, "
                       "record: type of NamedTuple)");
    if (!read_numbers(args + 1, 4, numbers))
        Py_RETURN_NONE;
    int64_t at = numbers[0], position = numbers[1], limit = numbers[2], most = numbers[3],
            end = PyBytes_GET_SIZE(args[0]);
    if (at < 0 || at > end || position < 0 || position > FARTHEST)
        Py_RETURN_NONE;
    /* the last one: a queue's records often follow each other */
    PyObject *found = PyList_New(0), *topic = NULL;
    if (found == NULL)
        return NULL;
    while (
        position < limit && PyList_GET_SIZE(found) < most && end - at >= SMALLEST_V4 + CRC_BYTES) {
        const uint8_t *record = (const uint8_t *)PyBytes_AS_STRING(args[0]) + at;
        int64_t size = get32(record), body_size = (int32_t)get32(record + BODY_SIZE_AT);
        /* for body, topic and properties */
        int64_t room = size - SMALLEST_V4;
        if (get32(record + MAGIC_AT) != MAGIC_V1
            || (int64_t)get64(record + COMMITLOG_OFFSET_AT) != position
            || get32(record + SYS_FLAG_AT) & HOSTS_V6 || size > end - at || body_size < 0
            || body_size > room - CRC_BYTES)
            break;
        const uint8_t *name = record + FIXED_V4 + body_size + 1;
        int64_t name_size = name[-1], properties_size = room - body_size - name_size;
        if (properties_size < CRC_BYTES || get16(name + name_size) != properties_size
            || !crc_holds(record, (size_t)size))
            break;
        if (topic == NULL || PyBytes_GET_SIZE(topic) != name_size
            || memcmp(PyBytes_AS_STRING(topic), name, (size_t)name_size) != 0)
            Py_XSETREF(topic, PyBytes_FromStringAndSize((const char *)name, (Py_ssize_t)name_size));
        if (topic == NULL)
            goto failed;
        PyObject *fields[] = {
            PyLong_FromLongLong(size),
            Py_NewRef(topic),
            PyLong_FromLong((int32_t)get32(record + QUEUE_ID_AT)),
            PyLong_FromLongLong((int64_t)get64(record + QUEUE_OFFSET_AT)),
            PyLong_FromLong((int32_t)get32(record + SYS_FLAG_AT)),
            PyLong_FromLongLong((int64_t)get64(record + STORED_AT)),
            PyLong_FromLongLong(at + size - properties_size),
            Py_NewRef(Py_False), /* plain */
        };
        PyObject *one = Py_BuildValue("(LNOL)", (long long)position,
            make_tuple((PyTypeObject *)args[5], fields, 8), args[0], (long long)at);
        int failed = one == NULL || PyList_Append(found, one) < 0;
        Py_XDECREF(one);
        if (failed)
            goto failed;
        at += size;
        position += size;
    }
    Py_XDECREF(topic);
    return Py_BuildValue("(NL)", found, (long long)position);

failed:
    Py_XDECREF(topic);
    Py_DECREF(found);
    return NULL;
}
