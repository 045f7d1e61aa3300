/* The module ogive._native. */

#include "native.h"

#define FAST(function, text) (PyCFunction)(void (*)(void))(function), METH_FASTCALL, PyDoc_STR(text)

static PyMethodDef functions[] = {
    {"frames", FAST(native_frames, "frames(data, limit): see FrameDecoder in ogive.wire.command")},
    {"binary_command",
        FAST(native_binary_command,
            "binary_command(frame): see decode_command() in ogive.wire.command")},
    {"properties",
        FAST(native_properties, "properties(raw): see decode_properties() in ogive.wire.message")},
    {"properties_text",
        FAST(native_properties_text,
            "properties_text(properties): see encode_properties() in ogive.wire.message")},
    {"crc32", FAST(native_crc32, "crc32(data, before=0): as zlib's")},
    {"read_sends",
        FAST(native_read_sends,
            "read_sends(forms, frames, at, most, most_bytes, most_body, origin): see "
            "ogive.wire.sends")},
    {"encode_answers",
        FAST(native_encode_answers,
            "encode_answers(answers, places, region, ...): see ogive.wire.sends")},
    {"batch_items",
        FAST(native_batch_items,
            "batch_items(body, most, item): see decode_batch() in ogive.wire.message")},
    {"batch_body",
        FAST(native_batch_body, "batch_body(items): see encode_batch() in ogive.wire.message")},
    {"plain_batch",
        FAST(native_plain_batch,
            "plain_batch(data, start, starts, most): see _checked() in ogive.broker.sends.plan")},
    {"build_records",
        FAST(native_build_records,
            "build_records(messages, queues, position, ...): see ogive.store.record")},
    {"index_items",
        FAST(native_index_items,
            "index_items(keyed, slots, begin_ms, item, limit): see KeyIndex.build() in "
            "ogive.store.key_index")},
    {"chosen",
        FAST(native_chosen,
            "chosen(entries, tags, wanted, offset, total, most, most_bytes, log_start): see "
            "_choose() in ogive.store.queue_reader")},
    {"near",
        FAST(native_near, "near(wanted, at, limit, gap): see _near() in ogive.store.commitlog")},
    {"inside",
        FAST(native_inside,
            "inside(wanted, at, start, end): see _end_inside() in ogive.store.commitlog")},
    {"picked",
        FAST(native_picked, "picked(wanted, start, data): see _pick() in ogive.store.commitlog")},
    {"doubtful",
        FAST(native_doubtful,
            "doubtful(data, base, wanted, queue_id, field, sound): see not_standing() in "
            "ogive.store.record")},
    {"whole_records",
        FAST(native_whole_records,
            "whole_records(block, at, position, limit, most, record): see read_record() in "
            "ogive.store.record")},
    {"messages",
        FAST(native_messages,
            "messages(buffer, at, checked, into, broker_name, forms): see decode_some() in "
            "ogive.wire.message")},
    {"measure", FAST(native_measure, "measure(messages): see measure() in ogive.wire.message")},
    {"columns",
        FAST(native_columns, "columns(records, names): see RecordDecoder in ogive.spark.decode")},
    {"encode_rows",
        FAST(native_encode_rows,
            "encode_rows(rows, body, tags, keys, head, first, most_bytes, most_rows): see form() "
            "in ogive.spark.rows")},
    {NULL, NULL, 0, NULL},
};

/* hatch_build.py says of which sources this is, so that ogive.native leaves out what is of others
 */
#ifndef SOURCES
#define SOURCES 0
#endif

static int prepare(PyObject *module)
{
    crc_prepare();
    if (prepare_messages(module) < 0 || add_handles(module) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "sources", SOURCES);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "ogive._native",
    .m_doc = PyDoc_STR("See ogive.native."), .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
