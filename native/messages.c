/* The messages of a pull answer. Layout: records of the log back to back, see native.h. Python:
 * wire/message.py. */

#include "native.h"

#include <structmember.h>

enum { UNCOMMON = COMPRESSED | HOSTS_V6 | NEED_UNWRAP };

/* The fields of a MessageExt, in their order */
enum {
    TOPIC,
    BODY,
    PROPERTIES,
    QUEUE,
    QUEUE_OFFSET,
    COMMITLOG_OFFSET,
    RECONSUME_TIMES,
    BORN_TIMESTAMP,
    STORE_TIMESTAMP,
    BORN_HOST,
    STORE_HOST,
    FLAG,
    SYS_FLAG,
    STORED_BYTES,
    PREPARED,
    FIELDS,
};

/* --- one message ---------------------------------------------------------------------------- */

/* What a MessageExt is made of: the fixed part of its record, from which numbers are made when they
   are asked for, and the fields that are objects, or were set. The collector does not look at a
   decoded message, which holds nothing that could hold it. */
typedef struct {
    PyObject_HEAD PyObject *fields[FIELDS];
    /* Of a decoded message: its stored properties, and the Forms with which it was made. */
    PyObject *raw, *forms;
    uint8_t fixed[FIXED_V4];
} Message;

/* (MessageExt, Properties, queue_of, host_of) */
enum { MESSAGE_FORM, PROPERTIES_FORM, QUEUE_FORM, HOST_FORM, FORMS };

static const struct {
    const char *name;
    enum { OBJECT, HOST, LONG, INT, SIZE } kind;
    int at;
} fields[FIELDS] = {
    [TOPIC] = {"topic", OBJECT, 0},
    [BODY] = {"body", OBJECT, 0},
    [PROPERTIES] = {"properties", OBJECT, 0},
    [QUEUE] = {"queue", OBJECT, 0},
    [QUEUE_OFFSET] = {"queue_offset", LONG, QUEUE_OFFSET_AT},
    [COMMITLOG_OFFSET] = {"commitlog_offset", LONG, COMMITLOG_OFFSET_AT},
    [RECONSUME_TIMES] = {"reconsume_times", INT, TIMES_AT},
    [BORN_TIMESTAMP] = {"born_timestamp_ms", LONG, BORN_AT},
    [STORE_TIMESTAMP] = {"store_timestamp_ms", LONG, STORED_AT},
    [BORN_HOST] = {"born_host", HOST, BORN_HOST_AT},
    [STORE_HOST] = {"store_host", HOST, STORE_HOST_AT},
    [FLAG] = {"flag", INT, FLAG_AT},
    [SYS_FLAG] = {"sys_flag", INT, SYS_FLAG_AT},
    [STORED_BYTES] = {"stored_bytes", SIZE, 0},
    [PREPARED] = {"prepared_transaction_offset", LONG, PREPARED_AT},
};

static PyObject *form_of(const Message *message, int which)
{
    return PyTuple_GET_ITEM(message->forms, which);
}

/* A number of a decoded message */
static int64_t number_at(const Message *message, int field)
{
    const uint8_t *at = message->fixed + fields[field].at;
    if (fields[field].kind == LONG)
        return (int64_t)get64(at);
    return fields[field].kind == INT ? (int32_t)get32(at) : (int64_t)get32(at);
}

/* The same of any message; 0 where it is no number of 64 bits */
static int read_number(const Message *message, int field, int64_t *number)
{
    PyObject *value = message->fields[field];
    if (value != NULL)
        return is_number(value, INT64_MIN, INT64_MAX, number);
    if (message->raw == NULL)
        return 0;
    *number = number_at(message, field);
    return 1;
}

