/* The records of a pull answer as the buffers of Arrow columns, which are in this machine's byte
 * order. Python: spark/decode.py. */

#include "native.h"

enum {
    ID_DIGITS = 2 * (HOST_V4 + 8),
    NOT_PLAIN = COMPRESSED | HOSTS_V6 | NEED_UNWRAP | INNER_BATCH
};

/* The buffers of a column:
   - times: validity, or none if no row is null; the numbers
   - other numbers: none; the numbers
   - texts: validity, or none if no row is null; where each text ends; all texts
   - the map: where the entries of each row end; where each name ends; all names; where each value
     ends; all values */
enum form { INT32, INT64, MICROSECONDS, BODY, OFFSET_ID, PROPERTY, KEY_OR_OFFSET_ID, PROPERTIES };
/* A day within the years 1 to 9999, so that every time zone shows these. Any client can write any
   time: others are null. */
static const int64_t FIRST_MS = -62135510400000, LAST_MS = 253402214399999;

enum { VALIDITY = 0, NUMBERS = 1, ENDS = 1, TEXTS = 2 };
enum { ROW_ENDS = 0, NAME_ENDS = 1, NAMES = 2, VALUE_ENDS = 3, VALUES = 4, MOST_BUFFERS = 5 };

static const struct kind {
    const char *name;
    enum form form;
    /* in the fixed part */
    int at;
    /* whose value it is */
    const char *property;
} kinds[] = {
    {"bodyCRC", INT32, BODY_CRC_AT, NULL},
    {"flag", INT32, FLAG_AT, NULL},
    {"queueOffset", INT64, QUEUE_OFFSET_AT, NULL},
    {"commitLogOffset", INT64, COMMITLOG_OFFSET_AT, NULL},
    {"sysFlag", INT32, SYS_FLAG_AT, NULL},
    {"bornTimestamp", MICROSECONDS, BORN_AT, NULL},
    {"bornHost", INT64, BORN_HOST_AT, NULL},
    {"storeTimestamp", MICROSECONDS, STORED_AT, NULL},
    {"storeHost", INT64, STORE_HOST_AT, NULL},
    {"reconsumeTimes", INT32, TIMES_AT, NULL},
    {"body", BODY, 0, NULL},
    {"offsetMsgId", OFFSET_ID, 0, NULL},
    {"msgId", KEY_OR_OFFSET_ID, 0, "UNIQ_KEY"},
    {"keys", PROPERTY, 0, "KEYS"},
    {"tags", PROPERTY, 0, "TAGS"},
    {"properties", PROPERTIES, 0, NULL},
};

enum { KINDS = sizeof kinds / sizeof kinds[0] };

struct buffer {
    PyObject *bytes;
    /* what is behind *next* is cut off at last */
    uint8_t *start, *next;
};

struct column {
    const struct kind *kind;
    struct buffer buffers[MOST_BUFFERS];
    /* of its property in this row, or NULL */
    const uint8_t *value;
    size_t value_size;
    int nulls;
};

struct work {
    struct column columns[KINDS];
    /* those of *columns* that need them */
    struct column *of_properties[KINDS];
    int count, of_properties_count;
    Py_ssize_t rows;
};

static inline void add_int32(struct buffer *to, uint32_t value)
{
    memcpy(to->next, &value, sizeof value);
    to->next += sizeof value;
}

static inline void add_int64(struct buffer *to, uint64_t value)
{
    memcpy(to->next, &value, sizeof value);
    to->next += sizeof value;
}

static inline void add_text(
    struct buffer *ends, struct buffer *texts, const uint8_t *text, size_t size)
{
    memcpy(texts->next, text, size);
    texts->next += size;
    add_int32(ends, (uint32_t)(texts->next - texts->start));
}

/* store host and commit log offset in upper-case hex */
static void add_offset_id(struct column *to, const uint8_t *record)
{
    uint8_t text[ID_DIGITS];
    put_hex(put_hex(text, record + STORE_HOST_AT, HOST_V4), record + COMMITLOG_OFFSET_AT, 8);
    add_text(&to->buffers[ENDS], &to->buffers[TEXTS], text, ID_DIGITS);
}

int is_utf8(const uint8_t *at, size_t size)
{
    const uint8_t *end = at + size;
    uint8_t any = 0;
    for (size_t i = 0; i < size; i++)
        any |= at[i];
    while (any & 0x80 && at < end) {
        uint8_t lead = *at++;
        if (lead < 0x80)
            continue;
        int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
        if (lead < 0xC2 || lead > 0xF4 || end - at < more)
            return 0;
        if (*at < (lead == 0xE0    ? 0xA0
                    : lead == 0xF0 ? 0x90
                                   : 0x80)
            || *at > (lead == 0xED    ? 0x9F
                       : lead == 0xF4 ? 0x8F
                                      : 0xBF))
            return 0;
        for (at++; --more; at++)
            if ((*at & 0xC0) != 0x80)
                return 0;
    }
    return 1;
}

static const uint8_t *separator(const uint8_t *at, const uint8_t *end)
{
    while (at < end && *at > 2)
        at++;
    return at;
}

