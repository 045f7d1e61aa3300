/* Half messages, and the ends of their transactions. Python: broker/transactions/half_messages.py,
 * broker/sends/send.py, transaction.py. */

#include "native.h"

enum { MAX_HALF_NAMES = 32, ONEWAY = 2 };

#define TEXT(literal) {literal, sizeof(literal) - 1}

/* Whether a property of this name makes the message another one than a half message that is stored
 * for the first time, just so */
static int is_special(Text name)
{
    static const Text names[] = {
        TEXT("DELAY"),
        TEXT("POP_CK"),
        TEXT("INNER_NUM"),
        TEXT("CLUSTER"),
        TEXT("MSG_REGION"),
        TEXT("TRACE_ON"),
        TEXT("TRANSACTION_CHECK_TIMES"),
        TEXT("TRAN_PREPARED_QUEUE_OFFSET"),
        TEXT("CHECK_IMMUNITY_TIME_IN_SECONDS"),
        TEXT("__transactionId__"),
        TEXT("REAL_TOPIC"),
        TEXT("REAL_QID"),
        TEXT("__CRC32#"),
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (is_same(name, names[i]))
            return 1;
    }
    for (Py_ssize_t at = 0; at + 6 <= name.size; at++) {
        if (memcmp(name.at + at, "TIMER_", 6) == 0)
            return 1;
    }
    return 0;
}

/* NULL with an error, or without one where they are too long */
static PyObject *join(const Text *pieces, size_t count)
{
    Py_ssize_t size = 0;
    for (size_t i = 0; i < count; i++)
        size += pieces[i].size;
    PyObject *joined = size > MAX_PROPERTIES_BYTES ? NULL : PyBytes_FromStringAndSize(NULL, size);
    if (joined == NULL)
        return NULL;
    char *to = PyBytes_AS_STRING(joined);
    for (size_t i = 0; i < count; i++) {
        memcpy(to, pieces[i].at, (size_t)pieces[i].size);
        to += pieces[i].size;
    }
    return joined;
}

/* Key and group of a half message with these properties; 0 where they are not usual. */
static int read_half(Text text, Text *key, Text *group)
{
    Text names[MAX_HALF_NAMES];
    int count = 0, prepared = 0;
    const char *end = text.at + text.size;
    *key = *group = (Text){NULL, 0};
    for (const char *at = text.at; at < end; count++) {
        const char *stop = (const char *)property_end((const uint8_t *)at, (const uint8_t *)end);
        const char *name_end = memchr(at, 1, (size_t)(stop - at));
        if (count == MAX_HALF_NAMES || name_end == NULL || name_end == at || name_end + 1 == stop)
            return 0;
        Text name = {at, name_end - at}, value = {name_end + 1, stop - name_end - 1};
        for (int before = 0; before < count; before++) {
            if (is_same(names[before], name))
                return 0;
        }
        names[count] = name;
        if (is_word(name, "UNIQ_KEY"))
            *key = value;
        else if (is_word(name, "PGROUP"))
            *group = value;
        else if (is_word(name, "TRAN_MSG"))
            prepared = is_word(value, "true");
        else if (is_special(name))
            return 0;
        at = stop == end ? end : stop + 1;
    }
    return prepared && key->at != NULL && group->at != NULL;
}

/* The properties of a half message of this queue, and those that consumers get. 0 with an error, or
 * without one where they are too long. */
static int join_half(Text text, Text key, Text topic, int64_t queue_id, Text own, PyObject **stored,
    PyObject **committed)
{
    char digits[24];
    /* 4.9 leaves the last separator off */
    Text end = {"\2", text.at[text.size - 1] != 2};
    Text queue = {digits, snprintf(digits, sizeof digits, "%lld", (long long)queue_id)};
    Text key_name = TEXT("__transactionId__\1"), topic_name = TEXT("\2REAL_TOPIC\1"),
         queue_name = TEXT("\2REAL_QID\1"), stop = TEXT("\2");
    Text half[] = {text, end, key_name, key, topic_name, topic, queue_name, queue, stop, own};
    Text ready[] = {text, end, key_name, key, stop, own};
    *stored = join(half, sizeof half / sizeof *half);
    *committed = *stored == NULL ? NULL : join(ready, sizeof ready / sizeof *ready);
    if (*committed == NULL)
        Py_CLEAR(*stored);
    return *committed != NULL;
}

/* half_properties(text, topic, queue_id, own_properties): of a message with the properties *text*
   that is stored as a half message of this queue: its key, its group, the properties that the half
   message has, and those that consumers get.

   None where the properties are not those that a producer gives a half message, or are too long. */
