// Calls an op without the dispatcher and without a Python frame of our own, where that is known to be the same.
//
// Which calls those are is proven in Python (dispatch/direct_calls.py): a `Kind` here is one such proof, recognised by the
// dispatch keys, dtypes and devices of the tensors and by the modes of this thread. Every other call goes to the
// `__call__` of the op's class, as if this file were not there.
#include "boxed.h"
#include "node.h"
#include "quiet.h"

#include <structmember.h>

#include <algorithm>
#include <array>

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
  bool is_checked, is_blind;
  mutable bool is_on_trial;  // no call of it has passed every check yet
  Held function, record;
  std::vector<EqualSize> sizes;
  Held refusing;  // what runs in place of the function if these differ: it raises
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
  PyObject *learn, *read, *instead, *unavailable, *compiling, *named_tuple, *keywords, *dispatched, *refuse_write;
  uint64_t visible;  // outputs that a call returns, as bits
  uint64_t written;  // arguments that kernels write to
  int outputs, positional;
  bool has_lists;
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

bool is_simple(PyObject* value) {
  return THPVariable_CheckExact(value) && !has_tangent(THPVariable_Unpack(value));
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

// Whether nothing watches or transforms this thread that a dispatch key does not show; a compiler neither.
bool is_quiet(const Call* op) {
  if (is_watched() || (op->written && has_dual_level())) return false;
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
      const at::TensorImpl* tensor =
          THPVariable_Unpack(tensor_of(arguments[i], values[i], element)).unsafeGetTensorImpl();
      if (tensor->key_set().raw_repr() != expected->keys ||
          c10::typeMetaToScalarType(tensor->dtype()) != expected->dtype || tensor->device() != expected->device ||
          tensor->dim() != expected->dimensions || tensor->requires_grad() != expected->requires_grad)
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
  THPObjectPtr given(as_tuple(op, values));
  std::string device = c10::DeviceTypeName(keys.device->type(), true);
  THPObjectPtr done(checked(PyObject_CallFunction(
      op->learn, "OOsKKK", reinterpret_cast<PyObject*>(op), given.get(), device.c_str(),
      static_cast<unsigned long long>(keys.seen.raw_repr()), static_cast<unsigned long long>(keys.shared.raw_repr()),
      static_cast<unsigned long long>(keys.tracked))));
  const Kind* found = find(op, values);
  if (found) op->misses = 0;
  return found;
}

// ---------------------------------------------------------------------------------------------------- running a call

// The lists of a call, copied: who gave them may change them meanwhile.
struct Lists {
  std::vector<THPObjectPtr> owned;

  void copy(const Call* op, const Values& values, Values& copies) {
    copies = values;
    for (size_t i = 0; i < op->arguments->size(); ++i) {
      if ((*op->arguments)[i].kind != Value::list || values[i] == Py_None) continue;
      owned.emplace_back(checked(PySequence_List(values[i])));
      copies[i] = owned.back().get();
    }
  }
};

// A kernel gets lists of its own, as from the dispatcher.
PyObject* call_kernel(const Call* op, PyObject* function, const Values& values) {
  if (!op->has_lists) return PyObject_Vectorcall(function, values.data(), op->positional, op->keywords);
  Lists lists;
  Values copies;
  lists.copy(op, values, copies);
  return PyObject_Vectorcall(function, copies.data(), op->positional, op->keywords);
}

int64_t size_of(const Call* op, const Values& values, int argument, int element, int64_t dimension) {
  return THPVariable_Unpack(tensor_of((*op->arguments)[argument], values[argument], element)).unsafeGetTensorImpl()->size(dimension);
}

bool has_sizes(const Call* op, const Kind& kind, const Values& values) {
  for (const EqualSize& one : kind.sizes) {
    int64_t expected = one.other_argument < 0
        ? one.other
        : size_of(op, values, one.other_argument, one.other_element, one.other);
    if (size_of(op, values, one.argument, one.element, one.dimension) != expected) return false;
  }
  return true;
}

PyObject* run_kernel(const Call* op, const Kind& kind, const Values& values) {
  PyObject* function = has_sizes(op, kind, values) ? kind.function.object : kind.refusing.object;
  PyObject* result = call_kernel(op, function, values);
  if (result || !PyErr_ExceptionMatches(op->unavailable)) return checked(result);
  Raised raised;
  THPObjectPtr given(as_tuple(op, values));
  return checked(
      PyObject_CallFunctionObjArgs(op->instead, kind.function.object, raised.error.get(), given.get(), nullptr));
}

bool is_as_it_should_be(const Call* op, const Kind& kind, PyObject* result, const Values& values) {
  if (op->outputs == 0) return result == Py_None;
  if (op->outputs > 1 && (!PyTuple_CheckExact(result) || PyTuple_GET_SIZE(result) != op->outputs)) return false;
  for (int i = 0; i < op->outputs; ++i) {
    PyObject* one = op->outputs > 1 ? PyTuple_GET_ITEM(result, i) : result;
    if (!is_plain_tensor(one)) return false;
    if (!kind.is_checked) continue;
    if (THPVariable_Unpack(one).is_view()) return false;
    if (!holds_for_tensors(op, values, [&](size_t, PyObject* tensor) { return tensor != one; })) return false;
    for (int k = 0; k < i; ++k)
      if (PyTuple_GET_ITEM(result, k) == one) return false;
  }
  return true;
}

// What the first call of a kind is checked for as well: that no output shares memory with a tensor of the call, and that
// nothing was written to but what may be. By address, since NumPy shares memory too; writes by the counts of PyTorch.
struct Trial {
  using Span = std::pair<const char*, const char*>;
  const Call* op;
  const Values& values;
  c10::SmallVector<Span, 8> spans, written;
  c10::SmallVector<int64_t, 8> versions;  // of tensors that must not be written to; -1 of others

  Trial(const Call* its, const Values& its_values) : op(its), values(its_values) {
    for_tensors([&](size_t i, const Tensor& tensor) {
      spans.push_back(span_of(tensor));
      if (op->written >> i & 1) written.push_back(spans.back());
    });
    for_tensors([&](size_t i, const Tensor& tensor) { versions.push_back(is_fixed(i, tensor) ? version_of(tensor) : -1); });
  }

  template <class Work>
  void for_tensors(Work work) const {
    holds_for_tensors(op, values, [&](size_t i, PyObject* tensor) {
      work(i, THPVariable_Unpack(tensor));
      return true;
    });
  }

  static int64_t version_of(const Tensor& tensor) {
    return tensor.is_inference() ? -1 : static_cast<int64_t>(tensor.unsafeGetTensorImpl()->version_counter().current_version());
  }

  // The memory of a tensor; empty if it has none that could be compared.
  static Span span_of(const Tensor& tensor) {
    if (tensor.layout() != at::kStrided || tensor.is_meta() || !tensor.has_storage()) return {nullptr, nullptr};
    try {
      const auto* start = static_cast<const char*>(tensor.storage().data());
      size_t size = start ? tensor.storage().nbytes() : 0;
      return size ? Span(start, start + size) : Span(nullptr, nullptr);
    } catch (const c10::Error&) {
      return {nullptr, nullptr};
    }
  }

  static bool overlap(const Span& one, const Span& other) { return one.first < other.second && other.first < one.second; }

  bool is_fixed(size_t i, const Tensor& tensor) const {
    Span its = span_of(tensor);
    return !(op->written >> i & 1) && std::none_of(written.begin(), written.end(), [&](const Span& one) { return overlap(one, its); });
  }

  bool shares_memory(PyObject* result) const {
    c10::SmallVector<Span, 8> seen(spans.begin(), spans.end());
    for (int i = 0; i < op->outputs; ++i) {
      Span its = span_of(THPVariable_Unpack(op->outputs > 1 ? PyTuple_GET_ITEM(result, i) : result));
      if (std::any_of(seen.begin(), seen.end(), [&](const Span& one) { return overlap(one, its); })) return true;
      seen.push_back(its);
    }
    return false;
  }

  void refuse_writes(PyObject* function) const {
    size_t position = 0;
    for_tensors([&](size_t i, const Tensor& tensor) {
      int64_t before = versions[position++];
      if (before < 0 || before == version_of(tensor)) return;
      THPObjectPtr index(checked(PyLong_FromSize_t(i)));
      THPObjectPtr done(checked(PyObject_CallFunctionObjArgs(op->refuse_write, index.get(), function, nullptr)));
    });
  }
};

PyObject* read(const Call* op, const Kind& kind, THPObjectPtr& result, const Values& values) {
  THPObjectPtr given(as_tuple(op, values));
  return checked(PyObject_CallFunctionObjArgs(
      op->read, result.get(), given.get(), kind.function.object, kind.is_checked ? Py_True : Py_False, nullptr));
}

// A view that a kernel returned is not to be written to: as `Function` says of the views that it returns.
void mark_view(const Tensor& tensor, int differentiable) {
  if (!tensor.is_view()) return;
  using torch::autograd::CreationMeta;
  auto* meta = torch::autograd::impl::get_view_autograd_meta(tensor);
  if (meta) meta->set_creation_meta(differentiable > 1 ? CreationMeta::MULTI_OUTPUT_NODE : CreationMeta::IN_CUSTOM_FUNCTION);
}

// Grad mode and forward mode of this thread while a kernel or a setup_context runs: the first is off.
struct KernelModes {
  c10::AutogradState& state;
  bool grad, forward;

  KernelModes(c10::AutogradState& its, bool is_forward) : state(its), grad(its.get_grad_mode()), forward(its.get_fw_grad_mode()) {
    state.set_grad_mode(false);
    state.set_fw_grad_mode(is_forward);
  }
  KernelModes(const KernelModes&) = delete;
  KernelModes& operator=(const KernelModes&) = delete;
  ~KernelModes() {
    state.set_grad_mode(grad);
    state.set_fw_grad_mode(forward);
  }
};

// Runs the setup_context of rules with a ctx, as `Function.forward` does: before there is a graph.
THPObjectPtr set_up(const Call* op, const Kind& kind, PyObject* result, const Values& values) {
  const DropIn& rules = kind.recipe->drop_in;
  int count = static_cast<int>(op->arguments->size());
  THPObjectPtr context(reinterpret_cast<PyObject*>(make_context(count, kind.requires_grad, rules.check_saved)));
  if (rules.setup == Py_None) return context;
  THPObjectPtr inputs(as_tuple(op, values));
  PyObject* args[] = {nullptr, context.get(), inputs.get(), result};
  KernelModes modes(c10::AutogradState::get_tls_state(), false);
  THPObjectPtr done(PyObject_Vectorcall(rules.setup, args + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  NativeNode::noted(done.get(), rules.note);
  return context;
}

// Takes over what a setup_context kept, when the outputs belong to the node.
void keep(NativeNode* node, const NodePointer& owner, const DropIn& rules, RuleContext* context) {
  THPObjectPtr saved(context->saved ? std::exchange(context->saved, nullptr) : checked(PyTuple_New(0)));
  Py_CLEAR(context->fixed);
  if (rules.are_simple(context->attributes)) {
    node->rule_context = Held(reinterpret_cast<PyObject*>(context));
    context->node = WeakNode(owner);
    context->unpack = NativeNode::unpack_for;
    context->is_needed = NativeNode::is_needed_of;
  } else {
    THPObjectPtr packed(checked(PyObject_CallFunctionObjArgs(
        rules.pack, context->attributes, saved.get(), context->materializes ? Py_True : Py_False, nullptr)));
    saved = Py_NewRef(PyTuple_GET_ITEM(packed.get(), 0));
    node->packed = Held(PyTuple_GET_ITEM(packed.get(), 1));
    node->packed_materializes = context->materializes;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(saved.get()); ++i) {
    PyObject* one = PyTuple_GET_ITEM(saved.get(), i);
    bool is_output = one != Py_None && THPVariable_Unpack(one).grad_fn() == owner;
    node->is_saved_output.push_back(is_output);
    if (one == Py_None)
      node->saved.emplace_back();
    else
      node->saved.emplace_back(THPVariable_Unpack(one), is_output);
  }
}

bool is_among(PyObject* one, PyObject* tuple) {
  if (!tuple) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i)
    if (PyTuple_GET_ITEM(tuple, i) == one) return true;
  return false;
}

void record(const Call* op, const Kind& kind, PyObject* result, const Values& values) {
  const DropIn* rules = kind.recipe->drop_in.function ? &kind.recipe->drop_in : nullptr;
  THPObjectPtr its_context(rules ? set_up(op, kind, result, values) : THPObjectPtr());
  auto* context = reinterpret_cast<RuleContext*>(its_context.get());
  PyObject* fixed = context ? context->fixed : nullptr;
  auto node = make_node<NativeNode>(kind.recipe);
  const auto& arguments = *op->arguments;
  torch::autograd::edge_list edges;
  edges.reserve(kind.tensors.size());
  node->inputs = static_cast<int>(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!holds_tensors(arguments[i])) continue;
    node->count_of[i] = static_cast<int16_t>(count_of(arguments[i], values[i]));
    if (node->count_of[i] > 0) node->edge_of[i] = static_cast<int16_t>(edges.size());
    for (int element = 0; element < node->count_of[i]; ++element) {
      const Tensor& tensor = THPVariable_Unpack(tensor_of(arguments[i], values[i], element));
      edges.push_back(tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor) : torch::autograd::Edge());
    }
  }
  node->set_next_edges(std::move(edges));
  if (!kind.recipe->kept.empty()) {
    THPObjectPtr kept(checked(PyTuple_New(kind.recipe->kept.size())));
    for (size_t i = 0; i < kind.recipe->kept.size(); ++i)
      PyTuple_SET_ITEM(kept.get(), i, Py_NewRef(values[kind.recipe->kept[i]]));
    node->kept = Held(kept.get());
  }
  auto output = [&](int64_t i) { return op->outputs > 1 ? PyTuple_GET_ITEM(result, i) : result; };
  auto is_differentiable = [&](int i, const Tensor& tensor) {
    return kind.recipe->is_differentiable_output[i] && torch::autograd::isDifferentiableType(tensor.scalar_type()) &&
        !is_among(output(i), fixed);
  };
  int differentiable = 0;
  for (int i = 0; i < op->outputs; ++i) differentiable += is_differentiable(i, THPVariable_Unpack(output(i)));
  if (context && differentiable < op->outputs) {  // the graph knows nothing of the others
    for (int i = 0; i < op->outputs; ++i) node->infos.emplace_back(THPVariable_Unpack(output(i)));
    THPObjectPtr metadata(checked(PyObject_CallOneArg(rules->metadata, result)));
    node->metadata = Held(metadata.get());
  }
  for (int i = 0; i < op->outputs; ++i) {
    const Tensor& tensor = THPVariable_Unpack(output(i));
    if (is_differentiable(i, tensor)) {
      torch::autograd::set_history(tensor, node);
      mark_view(tensor, differentiable);
    } else {
      node->add_input_metadata(Node::undefined_input());
      if (tensor.requires_grad()) tensor.detach_();
    }
  }
  if (context) keep(node.get(), node, *rules, context);
  for (size_t row = 0; row < kind.recipe->saved.size(); ++row) {
    const Saved& one = kind.recipe->saved[row];
    PyObject* value = one.is_output ? output(one.index) : values[one.index];
    bool is_wanted = value != Py_None && (one.users == ~uint64_t(0) || (one.users & kind.requires_grad) != 0);
    if (one.is_output || arguments[one.index].kind == Value::tensor) {
      if (is_wanted)
        node->saved.emplace_back(THPVariable_Unpack(value), one.is_output);
      else
        node->saved.emplace_back();
      continue;
    }
    node->width_of[row] = static_cast<int16_t>(is_wanted ? count_of(arguments[one.index], value) : -1);
    for (int element = 0; element < node->width_of[row]; ++element)
      node->saved.emplace_back(THPVariable_Unpack(tensor_of(arguments[one.index], value, element)), false);
  }
  node->is_complete = true;
}

