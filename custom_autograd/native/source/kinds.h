// Kinds of calls, and how a call is recognised as one of them: the same tensors, as far as the proof in Python goes, under the
// same modes.
#pragma once
#include "node.h"
#include "quiet.h"

#include <algorithm>
#include <array>
#include <optional>

namespace {

enum class Value : char { tensor, list, exact, integer, text };

// What the schema says of one argument.
struct Argument {
  PyObject* name;          // interned, owned by the call
  PyObject* fallback;      // the default, or null
  Value kind;
  bool is_optional;
  PyTypeObject* type;      // of its values, where the kind is `exact`
  PyObject* choices;       // a tuple of the texts that it may be, or null for any
};

struct KindOfTensor {
  uint64_t keys;
  int64_t dimensions;
  int same_as;  // the tensor before it that is the same one, or -1
  c10::ScalarType dtype;
  c10::Device device;
  bool requires_grad;
};

// A size that a kernel relies on: that of a dimension is that of another one, or a number.
struct EqualSize {
  int argument, element, dimension;
  int other_argument, other_element;  // the argument is -1 where `other` is a number
  long long other;                    // the other dimension, or the number
};

// One kind of call. Counted under the GIL, as Python's objects are.
struct Kind {
  mutable Py_ssize_t holders = 1;
  uint64_t included, excluded;
  uint64_t requires_grad = 0;        // by argument, as bits
  std::array<int16_t, MOST> counts;  // by argument: how many tensors; -1 for None
  std::vector<KindOfTensor> tensors;
  bool is_checked;
  mutable bool is_on_trial;  // no call of it has passed every check yet
  mutable Arithmetic arithmetic;
  Held function, record;
  std::vector<EqualSize> sizes;
  Held looking;  // the function behind a look at all sizes, which raises: in the first call, and where these differ
  std::shared_ptr<const Recipe> recipe;
};

struct KindPointer {
  const Kind* kind = nullptr;
  explicit KindPointer(const Kind* its) : kind(its) {
    if (kind) ++kind->holders;
  }
  KindPointer(const KindPointer&) = delete;
  KindPointer& operator=(const KindPointer&) = delete;
  ~KindPointer() { let_go(kind); }
  static void let_go(const Kind* kind) {
    if (kind && --kind->holders == 0) delete kind;
  }
};

using Values = std::array<PyObject*, MOST>;  // borrowed, by argument

struct Call {
  PyObject_HEAD
  PyObject* held;  // a tuple of all Python objects that it uses
  std::vector<Argument>* arguments;
  std::vector<const Kind*>* kinds;
  PyObject *learn, *read, *instead, *unavailable, *note, *compiling, *named_tuple, *keywords, *dispatched, *refuse_write, *names;
  uint64_t visible;  // outputs that a call returns, as bits
  uint64_t written;  // arguments that kernels write to
  int outputs, positional;
  Signature signature;
  uint32_t misses;
  uint32_t forgotten;  // how often all kinds were
};

constexpr size_t MOST_KINDS = 8;
constexpr Py_ssize_t MOST_TENSORS = 64;  // of one call
PyObject* call_name = nullptr;  // "__call__"
PyTypeObject CallType = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject BoxedType = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject OverloadType = {PyVarObject_HEAD_INIT(nullptr, 0)};

// ------------------------------------------------------------------------------------------------- recognising a call

// Keywords in source are interned, as names are; any other takes the way through Python.
PyObject* find_keyword(PyObject* const* values, PyObject* keywords, PyObject* name) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keywords); ++i)
    if (PyTuple_GET_ITEM(keywords, i) == name) return values[i];
  return nullptr;
}

bool bind_arguments(const Call* op, PyObject* const* args, Py_ssize_t given, PyObject* keywords, Values& values) {
  if (given > op->positional) return false;
  const auto& arguments = *op->arguments;
  Py_ssize_t used = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (static_cast<Py_ssize_t>(i) < given) {
      values[i] = args[i];
      continue;
    }
    PyObject* found = keywords ? find_keyword(args + given, keywords, arguments[i].name) : nullptr;
    used += found != nullptr;
    values[i] = found ? found : arguments[i].fallback;
    if (!values[i]) return false;
  }
  return !keywords || used == PyTuple_GET_SIZE(keywords);
}

