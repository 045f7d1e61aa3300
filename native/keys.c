/* The index of keys: the items that records add to a file. Layout of an item: hash i32 | commit-log
   offset i64 | seconds since the file's begin i32 | item before in the chain i32. Python:
   store/key_index.py. */

#include "native.h"

#define ITEM_BYTES 20
/* keys of several records in one call: 16,384 fit in one record */
#define MAX_AT_ONCE 65536

struct key {
    uint32_t hash;
    uint32_t slot;
    int64_t offset;
    int64_t stored_ms;
};

struct keys {
    struct key *all;
    Py_ssize_t count, room;
};

/* java_hash() where a byte is not ASCII: of the UTF-16 units. *others* is set where Python would
 * not decode it. */
uint32_t java_hash_of_utf8(uint32_t hash, const uint8_t *text, Py_ssize_t size, uint8_t *others)
{
    const uint8_t *end = text + size;
    if (!is_utf8(text, (size_t)size)) {
        *others = 0x80;
        return hash;
    }
    while (text < end) {
        uint32_t unit = *text++;
        if (unit >= 0xF0) { /* two units */
            uint32_t character =
                (unit & 7) << 18 | (text[0] & 63u) << 12 | (text[1] & 63u) << 6 | (text[2] & 63u);
            hash = hash * 31u + (0xD7C0 + (character >> 10));
            unit = 0xDC00 | (character & 0x3FF);
            text += 3;
        } else if (unit >= 0xE0) {
            unit = (unit & 15) << 12 | (text[0] & 63u) << 6 | (text[1] & 63u);
            text += 2;
        } else if (unit >= 0x80) {
            unit = (unit & 31) << 6 | (*text++ & 63u);
        }
        hash = hash * 31u + unit;
    }
    return hash;
}

/* Java's absolute value, and 0 for the one number that has none */
static uint32_t index_hash(uint32_t hash)
{
    return hash & 0x80000000u ? -hash & INT32_MAX : hash;
}

/* Whether there was memory for it */
static int add(struct keys *keys, uint32_t hash, int64_t offset, int64_t stored_ms)
{
    if (keys->count == keys->room) {
        Py_ssize_t room = keys->room ? 2 * keys->room : 512;
        /* PyMem_Resize() would lose those of before */
        struct key *all = PyMem_Realloc(keys->all, (size_t)room * sizeof *all);
        if (all == NULL)
            return 0;
        keys->all = all;
        keys->room = room;
    }
    keys->all[keys->count++] =
        (struct key){.hash = index_hash(hash), .offset = offset, .stored_ms = stored_ms};
    return 1;
}

int java_hash_replacing(uint32_t before, const uint8_t *text, Py_ssize_t size, uint32_t *hash)
{
    uint8_t others = 0;
    *hash = java_hash(before, text, size, &others);
    if (!others)
        return 1;
    PyObject *replaced = PyUnicode_DecodeUTF8((const char *)text, size, "replace");
    const char *utf8 = replaced == NULL ? NULL : PyUnicode_AsUTF8AndSize(replaced, &size);
    others = 0;
    if (utf8 != NULL)
        *hash = java_hash(before, (const uint8_t *)utf8, size, &others);
    Py_XDECREF(replaced);
    return utf8 != NULL;
}

/* Some of a record's properties; without one, *at* and *end* are NULL */
typedef struct {
    const uint8_t *at, *end;
} Value;

/* The values of the properties that name keys; of several the last counts */
static void find_keys(const uint8_t *at, const uint8_t *end, Value *unique, Value *named)
{
    *unique = *named = (Value){NULL, NULL};
    while (at < end) {
        const uint8_t *value_end = property_end(at, end);
        if (value_end - at >= 9 && memcmp(at, "UNIQ_KEY\x01", 9) == 0)
            *unique = (Value){at + 9, value_end};
        else if (value_end - at >= 5 && memcmp(at, "KEYS\x01", 5) == 0)
            *named = (Value){at + 5, value_end};
        at = value_end == end ? end : value_end + 1;
    }
}

