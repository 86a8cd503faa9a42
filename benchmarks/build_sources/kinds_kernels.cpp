// The kernels of the ops of kinds.cpp for `cpp_kernel`, with loops of their own, as that of x * y has one in peers.py.
#include <custom_autograd/kernel.h>

#include <optional>
#include <vector>
using namespace custom_autograd;

std::tuple<Tensor, Tensor> hidden(const Tensor& x, const Tensor&) {
  check_contiguous(x, "x");
  Tensor out = allocate_like(x), exponent = allocate(x, x.sizes(), ScalarType::Int);
  const float* from = read<float>(x);
  float* mantissas = write<float>(out);
  int32_t* exponents = write<int32_t>(exponent);
  for (int64_t i = 0, count = x.numel(); i < count; ++i) mantissas[i] = std::frexp(from[i], &exponents[i]);
  return {out, exponent};
}

std::tuple<Tensor, Tensor> two_outputs(const Tensor& x, const Tensor&) {
  check_contiguous(x, "x");
  STD_TORCH_CHECK(x.numel() > 0, "'x' must have elements");
  Tensor least = allocate(x, {}), greatest = allocate(x, {});
  const float* from = read<float>(x);
  float low = from[0], high = from[0];
  for (int64_t i = 1, count = x.numel(); i < count; ++i) low = std::min(low, from[i]), high = std::max(high, from[i]);
  *write<float>(least) = low;
  *write<float>(greatest) = high;
  return {least, greatest};
}

Tensor optional_and_list(std::vector<Tensor> xs, std::optional<Tensor> bias) {
  STD_TORCH_CHECK(xs.size() == 2, "'xs' must be two tensors");
  check_contiguous(xs[0], "xs[0]");
  check_contiguous(xs[1], "xs[1]");
  if (bias) check_contiguous(*bias, "bias");
  Tensor out = allocate_like(xs[0]);
  const float *left = read<float>(xs[0]), *right = read<float>(xs[1]), *added = bias ? read<float>(*bias) : nullptr;
  float* sum = write<float>(out);
  for (int64_t i = 0, count = out.numel(); i < count; ++i) sum[i] = left[i] * right[i] + (added ? added[i] : 0.0f);
  return out;
}

void writing(const Tensor& x, const Tensor& y) {
  check_contiguous(x, "x");
  check_contiguous(y, "y");
  float* to = write<float>(x);
  const float* from = read<float>(y);
  for (int64_t i = 0, count = x.numel(); i < count; ++i) to[i] += from[i];
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("hidden(Tensor x, Tensor index) -> (Tensor, Tensor)");
  m.def("two_outputs(Tensor x, Tensor y) -> (Tensor, Tensor)");
  m.def("optional_and_list(Tensor[] xs, Tensor? bias) -> Tensor");
  m.def("writing(Tensor(a!) x, Tensor y) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("hidden", TORCH_BOX(&hidden));
  m.impl("two_outputs", TORCH_BOX(&two_outputs));
  m.impl("optional_and_list", TORCH_BOX(&optional_and_list));
  m.impl("writing", TORCH_BOX(&writing));
}