PyObject *native_half_properties(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    int64_t queue_id;
    if (count != 4 || !PyUnicode_Check(args[0]) || !PyUnicode_Check(args[1])
        || !PyUnicode_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError,
            "half_properties(text: str, topic: str, queue_id: int, own_properties: str)");
        return NULL;
    }
    Text text, topic, own, key, group;
    text.at = utf8_of(args[0], &text.size);
    topic.at = utf8_of(args[1], &topic.size);
    own.at = utf8_of(args[3], &own.size);
    PyObject *stored, *committed;
    if (text.at == NULL || topic.at == NULL || own.at == NULL || topic.size == 0
        || topic.at[0] == '%' || !is_number(args[2], 0, INT32_MAX, &queue_id)
        || !read_half(text, &key, &group))
        Py_RETURN_NONE;
    if (!join_half(text, key, topic, queue_id, own, &stored, &committed)) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(s#s#NN)", key.at, key.size, group.at, group.size, stored, committed);
}

/* The fields of a request that have these names, as Python's decoder has them; 0 where they are too
 * many, cut off or not UTF-8 */
static int read_fields(
    const uint8_t *frame, const Header *header, const Text *names, int count, Text *values)
{
    Text name, value;
    int left = MAX_SEND_FIELDS;
    memset(values, 0, (size_t)count * sizeof *values);
    for (Py_ssize_t at = header->fields_at; at < header->fields_end;) {
        if (left-- == 0 || !read_field(frame, &at, header->fields_end, &name, &value)
            || !is_utf8((const uint8_t *)name.at, (size_t)name.size)
            || !is_utf8((const uint8_t *)value.at, (size_t)value.size))
            return 0;
        for (int i = 0; value.size && i < count; i++) {
            if (is_same(name, names[i]))
                values[i] = value;
        }
    }
    return 1;
}

/* What all steps have in common */
typedef struct {
    PyObject *half_topic, *born_host, *store_host;
    PyTypeObject *message;
    Text own;
} Shared;

/* (opaque, group, key, half message, message for consumers); NULL with an error, or without one
 * where it is none in its usual form. */
static PyObject *half_step(
    const uint8_t *frame, Py_ssize_t size, const Header *header, const Shared *shared)
{
    enum { TOPIC, QUEUE_ID, SYS_FLAG, BORN_MS, FLAG, PROPERTIES, TIMES, BATCH, NAMES };
    static const Text names[NAMES] = {
        TEXT("b"), TEXT("e"), TEXT("f"), TEXT("g"), TEXT("h"), TEXT("i"), TEXT("j"), TEXT("m")};
    Text fields[NAMES], key, group;
    int64_t queue_id, sys_flag, born_ms, flag, times;
    if (header->flag != 0 || !read_fields(frame, header, names, NAMES, fields))
        return NULL;
    Text topic = fields[TOPIC];
    if (topic.at == NULL || topic.at[0] == '%' || may_be_batch(fields[BATCH])
        || fields[QUEUE_ID].at == NULL || fields[BORN_MS].at == NULL
        || fields[PROPERTIES].at == NULL || !number_of(fields[QUEUE_ID], &queue_id)
        || !number_of(fields[SYS_FLAG], &sys_flag) || !number_of(fields[BORN_MS], &born_ms)
        || !number_of(fields[FLAG], &flag) || !number_of(fields[TIMES], &times) || queue_id < 0
        || queue_id > INT32_MAX || sys_flag & ~(int64_t)(CLIENT_FLAGS | TRANSACTION_PREPARED)
        || born_ms < 0 || flag < -INT32_MAX || flag > INT32_MAX || times != 0
        || !read_half(fields[PROPERTIES], &key, &group))
        return NULL;
    PyObject *stored, *committed;
    if (!join_half(fields[PROPERTIES], key, topic, queue_id, shared->own, &stored, &committed))
        return NULL;
    sys_flag &= CLIENT_FLAGS;
    PyObject *body =
        PyBytes_FromStringAndSize((const char *)frame + header->body_at, size - header->body_at);
    PyObject *number = PyLong_FromLongLong(flag), *born = PyLong_FromLongLong(born_ms);
    PyObject *half[] = {
        Py_NewRef(shared->half_topic),
        PyLong_FromLong(0),
        Py_XNewRef(body),
        stored,
        PyLong_FromLongLong(sys_flag),
        Py_XNewRef(number),
        Py_XNewRef(born),
        Py_NewRef(shared->born_host),
        Py_NewRef(shared->store_host),
        PyLong_FromLong(0),
        PyLong_FromLong(0),
    };
    PyObject *ready[] = {
        PyUnicode_DecodeUTF8(topic.at, topic.size, NULL),
        PyLong_FromLongLong(queue_id),
        body,
        committed,
        PyLong_FromLongLong(sys_flag | TRANSACTION_COMMIT),
        number,
        born,
        Py_NewRef(shared->born_host),
        Py_NewRef(shared->store_host),
        PyLong_FromLong(0),
        PyLong_FromLong(0),
    };
    PyObject *values[] = {
        PyLong_FromLong(header->opaque),
        PyUnicode_DecodeUTF8(group.at, group.size, NULL),
        PyUnicode_DecodeUTF8(key.at, key.size, NULL),
        make_tuple(shared->message, half, sizeof half / sizeof *half),
        make_tuple(shared->message, ready, sizeof ready / sizeof *ready),
    };
    return make_tuple(&PyTuple_Type, values, sizeof values / sizeof *values);
}

