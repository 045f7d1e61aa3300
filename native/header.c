/* Frames, and commands with a binary header. Python: wire/command.py, wire/command.py.

   Layout of a frame without its length word: serialize type u8 | header length u24 | code i16 |
   language u8 | version i16 | opaque i32 | flag i32 | remark length i32 | remark | length of the
   fields i32 | fields | body. A field: name length u16 | name | value length u32 | value. */

#include "native.h"

#define BINARY 1
/* without a remark */
#define FIELDS_AT 25
#define LAST_LANGUAGE 13
#define MAX_FIELDS 256

int read_header(const uint8_t *frame, Py_ssize_t size, Header *header)
{
    if (size < FIELDS_AT || frame[0] != BINARY)
        return 0;
    Py_ssize_t header_size = get32(frame) & 0xFFFFFF;
    if (header_size > MAX_HEADER_BYTES || header_size < FIELDS_AT - 4 || header_size > size - 4)
        return 0;
    uint32_t remark_size = get32(frame + 17), fields_size = get32(frame + 21);
    if (frame[6] > LAST_LANGUAGE || remark_size != 0
        || fields_size > (uint32_t)(header_size + 4 - FIELDS_AT))
        return 0;
    *header = (Header){
        .code = (int16_t)get16(frame + 4),
        .language = frame[6],
        .version = (int16_t)get16(frame + 7),
        .opaque = (int32_t)get32(frame + 9),
        .flag = (int32_t)get32(frame + 13),
        .fields_at = FIELDS_AT,
        .fields_end = FIELDS_AT + (Py_ssize_t)fields_size,
        .body_at = 4 + header_size,
    };
    return 1;
}

int read_field(const uint8_t *frame, Py_ssize_t *at, Py_ssize_t end, Text *name, Text *value)
{
    /* the twin unpacks 7 bytes first: the lengths, and a name of one letter between them */
    if (end - *at < 7)
        return 0;
    Py_ssize_t name_size = get16(frame + *at), name_at = *at + 2;
    if (end - name_at - 4 < name_size)
        return 0;
    Py_ssize_t value_at = name_at + name_size + 4;
    Py_ssize_t value_size = (Py_ssize_t)get32(frame + value_at - 4);
    if (end - value_at < value_size)
        return 0;
    *name = (Text){(const char *)frame + name_at, name_size};
    *value = (Text){(const char *)frame + value_at, value_size};
    *at = value_at + value_size;
    return 1;
}

/* The fields in frame[at:end] as a dict; None where they are cut off or not UTF-8. One without name
 * or value is left out, as Java does. */
static PyObject *fields_of(const uint8_t *frame, Py_ssize_t at, Py_ssize_t end)
{
    PyObject *fields = PyDict_New();
    if (fields == NULL)
        return NULL;
    while (at < end) {
        Text named, valued;
        if (!read_field(frame, &at, end, &named, &valued))
            goto unusual;
        if (named.size == 0)
            continue;
        PyObject *name = PyUnicode_DecodeUTF8(named.at, named.size, NULL);
        if (name == NULL)
            goto no_text;
        if (valued.size != 0) {
            PyObject *value = PyUnicode_DecodeUTF8(valued.at, valued.size, NULL);
            if (value == NULL || PyDict_SetItem(fields, name, value) < 0) {
                Py_DECREF(name);
                Py_XDECREF(value);
                goto no_text;
            }
            Py_DECREF(value);
        }
        Py_DECREF(name);
    }
    return fields;

no_text:
    if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        Py_DECREF(fields);
        return NULL;
    }
    PyErr_Clear();
unusual:
    Py_DECREF(fields);
    Py_RETURN_NONE;
}

/* binary_command(frame): what RemotingCommand is made of, in its order, for a frame without its
   length word whose header is binary.

   None for one with a remark, and for all that is wrong or that nobody knows. */
FUNCTION(binary_command)
{
    if (count != 1 || !PyBytes_Check(args[0]))
        return misused("binary_command(frame: bytes)");
    const uint8_t *frame = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]);
    Header header;
    if (!read_header(frame, size, &header))
        Py_RETURN_NONE;
    PyObject *fields = fields_of(frame, header.fields_at, header.fields_end);
    if (fields == NULL || fields == Py_None)
        return fields;
    if (PyDict_GET_SIZE(fields) > MAX_FIELDS) {
        Py_DECREF(fields);
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(iNy#iiOiii)", header.code, fields, (const char *)frame + header.body_at,
        size - header.body_at, (int)header.opaque, (int)header.flag, Py_None, header.language,
        header.version, BINARY);
}

/* frames(data, limit): the whole frames at the beginning of *data*, each of at most *limit* bytes
   and without its length word, and where they end. None are found with a limit that does not fit 64
   bits. */
FUNCTION(frames)
{
    if (count != 2 || !PyBytes_Check(args[0]) || !PyLong_Check(args[1]))
        return misused("frames(data: bytes, limit: int)");
    int64_t limit;
    if (!is_number(args[1], INT64_MIN, INT64_MAX, &limit))
        limit = 0;
    const char *data = PyBytes_AS_STRING(args[0]);
    Py_ssize_t at = 0, end = PyBytes_GET_SIZE(args[0]);
    PyObject *frames = PyList_New(0);
    if (frames == NULL)
        return NULL;
    while (end - at >= 4) {
        Py_ssize_t size = (Py_ssize_t)get32((const uint8_t *)data + at);
        if (size < 4 || size > limit || size > end - at - 4)
            break;
        PyObject *frame = PyBytes_FromStringAndSize(data + at + 4, size);
        if (frame == NULL || PyList_Append(frames, frame) < 0) {
            Py_XDECREF(frame);
            Py_DECREF(frames);
            return NULL;
        }
        Py_DECREF(frame);
        at += 4 + size;
    }
    return Py_BuildValue("(Nn)", frames, at);
}
