// The ctx of rules in the style of `torch.library`: of one `setup_context(ctx, inputs, output)`, or of one backward.
#pragma once
#include "python.h"
#include "versions.h"

struct RuleContext {
  PyObject_HEAD
  PyObject *attributes, *weak;  // __dict__, shared by all of one call
  PyObject *saved, *fixed;      // what save_for_backward and mark_non_differentiable were given: tuples, or null
  PyObject* check_saved;        // raises for what cannot be saved; borrowed from the recipe of the node
  PyObject* (*unpack)(torch::autograd::Node&);  // of a backward: its saved tensors
  NodePointer node;             // of a backward; empty in setup_context
  uint64_t needs;               // by input, as bits
  int inputs;
  bool materializes;
};

inline PyTypeObject RuleContextType = {PyVarObject_HEAD_INIT(nullptr, 0)};

inline RuleContext* make_context(int inputs, uint64_t needs, PyObject* attributes) {
  auto* context = reinterpret_cast<RuleContext*>(checked(RuleContextType.tp_alloc(&RuleContextType, 0)));
  new (&context->node) NodePointer();
  context->inputs = inputs;
  context->needs = needs;
  context->materializes = true;
  context->attributes = Py_XNewRef(attributes);
  return context;
}

namespace rule_context {

inline RuleContext* of(PyObject* object) { return reinterpret_cast<RuleContext*>(object); }

// save_for_backward(*tensors)
inline PyObject* save(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (args[i] == Py_None || THPVariable_Check(args[i])) continue;
    THPObjectPtr given(PyTuple_New(count));
    if (!given) return nullptr;
    for (Py_ssize_t k = 0; k < count; ++k) PyTuple_SET_ITEM(given.get(), k, Py_NewRef(args[k]));
    return PyObject_CallOneArg(of(self)->check_saved, given.get());
  }
  PyObject* tuple = PyTuple_New(count);
  if (!tuple) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) PyTuple_SET_ITEM(tuple, i, Py_NewRef(args[i]));
  PyObject* before = std::exchange(of(self)->saved, tuple);
  Py_XDECREF(before);
  Py_RETURN_NONE;
}

// save_for_forward(*tensors): forward mode reads what save_for_backward saved
inline PyObject* do_nothing(PyObject*, PyObject*) { Py_RETURN_NONE; }

// mark_non_differentiable(*tensors)
inline PyObject* mark(PyObject* self, PyObject* tensors) {
  PyObject* before = std::exchange(of(self)->fixed, Py_NewRef(tensors));
  Py_XDECREF(before);
  Py_RETURN_NONE;
}

// set_materialize_grads(value)
inline PyObject* materialize(PyObject* self, PyObject* value) {
  int is_wanted = PyObject_IsTrue(value);
  if (is_wanted < 0) return nullptr;
  of(self)->materializes = is_wanted != 0;
  Py_RETURN_NONE;
}

inline PyObject* saved_tensors(PyObject* self, void*) {
  HANDLE_TH_ERRORS
  if (of(self)->node) return of(self)->unpack(*of(self)->node);
  return of(self)->saved ? Py_NewRef(of(self)->saved) : checked(PyTuple_New(0));
  END_HANDLE_TH_ERRORS
}

inline PyObject* needs_input_grad(PyObject* self, void*) {
  PyObject* tuple = PyTuple_New(of(self)->inputs);
  if (!tuple) return nullptr;
  for (int i = 0; i < of(self)->inputs; ++i)
    PyTuple_SET_ITEM(tuple, i, Py_NewRef(of(self)->needs >> i & 1 ? Py_True : Py_False));
  return tuple;
}

inline int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(of(self)->attributes);
  Py_VISIT(of(self)->saved);
  Py_VISIT(of(self)->fixed);
  return 0;
}

inline int clear(PyObject* self) {
  Py_CLEAR(of(self)->attributes);
  Py_CLEAR(of(self)->saved);
  Py_CLEAR(of(self)->fixed);
  return 0;
}

inline void destroy(PyObject* self) {
  PyObject_GC_UnTrack(self);
  if (of(self)->weak) PyObject_ClearWeakRefs(self);
  clear(self);
  of(self)->node.~NodePointer();
  Py_TYPE(self)->tp_free(self);
}

inline PyMethodDef methods[] = {
    {"save_for_backward", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(save)), METH_FASTCALL, nullptr},
    {"save_for_forward", do_nothing, METH_VARARGS, nullptr},
    {"mark_non_differentiable", mark, METH_VARARGS, nullptr},
    {"set_materialize_grads", materialize, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};

inline PyGetSetDef properties[] = {
    {"saved_tensors", saved_tensors, nullptr, nullptr, nullptr},
    {"needs_input_grad", needs_input_grad, nullptr, nullptr, nullptr},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

inline int make_type() {
  RuleContextType.tp_name = "custom_autograd.native.Context";
  RuleContextType.tp_basicsize = sizeof(RuleContext);
  RuleContextType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  RuleContextType.tp_dictoffset = offsetof(RuleContext, attributes);
  RuleContextType.tp_weaklistoffset = offsetof(RuleContext, weak);
  RuleContextType.tp_getattro = PyObject_GenericGetAttr;
  RuleContextType.tp_setattro = PyObject_GenericSetAttr;
  RuleContextType.tp_traverse = traverse;
  RuleContextType.tp_clear = clear;
  RuleContextType.tp_dealloc = destroy;
  RuleContextType.tp_methods = methods;
  RuleContextType.tp_getset = properties;
  return PyType_Ready(&RuleContextType);
}

}  // namespace rule_context
