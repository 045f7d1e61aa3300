/* What the files of this folder share. See README.md.

   Every function here has a twin in Python that decides alone what is right. A function takes what
   is usual, and returns None for what is not (or says which parts are not), so that all rules for
   unusual or bad bytes, and all error texts, stand in Python only. Nothing is read before its place
   has been compared with the end of the buffer. */

#ifndef OGIVE_NATIVE_H
#define OGIVE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#if SIZEOF_SIZE_T < 8
#error "lengths of 32 bits have to fit Py_ssize_t: with fewer than 64 bits ogive is pure Python"
#endif

/* A record of the commit log, with IPv4 hosts: size u32 | magic u32 | CRC of the body u32 | queue
   id i32 | flag i32 | queue offset i64 | commit-log offset i64 | sys flag i32 | born i64 | born
   host | stored i64 | store host | reconsume times i32 | prepared transaction's offset i64 | body
   size i32 | body | topic size u8 | topic | properties size u16 | properties. A host is 8 bytes,
   address and port; with IPv6 20, and what is behind it stands that much later. Python:
   wire/message.py. */
enum {
    MAGIC_AT = 4,
    BODY_CRC_AT = 8,
    QUEUE_ID_AT = 12,
    FLAG_AT = 16,
    QUEUE_OFFSET_AT = 20,
    COMMITLOG_OFFSET_AT = 28,
    SYS_FLAG_AT = 36,
    BORN_AT = 40,
    BORN_HOST_AT = 48,
    /* this and the following: with IPv4 hosts */
    STORED_AT = 56,
    STORE_HOST_AT = 64,
    TIMES_AT = 72,
    PREPARED_AT = 76,
    BODY_SIZE_AT = 84,
    FIXED_V4 = 88,
    /* without body, topic and properties */
    SMALLEST_V4 = FIXED_V4 + 3,
    HOST_V4 = 8,
    HOST_V6 = 20,
};

#define MAGIC_V1 0xDAA320A7u
/* two bytes of topic size */
#define MAGIC_V2 0xDAA320ABu

/* Bits of a sys flag, as in SysFlag of wire/codes.py */
enum {
    COMPRESSED = 0x1,
    TRANSACTION_MASK = 0xC,
    TRANSACTION_PREPARED = 0x4,
    TRANSACTION_COMMIT = 0x8,
    TRANSACTION_ROLLBACK = 0xC,
    BORN_HOST_V6 = 0x10,
    STORE_HOST_V6 = 0x20,
    HOSTS_V6 = BORN_HOST_V6 | STORE_HOST_V6,
    /* with INNER_BATCH: the body is a batch as it was sent */
    NEED_UNWRAP = 0x40,
    INNER_BATCH = 0x80,
};

/* The last property of a record, the checksum over all before it: this name, ten digits, the lowest
 * first, and a separator */
#define CRC_NAME "__CRC32#\x01"
enum { CRC_NAME_BYTES = sizeof CRC_NAME - 1, CRC_BYTES = CRC_NAME_BYTES + 11 };

#define MAX_PROPERTIES_BYTES 32767
/* of a request or an answer */
#define MAX_HEADER_BYTES (256 * 1024)

/* An entry of a consume queue: commit-log offset i64 | record size i32 | tags code i64 */
enum { ENTRY_BYTES = 20 };

/* A message in the body of a batch: size u32 | 0 u32 | 0 u32 | flag i32 | body size i32 | body |
 * properties size u16 | properties */
/* without body and properties */
enum { BATCH_ITEM_BYTES = 22 };

typedef struct {
    int32_t flag;
    const uint8_t *body, *properties;
    Py_ssize_t body_size, properties_size;
} BatchItem;

static inline uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static inline uint32_t get32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint64_t get64(const uint8_t *at)
{
    return (uint64_t)get32(at) << 32 | get32(at + 4);
}

static inline void put16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static inline void put32(uint8_t *at, uint32_t value)
{
    put16(at, (uint16_t)(value >> 16));
    put16(at + 2, (uint16_t)value);
}

