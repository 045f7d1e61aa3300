/* Requests to store messages and to end transactions, as clients send them. Python: wire/sends.py.
 */

#include "native.h"

#include <stdlib.h>

/* Request codes, as in wire/codes.py */
enum { END_TRANSACTION = 37, SEND_MESSAGE_V2 = 310, SEND_BATCH_MESSAGE = 320 };

/* in the flag of a request: it wants no answer */
enum { ONEWAY = 2 };

/* those that clients send, as in wire/sends.py */
#define CLIENT_FLAGS 0x733

/* topics and queues of sends that are read together */
#define MAX_PLACES 64
/* in the header of a send; one with more is left to Python */
#define MAX_SEND_FIELDS 32
/* fit 64 bits, however they go on */
#define MAX_DIGITS 18
/* in a header */
#define MAX_ESCAPED_BYTES 8192
/* properties of a half message */
#define MAX_HALF_NAMES 32

/* the fields of a send's header, as SendNames has them */
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

/* what a request asks for, as in SendKind */
enum { PLAIN, BATCH_OF_SEVERAL, SPECIAL, HALF, END };

typedef struct {
    Text name, value;
} Field;

typedef struct {
    Header header;
    /* by their letters */
    Text fields[NAMES];
    /* all fields, in the order in which they came */
    Field all[MAX_SEND_FIELDS];
    int count;
    int kind;
    int64_t queue_id, sys_flag, born_ms, flag, times;
    /* of a plain send, and of a half message */
    Text key;
    /* of an end */
    Text group;
    int64_t place, offset, decision;
} Send;

static int is_same(Text one, Text other)
{
    return one.size == other.size && memcmp(one.at, other.at, (size_t)one.size) == 0;
}

/* Unless the field is missing, "false" or "0", which the C++ client writes, Python looks at it */
static int may_be_batch(Text batch)
{
    return batch.at != NULL && !is_word(batch, "false") && !is_word(batch, "0");
}