/* The next word of *words*, which then begin behind it; 0 where there is none */
static int next_word(Value *words, Value *word)
{
    while (words->at < words->end) {
        const uint8_t *stop = memchr(words->at, ' ', (size_t)(words->end - words->at));
        *word = (Value){words->at, stop == NULL ? words->end : stop};
        words->at = stop == NULL ? words->end : stop + 1;
        if (word->at != word->end)
            return 1;
    }
    return 0;
}

int key_prefix(PyObject *topic, uint32_t *prefix)
{
    if (!java_hash_replacing(
            0, (const uint8_t *)PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), prefix))
        return 0;
    *prefix = *prefix * 31u + '#';
    return 1;
}

/* 0 with an error */
static int pack_key(PackedKeys *keys, uint32_t prefix, Value key, int64_t offset)
{
    uint32_t hash;
    if (!java_hash_replacing(prefix, key.at, key.end - key.at, &hash))
        return 0;
    if (keys->room - keys->size < PACKED_KEY_BYTES) {
        Py_ssize_t room = keys->room ? 2 * keys->room : 256 * PACKED_KEY_BYTES;
        uint8_t *at = PyMem_Realloc(keys->at, (size_t)room);
        if (at == NULL) {
            PyErr_NoMemory();
            return 0;
        }
        keys->at = at;
        keys->room = room;
    }
    put32(keys->at + keys->size, index_hash(hash));
    put64(keys->at + keys->size + 4, (uint64_t)offset);
    keys->size += PACKED_KEY_BYTES;
    return 1;
}

int pack_keys(
    PackedKeys *keys, uint32_t prefix, const uint8_t *properties, Py_ssize_t size, int64_t offset)
{
    Value unique, named, word;
    find_keys(properties, properties + size, &unique, &named);
    if (unique.at != unique.end && !pack_key(keys, prefix, unique, offset))
        return 0;
    while (next_word(&named, &word)) {
        if (!pack_key(keys, prefix, word, offset))
            return 0;
    }
    return 1;
}

/* Keys that were packed, as add_record() */
static int add_packed(struct keys *keys, PyObject *packed, PyObject *stored)
{
    int64_t stored_ms;
    if (!PyBytes_Check(packed) || PyBytes_GET_SIZE(packed) % PACKED_KEY_BYTES != 0
        || !is_number(stored, INT64_MIN, INT64_MAX, &stored_ms))
        return 0;
    const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(packed),
                  *end = at + PyBytes_GET_SIZE(packed);
    for (; at < end; at += PACKED_KEY_BYTES) {
        uint32_t hash = get32(at);
        if (hash > INT32_MAX)
            return 0;
        if (!add(keys, hash, (int64_t)get64(at + 4), stored_ms))
            return -1;
    }
    return 1;
}

/* The keys of one record, its unique one first, or those of a batch; 1, 0 for what is not usual, -1
 * without memory */
static int add_record(struct keys *keys, PyObject *record)
{
    int64_t offset, stored_ms;
    if (PyTuple_Check(record) && PyTuple_GET_SIZE(record) == 2)
        return add_packed(keys, PyTuple_GET_ITEM(record, 0), PyTuple_GET_ITEM(record, 1));
    if (!PyTuple_Check(record) || PyTuple_GET_SIZE(record) != 4
        || !PyBytes_Check(PyTuple_GET_ITEM(record, 0))
        || !PyBytes_Check(PyTuple_GET_ITEM(record, 1))
        || !is_number(PyTuple_GET_ITEM(record, 2), INT64_MIN, INT64_MAX, &offset)
        || !is_number(PyTuple_GET_ITEM(record, 3), INT64_MIN, INT64_MAX, &stored_ms))
        return 0;
    PyObject *topic = PyTuple_GET_ITEM(record, 0), *properties = PyTuple_GET_ITEM(record, 1);
    const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(properties);
    Value unique, named, word;
    find_keys(at, at + PyBytes_GET_SIZE(properties), &unique, &named);
    uint8_t others = 0;
    uint32_t prefix =
        java_hash(0, (const uint8_t *)PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), &others)
            * 31u
        + '#';
    if (unique.at != unique.end
        && !add(
            keys, java_hash(prefix, unique.at, unique.end - unique.at, &others), offset, stored_ms))
        return -1;
    while (next_word(&named, &word)) {
        if (!add(keys, java_hash(prefix, word.at, word.end - word.at, &others), offset, stored_ms))
            return -1;
    }
    return !others;
}

