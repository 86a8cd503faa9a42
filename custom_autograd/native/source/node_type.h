// The class of native nodes in Python, with the attributes of built-in nodes.
#pragma once
#include "node.h"

namespace {

torch::autograd::THPCppFunction* as_function(PyObject* self) {
  return reinterpret_cast<torch::autograd::THPCppFunction*>(self);
}

NativeNode* as_node(PyObject* self) {
  return static_cast<NativeNode*>(as_function(self)->cdata.get());
}

PyObject* node_saved_tensors(PyObject* self, void*) {
  HANDLE_TH_ERRORS
  auto values = as_node(self)->unpacked();
  return wrapped_tuple(values, values.size());
  END_HANDLE_TH_ERRORS
}

PyObject* node_needs(PyObject* self, void*) {
  HANDLE_TH_ERRORS
  return as_node(self)->needs();
  END_HANDLE_TH_ERRORS
}

// A saved tensor by its number, where the others cannot be read.
PyObject* node_unpack_saved(PyObject* self, PyObject* given) {
  HANDLE_TH_ERRORS
  auto* node = as_node(self);
  size_t index = PyLong_AsSize_t(given);
  if (PyErr_Occurred()) throw_python_error();
  return wrapped(node->saved.at(index).unpack(node->getptr()));
  END_HANDLE_TH_ERRORS
}

PyObject* node_count_saved(PyObject* self, PyObject*) { return PyLong_FromSize_t(as_node(self)->saved.size()); }

// `_saved_<name>` as built-in nodes have it, or null: a list of tensors is a tuple there.
PyObject* find_saved(NativeNode* node, const std::string& name) {
  const auto &rows = node->recipe->saved;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].name != name) continue;
    Reference found(node->saved_value(i, node->unpacked()));
    return PyList_CheckExact(found.get()) ? checked(PyList_AsTuple(found.get())) : found.release();
  }
  Held names = attribute(node->recipe->source.object, "kept_names");
  const auto found = items(names.object);
  for (size_t i = 0; i < found.size(); ++i)
    if (THPUtils_unpackString(found[i]) == name) return Py_NewRef(PyTuple_GET_ITEM(node->kept.object, i));
  return nullptr;
}

// `_saved_<name>`, then what a ctx has
PyObject* node_getattr(PyObject* self, PyObject* name) {
  PyObject* found = PyObject_GenericGetAttr(self, name);
  if (found || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
  HANDLE_TH_ERRORS
  auto* node = as_node(self);
  Raised raised;
  const char* characters = PyUnicode_AsUTF8(name);
  if (!characters) PyErr_Clear();  // a surrogate is in no name
  std::string text(characters ? characters : "__");
  if (text.rfind("__", 0) == 0) {
    raised.restore();
    return nullptr;
  }
  if (text.rfind("_saved_", 0) == 0) {
    found = find_saved(node, text.substr(7));
    if (!found) raised.restore();
    return found;
  }
  if (node->rule_context.object) {
    found = PyObject_GenericGetAttr(node->rule_context.object, name);
    if (found) return found;
    PyErr_Clear();
  }
  Reference context(node->context({}));
  found = PyObject_GetAttr(context.get(), name);
  if (!found && PyErr_ExceptionMatches(PyExc_AttributeError)) raised.restore();
  return found;
  END_HANDLE_TH_ERRORS
}

PyObject* node_dir(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  auto* base = reinterpret_cast<PyObject*>(&PyBaseObject_Type);
  Reference names(checked(PyObject_CallMethod(base, "__dir__", "O", self)));
  auto add = [&](const std::string& name) {
    Reference text(checked(PyUnicode_FromString(name.c_str())));
    if (PyList_Append(names.get(), text.get()) < 0) throw_python_error();
  };
  const Recipe& recipe = *as_node(self)->recipe;
  add("op");
  for (const Saved& one : recipe.saved) add("_saved_" + one.name);
  Held kept = attribute(recipe.source.object, "kept_names");
  for (PyObject* name : items(kept.object)) add("_saved_" + THPUtils_unpackString(name));
  return names.release();
  END_HANDLE_TH_ERRORS
}

PyObject* node_repr(PyObject* self) {
  HANDLE_TH_ERRORS
  const Recipe& recipe = *as_node(self)->recipe;
  Held label = attribute(recipe.source.object, "label");
  return PyUnicode_FromFormat("<%s object at %p%U>", recipe.name.c_str(), self, label.object);
  END_HANDLE_TH_ERRORS
}

PyTypeObject NodeType = {PyVarObject_HEAD_INIT(nullptr, 0)};

using namespace torch::autograd;  // the macro names its functions without it

PyGetSetDef node_properties[] = {
    THP_FUNCTION_DEFAULT_PROPERTIES,
    {const_cast<char*>("saved_tensors"), node_saved_tensors, nullptr, nullptr, nullptr},
    {const_cast<char*>("needs_input_grad"), node_needs, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef node_methods[] = {
    {"_register_hook_dict", torch::autograd::THPCppFunction_register_hook_dict, METH_O, nullptr},
    {"register_hook", torch::autograd::THPCppFunction_register_hook, METH_O, nullptr},
    {"register_prehook", torch::autograd::THPCppFunction_register_prehook, METH_O, nullptr},
    {"name", torch::autograd::THPCppFunction_name, METH_NOARGS, nullptr},
    {"_sequence_nr", torch::autograd::THPCppFunction_sequence_nr, METH_NOARGS, nullptr},
    {"_unpack_saved", node_unpack_saved, METH_O, nullptr},
    {"_count_saved", node_count_saved, METH_NOARGS, nullptr},
    {"__dir__", node_dir, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace
