/* The properties of a message. Layout: name | 1 | value | 2, and so on; the last separator may be
 * missing. Python: wire/message.py. */

#include "native.h"

/* properties(raw): the dict of them; None where a name or value is not UTF-8. One without name or
 * value is left out, as Java does. */
FUNCTION(properties)
{
    Py_buffer raw;
    if (count != 1)
        return misused("properties(raw: bytes)");
    if (PyObject_GetBuffer(args[0], &raw, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *found = PyDict_New(), *name = NULL, *value = NULL;
    const uint8_t *at = raw.buf, *end = at + raw.len;
    while (found != NULL && at < end) {
        const uint8_t *value_end = property_end(at, end);
        const uint8_t *name_end = memchr(at, 1, (size_t)(value_end - at));
        if (name_end != NULL && name_end != at && name_end + 1 != value_end) {
            name = PyUnicode_DecodeUTF8((const char *)at, name_end - at, NULL);
            value = name == NULL
                ? NULL
                : PyUnicode_DecodeUTF8((const char *)name_end + 1, value_end - name_end - 1, NULL);
            if (value == NULL || PyDict_SetItem(found, name, value) < 0)
                Py_CLEAR(found);
            Py_XDECREF(name);
            Py_XDECREF(value);
        }
        at = value_end == end ? end : value_end + 1;
    }
    PyBuffer_Release(&raw);
    if (found == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    return found;
}

/* Puts *text* and its separator at *to*; where that ends, or NULL without room, for what is no
 * plain string or holds the separator 2 */
static char *put_text(char *to, const char *end, PyObject *text, char separator)
{
    Py_ssize_t size;
    const char *utf8 = PyUnicode_CheckExact(text) ? utf8_of(text, &size) : NULL;
    if (utf8 == NULL || size >= end - to || memchr(utf8, 2, (size_t)size) != NULL)
        return NULL;
    memcpy(to, utf8, (size_t)size);
    to[size] = separator;
    return to + size + 1;
}

/* properties_text(properties): these as they are stored; None where they are no dict of plain
   strings, hold what separates them, cannot be written as UTF-8 or are too long. */
FUNCTION(properties_text)
{
    if (count != 1)
        return misused("properties_text(properties: dict)");
    if (!PyDict_CheckExact(args[0]))
        Py_RETURN_NONE;
    char text[MAX_PROPERTIES_BYTES];
    char *to = text;
    Py_ssize_t next = 0;
    PyObject *name, *value;
    while (PyDict_Next(args[0], &next, &name, &value)) {
        to = put_text(to, text + sizeof(text), name, 1);
        if (to != NULL)
            to = put_text(to, text + sizeof(text), value, 2);
        if (to == NULL)
            Py_RETURN_NONE;
    }
    return PyBytes_FromStringAndSize(text, to - text);
}
