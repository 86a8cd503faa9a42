// Calls an operator of a C++ source (kernels/cpp.py) as torch.ops would, without the Python code of torch.ops: for plain
// tensors, under modes in which the dispatcher would run its kernel for the device and nothing else.
#pragma once
#include "held_tensors.h"
#include "python.h"
#include "quiet.h"
#include "versions.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Dtype.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

// How an argument is converted; anything else than these exact types takes the way through torch.ops.
enum class Convert : char { tensor, tensors, integer, number, flag, text, dtype };

struct Parameter {
  Convert convert;
  bool is_optional;
};

// A function of torch's stable ABI, boxed: what TORCH_BOX makes. It replaces the arguments, which it owns, by results.
using Stable = void (*)(uint64_t* stack, uint64_t arguments, uint64_t results);

// The kernel of the operator for a device type whose address is known.
struct Served {
  c10::DispatchKey key;
  Stable noted;
  Stable kernel;  // what to call: null where the dispatcher has to find it
};

struct Boxed {
  PyObject_HEAD
  c10::OperatorHandle* op;
  std::vector<Parameter>* parameters;
  size_t results;
  bool is_contiguous;           // what its tensors have to be
  std::string* source;          // the name of the C++ file that registers it
  std::vector<Served>* served;  // by device type
  uint64_t looked;              // the change after which the dispatcher was last asked
  bool is_refused;              // other kernels than those of devices have a say in a call
};

// Goes up whenever kernels may have been registered or withdrawn: see torch_private/definitions.py.
inline uint64_t changes_of_kernels = 1;

constexpr size_t MOST_BOXED = 32;  // arguments or results

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
  auto excluded = modes.excluded_ - excluded_in_backward();
  return ((modes.included_ | excluded).raw_repr() & ~ignored_keys()) == 0;
}

// Whether arguments reach a kernel as they are, and the dispatch keys and the device that their tensors have in common.
struct Fit {
  bool is_contiguous;  // tensors have to be; one that is not is copied, and a list with one is not taken
  uint64_t keys = 0;
  c10::DeviceIndex index = -1;
  bool has_copies = false;

  bool tensor(PyObject* value) {
    if (!THPVariable_CheckExact(value)) return false;
    const at::Tensor& tensor = THPVariable_Unpack(value);
    uint64_t its_keys = tensor.key_set().raw_repr() & ~ignored_keys();
    auto its_index = tensor.unsafeGetTensorImpl()->device().index();  // the keys of a device type are those of each device
    if (has_tangent(tensor) || (keys && (its_keys != keys || its_index != index)) ||
        (tensor.requires_grad() && at::GradMode::is_enabled()))
      return false;
    keys = its_keys;
    index = its_index;
    has_copies |= is_contiguous && !tensor.is_contiguous();
    return true;
  }

  bool tensors(PyObject* value) {
    if (!PyList_CheckExact(value) && !PyTuple_CheckExact(value)) return false;
    bool before = std::exchange(has_copies, false);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
      if (!tensor(PySequence_Fast_GET_ITEM(value, i)) || has_copies) return false;
    has_copies = before;
    return true;
  }

  bool argument(const Parameter& parameter, PyObject* value) {
    if (parameter.is_optional && value == Py_None) return true;
    switch (parameter.convert) {
      case Convert::tensor: return tensor(value);
      case Convert::tensors: return tensors(value);
      case Convert::integer: return is_int64(value);
      case Convert::number: return PyFloat_CheckExact(value);
      case Convert::flag: return PyBool_Check(value);
      case Convert::text: return is_ascii(value);
      case Convert::dtype: return THPDtype_Check(value);
    }
    return false;
  }