// What a call returns: hidden outputs are dropped.
PyObject* returned(const Call* op, THPObjectPtr& result) {
  if (op->outputs == 1 && op->named_tuple != Py_None) return checked(PyObject_CallOneArg(op->named_tuple, result.get()));
  if (op->outputs <= 1) return result.release();
  bool has_hidden = op->visible != (uint64_t(1) << op->outputs) - 1;
  if (!has_hidden && op->named_tuple == Py_None) return result.release();
  PyObject* shown[MOST];
  Py_ssize_t count = 0;
  for (int i = 0; i < op->outputs; ++i)
    if (op->visible >> i & 1) shown[count++] = PyTuple_GET_ITEM(result.get(), i);
  if (!has_hidden) return checked(PyObject_Vectorcall(op->named_tuple, shown, count, nullptr));
  if (count == 1) return Py_NewRef(shown[0]);
  PyObject* tuple = checked(PyTuple_New(count));
  for (Py_ssize_t i = 0; i < count; ++i) PyTuple_SET_ITEM(tuple, i, Py_NewRef(shown[i]));
  return tuple;
}

// What kernels write to has a new version.
void note_writes(const Call* op, const Values& values) {
  holds_for_tensors(op, values, [&](size_t i, PyObject* tensor) {
    if (op->written >> i & 1) THPVariable_Unpack(tensor).unsafeGetTensorImpl()->bump_version();
    return true;
  });
}

