// Runs a call of a known kind: the kernel, the checks of what it returns, and the node that records it.
#pragma once
#include "edges.h"
#include "trial.h"

#include <cstring>
#include <structmember.h>  // what describes a field, up to Python 3.11

namespace {

// The lists of a call, copied: who gave them may change them meanwhile.
struct Lists {
  std::vector<Reference> owned;

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
  if (!op->signature.has_lists()) return PyObject_Vectorcall(function, values.data(), op->positional, op->keywords);
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

// Throws the error of a kernel, with a note that says of which.
[[noreturn]] void throw_noted(const Call* op, PyObject* function) {
  Raised raised;
  if (PyErr_GivenExceptionMatches(raised.error.get(), PyExc_Exception))
    Reference done(PyObject_CallFunctionObjArgs(op->note, function, raised.error.get(), nullptr));
  if (PyErr_Occurred()) PyErr_Clear();
  raised.restore();
  throw_python_error();
}

PyObject* run_kernel(const Call* op, const Kind& kind, const Values& values, bool is_arithmetic) {
  bool is_sure = !kind.is_on_trial && has_sizes(op, kind, values);
  PyObject* function = is_sure ? kind.function.object : kind.looking.object;
  std::optional<BelowAutograd> below;
  if (is_sure && is_arithmetic) below.emplace();
  PyObject* result = call_kernel(op, function, values);
  below.reset();
  if (result) return result;
  if (!PyErr_ExceptionMatches(op->unavailable)) throw_noted(op, kind.function.object);
  Raised raised;
  Reference given(as_tuple(op, values));
  return checked(
      PyObject_CallFunctionObjArgs(op->instead, kind.function.object, raised.error.get(), given.get(), nullptr));
}

// Whether a class of torch.return_types has no field with the name of an output, but in its place.
bool is_read_by_place(const Call* op, PyTypeObject* type) {
  if (strncmp(type->tp_name, "torch.return_types.", 19) != 0) return false;
  for (int at = 0; type->tp_members && type->tp_members[at].name; ++at)
    for (int i = 0; i < op->outputs; ++i)
      if (i != at && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(op->names, i), type->tp_members[at].name) == 0)
        return false;
  return true;
}

// The tuple of the items of a named one: that of the op itself, or torch.return_types. Others are read by their names.
PyObject* plain_tuple(const Call* op, PyObject* result) {
  PyTypeObject* type = Py_TYPE(result);
  bool is_named = PyTuple_Check(result) && !PyTuple_CheckExact(result) && type->tp_iter == PyTuple_Type.tp_iter &&
      type->tp_as_sequence->sq_length == PyTuple_Type.tp_as_sequence->sq_length &&
      (reinterpret_cast<PyObject*>(type) == op->named_tuple || is_read_by_place(op, type));
  return is_named ? checked(PyTuple_GetSlice(result, 0, PyTuple_GET_SIZE(result))) : Py_NewRef(result);
}

bool is_as_it_should_be(const Call* op, const Kind& kind, PyObject* result, const Values& values) {
  if (op->outputs == 0) return result == Py_None;
  if (op->outputs > 1 && (!PyTuple_CheckExact(result) || PyTuple_GET_SIZE(result) != op->outputs)) return false;
  for (int i = 0; i < op->outputs; ++i) {
    PyObject* one = op->outputs > 1 ? PyTuple_GET_ITEM(result, i) : result;
    if (!is_plain_tensor(one)) return false;
    if (!kind.is_checked) continue;
    if (is_view(THPVariable_Unpack(one))) return false;
    if (!holds_for_tensors(op, values, [&](size_t, PyObject* tensor) { return tensor != one; })) return false;
    for (int k = 0; k < i; ++k)
      if (PyTuple_GET_ITEM(result, k) == one) return false;
  }
  return true;
}

PyObject* read(const Call* op, const Kind& kind, Reference& result, const Values& values) {
  Reference given(as_tuple(op, values));
  return checked(PyObject_CallFunctionObjArgs(
      op->read, result.get(), given.get(), kind.function.object, kind.is_checked ? Py_True : Py_False, nullptr));
}

// A view that a kernel returned is not to be written to: as `Function` says of the views that it returns.
void mark_view(const Tensor& tensor, int differentiable) {
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

// Outputs as leaves that require a gradient: see NOTE [what is computed from outputs] in drop_in.py.
struct Marks {
  c10::SmallVector<c10::TensorImpl*, 4> outputs;  // which the result holds

  Marks(const Call* op, PyObject* result) {
    for (int i = 0; i < op->outputs; ++i) {
      const Tensor& one = THPVariable_Unpack(op->outputs > 1 ? PyTuple_GET_ITEM(result, i) : result);
      if (one.requires_grad() || !torch::autograd::isDifferentiableType(one.scalar_type())) continue;
      one.set_requires_grad(true);
      outputs.push_back(one.unsafeGetTensorImpl());
    }
  }
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;
  ~Marks() {
    for (c10::TensorImpl* one : outputs) one->set_requires_grad(false);
  }
};

// Runs the setup_context of rules with a ctx, before there is a graph; see NOTE [setup_context is recorded] in drop_in.py.
Reference set_up(const Call* op, const Kind& kind, PyObject* result, const Values& values, const NodePointer& node) {
  const DropIn& rules = kind.recipe->drop_in;
  int count = static_cast<int>(op->arguments->size());
  Reference context(reinterpret_cast<PyObject*>(make_context(count, kind.requires_grad, rules.check_saved, node)));
  if (rules.setup == Py_None) return context;
  Reference inputs(as_tuple(op, values));
  PyObject* args[] = {nullptr, context.get(), inputs.get(), result};
  KernelModes modes(c10::AutogradState::get_tls_state(), false);
  modes.state.set_grad_mode(true);
  Marks marks(op, result);
  Reference done(PyObject_Vectorcall(rules.setup, args + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  NativeNode::noted(done.get(), rules.note);
  return context;
}

// Whether a saved tensor has a history that is neither an input's nor that of an output.
bool has_computed(PyObject* saved, const Call* op, const Values& values, const NodePointer& owner) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(saved); ++i) {
    PyObject* one = PyTuple_GET_ITEM(saved, i);
    const Node* recorded = one == Py_None ? nullptr : node_of(THPVariable_Unpack(one));
    if (!recorded || recorded == owner.get()) continue;
    if (holds_for_tensors(op, values, [&](size_t, PyObject* tensor) { return tensor != one; })) return true;
  }
  return false;
}

// Takes over what a setup_context kept, when the outputs belong to the node.
void keep(const Call* op, PyObject* result, const Values& values, const NodePointer& owner, const DropIn& rules, RuleContext* context) {
  auto* node = static_cast<NativeNode*>(owner.get());
  Reference saved(context->saved ? std::exchange(context->saved, nullptr) : checked(PyTuple_New(0)));
  Py_CLEAR(context->fixed);
  if (rules.are_simple(context->attributes)) {
    node->rule_context = Held(reinterpret_cast<PyObject*>(context));
    context->unpack = NativeNode::unpack_for;
    context->is_needed = NativeNode::is_needed_of;
  } else {
    Reference packed(checked(PyObject_CallFunctionObjArgs(
        rules.pack, context->attributes, saved.get(), context->materializes ? Py_True : Py_False, nullptr)));
    saved = Py_NewRef(PyTuple_GET_ITEM(packed.get(), 0));
    node->packed = Held(PyTuple_GET_ITEM(packed.get(), 1));
    node->packed_materializes = context->materializes;
  }
  if (has_computed(saved.get(), op, values, owner)) {
    Reference inputs(as_tuple(op, values));
    saved = checked(PyObject_CallFunctionObjArgs(rules.forbid_following, saved.get(), inputs.get(), result, nullptr));
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(saved.get()); ++i) {
    PyObject* one = PyTuple_GET_ITEM(saved.get(), i);
    bool is_output = one != Py_None && node_of(THPVariable_Unpack(one)) == owner.get();
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

// Where gradients go: found before the kernel runs, which may change what its inputs are in the graph.
torch::autograd::edge_list edges_of(const Call* op, const Kind& kind, const Values& values) {
  torch::autograd::edge_list edges;
  edges.reserve(kind.tensors.size());
  holds_for_tensors(op, values, [&](size_t, PyObject* tensor) {
    bool is_needed = kind.tensors[edges.size()].requires_grad;
    edges.push_back(is_needed ? edge_of(THPVariable_Unpack(tensor)) : torch::autograd::Edge());
    return true;
  });
  return edges;
}

void record(const Call* op, const Kind& kind, PyObject* result, const Values& values, torch::autograd::edge_list edges) {
  const DropIn* rules = kind.recipe->drop_in.function ? &kind.recipe->drop_in : nullptr;
  auto node = make_node<NativeNode>(kind.recipe);
  const auto& arguments = *op->arguments;
  node->inputs = static_cast<int>(arguments.size());
  for (size_t i = 0, position = 0; i < arguments.size(); ++i) {
    if (!holds_tensors(arguments[i])) continue;
    node->count_of[i] = kind.counts[i];
    if (kind.counts[i] <= 0) continue;
    node->edge_of[i] = static_cast<int16_t>(position);
    position += kind.counts[i];
  }
  node->set_next_edges(std::move(edges));
  Reference its_context(rules ? set_up(op, kind, result, values, node) : Reference());
  auto* context = reinterpret_cast<RuleContext*>(its_context.get());
  PyObject* fixed = context ? context->fixed : nullptr;
  if (!kind.recipe->kept.empty()) {
    Reference kept(checked(PyTuple_New(kind.recipe->kept.size())));
    for (size_t i = 0; i < kind.recipe->kept.size(); ++i)
      PyTuple_SET_ITEM(kept.get(), i, Py_NewRef(values[kind.recipe->kept[i]]));
    node->kept = Held(kept.get());
  }
  auto output = [&](int64_t i) { return op->outputs > 1 ? PyTuple_GET_ITEM(result, i) : result; };
  auto is_differentiable = [&](int i, const Tensor& tensor) {
    return kind.recipe->signature.is_differentiable_output(i) && torch::autograd::isDifferentiableType(tensor.scalar_type()) &&
        !is_among(output(i), fixed);
  };
  int differentiable = 0;
  for (int i = 0; i < op->outputs; ++i) differentiable += is_differentiable(i, THPVariable_Unpack(output(i)));
  for (int i = 0; i < op->outputs; ++i) {
    const Tensor& tensor = THPVariable_Unpack(output(i));
    if (is_differentiable(i, tensor)) {
      bool was_view = is_view(tensor);
      torch::autograd::set_history(tensor, node);
      if (was_view) mark_view(tensor, differentiable);
    } else {
      node->add_input_metadata(tensor);  // no gradient arrives for it: the rule may ask for zeros
      if (tensor.requires_grad()) tensor.detach_();
    }
  }
  if (context) keep(op, result, values, node, *rules, context);
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
  tell_of_new_node(node);
}

// What a call returns: hidden outputs are dropped.
PyObject* returned(const Call* op, Reference& result) {
  bool has_hidden = op->visible != (uint64_t(1) << op->outputs) - 1;
  if (op->outputs <= 1 && has_hidden) return checked(PyTuple_New(0));
  if (op->outputs == 1 && op->named_tuple != Py_None) return checked(PyObject_CallOneArg(op->named_tuple, result.get()));
  if (op->outputs <= 1) return result.release();
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

// All outputs of a call, hidden ones too. There is a trial if no call of this kind has passed one.
PyObject* run(const Call* op, const Kind& kind, const Values& values, const Trial* trial) {
  auto& modes_of_thread = c10::AutogradState::get_tls_state();
  bool is_recording = modes_of_thread.get_grad_mode();
  bool is_recorded = is_recording && kind.recipe;
  torch::autograd::edge_list edges;
  if (is_recorded) edges = edges_of(op, kind, values);
  Reference result;
  bool is_arithmetic = kind.arithmetic.is_known(kind.function.object);
  if (!is_recording || (is_arithmetic && kind.requires_grad == 0)) {  // which cannot tell grad mode
    result = run_kernel(op, kind, values, is_arithmetic);
  } else {
    KernelModes modes(modes_of_thread, !is_recorded && modes_of_thread.get_fw_grad_mode());
    result = run_kernel(op, kind, values, is_arithmetic);
  }
  if (op->outputs > 1) result = plain_tuple(op, result.get());
  bool is_sound = is_as_it_should_be(op, kind, result.get(), values) && !(trial && trial->shares_memory(result.get()));
  if (!is_sound) result = read(op, kind, result, values);
  if (trial) trial->refuse_writes(kind.function.object);
  if (op->written) note_writes(op, values);
  if (is_recorded) record(op, kind, result.get(), values, std::move(edges));
  return result.release();
}

PyObject* run_on_trial(const Call* op, const Kind& kind, const Values& values) {
  Trial trial(op, values);
  return run(op, kind, values, &trial);
}

}  // namespace