static PyObject *get_field(PyObject *self, void *which)
{
    Message *message = (Message *)self;
    int field = (int)(intptr_t)which;
    PyObject *value = message->fields[field];
    if (value != NULL)
        return Py_NewRef(value);
    if (message->raw == NULL) {
        PyErr_SetString(PyExc_AttributeError, fields[field].name);
        return NULL;
    }
    if (field == PROPERTIES) {
        value = PyObject_CallOneArg(form_of(message, PROPERTIES_FORM), message->raw);
    } else if (fields[field].kind == HOST) {
        PyObject *raw =
            PyBytes_FromStringAndSize((const char *)message->fixed + fields[field].at, HOST_V4);
        value = raw == NULL ? NULL : PyObject_CallOneArg(form_of(message, HOST_FORM), raw);
        Py_XDECREF(raw);
    } else {
        return PyLong_FromLongLong(number_at(message, field));
    }
    if (value != NULL)
        Py_XSETREF(message->fields[field], Py_NewRef(value));
    return value;
}

static int set_field(PyObject *self, PyObject *value, void *which)
{
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "a field of a message cannot be deleted");
        return -1;
    }
    if (!PyObject_GC_IsTracked(self))
        PyObject_GC_Track(self);
    Py_XSETREF(((Message *)self)->fields[(intptr_t)which], Py_NewRef(value));
    return 0;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Message *message = (Message *)self;
    for (int i = 0; i < FIELDS; i++)
        Py_VISIT(message->fields[i]);
    Py_VISIT(message->forms);
    return 0;
}

static int clear(PyObject *self)
{
    Message *message = (Message *)self;
    for (int i = 0; i < FIELDS; i++)
        Py_CLEAR(message->fields[i]);
    Py_CLEAR(message->raw);
    Py_CLEAR(message->forms);
    return 0;
}

static void dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    (void)clear(self);
    Py_TYPE(self)->tp_free(self);
}

/* Fields that are objects from the beginning are members: the interpreter reads these faster. */
#define MEMBER(name, field)                                                                        \
    {name, T_OBJECT_EX, (Py_ssize_t)(offsetof(Message, fields) + (field) * sizeof(PyObject *)), 0, \
        NULL}

static PyMemberDef members[] = {
    MEMBER("topic", TOPIC),
    MEMBER("body", BODY),
    MEMBER("queue", QUEUE),
    {NULL, 0, 0, 0, NULL},
};

/* filled in by prepare_messages(): the other fields */
static PyGetSetDef getters[FIELDS - 3 + 1];

static PyTypeObject MessageFields = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ogive._native.MessageFields",
    .tp_doc = PyDoc_STR("See MessageExt in ogive.model."),
    .tp_basicsize = sizeof(Message),
    .tp_dealloc = dealloc,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_members = members,
    .tp_getset = getters,
    .tp_new = PyType_GenericNew,
};

int prepare_messages(PyObject *module)
{
    PyGetSetDef *getter = getters;
    for (intptr_t field = 0; field < FIELDS; field++)
        if (field != TOPIC && field != BODY && field != QUEUE)
            *getter++ =
                (PyGetSetDef){fields[field].name, get_field, set_field, NULL, (void *)field};
    return PyModule_AddType(module, &MessageFields);
}

/* --- all of an answer ----------------------------------------------------------------------- */

/* what the records of an answer mostly share, from the last record */
typedef struct {
    /* with its length before it, in the buffer */
    const uint8_t *topic;
    int32_t queue_id;
    PyObject *queue, *topic_text;
} Shared;

/* Whether they are a class that adds nothing to MessageFields, and three that are called */
static int are_forms(PyObject *forms)
{
    if (!PyTuple_Check(forms) || PyTuple_GET_SIZE(forms) != FORMS)
        return 0;
    PyObject *type = PyTuple_GET_ITEM(forms, MESSAGE_FORM);
    int right = PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type, &MessageFields)
        && ((PyTypeObject *)type)->tp_basicsize == MessageFields.tp_basicsize;
    for (int i = MESSAGE_FORM + 1; i < FORMS; i++)
        right = right && PyCallable_Check(PyTuple_GET_ITEM(forms, i));
    return right;
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

