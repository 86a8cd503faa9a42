// A node of the autograd graph whose backward is a Python function: what `Function.apply` would record, without `ctx`.
//
// The common backward is one call of a generated function (`quick`), which takes incoming gradients, which gradients are
// needed, what was saved and what was kept. Where it returns NotImplemented, the backward of the op's Function runs on a
// `context` with the attributes of a ctx, made for it; also under compiled autograd, and for attributes of `grad_fn`.
#pragma once
#include "python.h"
#include "versions.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <array>
#include <mutex>

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

constexpr int MOST = 16;  // arguments and outputs of an op, together; Python keeps larger ones to itself

// What is saved: an input or an output, always or for the gradients of some inputs.
struct Saved {
  bool is_output;
  int64_t index;
  uint64_t users;  // inputs, as bits; all ones: always
  std::string name;
};

// What a rule is called with: an incoming gradient, a saved tensor or a kept value.
struct RuleArgument {
  enum { gradient, saved, kept } source;
  int64_t index;
  bool is_filled;  // zeros stand for a gradient that does not arrive
};

// The one rule of an op, where it can be called without generated code around it.
struct Rule {
  PyObject *function = nullptr, *keywords = nullptr, *names = nullptr, *read = nullptr, *note = nullptr;  // held by the recipe's facts
  std::vector<RuleArgument> arguments;
  std::vector<int64_t> inputs;    // whose gradients it returns, in this order
  std::vector<int64_t> unnamed;   // outputs whose gradients it does not take
  bool is_once_differentiable = false;
};

// What all nodes of an op have in common, until a rule of it changes.
struct Recipe {
  std::string name;
  uint64_t id;
  bool is_checked;
  std::vector<bool> is_differentiable_input;   // by input
  std::vector<bool> is_differentiable_output;  // by output
  std::vector<Saved> saved;
  std::vector<int64_t> kept;  // inputs that are no tensors
  Rule rule;
  Held facts;  // what Python gave; the others are attributes of it, held by it
  PyObject *quick, *general, *fit, *context, *trace;

  explicit Recipe(PyObject* given) {
    id = PyLong_AsUnsignedLongLong(attribute(given, "id").object);
    name = THPUtils_unpackString(attribute(given, "name").object);
    is_checked = attribute(given, "is_checked").object == Py_True;
    for (int64_t one : integers(attribute(given, "differentiable_inputs"))) is_differentiable_input.push_back(one);
    for (int64_t one : integers(attribute(given, "differentiable_outputs"))) is_differentiable_output.push_back(one);
    Held rows = attribute(given, "saved");
    for (PyObject* row : items(rows)) {
      int is_output;
      long long index;
      unsigned long long users;
      const char* its_name;
      if (!PyArg_ParseTuple(row, "pLKs", &is_output, &index, &users, &its_name)) throw_python_error();
      saved.push_back({is_output != 0, index, users, its_name});
    }
    kept = integers(attribute(given, "kept"));
    quick = attribute(given, "quick").object;
    general = attribute(given, "general").object;
    fit = attribute(given, "fit").object;
    context = attribute(given, "context").object;
    trace = attribute(given, "trace").object;
    facts = Held(given);
    Held its_rule = attribute(given, "rule");
    if (its_rule.object != Py_None) read_rule(its_rule.object);
  }

  void read_rule(PyObject* given) {
    rule.function = attribute(given, "function").object;
    rule.read = attribute(given, "read").object;
    rule.note = attribute(given, "note").object;
    rule.names = attribute(given, "names").object;
    rule.keywords = attribute(given, "keywords").object;
    if (rule.keywords == Py_None) rule.keywords = nullptr;
    Held rows = attribute(given, "arguments");
    for (PyObject* row : items(rows)) {
      const char* source;
      long long index;
      int is_filled;
      if (!PyArg_ParseTuple(row, "sLp", &source, &index, &is_filled)) throw_python_error();
      auto its_source = *source == 'g' ? RuleArgument::gradient : *source == 's' ? RuleArgument::saved : RuleArgument::kept;
      rule.arguments.push_back({its_source, index, is_filled != 0});
    }
    rule.inputs = integers(attribute(given, "inputs"));
    rule.unnamed = integers(attribute(given, "unnamed"));
    rule.is_once_differentiable = attribute(given, "is_once_differentiable").object == Py_True;
  }

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(facts.object);
    return 0;
  }
};

