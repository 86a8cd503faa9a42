// Calls an operator of a C++ source (kernels/cpp.py) as torch.ops would, without the Python code of torch.ops: for plain
// tensors, under modes in which the dispatcher would run its kernel for the device and nothing else.
#pragma once
#include "python.h"
#include "quiet.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Dtype.h>

// How an argument is converted; anything else than these exact types takes the way through torch.ops.
enum class Convert : char { tensor, tensors, integer, number, flag, text, dtype };

struct Parameter {
  Convert convert;
  bool is_optional;
};

struct Boxed {
  PyObject_HEAD
  c10::OperatorHandle* op;
  std::vector<Parameter>* parameters;
  size_t results;
};

inline std::optional<Convert> conversion_of(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType: return Convert::tensor;
    case c10::TypeKind::IntType: return Convert::integer;
    case c10::TypeKind::FloatType: return Convert::number;
    case c10::TypeKind::BoolType: return Convert::flag;
    case c10::TypeKind::StringType: return Convert::text;
    case c10::TypeKind::ScalarTypeType: return Convert::dtype;
    case c10::TypeKind::ListType:
      if (type.castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::TensorType) return Convert::tensors;
      return std::nullopt;
    default: return std::nullopt;
  }
}

// Keys below which the operator has nothing of its own: it computes values only.
inline uint64_t ignored_keys() {
  static const uint64_t keys =
      (c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
       c10::DispatchKeySet({c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::BackendSelect}))
          .raw_repr();
  return keys;
}

inline bool has_usual_modes() {
  auto modes = c10::impl::tls_local_dispatch_key_set();
  return ((modes.included_.raw_repr() | modes.excluded_.raw_repr()) & ~ignored_keys()) == 0;
}

// The arguments of one call, for the operator's kernel on one device.
struct Boxing {
  torch::jit::Stack stack;
  uint64_t keys = 0;  // of all tensors, without those that are ignored

  bool add_tensor(PyObject* value, c10::List<at::Tensor>* list = nullptr) {
    if (!THPVariable_CheckExact(value)) return false;
    const at::Tensor& tensor = THPVariable_Unpack(value);
    uint64_t its_keys = tensor.key_set().raw_repr() & ~ignored_keys();
    if (has_tangent(tensor) || (keys && its_keys != keys) || (tensor.requires_grad() && at::GradMode::is_enabled()))
      return false;
    keys = its_keys;
    if (list)
      list->push_back(tensor);
    else
      stack.emplace_back(tensor);
    return true;
  }

  bool add_tensors(PyObject* value) {
    if (!PyList_CheckExact(value) && !PyTuple_CheckExact(value)) return false;
    c10::List<at::Tensor> list;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
      if (!add_tensor(PySequence_Fast_GET_ITEM(value, i), &list)) return false;
    stack.emplace_back(std::move(list));
    return true;
  }

  bool add(const Parameter& parameter, PyObject* value) {
    if (parameter.is_optional && value == Py_None) {
      stack.emplace_back();
      return true;
    }
    switch (parameter.convert) {
      case Convert::tensor: return add_tensor(value);
      case Convert::tensors: return add_tensors(value);
      case Convert::integer: {
        int overflow = 0;
        if (!PyLong_CheckExact(value)) return false;
        stack.emplace_back(static_cast<int64_t>(PyLong_AsLongLongAndOverflow(value, &overflow)));
        return overflow == 0;
      }
      case Convert::number:
        if (!PyFloat_CheckExact(value)) return false;
        stack.emplace_back(PyFloat_AS_DOUBLE(value));
        return true;
      case Convert::flag:
        if (!PyBool_Check(value)) return false;
        stack.emplace_back(value == Py_True);
        return true;
      case Convert::text: {
        if (!PyUnicode_CheckExact(value) || !PyUnicode_IS_ASCII(value)) return false;
        stack.emplace_back(THPUtils_unpackString(value));
        return true;
      }
      case Convert::dtype:
        if (!THPDtype_Check(value)) return false;
        stack.emplace_back(reinterpret_cast<THPDtype*>(value)->scalar_type);
        return true;
    }
    return false;
  }

  // The keys of its kernel, or nothing if the dispatcher is to decide.
  std::optional<c10::DispatchKeySet> device() const {
    for (auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA})
      if (keys == c10::DispatchKeySet(key).raw_repr()) return c10::DispatchKeySet(key);
    return std::nullopt;
  }
};

inline bool are_results_tensors(const c10::FunctionSchema& schema) {
  for (const auto& one : schema.returns())
    if (one.type()->kind() != c10::TypeKind::TensorType) return false;
  return true;
}

// The result of a call, or null without an exception where torch.ops is to be called.
inline PyObject* call_boxed(const Boxed* boxed, PyObject* const* args, size_t count, PyObject* keywords) {
  if (keywords || count != boxed->parameters->size() || is_watched() || !has_usual_modes()) return nullptr;
  Boxing boxing;
  boxing.stack.reserve(std::max(count, boxed->results));
  for (size_t i = 0; i < count; ++i)
    if (!boxing.add((*boxed->parameters)[i], args[i])) return nullptr;
  auto device = boxing.device();
  if (!device) return nullptr;
  {
    pybind11::gil_scoped_release no_gil;
    boxed->op->redispatchBoxed(*device, &boxing.stack);
  }
  if (boxed->results == 0) return Py_NewRef(Py_None);
  if (boxed->results == 1) return wrapped(boxing.stack[0].toTensor());
  THPObjectPtr results(checked(PyTuple_New(boxed->results)));
  for (size_t i = 0; i < boxed->results; ++i) PyTuple_SET_ITEM(results.get(), i, wrapped(boxing.stack[i].toTensor()));
  return results.release();
}

// Boxed(name): the operator of that name, in its overload without a name
inline PyObject* create_boxed(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  const char* name;
  if (!PyArg_ParseTuple(args, "s", &name)) return nullptr;
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  std::vector<Parameter> parameters;
  for (const auto& argument : op.schema().arguments()) {
    bool is_optional = argument.type()->kind() == c10::TypeKind::OptionalType;
    auto type = is_optional ? argument.type()->castRaw<c10::OptionalType>()->getElementType() : argument.real_type();
    if (is_optional && argument.real_type()->kind() == c10::TypeKind::OptionalType)
      type = argument.real_type()->castRaw<c10::OptionalType>()->getElementType();
    auto convert = conversion_of(*type);
    TORCH_CHECK_TYPE(convert && !argument.kwarg_only(), name, ": the type of '", argument.name(), "' takes torch.ops");
    parameters.push_back({*convert, is_optional});
  }
  TORCH_CHECK_TYPE(are_results_tensors(op.schema()), name, ": its results take torch.ops");
  auto* object = reinterpret_cast<Boxed*>(checked(type->tp_alloc(type, 0)));
  object->op = new c10::OperatorHandle(op);
  object->parameters = new std::vector<Parameter>(std::move(parameters));
  object->results = op.schema().returns().size();
  return reinterpret_cast<PyObject*>(object);
  END_HANDLE_TH_ERRORS
}

inline void destroy_boxed(PyObject* object) {
  auto* boxed = reinterpret_cast<Boxed*>(object);
  delete boxed->op;
  delete boxed->parameters;
  Py_TYPE(object)->tp_free(object);
}
