/* What the files of this folder share. See README.md.

   Every function here has a twin in Python that decides alone what is right. A function takes what is usual, and returns None for what is
   not (or says which parts are not), so that all rules for unusual or bad bytes, and all error texts, stand in Python only. Nothing is read
   before its place was compared with the end of the buffer. */

#ifndef OGIVE_NATIVE_H
#define OGIVE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

static inline uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static inline uint32_t get32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint64_t get64(const uint8_t *at)
{
    return (uint64_t)get32(at) << 32 | get32(at + 4);
}

static inline void put16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static inline void put32(uint8_t *at, uint32_t value)
{
    put16(at, (uint16_t)(value >> 16));
    put16(at + 2, (uint16_t)value);
}

static inline void put64(uint8_t *at, uint64_t value)
{
    put32(at, (uint32_t)(value >> 32));
    put32(at + 4, (uint32_t)value);
}

/* Whether *value* is an int from *least* to *most*; *found* is that. */
static inline int is_number(PyObject *value, int64_t least, int64_t most, int64_t *found)
{
    int overflow;
    if (!PyLong_Check(value))
        return 0;
    *found = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow && *found >= least && *found <= most;
}

/* A string's UTF-8, which belongs to it; NULL without an error where it has none or is no string */
static inline const char *utf8_of(PyObject *text, Py_ssize_t *size)
{
    if (text == NULL || !PyUnicode_Check(text))
        return NULL;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, size);
    if (utf8 == NULL)
        PyErr_Clear();
    return utf8;
}

/* crc.c: zlib's crc32() */
void crc_prepare(void);
uint32_t crc_of(const uint8_t *data, size_t size, uint32_t before);

/* columns.c */
int is_utf8(const uint8_t *at, size_t size);

/* the functions of each file, for the table in module.c */
PyObject *native_columns(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_encode_rows(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_crc32(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_chosen(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_doubtful(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_binary_command(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_frames(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_usual_send(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_send_answer(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_properties(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_properties_text(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_index_items(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_inside(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_messages(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_near(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_picked(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_batch_items(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_batch_is_plain(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_batch_body(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_message_ids(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_records(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_whole_records(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