// All outputs of a call, hidden ones too.
PyObject* run(const Call* op, const Kind& kind, const Values& values) {
  auto& modes_of_thread = c10::AutogradState::get_tls_state();
  bool is_recording = modes_of_thread.get_grad_mode();
  bool is_recorded = is_recording && kind.recipe;
  std::optional<Trial> trial;
  if (kind.is_on_trial) trial.emplace(op, values);
  THPObjectPtr result;
  if (!is_recording || (kind.is_blind && !is_recorded)) {
    result = run_kernel(op, kind, values);
  } else {
    KernelModes modes(modes_of_thread, !is_recorded && modes_of_thread.get_fw_grad_mode());
    result = run_kernel(op, kind, values);
  }
  bool is_sound = is_as_it_should_be(op, kind, result.get(), values) && !(trial && trial->shares_memory(result.get()));
  if (!is_sound) result = read(op, kind, result, values);
  if (trial) trial->refuse_writes(kind.function.object);
  if (op->written) note_writes(op, values);
  if (is_recorded) record(op, kind, result.get(), values);
  return result.release();
}

// The `__call__` of an object's class.
PyObject* function_of(PyObject* self) {
  PyObject* function = _PyType_Lookup(Py_TYPE(self), call_name);
  if (!function) PyErr_Format(PyExc_TypeError, "'%s' has lost its __call__", Py_TYPE(self)->tp_name);
  return Py_XNewRef(function);
}