bool is_choice(const Argument& argument, PyObject* text) {
  if (!argument.choices) return true;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(argument.choices); ++i) {
    PyObject* choice = PyTuple_GET_ITEM(argument.choices, i);
    if (choice == text || PyUnicode_Compare(choice, text) == 0) return true;
  }
  return false;
}

// Whether each value is of the class that the schema wants, so that it reaches a kernel as it is.
bool is_plain(const Call* op, const Values& values) {
  const auto& arguments = *op->arguments;
  Py_ssize_t tensors = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    PyObject* value = values[i];
    const Argument& argument = arguments[i];
    if (argument.is_optional && value == Py_None) continue;
    if (argument.kind == Value::tensor) {  // as nearly always: a branch costs less than the table of a switch
      ++tensors;
      if (!is_simple(value)) return false;
      continue;
    }
    switch (argument.kind) {
      case Value::tensor:
        break;
      case Value::list: {
        if (!PyList_CheckExact(value) && !PyTuple_CheckExact(value)) return false;
        Py_ssize_t count = PySequence_Fast_GET_SIZE(value);
        if ((tensors += count) > MOST_TENSORS) return false;
        for (Py_ssize_t k = 0; k < count; ++k)
          if (!is_simple(PySequence_Fast_GET_ITEM(value, k))) return false;
        break;
      }
      case Value::exact:
        if (Py_TYPE(value) != argument.type) return false;
        break;
      case Value::integer:
        if (!is_int64(value)) return false;
        break;
      case Value::text:
        if (!is_ascii(value) || !is_choice(argument, value)) return false;
        break;
    }
  }
  return true;
}

// Whether something else than Python evaluates frames, as Dynamo does while any thread compiles.
bool has_evaluator() { return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) != _PyEval_EvalFrameDefault; }

// Whether nothing watches or transforms this thread that a dispatch key does not show; a compiler neither.
bool is_quiet(const Call* op) {
  if (is_watched() || (op->written && has_dual_level())) return false;
  if (!has_evaluator()) return true;
  PyObject* callback = PyCFunction_GET_FUNCTION(op->compiling)(PyCFunction_GET_SELF(op->compiling), nullptr);
  bool is_none = callback == Py_None;
  Py_XDECREF(callback);
  if (!callback) PyErr_Clear();
  return is_none;
}

bool holds_tensors(const Argument& argument) {
  return argument.kind == Value::tensor || argument.kind == Value::list;
}

int count_of(const Argument& argument, PyObject* value) {
  if (value == Py_None) return -1;
  return argument.kind == Value::list ? static_cast<int>(PySequence_Fast_GET_SIZE(value)) : 1;
}

PyObject* tensor_of(const Argument& argument, PyObject* value, int element) {  // borrowed
  return argument.kind == Value::list ? PySequence_Fast_GET_ITEM(value, element) : value;
}

// Whether something holds for every tensor of a call; it is given the argument's number and the tensor.
template <class Test>
bool holds_for_tensors(const Call* op, const Values& values, Test test) {
  for (size_t i = 0; i < op->arguments->size(); ++i) {
    const Argument& argument = (*op->arguments)[i];
    if (!holds_tensors(argument)) continue;
    for (int element = 0; element < count_of(argument, values[i]); ++element)
      if (!test(i, tensor_of(argument, values[i], element))) return false;
  }
  return true;
}

int find_same(const at::TensorImpl* const* seen, int count, const at::TensorImpl* tensor) {
  for (int i = 0; i < count; ++i)
    if (seen[i] == tensor) return i;
  return -1;
}