static inline void put64(uint8_t *at, uint64_t value)
{
    put32(at, (uint32_t)(value >> 32));
    put32(at + 4, (uint32_t)value);
}

/* The error of a call whose arguments are not in this *form* */
static inline PyObject *misused(const char *form)
{
    PyErr_SetString(PyExc_TypeError, form);
    return NULL;
}

/* Whether *value* is an int from *least* to *most*; *found* is that. */
static inline int is_number(PyObject *value, int64_t least, int64_t most, int64_t *found)
{
    int overflow;
    if (!PyLong_Check(value))
        return 0;
    *found = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow && *found >= least && *found <= most;
}

/* A string's UTF-8, which belongs to it; NULL without an error where it has none or is no string */
static inline const char *utf8_of(PyObject *text, Py_ssize_t *size)
{
    if (text == NULL || !PyUnicode_Check(text))
        return NULL;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, size);
    if (utf8 == NULL)
        PyErr_Clear();
    return utf8;
}

/* Whether make_tuple() can make one of *type*: a NamedTuple, or another type of tuples that has
   nothing beside their items. Types without subclasses have more items than their length says:
   time.struct_time and its like. */
static inline int is_tuple_type(PyObject *type)
{
    return PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type)
        && ((PyTypeObject *)type)->tp_basicsize == PyTuple_Type.tp_basicsize
        && ((PyTypeObject *)type)->tp_dictoffset == 0
        && PyType_HasFeature((PyTypeObject *)type, Py_TPFLAGS_BASETYPE);
}

/* Whether it is a tuple of bytes objects */
static inline int is_bytes_tuple(PyObject *value)
{
    int right = PyTuple_Check(value);
    for (Py_ssize_t i = 0; right && i < PyTuple_GET_SIZE(value); i++)
        right = PyBytes_Check(PyTuple_GET_ITEM(value, i));
    return right;
}

/* *type* of *values*; takes them over, NULL among them is an error that was set. */
static inline PyObject *make_tuple(PyTypeObject *type, PyObject **values, Py_ssize_t count)
{
    PyObject *tuple = type->tp_alloc(type, count);
    int failed = tuple == NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        failed = failed || values[i] == NULL;
        if (tuple != NULL)
            PyTuple_SET_ITEM(tuple, i, values[i]);
        else
            Py_XDECREF(values[i]);
    }
    if (failed)
        Py_CLEAR(tuple);
#if PY_VERSION_HEX >= 0x030E0000
    if (tuple != NULL)
        /* not known yet; tp_alloc leaves a 0, which would count */
        ((PyTupleObject *)tuple)->ob_hash = -1;
#endif
    return tuple;
}

/* Bytes in upper-case hex; where that ends */
static inline uint8_t *put_hex(uint8_t *to, const uint8_t *bytes, Py_ssize_t size)
{
    static const char digits[] = "0123456789ABCDEF";
    for (Py_ssize_t i = 0; i < size; i++) {
        *to++ = (uint8_t)digits[bytes[i] >> 4];
        *to++ = (uint8_t)digits[bytes[i] & 15];
    }
    return to;
}

/* A message's id: the broker's host and the place in the commit log, in hexadecimal */
static inline uint8_t *put_message_id(
    uint8_t *to, const uint8_t *host, Py_ssize_t host_size, int64_t offset)
{
    uint8_t bytes[8];
    put64(bytes, (uint64_t)offset);
    return put_hex(put_hex(to, host, host_size), bytes, sizeof bytes);
}

/* Java's String.hashCode of what *hash* is of, with *text* behind it; *others* is set where that is
 * not UTF-8 */
uint32_t java_hash_of_utf8(uint32_t hash, const uint8_t *text, Py_ssize_t size, uint8_t *others);

static inline uint32_t java_hash(
    uint32_t hash, const uint8_t *text, Py_ssize_t size, uint8_t *others)
{
    const uint8_t *begin = text, *end = text + size;
    uint32_t before = hash;
    uint8_t bits = 0;
    /* four at a time: one multiplication waits for the one before */
    for (; size >= 4; text += 4, size -= 4) {
        hash = hash * 923521u + text[0] * 29791u + text[1] * 961u + text[2] * 31u + text[3];
        bits |= text[0] | text[1] | text[2] | text[3];
    }
    for (; size; text++, size--) {
        hash = hash * 31u + *text;
        bits |= *text;
    }
    return bits & 0x80 ? java_hash_of_utf8(before, begin, end - begin, others) : hash;
}

