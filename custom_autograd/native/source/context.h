// The ctx of rules in the style of `torch.library`: one for each call, from `setup_context(ctx, inputs, output)` on. The
// node owns it, and it refers to the node weakly: what a rule sets on it is seen by Python's collector.
#pragma once
#include "python.h"
#include "versions.h"

#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/saved_variable.h>

struct RuleContext {
  PyObject_HEAD
  PyObject *attributes, *weak;  // __dict__
  PyObject *saved, *fixed;      // what save_for_backward and mark_non_differentiable were given: tuples, or null
  PyObject* given_needs;        // what a rule set needs_input_grad to, or null
  PyObject* check_saved;        // raises for what cannot be saved
  PyObject* (*unpack)(torch::autograd::Node&);  // the saved tensors of the node
  bool (*is_needed)(torch::autograd::Node&, int);  // by input, in the backward in progress
  WeakNode node;
  uint64_t needs;               // by input, as bits: what the call needs
  int inputs;
  bool materializes;
};

inline PyTypeObject RuleContextType = {PyVarObject_HEAD_INIT(nullptr, 0)};

inline PyObject* class_of_contexts = nullptr;  // what torch's own ctx is an instance of

inline RuleContext* make_context(int inputs, uint64_t needs, PyObject* check_saved, const NodePointer& node) {
  auto* context = reinterpret_cast<RuleContext*>(checked(RuleContextType.tp_alloc(&RuleContextType, 0)));
  new (&context->node) WeakNode(node);
  context->inputs = inputs;
  context->needs = needs;
  context->materializes = true;
  context->check_saved = Py_NewRef(check_saved);
  return context;
}

namespace rule_context {

inline RuleContext* of(PyObject* object) { return reinterpret_cast<RuleContext*>(object); }

// save_for_backward(*tensors)
inline PyObject* save(PyObject* self, PyObject* tensors) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); ++i) {
    PyObject* one = PyTuple_GET_ITEM(tensors, i);
    if (one != Py_None && !THPVariable_Check(one)) return PyObject_CallOneArg(of(self)->check_saved, tensors);
  }
  PyObject* before = std::exchange(of(self)->saved, Py_NewRef(tensors));
  Py_XDECREF(before);
  Py_RETURN_NONE;
}

// to_save: what save_for_backward was given, until the rule has kept it
inline PyObject* to_save(PyObject* self, void*) { return Py_NewRef(of(self)->saved ? of(self)->saved : Py_None); }

inline int set_to_save(PyObject* self, PyObject* value, void*) {
  Reference tensors(value ? PySequence_Tuple(value) : PyTuple_New(0));
  Reference done(tensors ? save(self, tensors.get()) : nullptr);
  return done ? 0 : -1;
}

// non_differentiable: what mark_non_differentiable was given, until then
inline PyObject* non_differentiable(PyObject* self, void*) { return Py_NewRef(of(self)->fixed ? of(self)->fixed : Py_None); }

// saved_for_forward and dirty_tensors
inline PyObject* nothing(PyObject*, void*) { Py_RETURN_NONE; }

// mark_dirty(*tensors): the schema says what an op writes to
inline PyObject* mark_dirty(PyObject*, PyObject* tensors) {
  if (PyTuple_GET_SIZE(tensors) == 0) Py_RETURN_NONE;
  PyErr_SetString(PyExc_RuntimeError, "ctx.mark_dirty is called where native code cannot see it in advance: call it in "
                                      "setup_context itself, or declare what the op writes to with mutates_args=");
  return nullptr;
}

inline PyObject* shown_class(PyObject*, void*) { return Py_NewRef(class_of_contexts); }

// save_for_forward(*tensors): forward mode reads what save_for_backward saved
inline PyObject* do_nothing(PyObject*, PyObject*) { Py_RETURN_NONE; }

// mark_non_differentiable(*tensors)
inline PyObject* mark(PyObject* self, PyObject* tensors) {
  PyObject* before = std::exchange(of(self)->fixed, Py_NewRef(tensors));
  Py_XDECREF(before);
  Py_RETURN_NONE;
}

// set_materialize_grads(value)
inline PyObject* materialize(PyObject* self, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"value", nullptr};
  int is_wanted;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "p", const_cast<char**>(names), &is_wanted)) return nullptr;
  of(self)->materializes = is_wanted != 0;
  Py_RETURN_NONE;
}

inline PyObject* saved_tensors(PyObject* self, void*) {
  HANDLE_TH_ERRORS
  NodePointer node = of(self)->node.lock();
  if (!of(self)->unpack) return checked(PyTuple_New(0));  // in setup_context
  if (!node) throw std::runtime_error(torch::autograd::ERR_BACKWARD_TWICE);  // the graph is gone
  return of(self)->unpack(*node);
  END_HANDLE_TH_ERRORS
}

inline PyObject* needs_input_grad(PyObject* self, void*) {
  if (of(self)->given_needs) return Py_NewRef(of(self)->given_needs);
  PyObject* tuple = PyTuple_New(of(self)->inputs);
  if (!tuple) return nullptr;
  NodePointer node = of(self)->node.lock();
  for (int i = 0; i < of(self)->inputs; ++i) {
    bool is_needed = of(self)->needs >> i & 1 && (!node || !of(self)->is_needed || of(self)->is_needed(*node, i));
    PyTuple_SET_ITEM(tuple, i, Py_NewRef(is_needed ? Py_True : Py_False));
  }
  return tuple;
}

