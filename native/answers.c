/* Answers to sends. Python: wire/sends.py. */

#include "native.h"

/* of an answer, beside its texts and ids */
#define FRAME_ROOM 512

static uint8_t *put_text(uint8_t *to, const char *text)
{
    size_t size = strlen(text);
    memcpy(to, text, size);
    return to + size;
}

static uint8_t *put_number(uint8_t *to, int64_t number)
{
    uint8_t digits[20];
    int count = 0;
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do {
        digits[count++] = (uint8_t)('0' + left % 10);
        left /= 10;
    } while (left);
    if (number < 0)
        *to++ = '-';
    while (count)
        *to++ = digits[--count];
    return to;
}

/* A UTF-16 unit */
static uint8_t *put_escape(uint8_t *to, uint32_t unit)
{
    *to++ = '\\';
    *to++ = 'u';
    for (int shift = 12; shift >= 0; shift -= 4)
        *to++ = (uint8_t)"0123456789abcdef"[unit >> shift & 15];
    return to;
}

/* A text as json.dumps() writes it: at most 12 bytes for each of its characters, and two */
static uint8_t *put_json(uint8_t *to, PyObject *text)
{
    static const char letters[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    int kind = PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    *to++ = '"';
    for (Py_ssize_t at = 0; at < PyUnicode_GET_LENGTH(text); at++) {
        Py_UCS4 letter = PyUnicode_READ(kind, data, at);
        if (letter >= 0x20 && letter < 0x7F && letter != '"' && letter != '\\') {
            *to++ = (uint8_t)letter;
            continue;
        }
        const char *special = letter != 0 && letter < 128 ? strchr(letters, (int)letter) : NULL;
        if (special != NULL) {
            *to++ = '\\';
            *to++ = (uint8_t)names[special - letters];
        } else if (letter < 0x10000) {
            to = put_escape(to, letter);
        } else {
            to = put_escape(to, 0xD7C0 + (letter >> 10));
            to = put_escape(to, 0xDC00 | (letter & 0x3FF));
        }
    }
    *to++ = '"';
    return to;
}

static Py_ssize_t json_room(PyObject *text)
{
    return 12 * PyUnicode_GET_LENGTH(text) + 2;
}

/* The fields of a SendAnswer */
typedef struct {
    /* opaque is not read where there is none */
    int is_answered;
    int64_t opaque, queue_id;
    /* NULL where there is none */
    PyObject *key, *more_name, *more_value;
} Answer;

/* 0 with an error */
static int take_answer(PyObject *object, Answer *answer)
{
    *answer = (Answer){0};
    if (PyTuple_Check(object) && PyTuple_GET_SIZE(object) == 5) {
        PyObject *opaque = PyTuple_GET_ITEM(object, 0), *key = PyTuple_GET_ITEM(object, 2),
                 *more = PyTuple_GET_ITEM(object, 4);
        answer->is_answered = opaque != Py_None;
        answer->key = key == Py_None ? NULL : key;
        if (PyTuple_Check(more) && PyTuple_GET_SIZE(more) == 2) {
            answer->more_name = PyTuple_GET_ITEM(more, 0);
            answer->more_value = PyTuple_GET_ITEM(more, 1);
        }
        if ((!answer->is_answered || is_number(opaque, INT64_MIN, INT64_MAX, &answer->opaque))
            && is_number(PyTuple_GET_ITEM(object, 1), INT64_MIN, INT64_MAX, &answer->queue_id)
            && (answer->key == NULL || PyUnicode_Check(answer->key))
            && (more == Py_None
                || (answer->more_name != NULL && PyUnicode_Check(answer->more_name)
                    && PyUnicode_Check(answer->more_value))))
            return 1;
    }
    PyErr_SetString(PyExc_TypeError, "encode_answers(): an answer is a SendAnswer");
    return 0;
}

/* The fields of a PutResult that are told */
typedef struct {
    int64_t queue_offset, offset;
    /* of a batch: the commit-log offset of each record */
    const uint8_t *offsets;
    Py_ssize_t records;
} Place;

/* 0 with an error */
static int take_place(PyObject *object, Place *place)
{
    if (PyTuple_Check(object) && PyTuple_GET_SIZE(object) == 5
        && is_number(PyTuple_GET_ITEM(object, 0), 0, INT64_MAX, &place->queue_offset)
        && is_number(PyTuple_GET_ITEM(object, 1), 0, INT64_MAX, &place->offset)
        && PyBytes_Check(PyTuple_GET_ITEM(object, 4))) {
        PyObject *offsets = PyTuple_GET_ITEM(object, 4);
        place->offsets = (const uint8_t *)PyBytes_AS_STRING(offsets);
        place->records = PyBytes_GET_SIZE(offsets) / 8;
        return 1;
    }
    PyErr_SetString(PyExc_TypeError, "encode_answers(): a place is a PutResult");
    return 0;
}

/* Puts the frame of an answer */
static uint8_t *put_answer(uint8_t *start, const Answer *answer, const Place *place,
    PyObject *region, PyObject *host, int64_t version)
{
    const uint8_t *host_bytes = (const uint8_t *)PyBytes_AS_STRING(host);
    uint8_t *to = put_text(start + 8, "{\"code\":0,\"extFields\":{\"queueId\":\"");
    to = put_number(to, answer->queue_id);
    to = put_text(to, "\",");
    if (answer->key != NULL) {
        to = put_text(to, "\"transactionId\":");
        to = put_json(to, answer->key);
        *to++ = ',';
    }
    to = put_text(to, "\"msgId\":\"");
    if (place->records == 0)
        to = put_message_id(to, host_bytes, PyBytes_GET_SIZE(host), place->offset);
    for (Py_ssize_t i = 0; i < place->records; i++) {
        if (i)
            *to++ = ',';
        to = put_message_id(
            to, host_bytes, PyBytes_GET_SIZE(host), (int64_t)get64(place->offsets + 8 * i));
    }
    to = put_text(to, "\",\"TRACE_ON\":\"true\",\"MSG_REGION\":");
    to = put_json(to, region);
    *to++ = ',';
    if (answer->more_name != NULL) {
        to = put_json(to, answer->more_name);
        *to++ = ':';
        to = put_json(to, answer->more_value);
        *to++ = ',';
    }
    to = put_text(to, "\"queueOffset\":\"");
    to = put_number(to, place->queue_offset);
    to = put_text(to, "\"},\"flag\":1,\"language\":\"PYTHON\",\"opaque\":");
    to = put_number(to, answer->opaque);
    to = put_text(to, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    to = put_number(to, version);
    *to++ = '}';
    put32(start, (uint32_t)(to - start - 4));
    put32(start + 4, (uint32_t)(to - start - 8));
    return to;
}

/* encode_answers(answers, places, region, store_host, version): see ogive.wire.sends */
FUNCTION(encode_answers)
{
    int64_t version;
    if (count != 5 || !PyList_Check(args[0]) || !PyList_Check(args[1]) || !PyUnicode_Check(args[2])
        || !PyBytes_Check(args[3]) || !is_number(args[4], INT64_MIN, INT64_MAX, &version))
        return misused("encode_answers(answers: list[SendAnswer], places: list, region: str, "
                       "store_host: bytes, version: int)");
    PyObject *answers = args[0], *places = args[1], *region = args[2], *host = args[3];
    Answer answer;
    Place place;
    Py_ssize_t room = 0;
    if (PyList_GET_SIZE(answers) != PyList_GET_SIZE(places)) {
        PyErr_SetString(PyExc_ValueError, "the places are not those of the answers");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(answers); i++) {
        if (!take_answer(PyList_GET_ITEM(answers, i), &answer)
            || !take_place(PyList_GET_ITEM(places, i), &place))
            return NULL;
        if (!answer.is_answered)
            continue;
        room += FRAME_ROOM + json_room(region)
            + (place.records + 1) * (2 * (PyBytes_GET_SIZE(host) + 8) + 1);
        room += answer.key == NULL ? 0 : json_room(answer.key);
        if (answer.more_name != NULL)
            room += json_room(answer.more_name) + json_room(answer.more_value);
    }
    PyObject *frames = PyBytes_FromStringAndSize(NULL, room);
    if (frames == NULL)
        return NULL;
    uint8_t *start = (uint8_t *)PyBytes_AS_STRING(frames), *to = start;
    for (Py_ssize_t i = 0; to != NULL && i < PyList_GET_SIZE(answers); i++) {
        if (!take_answer(PyList_GET_ITEM(answers, i), &answer)
            || !take_place(PyList_GET_ITEM(places, i), &place))
            to = NULL;
        else if (answer.is_answered)
            to = put_answer(to, &answer, &place, region, host, version);
    }
    if (to == NULL) {
        Py_DECREF(frames);
        return NULL;
    }
    if (_PyBytes_Resize(&frames, to - start) < 0)
        return NULL;
    return frames;
}
