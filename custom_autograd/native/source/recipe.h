// What all nodes of an op have in common: what they save, and the rules that they run.
#pragma once
#include "arithmetic.h"
#include "python.h"

#include <torch/csrc/utils/python_numbers.h>

#include <memory>
#include <optional>

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
  PyObject *function = nullptr, *keywords = nullptr, *names = nullptr;  // held by the facts about the backward
  std::vector<RuleArgument> arguments;
  std::vector<int64_t> inputs;     // whose gradients it returns, in this order
  std::vector<int64_t> unnamed;    // outputs whose gradients it does not take
  std::vector<int64_t> uncovered;  // inputs whose gradients the reference computes
  bool is_once_differentiable = false;
  mutable Arithmetic arithmetic;
};

// The rules of `register_autograd`, which see a ctx. All held by the recipe's object in Python.
struct DropIn {
  PyObject *function = nullptr, *setup = nullptr, *read = nullptr, *note = nullptr, *pack = nullptr, *check_saved = nullptr,
           *forbid_following = nullptr;
  std::vector<PyObject*> simple;  // types of attributes that can hold no tensor

  // Whether an attribute of ctx can hold no tensor, and can be kept where Python's collector does not see it.
  bool is_simple(PyObject* value, int depth = 0) const {
    for (PyObject* type : simple)
      if (reinterpret_cast<PyObject*>(Py_TYPE(value)) == type) return true;
    if (!PyTuple_CheckExact(value) || depth == 4) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i)
      if (!is_simple(PyTuple_GET_ITEM(value, i), depth + 1)) return false;
    return true;
  }

  bool are_simple(PyObject* attributes) const {
    PyObject *name, *value;
    Py_ssize_t position = 0;
    while (attributes && PyDict_Next(attributes, &position, &name, &value))
      if (!is_simple(value)) return false;
    return true;
  }
};

// What the backward of an op with rules bound by name needs. Made when it first runs.
struct Backward {
  Rule rule;
  PyObject* quick;
  Held facts;  // what Python gave; the others are attributes of it, held by it

  explicit Backward(PyObject* given) : facts(given) {
    PyObject* its_rule;
    if (!PyArg_ParseTuple(given, "OO", &quick, &its_rule)) throw_python_error();
    if (its_rule != Py_None) read_rule(its_rule);
  }

  void read_rule(PyObject* given) {
    PyObject *rows, *inputs, *unnamed, *uncovered;
    int is_once_differentiable;
    if (!PyArg_ParseTuple(given, "OOOOOOOp", &rule.function, &rule.keywords, &rows, &inputs, &rule.names, &unnamed,
                          &uncovered, &is_once_differentiable))
      throw_python_error();
    if (rule.keywords == Py_None) rule.keywords = nullptr;
    for (PyObject* row : items(rows)) {
      const char* source;
      long long index;
      int is_filled;
      if (!PyArg_ParseTuple(row, "sLp", &source, &index, &is_filled)) throw_python_error();
      auto its_source = *source == 'g' ? RuleArgument::gradient : *source == 's' ? RuleArgument::saved : RuleArgument::kept;
      rule.arguments.push_back({its_source, index, is_filled != 0});
    }
    rule.inputs = integers(inputs);
    rule.unnamed = integers(unnamed);
    rule.uncovered = integers(uncovered);
    rule.is_once_differentiable = is_once_differentiable;
  }
};

// Which inputs and outputs of an op are lists, or may carry a gradient, as bits.
struct Signature {
  int inputs;
  uint64_t lists, differentiable_inputs, differentiable_outputs;

  bool has_lists() const { return lists != 0; }
  bool is_list(int64_t input) const { return lists >> input & 1; }
  bool is_differentiable_input(int64_t input) const { return differentiable_inputs >> input & 1; }
  bool is_differentiable_output(int64_t output) const { return differentiable_outputs >> output & 1; }
};

// What all nodes of an op have in common, until a rule of it changes.
struct Recipe {
  Signature signature;
  uint64_t id;
  std::string name;
  bool is_checked;
  std::vector<Saved> saved;
  std::vector<int64_t> kept;  // inputs that are no tensors
  DropIn drop_in;
  Held source;  // the object in Python: it holds what the others refer to, and is called for the rest
  mutable std::unique_ptr<const Backward> known_backward;

  Recipe(PyObject* given, Signature its) : signature(its), source(given) {
    Held facts = attribute(given, "facts");
    PyObject *its_name, *rows, *its_kept, *its_drop_in;
    unsigned long long its_id;
    int its_check;
    if (!PyArg_ParseTuple(facts.object, "KUpOOO", &its_id, &its_name, &its_check, &rows, &its_kept, &its_drop_in))
      throw_python_error();
    id = its_id;
    name = THPUtils_unpackString(its_name);
    is_checked = its_check;
    for (PyObject* row : items(rows)) {
      int is_output;
      long long index;
      unsigned long long users;
      const char* its_name;
      if (!PyArg_ParseTuple(row, "pLKs", &is_output, &index, &users, &its_name)) throw_python_error();
      saved.push_back({is_output != 0, index, users, its_name});
    }
    kept = integers(its_kept);
    if (its_drop_in != Py_None) read_drop_in(its_drop_in);
  }

  void read_drop_in(PyObject* given) {
    drop_in.function = attribute(given, "function").object;
    drop_in.setup = attribute(given, "setup").object;
    drop_in.read = attribute(given, "read").object;
    drop_in.note = attribute(given, "note").object;
    drop_in.pack = attribute(given, "pack").object;
    drop_in.forbid_following = attribute(given, "forbid_following").object;
    drop_in.check_saved = attribute(given, "check_saved").object;
    drop_in.simple = items(attribute(given, "simple").object);
  }

  // With the GIL held. Python runs meanwhile, and other threads may ask as well: the first answer stays.
  const Backward& its_backward() const {
    if (!known_backward) {
      Reference given(checked(call("backward")));
      auto made = std::make_unique<Backward>(given.get());
      if (!known_backward) known_backward = std::move(made);
    }
    return *known_backward;
  }

  // Calls a method of the object in Python: a new reference, or null.
  template <class... Objects>
  PyObject* call(const char* method, Objects... objects) const {
    Reference name(PyUnicode_InternFromString(method));
    return name ? PyObject_CallMethodObjArgs(source.object, name.get(), objects..., nullptr) : nullptr;
  }

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(source.object);
    if (known_backward) Py_VISIT(known_backward->facts.object);
    return 0;
  }
};
