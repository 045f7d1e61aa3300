/* Rows of Arrow columns as batches of messages. Python: spark/rows.py, wire/message.py
   encode_batch().

   The properties of each are the unique key, 20 digits that all rows have and 12 of the row's
   number in upper-case hex; then tag and keys. */

#include "native.h"

enum { HEAD = 20, ROW_DIGITS = 12, LONGEST = 4000 };

#define KEY_NAME "UNIQ_KEY\1"
#define TAGS_NAME "TAGS\1"
#define KEYS_NAME "KEYS\1"

enum { KEY_SIZE = sizeof KEY_NAME - 1 + HEAD + ROW_DIGITS + 1 };

/* a column of texts: 32-bit ends in this machine's byte order, a bit for each row that is not null
 */
struct column {
    int given, is_text;
    /* of its first row in the buffers */
    int64_t offset;
    Py_buffer validity, ends, data;
};

struct work {
    struct column body, tags, keys;
    int64_t rows, most_bytes, most_rows;
    const uint8_t *head;
    /* the number of the first row */
    int64_t first;
};

struct text {
    const uint8_t *at;
    size_t size;
    int given;
};

/* Whether what the row has there lies in the column's data, or is null. */
static int find(const struct column *column, Py_ssize_t row, struct text *found)
{
    *found = (struct text){.given = 0};
    if (!column->given)
        return 1;
    row += column->offset;
    if (column->validity.buf != NULL
        && !(((const uint8_t *)column->validity.buf)[row / 8] >> row % 8 & 1))
        return 1;
    int32_t cuts[2];
    memcpy(cuts, (const char *)column->ends.buf + 4 * row, sizeof cuts);
    if (cuts[0] < 0 || cuts[1] < cuts[0] || cuts[1] > column->data.len)
        return 0;
    found->given = 1;
    found->size = (size_t)(cuts[1] - cuts[0]);
    found->at = found->size ? (const uint8_t *)column->data.buf + cuts[0] : (const uint8_t *)"";
    return 1;
}

/* Whether that is usual, too. */
static int look(const struct column *column, Py_ssize_t row, struct text *found)
{
    return find(column, row, found)
        && (!found->given || !column->is_text || is_utf8(found->at, found->size));
}

/* as look(); a text that is a property is neither empty nor long, and without separators */
static int look_for_property(
    const struct column *column, Py_ssize_t row, struct text *found, uint8_t forbidden)
{
    if (!look(column, row, found))
        return 0;
    if (!found->given)
        return 1;
    if (found->size == 0 || found->size > LONGEST)
        return 0;
    uint8_t any = 0;
    for (size_t i = 0; i < found->size; i++)
        any |= (uint8_t)((found->at[i] == 1) | (found->at[i] == 2) | (found->at[i] == forbidden));
    return !any;
}

static size_t item_size(const struct text *body, const struct text *tags, const struct text *keys)
{
    return BATCH_ITEM_BYTES + body->size + KEY_SIZE
        + (tags->given ? sizeof TAGS_NAME + tags->size : 0)
        + (keys->given ? sizeof KEYS_NAME + keys->size : 0);
}

/* How many rows from *row* on fit into a batch, and its size; 0 where one of them is unusual, or
 * too long for a batch. */
static Py_ssize_t fit(const struct work *work, Py_ssize_t row, Py_ssize_t *size)
{
    Py_ssize_t count = 0;
    struct text body, tags, keys;
    *size = 0;
    for (; row < work->rows && count < work->most_rows; row++, count++) {
        if (!look(&work->body, row, &body) || !body.given
            || !look_for_property(&work->tags, row, &tags, 1)
            || !look_for_property(&work->keys, row, &keys, ' '))
            return 0;
        size_t item = item_size(&body, &tags, &keys);
        if (item > (size_t)(work->most_bytes - *size))
            break;
        *size += (Py_ssize_t)item;
    }
    return count;
}

static uint8_t *put(uint8_t *to, const void *from, size_t size)
{
    memcpy(to, from, size);
    return to + size;
}

static uint8_t *put_property(
    uint8_t *to, const char *name, size_t name_size, const struct text *value)
{
    if (!value->given)
        return to;
    to = put(put(to, name, name_size), value->at, value->size);
    *to = 2;
    return to + 1;
}

/* Whether they have filled all *size* bytes: their buffers may have changed since fit() looked, as
 * other threads run. */
static int write_batch(
    const struct work *work, Py_ssize_t row, Py_ssize_t count, uint8_t *to, Py_ssize_t size)
{
    uint8_t number[8];
    const uint8_t *to_end = to + size;
    struct text body, tags, keys;
    for (Py_ssize_t end = row + count; row < end; row++) {
        if (!find(&work->body, row, &body) || !body.given || !find(&work->tags, row, &tags)
            || !find(&work->keys, row, &keys)
            || item_size(&body, &tags, &keys) > (size_t)(to_end - to))
            return 0;
        uint8_t *item = to;
        memset(item, 0, 16);
        put32(item + 16, (uint32_t)body.size);
        uint8_t *properties = put(item + 20, body.at, body.size) + 2;
        to = put(put(properties, KEY_NAME, sizeof KEY_NAME - 1), work->head, HEAD);
        put64(number, (uint64_t)(work->first + row));
        to = put_hex(to, number + sizeof number - ROW_DIGITS / 2, ROW_DIGITS / 2);
        *to++ = 2;
        to = put_property(to, TAGS_NAME, sizeof TAGS_NAME - 1, &tags);
        to = put_property(to, KEYS_NAME, sizeof KEYS_NAME - 1, &keys);
        put16(properties - 2, (uint16_t)(to - properties));
        put32(item, (uint32_t)(to - item));
    }
    return to == to_end;
}

