/* What a broker does for each single send. Python: broker/handlers/send.py, broker/handlers/send_answer.py. */

#include "native.h"

#define CLIENT_FLAGS 0x733 /* bits of a sys flag, as in broker/handlers/send_rules.py */
#define MAX_TEMPLATE_BYTES 65536
#define MAX_DIGITS 18 /* fit 64 bits, however they go on */

/* the fields of a send's header, as _Names has them */
enum { TOPIC, QUEUE_ID, SYS_FLAG, BORN_MS, FLAG, PROPERTIES, TIMES, MAX_TIMES, DEFAULT_TOPIC, DEFAULT_QUEUES, UNIT_MODE, BATCH, NAMES };

/* Whether *text* is a plain decimal number; NULL is 0 */
static int number_of(PyObject *text, int64_t *number)
{
    Py_ssize_t size, at = 0;
    *number = 0;
    if (text == NULL)
        return 1;
    const char *digits = utf8_of(text, &size);
    if (digits == NULL)
        return 0;
    int negative = size > 0 && digits[0] == '-';
    at = negative;
    if (at == size || size - at > MAX_DIGITS)
        return 0;
    for (; at < size; at++) {
        if (digits[at] < '0' || digits[at] > '9')
            return 0;
        *number = *number * 10 + (digits[at] - '0');
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

/* Where the value of the unique key stands in a message's properties; NULL where there is none, or anything that says that the message is
   not stored just so: a delay, a time, half a transaction, a broker that it has been through, a batch that is one record. */
static const char *unique_key(const char *text, const char *end)
{
    const char *key = NULL, *at;
    for (at = text; (at = memchr(at, 1, (size_t)(end - at))) != NULL; at++) {
        if (key == NULL && ENDS(text, at, "UNIQ_KEY")) {
            if (at - 8 != text && at[-9] != 2)
                return NULL;
            key = at + 1;
        } else if (ENDS(text, at, "DELAY") || ENDS(text, at, "TRAN_MSG") || ENDS(text, at, "POP_CK") || ENDS(text, at, "CLUSTER")
                   || ENDS(text, at, "INNER_NUM")) {
            return NULL;
        }
    }
    for (at = text; (at = memchr(at, '_', (size_t)(end - at))) != NULL; at++) {
        if (ENDS(text, at, "TIMER"))
            return NULL;
    }
    return key;
}

/* usual_send(fields, names, own_properties): topic, queue id, sysFlag, born timestamp, flag, reconsume times, the properties to store and
   the unique key of a single send.

   None for a send to a topic that begins with %, for one that is not stored just so or whose fields no client sends. */
PyObject *native_usual_send(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 3 || !PyDict_Check(args[0]) || !PyTuple_Check(args[1]) || PyTuple_GET_SIZE(args[1]) != NAMES || !PyUnicode_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "usual_send(fields: dict, names: tuple of 12, own_properties: str)");
        return NULL;
    }
    PyObject *fields[NAMES] = {NULL};
    for (int name = 0; name < NAMES; name++) {
        fields[name] = PyDict_GetItemWithError(args[0], PyTuple_GET_ITEM(args[1], name));
        if (fields[name] == NULL && PyErr_Occurred())
            return NULL;
    }
    int64_t queue_id, sys_flag, born_ms, flag, times;
    Py_ssize_t topic_size, text_size, batch_size, own_size;
    const char *topic = utf8_of(fields[TOPIC], &topic_size), *text = utf8_of(fields[PROPERTIES], &text_size);
    const char *batch = utf8_of(fields[BATCH], &batch_size), *own = utf8_of(args[2], &own_size);
    if (topic == NULL || topic_size == 0 || topic[0] == '%' || text == NULL || text_size == 0 || own == NULL
        || (fields[BATCH] != NULL && (batch == NULL || strcmp(batch, "true") == 0 || strcmp(batch, "1") == 0))
        || fields[QUEUE_ID] == NULL || !number_of(fields[QUEUE_ID], &queue_id) || !number_of(fields[SYS_FLAG], &sys_flag)
        || fields[BORN_MS] == NULL || !number_of(fields[BORN_MS], &born_ms) || !number_of(fields[FLAG], &flag)
        || !number_of(fields[TIMES], &times) || sys_flag & ~(int64_t)CLIENT_FLAGS || born_ms < 0 || flag < -INT32_MAX || flag > INT32_MAX
        || times < 0 || times > INT32_MAX)
        Py_RETURN_NONE;
    int open = text[text_size - 1] != 2; /* 4.9 leaves the last separator off */
    const char *end = text + text_size, *key = unique_key(text, end);
    if (key == NULL || text_size > MAX_PROPERTIES_BYTES || own_size > MAX_PROPERTIES_BYTES - open - text_size)
        Py_RETURN_NONE;
    const char *key_end = memchr(key, 2, (size_t)(end - key));
    PyObject *properties = PyBytes_FromStringAndSize(NULL, text_size + open + own_size);
    if (properties == NULL)
        return NULL;
    char *to = PyBytes_AS_STRING(properties);
    memcpy(to, text, (size_t)text_size);
    if (open)
        to[text_size] = 2;
    memcpy(to + text_size + open, own, (size_t)own_size);
    return Py_BuildValue("(OLLLLLNs#)", fields[TOPIC], (long long)queue_id, (long long)sys_flag, (long long)born_ms, (long long)flag,
                         (long long)times, properties, key, (key_end == NULL ? end : key_end) - key);
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

/* send_answer(template, queue_id, key, commitlog_offset, queue_offset, opaque): the frame of the answer with that header.

   The template is one of bytes.__mod__ with %d, %s for the key as JSON text, %016X and %%. None for another, and for a key that has other
   characters than letters and digits. */
PyObject *native_send_answer(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 6 || !PyBytes_Check(args[0]) || !PyUnicode_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "send_answer(template: bytes, queue_id: int, key: str, commitlog_offset, queue_offset, opaque: int)");
        return NULL;
    }
    Py_ssize_t key_size, next = 1;
    const char *key = utf8_of(args[2], &key_size);
    int usual = key != NULL && key_size > 0 && PyBytes_GET_SIZE(args[0]) <= MAX_TEMPLATE_BYTES;
    for (Py_ssize_t at = 0; usual && at < key_size; at++)
        usual = (key[at] >= '0' && key[at] <= '9') || (key[at] >= 'A' && key[at] <= 'Z') || (key[at] >= 'a' && key[at] <= 'z');
    if (!usual)
        Py_RETURN_NONE;
    const char *from = PyBytes_AS_STRING(args[0]), *end = from + PyBytes_GET_SIZE(args[0]);
    /* No part becomes longer than this: a number has 20 characters in place of 2, the key two more than its own */
    PyObject *frame = PyBytes_FromStringAndSize(NULL, 8 + (end - from) + 4 * 20 + key_size + 2);
    if (frame == NULL)
        return NULL;
    char *start = PyBytes_AS_STRING(frame), *to = start + 8;
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
        if (next == 2) {
            if (end - from < 1 || from[0] != 's')
                goto unusual;
            from++;
            *to++ = '"';
            memcpy(to, key, (size_t)key_size);
            to += key_size;
            *to++ = '"';
        } else {
            int64_t number;
            uint8_t bytes[8];
            if (next > 5 || !is_number(args[next], INT64_MIN, INT64_MAX, &number))
                goto unusual;
            if (end - from >= 1 && from[0] == 'd') {
                from++;
                to = put_decimal(to, number);
            } else if (end - from >= 4 && memcmp(from, "016X", 4) == 0 && number >= 0) {
                from += 4;
                put64(bytes, (uint64_t)number);
                to = (char *)put_hex((uint8_t *)to, bytes, sizeof bytes);
            } else {
                goto unusual;
            }
        }
        next++;
    }
    if (next != 6)
        goto unusual;
    put32((uint8_t *)start, (uint32_t)(to - start - 4));
    put32((uint8_t *)start + 4, (uint32_t)(to - start - 8));
    if (_PyBytes_Resize(&frame, to - start) < 0)
        return NULL;
    return frame;

unusual:
    Py_DECREF(frame);
    Py_RETURN_NONE;
}
