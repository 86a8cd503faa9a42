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

inline bool is_watched() {
  return at::impl::PythonTorchFunctionTLS::stack_len() > 0 || at::hasCallbacks() || has_transform();
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
