// A node of the autograd graph whose backward is a Python function: what `Function.apply` would record, without `ctx`.
//
// The common backward is one call of a generated function (`quick`), which takes incoming gradients, which gradients are
// needed, what was saved and what was kept. Where it returns NotImplemented, the backward of the op's Function runs on a
// `context` with the attributes of a ctx, made for it; also under compiled autograd, and for attributes of `grad_fn`.
#pragma once
#include "context.h"
#include "edges.h"
#include "quiet.h"
#include "recipe.h"
#include "versions.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <array>
#include <atomic>

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

using Tensors = c10::SmallVector<Tensor, 4>;

constexpr int MOST = 63;  // arguments and outputs of an op, together: they are bits of a word

struct NativeNode final : Node {
  std::shared_ptr<const Recipe> recipe;
  int inputs = 0;
  bool is_complete = false;
  std::atomic<bool> is_released = false;
  static constexpr int FEW = 8;
  struct {
    int16_t edges[FEW] = {-1, -1, -1, -1, -1, -1, -1, -1}, counts[FEW] = {}, widths[FEW] = {1, 1, 1, 1, 1, 1, 1, 1};
  } few;  // room for the next three, where there are few: no loop has to fill it
  std::unique_ptr<int16_t[]> many;
  int16_t* edge_of;   // by input: its edge, or the first of a list; -1 for none
  int16_t* count_of;  // by input: how many tensors it holds; -1 for None in place of a list
  int16_t* width_of;  // by saved value: how many tensors it holds; -1 for None in place of a list
  c10::SmallVector<SavedVariable, 4> saved;
  Held kept;  // a tuple, or nothing
  Held rule_context, packed;  // the ctx, or what Python made of one with tensors and objects among its attributes
  bool packed_materializes = true;
  c10::SmallVector<bool, 8> is_saved_output;  // of a rule with a ctx, by saved tensor

  explicit NativeNode(std::shared_ptr<const Recipe> its) : recipe(std::move(its)) {
    size_t inputs_of_op = recipe->signature.inputs, rows = recipe->saved.size();
    if (inputs_of_op <= FEW && rows <= FEW) {
      edge_of = few.edges, count_of = few.counts, width_of = few.widths;
      return;
    }
    many.reset(new int16_t[2 * inputs_of_op + rows]);
    edge_of = many.get();
    count_of = edge_of + inputs_of_op;
    width_of = count_of + inputs_of_op;
    std::fill(edge_of, count_of, int16_t(-1));
    std::fill(count_of, width_of, int16_t(0));
    std::fill(width_of, width_of + rows, int16_t(1));
  }

  RuleContext* own_context() const { return reinterpret_cast<RuleContext*>(rule_context.object); }

  bool materializes() const { return rule_context.object ? own_context()->materializes : packed_materializes; }

  PyObject* kept_tuple() const {  // a new reference
    if (recipe->drop_in.function)
      return checked(Py_BuildValue(
          "OOnO", rule_context.object && own_context()->attributes ? own_context()->attributes : Py_None,
          packed.object ? packed.object : Py_None, static_cast<Py_ssize_t>(saved.size()),
          materializes() ? Py_True : Py_False));
    return kept.object ? Py_NewRef(kept.object) : checked(PyTuple_New(0));
  }

  std::string name() const override { return recipe->name; }

  ~NativeNode() override { give_up(); }

#ifdef CUSTOM_AUTOGRAD_RELEASES_NODES
  // The ctx refers to the node weakly, and what is referred to is not destroyed before that: so the node gives it up.
  void release_resources() override {
    give_up();
    Node::release_resources();
  }
#endif

