// Three times a float32 tensor, on torch's stable ABI: for our builder and for torch.utils.cpp_extension.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

void times_into(const Tensor& x, Tensor out) {
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Float && out.scalar_type() == ScalarType::Float, "float32 is expected");
  STD_TORCH_CHECK(x.is_contiguous() && out.is_contiguous() && x.numel() == out.numel(), "equal sizes are expected");
  const float* in = static_cast<const float*>(x.const_data_ptr());
  float* result = static_cast<float*>(out.mutable_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) result[i] = 3 * in[i];
}

Tensor times(const Tensor& x) {
  Tensor out = torch::stable::empty_like(x);
  times_into(x, out);
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("times(Tensor x) -> Tensor");
  m.def("times_into(Tensor x, Tensor(a!) out) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("times", TORCH_BOX(&times));
  m.impl("times_into", TORCH_BOX(&times_into));
}