inline int set_needs(PyObject* self, PyObject* value, void*) {
  PyObject* before = std::exchange(of(self)->given_needs, Py_XNewRef(value));
  Py_XDECREF(before);
  return 0;
}

// What a ctx does not have, its node may: name(), next_functions, metadata, ... These are descriptors and not a
// `tp_getattro` of the class, with which each `ctx.save_for_backward` would make a bound method.
struct OfNode {
  PyObject_HEAD
  PyObject* name;
};

inline PyTypeObject OfNodeType = {PyVarObject_HEAD_INIT(nullptr, 0)};

inline PyObject* get_of_node(PyObject* descriptor, PyObject* self, PyObject*) {
  if (!self) return Py_NewRef(descriptor);
  PyObject* name = reinterpret_cast<OfNode*>(descriptor)->name;
  HANDLE_TH_ERRORS
  NodePointer node = of(self)->node.lock();
  if (!node) return PyErr_Format(PyExc_AttributeError, "the graph of this ctx is gone, and %R with it", name);
  Reference shown(checked(torch::autograd::functionToPyObject(node)));
  return PyObject_GetAttr(shown.get(), name);
  END_HANDLE_TH_ERRORS
}

// What any node of C++ has in Python, and a ctx has not.
inline int add_of_node() {
  Reference module(PyImport_ImportModule("torch._C"));
  Reference functions(module ? PyObject_GetAttrString(module.get(), "_functions") : nullptr);
  Reference node(functions ? PyObject_GetAttrString(functions.get(), "UndefinedGrad") : nullptr);
  Reference names(node ? PyObject_Dir(node.get()) : nullptr);
  if (!names) return -1;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(names.get()); ++i) {
    PyObject* name = PyList_GET_ITEM(names.get(), i);
    if (_PyType_Lookup(&RuleContextType, name)) continue;
    Reference descriptor(reinterpret_cast<PyObject*>(PyObject_New(OfNode, &OfNodeType)));
    if (!descriptor) return -1;
    reinterpret_cast<OfNode*>(descriptor.get())->name = Py_NewRef(name);
    if (PyDict_SetItem(RuleContextType.tp_dict, name, descriptor.get()) < 0) return -1;
  }
  PyType_Modified(&RuleContextType);
  return 0;
}

inline int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(of(self)->attributes);
  Py_VISIT(of(self)->saved);
  Py_VISIT(of(self)->fixed);
  Py_VISIT(of(self)->given_needs);
  Py_VISIT(of(self)->check_saved);
  return 0;
}

inline int clear(PyObject* self) {
  Py_CLEAR(of(self)->attributes);
  Py_CLEAR(of(self)->saved);
  Py_CLEAR(of(self)->fixed);
  Py_CLEAR(of(self)->given_needs);
  return 0;
}

inline void destroy(PyObject* self) {
  PyObject_GC_UnTrack(self);
  if (of(self)->weak) PyObject_ClearWeakRefs(self);
  clear(self);
  Py_CLEAR(of(self)->check_saved);
  of(self)->node.~WeakNode();
  Py_TYPE(self)->tp_free(self);
}

inline PyMethodDef methods[] = {
    {"save_for_backward", save, METH_VARARGS, nullptr},
    {"save_for_forward", do_nothing, METH_VARARGS, nullptr},
    {"mark_non_differentiable", mark, METH_VARARGS, nullptr},
    {"mark_dirty", mark_dirty, METH_VARARGS, nullptr},
    {"set_materialize_grads", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(materialize)),
     METH_VARARGS | METH_KEYWORDS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

inline PyGetSetDef properties[] = {
    {"saved_tensors", saved_tensors, nullptr, nullptr, nullptr},
    {"needs_input_grad", needs_input_grad, set_needs, nullptr, nullptr},
    {"to_save", to_save, set_to_save, nullptr, nullptr},
    {"non_differentiable", non_differentiable, nullptr, nullptr, nullptr},
    {"saved_for_forward", nothing, nullptr, nullptr, nullptr},
    {"dirty_tensors", nothing, nullptr, nullptr, nullptr},
    {"__class__", shown_class, nullptr, nullptr, nullptr},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

inline int make_type() {
  Reference module(PyImport_ImportModule("torch.autograd.function"));
  class_of_contexts = module ? PyObject_GetAttrString(module.get(), "BackwardCFunction") : nullptr;
  if (!class_of_contexts) return -1;
  RuleContextType.tp_name = "custom_autograd.native.Context";
  RuleContextType.tp_basicsize = sizeof(RuleContext);
  RuleContextType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  RuleContextType.tp_dictoffset = offsetof(RuleContext, attributes);
  RuleContextType.tp_weaklistoffset = offsetof(RuleContext, weak);
  RuleContextType.tp_setattro = PyObject_GenericSetAttr;
  RuleContextType.tp_traverse = traverse;
  RuleContextType.tp_clear = clear;
  RuleContextType.tp_dealloc = destroy;
  RuleContextType.tp_methods = methods;
  RuleContextType.tp_getset = properties;
  OfNodeType.tp_name = "custom_autograd.native.OfNode";
  OfNodeType.tp_basicsize = sizeof(OfNode);
  OfNodeType.tp_flags = Py_TPFLAGS_DEFAULT;
  OfNodeType.tp_descr_get = get_of_node;
  if (PyType_Ready(&OfNodeType) < 0 || PyType_Ready(&RuleContextType) < 0) return -1;
  return add_of_node();
}

}  // namespace rule_context