  // NOTE [a node gives up all it holds at once]
  // PyTorch destroys tensors without the GIL, and nodes with them. Whoever drops the last reference of C++ to a tensor that
  // has an object in Python asks for the GIL: the node for each tensor that it saved, and for the ctx, and the nodes that
  // accumulate the gradients of its leaves for theirs. Each time costs 0.1 us: so it is taken once, for all of them.
  void give_up() {
    bool holds_tensors = !is_released && !saved.empty();
    if (!(holds_tensors || kept.object || rule_context.object || packed.object) || !Py_IsInitialized()) return;
    pybind11::gil_scoped_acquire gil;
    is_released = true;
    saved.clear();
    for (torch::autograd::Edge& edge : next_edges_)
      if (edge.function && is_leaf(*edge.function)) edge.function.reset();  // others go without recursion, in ~Node
    for (Held* one : {&kept, &rule_context, &packed}) Py_CLEAR(one->object);
  }

  // What is saved is guarded by the GIL and not by a lock: hooks that unpack it may ask for it themselves.
  void release_variables() override {
    if (is_released || !Py_IsInitialized()) return;
    pybind11::gil_scoped_acquire gil;
    is_released = true;
    for (SavedVariable& one : saved) one.reset_data();
  }

  // With the GIL held.
  Tensors unpacked() {
    if (!is_complete) throw std::runtime_error(recipe->name + ": the call that recorded this node did not end");
    if (is_released && !saved.empty()) throw std::runtime_error(torch::autograd::ERR_BACKWARD_TWICE);
    Tensors values;
    values.reserve(saved.size());
    for (SavedVariable& one : saved) values.push_back(one.unpack(getptr()));
    return values;
  }

  // Whether a gradient is needed, by input and, for a list, by element; in a backward of some inputs only, for those.
  bool is_needed(int input, int element = 0) const {
    return edge_of[input] >= 0 && element < count_of[input] && task_should_compute_output(edge_of[input] + element);
  }

  bool is_any_needed(int input) const {
    for (int element = 0; element < count_of[input]; ++element)
      if (is_needed(input, element)) return true;
    return false;
  }

  // Which inputs lead to one that requires a gradient, as on ctx: lists spread out, behind an entry for their lengths.
  PyObject* needs() const {
    Reference found(checked(PyList_New(0)));
    auto add = [&](bool need) {
      if (PyList_Append(found.get(), need ? Py_True : Py_False) < 0) throw_python_error();
    };
    if (recipe->signature.has_lists()) add(false);
    for (int i = 0; i < inputs; ++i) {
      int count = recipe->signature.is_list(i) ? count_of[i] : 1;
      for (int element = 0; element < count; ++element)
        add(edge_of[i] >= 0 && element < count_of[i] && next_edge(edge_of[i] + element).is_valid());
    }
    return checked(PyList_AsTuple(found.get()));
  }

  variable_list apply(variable_list&& grads) override {
    pybind11::gil_scoped_acquire gil;
    if (recipe->drop_in.function) {
      if (materializes()) fill(grads);
      if (!packed.object) return by_context(grads);
    }
    Tensors values = unpacked();
    Running running(this, &values);
    const Backward& backward = recipe->its_backward();
    if (backward.rule.function && is_plain(backward.rule, grads, values)) return by_rule(backward.rule, grads, values);
    bool has_quick = backward.quick != Py_None && !is_lazy(grads, values);
    Reference result(!has_quick ? Py_NewRef(Py_NotImplemented) : quick(backward.quick, grads, values));
    bool is_quick = result.get() != Py_NotImplemented;
    if (!is_quick) result = general(grads, values);
    return gradients(result.get(), is_quick);
  }

  static bool has_lazy_bit(const Tensor& tensor) { return tensor.defined() && (tensor.is_neg() || tensor.is_conj()); }

  // Zeros for gradients that do not arrive.
  void fill(variable_list& grads) const {
    for (size_t i = 0; i < grads.size(); ++i)
      if (!grads[i].defined()) grads[i] = input_metadata(i).zeros_like();
  }

  // Whether a tensor is to be resolved first: incoming gradients, and saved outputs.
  bool is_lazy(const variable_list& grads, const Tensors& values) const {
    if (std::any_of(grads.begin(), grads.end(), has_lazy_bit)) return true;
    size_t start = 0;
    for (size_t i = 0; i < recipe->saved.size(); start += std::max<int>(width_of[i++], 0))
      if (recipe->saved[i].is_output && has_lazy_bit(values[start])) return true;
    return false;
  }