/* Whether it is a plain decimal number; one that is not there is 0 */
static int number_of(Text text, int64_t *number)
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
   transaction, a priority, a broker that it has been through, or a batch that is one record, and
   there are no two keys. Then *key* is its unique key, NULL at *at* where it has none. */
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
            || ENDS(text, at, "CLUSTER") || ENDS(text, at, "INNER_NUM")
            || ENDS(text, at, "_SYS_MSG_PRIORITY_")) {
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

#define TEXT(literal) {literal, sizeof(literal) - 1}

/* Whether a property of this name makes the message another one than a half message that is stored
 * for the first time, just so */
static int is_special(Text name)
{
    static const Text names[] = {
        TEXT("DELAY"),
        TEXT("POP_CK"),
        TEXT("INNER_NUM"),
        TEXT("_SYS_MSG_PRIORITY_"),
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

/* Whether these are the properties of a half message as producers send it; its unique key */
static int find_half_key(Text text, Text *key)
{
    Text names[MAX_HALF_NAMES];
    int count = 0, prepared = 0, grouped = 0;
    const char *end = text.at + text.size;
    *key = (Text){NULL, 0};
    if (text.size == 0)
        return 0;
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
            grouped = 1;
        else if (is_word(name, "TRAN_MSG"))
            prepared = is_word(value, "true");
        else if (is_special(name))
            return 0;
        at = stop == end ? end : stop + 1;
    }
    return prepared && grouped && key->at != NULL;
}

/* A number of 32 bits; one that is not there is 0 */
static int read_int(Text text, int64_t *number)
{
    return number_of(text, number) && *number >= INT32_MIN && *number <= INT32_MAX;
}

/* The header of a request to store messages, or to end a transaction, and its fields; texts with
   escapes in *room*. 0 for anything else, and where a field is cut off or not UTF-8, or there are
   too many */
static int read_header_of_send(const uint8_t *frame, Py_ssize_t size, char *room, Send *send)
{
    /* SHORT_NAMES in Python */
    static const char letters[NAMES] = {'b', 'e', 'f', 'g', 'h', 'i', 'j', 'l', 'c', 'd', 'k', 'm'};
    Header *header = &send->header;
    int binary = read_header(frame, size, header);
    Py_ssize_t room_left = MAX_ESCAPED_BYTES;
    if ((!binary && !read_json_header(frame, size, header))
        || (header->code != SEND_MESSAGE_V2 && header->code != SEND_BATCH_MESSAGE
            && header->code != END_TRANSACTION)
        || (header->flag != 0 && header->flag != ONEWAY))
        return 0;
    memset(send->fields, 0, sizeof send->fields);
    send->count = 0;
    for (Py_ssize_t at = header->fields_at; at < header->fields_end;) {
        Text name, value;
        if (send->count == MAX_SEND_FIELDS)
            return 0;
        if (binary ? !read_field(frame, &at, header->fields_end, &name, &value)
                    || !is_utf8((const uint8_t *)name.at, (size_t)name.size)
                    || !is_utf8((const uint8_t *)value.at, (size_t)value.size)
                   : !read_json_field(
                         frame, &at, header->fields_end, &name, &value, &room, &room_left))
            return 0;
        /* Java decodes it to null */
        if (binary && (name.size == 0 || value.size == 0))
            continue;
        send->all[send->count++] = (Field){name, value};
        const char *letter = name.size == 1 ? memchr(letters, name.at[0], NAMES) : NULL;
        if (letter != NULL)
            send->fields[letter - letters] = value;
    }
    return 1;
}

/* Kind and key of a single message, to which so many bytes of properties are added */
static int kind_of(Send *send, Py_ssize_t own_size)
{
    Text topic = send->fields[TOPIC], text = send->fields[PROPERTIES];
    int64_t others = send->sys_flag & ~(int64_t)CLIENT_FLAGS;
    if (topic.size == 0 || topic.at[0] == '%' || (others & ~TRANSACTION_PREPARED)
        || send->born_ms < 0 || send->flag == INT32_MIN || send->times < 0)
        return SPECIAL;
    if (!others && text.size <= MAX_PROPERTIES_BYTES && find_key(text, &send->key)
        && send->key.at != NULL
        && own_size <= MAX_PROPERTIES_BYTES - (text.at[text.size - 1] != 2) - text.size)
        return PLAIN;
    if (send->times == 0 && find_half_key(text, &send->key))
        return HALF;
    send->key = (Text){NULL, 0};
    return SPECIAL;
}

/* The request to end a transaction; 0 for one that Python has to read */
static int read_end(Send *send)
{
    Text place = {NULL, 0}, offset = place, decision = place;
    send->group = place;
    send->kind = END;
    for (int i = 0; i < send->count; i++) {
        Text name = send->all[i].name, value = send->all[i].value;
        if (is_word(name, "producerGroup"))
            send->group = value;
        else if (is_word(name, "tranStateTableOffset"))
            place = value;
        else if (is_word(name, "commitLogOffset"))
            offset = value;
        else if (is_word(name, "commitOrRollback"))
            decision = value;
    }
    return send->group.at != NULL && place.at != NULL && offset.at != NULL && decision.at != NULL
        && number_of(place, &send->place) && number_of(offset, &send->offset)
        && (is_word(decision, "8") || is_word(decision, "12"))
        && number_of(decision, &send->decision);
}

/* read_send() of this frame, with so many bytes of the broker's properties; 0 for one that Python
   has to read */
static int read_send(
    const uint8_t *frame, Py_ssize_t size, Py_ssize_t own_size, char *room, Send *send)
{
    if (!read_header_of_send(frame, size, room, send))
        return 0;
    send->key = (Text){NULL, 0};
    if (send->header.code == END_TRANSACTION)
        return read_end(send);
    const Text *fields = send->fields;
    Text batch = fields[BATCH];
    if (fields[TOPIC].at == NULL || fields[QUEUE_ID].at == NULL || fields[BORN_MS].at == NULL
        || !read_int(fields[QUEUE_ID], &send->queue_id)
        || !read_int(fields[SYS_FLAG], &send->sys_flag)
        || !number_of(fields[BORN_MS], &send->born_ms) || !read_int(fields[FLAG], &send->flag)
        || !read_int(fields[TIMES], &send->times))
        return 0;
    if (send->header.code != SEND_BATCH_MESSAGE && !may_be_batch(batch)) {
        send->kind = kind_of(send, own_size);
        return 1;
    }
    send->kind = BATCH_OF_SEVERAL;
    if (!find_key(fields[PROPERTIES], &send->key))
        send->key = (Text){NULL, 0};
    return send->header.code == SEND_BATCH_MESSAGE || is_word(batch, "true") || is_word(batch, "1");
}

/* The properties to store: those of the send, and the broker's own */
static PyObject *with_own(Text text, PyObject *own)
{
    /* 4.9 leaves the last separator off */
    int open = text.at[text.size - 1] != 2;
    Py_ssize_t own_size = PyBytes_GET_SIZE(own);
    PyObject *properties = PyBytes_FromStringAndSize(NULL, text.size + open + own_size);
    if (properties == NULL)
        return NULL;
    char *to = PyBytes_AS_STRING(properties);
    memcpy(to, text.at, (size_t)text.size);
    if (open)
        to[text.size] = 2;
    memcpy(to + text.size + open, PyBytes_AS_STRING(own), (size_t)own_size);
    return properties;
}

/* Topic and queue of some of the messages, which have these two objects in common */
typedef struct {
    PyObject *topic, *queue_id;
    Text name;
    int64_t number;
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

/* The place of a send, in *place*, with references to both objects; 0 with an error. Its name is
   the one in the object, which stays when the frame is gone. */
static int take_place(Places *places, Text name, int64_t queue_id, Place *place)
{
    const Place *known = NULL;
    for (const Place *one = places->all; one < places->all + places->count; one++) {
        if (is_same(one->name, name)) {
            known = one;
            if (one->number == queue_id)
                break;
        }
    }
    if (known != NULL && known->number == queue_id) {
        *place = *known;
        Py_INCREF(place->topic);
        Py_INCREF(place->queue_id);
        return 1;
    }
    place->number = queue_id;
    place->topic =
        known != NULL ? Py_NewRef(known->topic) : PyUnicode_DecodeUTF8(name.at, name.size, NULL);
    place->queue_id = PyLong_FromLongLong(queue_id);
    if (place->topic == NULL || place->queue_id == NULL
        || (place->name.at = PyUnicode_AsUTF8AndSize(place->topic, &place->name.size)) == NULL) {
        Py_XDECREF(place->topic);
        Py_XDECREF(place->queue_id);
        return 0;
    }
    if (places->count < MAX_PLACES) {
        places->all[places->count++] = *place;
        Py_INCREF(place->topic);
        Py_INCREF(place->queue_id);
    }
    return 1;
}

/* The types that are made: Send, NewMessage, SendAnswer, Signed, End, Ending */
enum { SEND, MESSAGE, ANSWER, SIGNED, ENDS, ENDING, FORMS };
/* An Origin */
enum { OWN_PROPERTIES, BORN_HOST, STORE_HOST, ORIGIN };

static PyTypeObject *form(PyObject *forms, int at)
{
    return (PyTypeObject *)PyTuple_GET_ITEM(forms, at);
}

static int orders(const void *one, const void *other)
{
    Text first = ((const Field *)one)->name, second = ((const Field *)other)->name;
    Py_ssize_t size = first.size < second.size ? first.size : second.size;
    int order = memcmp(first.at, second.at, (size_t)size);
    return order ? order : (first.size > second.size) - (first.size < second.size);
}

/* A Signed, or None without a signature. NULL with an error, or without one where Python has to put
   the values in order */
static PyObject *signed_of(Send *send, PyObject *forms)
{
    Text key = {NULL, 0}, signature = {NULL, 0};
    for (int i = 0; i < send->count; i++) {
        if (is_word(send->all[i].name, "AccessKey"))
            key = send->all[i].value;
        else if (is_word(send->all[i].name, "Signature"))
            signature = send->all[i].value;
    }
    if (key.size == 0 || signature.size == 0)
        Py_RETURN_NONE;
    qsort(send->all, (size_t)send->count, sizeof *send->all, orders);
    Py_ssize_t size = 0;
    for (int i = 0; i < send->count; i++) {
        Text name = send->all[i].name;
        if ((i && is_same(send->all[i - 1].name, name)) || is_word(name, "_UNIQUE_KEY_QUERY"))
            return NULL;
        for (Py_ssize_t at = 0; at < name.size; at++) {
            if (name.at[at] & 0x80)
                return NULL;
        }
        size += is_word(name, "Signature") ? 0 : send->all[i].value.size;
    }
    PyObject *values = PyBytes_FromStringAndSize(NULL, size);
    if (values == NULL)
        return NULL;
    char *to = PyBytes_AS_STRING(values);
    for (int i = 0; i < send->count; i++) {
        Text value = send->all[i].value;
        if (!is_word(send->all[i].name, "Signature") && value.size) {
            memcpy(to, value.at, (size_t)value.size);
            to += value.size;
        }
    }
    PyObject *parts[] = {
        PyUnicode_FromStringAndSize(key.at, key.size),
        PyUnicode_FromStringAndSize(signature.at, signature.size),
        values,
    };
    return make_tuple(form(forms, SIGNED), parts, sizeof parts / sizeof *parts);
}

/* The message of a send; NULL with an error */
static PyObject *make_message(
    PyObject *frame, const Send *send, const Place *place, PyObject *origin, PyObject *forms)
{
    Text text = send->fields[PROPERTIES];
    Py_ssize_t body_at = send->header.body_at;
    PyObject *values[] = {
        Py_NewRef(place->topic),
        Py_NewRef(place->queue_id),
        PyBytes_FromStringAndSize(PyBytes_AS_STRING(frame) + body_at,
            send->kind == BATCH_OF_SEVERAL ? 0 : PyBytes_GET_SIZE(frame) - body_at),
        send->kind == PLAIN ? with_own(text, PyTuple_GET_ITEM(origin, OWN_PROPERTIES))
                            : PyBytes_FromStringAndSize(text.at, text.size),
        PyLong_FromLongLong(send->sys_flag),
        PyLong_FromLongLong(send->flag),
        PyLong_FromLongLong(send->born_ms),
        Py_NewRef(PyTuple_GET_ITEM(origin, BORN_HOST)),
        Py_NewRef(PyTuple_GET_ITEM(origin, STORE_HOST)),
        PyLong_FromLongLong(send->times),
        PyLong_FromLong(0),
    };
    return make_tuple(form(forms, MESSAGE), values, sizeof values / sizeof *values);
}

static PyObject *make_ending(const Send *send, PyObject *forms)
{
    PyObject *values[] = {
        PyUnicode_FromStringAndSize(send->group.at, send->group.size),
        PyLong_FromLongLong(send->place),
        PyLong_FromLongLong(send->offset),
        PyLong_FromLongLong(send->decision),
    };
    return make_tuple(form(forms, ENDING), values, sizeof values / sizeof *values);
}

static PyObject *make_answer(const Send *send, PyObject *queue_id, PyObject *forms)
{
    PyObject *values[] = {
        send->header.flag == ONEWAY ? Py_NewRef(Py_None) : PyLong_FromLong(send->header.opaque),
        Py_NewRef(queue_id),
        send->key.at == NULL ? Py_NewRef(Py_None)
                             : PyUnicode_FromStringAndSize(send->key.at, send->key.size),
        PyLong_FromLong(1),
        Py_NewRef(Py_None),
    };
    return make_tuple(form(forms, ANSWER), values, sizeof values / sizeof *values);
}

/* The Send or End of a frame; takes *signature* over. NULL with an error */
static PyObject *make_send(PyObject *frame, Send *send, Places *places, PyObject *signature,
    PyObject *origin, PyObject *forms)
{
    PyObject *asked, *answer;
    if (send->kind == END) {
        PyObject *zero = PyLong_FromLong(0);
        asked = make_ending(send, forms);
        answer = make_answer(send, zero, forms);
        Py_DECREF(zero);
    } else {
        Place place;
        if (!take_place(places, send->fields[TOPIC], send->queue_id, &place)) {
            Py_DECREF(signature);
            return NULL;
        }
        asked = make_message(frame, send, &place, origin, forms);
        answer = make_answer(send, place.queue_id, forms);
        Py_DECREF(place.topic);
        Py_DECREF(place.queue_id);
    }
    PyObject *values[] = {
        PyLong_FromLong(send->header.code),
        PyLong_FromLong(send->kind),
        asked,
        answer,
        signature,
        Py_NewRef(frame),
    };
    PyTypeObject *type = form(forms, send->kind == END ? ENDS : SEND);
    return make_tuple(type, values, sizeof values / sizeof *values);
}

/* Whether it is read with one of this kind and code before it */
static int goes_on(int kind, int code, const Send *send)
{
    return (send->kind == kind && send->header.code == code)
        || ((send->kind == HALF || send->kind == END) && (kind == HALF || kind == END));
}

/* read_sends(forms, frames, at, most, most_bytes, most_body, origin): see ogive.wire.sends. *forms*
   are the types Send, NewMessage, SendAnswer, Signed, End and Ending. */
FUNCTION(read_sends)
{
    int right = count == 7 && PyTuple_Check(args[0]) && PyTuple_GET_SIZE(args[0]) == FORMS
        && PyList_Check(args[1]) && PyTuple_Check(args[6]) && PyTuple_GET_SIZE(args[6]) == ORIGIN;
    for (int i = 0; right && i < FORMS; i++)
        right = is_tuple_type(PyTuple_GET_ITEM(args[0], i));
    for (int i = 0; right && i < ORIGIN; i++)
        right = PyBytes_Check(PyTuple_GET_ITEM(args[6], i));
    int64_t at, most, most_bytes, most_body;
    if (!right || !is_number(args[2], 0, INT64_MAX, &at)
        || !is_number(args[3], INT64_MIN, INT64_MAX, &most)
        || !is_number(args[4], INT64_MIN, INT64_MAX, &most_bytes)
        || !is_number(args[5], INT64_MIN, INT64_MAX, &most_body))
        return misused("read_sends(forms: tuple of 6 types, frames: list, at: int, most: int, "
                       "most_bytes: int, most_body: int, origin: Origin)");
    PyObject *forms = args[0], *frames = args[1], *origin = args[6], *frame = NULL;
    Py_ssize_t own_size = PyBytes_GET_SIZE(PyTuple_GET_ITEM(origin, OWN_PROPERTIES));
    char room[MAX_ESCAPED_BYTES];
    Places places = {.count = 0};
    Send send;
    int code = 0, kind = 0;
    int64_t size = 0;
    PyObject *sends = PyList_New(0);
    for (; sends != NULL && at < PyList_GET_SIZE(frames) && PyList_GET_SIZE(sends) < most; at++) {
        /* making others may set off anything, even change the list */
        Py_XSETREF(frame, Py_NewRef(PyList_GET_ITEM(frames, (Py_ssize_t)at)));
        if (!PyBytes_Check(frame))
            break;
        int first = PyList_GET_SIZE(sends) == 0;
        size += PyBytes_GET_SIZE(frame);
        if ((!first && size > most_bytes)
            || !read_send((const uint8_t *)PyBytes_AS_STRING(frame), PyBytes_GET_SIZE(frame),
                own_size, room, &send)
            || PyBytes_GET_SIZE(frame) - send.header.body_at > most_body
            || (!first && !goes_on(kind, code, &send)))
            break;
        code = send.header.code;
        kind = send.kind;
        PyObject *signature = signed_of(&send, forms);
        if (signature == NULL)
            break;
        PyObject *made = make_send(frame, &send, &places, signature, origin, forms);
        if (made == NULL || PyList_Append(sends, made) < 0) {
            Py_XDECREF(made);
            break;
        }
        Py_DECREF(made);
    }
    Py_XDECREF(frame);
    drop_places(&places);
    if (PyErr_Occurred())
        Py_CLEAR(sends);
    return sends;
}
