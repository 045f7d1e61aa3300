/* The fields of a binary header. Layout: name length u16 | name | value length u32 | value, and so on. Python: wire/command.py. */

#include "native.h"

/* header_fields(frame, at, end): the fields in frame[at:end] as a dict; None where they are cut off or no UTF-8.

   A field without name or value is left out, as Java does. */
PyObject *native_header_fields(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 3 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "header_fields(frame: bytes, at: int, end: int)");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]), end = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred())
        return NULL;
    if (at < 0 || end < at || end > PyBytes_GET_SIZE(args[0]))
        Py_RETURN_NONE;
    const char *frame = PyBytes_AS_STRING(args[0]);
    PyObject *fields = PyDict_New();
    if (fields == NULL)
        return NULL;
    while (at < end) {
        if (end - at < 6 || PyBytes_GET_SIZE(args[0]) - at < 7) /* the twin looks for a name of one letter first */
            goto unusual;
        Py_ssize_t name_size = get16((const uint8_t *)frame + at), name_at = at + 2;
        if (end - name_at - 4 < name_size)
            goto unusual;
        Py_ssize_t value_at = name_at + name_size + 4;
        Py_ssize_t value_size = (Py_ssize_t)get32((const uint8_t *)frame + value_at - 4);
        if (end - value_at < value_size)
            goto unusual;
        at = value_at + value_size;
        if (name_size == 0)
            continue;
        PyObject *name = PyUnicode_DecodeUTF8(frame + name_at, name_size, NULL);
        if (name == NULL)
            goto no_text;
        if (value_size != 0) {
            PyObject *value = PyUnicode_DecodeUTF8(frame + value_at, value_size, NULL);
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
