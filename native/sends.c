/* What a broker does for each send, of one message or a batch. Python: broker/sends/send.py,
 * send_batch.py and send_answer.py. */

#include "native.h"

#define MAX_TEMPLATE_BYTES 65536
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

static char *put_decimal(char *to, int64_t number)
{
    char digits[20];
    int count = 0;
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do {
        digits[count++] = (char)('0' + left % 10);
        left /= 10;
    } while (left);
    if (number < 0)
        *to++ = '-';
    while (count)
        *to++ = digits[--count];
    return to;
}

/* Whether a key is JSON text as it is */
static int is_plain_key(Text key)
{
    int plain = key.size > 0;
    for (Py_ssize_t at = 0; plain && at < key.size; at++) {
        char letter = key.at[at];
        plain = (letter >= '0' && letter <= '9') || (letter >= 'A' && letter <= 'Z')
            || (letter >= 'a' && letter <= 'z');
    }
    return plain;
}

/* What is filled in at one place of an answer's template: a number, the key in quotes, or the ids
 * of stored messages */
typedef struct {
    enum { NUMBER, KEY, IDS } kind;
    int64_t number;
    Text key;
    /* of the ids: the broker's, and where the messages are */
    PyObject *host, *results;
} Slot;

#define MAX_NUMBER_BYTES 20

static Py_ssize_t ids_size(const Slot *slot)
{
    /* commas between them */
    return PyList_GET_SIZE(slot->results) * (2 * (PyBytes_GET_SIZE(slot->host) + 8) + 1) - 1;
}

/* How many bytes an answer has at most */
static Py_ssize_t answer_room(Py_ssize_t template_size, const Slot *slots, int count)
{
    Py_ssize_t room = 8 + template_size;
    for (int i = 0; i < count; i++)
        room += slots[i].kind == NUMBER ? MAX_NUMBER_BYTES
            : slots[i].kind == KEY      ? slots[i].key.size + 2
                                        : ids_size(&slots[i]);
    return room;
}

static char *put_ids(char *to, const Slot *slot)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(slot->results); i++) {
        int64_t offset = 0;
        is_number(PyTuple_GET_ITEM(PyList_GET_ITEM(slot->results, i), 1), 0, INT64_MAX, &offset);
        if (i)
            *to++ = ',';
        to = (char *)put_message_id((uint8_t *)to, (const uint8_t *)PyBytes_AS_STRING(slot->host),
            PyBytes_GET_SIZE(slot->host), offset);
    }
    return to;
}

/* Fills in one place, whose form begins behind the % at *from, which moves on; NULL where the form
 * is another */
static char *put_slot(char *to, const char **from, const char *end, const Slot *slot)
{
    const char *form = *from;
    if (end - form < 1)
        return NULL;
    *from += 1;
    if (slot->kind == NUMBER) {
        uint8_t bytes[8];
        if (form[0] == 'd')
            return put_decimal(to, slot->number);
        if (end - form < 4 || memcmp(form, "016X", 4) != 0 || slot->number < 0)
            return NULL;
        *from += 3;
        put64(bytes, (uint64_t)slot->number);
        return (char *)put_hex((uint8_t *)to, bytes, sizeof bytes);
    }
    if (slot->kind == IDS)
        return form[0] == 'b' ? put_ids(to, slot) : NULL;
    if (form[0] != 's')
        return NULL;
    *to++ = '"';
    memcpy(to, slot->key.at, (size_t)slot->key.size);
    to += slot->key.size;
    *to++ = '"';
    return to;
}

