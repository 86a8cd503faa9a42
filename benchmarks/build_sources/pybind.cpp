// Three times a float32 tensor, as most extensions are written: torch's C++ classes and pybind11.
#include <torch/extension.h>

void times_into(const at::Tensor& x, at::Tensor out) {
  TORCH_CHECK(x.scalar_type() == at::kFloat && out.scalar_type() == at::kFloat, "float32 is expected");
  TORCH_CHECK(x.is_contiguous() && out.is_contiguous() && x.numel() == out.numel(), "equal sizes are expected");
  const float* in = x.const_data_ptr<float>();
  float* result = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) result[i] = 3 * in[i];
}

at::Tensor times(const at::Tensor& x) {
  at::Tensor out = at::empty_like(x);
  times_into(x, out);
  return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("times", &times);
  m.def("times_into", &times_into);
}
