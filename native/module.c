/* The module ogive._native. */

#include "native.h"

#define ROW(name)                                                      \
    {#name, (PyCFunction)(void (*)(void))native_##name, METH_FASTCALL, \
        PyDoc_STR("See ogive.native.")},

static PyMethodDef functions[] = {FUNCTIONS(ROW){NULL, NULL, 0, NULL}};

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