/* Puts the frame of an answer: where it ends, or NULL where the template is of another form */
static uint8_t *put_answer(
    uint8_t *start, const char *from, const char *end, const Slot *slots, int count)
{
    int next = 0;
    char *to = (char *)start + 8;
    while (from < end) {
        const char *mark = memchr(from, '%', (size_t)(end - from));
        size_t plain = (size_t)((mark == NULL ? end : mark) - from);
        memcpy(to, from, plain);
        to += plain;
        if (mark == NULL)
            break;
        from = mark + 1;
        if (end - from >= 1 && from[0] == '%') {
            *to++ = *from++;
            continue;
        }
        if (next == count || (to = put_slot(to, &from, end, &slots[next++])) == NULL)
            return NULL;
    }
    if (next != count)
        return NULL;
    put32(start, (uint32_t)((uint8_t *)to - start - 4));
    put32(start + 4, (uint32_t)((uint8_t *)to - start - 8));
    return (uint8_t *)to;
}

/* The same as a bytes object; None for another template */
static PyObject *answer_of(PyObject *template, const Slot *slots, int count)
{
    const char *text = PyBytes_AS_STRING(template);
    Py_ssize_t size = PyBytes_GET_SIZE(template);
    PyObject *frame = PyBytes_FromStringAndSize(NULL, answer_room(size, slots, count));
    if (frame == NULL)
        return NULL;
    uint8_t *start = (uint8_t *)PyBytes_AS_STRING(frame),
            *end = put_answer(start, text, text + size, slots, count);
    if (end == NULL) {
        Py_DECREF(frame);
        Py_RETURN_NONE;
    }
    if (_PyBytes_Resize(&frame, end - start) < 0)
        return NULL;
    return frame;
}

static int read_number(PyObject *value, Slot *slot)
{
    slot->kind = NUMBER;
    return is_number(value, INT64_MIN, INT64_MAX, &slot->number);
}

/* 0 for a key that is not JSON text as it is */
static int read_key(PyObject *value, Slot *slot)
{
    slot->kind = KEY;
    slot->key.at = utf8_of(value, &slot->key.size);
    return slot->key.at != NULL && is_plain_key(slot->key);
}

enum { SEND_SLOTS = 5 };

/* send_answer(template, queue_id, key, commitlog_offset, queue_offset, opaque): the frame of the
   answer with that header.

   The template is one of bytes.__mod__ with %d, %s for the key as JSON text, %016X and %%. None for
   another, and for a key that has other characters than letters and digits. */
PyObject *native_send_answer(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 6 || !PyBytes_Check(args[0]) || !PyUnicode_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError,
            "send_answer(template: bytes, queue_id: int, key: str, commitlog_offset, queue_offset, "
            "opaque: int)");
        return NULL;
    }
    Slot slots[SEND_SLOTS];
    if (PyBytes_GET_SIZE(args[0]) > MAX_TEMPLATE_BYTES || !read_number(args[1], &slots[0])
        || !read_key(args[2], &slots[1]) || !read_number(args[3], &slots[2])
        || !read_number(args[4], &slots[3]) || !read_number(args[5], &slots[4]))
        Py_RETURN_NONE;
    return answer_of(args[0], slots, SEND_SLOTS);
}

/* batch_answer(template, queue_id, key, store_host, results, opaque): the frame of a batch's answer
   with that header.

   In the template stands %b for the ids of the messages, and %s only where there is a key. None for
   what send_answer() does not take, and where a result is not usual. */
PyObject *native_batch_answer(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 6 || !PyBytes_Check(args[0]) || (args[2] != Py_None && !PyUnicode_Check(args[2]))
        || !PyBytes_Check(args[3]) || !PyList_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError,
            "batch_answer(template: bytes, queue_id: int, key: str | None, store_host: bytes, "
            "results: list, "
            "opaque: int)");
        return NULL;
    }
    PyObject *results = args[4];
    int used = 0;
    Slot slots[SEND_SLOTS];
    if (PyBytes_GET_SIZE(args[0]) > MAX_TEMPLATE_BYTES || PyBytes_GET_SIZE(args[3]) > HOST_V6
        || PyList_GET_SIZE(results) == 0 || PyList_GET_SIZE(results) > INT32_MAX
        || !read_number(args[1], &slots[used++])
        || (args[2] != Py_None && !read_key(args[2], &slots[used++])))
        Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(results); i++) {
        PyObject *result = PyList_GET_ITEM(results, i);
        int64_t offset;
        if (!PyTuple_Check(result) || PyTuple_GET_SIZE(result) < 2
            || !is_number(PyTuple_GET_ITEM(result, 1), 0, INT64_MAX, &offset))
            Py_RETURN_NONE;
    }
    slots[used++] = (Slot){.kind = IDS, .host = args[3], .results = results};
    if (!read_number(PyTuple_GET_ITEM(PyList_GET_ITEM(results, 0), 0), &slots[used++])
        || !read_number(args[5], &slots[used++]))
        Py_RETURN_NONE;
    return answer_of(args[0], slots, used);
}