  // The key of the device type, if a kernel sees nothing else of its tensors.
  std::optional<c10::DispatchKey> device() const {
    auto key = c10::DispatchKeySet(c10::DispatchKeySet::RAW, keys).highestPriorityTypeId();
    bool is_dense = c10::toFunctionalityKey(key) == c10::DispatchKey::Dense && key != c10::DispatchKey::Meta;
    return is_dense && keys == c10::DispatchKeySet(key).raw_repr() ? std::optional(key) : std::nullopt;
  }
};

inline c10::IValue as_ivalue(const Parameter& parameter, PyObject* value) {
  if (parameter.is_optional && value == Py_None) return {};
  switch (parameter.convert) {
    case Convert::tensor: return THPVariable_Unpack(value);
    case Convert::tensors: {
      c10::List<at::Tensor> list;
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
        list.push_back(THPVariable_Unpack(PySequence_Fast_GET_ITEM(value, i)));
      return list;
    }
    case Convert::integer: return static_cast<int64_t>(PyLong_AsLongLong(value));
    case Convert::number: return PyFloat_AS_DOUBLE(value);
    case Convert::flag: return value == Py_True;
    case Convert::text: return THPUtils_unpackString(value);
    case Convert::dtype: return reinterpret_cast<THPDtype*>(value)->scalar_type;
  }
  return {};
}

// Eight bytes of the stable ABI: see torch/csrc/stable/stableivalue_conversions.h.
template <class T>
uint64_t as_bytes(T value) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, &value, sizeof(value));
  return bytes;
}

inline uint64_t as_stable(Convert convert, PyObject* value) {
  switch (convert) {
    case Convert::tensor: return as_bytes(new at::Tensor(THPVariable_Unpack(value)));
    case Convert::integer: return as_bytes(static_cast<int64_t>(PyLong_AsLongLong(value)));
    case Convert::number: return as_bytes(PyFloat_AS_DOUBLE(value));
    case Convert::flag: return as_bytes(value == Py_True);
    case Convert::dtype: return as_bytes(static_cast<int32_t>(reinterpret_cast<THPDtype*>(value)->scalar_type));
    default: return 0;  // create_boxed leaves these to the dispatcher
  }
}

inline uint64_t as_stable(const Parameter& parameter, PyObject* value) {
  if (!parameter.is_optional) return as_stable(parameter.convert, value);
  return value == Py_None ? 0 : as_bytes(new uint64_t(as_stable(parameter.convert, value)));
}

inline bool is_stable(const Parameter& parameter) {
  return parameter.convert != Convert::tensors && parameter.convert != Convert::text;
}

inline bool are_results_tensors(const c10::FunctionSchema& schema) {
  for (const auto& one : schema.returns())
    if (one.type()->kind() != c10::TypeKind::TensorType) return false;
  return true;
}

// The results of a call, from a function that gives one after the other.
template <class Next>
PyObject* results_of(const Boxed* boxed, Next next) {
  if (boxed->results == 0) return Py_NewRef(Py_None);
  if (boxed->results == 1) return wrapped(next(0));
  std::array<at::Tensor, MOST_BOXED> tensors;
  for (size_t i = 0; i < boxed->results; ++i) tensors[i] = next(i);
  return wrapped_tuple(tensors, boxed->results);
}

inline PyObject* call_stable(const Boxed* boxed, Stable kernel, PyObject* const* args) {
  uint64_t stack[MOST_BOXED];
  size_t count = boxed->parameters->size();
  HeldTensors tensors;  // see NOTE [tensors are held during a call]
  for (size_t i = 0; i < count; ++i) {
    if (THPVariable_Check(args[i])) tensors.emplace_back(args[i]);
    stack[i] = as_stable((*boxed->parameters)[i], args[i]);
  }
  {
    pybind11::gil_scoped_release no_gil;
    kernel(stack, count, boxed->results);
  }
  return results_of(boxed, [&](size_t i) {
    std::unique_ptr<at::Tensor> owned(reinterpret_cast<at::Tensor*>(stack[i]));
    return std::move(*owned);
  });
}

