// Whether something watches or transforms the calls of this thread, or a tensor, that no dispatch key shows.
#pragma once
#include <ATen/FuncTorchTLS.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <pthread.h>

#include <vector>

namespace at::functorch {  // its header needs a library that torch does not install
struct DynamicLayer;
TORCH_API const std::vector<DynamicLayer>& getDynamicLayerStack();
}  // namespace at::functorch

// Asking for the stack makes the state of transforms where a thread has none, and each backward of this thread copies
// that state several times from then on.
inline bool has_transform() {
  return at::functorch::functorchTLSAccessor() && !at::functorch::getDynamicLayerStack().empty();
}

// NOTE [observers after a fork]
// Asking PyTorch whether observers are registered for all threads takes a lock. A thread that forks may do so while another
// one holds it, which does not exist in the child: the lock is never free there. So a child asks what is known without
// it, as operations of PyTorch do, and remembers what its parent was told right before the fork.
class Observers {
  static inline bool is_child = false, had_parent_any = false;

  static bool has_known() { return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value(); }

  static void before_fork() {
    if (!is_child) had_parent_any = at::hasGlobalCallbacks() || has_known();
  }

 public:
  static bool are_there() {
    if (!is_child) return at::hasCallbacks();
    return had_parent_any || at::hasThreadLocalCallbacks() || has_known();
  }

  static void expect_forks() {
    pthread_atfork(before_fork, nullptr, [] { is_child = true; });
  }
};

inline bool is_watched() {
  return at::impl::PythonTorchFunctionTLS::stack_len() > 0 || Observers::are_there() || has_transform();
}

// Whether tensors may have tangents: the dispatcher, which then looks for them, counts the versions of a write otherwise.
inline bool has_dual_level() { return torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr; }

inline torch::autograd::AutogradMeta* meta_of(const at::Tensor& tensor) {
  return static_cast<torch::autograd::AutogradMeta*>(tensor.unsafeGetTensorImpl()->autograd_meta());
}

// A view without a tangent of its own has that of its base, which may be younger: PyTorch looks for that one.
inline bool has_tangent(const at::Tensor& tensor) {
  auto* meta = meta_of(tensor);
  return meta && (meta->fw_grad_ || (meta->is_view_ && has_dual_level()));
}

inline bool is_simple(PyObject* value) {
  return THPVariable_CheckExact(value) && !has_tangent(THPVariable_Unpack(value));
}

inline bool is_simple_number(PyObject* value) { return PyFloat_CheckExact(value) || PyLong_CheckExact(value); }

// What Tensor::requires_grad returns, without a virtual call but for a view, which asks its base.
inline bool requires_grad(const at::Tensor& tensor) {
  auto* meta = meta_of(tensor);
  return meta && (meta->is_view_ ? meta->requires_grad() : meta->AutogradMeta::requires_grad());
}

inline bool is_view(const at::Tensor& tensor) { return meta_of(tensor) && tensor.is_view(); }

// What recorded a tensor, without a virtual call but for a view, which may have to ask its base; null for a leaf.
inline const torch::autograd::Node* node_of(const at::Tensor& tensor) {
  auto* meta = meta_of(tensor);
  if (!meta) return nullptr;
  return meta->is_view_ ? tensor.grad_fn().get() : meta->grad_fn_.get();
}
