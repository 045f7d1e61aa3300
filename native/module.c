/* The module ogive._native. */

#include "native.h"

#define FAST(function, text) (PyCFunction)(void (*)(void))(function), METH_FASTCALL, PyDoc_STR(text)

static PyMethodDef functions[] = {
    {"columns", FAST(native_columns, "columns(records, names): see ogive.spark.decode")},
    {"encode_rows", FAST(native_encode_rows, "encode_rows(rows, body, tags, keys, head, first, most_bytes, most_rows): see ogive.spark.rows")},
    {"crc32", FAST(native_crc32, "crc32(data, before=0): as zlib's")},
    {"batch_items", FAST(native_batch_items, "batch_items(body, most, item): see ogive.wire.message.decode_batch")},
    {"batch_is_plain", FAST(native_batch_is_plain, "batch_is_plain(items, starts, most): see ogive.broker.handlers.send_batch")},
    {"batch_body", FAST(native_batch_body, "batch_body(items): see ogive.wire.message.encode_batch")},
    {"binary_command", FAST(native_binary_command, "binary_command(frame): see ogive.wire.command")},
    {"frames", FAST(native_frames, "frames(data, limit): see ogive.wire.frame")},
    {"properties", FAST(native_properties, "properties(raw): see ogive.wire.message.decode_properties")},
    {"properties_text", FAST(native_properties_text, "properties_text(properties): see ogive.wire.message.encode_properties")},
    {"usual_send", FAST(native_usual_send, "usual_send(fields, names, own_properties): see ogive.broker.handlers.send")},
    {"send_answer", FAST(native_send_answer, "send_answer(template, queue_id, key, ...): see ogive.broker.handlers.send_answer")},
    {"index_items", FAST(native_index_items, "index_items(keyed, slots, begin_ms, item, limit): see ogive.store.indexfile")},
    {"chosen", FAST(native_chosen, "chosen(entries, tags, wanted, offset, total, most, most_bytes, log_start): see ogive.store.reading")},
    {"messages", FAST(native_messages, "messages(buffer, at, checked, into, broker_name, forms): see ogive.wire.message")},
    {"near", FAST(native_near, "near(wanted, at, limit, gap): see ogive.store.commitlog")},
    {"inside", FAST(native_inside, "inside(wanted, at, start, end): see ogive.store.commitlog")},
    {"picked", FAST(native_picked, "picked(wanted, start, data): see ogive.store.commitlog")},
    {"whole_records", FAST(native_whole_records, "whole_records(block, at, position, limit, most, record): see ogive.store.logscan")},
    {"doubtful", FAST(native_doubtful, "doubtful(data, base, wanted, queue_id, field, sound): see ogive.store.record")},
    {"message_ids", FAST(native_message_ids, "message_ids(store_host, offsets): see ogive.wire.message.offset_message_ids")},
    {"records", FAST(native_records, "records(message, items, ...): see ogive.store.appender")},
    {NULL, NULL, 0, NULL},
};

#ifndef SOURCES /* hatch_build.py says of which sources this is, so that ogive.native leaves out what is of others */
#define SOURCES 0
#endif

static int prepare(PyObject *module)
{
    crc_prepare();
    return PyModule_AddIntConstant(module, "sources", SOURCES);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "ogive._native", .m_doc = PyDoc_STR("See ogive.native."), .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
