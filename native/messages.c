/* The messages of a pull answer. Layout: records of the log back to back, see native.h. Python:
 * wire/message.py. */

#include "native.h"

enum {
    UNCOMMON = COMPRESSED | HOSTS_V6 | NEED_UNWRAP,
    /* of a MessageExt */
    FIELDS = 15,
};

/* Where the fields of an object stand: the descriptors of its class's slots, in the order of
   values[] below. They take any value, as object.__setattr__ would. */
typedef struct {
    PyTypeObject *message, *properties;
    PyObject *message_slots, *properties_slots, *queue_of, *host_of;
} Forms;

/* what the records of an answer mostly share, from the last record */
typedef struct {
    /* with its length before it, in the buffer */
    const uint8_t *topic;
    int32_t queue_id;
    PyObject *queue, *topic_text;
    /* in the buffer */
    const uint8_t *born_host_at, *store_host_at;
    PyObject *born_host, *store_host;
} Shared;

static int is_plain_class(PyObject *type)
{
    return PyType_Check(type) && ((PyTypeObject *)type)->tp_new == PyBaseObject_Type.tp_new;
}

static int are_slots(PyObject *slots, Py_ssize_t count)
{
    if (!PyTuple_Check(slots) || PyTuple_GET_SIZE(slots) != count)
        return 0;
    for (Py_ssize_t i = 0; i < count; i++)
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(slots, i), &PyMemberDescr_Type))
            return 0;
    return 1;
}

static int read_forms(PyObject *given, Forms *forms)
{
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != 6)
        return 0;
    PyObject *message = PyTuple_GET_ITEM(given, 0), *properties = PyTuple_GET_ITEM(given, 2);
    *forms =
        (Forms){(PyTypeObject *)message, (PyTypeObject *)properties, PyTuple_GET_ITEM(given, 1),
            PyTuple_GET_ITEM(given, 3), PyTuple_GET_ITEM(given, 4), PyTuple_GET_ITEM(given, 5)};
    return is_plain_class(message) && is_plain_class(properties)
        && are_slots(forms->message_slots, FIELDS) && are_slots(forms->properties_slots, 2);
}

/* An object of *type* with these values; takes them over, NULL among them is an error that was set.
 */
static PyObject *filled(PyTypeObject *type, PyObject *slots, PyObject **values, int count)
{
    PyObject *object = type->tp_alloc(type, 0);
    int failed = object == NULL;
    for (int i = 0; i < count; i++) {
        PyObject *slot = PyTuple_GET_ITEM(slots, i);
        failed = failed || values[i] == NULL
            || PyMemberDescr_Type.tp_descr_set(slot, object, values[i]) < 0;
        Py_XDECREF(values[i]);
    }
    if (failed)
        Py_CLEAR(object);
    return object;
}

/* host_of(the 8 bytes at *at*), unless they are those at *last* */
static int find_host(PyObject *host_of, const uint8_t *at, const uint8_t **last, PyObject **host)
{
    if (*host != NULL && memcmp(at, *last, HOST_V4) == 0)
        return 0;
    PyObject *raw = PyBytes_FromStringAndSize((const char *)at, HOST_V4);
    PyObject *found = raw == NULL ? NULL : PyObject_CallOneArg(host_of, raw);
    Py_XDECREF(raw);
    if (found == NULL)
        return -1;
    Py_XSETREF(*host, found);
    *last = at;
    return 0;
}

/* queue_of(topic, broker_name, queue_id), unless it is the last record's */
static int find_queue(PyObject *queue_of, PyObject *broker_name, const uint8_t *topic,
    int32_t queue_id, Shared *shared)
{
    if (shared->queue != NULL && shared->queue_id == queue_id && topic[0] == shared->topic[0]
        && memcmp(topic, shared->topic, (size_t)1 + topic[0]) == 0)
        return 0;
    PyObject *queue = PyObject_CallFunction(queue_of, "y#Oi", (const char *)topic + 1,
        (Py_ssize_t)topic[0], broker_name, (int)queue_id);
    PyObject *text = queue == NULL ? NULL : PyObject_GetAttrString(queue, "topic");
    if (text == NULL) {
        Py_XDECREF(queue);
        return -1;
    }
    Py_XSETREF(shared->queue, queue);
    Py_XSETREF(shared->topic_text, text);
    shared->topic = topic;
    shared->queue_id = queue_id;
    return 0;
}

