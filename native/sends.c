/* What a broker does for each send, of one message or a batch. Python: broker/sends/send.py and
 * send_batch.py. */

#include "native.h"

/* fit 64 bits, however they go on */
#define MAX_DIGITS 18
/* in a header */
#define MAX_ESCAPED_BYTES 8192

/* the fields of a send's header, as _Names has them */
enum {
    TOPIC,
    QUEUE_ID,
    SYS_FLAG,
    BORN_MS,
    FLAG,
    PROPERTIES,
    TIMES,
    MAX_TIMES,
    DEFAULT_TOPIC,
    DEFAULT_QUEUES,
    UNIT_MODE,
    BATCH,
    NAMES
};

typedef struct {
    int64_t queue_id, sys_flag, born_ms, flag, times;
    /* at is NULL: a batch without one */
    Text key;
} Send;

int number_of(Text text, int64_t *number)
{
    *number = 0;
    if (text.at == NULL)
        return 1;
    int negative = text.size > 0 && text.at[0] == '-';
    Py_ssize_t at = negative;
    if (at == text.size || text.size - at > MAX_DIGITS)
        return 0;
    for (; at < text.size; at++) {
        if (text.at[at] < '0' || text.at[at] > '9')
            return 0;
        *number = *number * 10 + (text.at[at] - '0');
    }
    if (negative)
        *number = -*number;
    return 1;
}

static int ends(const char *text, const char *end, const char *with, size_t size)
{
    return end - text >= (Py_ssize_t)size && memcmp(end - size, with, size) == 0;
}

#define ENDS(text, end, with) ends(text, end, with, sizeof(with) - 1)

/* Whether a message with these properties is stored just so: none says a delay, a time, half a
   transaction, a broker that it has been through, or a batch that is one record, and there are no
   two keys. Then *key* is its unique key, NULL at *at* where it has none. */
static int find_key(Text properties, Text *key)
{
    const char *text = properties.at, *end = text + properties.size, *at;
    *key = (Text){NULL, 0};
    /* *at* may be NULL */
    if (properties.size == 0)
        return 1;
    for (at = text; (at = memchr(at, 1, (size_t)(end - at))) != NULL; at++) {
        if (ENDS(text, at, "UNIQ_KEY")) {
            if (key->at != NULL || (at - 8 != text && at[-9] != 2))
                return 0;
            key->at = at + 1;
        } else if (ENDS(text, at, "DELAY") || ENDS(text, at, "TRAN_MSG") || ENDS(text, at, "POP_CK")
            || ENDS(text, at, "CLUSTER") || ENDS(text, at, "INNER_NUM")) {
            return 0;
        }
    }
    for (at = text; (at = memchr(at, '_', (size_t)(end - at))) != NULL; at++) {
        if (ENDS(text, at, "TIMER"))
            return 0;
    }
    if (key->at != NULL) {
        const char *stop = memchr(key->at, 2, (size_t)(end - key->at));
        key->size = (stop == NULL ? end : stop) - key->at;
    }
    return 1;
}

/* Whether these fields are of a send that is stored just as it came */
static int read_send(const Text *fields, Send *send)
{
    Text topic = fields[TOPIC];
    return topic.at != NULL && topic.size != 0 && topic.at[0] != '%' && fields[QUEUE_ID].at != NULL
        && number_of(fields[QUEUE_ID], &send->queue_id) && send->queue_id >= INT32_MIN
        && send->queue_id <= INT32_MAX && number_of(fields[SYS_FLAG], &send->sys_flag)
        && fields[BORN_MS].at != NULL && number_of(fields[BORN_MS], &send->born_ms)
        && number_of(fields[FLAG], &send->flag) && number_of(fields[TIMES], &send->times)
        && !(send->sys_flag & ~(int64_t)CLIENT_FLAGS) && send->born_ms >= 0
        && send->flag >= -INT32_MAX && send->flag <= INT32_MAX && send->times >= 0
        && send->times <= INT32_MAX && fields[PROPERTIES].size <= MAX_PROPERTIES_BYTES
        && find_key(fields[PROPERTIES], &send->key);
}