bool is_of_kind(const Call* op, const Kind& kind, const Values& values) {
  auto modes = c10::impl::tls_local_dispatch_key_set();
  if (modes.included_.raw_repr() != kind.included || modes.excluded_.raw_repr() != kind.excluded) return false;
  const auto& arguments = *op->arguments;
  const KindOfTensor* expected = kind.tensors.data();
  const at::TensorImpl* seen[MOST_TENSORS];
  int position = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!holds_tensors(arguments[i])) continue;
    int count = count_of(arguments[i], values[i]);
    if (count != kind.counts[i]) return false;
    for (int element = 0; element < count; ++element, ++expected) {
      const Tensor& its = THPVariable_Unpack(tensor_of(arguments[i], values[i], element));
      const at::TensorImpl* tensor = its.unsafeGetTensorImpl();
      if (tensor->key_set().raw_repr() != expected->keys ||
          c10::typeMetaToScalarType(tensor->dtype()) != expected->dtype || tensor->device() != expected->device ||
          tensor->dim() != expected->dimensions || requires_grad(its) != expected->requires_grad)
        return false;
      if (find_same(seen, position, tensor) != expected->same_as) return false;
      seen[position++] = tensor;
    }
  }
  return true;
}

const Kind* find(const Call* op, const Values& values) {
  for (const Kind* kind : *op->kinds)
    if (is_of_kind(op, *kind, values)) return kind;
  return nullptr;
}

// Takes over a reference to a kind. What is let go may run code.
void insert(Call* op, const Kind* kind) {
  auto& kinds = *op->kinds;
  const Kind* last = kinds.size() >= MOST_KINDS ? kinds.back() : nullptr;
  if (last) kinds.pop_back();
  kinds.insert(kinds.begin(), kind);
  KindPointer::let_go(last);
}

void drop(Call* op, const Kind* kind) {
  auto& kinds = *op->kinds;
  kinds.erase(std::remove(kinds.begin(), kinds.end(), kind), kinds.end());
  KindPointer::let_go(kind);
}

PyObject* as_tuple(const Call* op, const Values& values) {
  PyObject* tuple = checked(PyTuple_New(op->arguments->size()));
  for (size_t i = 0; i < op->arguments->size(); ++i) PyTuple_SET_ITEM(tuple, i, Py_NewRef(values[i]));
  return tuple;
}

// The dispatch keys that act on the tensors of a call, as the dispatcher computes them.
struct KeysInEffect {
  c10::DispatchKeySet seen, shared = c10::DispatchKeySet(c10::DispatchKeySet::FULL);  // on any of them, and on all
  uint64_t tracked = 0;                                                              // arguments that require a gradient
  std::optional<c10::Device> device;

  // False if the tensors are on several devices, or if there is none.
  bool find(const Call* op, const Values& values) {
    auto modes = c10::impl::tls_local_dispatch_key_set();
    bool is_one = holds_for_tensors(op, values, [&](size_t i, PyObject* object) {
      const Tensor& tensor = THPVariable_Unpack(object);
      auto keys = (tensor.key_set() | modes.included_) - modes.excluded_;
      seen = seen | keys;
      shared = shared & keys;
      tracked |= uint64_t(tensor.requires_grad()) << i;
      if (!device) device = tensor.device();
      return *device == tensor.device();
    });
    return is_one && device;
  }
};

// Asks Python for a proof; seldom, where there was none again and again.
const Kind* look_up(Call* op, const Values& values) {
  if (++op->misses > 16 && (op->misses & (op->misses - 1)) != 0) return nullptr;
  KeysInEffect keys;
  if (!keys.find(op, values)) return nullptr;
  Reference given(as_tuple(op, values));
  std::string device = c10::DeviceTypeName(keys.device->type(), true);
  Reference done(checked(PyObject_CallFunction(
      op->learn, "OOsKKK", reinterpret_cast<PyObject*>(op), given.get(), device.c_str(),
      static_cast<unsigned long long>(keys.seen.raw_repr()), static_cast<unsigned long long>(keys.shared.raw_repr()),
      static_cast<unsigned long long>(keys.tracked))));
  const Kind* found = find(op, values);
  if (found) op->misses = 0;
  return found;
}

}  // namespace