/* (opaque, or None where no answer is wanted; group, place, commit-log offset, decision); NULL as
 * in half_step(). */
static PyObject *end_step(const uint8_t *frame, const Header *header)
{
    enum { GROUP, PLACE, OFFSET, DECISION, NAMES };
    static const Text names[NAMES] = {TEXT("producerGroup"), TEXT("tranStateTableOffset"),
        TEXT("commitLogOffset"), TEXT("commitOrRollback")};
    Text fields[NAMES];
    int64_t place, offset;
    if ((header->flag != 0 && header->flag != ONEWAY)
        || !read_fields(frame, header, names, NAMES, fields) || fields[GROUP].at == NULL
        || fields[PLACE].at == NULL || fields[OFFSET].at == NULL || fields[DECISION].at == NULL
        || !number_of(fields[PLACE], &place) || !number_of(fields[OFFSET], &offset))
        return NULL;
    int commit = is_word(fields[DECISION], "8");
    if (!commit && !is_word(fields[DECISION], "12"))
        return NULL;
    PyObject *values[] = {
        header->flag == ONEWAY ? Py_NewRef(Py_None) : PyLong_FromLong(header->opaque),
        PyUnicode_DecodeUTF8(fields[GROUP].at, fields[GROUP].size, NULL),
        PyLong_FromLongLong(place),
        PyLong_FromLongLong(offset),
        PyLong_FromLong(commit ? TRANSACTION_COMMIT : TRANSACTION_ROLLBACK),
    };
    return make_tuple(&PyTuple_Type, values, sizeof values / sizeof *values);
}

/* transaction_steps(frames, at, most, most_bytes, half_topic, own_properties, born_host,
   store_host, message): what each frame from frames[at] on asks for, at most so many, with bodies
   of at most so many bytes in all, up to the first that is neither half message nor end in the
   usual form with a binary header; None where there is none. */
PyObject *native_transaction_steps(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    int64_t at, most, left;
    Shared shared;
    if (count != 9 || !PyList_Check(args[0]) || !PyUnicode_Check(args[4])
        || !PyUnicode_Check(args[5]) || !PyBytes_Check(args[6]) || !PyBytes_Check(args[7])
        || !is_tuple_type(args[8])) {
        PyErr_SetString(PyExc_TypeError,
            "transaction_steps(frames: list, at: int, most: int, most_bytes: int, half_topic: str, "
            "own_properties: str, born_host: bytes, "
            "store_host: bytes, message: type[NewMessage])");
        return NULL;
    }
    shared.own.at = utf8_of(args[5], &shared.own.size);
    if (!is_number(args[1], 0, INT64_MAX, &at) || !is_number(args[2], INT64_MIN, INT64_MAX, &most)
        || !is_number(args[3], 0, INT64_MAX, &left) || shared.own.at == NULL)
        Py_RETURN_NONE;
    shared.half_topic = args[4];
    shared.born_host = args[6];
    shared.store_host = args[7];
    shared.message = (PyTypeObject *)args[8];
    PyObject *steps = PyList_New(0);
    for (; steps != NULL && at < PyList_GET_SIZE(args[0]) && PyList_GET_SIZE(steps) < most; at++) {
        PyObject *object = PyList_GET_ITEM(args[0], (Py_ssize_t)at), *step = NULL;
        Header header;
        if (!PyBytes_Check(object))
            break;
        /* for as long as others are made, which may set off anything */
        Py_INCREF(object);
        const uint8_t *frame = (const uint8_t *)PyBytes_AS_STRING(object);
        Py_ssize_t size = PyBytes_GET_SIZE(object);
        if (read_header(frame, size, &header)) {
            left -= size - header.body_at;
            if (header.code == SEND_MESSAGE_V2 && left >= 0)
                step = half_step(frame, size, &header, &shared);
            else if (header.code == END_TRANSACTION)
                step = end_step(frame, &header);
        }
        Py_DECREF(object);
        if (step == NULL)
            break;
        if (PyList_Append(steps, step) < 0)
            Py_CLEAR(steps);
        Py_DECREF(step);
    }
    if (PyErr_Occurred())
        Py_CLEAR(steps);
    else if (PyList_GET_SIZE(steps) == 0)
        Py_SETREF(steps, Py_NewRef(Py_None));
    return steps;
}