/* Whether the properties of one row are usual; each column that needs them has its part then. */
static int cut_properties(struct work *work, const uint8_t *at, size_t size)
{
    const uint8_t *end = at + size;
    if (!is_utf8(at, size))
        return 0;
    while (at < end) {
        const uint8_t *name = at, *name_end = separator(name, end);
        if (name_end == name || name_end == end || *name_end != 1)
            return 0;
        const uint8_t *value = name_end + 1, *value_end = separator(value, end);
        if (value_end == value || (value_end < end && *value_end != 2))
            return 0;
        size_t name_size = (size_t)(name_end - name), value_size = (size_t)(value_end - value);
        for (int i = 0; i < work->of_properties_count; i++) {
            struct column *column = work->of_properties[i];
            const char *wanted = column->kind->property;
            if (wanted == NULL) {
                add_text(&column->buffers[NAME_ENDS], &column->buffers[NAMES], name, name_size);
                add_text(&column->buffers[VALUE_ENDS], &column->buffers[VALUES], value, value_size);
            } else if (column->value == NULL && strlen(wanted) == name_size
                && memcmp(wanted, name, name_size) == 0) {
                column->value = value;
                column->value_size = value_size;
            }
        }
        at = value_end + (value_end < end);
    }
    return 1;
}

static void add_time(struct column *column, Py_ssize_t row, int64_t ms)
{
    if (ms < FIRST_MS || ms > LAST_MS) {
        column->nulls = 1;
        ms = 0;
    } else
        column->buffers[VALIDITY].start[row / 8] |= (uint8_t)(1 << row % 8);
    add_int64(&column->buffers[NUMBERS], (uint64_t)(ms * 1000));
}

static void add_value(struct column *column, Py_ssize_t row)
{
    if (column->value == NULL) {
        column->nulls = 1;
        add_int32(&column->buffers[ENDS],
            (uint32_t)(column->buffers[TEXTS].next - column->buffers[TEXTS].start));
        return;
    }
    column->buffers[VALIDITY].start[row / 8] |= (uint8_t)(1 << row % 8);
    add_text(&column->buffers[ENDS], &column->buffers[TEXTS], column->value, column->value_size);
}

/* One record's part of every column; where the next begins, NULL where it is not usual. */
static const uint8_t *add_record(struct work *work, const uint8_t *record, const uint8_t *end)
{
    if (end - record < SMALLEST_V4)
        return NULL;
    size_t size = get32(record), body_size = get32(record + BODY_SIZE_AT);
    if (size < SMALLEST_V4 || size > (size_t)(end - record) || get32(record + MAGIC_AT) != MAGIC_V1
        || get32(record + SYS_FLAG_AT) & NOT_PLAIN)
        return NULL;
    size_t rest = size - SMALLEST_V4;
    if (body_size > rest)
        return NULL;
    rest -= body_size;
    const uint8_t *body = record + FIXED_V4, *topic = body + body_size + 1;
    size_t topic_size = topic[-1];
    if (topic_size > rest)
        return NULL;
    rest -= topic_size;
    const uint8_t *properties = topic + topic_size + 2;
    if (get16(properties - 2) != rest)
        return NULL;
    if (work->of_properties_count) {
        for (int i = 0; i < work->of_properties_count; i++)
            work->of_properties[i]->value = NULL;
        if (!cut_properties(work, properties, rest))
            return NULL;
    }
    for (struct column *column = work->columns; column < work->columns + work->count; column++) {
        struct buffer *buffers = column->buffers;
        const uint8_t *field = record + column->kind->at;
        switch (column->kind->form) {
        case INT32:
            add_int32(&buffers[NUMBERS], get32(field));
            break;
        case INT64:
            add_int64(&buffers[NUMBERS], get64(field));
            break;
        case MICROSECONDS:
            add_time(column, work->rows, (int64_t)get64(field));
            break;
        case BODY:
            add_text(&buffers[ENDS], &buffers[TEXTS], body, body_size);
            break;
        case KEY_OR_OFFSET_ID:
            if (column->value != NULL) {
                add_text(&buffers[ENDS], &buffers[TEXTS], column->value, column->value_size);
                break;
            } /* fall through */
        case OFFSET_ID:
            add_offset_id(column, record);
            break;
        case PROPERTY:
            add_value(column, work->rows);
            break;
        case PROPERTIES:
            add_int32(&buffers[ROW_ENDS],
                (uint32_t)((buffers[NAME_ENDS].next - buffers[NAME_ENDS].start) / 4 - 1));
            break;
        }
    }
    work->rows++;
    return record + size;
}

static int reserve(struct buffer *buffer, Py_ssize_t size)
{
    buffer->bytes = PyBytes_FromStringAndSize(NULL, size);
    if (buffer->bytes == NULL)
        return -1;
    buffer->start = buffer->next = (uint8_t *)PyBytes_AS_STRING(buffer->bytes);
    return 0;
}