/* The same for a single message with a key, to which so many bytes of properties come */
static int read_single_send(const Text *fields, Py_ssize_t own_size, Send *send)
{
    if (may_be_batch(fields[BATCH]) || !read_send(fields, send) || send->key.at == NULL)
        return 0;
    Text text = fields[PROPERTIES];
    return own_size <= MAX_PROPERTIES_BYTES - (text.at[text.size - 1] != 2) - text.size;
}

/* The properties to store: those of the send, and the broker's own */
static PyObject *with_own(Text text, const char *own, Py_ssize_t own_size)
{
    /* 4.9 leaves the last separator off */
    int open = text.at[text.size - 1] != 2;
    PyObject *properties = PyBytes_FromStringAndSize(NULL, text.size + open + own_size);
    if (properties == NULL)
        return NULL;
    char *to = PyBytes_AS_STRING(properties);
    memcpy(to, text.at, (size_t)text.size);
    if (open)
        to[text.size] = 2;
    memcpy(to + text.size + open, own, (size_t)own_size);
    return properties;
}

/* usual_send() of these fields, NULL for one that is not there */
static PyObject *usual_of(PyObject *const *fields, PyObject *own_properties)
{
    Text texts[NAMES] = {{NULL, 0}};
    for (int name = 0; name < NAMES; name++) {
        if (fields[name] != NULL
            && (texts[name].at = utf8_of(fields[name], &texts[name].size)) == NULL)
            Py_RETURN_NONE;
    }
    Send send;
    Py_ssize_t own_size;
    const char *own = utf8_of(own_properties, &own_size);
    if (own == NULL || !read_single_send(texts, own_size, &send))
        Py_RETURN_NONE;
    PyObject *properties = with_own(texts[PROPERTIES], own, own_size);
    if (properties == NULL)
        return NULL;
    return Py_BuildValue("(OLLLLLNs#)", fields[TOPIC], (long long)send.queue_id,
        (long long)send.sys_flag, (long long)send.born_ms, (long long)send.flag,
        (long long)send.times, properties, send.key.at, send.key.size);
}

/* usual_send(fields, names, own_properties): topic, queue id, sysFlag, born timestamp, flag,
   reconsume times, the properties to store and the unique key of a single send.

   None for a send to a topic that begins with %, for one that is not stored just so or whose fields
   no client sends. */
PyObject *native_usual_send(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 3 || !PyDict_Check(args[0]) || !PyTuple_Check(args[1])
        || PyTuple_GET_SIZE(args[1]) != NAMES || !PyUnicode_Check(args[2])) {
        PyErr_SetString(
            PyExc_TypeError, "usual_send(fields: dict, names: tuple of 12, own_properties: str)");
        return NULL;
    }
    PyObject *fields[NAMES] = {NULL}, *found = NULL;
    /* a name that is no string may change the dict when it is compared */
    for (int name = 0; name < NAMES && !PyErr_Occurred(); name++)
        fields[name] =
            Py_XNewRef(PyDict_GetItemWithError(args[0], PyTuple_GET_ITEM(args[1], name)));
    if (!PyErr_Occurred())
        found = usual_of(fields, args[2]);
    for (int name = 0; name < NAMES; name++)
        Py_XDECREF(fields[name]);
    return found;
}

/* Topic and queue of some of the messages of a run */
typedef struct {
    PyObject *topic, *queue_id;
    Text name;
    int64_t number;
    /* of the topic, that may be sent to */
    int64_t queues;
} Place;

typedef struct {
    Place all[MAX_PLACES];
    int count;
} Places;

static void drop_places(Places *places)
{
    while (places->count) {
        Place *place = &places->all[--places->count];
        Py_DECREF(place->topic);
        Py_DECREF(place->queue_id);
    }
}