/* The items of *keys*, as bytes, from number *item* on; changes the slots */
static PyObject *items_of(
    const struct keys *keys, int32_t *slots, int64_t begin_ms, int32_t item, Py_ssize_t *used)
{
    PyObject *items = PyBytes_FromStringAndSize(NULL, keys->count * ITEM_BYTES);
    if (items == NULL)
        return NULL;
    uint8_t *to = (uint8_t *)PyBytes_AS_STRING(items);
    for (const struct key *key = keys->all; key < keys->all + keys->count;
        key++, to += ITEM_BYTES) {
        uint64_t seconds =
            key->stored_ms <= begin_ms ? 0 : ((uint64_t)key->stored_ms - (uint64_t)begin_ms) / 1000;
        int32_t before = slots[key->slot];
        slots[key->slot] = item++;
        *used += before == 0;
        put32(to, key->hash);
        put64(to + 4, (uint64_t)key->offset);
        put32(to + 12, seconds < INT32_MAX ? (uint32_t)seconds : INT32_MAX);
        put32(to + 16, (uint32_t)before);
    }
    return items;
}

/* index_items(keyed, slots, begin_ms, item, limit): the items of all keys of these records and
   batches, as they stand in a file, how many slots they are the first of, and where and when the
   last of them was stored.

   *slots*, whose numbers are changed, are those of a file that began at *begin_ms*, *item* is its
   next item, and *limit* one past its last. Return None and change nothing if there are no keys,
   more than there is room for, more than MAX_AT_ONCE of several records, or a key or a topic that
   is not UTF-8. */
FUNCTION(index_items)
{
    if (count != 5 || !PyList_Check(args[0]))
        return misused(
            "index_items(keyed: list, slots: array, begin_ms: int, item: int, limit: int)");
    int64_t begin_ms, item, limit;
    Py_buffer slots;
    if (PyObject_GetBuffer(args[1], &slots, PyBUF_WRITABLE | PyBUF_FORMAT) < 0)
        return NULL;
    struct keys keys = {NULL, 0, 0};
    PyObject *items = NULL, *answer = NULL;
    Py_ssize_t used = 0, slot_count = slots.len / 4;
    int usual = is_number(args[2], INT64_MIN, INT64_MAX, &begin_ms)
        && is_number(args[4], 1, INT32_MAX, &limit) && is_number(args[3], 1, limit, &item)
        && slots.itemsize == 4 && strcmp(slots.format, "i") == 0 && slot_count > 0
        && slot_count <= INT32_MAX;
    for (Py_ssize_t n = 0; usual == 1 && n < PyList_GET_SIZE(args[0]); n++) {
        Py_ssize_t before = keys.count;
        usual = add_record(&keys, PyList_GET_ITEM(args[0], n));
        for (; before < keys.count; before++) {
            keys.all[before].slot = keys.all[before].hash % (uint32_t)slot_count;
#if defined(__GNUC__) || defined(__clang__)
            /* far apart, and not in the cache */
            __builtin_prefetch((int32_t *)slots.buf + keys.all[before].slot, 1);
#endif
        }
        if (usual == 1 && keys.count > MAX_AT_ONCE && n > 0)
            usual = 0;
    }
    if (usual == -1) {
        PyErr_NoMemory();
    } else if (usual == 0 || keys.count == 0 || keys.count > limit - item) {
        answer = Py_NewRef(Py_None);
    } else if ((items = items_of(&keys, slots.buf, begin_ms, (int32_t)item, &used)) != NULL) {
        const struct key *last = &keys.all[keys.count - 1];
        answer = Py_BuildValue(
            "(NnLL)", items, used, (long long)last->offset, (long long)last->stored_ms);
    }
    PyMem_Free(keys.all);
    PyBuffer_Release(&slots);
    return answer;
}