PyObject* in_python(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
  THPObjectPtr function(function_of(self));
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
  if (op->has_lists) {
    Values copies;
    lists.copy(op, values, copies);
    values = copies;
  }
  HeldTensors tensors;  // see NOTE [tensors are held during a call]
  if (found->requires_grad != 0) {
    holds_for_tensors(op, values, [&](size_t, PyObject* object) {
      const Tensor& tensor = THPVariable_Unpack(object);
      if (tensor.requires_grad()) tensors.push_back(tensor);
      return true;
    });
  }
  bool is_recorded_in_python = found->record.object != Py_None && !found->recipe && at::GradMode::is_enabled();
  THPObjectPtr result(is_recorded_in_python
      ? checked(PyObject_Vectorcall(found->record.object, values.data(), op->arguments->size(), nullptr))
      : run(op, *found, values));
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
  THPObjectPtr owner(Py_NewRef(native));
  if (Py_TYPE(native) == &BoxedType) {
    PyObject* result = call_boxed(reinterpret_cast<Boxed*>(native), args, PyVectorcall_NARGS(flags), keywords);
    return result ? result : in_python(self, args, flags, keywords);
  }
  if (Py_TYPE(native) != &CallType) return in_python(self, args, flags, keywords);
  auto* op = reinterpret_cast<Call*>(native);
  PyObject* result = call_known(op, args, flags, keywords, false);
  if (result) return result;
  // Python cannot see observers: those that torch.profiler has not started, such as ExecutionTraceObserver.
  bool is_observed = at::hasCallbacks() && PyVectorcall_NARGS(flags) <= op->positional;
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

// What stands in an overload for the function that calls the dispatcher: that function, but for known kinds of calls.
struct Overload {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject *call, *original;  // a Call, or null when it is not to be asked any more
};

Overload* as_overload(PyObject* object) { return reinterpret_cast<Overload*>(object); }

PyObject* call_overload(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
  if (as_overload(self)->call) {
    THPObjectPtr owner(Py_NewRef(as_overload(self)->call));
    PyObject* result = call_known(reinterpret_cast<Call*>(owner.get()), args, flags, keywords, true);
    if (result) return result;
  }
  THPObjectPtr original(Py_NewRef(as_overload(self)->original));
  return PyObject_Vectorcall(original.get(), args, flags, keywords);
}

// Overload(call, original)
PyObject* create_overload(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *its_call, *original;
  if (!PyArg_ParseTuple(args, "O!O", &CallType, &its_call, &original)) return nullptr;
  PyObject* object = type->tp_alloc(type, 0);
  if (!object) return nullptr;
  as_overload(object)->vectorcall = guarded<call_overload>;
  as_overload(object)->call = Py_NewRef(its_call);
  as_overload(object)->original = Py_NewRef(original);
  return object;
}

// What this object does not have, the function has; so has its hash, which is that of the overload up to torch 2.13.
PyObject* overload_getattr(PyObject* self, PyObject* name) {
  PyObject* found = PyObject_GenericGetAttr(self, name);
  if (found || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
  PyErr_Clear();
  return PyObject_GetAttr(as_overload(self)->original, name);
}

int overload_setattr(PyObject* self, PyObject* name, PyObject* value) {
  return PyObject_SetAttr(as_overload(self)->original, name, value);
}

Py_hash_t overload_hash(PyObject* self) { return PyObject_Hash(as_overload(self)->original); }

PyObject* overload_equals(PyObject* self, PyObject* other, int operation) {
  if (Py_TYPE(self) != &OverloadType) Py_RETURN_NOTIMPLEMENTED;
  if (Py_TYPE(other) == &OverloadType) other = as_overload(other)->original;
  return PyObject_RichCompare(as_overload(self)->original, other, operation);
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
  return 0;
}

void destroy_overload(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Py_XDECREF(as_overload(self)->call);
  Py_XDECREF(as_overload(self)->original);
  Py_TYPE(self)->tp_free(self);
}

PyMethodDef overload_methods[] = {
    {"release", release_overload, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

// tp_call: by way of the vectorcall, but for an object whose slot nobody has filled.
PyObject* call_with_tuple(PyObject* self, PyObject* args, PyObject* keywords) {
  auto* slot = reinterpret_cast<char*>(self) + Py_TYPE(self)->tp_vectorcall_offset;
  if (*reinterpret_cast<vectorcallfunc*>(slot)) return PyVectorcall_Call(self, args, keywords);
  THPObjectPtr function(function_of(self));
  THPObjectPtr bound(function ? PyMethod_New(function.get(), self) : nullptr);
  return bound ? PyObject_Call(bound.get(), args, keywords) : nullptr;
}

// ----------------------------------------------------------------------------------------------- the object in Python

// The recipe that is made of these facts: that of another kind, or a new one.
std::shared_ptr<const Recipe> recipe_of(const Call* op, PyObject* facts) {
  if (facts == Py_None) return nullptr;
  for (const Kind* kind : *op->kinds)
    if (kind->recipe && kind->recipe->facts.object == facts) return kind->recipe;
  return std::make_shared<Recipe>(facts);
}

std::vector<EqualSize> sizes_of(PyObject* rows) {
  std::vector<EqualSize> found(PyTuple_GET_SIZE(rows));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); ++i) {
    EqualSize& one = found[i];
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "iiiiiL", &one.argument, &one.element, &one.dimension, &one.other_argument,
                          &one.other_element, &one.other))
      throw python_error();
  }
  return found;
}