/* The place of a send; NULL where its topic takes no such, or without memory, or because of the
 * callback's error */
static const Place *place_of(Places *places, Text name, int64_t queue_id, PyObject *queues_of)
{
    /* one of the same topic */
    const Place *known = NULL;
    for (const Place *place = places->all; place < places->all + places->count; place++) {
        if (is_same(place->name, name)) {
            if (place->number == queue_id)
                return place;
            known = place;
        }
    }
    if (places->count == MAX_PLACES)
        return NULL;
    Place place = {.number = queue_id};
    place.topic =
        known != NULL ? Py_NewRef(known->topic) : PyUnicode_DecodeUTF8(name.at, name.size, NULL);
    place.queue_id = PyLong_FromLongLong(queue_id);
    if (place.topic != NULL && place.queue_id != NULL && known == NULL) {
        PyObject *queues = PyObject_CallOneArg(queues_of, place.topic);
        if (queues == NULL || !is_number(queues, 0, INT32_MAX, &place.queues))
            place.queues = 0;
        Py_XDECREF(queues);
    } else if (known != NULL) {
        place.queues = known->queues;
    }
    if (!PyErr_Occurred() && queue_id >= 0 && queue_id < place.queues
        && (place.name.at = utf8_of(place.topic, &place.name.size)) != NULL) {
        places->all[places->count] = place;
        return &places->all[places->count++];
    }
    Py_XDECREF(place.topic);
    Py_XDECREF(place.queue_id);
    return NULL;
}

/* The header of a request with this code that is answered, and the fields of its send by their
   letters, texts with escapes in *room*; 0 for anything else, and where a field is cut off or not
   UTF-8, or there are too many */
static int read_short_send(
    int code, const uint8_t *frame, Py_ssize_t size, Header *header, Text *fields, char *room)
{
    /* _SHORT in Python */
    static const char letters[NAMES] = {'b', 'e', 'f', 'g', 'h', 'i', 'j', 'l', 'c', 'd', 'k', 'm'};
    Text name, value;
    int left = MAX_SEND_FIELDS, binary = read_header(frame, size, header);
    Py_ssize_t room_left = MAX_ESCAPED_BYTES;
    if ((!binary && !read_json_header(frame, size, header)) || header->code != code
        || header->flag != 0)
        return 0;
    memset(fields, 0, NAMES * sizeof *fields);
    for (Py_ssize_t at = header->fields_at; at < header->fields_end;) {
        if (left-- == 0)
            return 0;
        if (binary ? !read_field(frame, &at, header->fields_end, &name, &value)
                    || !is_utf8((const uint8_t *)name.at, (size_t)name.size)
                    || !is_utf8((const uint8_t *)value.at, (size_t)value.size)
                   : !read_json_field(
                         frame, &at, header->fields_end, &name, &value, &room, &room_left))
            return 0;
        /* Java decodes it to null */
        if (binary && value.size == 0)
            continue;
        const char *letter = name.size == 1 ? memchr(letters, name.at[0], NAMES) : NULL;
        if (letter != NULL)
            fields[letter - letters] = value;
    }
    return 1;
}

/* The NewMessage of a send; takes *body* and *properties* over */
static PyObject *message_of(PyTypeObject *type, const Place *place, const Send *send,
    PyObject *body, PyObject *properties, PyObject *born_host, PyObject *store_host)
{
    PyObject *values[] = {
        Py_NewRef(place->topic),
        Py_NewRef(place->queue_id),
        body,
        properties,
        PyLong_FromLongLong(send->sys_flag),
        PyLong_FromLongLong(send->flag),
        PyLong_FromLongLong(send->born_ms),
        Py_NewRef(born_host),
        Py_NewRef(store_host),
        PyLong_FromLongLong(send->times),
        PyLong_FromLong(0),
    };
    return make_tuple(type, values, sizeof values / sizeof *values);
}