inline PyObject* call_dispatched(const Boxed* boxed, c10::DispatchKey device, PyObject* const* args) {
  torch::jit::Stack stack;
  stack.reserve(std::max(boxed->parameters->size(), boxed->results));
  for (size_t i = 0; i < boxed->parameters->size(); ++i) stack.push_back(as_ivalue((*boxed->parameters)[i], args[i]));
  {
    pybind11::gil_scoped_release no_gil;
    boxed->op->redispatchBoxed(c10::DispatchKeySet(device), &stack);
  }
  return results_of(boxed, [&](size_t i) { return stack[i].toTensor(); });
}

// Whether the kernel that the dispatcher has for a device is that of the source.
inline bool is_of_source(const Boxed* boxed, c10::DispatchKey key) {
  return boxed->op->hasKernelForDispatchKey(key) &&
      boxed->op->getComputedKernelForDispatchKey(key).debug().find(' ' + *boxed->source + ':') != std::string::npos;
}

// Keys at which the operator has nothing of its own, on any device type.
inline c10::DispatchKeySet keys_before_kernels() {
  return c10::getRuntimeDispatchKeySet(c10::DispatchKey::Autograd) | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::BackendSelect});
}

// Asks the dispatcher again: a kernel of a device may have been replaced, and one registered that would run before it.
inline void look_again(Boxed* boxed) {
  boxed->looked = changes_of_kernels;
  boxed->is_refused = boxed->op->hasKernelForDispatchKey(c10::DispatchKey::Autograd);
  for (auto key : keys_before_kernels()) boxed->is_refused |= boxed->op->hasKernelForDispatchKey(key);
  for (Served& one : *boxed->served) one.kernel = is_of_source(boxed, one.key) ? one.noted : nullptr;
}

// The kernel to call for a device type, or null where the dispatcher has to find it.
inline Stable kernel_for(const Boxed* boxed, c10::DispatchKey device) {
  for (const Served& one : *boxed->served)
    if (one.key == device) return one.kernel;
  return nullptr;
}

// Whether the source may have a kernel for a device type: Python says which ones it has.
inline bool may_serve(const Boxed* boxed, c10::DispatchKey device) {
  if (boxed->served->empty()) return true;
  for (const Served& one : *boxed->served)
    if (one.key == device) return true;
  return false;
}

// Calls a kernel as torch.ops does: what it warns of reaches Python's `warnings`, and its exceptions have the same classes.
template <class Kernel>
PyObject* guarded(Kernel kernel) {
  torch::PyWarningHandler warnings;
  try {
    return kernel();
  } catch (...) {
    warnings.set_in_exception();
    throw;
  }
}

// The arguments of a call, with contiguous copies of the tensors that are not: gradients of a sum are not, for example.
struct Contiguous {
  std::array<PyObject*, MOST_BOXED> args;
  std::vector<Reference> copies;

  Contiguous(PyObject* const* given, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      args[i] = given[i];
      if (!THPVariable_Check(given[i]) || THPVariable_Unpack(given[i]).is_contiguous()) continue;
      const at::Tensor& tensor = THPVariable_Unpack(given[i]);
      at::Tensor copy;
      {
        pybind11::gil_scoped_release no_gil;
        copy = tensor.contiguous();
      }
      copies.emplace_back(wrapped(copy));
      args[i] = copies.back().get();
    }
  }
};

// The result of a call, or null without an exception where torch.ops is to be called.
inline PyObject* call_boxed(Boxed* boxed, PyObject* const* args, size_t count, PyObject* keywords) {
  if (keywords || count != boxed->parameters->size() || is_watched() || !has_usual_modes()) return nullptr;
  if (boxed->looked != changes_of_kernels) look_again(boxed);
  if (boxed->is_refused) return nullptr;
  Fit fit{boxed->is_contiguous};
  for (size_t i = 0; i < count; ++i)
    if (!fit.argument((*boxed->parameters)[i], args[i])) return nullptr;
  auto device = fit.device();
  if (!device || !may_serve(boxed, *device)) return nullptr;
  Stable kernel = kernel_for(boxed, *device);
  auto call = [&](PyObject* const* its_args) {
    return guarded([&] { return kernel ? call_stable(boxed, kernel, its_args) : call_dispatched(boxed, *device, its_args); });
  };
  return fit.has_copies ? call(Contiguous(args, count).args.data()) : call(args);
}

