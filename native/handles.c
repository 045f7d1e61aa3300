/* Handles of submitted messages, and the batch that they travel in. Python:
   client/sending/handle.py. */

#include "native.h"

#include <structmember.h>

enum { PREFIX_BYTES = 20, NUMBER_BYTES = 6 };
#define KEY_NAME "UNIQ_KEY\x01"
enum {
    KEY_NAME_BYTES = sizeof KEY_NAME - 1,
    /* with the separator behind it */
    KEY_BYTES = KEY_NAME_BYTES + PREFIX_BYTES + 2 * NUMBER_BYTES + 1,
};

/* Not known to the garbage collector: *waiters* alone may lead back to the handle, and the batch
   empties them when it ends. */
typedef struct {
    PyObject_HEAD PyObject *batch, *body, *text, *waiters;
    Py_ssize_t index;
    double since;
} Handle;

static PyObject *handle_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    if (PyTuple_GET_SIZE(args) != 5 || (keywords != NULL && PyDict_GET_SIZE(keywords))
        || !PyBytes_CheckExact(PyTuple_GET_ITEM(args, 1))
        || !PyBytes_CheckExact(PyTuple_GET_ITEM(args, 2))
        || !PyFloat_Check(PyTuple_GET_ITEM(args, 3))) {
        PyErr_SetString(
            PyExc_TypeError, "Handle(batch, body: bytes, text: bytes, since: float, waiters)");
        return NULL;
    }
    Handle *made = (Handle *)type->tp_alloc(type, 0);
    if (made == NULL)
        return NULL;
    /* a class of Python's that is based on this one; a collection need not look at its objects */
    if (PyType_IS_GC(type))
        PyObject_GC_UnTrack(made);
    made->batch = Py_NewRef(PyTuple_GET_ITEM(args, 0));
    made->body = Py_NewRef(PyTuple_GET_ITEM(args, 1));
    made->text = Py_NewRef(PyTuple_GET_ITEM(args, 2));
    made->since = PyFloat_AS_DOUBLE(PyTuple_GET_ITEM(args, 3));
    made->waiters = Py_NewRef(PyTuple_GET_ITEM(args, 4));
    return (PyObject *)made;
}