/* A message of the record, which the caller has checked; NULL with an error */
static PyObject *make_message(PyObject *forms, const uint8_t *record, const uint8_t *body,
    Py_ssize_t body_size, const uint8_t *properties, Py_ssize_t properties_size,
    const Shared *shared)
{
    PyTypeObject *type = (PyTypeObject *)PyTuple_GET_ITEM(forms, MESSAGE_FORM);
    Message *message = (Message *)type->tp_alloc(type, 0);
    if (message == NULL)
        return NULL;
    PyObject_GC_UnTrack(message);
    memcpy(message->fixed, record, FIXED_V4);
    message->forms = Py_NewRef(forms);
    message->fields[TOPIC] = Py_NewRef(shared->topic_text);
    message->fields[QUEUE] = Py_NewRef(shared->queue);
    message->fields[BODY] = PyBytes_FromStringAndSize((const char *)body, body_size);
    message->raw = PyBytes_FromStringAndSize((const char *)properties, properties_size);
    if (message->fields[BODY] == NULL || message->raw == NULL)
        Py_CLEAR(message);
    return (PyObject *)message;
}

/* messages(buffer, at, checked, into, broker_name, forms): adds the messages from byte *at* on to
   *into*, up to the first that is unusual; where that stands, or the end of the buffer.

   Usual is: version 1, IPv4 hosts, not compressed, one message, of parts that add up, and, if
   *checked*, with the body that its checksum speaks of. */
FUNCTION(messages)
{
    int64_t at;
    Py_buffer view;
    if (count != 6 || !(PyBytes_Check(args[0]) || PyMemoryView_Check(args[0]))
        || !PyLong_Check(args[1]) || !PyBool_Check(args[2]) || !PyList_Check(args[3])
        || !are_forms(args[5]))
        return misused("messages(buffer: bytes or memoryview, at: int, checked: bool, into: list, "
                       "broker_name: str, forms: tuple)");
    if (!is_number(args[1], 0, INT64_MAX, &at))
        return Py_NewRef(args[1]);
    if (PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    const uint8_t *buffer = view.buf;
    int64_t end = view.len;
    int checked = args[2] == Py_True, failed = 0;
    Shared shared = {0};
    while (at <= end - SMALLEST_V4) {
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
        PyObject *message = NULL;
        if (find_queue(PyTuple_GET_ITEM(args[5], QUEUE_FORM), args[4], topic,
                (int32_t)get32(record + QUEUE_ID_AT), &shared)
            == 0)
            message = make_message(args[5], record, body, (Py_ssize_t)body_size,
                topic + 3 + topic[0], (Py_ssize_t)properties_size, &shared);
        failed = message == NULL || PyList_Append(args[3], message) < 0;
        Py_XDECREF(message);
        if (failed)
            break;
        at += size;
    }
    Py_XDECREF(shared.queue);
    Py_XDECREF(shared.topic_text);
    PyBuffer_Release(&view);
    return failed ? NULL : PyLong_FromLongLong(at);
}

/* measure(messages): (bytes of their bodies, whether their offsets ascend, whether one is
   compressed); None if one is of another class, or holds odd values. */
FUNCTION(measure)
{
    if (count != 1 || !(PyList_Check(args[0]) || PyTuple_Check(args[0])))
        return misused("measure(messages: list or tuple)");
    int64_t bytes = 0, last = INT64_MIN, offset, flags;
    int ascending = 1, compressed = 0;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(args[0]); i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(args[0], i);
        if (!PyObject_TypeCheck(item, &MessageFields))
            Py_RETURN_NONE;
        Message *message = (Message *)item;
        PyObject *body = message->fields[BODY];
        if (body == NULL || !PyBytes_CheckExact(body)
            || !read_number(message, QUEUE_OFFSET, &offset)
            || !read_number(message, SYS_FLAG, &flags))
            Py_RETURN_NONE;
        bytes += PyBytes_GET_SIZE(body);
        ascending &= i == 0 || offset > last;
        compressed |= (flags & COMPRESSED) != 0;
        last = offset;
    }
    return Py_BuildValue(
        "(LNN)", (long long)bytes, PyBool_FromLong(ascending), PyBool_FromLong(compressed));
}