static int append(PyObject *list, PyObject *item)
{
    int added = item != NULL && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return added;
}

/* A SendAnswer for it */
static PyObject *answer_of(PyTypeObject *type, const Place *place, const Send *send, int32_t opaque)
{
    PyObject *values[] = {
        PyLong_FromLong(opaque),
        Py_NewRef(place->queue_id),
        PyUnicode_FromStringAndSize(send->key.at, send->key.size),
        PyLong_FromLong(1),
        Py_NewRef(Py_None),
    };
    return make_tuple(type, values, sizeof values / sizeof *values);
}

/* plain_sends(frames, at, most, most_bytes, queues_of, own_properties, born_host, store_host,
   message, answer): (messages, answers) of the plain sends from frames[at] on, at most so many,
   with bodies of at most so many bytes; None where there is none.

   A plain send is a SEND_MESSAGE_V2 that is answered, whose header is as Java's clients write it,
   and that usual_send() takes; *queues_of* says of its topic that it has its queue.
   Messages of one topic and queue have these two objects in common. */
PyObject *native_plain_sends(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 10 || !PyList_Check(args[0]) || !PyLong_Check(args[1]) || !PyLong_Check(args[2])
        || !PyLong_Check(args[3]) || !PyUnicode_Check(args[5]) || !PyBytes_Check(args[6])
        || !PyBytes_Check(args[7]) || !is_tuple_type(args[8]) || !is_tuple_type(args[9])) {
        PyErr_SetString(PyExc_TypeError,
            "plain_sends(frames: list, at: int, most: int, most_bytes: int, queues_of, "
            "own_properties: str, born_host: bytes, "
            "store_host: bytes, message: type[NewMessage], answer: type[SendAnswer])");
        return NULL;
    }
    int64_t at, most, most_bytes;
    Py_ssize_t own_size;
    const char *own = utf8_of(args[5], &own_size);
    if (own == NULL || !is_number(args[1], 0, INT64_MAX, &at)
        || !is_number(args[2], INT64_MIN, INT64_MAX, &most)
        || !is_number(args[3], INT64_MIN, INT64_MAX, &most_bytes))
        Py_RETURN_NONE;
    PyObject *messages = PyList_New(0), *answers = PyList_New(0), *run = NULL, *frame = NULL;
    char room[MAX_ESCAPED_BYTES];
    Places places = {.count = 0};
    if (messages == NULL || answers == NULL)
        goto done;
    for (; at < PyList_GET_SIZE(args[0]) && PyList_GET_SIZE(messages) < most; at++) {
        Header header;
        Text fields[NAMES];
        Send send;
        const Place *place;
        /* a callback might take it out of the list */
        Py_XSETREF(frame, Py_NewRef(PyList_GET_ITEM(args[0], at)));
        if (!PyBytes_Check(frame))
            break;
        const uint8_t *bytes = (const uint8_t *)PyBytes_AS_STRING(frame);
        if (!read_short_send(SEND_MESSAGE_V2, bytes, PyBytes_GET_SIZE(frame), &header, fields, room)
            || PyBytes_GET_SIZE(frame) - header.body_at > most_bytes
            || !read_single_send(fields, own_size, &send)
            || (place = place_of(&places, fields[TOPIC], send.queue_id, args[4])) == NULL)
            break;
        PyObject *body = PyBytes_FromStringAndSize(
            (const char *)bytes + header.body_at, PyBytes_GET_SIZE(frame) - header.body_at);
        PyObject *properties = with_own(fields[PROPERTIES], own, own_size);
        if (!append(messages,
                message_of(
                    (PyTypeObject *)args[8], place, &send, body, properties, args[6], args[7]))
            || !append(answers, answer_of((PyTypeObject *)args[9], place, &send, header.opaque)))
            goto done;
    }
    if (!PyErr_Occurred())
        run = PyList_GET_SIZE(messages) == 0 ? Py_NewRef(Py_None)
                                             : PyTuple_Pack(2, messages, answers);

