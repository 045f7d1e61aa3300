/* Frames, and commands with a binary header. Python: wire/frame.py, wire/command.py.

   Layout of a frame without its length word: serialize type u8 | header length u24 | code i16 | language u8 | version i16 | opaque i32 |
   flag i32 | remark length i32 | remark | length of the fields i32 | fields | body. A field: name length u16 | name | value length u32 |
   value. */

#include "native.h"

#define BINARY 1
#define FIELDS_AT 25 /* without a remark */
#define LAST_LANGUAGE 13
#define MAX_HEADER_BYTES (256 * 1024)
#define MAX_FIELDS 256

/* The fields in frame[at:end] as a dict; None where they are cut off or no UTF-8. One without name or value is left out, as Java does. */
static PyObject *fields_of(const uint8_t *frame, Py_ssize_t at, Py_ssize_t end)
{
    PyObject *fields = PyDict_New();
    if (fields == NULL)
        return NULL;
    while (at < end) {
        if (end - at < 7) /* the twin unpacks 7 bytes first: the lengths, and a name of one letter between them */
            goto unusual;
        Py_ssize_t name_size = get16(frame + at), name_at = at + 2;
        if (end - name_at - 4 < name_size)
            goto unusual;
        Py_ssize_t value_at = name_at + name_size + 4;
        Py_ssize_t value_size = (Py_ssize_t)get32(frame + value_at - 4);
        if (end - value_at < value_size)
            goto unusual;
        at = value_at + value_size;
        if (name_size == 0)
            continue;
        PyObject *name = PyUnicode_DecodeUTF8((const char *)frame + name_at, name_size, NULL);
        if (name == NULL)
            goto no_text;
        if (value_size != 0) {
            PyObject *value = PyUnicode_DecodeUTF8((const char *)frame + value_at, value_size, NULL);
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

/* binary_command(frame): what RemotingCommand is made of, in its order, for a frame without its length word whose header is binary.

   None for one with a remark, and for all that is wrong or that nobody knows. */
PyObject *native_binary_command(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 1 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "binary_command(frame: bytes)");
        return NULL;
    }
    const uint8_t *frame = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]);
    if (size < FIELDS_AT || frame[0] != BINARY)
        Py_RETURN_NONE;
    Py_ssize_t header = get32(frame) & 0xFFFFFF;
    if (header > MAX_HEADER_BYTES || header < FIELDS_AT - 4 || header > size - 4)
        Py_RETURN_NONE;
    uint32_t remark_size = get32(frame + 17), fields_size = get32(frame + 21);
    if (frame[6] > LAST_LANGUAGE || remark_size != 0 || fields_size > (uint32_t)(header + 4 - FIELDS_AT))
        Py_RETURN_NONE;
    PyObject *fields = fields_of(frame, FIELDS_AT, FIELDS_AT + (Py_ssize_t)fields_size);
    if (fields == NULL || fields == Py_None)
        return fields;
    if (PyDict_GET_SIZE(fields) > MAX_FIELDS) {
        Py_DECREF(fields);
        Py_RETURN_NONE;
    }
    int code = (int16_t)get16(frame + 4), version = (int16_t)get16(frame + 7);
    return Py_BuildValue("(iNy#iiOiii)", code, fields, (const char *)frame + 4 + header, size - 4 - header, (int)(int32_t)get32(frame + 9),
                         (int)(int32_t)get32(frame + 13), Py_None, (int)frame[6], version, BINARY);
}

/* frames(data, limit): the whole frames at the beginning of *data*, each of at most *limit* bytes and without its length word, and where
   they end. */
PyObject *native_frames(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 2 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "frames(data: bytes, limit: int)");
        return NULL;
    }
    Py_ssize_t limit = PyLong_AsSsize_t(args[1]);
    if (limit == -1 && PyErr_Occurred())
        return NULL;
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