/* a buffer of at least *size* bytes, or None for an empty one; 1, 0 where it is not usual, -1 with
 * an error */
static int take(PyObject *from, Py_buffer *buffer, Py_ssize_t size)
{
    if (from != Py_None && PyObject_GetBuffer(from, buffer, PyBUF_SIMPLE) < 0)
        return -1;
    return buffer->len >= size;
}

/* *from*: None or (whether its texts are UTF-8, offset, validity or None, ends, data or None); 1, 0
 * or -1 as take() */
static int take_column(PyObject *from, struct column *column, Py_ssize_t rows)
{
    if (from == Py_None)
        return 1;
    if (!PyTuple_Check(from) || PyTuple_GET_SIZE(from) != 5
        || !PyLong_Check(PyTuple_GET_ITEM(from, 1))) {
        PyErr_SetString(PyExc_TypeError, "a column is (is_text, offset, validity, ends, data)");
        return -1;
    }
    column->given = 1;
    column->is_text = PyTuple_GET_ITEM(from, 0) == Py_True;
    if (!is_number(PyTuple_GET_ITEM(from, 1), 0, INT32_MAX, &column->offset))
        return 0;
    PyObject *validity = PyTuple_GET_ITEM(from, 2);
    int usual = take(
        validity, &column->validity, validity == Py_None ? 0 : (column->offset + rows + 7) / 8);
    if (usual == 1)
        usual = take(PyTuple_GET_ITEM(from, 3), &column->ends, 4 * (column->offset + rows + 1));
    return usual == 1 ? take(PyTuple_GET_ITEM(from, 4), &column->data, 0) : usual;
}

static void release(struct column *column)
{
    /* does nothing to one that was never taken */
    PyBuffer_Release(&column->validity);
    PyBuffer_Release(&column->ends);
    PyBuffer_Release(&column->data);
}

/* encode_rows(rows, body, tags, keys, head, first, most_bytes, most_rows): batches of all rows, as
 * (how many rows, batch) */
FUNCTION(encode_rows)
{
    if (count != 8 || !PyLong_Check(args[0]) || !PyBytes_Check(args[4]) || !PyLong_Check(args[5])
        || !PyLong_Check(args[6]) || !PyLong_Check(args[7]))
        return misused(
            "encode_rows(rows, body, tags, keys, head: bytes, first, most_bytes, most_rows)");
    struct work work = {.head = (const uint8_t *)PyBytes_AS_STRING(args[4])};
    if (PyBytes_GET_SIZE(args[4]) != HEAD || !is_number(args[0], 1, INT32_MAX, &work.rows)
        || !is_number(args[5], 0, (1LL << 4 * ROW_DIGITS) - work.rows, &work.first)
        || !is_number(args[6], 0, INT32_MAX, &work.most_bytes)
        || !is_number(args[7], 0, INT64_MAX, &work.most_rows))
        Py_RETURN_NONE;
    PyObject *batches = NULL;
    int usual = take_column(args[1], &work.body, work.rows);
    if (usual == 1)
        usual = take_column(args[2], &work.tags, work.rows);
    if (usual == 1)
        usual = take_column(args[3], &work.keys, work.rows);
    if (usual == 1 && (batches = PyList_New(0)) == NULL)
        usual = -1;
    for (Py_ssize_t row = 0; usual == 1 && row < work.rows;) {
        Py_ssize_t size, some;
        Py_BEGIN_ALLOW_THREADS some = fit(&work, row, &size);
        Py_END_ALLOW_THREADS if (some < 1)
        {
            usual = 0;
            break;
        }
        PyObject *batch = Py_BuildValue("nN", some, PyBytes_FromStringAndSize(NULL, size));
        if (batch == NULL || PyList_Append(batches, batch) < 0) {
            Py_XDECREF(batch);
            usual = -1;
            break;
        }
        uint8_t *to = (uint8_t *)PyBytes_AS_STRING(PyTuple_GET_ITEM(batch, 1));
        /* the list has it */
        Py_DECREF(batch);
        Py_BEGIN_ALLOW_THREADS usual = write_batch(&work, row, some, to, size);
        Py_END_ALLOW_THREADS row += some;
    }
    release(&work.body);
    release(&work.tags);
    release(&work.keys);
    if (usual == 1)
        return batches;
    Py_XDECREF(batches);
    if (usual < 0)
        return NULL;
    Py_RETURN_NONE;
}