/* Topic and queue of some of the messages of a run */
typedef struct {
    /* they belong to the tuple that the caller gets */
    PyObject *topic, *queue_id;
    Text name;
    int64_t number;
    /* of the topic, that may be sent to */
    int64_t queues;
} Place;

typedef struct {
    Place all[MAX_PLACES];
    int count;
    /* the same as tuples */
    PyObject *made;
} Places;

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
    const Place *found = NULL;
    if (!PyErr_Occurred() && queue_id >= 0 && queue_id < place.queues
        && (place.name.at = utf8_of(place.topic, &place.name.size)) != NULL) {
        PyObject *tuple = PyTuple_Pack(2, place.topic, place.queue_id);
        if (tuple != NULL && PyList_Append(places->made, tuple) == 0) {
            places->all[places->count] = place;
            found = &places->all[places->count++];
        }
        Py_XDECREF(tuple);
    }
    Py_XDECREF(place.topic);
    Py_XDECREF(place.queue_id);
    return found;
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

/* plain_sends(frames, at, most, most_bytes, queues_of, own_properties, born_host, store_host,
   message): (messages, keys, opaques, places) of the plain sends from frames[at] on, at most so
   many, with bodies of at most so many bytes; None where there is none.

   A plain send is a SEND_MESSAGE_V2 that is answered, whose header is as Java's clients write it,
   and that usual_send() takes; its key consists of letters and digits, and *queues_of* says of its
   topic that it has its queue. Messages of one topic and queue have these two objects in common,
   and with one of *places*. */
PyObject *native_plain_sends(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 9 || !PyList_Check(args[0]) || !PyLong_Check(args[1]) || !PyLong_Check(args[2])
        || !PyLong_Check(args[3]) || !PyUnicode_Check(args[5]) || !PyBytes_Check(args[6])
        || !PyBytes_Check(args[7]) || !is_tuple_type(args[8])) {
        PyErr_SetString(PyExc_TypeError,
            "plain_sends(frames: list, at: int, most: int, most_bytes: int, queues_of, "
            "own_properties: str, born_host: bytes, "
            "store_host: bytes, message: type[NewMessage])");
        return NULL;
    }
    int64_t at, most, most_bytes;
    Py_ssize_t own_size;
    const char *own = utf8_of(args[5], &own_size);
    if (own == NULL || !is_number(args[1], 0, INT64_MAX, &at)
        || !is_number(args[2], INT64_MIN, INT64_MAX, &most)
        || !is_number(args[3], INT64_MIN, INT64_MAX, &most_bytes))
        Py_RETURN_NONE;
    PyObject *messages = PyList_New(0), *keys = PyList_New(0), *opaques = PyList_New(0),
             *run = NULL, *frame = NULL;
    char room[MAX_ESCAPED_BYTES];
    Places places = {.count = 0, .made = PyList_New(0)};
    if (messages == NULL || keys == NULL || opaques == NULL || places.made == NULL)
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
            || !read_single_send(fields, own_size, &send) || !is_plain_key(send.key)
            || (place = place_of(&places, fields[TOPIC], send.queue_id, args[4])) == NULL)
            break;
        PyObject *body = PyBytes_FromStringAndSize(
            (const char *)bytes + header.body_at, PyBytes_GET_SIZE(frame) - header.body_at);
        PyObject *properties = with_own(fields[PROPERTIES], own, own_size);
        if (!append(messages,
                message_of(
                    (PyTypeObject *)args[8], place, &send, body, properties, args[6], args[7]))
            || !append(keys, PyUnicode_FromStringAndSize(send.key.at, send.key.size))
            || !append(opaques, PyLong_FromLong(header.opaque)))
            goto done;
    }
    if (!PyErr_Occurred())
        run = PyList_GET_SIZE(messages) == 0
            ? Py_NewRef(Py_None)
            : PyTuple_Pack(4, messages, keys, opaques, places.made);