done:
    Py_XDECREF(frame);
    Py_XDECREF(messages);
    Py_XDECREF(answers);
    drop_places(&places);
    return run;
}

/* plain_batches(frames, at, most, most_bytes, queues_of, starts, most_items, born_host, store_host,
   message): of each plain batch from frames[at] on, at most so many, with bodies of at most so many
   bytes: (message, start, items, key, opaque); None where there is none.

   A plain batch is a SEND_BATCH_MESSAGE that is answered and stored just so, with a body that
   plain_batch() takes, which begins at *start* of its frame and holds so many *items*. They share
   the *message*. The rest is as for plain_sends(), but a key is not needed. */
PyObject *native_plain_batches(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 10 || !PyList_Check(args[0]) || !PyLong_Check(args[1]) || !PyLong_Check(args[2])
        || !PyLong_Check(args[3]) || !is_bytes_tuple(args[5]) || !PyLong_Check(args[6])
        || !PyBytes_Check(args[7]) || !PyBytes_Check(args[8]) || !is_tuple_type(args[9])) {
        PyErr_SetString(PyExc_TypeError,
            "plain_batches(frames: list, at: int, most: int, most_bytes: int, queues_of, starts: "
            "tuple[bytes, ...], most_items: int, "
            "born_host: bytes, store_host: bytes, message: type[NewMessage])");
        return NULL;
    }
    int64_t at, most, most_bytes, most_items;
    if (!is_number(args[1], 0, INT64_MAX, &at) || !is_number(args[2], INT64_MIN, INT64_MAX, &most)
        || !is_number(args[3], INT64_MIN, INT64_MAX, &most_bytes)
        || !is_number(args[6], INT64_MIN, INT64_MAX, &most_items))
        Py_RETURN_NONE;
    PyObject *batches = PyList_New(0), *frame = NULL;
    char room[MAX_ESCAPED_BYTES];
    Places places = {.count = 0};
    if (batches == NULL)
        goto done;
    for (; at < PyList_GET_SIZE(args[0]) && PyList_GET_SIZE(batches) < most; at++) {
        Header header;
        Text fields[NAMES];
        Send send;
        const Place *place;
        /* a callback might take it out of the list */
        Py_XSETREF(frame, Py_NewRef(PyList_GET_ITEM(args[0], at)));
        if (!PyBytes_Check(frame))
            break;
        const uint8_t *bytes = (const uint8_t *)PyBytes_AS_STRING(frame),
                      *end = bytes + PyBytes_GET_SIZE(frame);
        Py_ssize_t items = 0;
        if (!read_short_send(SEND_BATCH_MESSAGE, bytes, end - bytes, &header, fields, room)
            || end - bytes - header.body_at > most_bytes || !read_send(fields, &send)
            || (send.key.at != NULL && send.key.size == 0)
            || (place = place_of(&places, fields[TOPIC], send.queue_id, args[4])) == NULL
            || (items = count_plain_items(bytes + header.body_at, end, args[5], most_items)) == 0)
            break;
        PyObject *body = PyBytes_FromStringAndSize(NULL, 0),
                 *properties = PyBytes_FromStringAndSize(NULL, 0);
        PyObject *message =
            message_of((PyTypeObject *)args[9], place, &send, body, properties, args[7], args[8]);
        PyObject *key = send.key.at == NULL
            ? Py_NewRef(Py_None)
            : PyUnicode_FromStringAndSize(send.key.at, send.key.size);
        if (!append(batches,
                Py_BuildValue("(NnnNi)", message, header.body_at, items, key, (int)header.opaque)))
            goto done;
    }

done:
    Py_XDECREF(frame);
    drop_places(&places);
    if (PyErr_Occurred())
        Py_CLEAR(batches);
    else if (PyList_GET_SIZE(batches) == 0)
        Py_SETREF(batches, Py_NewRef(Py_None));
    return batches;
}
