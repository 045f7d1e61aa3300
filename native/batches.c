/* The body of a batch. Python: wire/message.py,
 * broker/sends/plan.py. */

#include "native.h"

int read_batch_item(const uint8_t **at, const uint8_t *end, BatchItem *item)
{
    if (end - *at < BATCH_ITEM_BYTES)
        return 0;
    uint32_t size = get32(*at), body_size = get32(*at + 16);
    if (size < BATCH_ITEM_BYTES || size > (size_t)(end - *at) || size > INT32_MAX
        || body_size > size - BATCH_ITEM_BYTES)
        return 0;
    item->flag = (int32_t)get32(*at + 12);
    item->body = *at + 20;
    item->body_size = body_size;
    item->properties = *at + BATCH_ITEM_BYTES + body_size;
    item->properties_size = size - BATCH_ITEM_BYTES - body_size;
    if (get16(item->properties - 2) != item->properties_size)
        return 0;
    *at += size;
    return 1;
}

/* batch_items(body, most, item): each an *item*(flag, body, properties), or None where lengths do
 * not add up or there are more than most*. */
FUNCTION(batch_items)
{
    if (count != 3 || !PyBytes_Check(args[0]) || !PyLong_Check(args[1])
        || !is_tuple_type(args[2])) {
        PyErr_SetString(
            PyExc_TypeError, "batch_items(body: bytes, most: int, item: type[BatchItem])");
        return NULL;
    }
    int64_t most;
    if (!is_number(args[1], INT64_MIN, INT64_MAX, &most))
        Py_RETURN_NONE;
    const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(args[0]),
                  *end = at + PyBytes_GET_SIZE(args[0]);
    PyObject *items = PyList_New(0);
    if (items == NULL)
        return NULL;
    while (at < end) {
        BatchItem item;
        if (PyList_GET_SIZE(items) >= most || !read_batch_item(&at, end, &item)) {
            Py_DECREF(items);
            Py_RETURN_NONE;
        }
        PyObject *parts[] = {
            PyLong_FromLong(item.flag),
            PyBytes_FromStringAndSize((const char *)item.body, item.body_size),
            PyBytes_FromStringAndSize((const char *)item.properties, item.properties_size),
        };
        PyObject *made = make_tuple((PyTypeObject *)args[2], parts, 3);
        int failed = made == NULL || PyList_Append(items, made) < 0;
        Py_XDECREF(made);
        if (failed) {
            Py_DECREF(items);
            return NULL;
        }
    }
    return items;
}

/* The parts of an item that fits, and its size; 0 for another. */
static Py_ssize_t take_item(PyObject *item, int32_t *flag, PyObject **body, PyObject **properties)
{
    int64_t number;
    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 3
        || !is_number(PyTuple_GET_ITEM(item, 0), INT32_MIN, INT32_MAX, &number))
        return 0;
    *flag = (int32_t)number;
    *body = PyTuple_GET_ITEM(item, 1);
    *properties = PyTuple_GET_ITEM(item, 2);
    if (!PyBytes_Check(*body) || !PyBytes_Check(*properties)
        || PyBytes_GET_SIZE(*properties) > 0xFFFF
        || PyBytes_GET_SIZE(*body) > INT32_MAX - BATCH_ITEM_BYTES - 0xFFFF)
        return 0;
    return BATCH_ITEM_BYTES + PyBytes_GET_SIZE(*body) + PyBytes_GET_SIZE(*properties);
}

/* batch_body(items): the body that holds these tuples of flag, body and properties, or None where
 * one does not fit. */
FUNCTION(batch_body)
{
    if (count != 1 || !PyList_Check(args[0]))
        return misused("batch_body(items: list[tuple[int, bytes, bytes]])");
    PyObject *items = args[0], *body, *properties;
    Py_ssize_t room = 0;
    int32_t flag;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        Py_ssize_t size = take_item(PyList_GET_ITEM(items, i), &flag, &body, &properties);
        if (size == 0 || size > PY_SSIZE_T_MAX - room)
            Py_RETURN_NONE;
        room += size;
    }
    PyObject *whole = PyBytes_FromStringAndSize(NULL, room);
    if (whole == NULL)
        return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AS_STRING(whole);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        Py_ssize_t size = take_item(PyList_GET_ITEM(items, i), &flag, &body, &properties);
        if (size == 0 || size > room)
            break;
        size_t body_size = (size_t)PyBytes_GET_SIZE(body),
               properties_size = (size_t)PyBytes_GET_SIZE(properties);
        put32(at, (uint32_t)size);
        memset(at + 4, 0, 8);
        put32(at + 12, (uint32_t)flag);
        put32(at + 16, (uint32_t)body_size);
        memcpy(at + 20, PyBytes_AS_STRING(body), body_size);
        put16(at + 20 + body_size, (uint16_t)properties_size);
        memcpy(at + BATCH_ITEM_BYTES + body_size, PyBytes_AS_STRING(properties), properties_size);
        at += size;
        room -= size;
    }
    if (room == 0)
        return whole;
    Py_DECREF(whole);
    Py_RETURN_NONE;
}

/* Whether a property begins with one of *starts*, a tuple of bytes. */
static int has_start(const uint8_t *at, const uint8_t *end, PyObject *starts)
{
    while (at < end) {
        const uint8_t *stop = property_end(at, end);
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(starts); i++) {
            PyObject *start = PyTuple_GET_ITEM(starts, i);
            Py_ssize_t size = PyBytes_GET_SIZE(start);
            if (stop - at >= size && memcmp(at, PyBytes_AS_STRING(start), (size_t)size) == 0)
                return 1;
        }
        at = stop == end ? end : stop + 1;
    }
    return 0;
}

static Py_ssize_t count_plain_items(
    const uint8_t *at, const uint8_t *end, PyObject *starts, int64_t most)
{
    BatchItem item;
    Py_ssize_t items = 0;
    for (; at < end; items++) {
        if (items >= most || !read_batch_item(&at, end, &item)
            || item.properties_size > MAX_PROPERTIES_BYTES
            || has_start(item.properties, item.properties + item.properties_size, starts))
            return 0;
    }
    return items;
}

/* plain_batch(data, start, starts, most): how many messages the batch in data[start:] holds, at
   most so many, with properties that a record has room for and of which none begins with one of
   *starts*. None where one of them does, where lengths do not add up, or there is none or more. */
FUNCTION(plain_batch)
{
    int64_t start, most;
    if (count != 4 || !PyBytes_Check(args[0])
        || !is_number(args[1], 0, PyBytes_GET_SIZE(args[0]), &start) || !is_bytes_tuple(args[2])
        || !PyLong_Check(args[3]))
        return misused(
            "plain_batch(data: bytes, start: int, starts: tuple[bytes, ...], most: int)");
    const uint8_t *data = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    Py_ssize_t items = 0;
    if (is_number(args[3], INT64_MIN, INT64_MAX, &most))
        items = count_plain_items(data + start, data + PyBytes_GET_SIZE(args[0]), args[2], most);
    if (items == 0)
        Py_RETURN_NONE;
    return PyLong_FromSsize_t(items);
}