// add(arguments, function, record, is_checked, is_blind, facts, refusing, sizes): the kind of these arguments, under the present
// modes, on trial if it is checked; what refuses runs in place of the function where sizes differ
PyObject* add(PyObject* object, PyObject* args) {
  HANDLE_TH_ERRORS
  auto* op = reinterpret_cast<Call*>(object);
  PyObject *given, *function, *record, *facts, *refusing, *sizes;
  int is_checked, is_blind;
  if (!PyArg_ParseTuple(args, "O!OOppOOO!", &PyTuple_Type, &given, &function, &record, &is_checked, &is_blind, &facts,
                        &refusing, &PyTuple_Type, &sizes))
    return nullptr;
  TORCH_CHECK(PyTuple_GET_SIZE(given) == static_cast<Py_ssize_t>(op->arguments->size()), "another number of arguments");
  auto kind = std::make_unique<Kind>();
  auto modes = c10::impl::tls_local_dispatch_key_set();
  kind->included = modes.included_.raw_repr();
  kind->excluded = modes.excluded_.raw_repr();
  kind->counts.fill(0);
  std::vector<const at::TensorImpl*> seen;
  for (size_t i = 0; i < op->arguments->size(); ++i) {
    const Argument& argument = (*op->arguments)[i];
    if (!holds_tensors(argument)) continue;
    PyObject* value = PyTuple_GET_ITEM(given, i);
    kind->counts[i] = static_cast<int16_t>(count_of(argument, value));
    for (int element = 0; element < kind->counts[i]; ++element) {
      const Tensor& tensor = THPVariable_Unpack(tensor_of(argument, value, element));
      kind->requires_grad |= uint64_t(tensor.requires_grad()) << i;
      const at::TensorImpl* its = tensor.unsafeGetTensorImpl();
      int same_as = find_same(seen.data(), static_cast<int>(seen.size()), its);
      seen.push_back(its);
      kind->tensors.push_back({tensor.key_set().raw_repr(), tensor.dim(), same_as, tensor.scalar_type(), tensor.device(),
                               tensor.requires_grad()});
    }
  }
  kind->is_checked = is_checked;
  kind->is_blind = is_blind;
  kind->is_on_trial = is_checked;
  kind->function = Held(function);
  kind->record = Held(record);
  kind->refusing = Held(refusing);
  kind->sizes = sizes_of(sizes);
  kind->recipe = recipe_of(op, facts);
  insert(op, kind.release());
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

void forget_kinds(Call* op) {
  ++op->forgotten;
  std::vector<const Kind*> gone;
  gone.swap(*op->kinds);
  for (const Kind* kind : gone) KindPointer::let_go(kind);
}

PyObject* forget(PyObject* object, PyObject*) {
  forget_kinds(reinterpret_cast<Call*>(object));
  reinterpret_cast<Call*>(object)->misses = 0;
  Py_RETURN_NONE;
}

// A kind was proven that is not known here yet: the next call asks for it.
PyObject* expect(PyObject* object, PyObject*) {
  reinterpret_cast<Call*>(object)->misses = 0;
  Py_RETURN_NONE;
}

PyObject* count_kinds(PyObject* object, PyObject*) {
  return PyLong_FromSize_t(reinterpret_cast<Call*>(object)->kinds->size());
}

PyObject* created(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* object = type->tp_alloc(type, 0);
  if (!object) return nullptr;
  auto* op = reinterpret_cast<Call*>(object);
  op->arguments = new std::vector<Argument>();
  op->kinds = new std::vector<const Kind*>();
  return object;
}

// Call(signature, (learn, read, instead, unavailable, compiling, named_tuple, keywords, dispatched, refuse_write))
// signature: ((name, rule, is_optional, is_keyword_only, type or choices, defaults), ...), outputs, visible, written
int initialise(PyObject* object, PyObject* args, PyObject*) {
  auto* op = reinterpret_cast<Call*>(object);
  PyObject *rows, *objects;
  unsigned long long visible, written;
  int outputs;
  if (op->held) {
    PyErr_SetString(PyExc_TypeError, "a call is made once");
    return -1;
  }
  if (!PyArg_ParseTuple(args, "O!iKKO!", &PyTuple_Type, &rows, &outputs, &visible, &written, &PyTuple_Type, &objects))
    return -1;
  if (PyTuple_GET_SIZE(rows) > MOST || outputs > MOST || outputs < 0 || PyTuple_GET_SIZE(objects) != 9) {
    PyErr_SetString(PyExc_ValueError, "too many arguments or outputs");
    return -1;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); ++i) {
    PyObject *name, *type, *defaults;
    const char* rule;
    int is_optional, is_keyword_only;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "UsppOO!", &name, &rule, &is_optional, &is_keyword_only, &type,
                          &PyTuple_Type, &defaults))
      return -1;
    Argument argument;
    argument.name = name;
    argument.kind = *rule == 'T' ? Value::tensor
        : *rule == 'L'           ? Value::list
        : *rule == 'i'           ? Value::integer
        : *rule == 's'           ? Value::text
                                 : Value::exact;
    op->has_lists |= argument.kind == Value::list;
    argument.is_optional = is_optional;
    argument.type = PyType_Check(type) ? reinterpret_cast<PyTypeObject*>(type) : nullptr;
    argument.choices = PyTuple_Check(type) ? type : nullptr;
    argument.fallback = PyTuple_GET_SIZE(defaults) ? PyTuple_GET_ITEM(defaults, 0) : nullptr;
    op->arguments->push_back(argument);
    op->positional += !is_keyword_only;
  }
  op->outputs = outputs;
  op->visible = visible;
  op->written = written;
  op->held = PyTuple_Pack(2, rows, objects);
  if (!op->held) return -1;
  PyObject** members[] = {&op->learn, &op->read, &op->instead, &op->unavailable, &op->compiling, &op->named_tuple, &op->keywords,
                          &op->dispatched, &op->refuse_write};
  for (int i = 0; i < 9; ++i) *members[i] = PyTuple_GET_ITEM(objects, i);
  if (op->keywords == Py_None) op->keywords = nullptr;
  if (!PyCFunction_Check(op->compiling) || !(PyCFunction_GET_FLAGS(op->compiling) & METH_NOARGS)) {
    PyErr_SetString(PyExc_TypeError, "the question for a compiler is not a C function without arguments");
    return -1;
  }
  return 0;
}

