// Whether a kernel or a rule does nothing but arithmetic.
//
// NOTE [arithmetic runs below autograd]
// Operations of a kernel go through the kernels of autograd, which only find out that nothing is to be recorded: a tenth of
// their time. Python's operators +, - and * are the same without those: one operation each, which is made of no others and
// returns no view. So kernels and rules whose code has nothing else run with the Autograd keys excluded. Other operations
// differ there: what is a new tensor can be a view (torch.stack), modes see torch.matmul as one operation, detach_ has no
// effect, and torch.autograd finds no graph.
#pragma once
#include "python.h"

// What is known of a function's code. It is read before the second run, since the first has enough to do, and again after the
// function was given other code, as notebooks do that load changed modules.
class Arithmetic {
  Held code;
  bool has_run = false, answer = false;

 public:
  // `read` says whether a function is arithmetic: calls/arithmetic.py.
  bool is_known(PyObject* function, PyObject* read) {
    PyObject* its = PyFunction_Check(function) ? PyFunction_GET_CODE(function) : nullptr;
    if (has_run && its != code.object) {
      Held present(its);
      Reference found(checked(PyObject_CallOneArg(read, function)));
      answer = found.get() == Py_True;
      code = std::move(present);
    }
    has_run = true;
    return answer && its == code.object;
  }
};