/* Where the property at *at* ends: at its separator, or at *end*, as the last one may have none.
 * Layout: name | 1 | value | 2 */
static inline const uint8_t *property_end(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *stop = memchr(at, 2, (size_t)(end - at));
    return stop == NULL ? end : stop;
}

/* crc.c: zlib's crc32() */
void crc_prepare(void);
uint32_t crc_of(const uint8_t *data, size_t size, uint32_t before);

/* messages.c: adds the type MessageFields to the module; -1 with an error */
int prepare_messages(PyObject *module);

/* keys.c: the same, with replacement characters as Java reads what is not UTF-8; 0 with an error */
int java_hash_replacing(uint32_t before, const uint8_t *text, Py_ssize_t size, uint32_t *hash);

/* Keys of records as they go into the index. Layout of each: hash u32 | commit-log offset i64 */
enum { PACKED_KEY_BYTES = 12 };
typedef struct {
    uint8_t *at;
    Py_ssize_t size, room;
} PackedKeys;

/* The hash that those of a topic's keys begin with; 0 with an error */
int key_prefix(PyObject *topic, uint32_t *prefix);
/* Adds the keys of the record at *offset*, its unique one first; 0 with an error */
int pack_keys(
    PackedKeys *keys, uint32_t prefix, const uint8_t *properties, Py_ssize_t size, int64_t offset);

/* columns.c: whether Python would decode these bytes */
int is_utf8(const uint8_t *at, size_t size);

/* Some bytes of a request; *at* is NULL where there are none, and they belong to somebody else */
typedef struct {
    const char *at;
    Py_ssize_t size;
} Text;

static inline int is_word(Text text, const char *word)
{
    return (size_t)text.size == strlen(word) && memcmp(text.at, word, (size_t)text.size) == 0;
}

/* The header of a frame without its length word; it has no remark */
typedef struct {
    int code, language, version;
    int32_t opaque, flag;
    Py_ssize_t fields_at, fields_end, body_at;
} Header;

/* header.c: whether the frame has a binary one in the usual form */
int read_header(const uint8_t *frame, Py_ssize_t size, Header *header);
/* Reads the field at *at, and moves on; 0 where it does not end before *end* */
int read_field(const uint8_t *frame, Py_ssize_t *at, Py_ssize_t end, Text *name, Text *value);

/* json.c: whether the frame has one in JSON, as Java's clients write them; language and version are
 * not looked at */
int read_json_header(const uint8_t *frame, Py_ssize_t size, Header *header);
/* The same as read_field() for it; *room* has so many bytes *left* for texts that are written with
 * escapes */
int read_json_field(const uint8_t *frame, Py_ssize_t *at, Py_ssize_t end, Text *name, Text *value,
    char **room, Py_ssize_t *left);

/* batches.c: reads the message at *at* of a batch, and moves on behind it; 0, and it stays, where
 * lengths do not add up */
int read_batch_item(const uint8_t **at, const uint8_t *end, BatchItem *item);

/* handles.c: adds the type Handle to the module; -1 with an error */
int add_handles(PyObject *module);

/* The functions of the module: ogive.native says what each does */
/* clang-format off */
#define FUNCTIONS(DO) \
    DO(frames) DO(binary_command) DO(properties) DO(properties_text) DO(crc32) DO(read_sends) \
    DO(encode_answers) DO(batch_items) DO(batch_body) DO(plain_batch) DO(build_records) \
    DO(index_items) DO(chosen) DO(near) DO(inside) DO(picked) DO(doubtful) DO(whole_records) \
    DO(messages) DO(measure) DO(columns) DO(encode_rows)
/* clang-format on */

#define FUNCTION(name) \
    PyObject *native_##name(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
#define DECLARE(name) FUNCTION(name);
FUNCTIONS(DECLARE)

#endif