done:
    Py_XDECREF(frame);
    Py_XDECREF(messages);
    Py_XDECREF(keys);
    Py_XDECREF(opaques);
    Py_XDECREF(places.made);
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
    Places places = {.count = 0, .made = PyList_New(0)};
    if (batches == NULL || places.made == NULL)
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
            || (send.key.at != NULL && !is_plain_key(send.key))
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
    Py_XDECREF(places.made);
    if (PyErr_Occurred())
        Py_CLEAR(batches);
    else if (PyList_GET_SIZE(batches) == 0)
        Py_SETREF(batches, Py_NewRef(Py_None));
    return batches;
}

/* What is filled in for message number *at* of a run; 0 where one is not usual */
static int read_stored(PyObject *const *lists, Py_ssize_t at, Slot *slots)
{
    PyObject *message = PyList_GET_ITEM(lists[0], at), *result = PyList_GET_ITEM(lists[2], at);
    return PyTuple_Check(message) && PyTuple_GET_SIZE(message) > 1 && PyTuple_Check(result)
        && PyTuple_GET_SIZE(result) > 1 && read_number(PyTuple_GET_ITEM(message, 1), &slots[0])
        && read_key(PyList_GET_ITEM(lists[1], at), &slots[1])
        && read_number(PyTuple_GET_ITEM(result, 1), &slots[2])
        && read_number(PyTuple_GET_ITEM(result, 0), &slots[3])
        && read_number(PyList_GET_ITEM(lists[3], at), &slots[4]);
}

/* send_answers(template, messages, keys, results, opaques): the frames of send_answer() for each,
   one behind the other; None where one of them were None. */
PyObject *native_send_answers(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 5 || !PyBytes_Check(args[0]) || !PyList_Check(args[1]) || !PyList_Check(args[2])
        || !PyList_Check(args[3]) || !PyList_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError,
            "send_answers(template: bytes, messages: list, keys: list, results: list, opaques: "
            "list)");
        return NULL;
    }
    Py_ssize_t number = PyList_GET_SIZE(args[1]), template_size = PyBytes_GET_SIZE(args[0]),
               total = 0;
    Slot slots[SEND_SLOTS];
    if (PyList_GET_SIZE(args[2]) != number || PyList_GET_SIZE(args[3]) != number
        || PyList_GET_SIZE(args[4]) != number || template_size > MAX_TEMPLATE_BYTES)
        Py_RETURN_NONE;
    for (Py_ssize_t at = 0; at < number; at++) {
        if (!read_stored(args + 1, at, slots))
            Py_RETURN_NONE;
        total += answer_room(template_size, slots, SEND_SLOTS);
    }
    PyObject *frames = PyBytes_FromStringAndSize(NULL, total);
    if (frames == NULL)
        return NULL;
    uint8_t *start = (uint8_t *)PyBytes_AS_STRING(frames), *to = start;
    const char *template = PyBytes_AS_STRING(args[0]);
    for (Py_ssize_t at = 0; at < number && to != NULL; at++) {
        read_stored(args + 1, at, slots);
        to = put_answer(to, template, template + template_size, slots, SEND_SLOTS);
    }
    if (to == NULL) {
        Py_DECREF(frames);
        Py_RETURN_NONE;
    }
    if (_PyBytes_Resize(&frames, to - start) < 0)
        return NULL;
    return frames;
}