  // Whether the one rule can be called as it is.
  bool is_plain(const Rule& rule, const variable_list& grads, const Tensors& values) const {
    if (rule.is_once_differentiable && at::GradMode::is_enabled()) return false;
    bool is_any_defined = false;
    for (const RuleArgument& one : rule.arguments) {
      if (one.source != RuleArgument::gradient) continue;
      if (one.is_filled && !grads[one.index].defined()) return false;
      is_any_defined |= grads[one.index].defined();
    }
    for (int64_t index : rule.unnamed)
      if (grads[index].defined()) return false;
    for (int64_t input : rule.uncovered)
      if (is_any_needed(input)) return false;
    return is_any_defined && !is_lazy(grads, values);
  }

  // Whether a rule runs below autograd, where nothing is recorded and nobody hears of what it does: see
  // NOTE [arithmetic runs below autograd].
  static bool runs_below_autograd(const Rule& rule, PyObject* const* begin, PyObject* const* end) {
    return rule.arithmetic.is_known(rule.function) && !at::GradMode::is_enabled() && !is_watched() &&
        std::all_of(begin, end, [](PyObject* one) { return is_simple(one) || is_simple_number(one); });
  }

  variable_list by_rule(const Rule& rule, const variable_list& grads, const Tensors& values) {
    PyObject* args[2 * MOST + 1];
    args[0] = args[1] = nullptr;
    int count = 1;
    for (const RuleArgument& one : rule.arguments) {
      if (one.source == RuleArgument::kept)
        args[count++] = Py_NewRef(PyTuple_GET_ITEM(kept.object, one.index));
      else if (one.source == RuleArgument::gradient)
        args[count++] = wrapped(grads[one.index]);
      else
        args[count++] = saved_value(one.index, values);
    }
    size_t positional = rule.keywords ? 0 : count - 1;
    std::optional<BelowAutograd> below;
    if (runs_below_autograd(rule, args + 1, args + count)) below.emplace();
    Reference result(
        PyObject_Vectorcall(rule.function, args + 1, positional | PY_VECTORCALL_ARGUMENTS_OFFSET, rule.keywords));
    below.reset();
    for (int i = 1; i < count; ++i) Py_DECREF(args[i]);
    noted_of_rule(result.get());
    PyObject* taken[MOST];  // borrowed
    if (!take_apart(rule, result, taken)) {
      result = checked(recipe->call("read", result.get()));  // a tuple, or an error that says what is wrong
      for (size_t i = 0; i < rule.inputs.size(); ++i) taken[i] = PyTuple_GET_ITEM(result.get(), i);
    }
    variable_list found(num_outputs());
    for (size_t i = 0; i < rule.inputs.size(); ++i) {
      int64_t input = rule.inputs[i];
      PyObject* one = taken[i];
      if (!is_any_needed(input)) continue;
      Reference called;
      if (PyFunction_Check(one)) {
        called = noted_of_rule(PyObject_CallNoArgs(one));
        if (called.get() != Py_None) one = called.get();  // else the reader in Python calls it again, and raises
      }
      if (recipe->signature.is_list(input))
        take_list(found, input, one);
      else
        take(found, input, 0, one, true);
    }
    return found;
  }

  static bool is_needed_of(Node& node, int input) { return static_cast<NativeNode&>(node).is_needed(input); }

  static PyObject* unpack_for(Node& node) {
    auto& self = static_cast<NativeNode&>(node);
    if (self.is_released) throw std::runtime_error(torch::autograd::ERR_BACKWARD_TWICE);
    auto values = self.unpacked();
    return wrapped_tuple(values, values.size());
  }