// The device types at whose keys a source registered kernels, from pairs of a key and an address.
inline std::vector<Served> served_by(PyObject* addresses) {
  std::vector<Served> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(addresses); ++i) {
    const char* name;
    unsigned long long address;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(addresses, i), "sK", &name, &address)) throw python_error();
    auto key = c10::parseDispatchKey(name);
    if (c10::toFunctionalityKey(key) == c10::DispatchKey::Dense) found.push_back({key, reinterpret_cast<Stable>(address), nullptr});
  }
  return found;
}

// Boxed(name, source, addresses, is_contiguous): the operator of that name, in its overload without a name; the name of the
// C++ file that registers it; its kernels, as pairs of a dispatch key and an address; whether tensors have to be contiguous.
inline PyObject* create_boxed(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  const char *name, *source;
  PyObject* addresses;
  int is_contiguous;
  if (!PyArg_ParseTuple(args, "ssO!p", &name, &source, &PyTuple_Type, &addresses, &is_contiguous)) return nullptr;
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  std::vector<Parameter> parameters;
  for (const auto& argument : op.schema().arguments()) {
    auto type = argument.real_type();
    bool is_optional = type->kind() == c10::TypeKind::OptionalType;
    if (is_optional) type = type->castRaw<c10::OptionalType>()->getElementType();
    auto convert = conversion_of(*type);
    TORCH_CHECK_TYPE(convert && !argument.kwarg_only(), name, ": the type of '", argument.name(), "' takes torch.ops");
    parameters.push_back({*convert, is_optional});
  }
  TORCH_CHECK_TYPE(are_results_tensors(op.schema()), name, ": its results take torch.ops");
  size_t results = op.schema().returns().size();
  TORCH_CHECK_TYPE(std::max(parameters.size(), results) <= MOST_BOXED, name, ": so many values take torch.ops");
  bool is_direct = std::all_of(parameters.begin(), parameters.end(), is_stable);
  auto served = is_direct ? served_by(addresses) : std::vector<Served>();
  auto* object = reinterpret_cast<Boxed*>(checked(type->tp_alloc(type, 0)));
  object->op = new c10::OperatorHandle(op);
  object->parameters = new std::vector<Parameter>(std::move(parameters));
  object->results = results;
  object->is_contiguous = is_contiguous;
  object->source = new std::string(source);
  object->served = new std::vector<Served>(std::move(served));
  return reinterpret_cast<PyObject*>(object);
  END_HANDLE_TH_ERRORS
}

// address(key): of the kernel that is called without the dispatcher at a dispatch key, such as "CPU"; 0 if there is none
inline PyObject* address_in_force(PyObject* object, PyObject* key) {
  HANDLE_TH_ERRORS
  auto* boxed = reinterpret_cast<Boxed*>(object);
  look_again(boxed);
  return PyLong_FromVoidPtr(reinterpret_cast<void*>(kernel_for(boxed, c10::parseDispatchKey(THPUtils_unpackString(key)))));
  END_HANDLE_TH_ERRORS
}

inline PyMethodDef boxed_methods[] = {{"address", address_in_force, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};

inline void destroy_boxed(PyObject* object) {
  auto* boxed = reinterpret_cast<Boxed*>(object);
  delete boxed->op;
  delete boxed->parameters;
  delete boxed->source;
  delete boxed->served;
  Py_TYPE(object)->tp_free(object);
}