static PyObject *read_bytes(const uint8_t *at, Py_ssize_t size)
{
    return PyBytes_FromStringAndSize((const char *)at, size);
}

static PyObject *read_long(const uint8_t *at)
{
    return PyLong_FromLongLong((int64_t)get64(at));
}

static PyObject *read_int(const uint8_t *at)
{
    return PyLong_FromLong((int32_t)get32(at));
}

/* messages(buffer, at, checked, into, broker_name, forms): adds the messages from byte *at* on to
   *into*, up to the first that is unusual; where that stands, or the end of the buffer.

   Usual is: version 1, IPv4 hosts, not compressed, one message, of parts that add up, and, if
   *checked*, with the body that its checksum speaks of. */
PyObject *native_messages(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    Forms forms;
    if (count != 6 || !PyBytes_Check(args[0]) || !PyLong_Check(args[1]) || !PyBool_Check(args[2])
        || !PyList_Check(args[3]) || !read_forms(args[5], &forms)) {
        PyErr_SetString(PyExc_TypeError,
            "messages(buffer: bytes, at: int, checked: bool, into: list, broker_name: str, forms: "
            "tuple)");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]), end = PyBytes_GET_SIZE(args[0]);
    if (PyErr_Occurred() || at < 0 || at > end) {
        PyErr_Clear();
        Py_INCREF(args[1]);
        return args[1];
    }
    const uint8_t *buffer = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    int checked = args[2] == Py_True, failed = 0;
    Shared shared = {0};
    while (end - at >= SMALLEST_V4) {
        const uint8_t *record = buffer + at, *body = record + FIXED_V4;
        int64_t size = get32(record), body_size = (int32_t)get32(record + BODY_SIZE_AT);
        if (get32(record + MAGIC_AT) != MAGIC_V1 || get32(record + SYS_FLAG_AT) & UNCOMMON
            || size > end - at || body_size < 0 || body_size > size - SMALLEST_V4)
            break;
        const uint8_t *topic = body + body_size;
        int64_t properties_size = size - SMALLEST_V4 - body_size - topic[0];
        if (properties_size < 0 || get16(topic + 1 + topic[0]) != properties_size)
            break;
        if (checked
            && (crc_of(body, (size_t)body_size, 0) & 0x7FFFFFFF) != get32(record + BODY_CRC_AT))
            break;
        /* until the message is in *into* */
        failed = 1;
        if (find_queue(
                forms.queue_of, args[4], topic, (int32_t)get32(record + QUEUE_ID_AT), &shared)
                < 0
            || find_host(
                   forms.host_of, record + BORN_HOST_AT, &shared.born_host_at, &shared.born_host)
                < 0
            || find_host(
                   forms.host_of, record + STORE_HOST_AT, &shared.store_host_at, &shared.store_host)
                < 0)
            break;
        PyObject *raw[] = {
            read_bytes(topic + 3 + topic[0], (Py_ssize_t)properties_size), Py_NewRef(Py_None)};
        PyObject *values[FIELDS] = {
            Py_NewRef(shared.topic_text),
            read_bytes(body, (Py_ssize_t)body_size),
            filled(forms.properties, forms.properties_slots, raw, 2),
            Py_NewRef(shared.queue),
            read_long(record + QUEUE_OFFSET_AT),
            read_long(record + COMMITLOG_OFFSET_AT),
            read_int(record + TIMES_AT),
            read_long(record + BORN_AT),
            read_long(record + STORED_AT),
            Py_NewRef(shared.born_host),
            Py_NewRef(shared.store_host),
            read_int(record + FLAG_AT),
            read_int(record + SYS_FLAG_AT),
            PyLong_FromLongLong(size),
            read_long(record + PREPARED_AT),
        };
        PyObject *message = filled(forms.message, forms.message_slots, values, FIELDS);
        if (message == NULL || PyList_Append(args[3], message) < 0) {
            Py_XDECREF(message);
            break;
        }
        Py_DECREF(message);
        failed = 0;
        at += (Py_ssize_t)size;
    }
    Py_XDECREF(shared.queue);
    Py_XDECREF(shared.topic_text);
    Py_XDECREF(shared.born_host);
    Py_XDECREF(shared.store_host);
    return failed ? NULL : PyLong_FromSsize_t(at);
}