  // A rule that sees a ctx.
  variable_list by_context(variable_list& grads) {
    for (Tensor& grad : grads)
      if (has_lazy_bit(grad)) grad = grad.resolve_conj().resolve_neg();
    Reference its_context(Py_NewRef(rule_context.object));
    PyObject* args[MOST + 2];
    args[0] = nullptr;
    args[1] = its_context.get();
    int count = 2;
    for (const Tensor& grad : grads) args[count++] = wrapped(grad);
    Reference result(PyObject_Vectorcall(
        recipe->drop_in.function, args + 1, (count - 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
    for (int i = 2; i < count; ++i) Py_DECREF(args[i]);
    noted(result.get(), recipe->drop_in.note);
    if (!is_one_each(result.get())) {
      Reference its_needs(checked(PyObject_GetAttrString(its_context.get(), "needs_input_grad")));
      result = checked(PyObject_CallFunctionObjArgs(recipe->drop_in.read, result.get(), its_needs.get(), nullptr));
    }
    return gradients(result.get(), false);
  }

  // Whether there is a tensor or None for each input, and None for what is not differentiable.
  bool is_one_each(PyObject* result) const {
    if (!PyTuple_CheckExact(result) || PyTuple_GET_SIZE(result) != inputs) return false;
    for (int i = 0; i < inputs; ++i) {
      PyObject* one = PyTuple_GET_ITEM(result, i);
      if (one != Py_None && !(recipe->signature.is_differentiable_input(i) && is_plain_tensor(one))) return false;
    }
    return true;
  }

  // A saved tensor, or a list of those.
  PyObject* saved_value(int64_t row, const Tensors& values) const {
    size_t start = 0;
    for (int64_t i = 0; i < row; ++i) start += std::max<int>(width_of[i], 0);
    const Saved& its = recipe->saved[row];
    if (its.is_output || !recipe->signature.is_list(its.index)) return wrapped(values[start]);
    if (width_of[row] < 0) return Py_NewRef(Py_None);
    PyObject* list = checked(PyList_New(width_of[row]));
    for (int i = 0; i < width_of[row]; ++i) PyList_SET_ITEM(list, i, wrapped(values[start + i]));
    return list;
  }

  // The gradients in what a rule returned, if they are all there: one, a tuple of them, or a dict by name.
  // They are borrowed from the result, which becomes a copy of a dict: a callable among them may change that.
  bool take_apart(const Rule& rule, Reference& result, PyObject** taken) const {
    const auto& inputs = rule.inputs;
    if (inputs.size() == 1 && is_plain_tensor(result.get())) {
      taken[0] = result.get();
      return true;
    }
    if (PyTuple_CheckExact(result.get()) && inputs.size() > 1) {
      if (PyTuple_GET_SIZE(result.get()) != static_cast<Py_ssize_t>(inputs.size())) return false;
      for (size_t i = 0; i < inputs.size(); ++i) taken[i] = PyTuple_GET_ITEM(result.get(), i);
      return true;
    }
    if (!PyDict_CheckExact(result.get())) return false;
    Reference copy(checked(PyDict_Copy(result.get())));
    Py_ssize_t used = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      taken[i] = PyDict_GetItemWithError(copy.get(), PyTuple_GET_ITEM(rule.names, i));
      if (!taken[i] && (PyErr_Occurred() || is_any_needed(inputs[i]))) {
        PyErr_Clear();
        return false;
      }
      used += taken[i] != nullptr;
    }
    if (used != PyDict_GET_SIZE(copy.get())) return false;
    result = std::move(copy);
    return true;
  }

  // An error of the one rule says that it is.
  PyObject* noted_of_rule(PyObject* result) const {
    if (result) return result;
    Raised raised;
    Reference note(PyObject_GetAttrString(recipe->source.object, "note"));
    if (!note) PyErr_Clear();
    raised.restore();
    return noted(nullptr, note ? note.get() : Py_None);
  }

  // An error of a rule says that it is.
  static PyObject* noted(PyObject* result, PyObject* note) {
    if (result) return result;
    Raised raised;
    if (PyErr_GivenExceptionMatches(raised.error.get(), PyExc_Exception))
      Reference done(PyObject_CallOneArg(note, raised.error.get()));
    if (PyErr_Occurred()) PyErr_Clear();
    raised.restore();
    throw_python_error();
  }

  // The node whose backward runs in this thread, for what Python asks about it.
  struct Running {
    NativeNode* node;
    const Tensors* values;
    Running* outer;
    static Running*& innermost() {
      static thread_local Running* found = nullptr;
      return found;
    }
    Running(NativeNode* its_node, const Tensors* its_values)
        : node(its_node), values(its_values), outer(innermost()) {
      innermost() = this;
    }
    ~Running() { innermost() = outer; }
  };

  PyObject* quick(PyObject* function, const variable_list& grads, const Tensors& values) {
    PyObject* args[4 * MOST + 1];
    args[0] = nullptr;
    int count = 1, owned = 1;
    for (const Tensor& grad : grads) args[count++] = wrapped(grad);
    for (const Tensor& value : values) args[count++] = wrapped(value);
    owned = count;
    for (int i = 0; i < inputs; ++i)
      if (recipe->signature.is_differentiable_input(i)) args[count++] = is_needed(i) ? Py_True : Py_False;
    for (size_t i = 0; i < recipe->kept.size(); ++i) args[count++] = PyTuple_GET_ITEM(kept.object, i);
    PyObject* result =
        PyObject_Vectorcall(function, args + 1, (count - 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    for (int i = 1; i < owned; ++i) Py_DECREF(args[i]);
    return checked(result);
  }

  PyObject* general(const variable_list& grads, const Tensors& values) {
    Reference its_context(context(values));
    PyObject* args[MOST + 1];
    args[0] = its_context.get();
    int count = 1;
    for (const Tensor& grad : grads) args[count++] = wrapped(grad);
    Reference method(checked(PyObject_GetAttrString(recipe->source.object, "general")));
    PyObject* result = PyObject_Vectorcall(method.get(), args, count, nullptr);
    for (int i = 1; i < count; ++i) Py_DECREF(args[i]);
    return checked(result);
  }

  // A ctx, as Python makes it: (node, saved tensors, needs, kept, is traced).
  PyObject* context(const Tensors& values, bool is_traced = false) {
    Reference tensors(wrapped_tuple(values, values.size())), its_needs(needs());
    Reference lengths(checked(recipe->signature.has_lists() ? lengths_of_lists() : Py_NewRef(Py_None)));
    Reference node(checked(torch::autograd::functionToPyObject(getptr()))), its_kept(kept_tuple());
    return checked(recipe->call(
        "context", node.get(), tensors.get(), its_needs.get(), lengths.get(), its_kept.get(), is_traced ? Py_True : Py_False));
  }

  // (by input, by saved value): how many tensors each holds
  PyObject* lengths_of_lists() const {
    Reference its_inputs(checked(PyTuple_New(inputs))), its_saved(checked(PyTuple_New(recipe->saved.size())));
    for (int i = 0; i < inputs; ++i) PyTuple_SET_ITEM(its_inputs.get(), i, PyLong_FromLong(count_of[i]));
    for (size_t i = 0; i < recipe->saved.size(); ++i) PyTuple_SET_ITEM(its_saved.get(), i, PyLong_FromLong(width_of[i]));
    return PyTuple_Pack(2, its_inputs.get(), its_saved.get());
  }

  // What Python returned, in the order of what is needed, as one gradient per edge.
  variable_list gradients(PyObject* result, bool is_quick) {
    bool is_single = inputs == 1 && !PyTuple_CheckExact(result);
    int expected = recipe->signature.has_lists();
    for (int i = 0; i < inputs; ++i) expected += recipe->signature.is_list(i) ? std::max<int>(count_of[i], 0) : 1;
    if (!is_single && (!PyTuple_CheckExact(result) || PyTuple_GET_SIZE(result) != expected))
      throw std::runtime_error(recipe->name + ": the generated backward returns another number of gradients");
    variable_list found(num_outputs());
    int position = recipe->signature.has_lists();
    for (int i = 0; i < inputs; ++i) {
      int count = recipe->signature.is_list(i) ? std::max<int>(count_of[i], 0) : 1;
      for (int element = 0; element < count; ++element, ++position)
        if (edge_of[i] >= 0) take(found, i, element, is_single ? result : PyTuple_GET_ITEM(result, position), is_quick);
    }
    return found;
  }

  // The gradient of one tensor. Where it is looked at and does not fit, Python mends it, or says what is wrong.
  void take(variable_list& found, int input, int element, PyObject* gradient, bool is_looked_at) const {
    if (gradient == Py_None) return;
    Reference mended;
    if (is_looked_at && !is_fit(gradient, edge_of[input] + element)) {
      if (!is_needed(input, element)) return;
      mended = mend(input, gradient);
      gradient = mended.get();
    }
    keep(found, edge_of[input] + element, gradient);
  }

  void take_list(variable_list& found, int input, PyObject* gradients) const {
    if (gradients == Py_None) return;
    Reference mended;
    if (!is_fit_list(gradients, input)) {
      mended = mend(input, gradients);
      gradients = mended.get();
      if (gradients == Py_None) return;
      if (!PyList_CheckExact(gradients) || PyList_GET_SIZE(gradients) != count_of[input])
        throw std::runtime_error(recipe->name + ": gradients of a list are another number than its tensors");
    }
    for (int element = 0; element < count_of[input]; ++element)
      if (is_needed(input, element)) keep(found, edge_of[input] + element, PyList_GET_ITEM(gradients, element));
  }

  PyObject* mend(int input, PyObject* gradient) const {
    Reference index(checked(PyLong_FromLong(input)));
    return checked(recipe->call("fit", index.get(), gradient));
  }

  void keep(variable_list& found, int edge, PyObject* gradient) const {
    if (gradient == Py_None) return;
    if (!THPVariable_Check(gradient)) throw std::runtime_error(recipe->name + ": a gradient is not a tensor");
    found[edge] = THPVariable_Unpack(gradient);
  }

  bool is_fit(PyObject* gradient, int edge) const {
    return is_plain_tensor(gradient) && (!recipe->is_checked || fits(gradient, edge));
  }

  bool is_fit_list(PyObject* gradients, int input) const {
    if (!PyList_CheckExact(gradients) || PyList_GET_SIZE(gradients) != count_of[input]) return false;
    for (int element = 0; element < count_of[input]; ++element)
      if (!is_needed(input, element) || !is_fit(PyList_GET_ITEM(gradients, element), edge_of[input] + element)) return false;
    return true;
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
    for (int i = 0; i < inputs; ++i) {
      args.collect(static_cast<int64_t>(count_of[i]));
      for (int element = 0; element < count_of[i]; ++element) args.collect(is_needed(i, element));
    }
    size_t position = 0;
    for (size_t i = 0; i < recipe->saved.size(); ++i)
      for (int element = 0; element < width_of[i]; ++element) args.collect(saved[position++], recipe->saved[i].is_output);
    for (size_t i = 0; i < is_saved_output.size(); ++i) args.collect(saved[i], bool(is_saved_output[i]));
    pybind11::gil_scoped_acquire gil;
    PyObject* its_context = self->context({}, true);
    args.collect_pynode_objs(this, c10::SafePyObject(its_context, getPyInterpreter()), std::nullopt, {});
  }

  variable_list apply_with_saved(
      const variable_list& grads_in, torch::dynamo::autograd::SwapSavedVariables& swapped) override {
    for (SavedVariable& one : saved) swapped.before(one);
    Tensors values;
    for (SavedVariable& one : saved) values.push_back(one.unpack(getptr()));
    for (SavedVariable& one : saved) swapped.after(one);
    pybind11::gil_scoped_acquire gil;
    Reference tensors(wrapped_tuple(values, values.size())), grads(wrapped_tuple(grads_in, grads_in.size()));
    Reference its_needs(needs());
    Reference index(checked(PyLong_FromSize_t(std::get<0>(swapped.retrieve_pynode_objs(this)))));
    Reference result(checked(
        recipe->call("trace", swapped.get_py_compiler(), index.get(), grads.get(), tensors.get(), its_needs.get())));
    return gradients(result.get(), false);
  }
};
