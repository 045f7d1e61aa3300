/* The index of keys: the items that records add to a file. Layout of an item: hash i32 | commit-log
   offset i64 | seconds since the file's begin i32 | item before in the chain i32. Python:
   store/key_index.py, store/key_index.py, store/index_file.py. */

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
    /* Java's absolute value, and 0 for the one number that has none */
    hash = hash & 0x80000000u ? -hash & INT32_MAX : hash;
    keys->all[keys->count++] = (struct key){.hash = hash, .offset = offset, .stored_ms = stored_ms};
    return 1;
}

/* The keys of one record, its unique one first; 1, 0 for a record that is not usual, -1 without
 * memory */
static int add_record(struct keys *keys, PyObject *record)
{
    int64_t offset, stored_ms;
    if (!PyTuple_Check(record) || PyTuple_GET_SIZE(record) != 4
        || !PyBytes_Check(PyTuple_GET_ITEM(record, 0))
        || !PyBytes_Check(PyTuple_GET_ITEM(record, 1))
        || !is_number(PyTuple_GET_ITEM(record, 2), INT64_MIN, INT64_MAX, &offset)
        || !is_number(PyTuple_GET_ITEM(record, 3), INT64_MIN, INT64_MAX, &stored_ms))
        return 0;
    PyObject *topic = PyTuple_GET_ITEM(record, 0), *properties = PyTuple_GET_ITEM(record, 1);
    const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(properties),
                  *end = at + PyBytes_GET_SIZE(properties);
    const uint8_t *unique = NULL, *unique_end = NULL, *named = NULL, *named_end = NULL;
    /* the last property of each name counts */
    while (at < end) {
        const uint8_t *value_end = property_end(at, end);
        if (value_end - at >= 9 && memcmp(at, "UNIQ_KEY\x01", 9) == 0) {
            unique = at + 9;
            unique_end = value_end;
        } else if (value_end - at >= 5 && memcmp(at, "KEYS\x01", 5) == 0) {
            named = at + 5;
            named_end = value_end;
        }
        at = value_end == end ? end : value_end + 1;
    }
    uint8_t others = 0;
    uint32_t prefix =
        java_hash(0, (const uint8_t *)PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), &others)
            * 31u
        + '#';
    if (unique != unique_end
        && !add(keys, java_hash(prefix, unique, unique_end - unique, &others), offset, stored_ms))
        return -1;
    while (named < named_end) {
        const uint8_t *part_end = memchr(named, ' ', (size_t)(named_end - named));
        if (part_end == NULL)
            part_end = named_end;
        if (part_end != named
            && !add(keys, java_hash(prefix, named, part_end - named, &others), offset, stored_ms))
            return -1;
        named = part_end == named_end ? named_end : part_end + 1;
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

/* index_items(keyed, slots, begin_ms, item, limit): the items of all keys of these records, as they
   stand in a file, how many slots they are the first of, and where and when the last of them was
   stored.

   *slots*, whose numbers are changed, are those of a file that began at *begin_ms*, *item* is its
   next item, and *limit* one past its last. Return None and change nothing if there are no keys,
   more than there is room for, more than MAX_AT_ONCE of several records, or a key or a topic that
   is not UTF-8. */
PyObject *native_index_items(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 5 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError,
            "index_items(keyed: list, slots: array, begin_ms: int, item: int, limit: int)");
        return NULL;
    }
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
            /* far apart, and not in the cache */
            __builtin_prefetch((int32_t *)slots.buf + keys.all[before].slot, 1);
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
