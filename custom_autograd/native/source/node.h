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
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <mutex>

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

constexpr int MOST = 16;  // arguments, results and saved values of an op, each; Python leaves others to itself

// What is saved: an input or an output, always or for the gradients of some inputs.
struct Saved {
  bool is_output;
  int64_t index;
  uint64_t users;  // inputs, as bits; all ones: always
  std::string name;
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
  }

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(facts.object);
    return 0;
  }
};

struct NativeNode final : Node {
  std::shared_ptr<const Recipe> recipe;
  std::vector<int8_t> edge_of;  // by input: which edge, or -1
  std::vector<SavedVariable> saved;
  Held kept;  // a tuple

  explicit NativeNode(std::shared_ptr<const Recipe> its) : recipe(std::move(its)) {}

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

  variable_list apply(variable_list&& grads) override {
    std::vector<Tensor> values = unpacked();
    pybind11::gil_scoped_acquire gil;
    Running running(this, &values);
    THPObjectPtr result(quick(grads, values));
    bool is_quick = result.get() != Py_NotImplemented;
    if (!is_quick) result = general(grads, values);
    return gradients(result.get(), is_quick);
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
    PyObject* args[4 * MOST + 1];
    int count = 1, owned = 1;
    for (const Tensor& grad : grads) args[count++] = wrapped(grad);
    for (const Tensor& value : values) args[count++] = wrapped(value);
    owned = count;
    for (size_t i = 0; i < edge_of.size(); ++i)
      if (recipe->is_differentiable_input[i])
        args[count++] = is_needed(i) && task_should_compute_output(edge_of[i]) ? Py_True : Py_False;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kept.object); ++i) args[count++] = PyTuple_GET_ITEM(kept.object, i);
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
    THPObjectPtr needs(checked(PyTuple_New(edge_of.size())));
    for (size_t i = 0; i < edge_of.size(); ++i) PyTuple_SET_ITEM(needs.get(), i, PyBool_FromLong(is_needed(i)));
    THPObjectPtr node(checked(torch::autograd::functionToPyObject(getptr())));
    return checked(PyObject_CallFunctionObjArgs(
        recipe->context, node.get(), tensors.get(), needs.get(), kept.object, is_traced ? Py_True : Py_False,
        nullptr));
  }

  // What Python returned, one entry per input of the op, as one gradient per edge.
  variable_list gradients(PyObject* result, bool is_quick) {
    bool is_single = edge_of.size() == 1 && !PyTuple_CheckExact(result);
    if (!is_single && (!PyTuple_CheckExact(result) || PyTuple_GET_SIZE(result) != static_cast<Py_ssize_t>(edge_of.size())))
      throw std::runtime_error(recipe->name + ": the generated backward returns another number of gradients");
    variable_list found(num_outputs());
    for (size_t i = 0; i < edge_of.size(); ++i) {
      PyObject* one = is_single ? result : PyTuple_GET_ITEM(result, i);
      if (edge_of[i] < 0 || one == Py_None) continue;
      THPObjectPtr mended;
      if (is_quick && recipe->is_checked && !fits(one, edge_of[i])) {
        THPObjectPtr index(checked(PyLong_FromSize_t(i)));
        mended = checked(PyObject_CallFunctionObjArgs(recipe->fit, index.get(), one, nullptr));
        one = mended.get();
        if (one == Py_None) continue;
      }
      if (!THPVariable_Check(one)) throw std::runtime_error(recipe->name + ": a gradient is not a tensor");
      found[edge_of[i]] = THPVariable_Unpack(one);
    }
    return found;
  }

  bool fits(PyObject* gradient, int edge_number) const {
    if (!is_plain_tensor(gradient)) return false;
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
    for (size_t i = 0; i < edge_of.size(); ++i) args.collect(is_needed(i));
    for (size_t i = 0; i < saved.size(); ++i) args.collect(saved[i], recipe->saved[i].is_output);
    pybind11::gil_scoped_acquire gil;
    PyObject* its_context = self->context({}, true);
    args.collect_pynode_objs(this, c10::SafePyObject(its_context, getPyInterpreter()), std::nullopt, {});
  }

  variable_list apply_with_saved(
      const variable_list& inputs, torch::dynamo::autograd::SwapSavedVariables& swapped) override {
    for (SavedVariable& one : saved) swapped.before(one);
    std::vector<Tensor> values;
    for (SavedVariable& one : saved) values.push_back(one.unpack(getptr()));
    for (SavedVariable& one : saved) swapped.after(one);
    pybind11::gil_scoped_acquire gil;
    THPObjectPtr tensors(checked(PyTuple_New(values.size()))), grads(checked(PyTuple_New(inputs.size())));
    for (size_t i = 0; i < values.size(); ++i) PyTuple_SET_ITEM(tensors.get(), i, wrapped(values[i]));
    for (size_t i = 0; i < inputs.size(); ++i) PyTuple_SET_ITEM(grads.get(), i, wrapped(inputs[i]));
    THPObjectPtr needs(checked(PyTuple_New(edge_of.size())));
    for (size_t i = 0; i < edge_of.size(); ++i) PyTuple_SET_ITEM(needs.get(), i, PyBool_FromLong(is_needed(i)));
    THPObjectPtr index(checked(PyLong_FromSize_t(std::get<0>(swapped.retrieve_pynode_objs(this)))));
    THPObjectPtr result(checked(PyObject_CallFunctionObjArgs(
        recipe->trace, swapped.get_py_compiler(), index.get(), grads.get(), tensors.get(), needs.get(), nullptr)));
    return gradients(result.get(), false);
  }
};
