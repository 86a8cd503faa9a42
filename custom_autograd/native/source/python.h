// Small things about Python objects.
#pragma once
#include "versions.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/python_strings.h>

#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

// A reference that is given back where the GIL is held. The destructor of torch's THPObjectPtr is not inline, and asks each time
// whether Python still runs.
class Reference {
  PyObject* object = nullptr;

 public:
  Reference() = default;
  explicit Reference(PyObject* owned) noexcept : object(owned) {}
  Reference(Reference&& other) noexcept : object(other.release()) {}
  Reference& operator=(Reference&& other) noexcept { return *this = other.release(); }
  Reference& operator=(PyObject* owned) noexcept {
    PyObject* before = std::exchange(object, owned);
    Py_XDECREF(before);
    return *this;
  }
  ~Reference() { Py_XDECREF(object); }
  PyObject* get() const { return object; }
  PyObject* release() { return std::exchange(object, nullptr); }
  explicit operator bool() const { return object != nullptr; }
};

// A reference that is given back with the GIL held, on whatever thread, and not at all once Python has ended.
struct Held {
  PyObject* object = nullptr;

  Held() = default;
  explicit Held(PyObject* borrowed) : object(borrowed) { Py_XINCREF(object); }
  Held(Held&& other) noexcept : object(std::exchange(other.object, nullptr)) {}
  Held& operator=(Held&& other) noexcept {
    std::swap(object, other.object);
    return *this;
  }
  ~Held() {
    if (!object || !Py_IsInitialized()) return;
    if (PyGILState_Check()) {
      Py_DECREF(object);
    } else {
      pybind11::gil_scoped_acquire gil;
      Py_DECREF(object);
    }
  }
};

[[noreturn]] inline void throw_python_error() {
  python_error error;
  error.persist();
  throw std::move(error);
}

// The exception that is set in this thread, taken from it.
struct Raised {
  Reference type, error, trace;

  Raised() {
    PyObject *its_type, *its_error, *its_trace;
    PyErr_Fetch(&its_type, &its_error, &its_trace);
    PyErr_NormalizeException(&its_type, &its_error, &its_trace);
    if (its_trace) PyException_SetTraceback(its_error, its_trace);
    type = its_type, error = its_error, trace = its_trace;
  }
  void restore() { PyErr_Restore(type.release(), error.release(), trace.release()); }
};

// Sets the error of Python for an exception, with the class that a call through torch.ops gives it: pybind11 has classes
// for the standard ones, which torch.ops does not ask from torch 2.15 on.
inline void set_python_error(const std::exception_ptr& exception) {
  auto set = [](PyObject* cls, const char* message) { PyErr_SetString(cls, message); };
  try {
    std::rethrow_exception(exception);
#ifdef CUSTOM_AUTOGRAD_HAS_STANDARD_ERRORS
  } catch (const std::bad_alloc& error) {
    set(PyExc_MemoryError, error.what());
  } catch (const std::out_of_range& error) {
    set(PyExc_IndexError, error.what());
  } catch (const std::overflow_error& error) {
    set(PyExc_OverflowError, error.what());
  } catch (const std::range_error& error) {
    set(PyExc_ValueError, error.what());
  } catch (const std::logic_error& error) {
    if (dynamic_cast<const std::domain_error*>(&error) || dynamic_cast<const std::invalid_argument*>(&error) ||
        dynamic_cast<const std::length_error*>(&error))
      set(PyExc_ValueError, error.what());
    else
      torch::translate_exception_to_python(exception);
#endif
  } catch (const std::exception&) {
    torch::translate_exception_to_python(exception);
  } catch (...) {
    set(PyExc_RuntimeError, "Caught an unknown exception!");
  }
}

inline PyObject* checked(PyObject* object) {
  if (!object) throw_python_error();
  return object;
}

// The attribute of an object that Python has put together for us.
inline Held attribute(PyObject* object, const char* name) {
  Reference found(checked(PyObject_GetAttrString(object, name)));
  return Held(found.get());
}

inline std::vector<PyObject*> items(PyObject* tuple) {  // borrowed, from a tuple that the caller keeps
  if (!PyTuple_CheckExact(tuple)) throw std::runtime_error("a tuple is expected");
  std::vector<PyObject*> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) found.push_back(PyTuple_GET_ITEM(tuple, i));
  return found;
}

inline std::vector<int64_t> integers(PyObject* tuple) {
  std::vector<int64_t> found;
  for (PyObject* item : items(tuple)) {
    found.push_back(PyLong_AsLongLong(item));
    if (PyErr_Occurred()) throw_python_error();
  }
  return found;
}

inline PyObject* wrapped(const at::Tensor& tensor) {  // a new reference
  if (!tensor.defined()) return Py_NewRef(Py_None);
  return checked(THPVariable_Wrap(tensor));
}

// A tuple of tensors: any container of them.
template <class Tensors>
PyObject* wrapped_tuple(const Tensors& tensors, size_t count) {
  Reference tuple(checked(PyTuple_New(count)));
  for (size_t i = 0; i < count; ++i) PyTuple_SET_ITEM(tuple.get(), i, wrapped(tensors[i]));
  return tuple.release();
}

// Whether an int is of 64 bits; not a bool.
inline bool is_int64(PyObject* value) {
  int overflow = 1;
  if (PyLong_CheckExact(value)) PyLong_AsLongLongAndOverflow(value, &overflow);
  return overflow == 0;
}

inline bool is_ascii(PyObject* value) { return PyUnicode_CheckExact(value) && PyUnicode_IS_ASCII(value); }

inline bool is_plain_tensor(PyObject* object) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == THPVariableClass;
}