/* room for a bit a row, none set */
static int reserve_validity(struct column *column, Py_ssize_t rows)
{
    struct buffer *validity = &column->buffers[VALIDITY];
    if (reserve(validity, rows / 8 + 1) < 0)
        return -1;
    memset(validity->start, 0, (size_t)(rows / 8 + 1));
    return 0;
}

/* room for where each text ends, after a leading 0, and for the texts */
static int reserve_texts(
    struct buffer *ends, struct buffer *texts, Py_ssize_t count, Py_ssize_t size)
{
    if (reserve(ends, 4 * (count + 1)) < 0 || reserve(texts, size) < 0)
        return -1;
    add_int32(ends, 0);
    return 0;
}

/* room for all that records of so many bytes can hold */
static int reserve_column(struct column *column, Py_ssize_t size)
{
    struct buffer *buffers = column->buffers;
    Py_ssize_t rows = size / SMALLEST_V4, entries = size / 3;
    switch (column->kind->form) {
    case INT32:
        return reserve(&buffers[NUMBERS], 4 * rows);
    case MICROSECONDS:
        if (reserve_validity(column, rows) < 0)
            return -1; /* fall through */
    case INT64:
        return reserve(&buffers[NUMBERS], 8 * rows);
    case PROPERTIES:
        if (reserve(&buffers[ROW_ENDS], 4 * (rows + 1)) < 0)
            return -1;
        add_int32(&buffers[ROW_ENDS], 0);
        if (reserve_texts(&buffers[NAME_ENDS], &buffers[NAMES], entries, size) < 0)
            return -1;
        return reserve_texts(&buffers[VALUE_ENDS], &buffers[VALUES], entries, size);
    case PROPERTY:
        if (reserve_validity(column, rows) < 0)
            return -1;
        break;
    default:
        break;
    }
    return reserve_texts(&buffers[ENDS], &buffers[TEXTS], rows, size);
}

/* the column's buffers as a tuple, None for one that is not there */
static PyObject *taken(struct column *column, Py_ssize_t rows)
{
    struct buffer *buffers = column->buffers;
    enum form form = column->kind->form;
    int count = form == PROPERTIES                               ? 5
        : form == INT32 || form == INT64 || form == MICROSECONDS ? 2
                                                                 : 3;
    if (column->nulls)
        buffers[VALIDITY].next = buffers[VALIDITY].start + (rows + 7) / 8;
    else if (form == PROPERTY || form == MICROSECONDS)
        Py_CLEAR(buffers[VALIDITY].bytes);
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple != NULL && i < count; i++) {
        struct buffer *buffer = &buffers[i];
        if (buffer->bytes != NULL
            && _PyBytes_Resize(&buffer->bytes, buffer->next - buffer->start) < 0)
            Py_CLEAR(tuple);
        else {
            PyTuple_SET_ITEM(tuple, i, buffer->bytes != NULL ? buffer->bytes : Py_NewRef(Py_None));
            buffer->bytes = NULL;
        }
    }
    return tuple;
}

static const struct kind *kind_of(PyObject *name)
{
    for (const struct kind *kind = kinds; kind < kinds + KINDS; kind++)
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, kind->name) == 0)
            return kind;
    return NULL;
}

/* columns(records, names): how many records, and of each column its buffers in Arrow's order; None
   for what is not usual.

   Not usual: a record that is damaged or not in the plain form, properties that are not UTF-8, have
   an empty name or value or other separators, or a byte 0. */
FUNCTION(columns)
{
    if (count != 2 || !PyBytes_Check(args[0]) || !PyTuple_Check(args[1]))
        return misused("columns(records: bytes, names: tuple[str, ...])");
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]), names = PyTuple_GET_SIZE(args[1]);
    if (size > INT32_MAX || names > KINDS)
        Py_RETURN_NONE;
    struct work work = {.count = 0};
    PyObject *found = NULL, *list = NULL;
    int usual = 1;
    for (Py_ssize_t i = 0; i < names; i++) {
        struct column *column = &work.columns[work.count++];
        column->kind = kind_of(PyTuple_GET_ITEM(args[1], i));
        if (column->kind == NULL) {
            usual = 0;
            goto done;
        }
        if (reserve_column(column, size) < 0)
            goto done;
        if (column->kind->property != NULL || column->kind->form == PROPERTIES)
            work.of_properties[work.of_properties_count++] = column;
    }
    const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(args[0]), *end = at + size;
    Py_BEGIN_ALLOW_THREADS while (at != NULL && at < end) at = add_record(&work, at, end);
    Py_END_ALLOW_THREADS usual = at != NULL;
    if (!usual || (list = PyList_New(names)) == NULL)
        goto done;
    for (int i = 0; i < work.count; i++) {
        PyObject *tuple = taken(&work.columns[i], work.rows);
        if (tuple == NULL)
            goto done;
        PyList_SET_ITEM(list, i, tuple);
    }
    found = Py_BuildValue("nO", work.rows, list);

done:
    Py_XDECREF(list);
    for (int i = 0; i < work.count; i++)
        for (int j = 0; j < MOST_BUFFERS; j++)
            Py_XDECREF(work.columns[i].buffers[j].bytes);
    if (!usual)
        Py_RETURN_NONE;
    return found;
}
