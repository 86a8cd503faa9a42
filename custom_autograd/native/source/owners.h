// Who registered the kernels that the dispatcher would run.
#pragma once
#include "python.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>

namespace {

// Whether the dispatcher runs, at a key, what a file registered, or nothing of the operator's own. The kernels of a file
// stand at aliases: one at the key itself is another's.
bool is_own_at(const c10::OperatorHandle& op, c10::DispatchKey key, const std::string& file) {
  static const c10::DispatchKeySet passed_by =
      c10::autocast_dispatch_keyset | c10::DispatchKeySet({c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::BackendSelect});
  if (op.hasKernelForDispatchKey(key)) return false;
  if (passed_by.has(key)) return true;
  return op.hasComputedKernelForDispatchKey(key) &&
      op.getComputedKernelForDispatchKey(key).debug().find(' ' + file + ':') != std::string::npos;
}

// is_own(name, file, keys): whether a file registered all that the dispatcher would run at these keys for an operator;
// false where that is not sure
PyObject* is_own(PyObject*, PyObject* given) {
  HANDLE_TH_ERRORS
  const char *name, *file;
  PyObject* keys;
  if (!PyArg_ParseTuple(given, "ssO!", &name, &file, &PyFrozenSet_Type, &keys)) return nullptr;
  auto op = c10::Dispatcher::singleton().findOp({name, ""});
  if (!op) Py_RETURN_FALSE;
  using enum c10::DispatchKey;
  for (auto alias : {CompositeImplicitAutograd, CompositeImplicitAutogradNestedTensor, CompositeExplicitAutogradNonFunctional})
    if (op->hasKernelForDispatchKey(alias)) Py_RETURN_FALSE;
  Reference each(checked(PyObject_GetIter(keys)));
  while (Reference key{PyIter_Next(each.get())})
    if (!is_own_at(*op, c10::parseDispatchKey(THPUtils_unpackString(key.get())), file)) Py_RETURN_FALSE;
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

}  // namespace