// What a kind holds is seen by Python's collector only where no call and no node in progress holds it as well.
int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* op = reinterpret_cast<Call*>(object);
  Py_VISIT(op->held);
  if (!op->kinds) return 0;
  for (const Kind* kind : *op->kinds) {
    if (kind->holders > 1) continue;
    Py_VISIT(kind->function.object);
    Py_VISIT(kind->record.object);
    Py_VISIT(kind->refusing.object);
    auto has_same = [&](const Kind* other) { return other->recipe == kind->recipe; };
    bool is_first = std::find_if(op->kinds->begin(), op->kinds->end(), has_same) == std::find(op->kinds->begin(), op->kinds->end(), kind);
    auto holders = std::count_if(op->kinds->begin(), op->kinds->end(), has_same);
    if (kind->recipe && is_first && kind->recipe.use_count() == holders) {
      int status = kind->recipe->traverse(visit, arg);
      if (status) return status;
    }
  }
  return 0;
}

int clear(PyObject* object) {
  auto* op = reinterpret_cast<Call*>(object);
  if (op->kinds) forget_kinds(op);
  return 0;  // `held` goes with the call: the class may still be called
}

void destroyed(PyObject* object) {
  PyObject_GC_UnTrack(object);
  auto* op = reinterpret_cast<Call*>(object);
  clear(object);
  delete op->kinds;
  delete op->arguments;
  Py_XDECREF(op->held);
  Py_TYPE(object)->tp_free(object);
}

