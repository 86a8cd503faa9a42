// What stands in an overload, so that calls of it are native, too.
#pragma once
#include "calling.h"

namespace {

// What stands in an overload for the function that calls the dispatcher: that function, but for known kinds of calls.
struct Overload {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* call;  // a Call, or null when it is not to be asked any more
  PyObject *original, *observed;  // the function, and one that observers see where they do not see that one, or the same
};

Overload* as_overload(PyObject* object) { return reinterpret_cast<Overload*>(object); }

PyObject* call_overload(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
  if (as_overload(self)->call) {
    Reference owner(Py_NewRef(as_overload(self)->call));
    PyObject* result = call_known(reinterpret_cast<Call*>(owner.get()), args, flags, keywords, true);
    if (result) return result;
  }
  Overload* overload = as_overload(self);
  Reference function(Py_NewRef(Observers::are_there() ? overload->observed : overload->original));
  return PyObject_Vectorcall(function.get(), args, flags, keywords);
}

// Overload(call, original, observed)
PyObject* create_overload(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *its_call, *original, *observed;
  if (!PyArg_ParseTuple(args, "O!OO", &CallType, &its_call, &original, &observed)) return nullptr;
  PyObject* object = type->tp_alloc(type, 0);
  if (!object) return nullptr;
  as_overload(object)->vectorcall = guarded<call_overload>;
  as_overload(object)->call = Py_NewRef(its_call);
  as_overload(object)->original = Py_NewRef(original);
  as_overload(object)->observed = Py_NewRef(observed);
  return object;
}

// What this object does not have, the function has; so has its hash, which is that of the overload up to torch 2.13.
PyObject* overload_getattr(PyObject* self, PyObject* name) {
  PyObject* found = PyObject_GenericGetAttr(self, name);
  if (found || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
  PyErr_Clear();
  return PyObject_GetAttr(as_overload(self)->observed, name);
}

int overload_setattr(PyObject* self, PyObject* name, PyObject* value) {
  return PyObject_SetAttr(as_overload(self)->observed, name, value);
}

Py_hash_t overload_hash(PyObject* self) { return PyObject_Hash(as_overload(self)->observed); }

PyObject* overload_equals(PyObject* self, PyObject* other, int operation) {
  if (Py_TYPE(self) != &OverloadType) Py_RETURN_NOTIMPLEMENTED;
  if (Py_TYPE(other) == &OverloadType) other = as_overload(other)->observed;
  return PyObject_RichCompare(as_overload(self)->observed, other, operation);
}

// release(): the function that calls the dispatcher, which is called alone from now on
PyObject* release_overload(PyObject* self, PyObject*) {
  PyObject* its_call = std::exchange(as_overload(self)->call, nullptr);
  Py_XDECREF(its_call);
  return Py_NewRef(as_overload(self)->original);
}

int traverse_overload(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_overload(self)->call);
  Py_VISIT(as_overload(self)->original);
  Py_VISIT(as_overload(self)->observed);
  return 0;
}

void destroy_overload(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Py_XDECREF(as_overload(self)->call);
  Py_XDECREF(as_overload(self)->original);
  Py_XDECREF(as_overload(self)->observed);
  Py_TYPE(self)->tp_free(self);
}

PyMethodDef overload_methods[] = {
    {"release", release_overload, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

}  // namespace
