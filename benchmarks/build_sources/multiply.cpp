// x * y of float32 on the CPU, and its backward, through the stable ABI: see benchmarks/peers.py. The schemas stand here
// and in multiply.cu, because a rule in C++ is bound by those that its own source shows.
#include <custom_autograd/kernel.h>

#include <tuple>

using namespace custom_autograd;

Tensor multiply(const Tensor& x, const Tensor& y) {
  check_contiguous(x, "x");
  check_contiguous(y, "y");
  Tensor out = allocate_like(x);
  const float *left = read<float>(x), *right = read<float>(y);
  float* product = write<float>(out);
  for (int64_t i = 0, count = x.numel(); i < count; ++i) product[i] = left[i] * right[i];
  return out;
}

std::tuple<Tensor, Tensor> multiply_backward(const Tensor& grad, const Tensor& x, const Tensor& y) {
  return {multiply(grad, y), multiply(grad, x)};
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("multiply(Tensor x, Tensor y) -> Tensor");
  m.def("multiply_backward(Tensor grad, Tensor x, Tensor y) -> (Tensor, Tensor)");
}
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("multiply", TORCH_BOX(&multiply));
  m.impl("multiply_backward", TORCH_BOX(&multiply_backward));
}
