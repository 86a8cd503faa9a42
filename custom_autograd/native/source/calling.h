// From a call in Python to a known kind of call, or back to Python.
#pragma once
#include "boxed.h"
#include "running.h"

namespace {

// The `__call__` of an object's class.
PyObject* function_of(PyObject* self) {
  PyObject* function = _PyType_Lookup(Py_TYPE(self), call_name);
  if (!function) PyErr_Format(PyExc_TypeError, "'%s' has lost its __call__", Py_TYPE(self)->tp_name);
  return Py_XNewRef(function);
}

PyObject* in_python(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
  Reference function(function_of(self));
  if (!function) return nullptr;
  Py_ssize_t count = PyVectorcall_NARGS(flags), all = count + (keywords ? PyTuple_GET_SIZE(keywords) : 0);
  if (flags & PY_VECTORCALL_ARGUMENTS_OFFSET) {
    auto* before = const_cast<PyObject**>(args) - 1;
    PyObject* there = std::exchange(*before, self);
    PyObject* result = PyObject_Vectorcall(function.get(), before, count + 1, keywords);
    *before = there;
    return result;
  }
  std::vector<PyObject*> moved{self};
  moved.insert(moved.end(), args, args + all);
  return PyObject_Vectorcall(function.get(), moved.data(), count + 1, keywords);
}

PyObject* native_of(PyObject* self) {  // the slot before that of the vectorcall: see take_over
  return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(self) + Py_TYPE(self)->tp_vectorcall_offset - sizeof(PyObject*));
}

// The result of a call of a known kind, or null, without an error, for any other call. A whole result has all outputs.
PyObject* call_known(Call* op, PyObject* const* args, size_t flags, PyObject* keywords, bool is_whole) {
  Values values;
  if (!bind_arguments(op, args, PyVectorcall_NARGS(flags), keywords, values) || !is_plain(op, values) || !is_quiet(op))
    return nullptr;
  const Kind* found = find(op, values);
  if (!found) found = look_up(op, values);
  if (!found) return nullptr;
  KindPointer held(found);
  bool is_on_trial = found->is_on_trial;
  uint32_t forgotten = op->forgotten;
  if (is_on_trial) drop(op, found);
  Lists lists;
  if (op->signature.has_lists()) {
    Values copies;
    lists.copy(op, values, copies);
    values = copies;
  }
  HeldTensors tensors;  // see NOTE [tensors are held during a call]
  holds_for_tensors(op, values, [&](size_t, PyObject* tensor) {
    tensors.emplace_back(tensor);
    return true;
  });
  bool is_recorded_in_python = found->record.object != Py_None && !found->recipe && at::GradMode::is_enabled();
  Reference result(is_recorded_in_python
      ? checked(PyObject_Vectorcall(found->record.object, values.data(), op->arguments->size(), nullptr))
      : is_on_trial ? run_on_trial(op, *found, values)
                    : run(op, *found, values, nullptr));
  if (is_on_trial && forgotten == op->forgotten && !find(op, values)) {
    found->is_on_trial = false;
    ++found->holders;
    insert(op, found);
  }
  return is_whole ? result.release() : returned(op, result);
}

PyObject* call_checked(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
  PyObject* native = native_of(self);
  if (!native) return in_python(self, args, flags, keywords);
  Reference owner(Py_NewRef(native));
  if (Py_TYPE(native) == &BoxedType) {
    PyObject* result = call_boxed(reinterpret_cast<Boxed*>(native), args, PyVectorcall_NARGS(flags), keywords);
    return result ? result : in_python(self, args, flags, keywords);
  }
  if (Py_TYPE(native) != &CallType) return in_python(self, args, flags, keywords);
  auto* op = reinterpret_cast<Call*>(native);
  PyObject* result = call_known(op, args, flags, keywords, false);
  if (result) return result;
  // Python cannot see observers: those that torch.profiler has not started, such as ExecutionTraceObserver.
  bool is_observed = Observers::are_there() && PyVectorcall_NARGS(flags) <= op->positional;
  return is_observed ? PyObject_Vectorcall(op->dispatched, args, flags, keywords) : in_python(self, args, flags, keywords);
}

// A vectorcall whose exceptions become Python's. Not HANDLE_TH_ERRORS: what warns in here is Python code, which has a
// handler of its own.
template <PyObject* (*function)(PyObject*, PyObject* const*, size_t, PyObject*)>
PyObject* guarded(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
  try {
    return function(self, args, flags, keywords);
  } catch (python_error& error) {
    error.restore();
  } catch (...) {
    set_python_error(std::current_exception());
  }
  return nullptr;
}

// tp_call: by way of the vectorcall, but for an object whose slot nobody has filled.
PyObject* call_with_tuple(PyObject* self, PyObject* args, PyObject* keywords) {
  auto* slot = reinterpret_cast<char*>(self) + Py_TYPE(self)->tp_vectorcall_offset;
  if (*reinterpret_cast<vectorcallfunc*>(slot)) return PyVectorcall_Call(self, args, keywords);
  Reference function(function_of(self));
  Reference bound(function ? PyMethod_New(function.get(), self) : nullptr);
  return bound ? PyObject_Call(bound.get(), args, keywords) : nullptr;
}

}  // namespace