struct NativeNode final : Node {
  std::shared_ptr<const Recipe> recipe;
  int inputs = 0;
  std::array<int8_t, MOST> edge_of;  // by input: which edge, or -1
  c10::SmallVector<SavedVariable, 4> saved;
  Held kept;  // a tuple, or nothing

  explicit NativeNode(std::shared_ptr<const Recipe> its) : recipe(std::move(its)) { edge_of.fill(-1); }

  PyObject* kept_tuple() const {  // a new reference
    return kept.object ? Py_NewRef(kept.object) : checked(PyTuple_New(0));
  }

  std::string name() const override { return recipe->name; }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& one : saved) one.reset_data();
  }

  std::vector<Tensor> unpacked() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Tensor> values;
    values.reserve(saved.size());
    for (SavedVariable& one : saved) values.push_back(one.unpack(getptr()));
    return values;
  }

  bool is_needed(int input) const {
    return edge_of[input] >= 0 && next_edge(edge_of[input]).is_valid();
  }

  bool is_wanted(int input) const {  // in the backward pass in progress
    return is_needed(input) && task_should_compute_output(edge_of[input]);
  }

  variable_list apply(variable_list&& grads) override {
    std::vector<Tensor> values = unpacked();
    pybind11::gil_scoped_acquire gil;
    Running running(this, &values);
    if (recipe->rule.function && is_plain(grads, values)) return by_rule(grads, values);
    THPObjectPtr result(is_lazy(grads, values) ? Py_NewRef(Py_NotImplemented) : quick(grads, values));
    bool is_quick = result.get() != Py_NotImplemented;
    if (!is_quick) result = general(grads, values);
    return gradients(result.get(), is_quick);
  }

  // Whether a tensor is to be resolved first: incoming gradients, and saved outputs.
  bool is_lazy(const variable_list& grads, const std::vector<Tensor>& values) const {
    for (const Tensor& grad : grads)
      if (grad.defined() && (grad.is_neg() || grad.is_conj())) return true;
    for (size_t i = 0; i < values.size(); ++i)
      if (recipe->saved[i].is_output && values[i].defined() && (values[i].is_neg() || values[i].is_conj())) return true;
    return false;
  }

  // Whether the one rule can be called as it is.
  bool is_plain(const variable_list& grads, const std::vector<Tensor>& values) const {
    if (recipe->rule.is_once_differentiable && at::GradMode::is_enabled()) return false;
    bool is_any_defined = false;
    for (const RuleArgument& one : recipe->rule.arguments) {
      if (one.source != RuleArgument::gradient) continue;
      if (one.is_filled && !grads[one.index].defined()) return false;
      is_any_defined |= grads[one.index].defined();
    }
    for (int64_t index : recipe->rule.unnamed)
      if (grads[index].defined()) return false;
    return is_any_defined && !is_lazy(grads, values);
  }

  variable_list by_rule(const variable_list& grads, const std::vector<Tensor>& values) {
    const Rule& rule = recipe->rule;
    PyObject* args[2 * MOST + 1] = {nullptr};
    int count = 1;
    for (const RuleArgument& one : rule.arguments) {
      if (one.source == RuleArgument::kept)
        args[count++] = Py_NewRef(PyTuple_GET_ITEM(kept.object, one.index));
      else
        args[count++] = wrapped(one.source == RuleArgument::gradient ? grads[one.index] : values[one.index]);
    }
    size_t positional = rule.keywords ? 0 : count - 1;
    THPObjectPtr result(
        PyObject_Vectorcall(rule.function, args + 1, positional | PY_VECTORCALL_ARGUMENTS_OFFSET, rule.keywords));
    for (int i = 1; i < count; ++i) Py_DECREF(args[i]);
    noted(result.get());
    PyObject* taken[MOST];  // borrowed
    if (!take_apart(result.get(), taken)) {
      result = checked(PyObject_CallOneArg(rule.read, result.get()));  // a tuple, or an error that says what is wrong
      for (size_t i = 0; i < rule.inputs.size(); ++i) taken[i] = PyTuple_GET_ITEM(result.get(), i);
    }
    variable_list found(num_outputs());
    for (size_t i = 0; i < rule.inputs.size(); ++i) {
      int64_t input = rule.inputs[i];
      PyObject* one = taken[i];
      if (!is_wanted(input)) continue;
      THPObjectPtr called;
      if (PyFunction_Check(one)) {
        called = noted(PyObject_CallNoArgs(one));
        one = called.get();
      }
      take(found, input, one, true);
    }
    return found;
  }

  // The gradients in what a rule returned, if they are all there: one, a tuple of them, or a dict by name.
  bool take_apart(PyObject* result, PyObject** taken) const {
    const auto& inputs = recipe->rule.inputs;
    if (inputs.size() == 1 && is_plain_tensor(result)) {
      taken[0] = result;
      return true;
    }
    if (PyTuple_CheckExact(result) && inputs.size() > 1) {
      if (PyTuple_GET_SIZE(result) != static_cast<Py_ssize_t>(inputs.size())) return false;
      for (size_t i = 0; i < inputs.size(); ++i) taken[i] = PyTuple_GET_ITEM(result, i);
      return true;
    }
    if (!PyDict_CheckExact(result)) return false;
    Py_ssize_t used = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      taken[i] = PyDict_GetItemWithError(result, PyTuple_GET_ITEM(recipe->rule.names, i));
      if (!taken[i] && (PyErr_Occurred() || is_wanted(inputs[i]))) {
        PyErr_Clear();
        return false;
      }
      used += taken[i] != nullptr;
    }
    return used == PyDict_GET_SIZE(result);
  }

  // An error of the rule says that it is.
  PyObject* noted(PyObject* result) const {
    if (result) return result;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace) PyException_SetTraceback(error, trace);
    if (PyErr_GivenExceptionMatches(error, PyExc_Exception))
      THPObjectPtr done(PyObject_CallOneArg(recipe->rule.note, error));
    if (PyErr_Occurred()) PyErr_Clear();
    PyErr_Restore(type, error, trace);
    throw_python_error();
  }

  // The node whose backward runs in this thread, for what Python asks about it.
  struct Running {
    NativeNode* node;
    const std::vector<Tensor>* values;
    Running* outer;
    static Running*& innermost() {
      static thread_local Running* found = nullptr;
      return found;
    }
    Running(NativeNode* its_node, const std::vector<Tensor>* its_values)
        : node(its_node), values(its_values), outer(innermost()) {
      innermost() = this;
    }
    ~Running() { innermost() = outer; }
  };

  PyObject* quick(const variable_list& grads, const std::vector<Tensor>& values) {
    PyObject* args[4 * MOST + 1] = {nullptr};
    int count = 1, owned = 1;
    for (const Tensor& grad : grads) args[count++] = wrapped(grad);
    for (const Tensor& value : values) args[count++] = wrapped(value);
    owned = count;
    for (int i = 0; i < inputs; ++i)
      if (recipe->is_differentiable_input[i])
        args[count++] = is_wanted(i) ? Py_True : Py_False;
    for (size_t i = 0; i < recipe->kept.size(); ++i) args[count++] = PyTuple_GET_ITEM(kept.object, i);
    PyObject* result =
        PyObject_Vectorcall(recipe->quick, args + 1, (count - 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    for (int i = 1; i < owned; ++i) Py_DECREF(args[i]);
    return checked(result);
  }

  PyObject* general(const variable_list& grads, const std::vector<Tensor>& values) {
    THPObjectPtr its_context(context(values));
    PyObject* args[MOST + 1] = {its_context.get()};
    int count = 1;
    for (const Tensor& grad : grads) args[count++] = wrapped(grad);
    PyObject* result = PyObject_Vectorcall(recipe->general, args, count, nullptr);
    for (int i = 1; i < count; ++i) Py_DECREF(args[i]);
    return checked(result);
  }

  // A ctx, as Python makes it: (node, saved tensors, needs, kept, is traced).
  PyObject* context(const std::vector<Tensor>& values, bool is_traced = false) {
    THPObjectPtr tensors(checked(PyTuple_New(values.size())));
    for (size_t i = 0; i < values.size(); ++i) PyTuple_SET_ITEM(tensors.get(), i, wrapped(values[i]));
    THPObjectPtr needs(checked(PyTuple_New(inputs)));
    for (int i = 0; i < inputs; ++i) PyTuple_SET_ITEM(needs.get(), i, PyBool_FromLong(is_needed(i)));
    THPObjectPtr node(checked(torch::autograd::functionToPyObject(getptr()))), its_kept(kept_tuple());
    return checked(PyObject_CallFunctionObjArgs(
        recipe->context, node.get(), tensors.get(), needs.get(), its_kept.get(), is_traced ? Py_True : Py_False,
        nullptr));
  }

  // What Python returned, one entry per input of the op, as one gradient per edge.
  variable_list gradients(PyObject* result, bool is_quick) {
    bool is_single = inputs == 1 && !PyTuple_CheckExact(result);
    if (!is_single && (!PyTuple_CheckExact(result) || PyTuple_GET_SIZE(result) != inputs))
      throw std::runtime_error(recipe->name + ": the generated backward returns another number of gradients");
    variable_list found(num_outputs());
    for (int i = 0; i < inputs; ++i)
      if (edge_of[i] >= 0) take(found, i, is_single ? result : PyTuple_GET_ITEM(result, i), is_quick);
    return found;
  }

  void take(variable_list& found, int input, PyObject* gradient, bool is_looked_at) const {
    if (gradient == Py_None && !is_looked_at) return;
    THPObjectPtr mended;
    if (is_looked_at && !(is_plain_tensor(gradient) && (!recipe->is_checked || fits(gradient, edge_of[input])))) {
      if (!is_wanted(input)) return;
      THPObjectPtr index(checked(PyLong_FromLong(input)));
      mended = checked(PyObject_CallFunctionObjArgs(recipe->fit, index.get(), gradient, nullptr));
      gradient = mended.get();
    }
    if (gradient == Py_None) return;
    if (!THPVariable_Check(gradient)) throw std::runtime_error(recipe->name + ": a gradient is not a tensor");
    found[edge_of[input]] = THPVariable_Unpack(gradient);
  }

  bool fits(PyObject* gradient, int edge_number) const {
    const Tensor& tensor = THPVariable_Unpack(gradient);
    const auto& edge = next_edge(edge_number);
    if (!edge.is_valid()) return true;
    const auto& metadata = edge.function->input_metadata(edge.input_nr);
    return tensor.scalar_type() == c10::typeMetaToScalarType(metadata.options().dtype()) &&
        tensor.device() == metadata.device() && metadata.is_same_shape(tensor);
  }

  // ------------------------------------------------------------------------------------------- compiled autograd

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    auto* self = const_cast<NativeNode*>(this);
    args.collect(recipe->id);
    for (int i = 0; i < inputs; ++i) args.collect(is_needed(i));
    for (size_t i = 0; i < saved.size(); ++i) args.collect(saved[i], recipe->saved[i].is_output);
    pybind11::gil_scoped_acquire gil;
    PyObject* its_context = self->context({}, true);
    args.collect_pynode_objs(this, c10::SafePyObject(its_context, getPyInterpreter()), std::nullopt, {});
  }

  variable_list apply_with_saved(
      const variable_list& grads_in, torch::dynamo::autograd::SwapSavedVariables& swapped) override {
    for (SavedVariable& one : saved) swapped.before(one);
    std::vector<Tensor> values;
    for (SavedVariable& one : saved) values.push_back(one.unpack(getptr()));
    for (SavedVariable& one : saved) swapped.after(one);
    pybind11::gil_scoped_acquire gil;
    THPObjectPtr tensors(checked(PyTuple_New(values.size()))), grads(checked(PyTuple_New(grads_in.size())));
    for (size_t i = 0; i < values.size(); ++i) PyTuple_SET_ITEM(tensors.get(), i, wrapped(values[i]));
    for (size_t i = 0; i < grads_in.size(); ++i) PyTuple_SET_ITEM(grads.get(), i, wrapped(grads_in[i]));
    THPObjectPtr needs(checked(PyTuple_New(inputs)));
    for (int i = 0; i < inputs; ++i) PyTuple_SET_ITEM(needs.get(), i, PyBool_FromLong(is_needed(i)));
    THPObjectPtr index(checked(PyLong_FromSize_t(std::get<0>(swapped.retrieve_pynode_objs(this)))));
    THPObjectPtr result(checked(PyObject_CallFunctionObjArgs(
        recipe->trace, swapped.get_py_compiler(), index.get(), grads.get(), tensors.get(), needs.get(), nullptr)));
    return gradients(result.get(), false);
  }
};