static void handle_dealloc(PyObject *self)
{
    Handle *handle = (Handle *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(handle->batch);
    Py_XDECREF(handle->body);
    Py_XDECREF(handle->text);
    Py_XDECREF(handle->waiters);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Whether it can stand in a batch; *size* is what it takes there */
static int fits(PyTypeObject *type, PyObject *item, int64_t *size)
{
    const Handle *handle = (Handle *)item;
    if (!PyObject_TypeCheck(item, type) || handle->body == NULL || handle->text == NULL
        || PyBytes_GET_SIZE(handle->text) > MAX_PROPERTIES_BYTES - KEY_BYTES
        || PyBytes_GET_SIZE(handle->body) > INT32_MAX - BATCH_ITEM_BYTES - MAX_PROPERTIES_BYTES)
        return 0;
    *size = BATCH_ITEM_BYTES + KEY_BYTES + PyBytes_GET_SIZE(handle->body)
        + PyBytes_GET_SIZE(handle->text);
    return 1;
}

static uint8_t *put_handle(uint8_t *to, const Handle *handle, const char *prefix, int64_t number)
{
    size_t body_size = (size_t)PyBytes_GET_SIZE(handle->body),
           text_size = (size_t)PyBytes_GET_SIZE(handle->text);
    put32(to, (uint32_t)(BATCH_ITEM_BYTES + KEY_BYTES + body_size + text_size));
    memset(to + 4, 0, 12);
    put32(to + 16, (uint32_t)body_size);
    memcpy(to + 20, PyBytes_AS_STRING(handle->body), body_size);
    to += 20 + body_size;
    put16(to, (uint16_t)(KEY_BYTES + text_size));
    memcpy(to + 2, KEY_NAME, KEY_NAME_BYTES);
    memcpy(to + 2 + KEY_NAME_BYTES, prefix, PREFIX_BYTES);
    uint8_t digits[8];
    put64(digits, (uint64_t)number);
    to = put_hex(to + 2 + KEY_NAME_BYTES + PREFIX_BYTES, digits + 8 - NUMBER_BYTES, NUMBER_BYTES);
    *to++ = 2;
    memcpy(to, PyBytes_AS_STRING(handle->text), text_size);
    return to + text_size;
}

/* _fill(handles, batch, prefix, number, most_bytes, most): see Handle in
   ogive.client.sending.handle. Raises ValueError for a message that cannot stand in a batch. */
static PyObject *handle_fill(PyObject *type, PyObject *const *args, Py_ssize_t count)
{
    int64_t number, most_bytes, most, size, whole = 0;
    if (count != 6 || !PyList_Check(args[0]) || !PyUnicode_Check(args[2])
        || !PyUnicode_IS_COMPACT_ASCII(args[2]) || PyUnicode_GET_LENGTH(args[2]) != PREFIX_BYTES
        || !is_number(args[3], 0, ((int64_t)1 << 8 * NUMBER_BYTES) - 1, &number)
        || !is_number(args[4], 0, INT32_MAX, &most_bytes)
        || !is_number(args[5], 1, INT32_MAX, &most))
        return misused(
            "_fill(handles: list, batch, prefix: str, number: int, most_bytes: int, most: int)");
    PyObject *handles = args[0];
    Py_ssize_t taken = 0;
    for (; taken < PyList_GET_SIZE(handles) && taken < most; taken++) {
        if (!fits((PyTypeObject *)type, PyList_GET_ITEM(handles, taken), &size)) {
            PyErr_SetString(PyExc_ValueError, "this handle's message cannot stand in a batch");
            return NULL;
        }
        if (taken && whole + size > most_bytes)
            break;
        whole += size;
    }
    PyObject *body = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)whole);
    if (body == NULL)
        return NULL;
    uint8_t *to = (uint8_t *)PyBytes_AS_STRING(body);
    const char *prefix = (const char *)PyUnicode_1BYTE_DATA(args[2]);
    for (Py_ssize_t i = 0; i < taken; i++)
        to = put_handle(to, (Handle *)PyList_GET_ITEM(handles, i), prefix, number + i);
    /* only from here on anything may run that changes the list */
    for (Py_ssize_t i = 0; i < taken && i < PyList_GET_SIZE(handles); i++) {
        Handle *handle = (Handle *)PyList_GET_ITEM(handles, i);
        if (!PyObject_TypeCheck((PyObject *)handle, (PyTypeObject *)type))
            break;
        handle->index = i;
        Py_CLEAR(handle->body);
        Py_CLEAR(handle->text);
        Py_XSETREF(handle->batch, Py_NewRef(args[1]));
    }
    return Py_BuildValue("(Nn)", body, taken);
}

static PyMethodDef methods[] = {
    {"_fill", (PyCFunction)(void (*)(void))handle_fill, METH_FASTCALL | METH_CLASS,
        PyDoc_STR("_fill(handles, batch, prefix, number, most_bytes, most): see "
                  "ogive.client.sending.handle")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"_batch", T_OBJECT, offsetof(Handle, batch), 0, NULL},
    {"_body", T_OBJECT, offsetof(Handle, body), READONLY, NULL},
    {"_text", T_OBJECT, offsetof(Handle, text), READONLY, NULL},
    {"_waiters", T_OBJECT, offsetof(Handle, waiters), 0, NULL},
    {"_index", T_PYSSIZET, offsetof(Handle, index), 0, NULL},
    {"_since", T_DOUBLE, offsetof(Handle, since), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, handle_new},
    {Py_tp_dealloc, handle_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "ogive._native.Handle",
    .basicsize = sizeof(Handle),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

int add_handles(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&spec);
    int failed = type == NULL || PyModule_AddObjectRef(module, "Handle", type) < 0;
    Py_XDECREF(type);
    return failed ? -1 : 0;
}
