// Whether a kernel or a rule does nothing but arithmetic.
//
// NOTE [arithmetic runs below autograd]
// Operations of a kernel go through the kernels of autograd, which only find out that nothing is to be recorded: a tenth of
// their time. Python's operators +, - and * are the same without those: one operation each, whose kernel for autograd calls
// the next one with the keys excluded that are excluded here. So do kernels and rules run whose code has nothing else. Other
// operations differ there: what is a new tensor can be a view (torch.stack), modes see torch.matmul as one operation, detach_
// has no effect, and torch.autograd finds no graph.
#pragma once
#include "python.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <utility>

// Leaves out the kernels of autograd while it lives.
class BelowAutograd {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autograd_dispatch_keyset_with_ADInplaceOrView};
};

// Whether the kernels of autograd for an operation of arithmetic are PyTorch's own, which may be left out.
inline bool has_own_autograd(const char* name, const char* overload) {
  auto op = c10::Dispatcher::singleton().findOp({name, overload});
  if (!op || !op->hasComputedKernelForDispatchKey(c10::DispatchKey::AutogradCPU)) return false;
  for (auto key : c10::getRuntimeDispatchKeySet(c10::DispatchKey::Autograd))  // a backend may have its own
    if (c10::toFunctionalityKey(key) == c10::DispatchKey::AutogradFunctionality && op->hasKernelForDispatchKey(key)) return false;
  return op->getComputedKernelForDispatchKey(c10::DispatchKey::AutogradCPU).debug().find("VariableType") != std::string::npos;
}

inline bool has_own_arithmetic() {
  static constexpr std::array<std::array<const char*, 2>, 5> names = {
      {{"aten::add", "Tensor"}, {"aten::sub", "Tensor"}, {"aten::mul", "Tensor"}, {"aten::neg", ""}, {"aten::rsub", "Scalar"}}};
  return std::all_of(names.begin(), names.end(), [](const auto& one) { return has_own_autograd(one[0], one[1]); });
}

inline PyObject* reader_of_code = nullptr;  // says whether a function is arithmetic: execution/kernel_call.py

// read_code_by(reader): sets it.
inline PyObject* read_code_by(PyObject*, PyObject* reader) {
  PyObject* before = std::exchange(reader_of_code, Py_NewRef(reader));
  Py_XDECREF(before);
  Py_RETURN_NONE;
}

// What is known of a function's code. It is read before the second run, since the first has enough to do, and again after the
// function was given other code, as notebooks do that load changed modules.
class Arithmetic {
  Held code;
  bool has_run = false, answer = false;

 public:
  bool is_known(PyObject* function) {
    PyObject* its = PyFunction_Check(function) ? PyFunction_GET_CODE(function) : nullptr;
    if (its != code.object && has_run && reader_of_code) ask(function, its);
    has_run = true;
    return answer && its == code.object;
  }

 private:
  [[gnu::noinline, gnu::cold]] void ask(PyObject* function, PyObject* its) {
    Held present(its);
    Reference found(checked(PyObject_CallOneArg(reader_of_code, function)));
    answer = found.get() == Py_True && has_own_arithmetic();
    code = std::move(present);
  }
};