PyMethodDef methods[] = {
    {"add", add, METH_VARARGS, nullptr},
    {"forget", forget, METH_NOARGS, nullptr},
    {"expect", expect, METH_NOARGS, nullptr},
    {"count_kinds", count_kinds, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

// -------------------------------------------------------------------------------------------------- nodes in Python

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
    THPObjectPtr found(node->saved_value(i, node->unpacked()));
    return PyList_CheckExact(found.get()) ? checked(PyList_AsTuple(found.get())) : found.release();
  }
  const auto& names = node->recipe->kept_names;
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return Py_NewRef(PyTuple_GET_ITEM(node->kept.object, i));
  return nullptr;
}

// `_saved_<name>`, then what a ctx has
PyObject* node_getattr(PyObject* self, PyObject* name) {
  PyObject* found = PyObject_GenericGetAttr(self, name);
  if (found || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
  HANDLE_TH_ERRORS
  auto* node = as_node(self);
  std::string text = THPUtils_unpackString(name);
  if (text.rfind("__", 0) == 0) return nullptr;
  if (text.rfind("_saved_", 0) == 0) {
    Raised missing;
    found = find_saved(node, text.substr(7));
    if (!found) missing.restore();
    return found;
  }
  Raised raised;
  if (node->rule_context.object) {
    found = PyObject_GenericGetAttr(node->rule_context.object, name);
    if (found) return found;
    PyErr_Clear();
  }
  THPObjectPtr context(node->context({}));
  found = PyObject_GetAttr(context.get(), name);
  if (!found && PyErr_ExceptionMatches(PyExc_AttributeError)) raised.restore();
  return found;
  END_HANDLE_TH_ERRORS
}

PyObject* node_dir(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  auto* base = reinterpret_cast<PyObject*>(&PyBaseObject_Type);
  THPObjectPtr names(checked(PyObject_CallMethod(base, "__dir__", "O", self)));
  auto add = [&](const std::string& name) {
    THPObjectPtr text(checked(PyUnicode_FromString(name.c_str())));
    if (PyList_Append(names.get(), text.get()) < 0) throw_python_error();
  };
  const Recipe& recipe = *as_node(self)->recipe;
  add("op");
  for (const Saved& one : recipe.saved) add("_saved_" + one.name);
  for (const std::string& name : recipe.kept_names) add("_saved_" + name);
  return names.release();
  END_HANDLE_TH_ERRORS
}

PyObject* node_repr(PyObject* self) {
  const Recipe& recipe = *as_node(self)->recipe;
  return PyUnicode_FromFormat("<%s object at %p%s>", recipe.name.c_str(), self, recipe.label.c_str());
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

// ------------------------------------------------------------------------------------------------------- the module

// A slot of a class or of one of its bases, or null: borrowed.
PyMemberDef* slot_of(PyTypeObject* type, const char* name) {
  THPObjectPtr key(checked(PyUnicode_InternFromString(name)));
  PyObject* found = _PyType_Lookup(type, key.get());
  if (!found || !Py_IS_TYPE(found, &PyMemberDescr_Type)) return nullptr;
  return reinterpret_cast<PyMemberDescrObject*>(found)->d_member;
}

// take_over(object, native): calls of an op or a kernel come here; what else they run is the `__call__` of its class.
//
// The class has two slots, `_native` and `_vectorcall`, which lie side by side in the object. The first holds a Call or
// a Boxed. The second holds an address from now on, and Python's collector must not take it for an object: so its kind
// is changed.
PyObject* take_over(PyObject*, PyObject* given) {
  HANDLE_TH_ERRORS
  PyObject *object, *native;
  if (!PyArg_ParseTuple(given, "OO", &object, &native)) return nullptr;
  PyTypeObject* type = Py_TYPE(object);
  PyMemberDef *before = slot_of(type, "_native"), *member = slot_of(type, "_vectorcall");
  TORCH_CHECK_TYPE(before && member, type->tp_name, " has not the two slots of an op or a kernel");
  TORCH_CHECK_TYPE(before->offset + Py_ssize_t(sizeof(PyObject*)) == member->offset, "the slots lie apart");
  TORCH_CHECK_TYPE(Py_TYPE(native) == &CallType || Py_TYPE(native) == &BoxedType, "not a Call or a Boxed");
  if (PyObject_SetAttrString(object, "_native", native) < 0) return nullptr;
  member->type = T_PYSSIZET;
  member->flags = READONLY;
  *reinterpret_cast<vectorcallfunc*>(reinterpret_cast<char*>(object) + member->offset) = guarded<call_checked>;
  type->tp_vectorcall_offset = member->offset;
  type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  type->tp_call = call_with_tuple;
  PyType_Modified(type);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// running_context(): a ctx for the node whose backward runs in this thread
PyObject* running_context(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  auto* running = NativeNode::Running::innermost();
  if (!running) {
    PyErr_SetString(PyExc_RuntimeError, "no backward of a native node runs in this thread");
    return nullptr;
  }
  return running->node->context(*running->values);
  END_HANDLE_TH_ERRORS
}

// Kernels may have been registered with the dispatcher, or withdrawn.
PyObject* note_change(PyObject*, PyObject*) {
  ++changes_of_kernels;
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"note_change", note_change, METH_NOARGS, nullptr},
    {"take_over", take_over, METH_VARARGS, nullptr},
    {"running_context", running_context, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "call", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_call() {
  HANDLE_TH_ERRORS
  call_name = PyUnicode_InternFromString("__call__");
  CallType.tp_name = "custom_autograd.native.Call";
  CallType.tp_basicsize = sizeof(Call);
  CallType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  CallType.tp_new = created;
  CallType.tp_init = initialise;
  CallType.tp_dealloc = destroyed;
  CallType.tp_traverse = traverse;
  CallType.tp_clear = clear;
  CallType.tp_methods = methods;
  if (PyType_Ready(&CallType) < 0) return nullptr;
  BoxedType.tp_name = "custom_autograd.native.Boxed";
  BoxedType.tp_basicsize = sizeof(Boxed);
  BoxedType.tp_flags = Py_TPFLAGS_DEFAULT;
  BoxedType.tp_new = create_boxed;
  BoxedType.tp_methods = boxed_methods;
  BoxedType.tp_dealloc = destroy_boxed;
  OverloadType.tp_name = "custom_autograd.native.Overload";
  OverloadType.tp_basicsize = sizeof(Overload);
  OverloadType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  OverloadType.tp_vectorcall_offset = offsetof(Overload, vectorcall);
  OverloadType.tp_call = PyVectorcall_Call;
  OverloadType.tp_new = create_overload;
  OverloadType.tp_dealloc = destroy_overload;
  OverloadType.tp_traverse = traverse_overload;
  OverloadType.tp_getattro = overload_getattr;
  OverloadType.tp_setattro = overload_setattr;
  OverloadType.tp_hash = overload_hash;
  OverloadType.tp_richcompare = overload_equals;
  OverloadType.tp_methods = overload_methods;
  if (PyType_Ready(&OverloadType) < 0) return nullptr;
  if (PyType_Ready(&BoxedType) < 0 || rule_context::make_type() < 0) return nullptr;
  NodeType.tp_getattro = node_getattr;
  NodeType.tp_repr = node_repr;
  torch::autograd::_initFunctionPyTypeObject(NodeType, "custom_autograd.native.CppFunction", node_properties, node_methods);
  torch::autograd::registerCppFunction(typeid(NativeNode), &NodeType);
  THPObjectPtr found(checked(PyModule_Create(&module)));
  auto add_type = [&](const char* name, PyTypeObject& type) {
    return PyModule_AddObjectRef(found.get(), name, reinterpret_cast<PyObject*>(&type)) == 0;
  };
  if (!add_type("Call", CallType) || !add_type("Boxed", BoxedType) || !add_type("Overload", OverloadType) ||
      !add_type("Node", NodeType))
    return nullptr;
  return found.release();
  END_HANDLE_TH_ERRORS
}
